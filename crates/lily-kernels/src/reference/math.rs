//! The scalar functions of the model, in f64, and how numbers are stored.

use half::{bf16, f16};

use crate::tensor::DType;

/// `1 / (1 + e^−x)`.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x · σ(x)`.
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `log(1 + e^x)`, without overflow.
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `x · rsqrt(mean(x²) + eps) · weight`.
pub fn rms_norm(x: &[f64], weight: &[f64], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(v, w)| v * factor * w).collect()
}

/// `Σ a·b`.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Elements of a float type.
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F32 => bytes.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
        DType::Bf16 => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f64()).collect(),
        DType::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f64()).collect(),
        DType::U32 | DType::I32 | DType::I8 | DType::U8 => panic!("{dtype:?} is not a float type"),
    }
}

/// Bytes of elements of a float type. Narrow types are rounded from f32, as a device does that computes in f32.
pub fn encode(dtype: DType, values: &[f64]) -> Vec<u8> {
    let narrow = values.iter().map(|v| *v as f32);
    match dtype {
        DType::F32 => narrow.flat_map(f32::to_le_bytes).collect(),
        DType::Bf16 => narrow.flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect(),
        DType::F16 => narrow.flat_map(|v| f16::from_f32(v).to_le_bytes()).collect(),
        DType::U32 | DType::I32 | DType::I8 | DType::U8 => panic!("{dtype:?} is not a float type"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_hold_their_identities() {
        for x in [-800.0, -30.0, -1.5, 0.0, 0.25, 30.0, 800.0] {
            assert!((sigmoid(x) + sigmoid(-x) - 1.0).abs() < 1e-15);
            assert!((silu(x) - silu(-x) - x).abs() < 1e-12, "silu(x) − silu(−x) = x");
            assert!((softplus(x) - softplus(-x) - x).abs() < 1e-12, "softplus(x) − softplus(−x) = x");
        }
        assert!((softplus(0.0) - 2f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn narrow_types_survive_a_round_trip() {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let values = [0.0, 1.0, -2.5, 0.15625, 384.0];
            assert_eq!(decode(dtype, &encode(dtype, &values)), values);
        }
    }
}
