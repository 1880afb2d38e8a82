//! Every instruction set against a plain loop in f64 and, bit for bit, against the scalar code; rows together = alone.

use super::*;
use crate::cpu::lanes::tests::{numbers, same_bits, seconds};
use crate::ops::quantize_rows::simd::quantize_row;
use crate::ops::quantize_rows::{GROUP, place};

/// A matrix with its bytes, which start `offset` bytes into their buffers.
struct Weights {
    rows: usize,
    cols: usize,
    format: Format,
    offset: usize,
    weight: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

impl Weights {
    fn new(rows: usize, cols: usize, format: Format, offset: usize) -> Self {
        let random = |count: usize, seed: u64| numbers(count, seed);
        let bytes_of = |values: &[f32], dtype: DType| -> Vec<u8> {
            let mut bytes = vec![0xa5; offset];
            for &v in values {
                match dtype {
                    DType::F32 => bytes.extend(v.to_le_bytes()),
                    DType::Bf16 => bytes.extend(half::bf16::from_f32(v).to_le_bytes()),
                    DType::F16 => bytes.extend(half::f16::from_f32(v).to_le_bytes()),
                    DType::U32 | DType::I32 | DType::I8 | DType::U8 => unreachable!(),
                }
            }
            bytes
        };
        let (weight, scales, biases) = match format {
            Format::Dense(dtype) => (bytes_of(&random(rows * cols, 1), dtype), vec![0; offset], vec![0; offset]),
            Format::Affine { bits, group, scale } => {
                let groups = rows * cols / group as usize;
                let mut weight = vec![0xa5; offset];
                let bytes = rows * (cols * bits as usize).div_ceil(8);
                weight.extend(random(bytes, 2).iter().map(|x| (x.to_bits() >> 3) as u8));
                (weight, bytes_of(&random(groups, 3), scale), bytes_of(&random(groups, 4), scale))
            }
        };
        Self { rows, cols, format, offset, weight, scales, biases }
    }

    fn bytes(&self) -> MatrixBytes<'_> {
        MatrixBytes {
            rows: self.rows,
            cols: self.cols,
            format: self.format,
            weight: &self.weight[self.offset..],
            scales: &self.scales[self.offset..],
            biases: &self.biases[self.offset..],
        }
    }

    /// Element by the definition, in f32 steps.
    fn element(&self, row: usize, col: usize) -> f32 {
        let w = self.bytes();
        match self.format {
            Format::Dense(dtype) => float_at(w.weight, dtype, row * self.cols + col),
            Format::Affine { group, scale, .. } => {
                let at = (row * self.cols + col) / group as usize;
                self.code(row, col) as f32 * float_at(w.scales, scale, at) + float_at(w.biases, scale, at)
            }
        }
    }

    /// Code, bit by bit.
    fn code(&self, row: usize, col: usize) -> u32 {
        let Format::Affine { bits, .. } = self.format else { unreachable!() };
        let w = self.bytes();
        let bytes = &w.weight[row * w.row_bytes()..];
        let bit = |i: usize| u32::from(bytes[i / 8] >> (i % 8) & 1);
        (0..bits as usize).map(|i| bit(col * bits as usize + i) << i).sum()
    }
}

/// Activations of both kinds.
struct Inputs {
    cols: usize,
    x: Vec<f32>,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<f32>,
}

impl Inputs {
    fn new(rows: usize, cols: usize) -> Self {
        let x = numbers(rows * cols, 5);
        let groups = cols / GROUP;
        let (mut codes, mut scales, mut sums) =
            (vec![0; rows * cols], vec![0.0; rows * groups], vec![0.0; rows * groups]);
        for row in 0..if cols.is_multiple_of(GROUP) { rows } else { 0 } {
            let (c, g) = (row * cols..(row + 1) * cols, row * groups..(row + 1) * groups);
            quantize_row(Isa::SCALAR, &x[c.clone()], &mut codes[c], &mut scales[g.clone()], &mut sums[g]);
        }
        Self { cols, x, codes, scales, sums }
    }

    fn rows(&self, int8: bool) -> RowsIn<'_> {
        let Self { cols, ref x, ref codes, ref scales, ref sums } = *self;
        if int8 { RowsIn::Quantized { codes, scales, sums, cols } } else { RowsIn::Full { x, cols } }
    }
}

