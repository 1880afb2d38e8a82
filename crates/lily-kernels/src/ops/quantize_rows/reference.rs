//! Reference of `quantize_rows`. In f32, not f64: codes are integers, and the contract fixes each rounding.

use super::{GROUP, QuantizeRows};
use crate::inputs::StepInputs;
use crate::reference::Memory;

/// Group by group.
pub fn run(op: &QuantizeRows, mem: &mut Memory, inputs: &StepInputs) {
    for row in 0..inputs.rows(op.rows) * op.per_row {
        let x: Vec<f32> = mem.row(&op.x, row).into_iter().map(|v| v as f32).collect();
        let groups: Vec<Group> = x.chunks(GROUP).map(quantize).collect();
        let codes: Vec<i8> = groups.iter().flat_map(|g| g.codes.iter().copied()).collect();
        let scales: Vec<f64> = groups.iter().map(|g| f64::from(g.scale)).collect();
        let sums: Vec<f64> = groups.iter().map(|g| f64::from(g.sum)).collect();
        mem.set_codes(&op.out.codes, row, &codes);
        mem.set_row(&op.out.scales, row, &scales);
        mem.set_row(&op.out.sums, row, &sums);
    }
}

struct Group {
    codes: Vec<i8>,
    scale: f32,
    sum: f32,
}

fn quantize(x: &[f32]) -> Group {
    let largest = x.iter().fold(0f32, |largest, v| largest.max(v.abs()));
    let scale = if x.iter().all(|v| v.is_finite()) { largest / 127.0 } else { f32::NAN };
    let code = |v: &f32| if scale == 0.0 { 0 } else { (v / scale).round_ties_even().clamp(-127.0, 127.0) as i8 };
    let codes: Vec<i8> = x.iter().step_by(2).chain(x.iter().skip(1).step_by(2)).map(code).collect();
    let sum = scale * codes.iter().map(|c| i32::from(*c)).sum::<i32>() as f32;
    Group { codes, scale, sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_ties_to_even_and_keeps_the_extremes() {
        // scale = 1: the values are codes already.
        let g = quantize(&[127.0, -127.0, 0.5, 1.5, -2.5, 3.4]);
        assert_eq!((g.codes, g.scale, g.sum), (vec![127, 0, -2, -127, 2, 3], 1.0, 3.0));
    }

    #[test]
    fn what_is_not_finite_makes_the_scale_none() {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let g = quantize(&[1.0, odd, -2.0]);
            assert!(g.scale.is_nan() && g.sum.is_nan() && g.codes == [0; 3]);
        }
    }

    #[test]
    fn zeros_and_values_too_small_for_a_scale_become_zero() {
        for x in [[0.0; 2], [1e-45, -1e-45]] {
            let g = quantize(&x);
            assert_eq!((g.codes, g.scale, g.sum), (vec![0, 0], 0.0, 0.0));
        }
        // A subnormal scale is too coarse to be exact; codes stay in range.
        let tiny = f32::from_bits(190);
        assert_eq!(quantize(&[tiny, -tiny]).codes, [127, -127]);
    }
}
