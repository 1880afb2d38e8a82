//! A weight row to f32: `scale · code`, then `+ bias`, each rounded; dense elements as they are.

use crate::cpu::isa::multiversion;
use crate::cpu::lanes::{LANES, Lanes, bf16_to_f32_body};
use crate::ops::linear::simd::{MatrixBytes, float_at};
use crate::tensor::{DType, Format};

multiversion! {
    /// Row `row` of the matrix, `[cols]`.
    pub fn decode_row(w: &MatrixBytes, row: usize, out: &mut [f32]) = decode_row_body;
}

#[inline(always)]
fn decode_row_body<V: Lanes>(w: &MatrixBytes, row: usize, out: &mut [f32]) {
    assert_eq!(out.len(), w.cols);
    decode_part::<V>(w, row, 0, out);
}

/// Elements of a row from `first` on; of affine formats, whole groups.
#[inline(always)]
pub(super) fn decode_part<V: Lanes>(w: &MatrixBytes, row: usize, first: usize, out: &mut [f32]) {
    let bytes = &w.weight[row * w.row_bytes()..][..w.row_bytes()];
    match w.format {
        Format::Dense(dtype) => {
            let elements = first * dtype.bytes()..(first + out.len()) * dtype.bytes();
            decode_dense::<V>(&bytes[elements], dtype, out);
        }
        Format::Affine { bits, group, scale } => {
            let group = group as usize;
            let at = (row * w.cols + first) / group;
            for (g, out) in out.chunks_exact_mut(group).enumerate() {
                let affine = (float_at(w.scales, scale, at + g), float_at(w.biases, scale, at + g));
                decode_group::<V>(bytes, bits, first + g * group, affine, out);
            }
        }
    }
}

#[inline(always)]
fn decode_dense<V: Lanes>(bytes: &[u8], dtype: DType, out: &mut [f32]) {
    match dtype {
        DType::Bf16 => bf16_to_f32_body::<V>(bytes, out),
        DType::F32 => {
            for (x, out) in bytes.as_chunks().0.iter().zip(out) {
                *out = f32::from_le_bytes(*x);
            }
        }
        DType::F16 => {
            for (x, out) in bytes.as_chunks().0.iter().zip(out) {
                *out = f16_to_f32(u16::from_le_bytes(*x));
            }
        }
        DType::U32 | DType::I32 | DType::I8 | DType::U8 => panic!("weights are not {dtype:?}"),
    }
}

/// The codes of one group, from element `first` of the row on.
#[inline(always)]
fn decode_group<V: Lanes>(row: &[u8], bits: u8, first: usize, (scale, bias): (f32, f32), out: &mut [f32]) {
    let whole = out.len().is_multiple_of(LANES);
    let (scales, biases) = (V::splat(scale), V::splat(bias));
    match bits {
        4 if whole => {
            let bytes = &row[first / 2..][..out.len() / 2];
            for (x, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
                V::load_nibbles(x).mul(scales).add(biases).store(out);
            }
        }
        8 if whole => {
            let bytes = &row[first..][..out.len()];
            for (x, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
                V::load_codes(x).mul(scales).add(biases).store(out);
            }
        }
        _ if whole && first.is_multiple_of(RUN) => {
            for (i, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                let mut codes = [0; LANES];
                unpack(row, bits, first + i * LANES, &mut codes);
                V::load_codes(&codes).mul(scales).add(biases).store(out);
            }
        }
        _ => {
            for (i, out) in out.iter_mut().enumerate() {
                *out = f32::from(code_at(row, bits, first + i)) * scale + bias;
            }
        }
    }
}

/// Codes that fill whole bytes at any width.
pub(super) const RUN: usize = 8;

/// The codes of a row from `first` on; `first` and their number are multiples of `RUN`.
#[inline(always)]
pub(super) fn unpack(row: &[u8], bits: u8, first: usize, codes: &mut [u8]) {
    let bytes = &row[first / RUN * bits as usize..][..codes.len() / RUN * bits as usize];
    match bits {
        1 => unpack_runs::<1>(bytes, codes),
        2 => unpack_runs::<2>(bytes, codes),
        3 => unpack_runs::<3>(bytes, codes),
        4 => unpack_runs::<4>(bytes, codes),
        5 => unpack_runs::<5>(bytes, codes),
        6 => unpack_runs::<6>(bytes, codes),
        7 => unpack_runs::<7>(bytes, codes),
        8 => codes.copy_from_slice(bytes),
        _ => panic!("codes have 1 to 8 bits"),
    }
}

#[inline(always)]
fn unpack_runs<const BITS: usize>(bytes: &[u8], codes: &mut [u8]) {
    for (bytes, codes) in bytes.as_chunks::<BITS>().0.iter().zip(codes.as_chunks_mut::<RUN>().0) {
        let mut word = [0; 8];
        word[..BITS].copy_from_slice(bytes);
        *codes = spread::<BITS>(u64::from_le_bytes(word)).to_le_bytes();
    }
}

/// Eight codes of `BITS` bits each to eight bytes: halves to 32 bits, quarters to 16, codes to 8.
#[inline(always)]
const fn spread<const BITS: usize>(x: u64) -> u64 {
    let (four, two, one) = ((1u64 << (4 * BITS)) - 1, (1u64 << (2 * BITS)) - 1, (1u64 << BITS) - 1);
    let x = (x & four) | ((x >> (4 * BITS) & four) << 32);
    let two = two * 0x1_0000_0001;
    let x = (x & two) | ((x >> (2 * BITS) & two) << 16);
    let one = one * 0x1_0001_0001_0001;
    (x & one) | ((x >> BITS & one) << 8)
}

/// Code `i` of a row: `bits` of its little-endian bit stream.
#[inline(always)]
pub(super) fn code_at(row: &[u8], bits: u8, i: usize) -> u8 {
    let bit = i * bits as usize;
    let low = row[bit / 8];
    // The last code may end with the row's last byte; then no bit of the next is wanted.
    let high = row.get(bit / 8 + 1).copied().unwrap_or(0);
    let window = u16::from_le_bytes([low, high]) >> (bit % 8);
    (window & ((1 << bits) - 1)) as u8
}

/// Exact, branch-free: the exponent is moved by a product, which also makes subnormals normal.
#[inline(always)]
pub(super) fn f16_to_f32(h: u16) -> f32 {
    const REBIAS: f32 = f32::from_bits((127 + 127 - 15) << 23);
    let magnitude = u32::from(h & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * REBIAS).to_bits();
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(finite | special | u32::from(h & 0x8000) << 16)
}
