//! Reference of `l2_norm`.

use super::{EPS, L2Norm};
use crate::inputs::StepInputs;
use crate::reference::Memory;
use crate::reference::math::dot;

/// Query heads, scaled by `dim^−½`, then key heads.
pub fn run(op: &L2Norm, mem: &mut Memory, inputs: &StepInputs) {
    for t in 0..inputs.num_tokens() {
        let x = mem.floats(&op.x, t, 0..op.out.cols);
        let mut out = Vec::with_capacity(op.out.cols);
        for (head, x) in x.chunks(op.dim).enumerate() {
            let scale = if head < op.heads() { 1.0 / (op.dim as f64).sqrt() } else { 1.0 };
            out.extend(normed(x).into_iter().map(|v| v * scale));
        }
        mem.set_row(&op.out, t, &out);
    }
}

/// `x · rsqrt(Σx² + eps)`.
fn normed(x: &[f64]) -> Vec<f64> {
    let factor = 1.0 / (dot(x, x) + f64::from(EPS)).sqrt();
    x.iter().map(|v| v * factor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_unit_vectors_and_keeps_zero() {
        let n = normed(&[3e3, -4e3]);
        assert!((n[0] - 0.6).abs() < 1e-12 && (n[1] + 0.8).abs() < 1e-12);
        assert_eq!(normed(&[0.0, 0.0]), [0.0, 0.0]);
    }
}
