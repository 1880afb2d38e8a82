//! Builds a case: places operands with gaps of poison around them, and fills their true rows.

use std::cell::Cell;

use super::case::{Case, Image};
use super::random::Random;
use crate::backend::BufferId;
use crate::devices::DeviceKind;
use crate::inputs::{KV_BLOCK, SamplingInputs, SequenceInputs, StepInputs};
use crate::mapped::MappedFile;
use crate::op::Op;
use crate::ops::group_rows::Groups;
use crate::ops::kv_write::KvLayer;
use crate::plan::{Dispatch, Logits, Phase, Plan, PlanKey, Precision, Program};
use crate::reference::POISON;
use crate::reference::math::encode;
use crate::reference::weights::pack;
use crate::switches::Switches;
use crate::tensor::{DType, FileSlice, Format, Matrix, Space, Stored, Tensor};

/// Poison before, between and after operands; also their alignment, which is that of a plan's arena.
const GAP: usize = 64;

/// A step's shape.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// A chunk of one sequence.
    Prefill {
        /// Rows of the plan.
        bucket: usize,
        /// Positions already in the cache.
        start: usize,
        /// True rows.
        rows: usize,
    },
    /// One token of each sequence.
    Decode {
        /// Rows of the plan.
        bucket: usize,
        /// Positions already in each cache.
        starts: &'static [usize],
    },
}

/// Steps that every op runs: 1, 2, 3 and 17 rows, full and part-filled buckets, block bounds, several sequences.
pub const STEPS: &[Step] = &[
    Step::Decode { bucket: 1, starts: &[0] },
    Step::Prefill { bucket: 2, start: 1, rows: 2 },
    Step::Prefill { bucket: 4, start: 255, rows: 3 },
    Step::Prefill { bucket: 32, start: 300, rows: 17 },
    Step::Decode { bucket: 4, starts: &[256, 0, 511] },
];

/// Steps at the model's shapes: a row behind each of three contexts, several sequences, prompts of 64 and 512 rows.
pub const TRUE_STEPS: &[Step] = &[
    Step::Decode { bucket: 1, starts: &[300] },
    Step::Decode { bucket: 1, starts: &[4096] },
    Step::Decode { bucket: 1, starts: &[33_000] },
    Step::Decode { bucket: 4, starts: &[4096, 0, 33_000] },
    Step::Prefill { bucket: 64, start: 300, rows: 64 },
    Step::Prefill { bucket: 512, start: 512, rows: 512 },
];

/// Those of them that take one token of each sequence.
pub const TRUE_DECODES: &[Step] = &[TRUE_STEPS[0], TRUE_STEPS[1], TRUE_STEPS[2], TRUE_STEPS[3]];

/// Those of them that differ where positions do not count.
pub const TRUE_ROWS: &[Step] = &[TRUE_STEPS[0], TRUE_STEPS[3], TRUE_STEPS[4], TRUE_STEPS[5]];

/// Steps of ops that take one token of each sequence, and few of those.
pub const DECODE_STEPS: &[Step] = &[
    Step::Decode { bucket: 1, starts: &[0] },
    Step::Decode { bucket: 1, starts: &[700] },
    Step::Decode { bucket: 2, starts: &[40, 511] },
    Step::Decode { bucket: 4, starts: &[256, 0, 511] },
    Step::Decode { bucket: 4, starts: &[3, 255, 90, 31] },
];

impl Step {
    /// Rows of the plan.
    pub const fn bucket(&self) -> usize {
        match self {
            Self::Prefill { bucket, .. } | Self::Decode { bucket, .. } => *bucket,
        }
    }

    /// True rows.
    pub const fn rows(&self) -> usize {
        match self {
            Self::Prefill { rows, .. } => *rows,
            Self::Decode { starts, .. } => starts.len(),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Prefill { bucket, start, rows } => format!("{rows}/{bucket} rows from {start}"),
            Self::Decode { bucket, starts } => format!("{}/{bucket} sequences at {starts:?}", starts.len()),
        }
    }

    fn sequences(&self) -> Vec<SequenceInputs> {
        let (starts, num_rows): (&[usize], usize) = match self {
            Self::Prefill { start, rows, .. } => (std::slice::from_ref(start), *rows),
            Self::Decode { starts, .. } => (starts, 1),
        };
        let sequence = |(i, &start): (usize, &usize)| SequenceInputs {
            first_row: i,
            num_rows,
            start,
            state: BufferId(i as u32),
            state_half: i % 2,
            block_table: Vec::new(),
        };
        starts.iter().enumerate().map(sequence).collect()
    }
}

