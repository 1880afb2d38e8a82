//! Whole recorded steps on the reference: one attention layer, one GDN layer and one MoE block with random weights.
//! Every dispatch touches the bytes that its contract declares; fused and unfused, whole and chunked steps agree.

#[cfg(all(feature = "software-metal", not(target_vendor = "apple")))]
mod counting;

use lily_kernels::backend::BufferId;
use lily_kernels::check::random::Random;
use lily_kernels::devices::DeviceKind;
use lily_kernels::inputs::{KV_BLOCK, SamplingInputs, SequenceInputs, StepInputs};
use lily_kernels::mapped::MappedFile;
use lily_kernels::op::{Counts, Op, OpKind};
use lily_kernels::ops::kv_write::KvLayer;
use lily_kernels::plan::{FUSIONS, Logits, Phase, Plan, PlanKey, Precision, Program, Recorder, Weight};
use lily_kernels::policy::{self, Abilities};
use lily_kernels::reference::math::encode;
use lily_kernels::reference::weights::pack;
use lily_kernels::reference::{DispatchTouch, Memory, run_plan};
use lily_kernels::switches::Switches;
use lily_kernels::tensor::{DType, FileSlice, Format, Matrix, Space, Stored, Tensor};

const VOCAB: usize = 50;
const HIDDEN: usize = 128;
const EPS: f32 = 1e-6;
const EXPERTS: usize = 8;
const TOP_K: usize = 2;
/// Query heads, key/value heads, head dim, rotary dim.
const ATTENTION: (usize, usize, usize, usize) = (4, 2, 64, 16);
/// Key heads, value heads, their dims.
const GDN: (usize, usize, usize, usize) = (1, 2, 64, 32);

/// Weights of the toy model.
struct Model {
    random: Random,
    file: Vec<u8>,
    constants: Vec<f32>,
}

impl Model {
    fn slice(&mut self, bytes: &[u8]) -> FileSlice {
        let offset = self.file.len() as u64;
        self.file.extend(bytes);
        FileSlice { file: 0, offset, bytes: bytes.len() as u64 }
    }

    fn matrix(&mut self, experts: usize, rows: usize, cols: usize) -> Matrix {
        let count = experts * rows * cols;
        let codes: Vec<u32> = (0..count).map(|_| self.random.below(16) as u32).collect();
        let scales: Vec<f64> =
            (0..count / 64).map(|_| f64::from(0.25 + self.random.signed() / 8.0) / (cols as f64).sqrt()).collect();
        let biases: Vec<f64> = scales.iter().map(|s| -7.5 * s).collect();
        let weight = self.slice(&pack(4, &codes));
        let affine = [scales, biases].map(|values| self.slice(&encode(DType::Bf16, &values)));
        let format = Format::Affine { bits: 4, group: 64, scale: DType::Bf16 };
        Matrix::stacked(experts, rows, cols, format, Stored { weight, affine: Some(affine.into()) })
    }

    fn constant(&mut self, rows: usize, cols: usize) -> Tensor {
        let offset = 4 * self.constants.len();
        let values = self.random.normals(rows * cols, 0.5);
        self.constants.extend(values);
        Tensor { space: Space::Constants, offset, rows, cols, dtype: DType::F32 }
    }
}

fn kv_layer(precision: Precision) -> KvLayer {
    let dtype = if precision == Precision::Exact { DType::F32 } else { DType::Bf16 };
    KvLayer { offset: 0, heads: ATTENTION.1, head_dim: ATTENTION.2, dtype }
}

