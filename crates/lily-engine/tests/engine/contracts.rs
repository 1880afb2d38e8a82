//! The demo model's own plans on the reference executor: every dispatch touches exactly the bytes that its contract
//! declares, fused or not, and the references give the outside golden. And the plans of the 35B model as snapshots.

use std::sync::Arc;

use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{ModelSource, Precision, Switches};
use lily_engine::model::memory::MemoryLayout;
use lily_engine::model::qwen3_5::Qwen3_5;
use lily_engine::model::weights::Weights;
use lily_engine::report::{self, PlanQuery};
use lily_kernels::devices::DeviceKind;
use lily_kernels::inputs::{SamplingInputs, SequenceInputs, StepInputs};
use lily_kernels::plan::{Logits, Phase, Plan, PlanKey, Program};
use lily_kernels::reference::{Memory, run_plan};
use lily_kernels::switches::SWITCHES;
use lily_kernels::tensor::{DType, Space, Tensor};

use crate::harness::{self, Golden, relative_rms};
use crate::support::{DEMO, root};

/// A model, and reference memory that holds it with one sequence's state and one KV block.
struct Reference {
    model: Qwen3_5,
    memory: Memory,
    sequence: SequenceInputs,
}

impl Reference {
    fn new(precision: Precision) -> Self {
        Self::of(&ModelSource::Embedded(DEMO), precision)
    }

    fn of(source: &ModelSource, precision: Precision) -> Self {
        let mut checkpoint = Checkpoint::open(source).unwrap();
        let config = checkpoint.config().clone();
        let weights = Weights::load(&config, &mut checkpoint).unwrap();
        let layout = MemoryLayout::new(&config, precision);
        let mut memory = Memory::new();
        checkpoint.weight_files().iter().for_each(|f| memory.add_weights(Arc::clone(f)));
        memory.set_constants(&weights.constants);
        let state = memory.allocate(2 * layout.state_bytes);
        let pool = memory.allocate(layout.block_bytes);
        memory.bind_kv(pool, layout.block_bytes);
        let sequence = SequenceInputs { state, block_table: vec![0], ..SequenceInputs::default() };
        Self { model: Qwen3_5 { config, weights, memory: layout }, memory, sequence }
    }

    fn plan(&self, phase: Phase, tokens: usize, precision: Precision, switches: Switches) -> Plan {
        let key = PlanKey {
            program: Program::Forward,
            phase,
            token_bucket: tokens,
            sequence_bucket: 1,
            logits: Logits::All,
            precision,
            device: DeviceKind::Cpu,
            switches,
        };
        self.model.record(key)
    }

    /// Runs a step; every dispatch must touch what it declares. Returns the logits.
    fn step(&mut self, plan: &Plan, tokens: &[u32]) -> Vec<f32> {
        self.sequence.num_rows = tokens.len();
        let inputs = StepInputs {
            tokens: tokens.to_vec(),
            sequences: vec![self.sequence.clone()],
            outputs: (0..tokens.len() as u32).collect(),
            ..StepInputs::default()
        };
        self.memory.prepare(plan);
        for touch in run_plan(plan, &mut self.memory, &inputs) {
            assert!(touch.agrees(), "{touch:?}");
        }
        self.sequence.start += tokens.len();
        self.sequence.state_half = 1 - self.sequence.state_half;
        let logits = Tensor {
            space: Space::Logits,
            offset: 0,
            rows: plan.key.output_bucket(),
            cols: self.model.config.vocab_size,
            dtype: DType::F32,
        };
        self.memory.look_rows(&logits, tokens.len())
    }
}

fn all_off() -> Switches {
    SWITCHES.iter().fold(Switches::default(), |on, s| on.without(s.name).unwrap())
}

#[test]
fn every_dispatch_touches_the_bytes_it_declares_and_the_references_give_the_golden() {
    let golden = Golden::open(&root().join("golden/demo/golden_mlx_f32.safetensors"));
    compare(&ModelSource::Embedded(DEMO), &golden, 2e-2);
}

#[test]
fn every_architecture_touches_the_bytes_it_declares_and_the_references_give_the_golden() {
    for folder in harness::architectures() {
        println!("{}", folder.display());
        let golden = Golden::open(&folder.join("golden.safetensors"));
        compare(&ModelSource::Folder(folder), &golden, 0.3);
    }
}

