//! Cached = cold = batched = any chunking = any thread count = any instruction set, in the same bytes, in both
//! precisions. Prompts cross KV blocks (256) and hold one token many times, so that experts are uneven.

use std::ops::ControlFlow;

use lily_engine::engine::{Engine, EngineOptions, ModelSource, Precision};
use lily_engine::request::{CancelToken, ChatPrompt, Completion, FinishReason, Prompt, Request, SamplingParams};
use lily_engine::runtime::Runtime;
use lily_engine::session::Session;
use lily_kernels::cpu::CpuBackend;
use lily_kernels::cpu::isa::Isa;
use lily_kernels::plan::Logits;
use serde_json::{Value, json};

use crate::harness::{self, logits};
use crate::support::DEMO;

const BOTH: [Precision; 2] = [Precision::Exact, Precision::Fast];

/// Ids that look random and repeat now and then.
fn tokens(len: usize) -> Vec<u32> {
    let mut x = 12345u32;
    let step = |_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if x >> 29 == 0 { 262 } else { (x >> 8) % 4000 }
    };
    (0..len).map(step).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let differ = bits(got).iter().zip(bits(want)).filter(|(g, w)| **g != *w).count();
    assert_eq!(differ, 0, "{what}: {differ} of {} logits differ", want.len());
}

fn device(threads: usize, isa: Isa) -> CpuBackend {
    CpuBackend::with_isa(Some(threads), isa).unwrap()
}

fn runtime(precision: Precision, threads: usize, isa: Isa) -> Runtime {
    harness::runtime_on(ModelSource::Embedded(DEMO), precision, device(threads, isa))
}

#[test]
fn prefill_equals_decode_steps_and_any_chunking() {
    let ids = tokens(530);
    for precision in BOTH {
        let mut runtime = harness::demo_runtime(precision);
        let whole = logits(&mut runtime, &ids, 2048);
        for chunk in [1, 2, 16, 63, 64, 65, 256, 257] {
            assert_same(&logits(&mut runtime, &ids, chunk), &whole, &format!("{precision:?}, chunks of {chunk}"));
        }
    }
}

#[test]
fn row_counts_from_1_to_17_give_the_bytes_of_single_rows() {
    let ids = tokens(250 + 17);
    for precision in BOTH {
        let mut runtime = harness::demo_runtime(precision);
        let single = logits(&mut runtime, &ids, 1);
        let vocab = single.len() / ids.len();
        for rows in 1..=17 {
            let mut session = harness::session(&mut runtime, ids.len());
            runtime.stepper.prefill(&mut session, &ids[..250], Logits::None).unwrap();
            runtime.stepper.prefill(&mut session, &ids[250..250 + rows], Logits::All).unwrap();
            let got = runtime.stepper.logits(rows);
            runtime.discard(session);
            assert_same(&got, &single[250 * vocab..][..rows * vocab], &format!("{precision:?}, {rows} rows"));
        }
    }
}

#[test]
fn a_batch_of_1_to_17_sequences_gives_the_bytes_of_each_alone() {
    for precision in BOTH {
        let mut runtime = harness::demo_runtime(precision);
        // Sequences of different lengths, some just before and after a block's end.
        let prompts: Vec<Vec<u32>> = (0..17).map(|i| tokens(240 + 3 * i)[i..].to_vec()).collect();
        let alone: Vec<Vec<f32>> = prompts
            .iter()
            .map(|ids| {
                let all = logits(&mut runtime, ids, 2048);
                let vocab = all.len() / ids.len();
                all[all.len() - vocab..].to_vec()
            })
            .collect();
        for count in [1, 2, 3, 5, 8, 16, 17] {
            let mut sessions: Vec<Session> = prompts[..count]
                .iter()
                .map(|ids| {
                    let mut session = harness::session(&mut runtime, ids.len());
                    runtime.stepper.prefill(&mut session, &ids[..ids.len() - 1], Logits::None).unwrap();
                    session
                })
                .collect();
            let last: Vec<u32> = prompts[..count].iter().map(|ids| ids[ids.len() - 1]).collect();
            let mut borrowed: Vec<&mut Session> = sessions.iter_mut().collect();
            runtime.stepper.decode(&mut borrowed, &last, false).unwrap();
            let got = runtime.stepper.logits(count);
            sessions.into_iter().for_each(|s| runtime.discard(s));
            assert_same(&got, &alone[..count].concat(), &format!("{precision:?}, batch of {count}"));
        }
    }
}

