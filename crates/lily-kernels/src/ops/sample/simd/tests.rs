//! Draws against the reference and, token for token, on every instruction set; rows that no model should make.

use super::*;
use crate::check::random::Random;
use crate::cpu::lanes::tests::seconds;
use crate::inputs::mask_words;
use crate::ops::sample::reference;

const PLAIN: SamplingInputs = SamplingInputs {
    temperature: 1.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    seed: 5,
    counter: 0,
    vocab_limit: u32::MAX,
    mask: None,
};

/// Every filter alone, and some together.
const KINDS: [(&str, SamplingInputs); 9] = [
    ("greedy", SamplingInputs { temperature: 0.0, ..PLAIN }),
    ("temperature", PLAIN),
    ("min-p 0.05", SamplingInputs { min_p: 0.05, ..PLAIN }),
    ("top-p 0.95", SamplingInputs { top_p: 0.95, ..PLAIN }),
    ("top-k 20", SamplingInputs { top_k: 20, ..PLAIN }),
    ("top-k 20, top-p 0.95", SamplingInputs { top_k: 20, top_p: 0.95, ..PLAIN }),
    ("top-k 3000", SamplingInputs { top_k: 3000, ..PLAIN }),
    ("top-p 0.5, min-p 0.01, cool", SamplingInputs { temperature: 0.6, top_p: 0.5, min_p: 0.01, ..PLAIN }),
    ("top-p 0.999999, hot", SamplingInputs { temperature: 50.0, top_p: 0.999_999, ..PLAIN }),
];

/// What the rows of a test look like.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    /// Like a model's: few that stand out.
    Peaked,
    /// All about as likely.
    Flat,
    /// Few different values.
    Ties,
    /// The largest come last, each larger than all before: selection selects again and again.
    Ascending,
}

fn logits(vocab: usize, shape: Shape) -> Vec<f32> {
    let mut random = Random::new(7);
    let mut logits = random.normals(vocab, if shape == Shape::Flat { 0.01 } else { 2.0 });
    match shape {
        Shape::Peaked => {
            for id in random.distinct(100, vocab) {
                logits[id as usize] += 12.0 + 6.0 * random.signed();
            }
        }
        Shape::Flat => {}
        Shape::Ties => logits.iter_mut().for_each(|x| *x = x.round()),
        Shape::Ascending => logits.sort_by(f32::total_cmp),
    }
    logits
}

/// The choice of a row without a mask.
fn choose(isa: Isa, logits: &[f32], edits: &[LogitEdit], how: &SamplingInputs, scratch: &mut Scratch) -> u32 {
    super::choose(isa, Row { logits, edits, mask: None }, how, scratch)
}

fn scratch(vocab: usize) -> Scratch {
    let mut scratch = Scratch::default();
    scratch.grow(vocab);
    // What an earlier row left must not show.
    scratch.row.fill(f32::NAN);
    scratch
}

#[test]
fn draws_are_the_references_on_every_set() {
    const VOCAB: usize = 10_007;
    let edits: Vec<LogitEdit> =
        (0..300).map(|i| LogitEdit { row: 0, id: i * 31, bias: 0.5, repetition: 1.25, penalty: 0.25 }).collect();
    for shape in [Shape::Peaked, Shape::Flat, Shape::Ties, Shape::Ascending] {
        let logits = logits(VOCAB, shape);
        let wide: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
        for edits in [&[][..], &edits] {
            let wide = reference::edited(wide.clone(), edits);
            for (name, how) in KINDS {
                for counter in 0..8 {
                    let how = SamplingInputs { counter, ..how };
                    let want = reference::choose(&wide, &how);
                    for isa in Isa::available() {
                        let got = choose(isa, &logits, edits, &how, &mut scratch(VOCAB));
                        assert_eq!(got, want, "{name}, {shape:?}, {} edits, {}", edits.len(), isa.name());
                    }
                }
            }
        }
    }
}

#[test]
fn masked_draws_are_the_references_on_every_set() {
    const VOCAB: usize = 10_007;
    let edit = [LogitEdit { row: 0, id: 77, bias: 30.0, repetition: 1.0, penalty: 0.0 }];
    let masks: [fn(usize) -> bool; 5] = [|_| true, |id| id % 3 == 1, |id| id == 9_999, |id| id < 64, |_| false];
    let logits = logits(VOCAB, Shape::Peaked);
    let wide: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
    for (number, allows) in masks.into_iter().enumerate() {
        let mut mask = vec![0; mask_words(VOCAB)];
        (0..VOCAB).filter(|id| allows(*id)).for_each(|id| mask[id / 32] |= 1 << (id % 32));
        for edits in [&[][..], &edit] {
            let wide = reference::masked(reference::edited(wide.clone(), edits), Some(&mask));
            for (name, how) in KINDS {
                for counter in 0..4 {
                    let how = SamplingInputs { counter, ..how };
                    let want = reference::choose(&wide, &how);
                    for isa in Isa::available() {
                        let row = Row { logits: &logits, edits, mask: Some(&mask) };
                        let got = super::choose(isa, row, &how, &mut scratch(VOCAB));
                        assert_eq!(got, want, "{name}, mask {number}, {} edits, {}", edits.len(), isa.name());
                    }
                }
            }
        }
    }
}

