//! Reference of `rope`.

use super::Rope;
use crate::inputs::StepInputs;
use crate::reference::Memory;

/// Head by head.
pub fn run(op: &Rope, mem: &mut Memory, inputs: &StepInputs) {
    let inv_freq: Vec<f32> = mem.row(&op.inv_freq, 0).into_iter().map(|v| v as f32).collect();
    for t in 0..inputs.num_tokens() {
        let (_, position) = inputs.locate(t);
        let mut row = mem.row(&op.x, t);
        row.chunks_mut(op.head_dim).for_each(|head| rotate(head, position, &inv_freq));
        mem.set_row(&op.out, t, &row);
    }
}

/// Rotates element i with element i + half. The angle is one f32 product, as in the model's own code; at far positions
/// that rounding is larger than any other, so it belongs to the definition.
fn rotate(head: &mut [f64], position: usize, inv_freq: &[f32]) {
    let half = inv_freq.len();
    for (i, f) in inv_freq.iter().enumerate() {
        let (sin, cos) = f64::from(position as f32 * f).sin_cos();
        let (a, b) = (head[i], head[i + half]);
        head[i] = a * cos - b * sin;
        head[i + half] = b * cos + a * sin;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::math::dot;

    const INV_FREQ: [f32; 2] = [1.0, 0.125];

    #[test]
    fn position_zero_is_the_identity_and_norms_are_kept() {
        let x = [1.0, -2.0, 3.0, 0.5, 9.0, -9.0];
        let mut y = x;
        rotate(&mut y, 0, &INV_FREQ);
        assert_eq!(y, x);
        rotate(&mut y, 300, &INV_FREQ);
        assert_eq!(y[4..], x[4..], "elements beyond the rotary part pass through");
        for (i, j) in [(0, 2), (1, 3)] {
            let norm = |v: &[f64]| v[i] * v[i] + v[j] * v[j];
            assert!((norm(&y) - norm(&x)).abs() < 1e-12);
        }
    }

    #[test]
    fn products_depend_on_the_distance_only() {
        let (q, k) = ([0.3, 1.0, -0.7, 0.2], [1.0, -0.5, 0.25, 2.0]);
        let at = |q_position, k_position| {
            let (mut q, mut k) = (q, k);
            rotate(&mut q, q_position, &INV_FREQ);
            rotate(&mut k, k_position, &INV_FREQ);
            dot(&q, &k)
        };
        assert!((at(7, 3) - at(104, 100)).abs() < 1e-12);
        assert!((at(7, 3) - at(7, 4)).abs() > 0.1);
    }

    #[test]
    fn a_quarter_turn_moves_the_first_half_to_the_second() {
        let mut x = [1.0, 0.0];
        rotate(&mut x, 1, &[std::f32::consts::FRAC_PI_2]);
        assert!(x[0].abs() < 1e-7 && (x[1] - 1.0).abs() < 1e-7, "{x:?}");
    }
}