fn run(isa: Isa, w: &MatrixBytes, x: &RowsIn, rows: &RowMap, columns: Range<usize>, out_rows: usize) -> Vec<f32> {
    let mut scratch = Scratch::new(scratch_bytes(w.cols));
    // What was in the scratch before must not show.
    scratch.f32s().fill(f32::NAN);
    let mut out = vec![-7.0; out_rows * columns.len()];
    let width = columns.len();
    matmul(isa, w, x, rows, columns, &mut scratch, &mut ColumnsMut::new(&mut out, width));
    out
}

fn affine(bits: u8, group: u16, scale: DType) -> Format {
    Format::Affine { bits, group, scale }
}

/// Every format with which it may meet these activations.
fn formats(int8: bool) -> Vec<Format> {
    let mut all: Vec<_> = (2..=8).map(|bits| affine(bits, 64, DType::Bf16)).collect();
    all.extend([affine(4, 64, DType::F16), affine(8, 64, DType::F32)]);
    all.extend([affine(4, 32, DType::Bf16), affine(4, 128, DType::F32), affine(8, 32, DType::F16)]);
    all.extend([affine(3, 32, DType::Bf16), affine(6, 128, DType::Bf16)]);
    if !int8 {
        all.extend([DType::F32, DType::Bf16, DType::F16].map(Format::Dense));
    }
    all
}

#[test]
fn every_set_gives_the_bytes_of_scalar_and_rows_do_not_depend_on_each_other() {
    for name in Isa::missing() {
        println!("SKIP matmul on {name}: not on this CPU");
    }
    for int8 in [false, true] {
        for format in formats(int8) {
            for (n, k) in [(1, 64), (5, 128), (16, 64), (19, 640), (37, 512)] {
                if matches!(format, Format::Affine { group, .. } if k % group as usize != 0) {
                    continue;
                }
                let (w, x) = (Weights::new(n, k, format, n % 8), Inputs::new(17, k));
                let all = run(Isa::SCALAR, &w.bytes(), &x.rows(int8), &RowMap::Rows(0..17), 0..n, 17);
                for isa in Isa::available() {
                    for rows in 1..=17 {
                        let got = run(isa, &w.bytes(), &x.rows(int8), &RowMap::Rows(0..rows), 0..n, rows);
                        assert!(same_bits(&got, &all[..rows * n]), "{} {format:?} {n}×{k}, {rows} rows", isa.name());
                    }
                }
            }
        }
    }
}

#[test]
fn results_are_right() {
    for format in formats(false) {
        let (w, x) = (Weights::new(21, 256, format, 3), Inputs::new(3, 256));
        let got = run(Isa::detect(), &w.bytes(), &x.rows(false), &RowMap::Rows(0..3), 0..21, 3);
        for (i, got) in got.iter().enumerate() {
            let product = |k| f64::from(x.x[i / 21 * 256 + k]) * f64::from(w.element(i % 21, k));
            let want: f64 = (0..256).map(product).sum();
            assert!((f64::from(*got) - want).abs() < 1e-3 * want.abs().max(10.0), "{format:?}: {got}, not {want}");
        }
    }
}

#[test]
fn int8_results_are_those_of_the_definition() {
    for format in formats(true) {
        let Format::Affine { scale, group, .. } = format else { unreachable!() };
        let (w, x) = (Weights::new(21, 256, format, 3), Inputs::new(3, 256));
        let got = run(Isa::detect(), &w.bytes(), &x.rows(true), &RowMap::Rows(0..3), 0..21, 3);
        let (group, run) = (group as usize, GROUP.min(group.into()));
        for (i, got) in got.iter().enumerate() {
            let (row, col) = (i / 21, i % 21);
            let mut want = 0.0f32;
            for first in (0..256).step_by(run) {
                let code = |k: usize| i32::from(x.codes[row * 256 + k / GROUP * GROUP + place(k % GROUP)]);
                let dot: i32 = (first..first + run).map(|k| w.code(col, k) as i32 * code(k)).sum();
                let at = |bytes| float_at(bytes, scale, (col * 256 + first) / group);
                let x_scale = x.scales[row * 4 + first / GROUP];
                let part = x_scale * (first..first + run).map(code).sum::<i32>() as f32;
                let x_sum = if run == GROUP { x.sums[row * 4 + first / GROUP] } else { part };
                want = (at(w.bytes().scales) * x_scale).mul_add(dot as f32, want);
                want = at(w.bytes().biases).mul_add(x_sum, want);
            }
            assert_eq!(got.to_bits(), want.to_bits(), "{format:?}: {got}, not {want}");
        }
    }
}