#[test]
fn any_thread_count_and_instruction_set_gives_the_same_bytes() {
    let ids = tokens(300);
    for name in Isa::missing() {
        println!("SKIP bytes on {name}: not on this CPU");
    }
    for precision in BOTH {
        let want = logits(&mut runtime(precision, 1, Isa::SCALAR), &ids, 2048);
        for isa in Isa::available() {
            for threads in [1, 2, 3, 5] {
                let mut runtime = runtime(precision, threads, isa);
                let what = format!("{precision:?}, {} × {threads}", isa.name());
                assert_same(&logits(&mut runtime, &ids, 2048), &want, &what);
                assert_same(&logits(&mut runtime, &ids[..40], 1), &want[..want.len() / 300 * 40], &what);
            }
        }
    }
}

#[test]
fn every_architecture_gives_the_same_bytes_in_any_chunks_threads_and_instruction_set() {
    let ids: Vec<u32> = tokens(300).iter().map(|id| id % 256).collect();
    for folder in harness::architectures() {
        let load = |precision, threads, isa| {
            harness::runtime_on(ModelSource::Folder(folder.clone()), precision, device(threads, isa))
        };
        for precision in BOTH {
            let want = logits(&mut load(precision, 1, Isa::SCALAR), &ids, 2048);
            for isa in Isa::available() {
                let mut runtime = load(precision, 3, isa);
                for chunk in [1, 17, 2048] {
                    let what = format!("{} {precision:?}, {}, chunks of {chunk}", folder.display(), isa.name());
                    assert_same(&logits(&mut runtime, &ids, chunk), &want, &what);
                }
            }
        }
    }
}

fn chat(messages: &[Value]) -> Request {
    let prompt =
        Prompt::Chat(ChatPrompt { messages: messages.to_vec(), enable_thinking: Some(false), ..ChatPrompt::default() });
    Request { max_tokens: Some(40), ..Request::new(prompt, SamplingParams::GREEDY) }
}

