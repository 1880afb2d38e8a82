//! CPU kernel.

use super::KvLayer;
use crate::cpu::lanes;
use crate::tensor::DType;

/// Stores one head's row at its place in the cache, in the cache's number format.
pub fn store(layer: &KvLayer, values: &[f32], place: &mut [u8]) {
    match layer.dtype {
        DType::F32 => {
            for (bytes, v) in place.chunks_exact_mut(4).zip(values) {
                bytes.copy_from_slice(&v.to_ne_bytes());
            }
        }
        DType::Bf16 => {
            for (bytes, &v) in place.chunks_exact_mut(2).zip(values) {
                bytes.copy_from_slice(&lanes::to_bf16(v).to_ne_bytes());
            }
        }
        DType::F16 | DType::U32 | DType::I32 | DType::I8 | DType::U8 => {
            unreachable!("KvWrite::check allows f32 and bf16 only")
        }
    }
}
