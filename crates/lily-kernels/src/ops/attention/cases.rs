//! Cases of `attention`.

use super::Attention;
use crate::check::{Case, CaseBuilder, STEPS, Step};
use crate::tensor::DType;

/// Chunks that end before, at and after a block bound; several sequences over several blocks.
const MORE_STEPS: &[Step] = &[
    Step::Prefill { bucket: 1, start: 0, rows: 1 },
    Step::Prefill { bucket: 17, start: 0, rows: 17 },
    Step::Prefill { bucket: 2, start: 254, rows: 2 },
    Step::Prefill { bucket: 2, start: 256, rows: 2 },
    Step::Decode { bucket: 8, starts: &[767, 1, 255, 300, 0] },
];

/// Heads (query, key/value) and head dims of the models and the odd ones between.
pub fn cases() -> Vec<Case> {
    let heads = [(1, 1, 64), (6, 3, 64), (4, 2, 128), (8, 1, 256), (3, 3, 128)];
    let mut cases = Vec::new();
    for step in STEPS.iter().chain(MORE_STEPS) {
        for (i, heads) in heads.into_iter().enumerate() {
            let dtype = if i % 2 == 0 { DType::Bf16 } else { DType::F32 };
            cases.push(case(*step, heads, dtype));
        }
    }
    cases.push(case(STEPS[3], (4, 2, 128), DType::Bf16));
    cases.push(case(STEPS[4], (4, 1, 256), DType::Bf16));
    cases
}

fn case(step: Step, heads: (usize, usize, usize), dtype: DType) -> Case {
    let (q_heads, kv_heads, dim) = heads;
    let mut b = CaseBuilder::new(step);
    let layer = b.kv(kv_heads, dim, dtype, true);
    let q = b.normal(1, q_heads * dim);
    let out = b.output(b.bucket(), q_heads * dim, DType::F32);
    b.finish(&format!("{q_heads}:{kv_heads} heads of {dim}, {dtype:?}"), Attention { q, layer, out }, 1e-5)
}