fn run(engine: &mut Engine, request: &Request) -> Completion {
    engine.generate(request, &CancelToken::default(), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Logits after the tokens that the engine's continued session holds, against a cold run of the same tokens.
#[test]
fn a_continued_session_equals_a_cold_one() {
    for precision in BOTH {
        let options = EngineOptions { prefill_chunk: 32, ..harness::demo_options(precision) };
        let mut warm = Engine::open(&options).unwrap();
        let mut messages = Vec::new();
        let mut reused = 0;
        for text in ["Hello!", "My name is Ada and I love trains.", "What is 27 + 58?", "What is my name?"] {
            messages.push(json!({"role": "user", "content": text}));
            let request = chat(&messages);
            let continued = run(&mut warm, &request);
            let cold = run(&mut Engine::open(&options).unwrap(), &request);
            assert_eq!(continued.tokens, cold.tokens, "{precision:?}: {text}");
            assert_eq!((cold.usage.cached_tokens, continued.content.as_str()), (0, cold.content.as_str()));
            reused += usize::from(continued.usage.cached_tokens > 0);
            compare_next_logits(&mut warm, precision, &request, &continued);
            messages.push(json!({"role": "assistant", "content": continued.content}));
        }
        assert_eq!(reused, 3, "every turn but the first reuses the session");
        assert!(messages.last().unwrap()["content"].as_str().unwrap().contains("Ada"));
    }
}

/// A stop string cuts the answer that the caller sees and sends back, in the middle of a token or behind several. What
/// was computed stays, and the next turn is as if it had never been.
#[test]
fn a_session_goes_on_from_a_stop_string_as_from_nothing() {
    for precision in BOTH {
        let options = EngineOptions { prefill_chunk: 32, ..harness::demo_options(precision) };
        let mut warm = Engine::open(&options).unwrap();
        let (mut messages, mut reused) = (Vec::new(), 0);
        for (text, stop) in [
            ("Hello!", "iny"),
            ("My name is Ada and I love trains.", "nowhere to be found"),
            ("What is the capital of France?", "tal of Fr"),
            ("What is my name?", "."),
        ] {
            messages.push(json!({"role": "user", "content": text}));
            let request = Request { stop: vec![stop.into(), "\u{1}".into()], ..chat(&messages) };
            let continued = run(&mut warm, &request);
            let cold = run(&mut Engine::open(&options).unwrap(), &request);
            assert_eq!((&continued.tokens, &continued.content), (&cold.tokens, &cold.content), "{precision:?}: {text}");
            assert!(!continued.content.contains(stop), "{}", continued.content);
            assert_eq!(continued.finish_reason, FinishReason::Stop);
            reused += usize::from(continued.usage.cached_tokens > 0);
            compare_next_logits(&mut warm, precision, &request, &continued);
            messages.push(json!({"role": "assistant", "content": continued.content}));
        }
        assert_eq!(reused, 3, "every turn but the first reuses the session");
        assert_eq!(messages[5]["content"], "The capi");
    }
}

fn compare_next_logits(warm: &mut Engine, precision: Precision, request: &Request, done: &Completion) {
    let mut ids = warm.codec().prompt_tokens(&request.prompt).unwrap().ids;
    ids.extend(&done.tokens);
    let runtime = warm.runtime();
    let mut session = runtime.take_session(&ids).unwrap();
    assert_eq!(session.len(), ids.len() - 1, "the end of a generation can be resumed");
    runtime.reserve(&mut session, 1).unwrap();
    runtime.stepper.decode(&mut [&mut session], &ids[ids.len() - 1..], false).unwrap();
    let got = runtime.stepper.logits(1);
    // As it was, so that the next turn finds it: the session now holds one token more, which the template drops.
    runtime.keep(session);
    let cold = logits(&mut harness::demo_runtime(precision), &ids, 2048);
    assert_same(&got, &cold[cold.len() - got.len()..], &format!("{precision:?}, continued"));
}

#[test]
fn c11_seeded_sampling_is_the_same_with_and_without_earlier_traffic() {
    let options = harness::demo_options(Precision::Fast);
    let mut busy = Engine::open(&options).unwrap();
    let filters = SamplingParams { temperature: 0.9, top_k: 40, top_p: 0.95, min_p: 0.01, ..SamplingParams::GREEDY };
    let sampling = SamplingParams { presence_penalty: 0.5, repetition_penalty: 1.05, seed: 7, ..filters };
    let story = Request {
        sampling,
        max_tokens: Some(60),
        ..chat(&[json!({"role": "user", "content": "Tell me a story about a fox."})])
    };
    for other in ["Hello!", "Tell me a story about a bear.", "Tell me a story about a fox named Rosa."] {
        run(&mut busy, &chat(&[json!({"role": "user", "content": other})]));
    }
    let alone = run(&mut Engine::open(&options).unwrap(), &story);
    assert_eq!(run(&mut busy, &story).tokens, alone.tokens);
    assert_eq!(run(&mut busy, &story).tokens, alone.tokens, "asked again");
    let other_seed = Request { sampling: SamplingParams { seed: 8, ..sampling }, ..story };
    assert_ne!(run(&mut busy, &other_seed).tokens, alone.tokens, "another seed draws differently");
}

/// The demo model in a folder, its data section moved by `shift` bytes (spaces at the end of the header).
fn shifted(shift: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in DEMO.files {
        let mut bytes = bytes.to_vec();
        if *name == "model.safetensors" {
            let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            bytes.splice(8 + header..8 + header, std::iter::repeat_n(b' ', shift));
            bytes[..8].copy_from_slice(&((header + shift) as u64).to_le_bytes());
        }
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

#[test]
fn weights_at_any_byte_offset_give_the_same_bytes() {
    let ids = tokens(40);
    for precision in BOTH {
        let want = logits(&mut harness::demo_runtime(precision), &ids, 32);
        for shift in 0..8 {
            let folder = shifted(shift);
            let mut runtime = harness::folder(folder.path(), precision);
            assert_same(&logits(&mut runtime, &ids, 32), &want, &format!("{precision:?}, shifted by {shift}"));
        }
    }
}
