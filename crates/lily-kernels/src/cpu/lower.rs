//! Op → kernel: takes an op's operands from the step and spreads the work over the pool. How work is split never
//! changes a byte.

use super::Scratch;
use super::columns::ColumnsMut;
use super::isa::Isa;
use super::pool::{Parts, Pool};
use super::step::Step;
use crate::inputs::KV_BLOCK;
use crate::op::Op;
use crate::ops;
use crate::ops::gated_delta::simd::{Scan, Strided, scan as scan_head};
use crate::ops::linear::simd::{RowMap, matmul};
use crate::tensor::Matrix;

/// Weight rows per task are multiples of this: what the matmul kernels take at once.
const COLUMN_BLOCK: usize = 16;
/// Rows of a prefill that one attention task takes: enough to pay for widening a KV block.
const ATTENTION_ROWS: usize = 16;
/// Rows of one expert that go through gate, up and activation together.
const GATE_UP_ROWS: usize = 32;
/// Columns of the same.
const GATE_UP_COLUMNS: usize = 64;
/// Tasks per thread that a matmul is split into.
const TASKS_PER_THREAD: usize = 4;

/// A step with its processor.
#[derive(Clone, Copy)]
struct Run<'s, 'a> {
    step: &'s Step<'a>,
    isa: Isa,
    pool: &'s Pool,
}

/// Runs one op.
pub fn run(step: &Step, isa: Isa, pool: &Pool, op: &Op) {
    let r = Run { step, isa, pool };
    match op {
        Op::Embed(o) => r.embed(o),
        Op::RmsNorm(o) => r.rms_norm(o),
        Op::QuantizeRows(o) => r.quantize_rows(o),
        Op::Linear(o) => r.linear(o),
        Op::Rope(o) => r.rope(o),
        Op::KvWrite(o) => r.kv_write(o),
        Op::QkNormRopeWrite(o) => r.qk_norm_rope_write(o),
        Op::Attention(o) => r.attention(o),
        Op::SigmoidGate(o) => r.sigmoid_gate(o),
        Op::SplitHeads(o) => r.split_heads(o),
        Op::Conv1dSilu(o) => r.conv1d_silu(o),
        Op::GdnGates(o) => r.gdn_gates(o),
        Op::L2Norm(o) => r.l2_norm(o),
        Op::GatedDelta(o) => r.gated_delta(o, &o.out, |_, _| {}),
        Op::GatedRmsNorm(o) => r.gated_rms_norm(o),
        Op::GatedDeltaNorm(o) => r.gated_delta_norm(o),
        Op::RouterTopK(o) => r.router_top_k(o),
        Op::GroupRows(o) => r.group_rows(o),
        Op::ExpertLinear(o) => r.expert_linear(o),
        Op::SwiGlu(o) => r.swiglu(o),
        Op::ExpertGateUp(o) => r.expert_gate_up(o),
        Op::CombineExperts(o) => r.combine_experts(o),
        Op::SharedExpertAdd(o) => r.shared_expert_add(o),
        Op::Add(o) => r.add(o),
        Op::MoeOutput(o) => r.moe_output(o),
        Op::GatherRows(o) => r.gather_rows(o),
        Op::Sample(o) => r.sample(o),
        Op::ExpandWeights(_)
        | Op::NormLinears(_)
        | Op::LinearAdd(_)
        | Op::GatedDeltaStep(_)
        | Op::MoeGateUp(_)
        | Op::MoeDown(_)
        | Op::AttentionParts(_)
        | Op::AttentionMerge(_) => unreachable!("`compile` refuses {}", op.kind().name()),
    }
}

/// Whether an op has a kernel here. Those that have not save dispatches, which cost nothing here.
pub const fn is_supported(op: &Op) -> bool {
    !matches!(
        op,
        Op::ExpandWeights(_)
            | Op::NormLinears(_)
            | Op::LinearAdd(_)
            | Op::GatedDeltaStep(_)
            | Op::MoeGateUp(_)
            | Op::MoeDown(_)
            | Op::AttentionParts(_)
            | Op::AttentionMerge(_)
    )
}