fn attention(r: &mut Recorder, m: &mut Model, x: Tensor) -> Tensor {
    let (q_heads, kv_heads, dim, rotary) = ATTENTION;
    let layer = kv_layer(r.key().precision);
    let qg = r.linear(x, Weight::Bulk(&m.matrix(1, 2 * q_heads * dim, HIDDEN)));
    let k = r.linear(x, Weight::Bulk(&m.matrix(1, kv_heads * dim, HIDDEN)));
    let v = r.linear(x, Weight::Bulk(&m.matrix(1, kv_heads * dim, HIDDEN)));
    let inv_freq = m.constant(1, rotary / 2);
    let q = r.head_norm(qg, m.constant(1, dim), q_heads, 2 * dim, EPS);
    let k = r.head_norm(k, m.constant(1, dim), kv_heads, dim, EPS);
    let q = r.rope(q, inv_freq, dim);
    let k = r.rope(k, inv_freq, dim);
    r.kv_write(k, v, layer);
    let o = r.attention(q, layer);
    let o = r.sigmoid_gate(o, qg, q_heads);
    r.linear(o, Weight::Bulk(&m.matrix(1, HIDDEN, q_heads * dim)))
}

fn gdn(r: &mut Recorder, m: &mut Model, x: Tensor) -> Tensor {
    let (hk, hv, dk, dv) = GDN;
    let channels = 2 * hk * dk + hv * dv;
    let state = |offset, rows, cols| Tensor { space: Space::StateIn, offset, rows, cols, dtype: DType::F32 };
    let qkv = r.linear(x, Weight::Bulk(&m.matrix(1, channels, HIDDEN)));
    let z = r.linear(x, Weight::Bulk(&m.matrix(1, hv * dv, HIDDEN)));
    let b = r.linear(x, Weight::Sensitive(&m.matrix(1, hv, HIDDEN)));
    let a = r.linear(x, Weight::Sensitive(&m.matrix(1, hv, HIDDEN)));
    let c = r.conv1d_silu(qkv, m.constant(4, channels), state(0, 3, channels));
    let gates = r.gdn_gates(a, b, m.constant(1, hv), m.constant(1, hv));
    let qk = r.l2_norm(c, hk, dk);
    let y = r.gated_delta(qk, c, gates, state(12 * channels, hv * dv, dk));
    let y = r.gated_rms_norm(y, z, m.constant(1, dv), EPS);
    r.linear(y, Weight::Bulk(&m.matrix(1, HIDDEN, hv * dv)))
}

/// Returns the residual stream after the block.
fn moe(r: &mut Recorder, m: &mut Model, residual: Tensor, x: Tensor) -> Tensor {
    let width = 64;
    let logits = r.linear(x, Weight::Sensitive(&m.matrix(1, EXPERTS, HIDDEN)));
    let shared_gate = r.linear(x, Weight::Sensitive(&m.matrix(1, 1, HIDDEN)));
    let (experts, weights) = r.router_top_k(logits, TOP_K);
    let groups = r.group_rows(experts, EXPERTS);
    let gate = r.expert_linear(x, Weight::Bulk(&m.matrix(EXPERTS, width, HIDDEN)), groups);
    let up = r.expert_linear(x, Weight::Bulk(&m.matrix(EXPERTS, width, HIDDEN)), groups);
    let act = r.swiglu(gate, up);
    let gate = r.linear(x, Weight::Bulk(&m.matrix(1, width, HIDDEN)));
    let up = r.linear(x, Weight::Bulk(&m.matrix(1, width, HIDDEN)));
    let shared = r.swiglu(gate, up);
    let down = r.expert_linear(act, Weight::Bulk(&m.matrix(EXPERTS, HIDDEN, width)), groups);
    let shared = r.linear(shared, Weight::Bulk(&m.matrix(1, HIDDEN, width)));
    let sum = r.combine_experts(down, weights);
    let sum = r.shared_expert_add(sum, shared, shared_gate);
    r.add(residual, sum)
}

