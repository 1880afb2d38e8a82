//! Cases of `kv_write`.

use super::KvWrite;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_STEPS, at_shapes};
use crate::tensor::DType;

/// Chunks that cross a block bound; both cache types.
pub fn cases() -> Vec<Case> {
    let shapes = [(1, 64, DType::F32), (2, 256, DType::Bf16), (3, 128, DType::Bf16), (2, 64, DType::F32)];
    let crossing = Step::Prefill { bucket: 17, start: 250, rows: 17 };
    STEPS.iter().chain([&crossing]).flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_STEPS, &[(2, 256, DType::Bf16)], case)
}

fn case(step: Step, shape: (usize, usize, DType)) -> Case {
    let (heads, dim, dtype) = shape;
    let mut b = CaseBuilder::new(step);
    let layer = b.kv(heads, dim, dtype, false);
    let (k, v) = (b.normal(1, heads * dim), b.normal(1, heads * dim));
    b.finish(&format!("{heads} heads of {dim}, {dtype:?}"), KvWrite { k, v, layer }, 0.0)
}