/// Memory that a dispatch works in.
#[derive(Clone, Copy)]
pub struct Needs {
    /// `Scratch::kernel` of each thread.
    pub kernel_bytes: usize,
    /// `Scratch::tile` of each thread.
    pub tile_floats: usize,
    /// Logits that `Scratch::sample` of thread 0 takes.
    pub vocab: usize,
    /// `Scratch::active` of thread 0.
    pub experts: usize,
}

impl Needs {
    /// Nothing.
    pub const NONE: Self = Self { kernel_bytes: 0, tile_floats: 0, vocab: 0, experts: 0 };

    /// Enough for both.
    pub fn most(self, other: Self) -> Self {
        Self {
            kernel_bytes: self.kernel_bytes.max(other.kernel_bytes),
            tile_floats: self.tile_floats.max(other.tile_floats),
            vocab: self.vocab.max(other.vocab),
            experts: self.experts.max(other.experts),
        }
    }
}

/// What an op works in.
pub fn needs(op: &Op) -> Needs {
    let matmul = |m: &Matrix| ops::linear::simd::scratch_bytes(m.cols);
    match op {
        Op::Linear(o) => Needs { kernel_bytes: matmul(&o.weight), ..Needs::NONE },
        Op::ExpertLinear(o) => Needs { kernel_bytes: matmul(&o.weight), experts: o.groups.experts(), ..Needs::NONE },
        Op::ExpertGateUp(o) => Needs {
            kernel_bytes: matmul(&o.gate.weight),
            tile_floats: 2 * GATE_UP_ROWS * GATE_UP_COLUMNS,
            experts: o.gate.groups.experts(),
            ..Needs::NONE
        },
        Op::Attention(o) => {
            let heads = o.q_heads() / o.layer.heads;
            let kernel_bytes = ops::attention::simd::scratch_bytes(ATTENTION_ROWS, heads, o.layer.head_dim);
            Needs { kernel_bytes, ..Needs::NONE }
        }
        Op::QkNormRopeWrite(o) => Needs { tile_floats: o.write.layer.head_dim, ..Needs::NONE },
        Op::Sample(o) => Needs { vocab: o.logits.cols, ..Needs::NONE },
        Op::GatedDelta(_)
        | Op::GatedDeltaNorm(_)
        | Op::Embed(_)
        | Op::RmsNorm(_)
        | Op::QuantizeRows(_)
        | Op::Rope(_)
        | Op::KvWrite(_)
        | Op::SigmoidGate(_)
        | Op::SplitHeads(_)
        | Op::Conv1dSilu(_)
        | Op::GdnGates(_)
        | Op::L2Norm(_)
        | Op::GatedRmsNorm(_)
        | Op::RouterTopK(_)
        | Op::GroupRows(_)
        | Op::SwiGlu(_)
        | Op::CombineExperts(_)
        | Op::SharedExpertAdd(_)
        | Op::Add(_)
        | Op::MoeOutput(_)
        | Op::GatherRows(_)
        | Op::ExpandWeights(_)
        | Op::NormLinears(_)
        | Op::LinearAdd(_)
        | Op::GatedDeltaStep(_)
        | Op::MoeGateUp(_)
        | Op::MoeDown(_)
        | Op::AttentionParts(_)
        | Op::AttentionMerge(_) => Needs::NONE,
    }
}