#[test]
fn a_mask_hides_no_broken_row() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for (name, how) in KINDS {
        for logits in [[1.0, nan, 2.0], [1.0, inf, 2.0]] {
            let row = Row { logits: &logits, edits: &[], mask: Some(&[0b101]) };
            assert_eq!(super::choose(Isa::detect(), row, &how, &mut scratch(8)), NO_TOKEN, "{name}");
        }
        let row = Row { logits: &[1.0, -inf, 2.0], edits: &[], mask: Some(&[0b011]) };
        assert_eq!(super::choose(Isa::detect(), row, &how, &mut scratch(8)), 0, "{name}");
    }
}

#[test]
fn rows_that_no_model_should_make_give_an_id_that_may_be_chosen_or_none() {
    const NONE: &[u32] = &[NO_TOKEN];
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows: [(&[f32], u32, &[u32]); 14] = [
        (&[], 9, NONE),
        (&[nan, nan], 9, NONE),
        (&[-nan, -nan], 9, NONE),
        (&[-inf, -inf], 9, NONE),
        (&[1.0, 2.0], 0, NONE),
        (&[0.0, nan, 7.0], 9, NONE),
        (&[0.0, inf, -inf, 5.0], 9, NONE),
        (&[nan, inf, -inf], 9, NONE),
        (&[-inf, -inf, -3.0e38, -inf], 9, &[2]),
        (&[1.0, 1.0, inf, nan], 2, &[0, 1]),
        (&[-inf, 2.0, nan], 2, &[1]),
        (&[-0.0, 0.0, -inf], 9, &[0, 1]),
        (&[f32::MAX, f32::MIN], 9, &[0]),
        (&[f32::MIN, f32::MIN, -inf], 9, &[0, 1]),
    ];
    // One that changes nothing: the rows are copied then.
    let edit = [LogitEdit { row: 0, id: 0, bias: 0.0, repetition: 1.0, penalty: 0.0 }];
    for (logits, vocab_limit, may) in rows {
        // The same row at the end of a long one of which nothing else may be chosen.
        let mut long = vec![-inf; 3000];
        long.extend(logits);
        let shifted: Vec<u32> = may.iter().map(|id| if *id == NO_TOKEN { *id } else { id + 3000 }).collect();
        for (name, how) in KINDS {
            for (counter, edits) in (0..20).flat_map(|counter| [(counter, &edit[..]), (counter, &[])]) {
                let how = SamplingInputs { counter, ..how };
                let id = choose(Isa::detect(), logits, edits, &SamplingInputs { vocab_limit, ..how }, &mut scratch(8));
                assert!(may.contains(&id), "{name}: {id} of {logits:?}");
                let how = SamplingInputs { vocab_limit: vocab_limit + 3000, ..how };
                let id = choose(Isa::detect(), &long, edits, &how, &mut scratch(3008));
                assert!(shifted.contains(&id), "{name}: {id} of {logits:?} behind others");
            }
        }
    }
}

#[test]
fn infinities_that_edits_make_are_the_callers() {
    let edit = |id, repetition| LogitEdit { row: 0, id, bias: 0.0, repetition, penalty: 0.0 };
    for (name, how) in KINDS {
        let choose = |logits: &[f32], edits: &[LogitEdit]| choose(Isa::detect(), logits, edits, &how, &mut scratch(8));
        assert_eq!(choose(&[1.0, 2.0, 3.0], &[edit(1, 1e-45)]), 1, "{name}: as likely as can be");
        assert_eq!(choose(&[-1.0, -2.0, 3.0], &[edit(0, f32::MAX), edit(1, f32::MAX)]), 2, "{name}: never");
        assert_eq!(choose(&[1.0, f32::NAN, 3.0], &[edit(0, 1e-45)]), NO_TOKEN, "{name}");
        assert_eq!(choose(&[1.0, f32::INFINITY, 3.0], &[edit(1, 2.0)]), NO_TOKEN, "{name}");
    }
}

#[test]
fn equal_logits_are_kept_by_id() {
    let (logits, mut seen) = (vec![0.5; 20_000], [0u32; 2]);
    for counter in 0..300 {
        let top_k = SamplingInputs { top_k: 700, counter, ..PLAIN };
        let top_p = SamplingInputs { top_p: 0.125, counter, ..PLAIN };
        for (how, seen) in [top_k, top_p].into_iter().zip(&mut seen) {
            *seen = (*seen).max(choose(Isa::detect(), &logits, &[], &how, &mut scratch(20_000)));
        }
    }
    assert!((690..700).contains(&seen[0]) && (2400..2500).contains(&seen[1]), "{seen:?}");
}

#[test]
#[ignore = "a measurement"]
fn draw_rates() {
    const VOCAB: usize = 248_320;
    let edits: Vec<LogitEdit> =
        (0..2000).map(|i| LogitEdit { row: 0, id: i * 97, bias: 0.0, repetition: 1.05, penalty: 0.5 }).collect();
    for shape in [Shape::Peaked, Shape::Flat] {
        let (logits, mut scratch) = (logits(VOCAB, shape), scratch(VOCAB));
        for (name, how) in KINDS {
            for edits in [&[][..], &edits] {
                let mut counter = 0;
                let time = seconds(|| {
                    counter += 1;
                    let how = SamplingInputs { counter, ..how };
                    std::hint::black_box(choose(Isa::detect(), &logits, edits, &how, &mut scratch));
                });
                println!("{shape:?}, {name}, {} edits: {:.0} µs a draw", edits.len(), time * 1e6);
            }
        }
    }
}
