//! The check: runs a case on a device and on the reference. Floats must agree within the case's tolerance, integers and
//! every byte that the op does not write must be equal: rows beyond the true count, gaps around every operand, other
//! layers of a KV block, the other half of the state, the inputs themselves.

mod build;
mod case;
mod compare;
pub mod random;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

pub use build::seeded;
pub(crate) use build::{CaseBuilder, DECODE_STEPS, STEPS, Step, TRUE_DECODES, TRUE_ROWS, TRUE_STEPS};
pub use case::Case;
pub(crate) use case::Image;

use crate::backend::{Backend, BufferId, DeviceError, ExecutableId};
use crate::inputs::StepInputs;
use crate::op::{Cost, OpKind};
use crate::ops;

/// How well a device did on a case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// Elements compared.
    pub elements: usize,
    /// Largest error of a float, relative to it or to the RMS of the output it belongs to.
    pub worst: f64,
    /// What the contract says of this step, and the reference has done.
    pub cost: Cost,
}

/// The cases of an op.
pub fn cases(kind: OpKind) -> Vec<Case> {
    match kind {
        OpKind::Embed => ops::embed::cases::cases(),
        OpKind::RmsNorm => ops::rms_norm::cases::cases(),
        OpKind::QuantizeRows => ops::quantize_rows::cases::cases(),
        OpKind::Linear => ops::linear::cases::cases(),
        OpKind::Rope => ops::rope::cases::cases(),
        OpKind::KvWrite => ops::kv_write::cases::cases(),
        OpKind::QkNormRopeWrite => ops::qk_norm_rope_write::cases::cases(),
        OpKind::Attention => ops::attention::cases::cases(),
        OpKind::SigmoidGate => ops::sigmoid_gate::cases::cases(),
        OpKind::SplitHeads => ops::split_heads::cases::cases(),
        OpKind::Conv1dSilu => ops::conv1d_silu::cases::cases(),
        OpKind::GdnGates => ops::gdn_gates::cases::cases(),
        OpKind::L2Norm => ops::l2_norm::cases::cases(),
        OpKind::GatedDelta => ops::gated_delta::cases::cases(),
        OpKind::GatedRmsNorm => ops::gated_rms_norm::cases::cases(),
        OpKind::GatedDeltaNorm => ops::gated_delta_norm::cases::cases(),
        OpKind::RouterTopK => ops::router_top_k::cases::cases(),
        OpKind::ExpandWeights => ops::expand_weights::cases::cases(),
        OpKind::GroupRows => ops::group_rows::cases::cases(),
        OpKind::ExpertLinear => ops::expert_linear::cases::cases(),
        OpKind::SwiGlu => ops::swiglu::cases::cases(),
        OpKind::ExpertGateUp => ops::expert_gate_up::cases::cases(),
        OpKind::CombineExperts => ops::combine_experts::cases::cases(),
        OpKind::SharedExpertAdd => ops::shared_expert_add::cases::cases(),
        OpKind::Add => ops::add::cases::cases(),
        OpKind::MoeOutput => ops::moe_output::cases::cases(),
        OpKind::GatherRows => ops::gather_rows::cases::cases(),
        OpKind::NormLinears => ops::norm_linears::cases::cases(),
        OpKind::LinearAdd => ops::linear_add::cases::cases(),
        OpKind::GatedDeltaStep => ops::gated_delta_step::cases::cases(),
        OpKind::MoeGateUp => ops::moe_gate_up::cases::cases(),
        OpKind::MoeDown => ops::moe_down::cases::cases(),
        OpKind::AttentionParts => ops::attention_parts::cases::cases(),
        OpKind::AttentionMerge => ops::attention_merge::cases::cases(),
        OpKind::Sample => ops::sample::cases::cases(),
    }
}

/// A case that is built when it is wanted: one at the model's shapes may take gigabytes.
pub struct LazyCase(Box<dyn Fn() -> Case + Send + Sync>);

impl LazyCase {
    pub(crate) fn new(build: impl Fn() -> Case + Send + Sync + 'static) -> Self {
        Self(Box::new(build))
    }

    /// Builds it, with other contents for each seed.
    pub fn build(&self, seed: u64) -> Case {
        seeded(seed, || (self.0)())
    }
}

