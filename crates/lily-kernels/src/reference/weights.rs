//! Weights from their stored bytes (SPEC §3.3), and codes to bytes for those who make test weights.

use super::math::decode;
use super::memory::Memory;
use crate::tensor::{Format, Matrix};

/// One row of an affine matrix: element j has the value `scales[j / group] · codes[j] + biases[j / group]`.
pub struct AffineRow {
    /// Unsigned codes.
    pub codes: Vec<u32>,
    /// One per group.
    pub scales: Vec<f64>,
    /// One per group.
    pub biases: Vec<f64>,
    /// Elements that share a scale and a bias.
    pub group: usize,
}

/// Reads a row of an affine matrix. Panics on a dense one.
pub fn affine_row(mem: &mut Memory, m: &Matrix, expert: usize, row: usize) -> AffineRow {
    let stored = &m.stack[expert];
    let (Format::Affine { bits, group, scale }, Some((scales, biases))) = (m.format, stored.affine) else {
        panic!("{m:?} has no codes");
    };
    let code_bytes = m.cols * bits as usize / 8;
    let codes = unpack(bits, mem.file(&stored.weight, row * code_bytes..(row + 1) * code_bytes), m.cols);
    let group = group as usize;
    let scale_bytes = m.cols / group * scale.bytes();
    let range = row * scale_bytes..(row + 1) * scale_bytes;
    let scales = decode(scale, mem.file(&scales, range.clone()));
    let biases = decode(scale, mem.file(&biases, range));
    AffineRow { codes, scales, biases, group }
}

/// Reads a row's values.
pub fn matrix_row(mem: &mut Memory, m: &Matrix, expert: usize, row: usize) -> Vec<f64> {
    if let Some(expanded) = &m.expanded {
        return mem.row(expanded, expert * m.rows + row);
    }
    match m.format {
        Format::Dense(dtype) => {
            let bytes = m.cols * dtype.bytes();
            decode(dtype, mem.file(&m.stack[expert].weight, row * bytes..(row + 1) * bytes))
        }
        Format::Affine { .. } => {
            let r = affine_row(mem, m, expert, row);
            let value = |(j, code): (usize, &u32)| r.scales[j / r.group] * f64::from(*code) + r.biases[j / r.group];
            r.codes.iter().enumerate().map(value).collect()
        }
    }
}

/// Codes of `bits` each from a little-endian bit stream.
pub fn unpack(bits: u8, bytes: &[u8], count: usize) -> Vec<u32> {
    let bit = |i: usize| u32::from(bytes[i / 8] >> (i % 8) & 1);
    let bits = bits as usize;
    (0..count).map(|j| (0..bits).map(|b| bit(j * bits + b) << b).sum()).collect()
}

/// The bit stream of codes; the inverse of `unpack`.
pub fn pack(bits: u8, codes: &[u32]) -> Vec<u8> {
    let bits = bits as usize;
    let mut bytes = vec![0; (codes.len() * bits).div_ceil(8)];
    for (j, code) in codes.iter().enumerate() {
        assert!(code >> bits == 0, "{code} does not fit {bits} bits");
        for b in 0..bits {
            bytes[(j * bits + b) / 8] |= ((code >> b & 1) as u8) << ((j * bits + b) % 8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_agrees_with_streams_written_by_hand() {
        let words = |bits, codes: &[u32]| -> Vec<u32> {
            pack(bits, codes).as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
        };
        assert_eq!(words(4, &[15, 14, 13, 12, 11, 10, 9, 8]), [0x89ab_cdef]);
        assert_eq!(words(8, &[1, 2, 3, 255]), [0xff03_0201]);
        assert_eq!(words(2, &[0, 1, 2, 3, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]), [0x4000_1be4]);
        // 3 bits: 8 values in 3 bytes, lowest first: 111 110 101 100 011 010 001 000 from the top.
        assert_eq!(pack(3, &[0, 1, 2, 3, 4, 5, 6, 7]), [0b1000_1000, 0b1100_0110, 0b1111_1010]);
        // 5 bits: 8 values in 5 bytes. 6 bits: 4 values in 3 bytes.
        assert_eq!(pack(5, &[1, 0, 0, 0, 0, 0, 0, 31]), [1, 0, 0, 0, 0b1111_1000]);
        assert_eq!(pack(6, &[0b100001, 0b000010, 0b000011, 0b111111]), [0b1010_0001, 0b0011_0000, 0b1111_1100]);
    }

    #[test]
    fn every_width_survives_a_round_trip() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let codes: Vec<u32> = (0..64).map(|j| j * 37 % (1 << bits)).collect();
            let bytes = pack(bits, &codes);
            assert_eq!(bytes.len(), 64 * bits as usize / 8);
            assert_eq!(unpack(bits, &bytes, 64), codes);
        }
    }
}
