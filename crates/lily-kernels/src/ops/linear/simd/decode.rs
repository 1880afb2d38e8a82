//! A weight row to f32: `scale · code`, then `+ bias`, each rounded; dense elements as they are.

use crate::cpu::isa::multiversion;
use crate::cpu::lanes::{LANES, Lanes};
use crate::ops::linear::simd::{MatrixBytes, float_at};
use crate::tensor::{DType, Format};

multiversion! {
    /// Row `row` of the matrix, `[cols]`.
    pub fn decode_row(w: &MatrixBytes, row: usize, out: &mut [f32]) = decode_row_body;
}

#[inline(always)]
pub(super) fn decode_row_body<V: Lanes>(w: &MatrixBytes, row: usize, out: &mut [f32]) {
    assert_eq!(out.len(), w.cols);
    let bytes = &w.weight[row * w.row_bytes()..][..w.row_bytes()];
    match w.format {
        Format::Dense(dtype) => decode_dense::<V>(bytes, dtype, out),
        Format::Affine { bits, group, scale } => {
            let group = group as usize;
            let groups = w.cols / group;
            for (g, out) in out.chunks_exact_mut(group).enumerate() {
                let at = row * groups + g;
                let affine = (float_at(w.scales, scale, at), float_at(w.biases, scale, at));
                decode_group::<V>(bytes, bits, g * group, affine, out);
            }
        }
    }
}

#[inline(always)]
fn decode_dense<V: Lanes>(bytes: &[u8], dtype: DType, out: &mut [f32]) {
    let done = match dtype {
        DType::Bf16 => {
            let (runs, outs) = (bytes.as_chunks().0, out.as_chunks_mut().0);
            for (x, out) in runs.iter().zip(outs) {
                V::load_bf16(x).store(out);
            }
            out.len() / LANES * LANES
        }
        DType::F32 | DType::F16 | DType::U32 | DType::I32 | DType::I8 | DType::U8 => 0,
    };
    for (i, out) in out.iter_mut().enumerate().skip(done) {
        *out = float_at(bytes, dtype, i);
    }
}

/// The codes of one group, from element `first` of the row on.
#[inline(always)]
fn decode_group<V: Lanes>(row: &[u8], bits: u8, first: usize, (scale, bias): (f32, f32), out: &mut [f32]) {
    let (scales, biases) = (V::splat(scale), V::splat(bias));
    let (runs, rest) = out.as_chunks_mut();
    let end = first + runs.len() * LANES;
    for (i, out) in runs.iter_mut().enumerate() {
        V::load_codes(&codes_at(row, bits, first + i * LANES)).mul(scales).add(biases).store(out);
    }
    for (i, out) in rest.iter_mut().enumerate() {
        *out = f32::from(code_at(row, bits, end + i)) * scale + bias;
    }
}

/// Sixteen codes of a row.
#[inline(always)]
fn codes_at(row: &[u8], bits: u8, first: usize) -> [u8; LANES] {
    let mut codes = [0; LANES];
    match bits {
        8 => codes.copy_from_slice(&row[first..first + LANES]),
        4 if first.is_multiple_of(2) => {
            let packed = &row[first / 2..first / 2 + LANES / 2];
            for (codes, byte) in codes.as_chunks_mut::<2>().0.iter_mut().zip(packed) {
                *codes = [byte & 15, byte >> 4];
            }
        }
        _ => {
            for (i, code) in codes.iter_mut().enumerate() {
                *code = code_at(row, bits, first + i);
            }
        }
    }
    codes
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