/// A case of each of these steps for each of these shapes.
pub(crate) fn at_shapes<S: Copy + Send + Sync + 'static>(
    steps: &[Step],
    shapes: &[S],
    case: fn(Step, S) -> Case,
) -> Vec<LazyCase> {
    let of_step = |step: &Step| {
        let step = *step;
        shapes.iter().map(move |shape| {
            let shape = *shape;
            LazyCase::new(move || case(step, shape))
        })
    };
    steps.iter().flat_map(of_step).collect()
}

/// The cases of an op at the shapes of Qwen3.6-35B-A3B in MLX 4-bit; of what that model lacks, at a sibling's.
pub fn true_shapes(kind: OpKind) -> Vec<LazyCase> {
    match kind {
        OpKind::Embed => ops::embed::cases::true_shapes(),
        OpKind::RmsNorm => ops::rms_norm::cases::true_shapes(),
        OpKind::QuantizeRows => ops::quantize_rows::cases::true_shapes(),
        OpKind::Linear => ops::linear::cases::true_shapes(),
        OpKind::Rope => ops::rope::cases::true_shapes(),
        OpKind::KvWrite => ops::kv_write::cases::true_shapes(),
        OpKind::QkNormRopeWrite => ops::qk_norm_rope_write::cases::true_shapes(),
        OpKind::Attention => ops::attention::cases::true_shapes(),
        OpKind::SigmoidGate => ops::sigmoid_gate::cases::true_shapes(),
        OpKind::SplitHeads => ops::split_heads::cases::true_shapes(),
        OpKind::Conv1dSilu => ops::conv1d_silu::cases::true_shapes(),
        OpKind::GdnGates => ops::gdn_gates::cases::true_shapes(),
        OpKind::L2Norm => ops::l2_norm::cases::true_shapes(),
        OpKind::GatedDelta => ops::gated_delta::cases::true_shapes(),
        OpKind::GatedRmsNorm => ops::gated_rms_norm::cases::true_shapes(),
        OpKind::GatedDeltaNorm => ops::gated_delta_norm::cases::true_shapes(),
        OpKind::RouterTopK => ops::router_top_k::cases::true_shapes(),
        OpKind::GroupRows => ops::group_rows::cases::true_shapes(),
        OpKind::ExpertLinear => ops::expert_linear::cases::true_shapes(),
        OpKind::SwiGlu => ops::swiglu::cases::true_shapes(),
        OpKind::ExpertGateUp => ops::expert_gate_up::cases::true_shapes(),
        OpKind::CombineExperts => ops::combine_experts::cases::true_shapes(),
        OpKind::SharedExpertAdd => ops::shared_expert_add::cases::true_shapes(),
        OpKind::Add => ops::add::cases::true_shapes(),
        OpKind::MoeOutput => ops::moe_output::cases::true_shapes(),
        OpKind::GatherRows => ops::gather_rows::cases::true_shapes(),
        OpKind::NormLinears => ops::norm_linears::cases::true_shapes(),
        OpKind::LinearAdd => ops::linear_add::cases::true_shapes(),
        OpKind::GatedDeltaStep => ops::gated_delta_step::cases::true_shapes(),
        OpKind::MoeGateUp => ops::moe_gate_up::cases::true_shapes(),
        OpKind::MoeDown => ops::moe_down::cases::true_shapes(),
        OpKind::AttentionParts => ops::attention_parts::cases::true_shapes(),
        OpKind::AttentionMerge => ops::attention_merge::cases::true_shapes(),
        OpKind::ExpandWeights => ops::expand_weights::cases::true_shapes(),
        OpKind::Sample => ops::sample::cases::true_shapes(),
    }
}

/// Why a device does not run a case; `None` if it does.
///
/// # Errors
/// The device failed otherwise.
pub fn unsupported(case: &Case, backend: &mut dyn Backend) -> Result<Option<String>, DeviceError> {
    match backend.compile(Arc::new(case.plan.clone())) {
        Ok(executable) => {
            backend.discard(executable);
            Ok(None)
        }
        Err(DeviceError::Unsupported { reason, .. }) => Ok(Some(reason)),
        Err(e) => Err(e),
    }
}

