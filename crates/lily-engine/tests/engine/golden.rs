//! Exact precision against mlx-lm and transformers in float32: hidden states per layer, logits, greedy text.

use std::path::Path;

use lily_engine::engine::{Engine, Precision};
use lily_engine::request::{CancelToken, ChatPrompt, Prompt, Request, SamplingParams};
use lily_engine::runtime::Runtime;

use crate::harness::{self, Golden, relative_rms, top1};
use crate::support::{root, shared};

/// Largest relative RMS error of logits and hidden states.
const TOLERANCE: f64 = 2e-5;

/// Every tensor that the golden has and the engine names, and every top-1. Goldens may hold the last rows of logits
/// only.
fn check(runtime: &mut Runtime, golden: &Golden, chunk: usize) {
    let vocab = runtime.stepper.model().config.vocab_size;
    let tokens = golden.ids("tokens");
    let seen = harness::observe(runtime, &tokens, chunk);
    let mut compared = 0;
    for name in golden.names() {
        let Some(got) = seen.get(&name) else { continue };
        let want = golden.floats(&name);
        let got = &got[got.len() - want.len()..];
        let error = relative_rms(got, &want);
        assert!(error <= TOLERANCE, "{name}: relative rms {error:.2e} in chunks of {chunk}");
        compared += 1;
        if name == "logits" {
            assert_eq!(top1(got, vocab), top1(&want, vocab), "top-1 in chunks of {chunk}");
            println!("logits: relative rms {error:.2e}, {} top-1 equal, chunks of {chunk}", want.len() / vocab);
        }
    }
    let layers = seen.keys().filter(|name| name.starts_with("hidden.")).count();
    assert!(layers > 2 && compared == layers + 1, "compared {compared} tensors, {layers} of them hidden states");
    if golden.names().iter().any(|name| name == "greedy.tokens") {
        let want = golden.ids("greedy.tokens");
        assert_eq!(harness::greedy(runtime, &tokens, want.len()), want, "greedy continuation");
    }
}

fn check_shared(checkpoint: &str, golden: &str, chunks: &[usize]) {
    let (Some(folder), Some(golden)) = (shared(checkpoint), shared(golden)) else { return };
    let mut runtime = harness::folder(&folder, Precision::Exact);
    for &chunk in chunks {
        check(&mut runtime, &Golden::open(&golden), chunk);
    }
}

#[test]
fn demo_model_equals_mlx_lm() {
    let golden = Golden::open(&root().join("golden/demo/golden_mlx_f32.safetensors"));
    check(&mut harness::demo_runtime(Precision::Exact), &golden, 2048);
    check(&mut harness::demo_runtime(Precision::Exact), &golden, 64);
}

#[test]
fn tiny_mlx4_equals_transformers() {
    check_shared("oracle/ckpt/tiny-mlx4", "oracle/gold/tiny-mlx4.hf-f32.safetensors", &[2048, 64]);
}

#[test]
fn tiny_calm_equals_transformers_and_mlx_lm() {
    check_shared("oracle/ckpt/tiny-calm", "oracle/gold/tiny-calm.hf-float32.safetensors", &[2048]);
    check_shared("oracle/ckpt/tiny-calm", "oracle/gold/tiny-calm.mlx-float32.safetensors", &[2048]);
}

#[test]
fn tiny_calm_1500_equals_transformers_in_chunks_of_64_257_and_2048() {
    check_shared("oracle/ckpt/tiny-calm", "oracle/gold/tiny-calm-1500.hf-f32.safetensors", &[64, 257, 2048]);
}

/// Every layout, architecture and quantization of golden/architectures, in exact precision and whole.
#[test]
fn every_architecture_and_quantization_equals_its_golden() {
    for folder in harness::architectures() {
        println!("{}", folder.display());
        let golden = Golden::open(&folder.join("golden.safetensors"));
        check(&mut harness::folder(&folder, Precision::Exact), &golden, 2048);
        check(&mut harness::folder(&folder, Precision::Exact), &golden, 5);
    }
}

