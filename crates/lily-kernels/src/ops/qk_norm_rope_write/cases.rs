//! Cases of `qk_norm_rope_write`.

use super::QkNormRopeWrite;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_STEPS, at_shapes};
use crate::op::Rows;
use crate::ops::kv_write::KvWrite;
use crate::ops::rms_norm::RmsNorm;
use crate::ops::rope::Rope;
use crate::ops::rope::cases::inv_freq;
use crate::tensor::{DType, Tensor};

/// Heads (query, key/value), dim and rotary dim; queries with and without a gate between them.
pub fn cases() -> Vec<Case> {
    let shapes = [
        Shape { q_heads: 2, kv_heads: 1, dim: 64, rotary: 16, gated: true, dtype: DType::F32 },
        Shape { q_heads: 8, kv_heads: 2, dim: 128, rotary: 128, gated: false, dtype: DType::Bf16 },
        Shape { q_heads: 4, kv_heads: 2, dim: 256, rotary: 64, gated: true, dtype: DType::Bf16 },
    ];
    let crossing = Step::Prefill { bucket: 17, start: 250, rows: 17 };
    STEPS.iter().chain([&crossing]).flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_STEPS, &[TRUE_SHAPE], case)
}

/// The model's.
const TRUE_SHAPE: Shape = Shape { q_heads: 16, kv_heads: 2, dim: 256, rotary: 64, gated: true, dtype: DType::Bf16 };

#[derive(Clone, Copy)]
struct Shape {
    q_heads: usize,
    kv_heads: usize,
    dim: usize,
    rotary: usize,
    gated: bool,
    dtype: DType,
}

fn norm(b: &mut CaseBuilder, heads: usize, dim: usize, stride: usize) -> RmsNorm {
    let x = b.normal(1, heads * stride);
    let weight: Vec<f32> = (0..dim).map(|_| 1.0 + b.random.signed() / 2.0).collect();
    let weight = b.constant(1, &weight);
    RmsNorm { rows: Rows::Tokens, x, weight, out: b.temp(b.bucket(), heads * dim), heads, stride, eps: 1e-6 }
}

fn case(step: Step, shape: Shape) -> Case {
    let Shape { q_heads, kv_heads, dim, rotary, gated, dtype } = shape;
    let mut b = CaseBuilder::new(step);
    let layer = b.kv(kv_heads, dim, dtype, false);
    let q_norm = norm(&mut b, q_heads, dim, if gated { 2 * dim } else { dim });
    let k_norm = norm(&mut b, kv_heads, dim, dim);
    let inv_freq = b.constant(1, &inv_freq(rotary));
    let rope = |x: Tensor, out: Tensor| Rope { x, inv_freq, out, head_dim: dim };
    let q_rope = rope(q_norm.out, b.output(b.bucket(), q_heads * dim, DType::F32));
    let k_rope = rope(k_norm.out, b.temp(b.bucket(), kv_heads * dim));
    let v = b.normal(1, kv_heads * dim);
    let write = KvWrite { k: k_rope.out, v, layer };
    let name = format!("{q_heads}:{kv_heads} heads of {dim}, {rotary} rotary, {dtype:?}");
    b.finish(&name, QkNormRopeWrite { q_norm, k_norm, q_rope, k_rope, write }, 1e-5)
}