thread_local! {
    /// Added to every case's own seed. The lists of cases name no seed: they are the same for each.
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// Builds cases with other contents: 0 are those of the lists.
pub fn seeded<T>(seed: u64, build: impl FnOnce() -> T) -> T {
    let before = SEED.replace(seed);
    let built = build();
    SEED.set(before);
    built
}

/// Operands and contents of the case under construction.
pub struct CaseBuilder {
    /// Contents come from here.
    pub random: Random,
    /// Sequences are set; cases may add outputs and sampling.
    pub inputs: StepInputs,
    step: Step,
    before: Image,
    constants: Vec<f32>,
    weights: Vec<u8>,
    weight_align: usize,
    block_bytes: usize,
    temps: u32,
}

impl CaseBuilder {
    /// No operands yet.
    pub fn new(step: Step) -> Self {
        let slot = vec![POISON; 4 * step.bucket()];
        let before = Image { arena: vec![POISON; GAP], slots: [slot.clone(), slot], ..Image::default() };
        let inputs = StepInputs { sequences: step.sequences(), tokens_on_device: true, ..StepInputs::default() };
        Self {
            random: Random::new(step.bucket() as u64 + (SEED.get() << 32)),
            inputs,
            step,
            before,
            constants: vec![f32::NAN; 3],
            weights: vec![POISON; 3],
            weight_align: 1,
            block_bytes: 0,
            temps: 0,
        }
    }

    /// Rows of the plan.
    pub const fn bucket(&self) -> usize {
        self.step.bucket()
    }

    /// True rows.
    pub const fn rows(&self) -> usize {
        self.step.rows()
    }

    /// Wants logits of these rows; per-output tensors have `output_bucket` rows from here on.
    pub fn outputs(&mut self, rows: &[u32]) {
        self.inputs.outputs = rows.to_vec();
    }

    /// An unwritten tensor in the arena.
    pub fn output(&mut self, rows: usize, cols: usize, dtype: DType) -> Tensor {
        let t = Tensor { space: Space::Arena, offset: self.before.arena.len(), rows, cols, dtype };
        let end = (t.offset + t.bytes()).next_multiple_of(GAP) + GAP;
        self.before.arena.resize(end, POISON);
        t
    }

    /// An intermediate of a fused op: it has no bytes that anyone else sees.
    pub fn temp(&mut self, rows: usize, cols: usize) -> Tensor {
        self.temps += 1;
        Tensor { space: Space::Temp(self.temps), offset: 0, rows, cols, dtype: DType::F32 }
    }

    /// An f32 tensor whose first rows hold these values; the rest is poison.
    pub fn input(&mut self, rows: usize, cols: usize, values: &[f32]) -> Tensor {
        let t = self.output(rows, cols, DType::F32);
        self.fill(&t, values.iter().flat_map(|v| v.to_le_bytes()).collect());
        t
    }

    /// An f32 tensor of `per_row` rows for each row of the step, the true ones normal numbers.
    pub fn normal(&mut self, per_row: usize, cols: usize) -> Tensor {
        let values = self.random.normals(self.rows() * per_row * cols, 1.0);
        self.input(self.bucket() * per_row, cols, &values)
    }

    /// A u32 tensor whose first rows hold these values.
    pub fn input_ids(&mut self, rows: usize, cols: usize, ids: &[u32]) -> Tensor {
        let t = self.output(rows, cols, DType::U32);
        self.fill(&t, ids.iter().flat_map(|v| v.to_le_bytes()).collect());
        t
    }

    /// An i8 tensor whose first rows hold these values.
    pub fn input_codes(&mut self, rows: usize, cols: usize, codes: &[i8]) -> Tensor {
        let t = self.output(rows, cols, DType::I8);
        self.fill(&t, codes.iter().flat_map(|v| v.to_le_bytes()).collect());
        t
    }

    fn fill(&mut self, t: &Tensor, bytes: Vec<u8>) {
        assert!(bytes.len() <= t.bytes());
        self.before.arena[t.offset..t.offset + bytes.len()].copy_from_slice(&bytes);
    }

    /// A tensor in `Space::Constants`.
    pub fn constant(&mut self, rows: usize, values: &[f32]) -> Tensor {
        let offset = 4 * self.constants.len();
        self.constants.extend(values);
        self.constants.extend([f32::NAN; 3]);
        Tensor { space: Space::Constants, offset, rows, cols: values.len() / rows, dtype: DType::F32 }
    }

    /// Pairs of this step sorted by expert, from each token's experts.
    pub fn groups(&mut self, experts: &[Vec<u32>], num_experts: usize) -> Groups {
        let top_k = experts[0].len();
        let flat: Vec<u32> = experts.concat();
        let mut order: Vec<u32> = (0..flat.len() as u32).collect();
        order.sort_by_key(|&pair| flat[pair as usize]);
        let below = |e: usize| flat.iter().filter(|&&x| (x as usize) < e).count() as u32;
        let offsets: Vec<u32> = (0..=num_experts).map(below).collect();
        Groups {
            offsets: self.input_ids(1, num_experts + 1, &offsets),
            order: self.input_ids(self.bucket(), top_k, &order),
        }
    }

    /// A matrix whose products with normal activations are of the order of 1. Scales are of either sign.
    pub fn matrix(&mut self, experts: usize, rows: usize, cols: usize, format: Format) -> Matrix {
        let unit = 1.0 / (cols as f32).sqrt();
        let (weight, affine) = match format {
            Format::Dense(dtype) => {
                let values = self.random.normals(experts * rows * cols, unit);
                (self.file_slice(encode_f32(dtype, &values)), None)
            }
            Format::Affine { bits, group, scale } => {
                let mut codes = Vec::with_capacity(experts * rows * cols * bits as usize / 8);
                for _ in 0..experts * rows {
                    // A row is whole bytes, and a matrix of single codes would not fit in memory.
                    let row: Vec<u32> = (0..cols).map(|_| self.random.below(1 << bits) as u32).collect();
                    codes.extend(pack(bits, &row));
                }
                let steps = ((1u32 << bits) - 1) as f32;
                let (mut scales, mut biases) = (Vec::new(), Vec::new());
                for _ in 0..experts * rows * cols / group as usize {
                    // About −2…2 units over the codes, from either end.
                    let s = 4.0 * unit / steps * (0.5 + self.random.signed().abs());
                    let s = if self.random.below(2) == 0 { s } else { -s };
                    scales.push(s);
                    biases.push(-s * steps / 2.0 + unit * self.random.signed() / 4.0);
                }
                let weight = self.file_slice(codes);
                let scales = self.file_slice(encode_f32(scale, &scales));
                (weight, Some((scales, self.file_slice(encode_f32(scale, &biases)))))
            }
        };
        Matrix::stacked(experts, rows, cols, format, Stored { weight, affine })
    }

    /// Matrices from here on begin at multiples of 16 bytes, as those of a friendly file do.
    pub const fn align_weights(&mut self) {
        self.weight_align = 16;
    }

    /// Appends to the weight file, at an offset that no element type would choose.
    fn file_slice(&mut self, bytes: Vec<u8>) -> FileSlice {
        self.weights.resize(self.weights.len().next_multiple_of(self.weight_align), POISON);
        let offset = self.weights.len() as u64;
        let slice = FileSlice { file: 0, offset, bytes: bytes.len() as u64 };
        self.weights.extend(bytes);
        self.weights.extend([POISON; 5]);
        slice
    }

    /// The recurrent state: a range of `Space::StateIn`, normal numbers in the half that each sequence reads.
    pub fn state(&mut self, rows: usize, cols: usize) -> Tensor {
        assert!(self.before.states.is_empty(), "a case has one state");
        let t = Tensor { space: Space::StateIn, offset: GAP, rows, cols, dtype: DType::F32 };
        let half = (GAP + t.bytes()).next_multiple_of(GAP) + GAP;
        for sequence in &self.inputs.sequences {
            let mut bytes = vec![POISON; 2 * half];
            let first = sequence.state_half * half + t.offset;
            let values = encode_f32(DType::F32, &self.random.normals(rows * cols, 1.0));
            bytes[first..first + values.len()].copy_from_slice(&values);
            self.before.states.push(bytes);
        }
        t
    }

    /// A KV cache that holds `cached` positions of each sequence: its own `start`, or with the step's rows in it too.
    /// Blocks lie in a random order, with blocks between that belong to nobody.
    pub fn kv(&mut self, heads: usize, head_dim: usize, dtype: DType, with_step: bool) -> KvLayer {
        // As a model's layers, at whole cache lines.
        let gap = 2 * GAP;
        let layer = KvLayer { offset: gap, heads, head_dim, dtype };
        self.block_bytes = (gap + layer.bytes()).next_multiple_of(gap) + gap;
        let needed: Vec<usize> =
            self.inputs.sequences.iter().map(|s| (s.start + s.num_rows).div_ceil(KV_BLOCK)).collect();
        let total = needed.iter().sum::<usize>() + 2;
        self.before.kv = vec![POISON; total * self.block_bytes];
        let mut blocks = self.random.distinct(total, total);
        for (i, needed) in needed.into_iter().enumerate() {
            let table = blocks.split_off(blocks.len() - needed);
            let s = &self.inputs.sequences[i];
            let cached = s.start + if with_step { s.num_rows } else { 0 };
            for (row, position) in (0..2 * heads).flat_map(|row| (0..cached).map(move |p| (row, p))) {
                let at = layer.row_offset(row / heads, row % heads, position % KV_BLOCK);
                let first = table[position / KV_BLOCK] as usize * self.block_bytes + at;
                let values = encode_f32(dtype, &self.random.normals(head_dim, 1.0));
                self.before.kv[first..first + values.len()].copy_from_slice(&values);
            }
            self.inputs.sequences[i].block_table = table;
        }
        layer
    }

    /// This step's token ids: with the inputs, or in a token slot.
    pub fn tokens(&mut self, ids: &[u32], on_device: bool) -> Tensor {
        assert_eq!(ids.len(), self.rows());
        self.inputs.tokens_on_device = on_device;
        if on_device {
            let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
            self.before.slots[self.inputs.token_slot].splice(..4 * ids.len(), bytes);
        } else {
            self.inputs.tokens = ids.to_vec();
        }
        Tensor { space: Space::Tokens, offset: 0, rows: self.bucket(), cols: 1, dtype: DType::U32 }
    }

    /// The next step's token ids.
    pub const fn next_tokens(&self) -> Tensor {
        Tensor { space: Space::NextTokens, offset: 0, rows: self.bucket(), cols: 1, dtype: DType::U32 }
    }

    /// Logits; the first rows hold these values.
    pub fn logits(&mut self, cols: usize, values: &[f32]) -> Tensor {
        let t = Tensor { space: Space::Logits, offset: 0, rows: self.bucket(), cols, dtype: DType::F32 };
        self.before.logits = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.before.logits.resize(t.bytes() + GAP, POISON);
        t
    }

    /// Wants every row's logits, one sampling each.
    pub fn sampling(&mut self, sampling: Vec<SamplingInputs>) {
        self.outputs(&Vec::from_iter(0..sampling.len() as u32));
        self.inputs.sampling = sampling;
    }

    /// The case.
    pub fn finish(self, what: &str, op: impl Into<Op>, tolerance: f64) -> Case {
        let op = op.into();
        op.contract().check();
        let (phase, token_bucket) = match self.step {
            Step::Prefill { bucket, .. } => (Phase::Prefill, bucket),
            Step::Decode { bucket, .. } => (Phase::Decode, bucket),
        };
        let name = format!("{} {what}, {}", op.kind().name(), self.step.name());
        let program = if self.inputs.sampling.is_empty() { Program::Forward } else { Program::Sample };
        let key = PlanKey {
            program,
            phase,
            token_bucket,
            sequence_bucket: phase.sequences(token_bucket),
            logits: if self.inputs.outputs.is_empty() { Logits::None } else { Logits::All },
            precision: Precision::Exact,
            device: DeviceKind::Cpu,
            switches: Switches::default(),
        };
        let plan = Plan {
            key,
            dispatches: vec![Dispatch { op, stage: 0, scope: "case".to_owned() }],
            stages: 1,
            arena_bytes: self.before.arena.len(),
            logits_bytes: self.before.logits.len(),
            taps: Vec::new(),
            fusions: Vec::new(),
        };
        Case {
            name,
            plan,
            inputs: self.inputs,
            weights: MappedFile::from_bytes("case", self.weights),
            constants: self.constants,
            before: self.before,
            block_bytes: self.block_bytes,
            tolerance,
        }
    }
}

fn encode_f32(dtype: DType, values: &[f32]) -> Vec<u8> {
    encode(dtype, &values.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>())
}