/// In fast precision they keep every decided choice. Random weights have no redundancy that would absorb the rounding of
/// activations; with two bits it even changes which experts are chosen, so there only the size of the error counts.
#[test]
fn every_architecture_keeps_its_choices_in_fast_precision() {
    for folder in harness::architectures() {
        let golden = Golden::open(&folder.join("golden.safetensors"));
        let mut runtime = harness::folder(&folder, Precision::Fast);
        let vocab = runtime.stepper.model().config.vocab_size;
        let (got, want) = (harness::logits(&mut runtime, &golden.ids("tokens"), 2048), golden.floats("logits"));
        let error = relative_rms(&got, &want);
        let decided = |row: &[f32]| {
            let best = top1(row, vocab)[0] as usize;
            let second = (0..vocab).filter(|&id| id != best).map(|id| row[id]).fold(f32::MIN, f32::max);
            row[best] - second >= 1.0
        };
        let rows: Vec<_> = got.chunks(vocab).zip(want.chunks(vocab)).filter(|(_, want)| decided(want)).collect();
        println!("{}: relative rms {error:.1e}, {} decided rows", folder.display(), rows.len());
        assert!(error < 0.2 && rows.len() > 5, "{}", folder.display());
        for (got, want) in rows.into_iter().filter(|_| !folder.ends_with("mlx-q2")) {
            assert_eq!(top1(got, vocab), top1(want, vocab), "{}", folder.display());
        }
    }
}

/// The fixture of the repository was made by an f64 reference written apart from both libraries.
#[test]
fn tiny_fixture_equals_its_f64_reference() {
    let folder = root().join("golden/tiny");
    let golden = Golden::open(&folder.join("expected.safetensors"));
    let seen = harness::observe(&mut harness::folder(&folder, Precision::Exact), &golden.ids("input_ids"), 2048);
    for i in 0..=4 {
        let error = relative_rms(&seen[&format!("hidden.{i:02}")], &golden.floats(&format!("hidden_{i}")));
        assert!(error <= TOLERANCE, "hidden_{i}: {error:.2e}");
    }
    let error = relative_rms(&seen["logits"], &golden.floats("logits"));
    assert!(error <= TOLERANCE, "logits: {error:.2e}");
}

#[test]
fn greedy_text_of_the_demo_model_equals_mlx_lm() {
    let json = std::fs::read_to_string(root().join("golden/demo/greedy_mlx_f32.json")).unwrap();
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(rows.len(), 5);
    let mut engine = harness::demo(Precision::Exact);
    for row in &rows {
        let (ids, text) = answer(&mut engine, row["prompt"].as_str().unwrap());
        let want: Vec<u32> = row["greedy"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        // The golden ends before the stop id.
        assert_eq!(ids[..ids.len() - 1], want, "{}", row["prompt"]);
        assert_eq!(text, row["text"].as_str().unwrap());
        let prompt: Vec<u32> = row["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(engine.codec().prompt_tokens(&chat(row["prompt"].as_str().unwrap())).unwrap().ids, prompt);
    }
}

fn chat(prompt: &str) -> Prompt {
    Prompt::Chat(ChatPrompt {
        messages: vec![serde_json::json!({"role": "user", "content": prompt})],
        enable_thinking: Some(false),
        ..ChatPrompt::default()
    })
}

fn answer(engine: &mut Engine, prompt: &str) -> (Vec<u32>, String) {
    let request = Request::new(chat(prompt), SamplingParams::GREEDY);
    let done =
        engine.generate(&request, &CancelToken::default(), &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    (done.tokens, done.content)
}

#[test]
fn goldens_of_the_repository_are_there() {
    for path in ["golden/demo/golden_mlx_f32.safetensors", "golden/tiny/expected.safetensors"] {
        assert!(Path::new(&root()).join(path).exists(), "{path}");
    }
}
