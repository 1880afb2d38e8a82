//! Fast precision against the f32 golden: top-1, perplexity.

use lily_engine::engine::{Engine, Precision};
use lily_engine::request::Prompt;

use crate::harness::{self, Golden, top1};
use crate::support::root;

/// Best logit less the second best, of each row.
pub fn margins(logits: &[f32], vocab: usize) -> Vec<f32> {
    let margin = |row: &[f32]| {
        let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &x in row {
            if x > best {
                (best, second) = (x, best);
            } else {
                second = second.max(x);
            }
        }
        best - second
    };
    logits.chunks_exact(vocab).map(margin).collect()
}

#[test]
fn top1_agrees_with_the_golden() {
    let golden = Golden::open(&root().join("golden/demo/golden_mlx_f32.safetensors"));
    let mut runtime = harness::demo_runtime(Precision::Fast);
    let vocab = runtime.stepper.model().config.vocab_size;
    let want = golden.floats("logits");
    let got = harness::logits(&mut runtime, &golden.ids("tokens"), 2048);
    let margins = margins(&want, vocab);
    let equal: Vec<bool> = top1(&got, vocab).iter().zip(top1(&want, vocab)).map(|(got, want)| *got == want).collect();
    let decided: Vec<bool> = equal.iter().zip(&margins).filter(|(_, m)| **m >= 0.3).map(|(e, _)| *e).collect();
    let all = equal.iter().filter(|e| **e).count();
    let error = harness::relative_rms(&got, &want);
    println!("fast: top-1 equal at {all} of {}, logits relative rms {error:.2e}", equal.len());
    assert_eq!((equal.len(), decided.len()), (295, 247));
    assert!(decided.iter().all(|e| *e), "a choice with a margin of 0.3 changed");
    assert!(all * 100 >= 97 * equal.len(), "{all} of {}", equal.len());
}

/// Σ −log p of each next token, and how many there are.
fn nll(engine: &mut Engine, text: &str) -> (f64, usize) {
    let ids = engine.codec().prompt_tokens(&Prompt::Raw(text.to_owned())).unwrap().ids;
    let vocab = engine.info().vocab_size;
    let logits = harness::logits(engine.runtime(), &ids, 2048);
    let rows = logits.chunks_exact(vocab).zip(&ids[1..]);
    let of = |(row, &id): (&[f32], &u32)| {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
        f64::from(max) + sum.ln() - f64::from(row[id as usize])
    };
    (rows.map(of).sum(), ids.len() - 1)
}

fn perplexity(precision: Precision) -> f64 {
    let read = |name: &str| std::fs::read_to_string(root().join("golden/demo").join(name)).unwrap();
    let texts: Vec<String> = serde_json::from_str(&read("eval_docs.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&read("eval_nll_mlx_f32.json")).unwrap();
    let mut engine = harness::demo(precision);
    let (mut total, mut tokens) = (0.0, 0);
    for (text, want) in texts.iter().zip(golden["documents"].as_array().unwrap()) {
        let (sum, count) = nll(&mut engine, text);
        assert_eq!(count as u64, want[0].as_u64().unwrap(), "tokens of a document");
        if precision == Precision::Exact {
            let want = want[1].as_f64().unwrap();
            assert!((sum - want).abs() <= 1e-4 * want.max(1.0), "a document's nll: {sum} instead of {want}");
        }
        total += sum;
        tokens += count;
    }
    assert_eq!((texts.len(), tokens), (151, 20_965));
    (total / tokens as f64).exp()
}

#[test]
fn perplexity_in_fast_precision_is_within_a_fifth_of_a_percent() {
    let got = perplexity(Precision::Fast);
    println!("fast perplexity {got:.5}");
    assert!((got / 1.59371 - 1.0).abs() <= 0.002, "{got}");
}

#[test]
fn perplexity_in_exact_precision_is_the_golden_one_document_by_document() {
    let got = perplexity(Precision::Exact);
    println!("exact perplexity {got:.5}");
    assert!((got / 1.593_710_279 - 1.0).abs() <= 1e-5, "{got}");
}