#[test]
fn columns_and_offsets_do_not_matter() {
    let x = Inputs::new(5, 256);
    for int8 in [false, true] {
        for bits in [4, 8] {
            let format = affine(bits, 64, DType::Bf16);
            let w = Weights::new(50, 256, format, 0);
            let all = run(Isa::SCALAR, &w.bytes(), &x.rows(int8), &RowMap::Rows(0..5), 0..50, 5);
            for (isa, offset) in Isa::available().flat_map(|isa| (0..8).map(move |o| (isa, o))) {
                let w = Weights::new(50, 256, format, offset);
                for columns in [0..50, 3..4, 7..32, 40..50, 33..50] {
                    for rows in [1, 5] {
                        let got = run(isa, &w.bytes(), &x.rows(int8), &RowMap::Rows(0..rows), columns.clone(), rows);
                        let want: Vec<f32> = (0..rows).flat_map(|r| all[r * 50..][columns.clone()].to_vec()).collect();
                        assert!(same_bits(&got, &want), "{} offset {offset} {columns:?}", isa.name());
                    }
                }
            }
        }
    }
}

#[test]
fn pairs_read_their_token_and_write_their_own_row() {
    let (w, x) = (Weights::new(20, 128, affine(4, 64, DType::Bf16), 1), Inputs::new(12, 128));
    let order = [1, 4, 5, 6, 8, 11, 2];
    for (int8, isa) in [false, true].into_iter().flat_map(|i| Isa::available().map(move |isa| (i, isa))) {
        let all = run(isa, &w.bytes(), &x.rows(int8), &RowMap::Rows(0..12), 0..20, 12);
        for pairs_per_row in [1, 4] {
            let got = run(isa, &w.bytes(), &x.rows(int8), &RowMap::Pairs { order: &order, pairs_per_row }, 0..20, 12);
            for (pair, got) in got.chunks(20).enumerate() {
                let row = pair / pairs_per_row;
                let want = if order.contains(&(pair as u32)) { &all[row * 20..][..20] } else { &[-7.0; 20] };
                assert!(same_bits(got, want), "pair {pair}");
            }
        }
    }
}

#[test]
fn rows_decode_to_their_elements() {
    for format in formats(false) {
        let w = Weights::new(3, 128, format, 5);
        for isa in Isa::available() {
            let mut out = vec![0.0; 128];
            decode_row(isa, &w.bytes(), 2, &mut out);
            let want: Vec<f32> = (0..128).map(|k| w.element(2, k)).collect();
            assert!(same_bits(&out, &want), "{format:?}");
        }
    }
}

#[test]
fn every_f16_is_decoded() {
    for bits in 0..=u16::MAX {
        let (got, want) = (decode::f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
        assert!(same_bits(&[got], &[want]), "{bits:#x}");
    }
}

#[test]
#[ignore = "a measurement"]
fn rates() {
    let cases = [(8192, 2048, 1), (256, 2048, 1), (2048, 2048, 1), (2048, 2048, 4), (2048, 2048, 64)];
    let kinds = [(true, 4), (true, 8), (false, 4), (false, 8)];
    for isa in Isa::available().skip(1) {
        for ((int8, bits), (n, k, rows)) in kinds.into_iter().flat_map(|kind| cases.map(|case| (kind, case))) {
            let (w, x) = (Weights::new(n, k, affine(bits, 64, DType::Bf16), 3), Inputs::new(rows, k));
            let mut scratch = Scratch::new(scratch_bytes(k));
            let mut out = vec![0.0; rows * n];
            let time = seconds(|| {
                let mut out = ColumnsMut::new(&mut out, n);
                matmul(isa, &w.bytes(), &x.rows(int8), &RowMap::Rows(0..rows), 0..n, &mut scratch, &mut out);
            });
            let bytes = (w.weight.len() + w.scales.len() + w.biases.len()) as f64;
            println!(
                "{:7} {}: {bits}-bit {n}×{k}, {rows:2} rows: {:6.1} GB/s, {:6.1} GMAC/s",
                isa.name(),
                if int8 { "int8" } else { "f32 " },
                bytes / time / 1e9,
                (n * k * rows) as f64 / time / 1e9
            );
        }
    }
}