/// Forward plan of up to `bucket` tokens, and the weights that it names.
fn forward(phase: Phase, bucket: usize, precision: Precision, switches: Switches) -> (Plan, Model) {
    let key = key(Program::Forward, phase, bucket, precision, switches);
    let mut m = Model { random: Random::new(1), file: vec![0; 3], constants: Vec::new() };
    let mut r = Recorder::new(key);
    let mut h = r.embed(&m.matrix(1, VOCAB, HIDDEN));
    let x = r.rms_norm(h, m.constant(1, HIDDEN), EPS);
    let mixed = attention(&mut r, &mut m, x);
    h = r.add(h, mixed);
    let x = r.rms_norm(h, m.constant(1, HIDDEN), EPS);
    let mixed = gdn(&mut r, &mut m, x);
    h = r.add(h, mixed);
    let x = r.rms_norm(h, m.constant(1, HIDDEN), EPS);
    h = moe(&mut r, &mut m, h, x);
    let last = r.gather_outputs(h);
    let x = r.rms_norm(last, m.constant(1, HIDDEN), EPS);
    r.logits(x, Weight::Bulk(&m.matrix(1, VOCAB, HIDDEN)));
    let hits = |name| match name {
        "fuse-residual" => 2,
        "fuse-norm-in" => 4,
        _ => 1,
    };
    (r.finish(&FUSIONS.iter().map(|f| (f.name, hits(f.name))).collect::<Vec<_>>()), m)
}

fn key(program: Program, phase: Phase, bucket: usize, precision: Precision, switches: Switches) -> PlanKey {
    let sequence_bucket = phase.sequences(bucket);
    // The CPU has no `Half`.
    let device = if precision == Precision::Half { DeviceKind::Metal } else { DeviceKind::Cpu };
    let (token_bucket, logits) = (bucket, Logits::Last);
    PlanKey { program, phase, token_bucket, sequence_bucket, logits, precision, device, switches }
}

/// What each optimisation of a prefill saves, as its plan and its grids tell.
#[test]
fn the_switches_of_a_prefill_on_metal_show_in_its_plan() {
    let plan = |switches| forward(Phase::Prefill, 64, Precision::Half, switches).0;
    let without = |name: &str| plan(Switches::default().without(name).unwrap());
    let of_kind = |plan: &Plan, kind| -> Vec<Op> {
        plan.dispatches.iter().map(|d| d.op.clone()).filter(|op| op.kind() == kind).collect()
    };
    let all = plan(Switches::default());
    assert_eq!(all.command_buffers(), 1);
    assert_eq!(without("gpu-routing").command_buffers(), 1 + of_kind(&all, OpKind::GroupRows).len());

    assert!(all.stages < all.dispatches.len());
    assert_eq!(without("concurrent").stages, all.dispatches.len());

    let expanded = |plan: &Plan| -> usize {
        let ops = of_kind(plan, OpKind::ExpandWeights);
        ops.iter().map(|op| op.contract().cost(&Counts::default()).written).sum()
    };
    assert_eq!(expanded(&all), 0);
    assert!(expanded(&without("fused-dequant")) > 0);

    let counts = Counts { tokens: 64, sequences: 1, ..Counts::default() };
    let scan = |plan: &Plan| {
        let op = &of_kind(plan, OpKind::GatedDelta)[0];
        policy::grid(op, &counts, plan.key.switches, Abilities::default()).kernel
    };
    assert_eq!((scan(&all), scan(&without("gdn-registers"))), ("gated_delta", "gated_delta_blocks"));
}

fn unfused() -> Switches {
    FUSIONS.iter().fold(Switches::default(), |s, f| s.without(f.name).expect("a fusion is a switch"))
}

/// Memory with the model, two sequences' states (`BufferId` 0 and 1) and a pool of three KV blocks.
fn memory(model: Model, precision: Precision) -> Memory {
    let (hk, hv, dk, dv) = GDN;
    let mut mem = Memory::new();
    let file: &'static [u8] = model.file.leak();
    mem.add_weights(MappedFile::from_static("toy", file));
    mem.set_constants(&model.constants);
    let half = 12 * (2 * hk * dk + hv * dv) + 4 * hv * dv * dk;
    for _ in 0..2 {
        mem.allocate(2 * half);
    }
    let block = kv_layer(precision).bytes();
    let pool = mem.allocate(3 * block);
    mem.bind_kv(pool, block);
    mem
}

