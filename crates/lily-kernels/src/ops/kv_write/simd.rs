//! CPU kernel.

use super::KvLayer;
use crate::cpu::isa::Isa;
use crate::cpu::lanes;
use crate::tensor::DType;

/// Stores one head's row at its place in the cache, in the cache's number format.
pub fn store(isa: Isa, layer: &KvLayer, values: &[f32], place: &mut [u8]) {
    match layer.dtype {
        DType::F32 => {
            for (bytes, v) in place.chunks_exact_mut(4).zip(values) {
                bytes.copy_from_slice(&v.to_le_bytes());
            }
        }
        DType::Bf16 => lanes::f32_to_bf16(isa, values, place),
        DType::F16 | DType::U32 | DType::I32 | DType::I8 | DType::U8 => {
            unreachable!("KvWrite::check allows f32 and bf16 only")
        }
    }
}
