//! Cases of `sample`.

use super::Sample;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::inputs::{LogitEdit, SamplingInputs, mask_words};

/// Greedy and every filter, alone and together.
const KINDS: [(&str, SamplingInputs); 8] = [
    ("greedy", sampling(0.0, 0, 1.0, 0.0)),
    ("temperature", sampling(0.7, 0, 1.0, 0.0)),
    ("top-k 1", sampling(1.3, 1, 1.0, 0.0)),
    ("top-k", sampling(1.0, 20, 1.0, 0.0)),
    ("top-p", sampling(1.0, 0, 0.8, 0.0)),
    ("min-p", sampling(1.0, 0, 1.0, 0.1)),
    ("all filters", sampling(1.0, 20, 0.95, 0.02)),
    ("top-k beyond the vocabulary", sampling(0.3, 100_000, 0.9, 0.0)),
];

const fn sampling(temperature: f32, top_k: u32, top_p: f32, min_p: f32) -> SamplingInputs {
    SamplingInputs { temperature, top_k, top_p, min_p, seed: 0, counter: 0, vocab_limit: u32::MAX, mask: None }
}

/// Each kind on its own, on one row and on several; all kinds in one step; logits that tie or may not be chosen; all
/// of it edited, and masked; a vocabulary that takes several blocks of any kernel.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for step in STEPS {
        for (name, sampling) in KINDS {
            cases.push(case(*step, name, &[sampling], Logits::Plain, Changes::None));
        }
        let all = KINDS.map(|(_, sampling)| sampling);
        for (changes, suffix) in [
            (Changes::None, ""),
            (Changes::Edits, ", edited"),
            (Changes::Masks, ", masked"),
            (Changes::Both, ", edited and masked"),
        ] {
            for (name, logits) in [
                ("mixed kinds", Logits::Plain),
                ("mixed kinds with ties", Logits::Ties),
                ("mixed kinds with padding and −∞", Logits::Holes),
                ("mixed kinds, rows of NaN and +∞", Logits::Broken),
            ] {
                cases.push(case(*step, &format!("{name}{suffix}"), &all, logits, changes));
            }
        }
    }
    for (name, sampling) in KINDS {
        cases.push(case(STEPS[1], &format!("{name} of many"), &[sampling], Logits::Many, Changes::None));
        cases.push(case(STEPS[1], &format!("{name} of many, masked"), &[sampling], Logits::Many, Changes::Masks));
    }
    cases
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    let mut cases =
        at_shapes(&TRUE_ROWS[..2], &KINDS, |step, (name, how)| case(step, name, &[how], Logits::True, Changes::None));
    cases.extend(at_shapes(&TRUE_ROWS[..2], &KINDS, |step, (name, how)| {
        case(step, &format!("{name}, masked"), &[how], Logits::True, Changes::Masks)
    }));
    cases
}

/// What is done to rows before a token is chosen.
#[derive(Clone, Copy, PartialEq)]
enum Changes {
    None,
    Edits,
    Masks,
    Both,
}

#[derive(Clone, Copy, PartialEq)]
enum Logits {
    Plain,
    /// The largest occurs more than once.
    Ties,
    /// The largest are padding, NaN among it; −∞ among the rest.
    Holes,
    /// Holes, and something in three of four rows that makes them no distribution.
    Broken,
    /// Plain, and more of them.
    Many,
    /// As many as the model has, of which the last are padding.
    True,
}