/// A chunk of sequence 0, at position `start`, `half` being the state that it reads.
fn chunk(tokens: &[u32], start: usize, half: usize) -> StepInputs {
    let sequence = SequenceInputs {
        num_rows: tokens.len(),
        start,
        state: BufferId(0),
        state_half: half,
        block_table: vec![2; (start + tokens.len()).div_ceil(KV_BLOCK)],
        ..Default::default()
    };
    let outputs = vec![tokens.len() as u32 - 1];
    StepInputs { tokens: tokens.to_vec(), sequences: vec![sequence], outputs, ..Default::default() }
}

fn logits(mem: &Memory, rows: usize) -> Vec<f32> {
    mem.look_rows(&Tensor { space: Space::Logits, offset: 0, rows, cols: VOCAB, dtype: DType::F32 }, rows)
}

fn assert_agree(touches: &[DispatchTouch]) {
    for (i, touch) in touches.iter().enumerate() {
        assert!(touch.agrees(), "dispatch {i}: {touch:?}");
    }
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    let rms = (a.iter().map(|v| v * v).sum::<f32>() / a.len() as f32).sqrt();
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / rms
}

/// Two tokens of sequence 0, then a decode step of both sequences in a bucket of three, then sampling.
fn prefill_and_decode(precision: Precision, switches: Switches) -> (Memory, Vec<f32>) {
    let (prefill, model) = forward(Phase::Prefill, 4, precision, switches);
    let (decode, _) = forward(Phase::Decode, 3, precision, switches);
    let mut mem = memory(model, precision);
    assert_agree(&run_plan(&prefill, &mut mem, &chunk(&[7, 7], 0, 0)));
    let one = |row, start, state, block| SequenceInputs {
        first_row: row,
        num_rows: 1,
        start,
        state: BufferId(state),
        state_half: start / 2 % 2,
        block_table: vec![block],
    };
    let sampling = SamplingInputs {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
        counter: 0,
        vocab_limit: VOCAB as u32,
        mask: None,
    };
    let mut inputs = StepInputs {
        tokens: vec![3, 49],
        token_slot: 1,
        sequences: vec![one(0, 2, 0, 2), one(1, 0, 1, 0)],
        outputs: vec![0, 1],
        sampling: vec![sampling; 2],
        ..Default::default()
    };
    assert_agree(&run_plan(&decode, &mut mem, &inputs));
    let first = logits(&mem, 2);

    let mut r = Recorder::new(key(Program::Sample, Phase::Decode, 3, precision, switches));
    r.sample(VOCAB);
    assert_agree(&run_plan(&r.finish(&[]), &mut mem, &inputs));
    let id = |row: &[f32]| {
        (0..VOCAB as u32).max_by(|a, b| row[*a as usize].total_cmp(&row[*b as usize])).expect("no row is empty")
    };
    let chosen: Vec<u32> = first.chunks(VOCAB).map(id).collect();
    let slot: Vec<u8> = chosen.iter().flat_map(|id| id.to_le_bytes()).collect();
    assert_eq!(mem.slot(0)[..8], slot, "sampling writes the slot that the step did not read");

    // The next step takes its tokens from there.
    (inputs.tokens_on_device, inputs.token_slot, inputs.tokens) = (true, 0, Vec::new());
    for s in &mut inputs.sequences {
        (s.start, s.state_half) = (s.start + 1, 1 - s.state_half);
    }
    assert_agree(&run_plan(&decode, &mut mem, &inputs));
    let second = logits(&mem, 2);
    (mem, [first, second].concat())
}

#[test]
fn contracts_declare_what_steps_touch_and_fusion_changes_no_byte() {
    for precision in [Precision::Exact, Precision::Fast] {
        let (fused, fused_logits) = prefill_and_decode(precision, Switches::default());
        let (plain, plain_logits) = prefill_and_decode(precision, unfused());
        assert_eq!(fused_logits, plain_logits);
        assert!(fused_logits.iter().all(|v| v.is_finite()));
        for buffer in [0, 1, 2] {
            assert!(fused.buffer(BufferId(buffer)) == plain.buffer(BufferId(buffer)), "buffer {buffer}");
        }
    }
}