/// Runs a case on a device that has no weights, buffers or plans yet.
///
/// # Errors
/// One sentence: the device failed, a value is wrong, a byte changed that the op does not write, or the contract's
/// cost is not what the reference touched.
pub fn check_case(case: &Case, backend: &mut dyn Backend) -> Result<Report, String> {
    let expected = case.expected();
    let touch = &expected.touch;
    if !touch.agrees() {
        return Err(format!(
            "{}: the contract declares {} bytes read and {} written, the reference touched {} and {}",
            case.name, touch.declared.read, touch.declared.written, touch.read, touch.written
        ));
    }
    let got = run_on(case, backend).map_err(|e| format!("{}: {e}", case.name))?;
    compare::compare(case, &expected, &got).map_err(|e| format!("{}: {e}", case.name))
}

/// How long a device takes for a case.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// Which case.
    pub case: String,
    /// Seconds of the fastest run: the device's own, if it can tell.
    pub seconds: f64,
    /// Bytes that the contract declares.
    pub bytes: usize,
}

/// Runs a case several times on a device that has no weights, buffers or plans yet, and compares nothing.
///
/// # Errors
/// The device failed.
pub fn time_case(case: &Case, backend: &mut dyn Backend, rounds: usize) -> Result<Timing, DeviceError> {
    let placed = place(case, backend)?;
    let mut seconds = f64::INFINITY;
    for _ in 0..rounds {
        let start = Instant::now();
        let ticket = backend.submit(placed.executable, &placed.inputs)?;
        backend.wait(ticket)?;
        let whole = start.elapsed().as_secs_f64();
        seconds = seconds.min(backend.seconds(ticket).unwrap_or(whole));
    }
    let declared = case.expected().touch.declared;
    Ok(Timing { case: case.name.clone(), seconds, bytes: declared.read + declared.written })
}

/// A case in a device's memory.
struct Placed {
    executable: ExecutableId,
    inputs: StepInputs,
    states: Vec<BufferId>,
    kv: Option<BufferId>,
}

fn place(case: &Case, backend: &mut dyn Backend) -> Result<Placed, DeviceError> {
    backend.open_weights(case.weight_file(), 0)?;
    backend.upload_constants(&case.constants)?;
    let executable = backend.compile(Arc::new(case.plan.clone()))?;
    let mut states: Vec<BufferId> = Vec::new();
    for state in &case.before.states {
        let id = backend.allocate("state of a case", state.len())?;
        backend.write(id, 0, state);
        states.push(id);
    }
    let mut kv = None;
    if case.block_bytes > 0 {
        let id = backend.allocate("KV blocks of a case", case.before.kv.len())?;
        backend.write(id, 0, &case.before.kv);
        backend.bind_kv(id, case.block_bytes);
        kv = Some(id);
    }
    for (space, bytes) in case.before.poked() {
        backend.poke(space, 0, bytes);
    }
    Ok(Placed { executable, inputs: with_states(&case.inputs, &states), states, kv })
}

/// Sets a device's memory, runs the step, reads all memory back.
fn run_on(case: &Case, backend: &mut dyn Backend) -> Result<Image, DeviceError> {
    let Placed { executable, inputs, states, kv } = place(case, backend)?;
    let ticket = backend.submit(executable, &inputs)?;
    backend.wait(ticket)?;
    let mut image = case.before.clone();
    for (space, bytes) in image.poked_mut() {
        backend.peek(space, 0, bytes);
    }
    for (id, state) in states.iter().zip(&mut image.states) {
        backend.read(*id, 0, state);
    }
    if let Some(id) = kv {
        backend.read(id, 0, &mut image.kv);
    }
    if !case.inputs.tokens_on_device {
        // A device may keep the ids that came with the inputs in the slot that the step reads.
        let (slot, bytes) = (case.inputs.token_slot, size_of_val(case.inputs.tokens.as_slice()));
        let bytes = bytes.min(image.slots[slot].len());
        image.slots[slot][..bytes].copy_from_slice(&case.before.slots[slot][..bytes]);
    }
    Ok(image)
}

/// The inputs with the device's names of the states.
fn with_states(inputs: &StepInputs, states: &[BufferId]) -> StepInputs {
    let mut inputs = inputs.clone();
    for (sequence, id) in inputs.sequences.iter_mut().zip(states) {
        sequence.state = *id;
    }
    inputs
}
