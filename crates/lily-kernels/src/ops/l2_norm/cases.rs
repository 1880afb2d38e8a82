//! Cases of `l2_norm`.

use super::L2Norm;
use crate::check::{Case, CaseBuilder, LazyCase, STEPS, Step, TRUE_ROWS, at_shapes};
use crate::tensor::DType;

/// Heads, their dim, and elements behind them that are not read.
pub fn cases() -> Vec<Case> {
    let shapes = [(1, 64, 0), (2, 128, 512), (3, 32, 7)];
    STEPS.iter().flat_map(|step| shapes.map(|shape| case(*step, shape))).collect()
}

/// The model's shapes.
pub fn true_shapes() -> Vec<LazyCase> {
    at_shapes(TRUE_ROWS, &[(16, 128, 4096)], case)
}

fn case(step: Step, shape: (usize, usize, usize)) -> Case {
    let (heads, dim, behind) = shape;
    let mut b = CaseBuilder::new(step);
    let cols = 2 * heads * dim + behind;
    let mut values = b.random.normals(b.rows() * cols, 1.0);
    // A head of zeros stays zero.
    values[..dim].fill(0.0);
    let x = b.input(b.bucket(), cols, &values);
    let out = b.output(b.bucket(), 2 * heads * dim, DType::F32);
    b.finish(&format!("2·{heads} heads of {dim}, {behind} behind"), L2Norm { x, out, dim }, 2e-6)
}
