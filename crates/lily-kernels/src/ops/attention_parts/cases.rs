//! Cases of `attention_parts`.

use super::{AttentionParts, Cut};
use crate::check::{Case, CaseBuilder, DECODE_STEPS, Step};
use crate::ops::attention::Attention;
use crate::tensor::DType;

/// Short spans of long caches, so that every way of cutting is met without a long cache.
pub const CUTS: [Cut; 3] =
    [Cut::PLAIN, Cut { least: 8, most: 5, blocks_from: 600 }, Cut { least: 32, most: 64, blocks_from: 256 }];

/// Heads (query, key/value), head dims and cache types of the models, and odd ones between.
pub fn cases() -> Vec<Case> {
    let shapes = [
        (1, 1, 64, DType::Bf16),
        (6, 3, 64, DType::F32),
        (3, 3, 128, DType::F32),
        (8, 1, 256, DType::F32),
        (16, 2, 256, DType::Bf16),
    ];
    let steps = DECODE_STEPS.iter().chain(&[Step::Decode { bucket: 2, starts: &[767, 255] }]);
    let cases = steps.enumerate().flat_map(|(i, step)| {
        shapes.into_iter().enumerate().map(move |(j, shape)| case(*step, shape, CUTS[(i + j) % CUTS.len()]))
    });
    cases.collect()
}

fn case(step: Step, shape: (usize, usize, usize, DType), cut: Cut) -> Case {
    let (q_heads, kv_heads, dim, dtype) = shape;
    let mut b = CaseBuilder::new(step);
    let layer = b.kv(kv_heads, dim, dtype, true);
    let q = b.normal(1, q_heads * dim);
    let attention = Attention { q, layer, out: b.temp(b.bucket(), q_heads * dim) };
    let parts = b.output(b.bucket(), q_heads * cut.capacity() * (dim + 2), DType::F32);
    b.finish(
        &format!("{q_heads}:{kv_heads} heads of {dim}, {dtype:?}, {cut:?}"),
        AttentionParts { attention, parts, cut },
        1e-5,
    )
}