#[test]
fn int8_activations_stay_close_to_f32() {
    let (_, exact) = prefill_and_decode(Precision::Exact, Switches::default());
    let (_, fast) = prefill_and_decode(Precision::Fast, Switches::default());
    // The first step only: from the second on the two may have chosen different tokens.
    let d = distance(&exact[..2 * VOCAB], &fast[..2 * VOCAB]);
    assert!(d > 0.0 && d < 0.2, "{d}");
}

#[test]
fn chunks_give_what_the_whole_prompt_gives() {
    let tokens: Vec<u32> = (0..300).map(|i| i * 7 % VOCAB as u32).collect();
    let run = |cuts: &[usize]| {
        let (plan, model) = forward(Phase::Prefill, 300, Precision::Exact, Switches::default());
        let mut mem = memory(model, Precision::Exact);
        let mut start = 0;
        for (i, end) in cuts.iter().chain([&300]).enumerate() {
            let mut inputs = chunk(&tokens[start..*end], start, i % 2);
            inputs.sequences[0].block_table = vec![2, 0];
            assert_agree(&run_plan(&plan, &mut mem, &inputs));
            start = *end;
        }
        logits(&mem, 1)
    };
    let whole = run(&[]);
    for cuts in [&[1][..], &[255, 256, 257], &[256], &[299]] {
        let d = distance(&whole, &run(cuts));
        assert!(d < 1e-4, "cuts at {cuts:?}: {d}");
    }
}

/// The same steps on the Metal device, every access of every kernel looked at, and what touches the same bytes without a
/// barrier between.
#[cfg(all(feature = "software-metal", not(target_vendor = "apple")))]
#[allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code")]
mod metal {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use lily_kernels::backend::{Backend, DeviceError, Observer};
    use lily_kernels::metal::MetalBackend;
    use lily_kernels::op::Op;
    use software_metal::Machine;

    use super::*;

    /// A device with the model, a state and the pool of KV blocks.
    fn device(model: Model) -> MetalBackend {
        software_metal::set_mode(software_metal::Mode::Checked { seed: 3 });
        let (hk, hv, dk, dv) = GDN;
        let mut device = MetalBackend::new().unwrap();
        let file: &'static [u8] = model.file.leak();
        device.open_weights(MappedFile::from_static("toy", file), 0).unwrap();
        device.upload_constants(&model.constants).unwrap();
        let half = 12 * (2 * hk * dk + hv * dv) + 4 * hv * dv * dk;
        assert_eq!(device.allocate("state", 2 * half).unwrap(), BufferId(0));
        let block = kv_layer(Precision::Half).bytes();
        let pool = device.allocate("pool", 3 * block).unwrap();
        device.bind_kv(pool, block);
        device
    }

    /// Logits of a chunk of five tokens and, behind it, of one more.
    fn steps(change: impl Fn(&mut Plan), switches: Switches) -> Result<Vec<f32>, DeviceError> {
        let (mut prefill, model) = forward(Phase::Prefill, 8, Precision::Half, switches);
        change(&mut prefill);
        let (decode, _) = forward(Phase::Decode, 1, Precision::Half, switches);
        let mut device = device(model);
        let mut all = Vec::new();
        for (plan, inputs) in [(prefill, chunk(&[7, 7, 3, 41, 0], 0, 0)), (decode, chunk(&[9], 5, 1))] {
            let executable = device.compile(Arc::new(plan)).unwrap();
            let before = software_metal::host_counts();
            let ticket = device.submit(executable, &inputs)?;
            let submitted = software_metal::host_counts();
            device.wait(ticket)?;
            // Routing goes on where it began: nothing of a step comes back to the host before its end.
            assert_eq!(submitted.command_buffers, before.command_buffers + 1);
            assert_eq!((submitted.waits, software_metal::host_counts().waits), (before.waits, before.waits + 1));
            let mut logits = vec![0.0; VOCAB];
            device.logits(1, VOCAB, &mut logits);
            all.extend(logits);
        }
        Ok(all)
    }