/// Eight tokens at once and a ninth, in both precisions, fused and not.
fn compare(source: &ModelSource, golden: &Golden, fast_limit: f64) {
    let tokens = &golden.ids("tokens")[..9];
    let want = golden.floats("logits");
    for precision in [Precision::Exact, Precision::Fast] {
        for switches in [Switches::default(), all_off()] {
            let mut r = Reference::of(source, precision);
            let prefill = r.plan(Phase::Prefill, 16, precision, switches);
            let decode = r.plan(Phase::Decode, 1, precision, switches);
            let mut got = r.step(&prefill, &tokens[..8]);
            got.extend(r.step(&decode, &tokens[8..]));
            let error = relative_rms(&got, &want[..got.len()]);
            let limit = if precision == Precision::Exact { 2e-5 } else { fast_limit };
            assert!(error <= limit, "{precision:?}: {error:.2e}");
        }
    }
}

#[test]
fn sampling_touches_the_bytes_it_declares() {
    let mut r = Reference::new(Precision::Fast);
    let forward = r.plan(Phase::Prefill, 16, Precision::Fast, Switches::default());
    r.step(&forward, &[300, 301, 302]);
    let key = PlanKey {
        program: Program::Sample,
        phase: Phase::Decode,
        token_bucket: 1,
        sequence_bucket: 1,
        logits: Logits::Last,
        ..forward.key
    };
    let plan = r.model.record(key);
    let how = SamplingInputs {
        temperature: 0.7,
        top_k: 20,
        top_p: 0.9,
        min_p: 0.0,
        seed: 3,
        counter: 3,
        vocab_limit: 4096,
        mask: None,
    };
    let inputs = StepInputs { outputs: vec![0], sampling: vec![how], ..StepInputs::default() };
    r.memory.prepare(&plan);
    assert!(run_plan(&plan, &mut r.memory, &inputs).iter().all(|t| t.agrees()));
}

fn report(query: &PlanQuery) -> String {
    let config = root().join("golden/checkpoint/qwen3_6_35b_a3b_4bit.config.json");
    report::plan(&std::fs::read_to_string(config).unwrap(), query).unwrap()
}

fn query(tokens: usize, decode: bool) -> PlanQuery {
    let (device, precision) = (DeviceKind::Cpu, Precision::Fast);
    PlanQuery { tokens, decode, context: 4096, device, precision, without: Vec::new(), dispatches: false }
}

#[test]
fn plans_of_the_35b_model_are_as_recorded() {
    insta::assert_snapshot!("decode", report(&query(1, true)));
    insta::assert_snapshot!("prefill_2048", report(&query(2048, false)));
    let exact = PlanQuery { precision: Precision::Exact, ..query(1, true) };
    insta::assert_snapshot!("decode_exact", report(&exact));
    let unfused = PlanQuery { without: SWITCHES.iter().map(|s| s.name.to_owned()).collect(), ..query(1, true) };
    insta::assert_snapshot!("decode_unfused", report(&unfused));
}

/// SPEC §4: weights read per decoded token, and the state.
#[test]
fn a_decode_step_of_the_35b_model_reads_the_bytes_of_the_specification() {
    let report = report(&PlanQuery { context: 0, ..query(1, true) });
    let row = |name: &str| -> Vec<usize> {
        let line = report.lines().find(|l| l.starts_with(&format!("{name} "))).unwrap();
        line.split_whitespace().skip(1).take(4).map(|n| n.parse().unwrap()).collect()
    };
    let read = row("total")[1];
    let (weights, state) = (1_669_561_728, 125_829_120 / 2);
    assert!(read > weights + state, "{read}");
    // Beyond weights and state there are only activations.
    assert!(read < (weights + state) * 1015 / 1000, "{read}");
    assert_eq!(row("gated_delta_norm")[0], 30);
    assert_eq!(row("attention")[0], 10);
}

/// A checkpoint may quantize one of them and not the other, and which fusions fire depends on the precision too.
#[test]
fn experts_may_have_gate_and_up_in_different_formats() {
    let config = std::fs::read_to_string(root().join("golden/architectures/mlx-q4/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["quantization"]["language_model.model.layers.1.mlp.switch_mlp.up_proj"] = false.into();
    for precision in [Precision::Exact, Precision::Fast] {
        let query = PlanQuery { context: 0, precision, dispatches: true, ..query(40, false) };
        let report = report::plan(&config.to_string(), &query).unwrap();
        let fused = report.lines().filter(|line| line.contains("layers.") && line.contains("expert_gate_up")).count();
        assert_eq!(fused, if precision == Precision::Exact { 3 } else { 2 }, "{report}");
    }
}
