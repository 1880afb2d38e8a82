//! Cases of `attention_merge`.

use super::AttentionMerge;
use crate::check::{Case, CaseBuilder, DECODE_STEPS, Step};
use crate::ops::attention::Attention;
use crate::ops::attention_parts::cases::CUTS;
use crate::ops::attention_parts::{AttentionParts, Cut};
use crate::ops::kv_write::KvLayer;
use crate::ops::sigmoid_gate::SigmoidGate;
use crate::tensor::DType;

/// Heads, head dims and cuts; gates interleaved with queries, as the models have them.
pub fn cases() -> Vec<Case> {
    let steps = DECODE_STEPS.iter().enumerate();
    let cases = steps.flat_map(|(i, step)| {
        let shapes = [(1, 64), (6, 64), (16, 256), (3, 40)].into_iter().enumerate();
        shapes.map(move |(j, shape)| case(*step, shape, CUTS[(i + j) % CUTS.len()]))
    });
    cases.collect()
}

fn case(step: Step, (heads, dim): (usize, usize), cut: Cut) -> Case {
    let mut b = CaseBuilder::new(step);
    let layer = KvLayer { offset: 0, heads: 1, head_dim: dim, dtype: DType::F32 };
    let (q, out) = (b.temp(b.bucket(), heads * dim), b.temp(b.bucket(), heads * dim));
    // Sums are of weights of at most 1, of which one is 1; what lies behind the last part is poison.
    let mut values = Vec::new();
    for s in b.inputs.sequences.clone() {
        for i in 0..heads * cut.capacity() {
            let part = b.random.normals(dim + 1, 1.0);
            let sum = 1.5 + b.random.signed() / 2.0;
            let is_part = i % cut.capacity() < cut.spans(s.start + 1);
            values.extend(part.into_iter().chain([sum]).map(|v| if is_part { v } else { f32::from_bits(u32::MAX) }));
        }
    }
    let parts = b.input(b.bucket(), heads * cut.capacity() * (dim + 2), &values);
    let of = AttentionParts { attention: Attention { q, layer, out }, parts, cut };
    let gate = SigmoidGate {
        x: out,
        gate: b.normal(1, 2 * heads * dim),
        out: b.output(b.bucket(), heads * dim, DType::F32),
        heads,
        stride: 2 * dim,
        start: dim,
    };
    b.finish(&format!("{heads} heads of {dim}, {cut:?}"), AttentionMerge { of, gate }, 1e-5)
}
