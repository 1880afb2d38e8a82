//! Cases of `attention`.

use super::Attention;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_STEPS, at_shapes};
use crate::tensor::DType;

/// Chunks that end before, at and after a block bound; several sequences over several blocks.
const MORE_STEPS: &[Step] = &[
    Step::Prefill { bucket: 1, start: 0, rows: 1 },
    Step::Prefill { bucket: 17, start: 0, rows: 17 },
    Step::Prefill { bucket: 2, start: 254, rows: 2 },
    Step::Prefill { bucket: 2, start: 256, rows: 2 },
    Step::Decode { bucket: 8, starts: &[767, 1, 255, 300, 0] },
];

/// Heads (query, key/value), head dims and cache types of the models, and odd ones between.
pub fn cases() -> Vec<Case> {
    let shapes = [
        (1, 1, 64, DType::Bf16),
        (6, 3, 64, DType::F32),
        (4, 2, 128, DType::Bf16),
        (3, 3, 128, DType::F32),
        (8, 1, 256, DType::F32),
        (4, 1, 256, DType::Bf16),
    ];
    STEPS.iter().chain(MORE_STEPS).flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    // Of some 16 million sums of a thousand products, the one with the largest error.
    let behind_more = Step::Prefill { bucket: 64, start: 4096, rows: 64 };
    at_shapes(&[TRUE_STEPS, &[behind_more]].concat(), &[(16, 2, 256, DType::Bf16)], |step, shape| Case {
        tolerance: 3e-5,
        ..case(step, shape)
    })
}

fn case(step: Step, shape: (usize, usize, usize, DType)) -> Case {
    let (q_heads, kv_heads, dim, dtype) = shape;
    let mut b = CaseBuilder::new(step);
    let layer = b.kv(kv_heads, dim, dtype, true);
    let q = b.normal(1, q_heads * dim);
    let out = b.output(b.bucket(), q_heads * dim, DType::F32);
    b.finish(&format!("{q_heads}:{kv_heads} heads of {dim}, {dtype:?}"), Attention { q, layer, out }, 1e-5)
}