impl<'a> Run<'_, 'a> {
    fn tokens(&self) -> usize {
        self.step.inputs.num_tokens()
    }

    /// A thread's scratch. Tasks of one thread follow one another.
    #[expect(clippy::mut_from_ref, reason = "a part of the scratch that only this thread takes")]
    fn scratch<'p>(parts: &'p Parts<'_, Scratch>, thread: usize) -> &'p mut Scratch {
        // SAFETY: thread numbers are distinct among running tasks, and a task takes its scratch once.
        unsafe { &mut parts.get(thread..thread + 1)[0] }
    }

    /// Rows of a written operand.
    fn out<T: bytemuck::Pod>(&self, t: &crate::tensor::Tensor, rows: usize) -> &'a mut [T] {
        // SAFETY: every op's method below takes each operand that the op declares in `writes()` once.
        unsafe { self.step.write(t, rows) }
    }

    fn embed(&self, o: &ops::embed::Embed) {
        let n = self.tokens();
        let table = self.step.matrix(&o.table, 0);
        ops::embed::simd::run(self.isa, self.pool, self.step.read(&o.tokens, n), &table, self.out(&o.out, n));
    }

    fn rms_norm(&self, o: &ops::rms_norm::RmsNorm) {
        let n = self.step.inputs.rows(o.rows);
        let (x, w) = (self.step.read(&o.x, n), self.step.read(&o.weight, 1));
        ops::rms_norm::simd::run(self.isa, self.pool, o, x, w, self.out(&o.out, n));
    }

    fn quantize_rows(&self, o: &ops::quantize_rows::QuantizeRows) {
        let n = self.step.inputs.rows(o.rows) * o.per_row;
        let (k, groups) = (o.x.cols, o.out.scales.cols);
        let x: &[f32] = self.step.read(&o.x, n);
        let codes = Parts::new(self.out::<i8>(&o.out.codes, n));
        let scales = Parts::new(self.out::<f32>(&o.out.scales, n));
        let sums = Parts::new(self.out::<f32>(&o.out.sums, n));
        self.pool.ranges(n, 4 * k, |range, _| {
            for row in range {
                // SAFETY: rows of one `ranges` call are disjoint.
                let (codes, scales, sums) = unsafe {
                    (
                        codes.get(row * k..(row + 1) * k),
                        scales.get(row * groups..(row + 1) * groups),
                        sums.get(row * groups..(row + 1) * groups),
                    )
                };
                let x = &x[row * k..][..k];
                ops::quantize_rows::simd::quantize_row(self.isa, x, codes, scales, sums);
            }
        });
    }

    fn linear(&self, o: &ops::linear::Linear) {
        let n = self.step.inputs.rows(o.rows);
        if n == 0 {
            return;
        }
        let (w, x) = (self.step.matrix(&o.weight, 0), self.step.rows_in(&o.x, n));
        let out = ColumnsMut::new(self.out(&o.out, n), o.out.cols);
        let parts = self.step.scratch();
        self.pool.blocks(w.rows, COLUMN_BLOCK, n * w.cols / 8, |columns, thread| {
            let scratch = Self::scratch(&parts, thread);
            // SAFETY: the column ranges of one `blocks` call are disjoint.
            let mut out = unsafe { out.split(columns.clone()) };
            matmul(self.isa, &w, &x, &RowMap::Rows(0..n), columns, &mut scratch.kernel, &mut out);
        });
    }

    fn rope(&self, o: &ops::rope::Rope) {
        let n = self.tokens();
        let (x, freq) = (self.step.read(&o.x, n), self.step.read(&o.inv_freq, 1));
        let position = |row| self.step.inputs.locate(row).1;
        ops::rope::simd::run(self.pool, o, &position, x, freq, self.out(&o.out, n));
    }

    /// Stores one head's row of K (0) or V (1).
    fn store(&self, layer: &ops::kv_write::KvLayer, row: usize, which: usize, head: usize, values: &[f32]) {
        let (sequence, position) = self.step.inputs.locate(row);
        // SAFETY: callers store each (row, which, head) once, from an op that declares the layer in `writes()`.
        let place = unsafe { self.step.kv_row(sequence, layer, (which, head, position)) };
        ops::kv_write::simd::store(self.isa, layer, values, place);
    }

    fn kv_write(&self, o: &ops::kv_write::KvWrite) {
        let n = self.tokens();
        let (k, v): (&[f32], &[f32]) = (self.step.read(&o.k, n), self.step.read(&o.v, n));
        let dim = o.layer.head_dim;
        self.pool.ranges(n, 2 * o.k.cols, |range, _| {
            for row in range {
                for head in 0..o.layer.heads {
                    let at = row * o.k.cols + head * dim;
                    self.store(&o.layer, row, 0, head, &k[at..at + dim]);
                    self.store(&o.layer, row, 1, head, &v[at..at + dim]);
                }
            }
        });
    }

    fn qk_norm_rope_write(&self, o: &ops::qk_norm_rope_write::QkNormRopeWrite) {
        let n = self.tokens();
        let read = |t| -> &[f32] { self.step.read(t, n) };
        let (q_in, k_in, v_in) = (read(&o.q_norm.x), read(&o.k_norm.x), read(&o.write.v));
        let constant = |t| -> &[f32] { self.step.read(t, 1) };
        let (q_weight, k_weight) = (constant(&o.q_norm.weight), constant(&o.k_norm.weight));
        let freq = constant(&o.q_rope.inv_freq);
        let (q_cols, k_cols, dim) = (o.q_rope.out.cols, o.k_norm.x.cols, o.write.layer.head_dim);
        let q_out = Parts::new(self.out::<f32>(&o.q_rope.out, n));
        let parts = self.step.scratch();
        self.pool.ranges(n, 8 * (q_cols + k_cols), |range, thread| {
            let k_head = &mut Self::scratch(&parts, thread).tile[..dim];
            for row in range {
                let position = self.step.inputs.locate(row).1;
                // SAFETY: rows of one `ranges` call are disjoint.
                let q = unsafe { q_out.get(row * q_cols..(row + 1) * q_cols) };
                let q_in = &q_in[row * o.q_norm.x.cols..][..o.q_norm.x.cols];
                ops::rms_norm::simd::row_norm(self.isa, &o.q_norm, q_in, q_weight, q);
                ops::rope::simd::rotate(dim, position, freq, q);
                for head in 0..o.write.layer.heads {
                    let at = row * k_cols + head * o.k_norm.stride;
                    ops::rms_norm::simd::norm(self.isa, &k_in[at..at + dim], k_weight, o.k_norm.eps, k_head);
                    ops::rope::simd::rotate(dim, position, freq, k_head);
                    self.store(&o.write.layer, row, 0, head, k_head);
                    let v = &v_in[row * o.write.v.cols + head * dim..][..dim];
                    self.store(&o.write.layer, row, 1, head, v);
                }
            }
        });
    }

    fn attention(&self, o: &ops::attention::Attention) {
        let inputs = self.step.inputs;
        let n = self.tokens();
        let q: &[f32] = self.step.read(&o.q, n);
        let out = ColumnsMut::new(self.out(&o.out, n), o.out.cols);
        let (heads, width) = (o.layer.heads, o.q.cols / o.layer.heads);
        let parts = self.step.scratch();
        for sequence in &inputs.sequences {
            let tiles = sequence.num_rows.div_ceil(ATTENTION_ROWS);
            // Later rows attend to more: taken first, they cannot hold up the end.
            let work = sequence.num_rows * (sequence.start + sequence.num_rows) * o.q.cols / 8;
            self.pool.tasks(tiles * heads, work, &|task, thread| {
                let (tile, kv_head) = (tiles - 1 - task / heads, task % heads);
                let first = tile * ATTENTION_ROWS;
                let last = (first + ATTENTION_ROWS).min(sequence.num_rows);
                let tile = ops::attention::simd::Tile {
                    q,
                    q_heads: o.q_heads(),
                    layer: o.layer,
                    block: &|block| self.step.kv(sequence, block),
                    kv_head,
                    rows: sequence.first_row + first..sequence.first_row + last,
                    first_position: sequence.start + first,
                };
                let scratch = Self::scratch(&parts, thread);
                // SAFETY: tasks of one head write disjoint rows, of different heads disjoint columns; `attend` writes
                // the rows of its tile only.
                let mut out = unsafe { out.split(kv_head * width..(kv_head + 1) * width) };
                ops::attention::simd::attend(self.isa, &tile, &mut scratch.kernel, &mut out);
            });
        }
        const { assert!(KV_BLOCK >= ATTENTION_ROWS) };
    }

    fn sigmoid_gate(&self, o: &ops::sigmoid_gate::SigmoidGate) {
        let n = self.tokens();
        let (x, gate) = (self.step.read(&o.x, n), self.step.read(&o.gate, n));
        ops::sigmoid_gate::simd::run(self.isa, self.pool, o, x, gate, self.out(&o.out, n));
    }

    fn split_heads(&self, o: &ops::split_heads::SplitHeads) {
        let n = self.tokens();
        ops::split_heads::simd::run(self.pool, o, self.step.read(&o.x, n), self.out(&o.out, n));
    }

    fn conv1d_silu(&self, o: &ops::conv1d_silu::Conv1dSilu) {
        let n = self.tokens();
        let x: &[f32] = self.step.read(&o.x, n);
        let weight = self.step.read(&o.weight, o.weight.rows);
        let out: &mut [f32] = self.out(&o.out, n);
        for s in &self.step.inputs.sequences {
            let rows = s.first_row * o.x.cols..(s.first_row + s.num_rows) * o.x.cols;
            // SAFETY: each sequence's state is taken once.
            let states = (self.step.state_in(s, &o.state_in), unsafe { self.step.state_out(s, &o.state_out) });
            ops::conv1d_silu::simd::run(self.isa, self.pool, o, &x[rows.clone()], weight, states, &mut out[rows]);
        }
    }

    fn gdn_gates(&self, o: &ops::gdn_gates::GdnGates) {
        let n = self.tokens();
        let ab = (self.step.read(&o.a, n), self.step.read(&o.b, n));
        let constants = (self.step.read(&o.a_log, 1), self.step.read(&o.dt_bias, 1));
        ops::gdn_gates::simd::run(o.a.cols, ab, constants, (self.out(&o.decay, n), self.out(&o.beta, n)));
    }

    fn l2_norm(&self, o: &ops::l2_norm::L2Norm) {
        let n = self.tokens();
        ops::l2_norm::simd::run(self.isa, self.pool, o, self.step.read(&o.x, n), self.out(&o.out, n));
    }

    /// The recurrence into `out`; `after(row, y)` then sees each row of a head while it is in cache.
    fn gated_delta(
        &self,
        o: &ops::gated_delta::GatedDelta,
        out: &crate::tensor::Tensor,
        after: impl Fn((usize, usize), &mut [f32]) + Sync,
    ) {
        let n = self.tokens();
        let read = |t| -> &'a [f32] { self.step.read(t, n) };
        let (qk, v, decay, beta) = (read(&o.qk), read(&o.v), read(&o.decay), read(&o.beta));
        let (heads, v_dim, k_dim) = (o.v_heads(), o.v_dim(), o.k_dim());
        let out = ColumnsMut::new(self.out(out, n), out.cols);
        let head_state = v_dim * k_dim;
        for s in &self.step.inputs.sequences {
            let state_in = self.step.state_in(s, &o.state_in);
            // SAFETY: each sequence's state is taken once.
            let state_out = Parts::new(unsafe { self.step.state_out(s, &o.state_out) });
            let work = s.num_rows * head_state * 4;
            self.pool.blocks(heads, 1, work, |range, _| {
                for head in range {
                    let key = head * o.k_heads() / heads * k_dim;
                    let rows = |data: &'a [f32], first, stride| Strided { data: &data[first..], stride };
                    let scan = Scan {
                        tokens: s.first_row..s.first_row + s.num_rows,
                        q: rows(qk, key, o.qk.cols),
                        k: rows(qk, o.k_heads() * k_dim + key, o.qk.cols),
                        v: rows(v, o.qk.cols + head * v_dim, o.v.cols),
                        decay: rows(decay, head, heads),
                        beta: rows(beta, head, heads),
                        k_dim,
                    };
                    let part = head * head_state..(head + 1) * head_state;
                    // SAFETY: heads of one `blocks` call are disjoint, in state and in columns.
                    let (state, mut y) =
                        unsafe { (state_out.get(part.clone()), out.split(head * v_dim..(head + 1) * v_dim)) };
                    scan_head(self.isa, &scan, &state_in[part], state, &mut y);
                    for row in scan.tokens.clone() {
                        after((row, head), y.row(row));
                    }
                }
            });
        }
    }

    fn gated_rms_norm(&self, o: &ops::gated_rms_norm::GatedRmsNorm) {
        let n = self.tokens();
        let (y, z) = (self.step.read(&o.y, n), self.step.read(&o.z, n));
        let weight = self.step.read(&o.weight, 1);
        ops::gated_rms_norm::simd::run(self.isa, self.pool, o, y, z, weight, self.out(&o.out, n));
    }

    fn gated_delta_norm(&self, o: &ops::gated_delta_norm::GatedDeltaNorm) {
        let z: &[f32] = self.step.read(&o.norm.z, self.tokens());
        let weight: &[f32] = self.step.read(&o.norm.weight, 1);
        let (dim, cols) = (o.norm.weight.cols, o.norm.z.cols);
        self.gated_delta(&o.delta, &o.norm.out, |(row, head), y| {
            let z = &z[row * cols + head * dim..][..dim];
            ops::gated_rms_norm::simd::norm_in_place(self.isa, z, weight, o.norm.eps, y);
        });
    }

    fn router_top_k(&self, o: &ops::router_top_k::RouterTopK) {
        let n = self.tokens();
        let (experts, weights) = (self.out(&o.experts, n), self.out(&o.weights, n));
        let logits = self.step.read(&o.logits, n);
        ops::router_top_k::simd::run(o.logits.cols, o.experts.cols, logits, experts, weights);
    }

    fn group_rows(&self, o: &ops::group_rows::GroupRows) {
        let n = self.tokens();
        let (offsets, order) = (self.out(&o.groups.offsets, 1), self.out(&o.groups.order, n));
        ops::group_rows::simd::run(self.step.read(&o.experts, n), offsets, order);
    }

    /// Calls `task(expert, its pairs, columns, thread)` so that every pair meets every column of its expert once;
    /// `work` is multiplications per pair and column.
    fn each_expert(
        &self,
        groups: &ops::group_rows::Groups,
        columns: usize,
        work: usize,
        parts: &Parts<'_, Scratch>,
        task: impl Fn(usize, &[u32], std::ops::Range<usize>, &mut Scratch) + Sync,
    ) {
        let offsets: &[u32] = self.step.read(&groups.offsets, 1);
        let order: &[u32] = self.step.read(&groups.order, self.tokens());
        let mut active = std::mem::take(&mut Self::scratch(parts, 0).active);
        active.clear();
        active.extend((0..groups.experts() as u32).filter(|&e| offsets[e as usize] < offsets[e as usize + 1]));
        let want = (self.pool.threads() * TASKS_PER_THREAD).div_ceil(active.len().max(1));
        let size = columns.div_ceil(want).next_multiple_of(COLUMN_BLOCK);
        let splits = columns.div_ceil(size);
        let work = self.tokens() * groups.top_k() * columns * work / 8;
        self.pool.tasks(active.len() * splits, work, &|i, thread| {
            let (expert, split) = (active[i / splits] as usize, i % splits);
            let pairs = &order[offsets[expert] as usize..offsets[expert + 1] as usize];
            task(expert, pairs, split * size..((split + 1) * size).min(columns), Self::scratch(parts, thread));
        });
        Self::scratch(parts, 0).active = active;
    }

    fn expert_linear(&self, o: &ops::expert_linear::ExpertLinear) {
        let pairs_per_row = o.pairs_per_row();
        let pairs = self.tokens() * o.groups.top_k();
        let x = self.step.rows_in(&o.x, pairs / pairs_per_row);
        let out = ColumnsMut::new(self.out(&o.out, pairs), o.out.cols);
        let parts = self.step.scratch();
        self.each_expert(&o.groups, o.weight.rows, o.weight.cols, &parts, |expert, order, columns, scratch| {
            let w = self.step.matrix(&o.weight, expert);
            // SAFETY: tasks of one expert take disjoint columns, of different experts disjoint rows (pairs).
            let mut out = unsafe { out.split(columns.clone()) };
            let rows = RowMap::Pairs { order, pairs_per_row };
            matmul(self.isa, &w, &x, &rows, columns, &mut scratch.kernel, &mut out);
        });
    }

    fn swiglu(&self, o: &ops::swiglu::SwiGlu) {
        let n = self.tokens() * o.per_token;
        let (gate, up) = (self.step.read(&o.gate, n), self.step.read(&o.up, n));
        ops::swiglu::simd::run(self.isa, self.pool, gate, up, self.out(&o.out, n));
    }

    fn expert_gate_up(&self, o: &ops::expert_gate_up::ExpertGateUp) {
        let pairs_per_row = o.gate.pairs_per_row();
        let pairs = self.tokens() * o.gate.groups.top_k();
        let x = self.step.rows_in(&o.gate.x, pairs / pairs_per_row);
        let out = ColumnsMut::new(self.out(&o.act.out, pairs), o.act.out.cols);
        let parts = self.step.scratch();
        let groups = &o.gate.groups;
        self.each_expert(
            groups,
            o.gate.weight.rows,
            2 * o.gate.weight.cols,
            &parts,
            |expert, order, columns, scratch| {
                let weights = [&o.gate.weight, &o.up.weight].map(|m| self.step.matrix(m, expert));
                for start in columns.clone().step_by(GATE_UP_COLUMNS) {
                    let columns = start..(start + GATE_UP_COLUMNS).min(columns.end);
                    // SAFETY: tasks of one expert take disjoint columns, of different experts disjoint rows (pairs).
                    let mut out = unsafe { out.split(columns.clone()) };
                    for order in order.chunks(GATE_UP_ROWS) {
                        let width = columns.len();
                        let Scratch { kernel, tile, .. } = scratch;
                        let (gate, up) = tile[..2 * order.len() * width].split_at_mut(order.len() * width);
                        for (w, half) in weights.iter().zip([&mut *gate, &mut *up]) {
                            let rows = RowMap::Gather { order, pairs_per_row };
                            let mut half = ColumnsMut::new(half, width);
                            matmul(self.isa, w, &x, &rows, columns.clone(), kernel, &mut half);
                        }
                        let halves = gate.chunks_exact(width).zip(up.chunks_exact(width));
                        for (&pair, (gate, up)) in order.iter().zip(halves) {
                            ops::swiglu::simd::swiglu(self.isa, gate, up, out.row(pair as usize));
                        }
                    }
                }
            },
        );
    }

    fn combine_experts(&self, o: &ops::combine_experts::CombineExperts) {
        let (n, top_k) = (self.tokens(), o.weights.cols);
        let (x, weights) = (self.step.read(&o.x, n * top_k), self.step.read(&o.weights, n));
        ops::combine_experts::simd::run(self.pool, (top_k, o.out.cols), x, weights, self.out(&o.out, n));
    }

    fn shared_expert_add(&self, o: &ops::shared_expert_add::SharedExpertAdd) {
        let n = self.tokens();
        let shared = (self.step.read(&o.shared, n), self.step.read(&o.gate, n));
        let (x, out) = (self.step.read(&o.x, n), self.out(&o.out, n));
        ops::shared_expert_add::simd::run(self.isa, self.pool, o.out.cols, x, shared, out);
    }

    fn add(&self, o: &ops::add::Add) {
        let n = self.tokens();
        ops::add::simd::run(self.pool, self.step.read(&o.a, n), self.step.read(&o.b, n), self.out(&o.out, n));
    }

    fn moe_output(&self, o: &ops::moe_output::MoeOutput) {
        let n = self.tokens();
        let inputs = ops::moe_output::simd::Inputs {
            experts: self.step.read(&o.combine.x, n * o.combine.weights.cols),
            weights: self.step.read(&o.combine.weights, n),
            shared: self.step.read(&o.shared.shared, n),
            gate: self.step.read(&o.shared.gate, n),
            residual: self.step.read(&o.add.a, n),
        };
        ops::moe_output::simd::run(self.isa, self.pool, o, &inputs, self.out(&o.add.out, n));
    }

    fn gather_rows(&self, o: &ops::gather_rows::GatherRows) {
        let outputs = &self.step.inputs.outputs;
        let x = self.step.read(&o.x, self.tokens());
        ops::gather_rows::simd::run(o.x.cols, x, outputs, self.out(&o.out, outputs.len()));
    }

    fn sample(&self, o: &ops::sample::Sample) {
        let inputs = self.step.inputs;
        let logits: &[f32] = self.step.read(&o.logits, inputs.sampling.len());
        let tokens: &mut [u32] = self.out(&o.tokens, inputs.sampling.len());
        let parts = self.step.scratch();
        let scratch = &mut Self::scratch(&parts, 0).sample;
        for (row, (logits, token)) in logits.chunks_exact(o.logits.cols).zip(tokens).enumerate() {
            let (edits, mask) = (inputs.edits(row), inputs.mask(row, o.logits.cols));
            let parts = ops::sample::simd::Row { logits, edits, mask };
            *token = ops::sample::simd::choose(self.isa, parts, &inputs.sampling[row], scratch);
        }
    }
}