    fn reference(switches: Switches) -> Vec<f32> {
        let (prefill, model) = forward(Phase::Prefill, 8, Precision::Half, switches);
        let (decode, _) = forward(Phase::Decode, 1, Precision::Half, switches);
        let mut mem = memory(model, Precision::Half);
        let mut all = Vec::new();
        for (plan, inputs) in [(prefill, chunk(&[7, 7, 3, 41, 0], 0, 0)), (decode, chunk(&[9], 5, 1))] {
            assert_agree(&run_plan(&plan, &mut mem, &inputs));
            all.extend(logits(&mem, 1));
        }
        all
    }

    #[test]
    fn steps_give_the_references_logits_and_their_stages_are_barriers_enough() {
        for switches in [Switches::default(), unfused()] {
            let got = steps(|_| (), switches).unwrap();
            let d = distance(&reference(switches), &got);
            // Keys and values are rounded to bf16, and may fall to either side.
            assert!(d < 2e-2, "{d}");
        }
    }

    /// A prefill of 20 tokens on a machine: names of the kernels that ran, and how far the logits are from the reference.
    fn prefill_on(machine: software_metal::Machine) -> (BTreeSet<&'static str>, f32) {
        let tokens = Vec::from_iter((0..20).map(|i| i * 7 % VOCAB as u32));
        let (plan, model) = forward(Phase::Prefill, 32, Precision::Half, Switches::default());
        software_metal::set_machine(machine);
        let mut device = device(model);
        let executable = device.compile(Arc::new(plan)).unwrap();
        let ticket = device.submit(executable, &chunk(&tokens, 0, 0)).unwrap();
        device.wait(ticket).unwrap();
        let mut got = vec![0.0; VOCAB];
        device.logits(1, VOCAB, &mut got);
        let (plan, model) = forward(Phase::Prefill, 32, Precision::Half, Switches::default());
        let mut mem = memory(model, Precision::Half);
        assert_agree(&run_plan(&plan, &mut mem, &chunk(&tokens, 0, 0)));
        (device.kernels(), distance(&logits(&mem, 1), &got))
    }

    /// Kernels of many rows that ran; tensors for bulk weights alone, matrices where there are no units, else rows.
    #[test]
    fn a_prefill_takes_the_bodies_that_the_machine_can_run_and_equals_the_reference() {
        let (all, units) = (Machine::default, Machine::with_units);
        let tiles =
            ["attention_tile64", "expert_gate_up_tile16", "expert_linear_tile16", "linear_tile16", "linear_tile32"];
        for (machine, tensors, matrices) in [
            (all(), false, true),
            (units(), true, true),
            (Machine { unknown: vec!["metal_tensor"], ..units() }, false, true),
            (Machine { system: (26, 0), ..units() }, false, true),
            (Machine { unknown: vec!["simdgroup_float8x8"], ..all() }, false, false),
        ] {
            let (kernels, d) = prefill_on(machine.clone());
            println!("{d:.1e}: {kernels:?}");
            assert_eq!(kernels.contains("linear_tensor"), tensors, "{machine:?}");
            // Router and gates never round.
            assert_eq!(kernels.contains("linear_tile32"), matrices, "{machine:?}");
            let tiled = kernels.iter().filter(|kernel| tiles.contains(kernel)).count();
            assert!(if matrices { tiled >= 3 } else { tiled == 0 }, "{machine:?}: {kernels:?}");
            let rows = ["expert_linear_rows", "expert_gate_up_rows", "attention_rows"];
            assert!(rows.iter().all(|kernel| kernels.contains(kernel) != matrices), "{machine:?}: {kernels:?}");
            // Keys and values are rounded to bf16, and with tensor operations both sides of all bulk products (of int8
            // activations, 0.2 are allowed above).
            assert!(d < if tensors { 0.1 } else { 2e-2 }, "{machine:?}: {d}");
        }
    }