fn case(step: Step, name: &str, kinds: &[SamplingInputs], logits: Logits, changes: Changes) -> Case {
    let vocab = match logits {
        Logits::Plain => 1003,
        Logits::Ties | Logits::Holes | Logits::Broken => 64,
        Logits::Many => 20_011,
        Logits::True => 248_320,
    };
    let mut b = CaseBuilder::new(step);
    let row = |i: usize| SamplingInputs {
        seed: i as u64 * 77 + kinds.len() as u64,
        counter: 1000 + i as u64,
        vocab_limit: match logits {
            Logits::Holes | Logits::Broken => vocab as u32 - 5,
            Logits::True => 248_077,
            Logits::Plain | Logits::Ties | Logits::Many => vocab as u32,
        },
        ..kinds[i % kinds.len()]
    };
    let mut rows: Vec<SamplingInputs> = (0..b.rows()).map(row).collect();
    let mut values = b.random.normals(b.rows() * vocab, 3.0);
    for (i, v) in values.iter_mut().enumerate() {
        match (logits, i % vocab) {
            (Logits::Ties, _) => *v = v.round().min(6.0),
            (Logits::Holes | Logits::Broken, 60) => *v = f32::NAN,
            (Logits::Holes | Logits::Broken, 59..) => *v = 50.0,
            (Logits::Holes | Logits::Broken, 9 | 58) => *v = f32::NEG_INFINITY,
            (Logits::Broken, id) => *v = broken(i / vocab, id, *v),
            (Logits::Plain | Logits::Holes | Logits::Many | Logits::True, _) => (),
        }
    }
    if matches!(changes, Changes::Edits | Changes::Both) {
        b.inputs.edits =
            (0..rows.len()).filter(|row| row % 4 != 2).flat_map(|row| edits(&values, vocab, row)).collect();
    }
    if matches!(changes, Changes::Masks | Changes::Both) {
        b.inputs.masks = masks(vocab);
        // The last kind of row has none.
        let kinds = b.inputs.masks.len() / mask_words(vocab) + 1;
        for (row, how) in rows.iter_mut().enumerate() {
            how.mask = Some((row % kinds) as u32).filter(|mask| (*mask as usize) < kinds - 1);
        }
    }
    b.sampling(rows);
    let logits = b.logits(vocab, &values);
    let tokens = b.next_tokens();
    b.finish(name, Sample { logits, tokens }, 0.0)
}

/// Masks with every third id, one id, all, those of the first words and of what is beyond the vocabulary, and none.
fn masks(vocab: usize) -> Vec<u32> {
    let kinds: [fn(usize, usize) -> bool; 5] = [
        |id, _| id % 3 == 1,
        |id, vocab| id == vocab / 2 + 1,
        |_, _| true,
        |id, vocab| id < 40 || id + 3 >= vocab,
        |_, _| false,
    ];
    let words = mask_words(vocab);
    let bits = |kind: fn(usize, usize) -> bool, word: usize| {
        (0..32).filter(|bit| kind(word * 32 + bit, vocab)).fold(0, |bits, bit| bits | 1 << bit)
    };
    kinds.into_iter().flat_map(|kind| (0..words).map(move |word| bits(kind, word))).collect()
}

/// A logit of a broken row: one NaN, one +∞, nothing but −∞, or none of it.
fn broken(row: usize, id: usize, logit: f32) -> f32 {
    match (row % 4, id) {
        (0, 7) => -f32::NAN,
        (1, 5) => f32::INFINITY,
        (2, _) => f32::NEG_INFINITY,
        _ => logit,
    }
}

/// Edits of what would be chosen, of an unlikely id, and of ids that no edit makes a choice: padding, −∞, and one
/// beyond the row. Factors are powers of two, so that equal logits stay equal however they are computed.
fn edits(values: &[f32], vocab: usize, row: usize) -> Vec<LogitEdit> {
    let edit =
        |id: usize, bias, repetition, penalty| LogitEdit { row: row as u32, id: id as u32, bias, repetition, penalty };
    let logits = &values[row * vocab..][..vocab];
    let mut ranked: Vec<usize> = (0..vocab.min(58)).filter(|i| logits[*i] > f32::NEG_INFINITY).collect();
    if ranked.is_empty() {
        return vec![edit(3, 100.0, 0.5, -1.0)];
    }
    ranked.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    vec![
        edit(63, 50.0, 1.0, 0.0),
        edit(ranked[0], 0.0, 2.0, 0.5),
        edit(ranked[1], -0.25, 1.0, 1.5),
        edit(ranked[ranked.len() - 1], 8.0, 0.5, -0.125),
        edit(58, 100.0, 1.0, 0.0),
        edit(vocab, 100.0, 1.0, 0.0),
    ]
}