    #[test]
    fn a_step_that_failed_is_told_once_and_does_not_hold_up_the_next_and_a_third_waits_for_the_first() {
        let (plan, model) = forward(Phase::Prefill, 8, Precision::Half, Switches::default());
        let mut bad = plan.clone();
        bad.dispatches.iter_mut().for_each(|d| d.stage = 0);
        let mut device = device(model);
        let [bad, good] = [bad, plan].map(|plan| device.compile(Arc::new(plan)).unwrap());
        // Ids that the host brings would have to wait for the step before.
        let inputs = StepInputs { tokens_on_device: true, ..chunk(&[7, 7, 3, 41, 0], 0, 0) };
        let first = device.submit(bad, &inputs).unwrap();
        let second = device.submit(good, &inputs).unwrap();
        let error = device.wait(first).unwrap_err().to_string();
        assert!(error.contains("no barrier between"), "{error}");
        device.wait(second).unwrap();
        assert!(device.seconds(second).is_some_and(|seconds| seconds > 0.0));

        let waits = || software_metal::host_counts().waits;
        let before = waits();
        let tickets: Vec<_> = (0..4).map(|_| (device.submit(good, &inputs).unwrap(), waits() - before)).collect();
        assert_eq!(tickets.iter().map(|(_, waits)| *waits).collect::<Vec<_>>(), [0, 0, 1, 2]);
        device.wait(tickets[3].0).unwrap();
        assert_eq!(waits() - before, 4);

        // Told at the next submit, if nobody waits.
        device.submit(bad, &inputs).unwrap();
        device.submit(good, &inputs).unwrap();
        assert!(device.submit(good, &inputs).is_err());
        let last = device.submit(good, &inputs).unwrap();
        device.wait(last).unwrap();
    }

    #[test]
    fn a_stage_that_takes_in_the_next_one_is_reported() {
        let (plan, _) = forward(Phase::Prefill, 8, Precision::Half, Switches::default());
        for stage in 1..plan.stages {
            let merge = |plan: &mut Plan| {
                for dispatch in plan.dispatches.iter_mut().filter(|d| d.stage >= stage) {
                    dispatch.stage -= 1;
                }
            };
            let error = steps(merge, Switches::default()).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains("no barrier between"), "stages {} and {stage}: {error}", stage - 1);
        }
        println!("PROOF stages of a step merged with the next: {0}, {0} reported", plan.stages - 1);
    }

    /// Distinct bytes of each dispatch of a step, read and written.
    #[derive(Default)]
    struct Touched(Vec<(usize, usize)>);

    impl Observer for Touched {
        fn after(&mut self, _: usize, op: &Op, _: &dyn Fn(&Tensor, usize) -> Vec<f32>) {
            let launches = software_metal::take_counts();
            self.0.push(counting::distinct_bytes(&launches, op).unwrap());
        }
    }

    /// A chunk of five tokens, then a decode step: the bytes of the plan, dispatch by dispatch and in sum.
    #[test]
    fn a_steps_bytes_are_those_of_its_plan() {
        for switches in [Switches::default(), unfused()] {
            let (prefill, model) = forward(Phase::Prefill, 8, Precision::Half, switches);
            let (decode, same_model) = forward(Phase::Decode, 1, Precision::Half, switches);
            let mut device = device(same_model);
            let mut mem = memory(model, Precision::Half);
            for (plan, inputs) in [(prefill, chunk(&[7, 7, 3, 41, 0], 0, 0)), (decode, chunk(&[9], 5, 1))] {
                let touches = run_plan(&plan, &mut mem, &inputs);
                let executable = device.compile(Arc::new(plan)).unwrap();
                let mut touched = Touched::default();
                software_metal::count(true);
                device.observe(executable, &inputs, &mut touched).unwrap();
                software_metal::count(false);
                assert_eq!(touched.0.len(), touches.len());
                let mut sums = [0; 4];
                for (touch, (read, written)) in touches.iter().zip(touched.0) {
                    let declared = &touch.declared;
                    assert_eq!((read, written), (declared.read, declared.written), "{} {:?}", touch.scope, touch.op);
                    let all = [declared.read, read, declared.written, written];
                    sums.iter_mut().zip(all).for_each(|(sum, bytes)| *sum += bytes);
                }
                println!("{} tokens: {} bytes read, {} written", inputs.tokens.len(), sums[1], sums[3]);
                assert_eq!((sums[0], sums[2]), (sums[1], sums[3]));
            }
        }
    }
}
