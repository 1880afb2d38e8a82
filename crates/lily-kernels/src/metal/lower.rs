//! Op → launches. An op is one stage after another; what the plan puts into one stage runs together.

use bytemuck::{NoUninit, bytes_of};

use super::device::{Launch, Place, SIMD, Source};
use super::step::Step;
use crate::op::Op;
use crate::ops;
use crate::ops::linear::Activations;
use crate::tensor::{DType, Format};

/// The kernel file of an op.
macro_rules! source {
    ($op:literal) => {
        Source { name: concat!($op, ".metal"), text: include_str!(concat!("../ops/", $op, "/", $op, ".metal")) }
    };
}

const RMS_NORM: Source = source!("rms_norm");
const LINEAR: Source = source!("linear");
const GROUP_ROWS: Source = source!("group_rows");

/// Threads of a threadgroup that reduces a row.
const ROW_THREADS: usize = 256;
/// Most threads of a threadgroup.
const MOST_THREADS: usize = 1024;
/// Simdgroups of a threadgroup of `linear_rows`, and outputs of each.
const LINEAR_SIMDGROUPS: usize = 2;
const LINEAR_ROWS: usize = 4;

/// What a launch needs that lives as long as the step: filled here, lent to `Launch`.
pub struct Prepared<'a> {
    source: Source,
    kernel: &'static str,
    constants: Vec<u32>,
    buffers: Vec<Place<'a>>,
    arguments: Vec<u8>,
    groups: [usize; 2],
    threads: usize,
}

impl<'a> Prepared<'a> {
    /// As the device takes it.
    pub fn launch(&'a self) -> Launch<'a> {
        Launch {
            source: self.source,
            kernel: self.kernel,
            constants: &self.constants,
            buffers: &self.buffers,
            arguments: &self.arguments,
            groups: self.groups,
            threads: self.threads,
        }
    }
}

/// Why an op has no launches.
pub fn unsupported(op: &Op) -> Option<String> {
    match op {
        Op::RmsNorm(_) | Op::GroupRows(_) => None,
        Op::Linear(o) => match o.x {
            Activations::Full(_) => None,
            Activations::Quantized(_) => Some("it has no matmul with int8 activations".into()),
        },
        Op::Embed(_)
        | Op::QuantizeRows(_)
        | Op::Rope(_)
        | Op::KvWrite(_)
        | Op::QkNormRopeWrite(_)
        | Op::Attention(_)
        | Op::SigmoidGate(_)
        | Op::SplitHeads(_)
        | Op::Conv1dSilu(_)
        | Op::GdnGates(_)
        | Op::L2Norm(_)
        | Op::GatedDelta(_)
        | Op::GatedRmsNorm(_)
        | Op::GatedDeltaNorm(_)
        | Op::RouterTopK(_)
        | Op::ExpertLinear(_)
        | Op::SwiGlu(_)
        | Op::ExpertGateUp(_)
        | Op::CombineExperts(_)
        | Op::SharedExpertAdd(_)
        | Op::Add(_)
        | Op::MoeOutput(_)
        | Op::GatherRows(_)
        | Op::Sample(_) => Some(format!("it has no kernel for {}", op.kind().name())),
    }
}

/// The launches of an op; none if the step has no rows for it.
pub fn lower<'a>(step: &Step<'a>, op: &Op) -> Vec<Prepared<'a>> {
    let launches = match op {
        Op::RmsNorm(o) => vec![rms_norm(step, o)],
        Op::Linear(o) => vec![linear(step, o)],
        Op::GroupRows(o) => vec![group_rows(step, o)],
        Op::Embed(_)
        | Op::QuantizeRows(_)
        | Op::Rope(_)
        | Op::KvWrite(_)
        | Op::QkNormRopeWrite(_)
        | Op::Attention(_)
        | Op::SigmoidGate(_)
        | Op::SplitHeads(_)
        | Op::Conv1dSilu(_)
        | Op::GdnGates(_)
        | Op::L2Norm(_)
        | Op::GatedDelta(_)
        | Op::GatedRmsNorm(_)
        | Op::GatedDeltaNorm(_)
        | Op::RouterTopK(_)
        | Op::ExpertLinear(_)
        | Op::SwiGlu(_)
        | Op::ExpertGateUp(_)
        | Op::CombineExperts(_)
        | Op::SharedExpertAdd(_)
        | Op::Add(_)
        | Op::MoeOutput(_)
        | Op::GatherRows(_)
        | Op::Sample(_) => unreachable!("`compile` refuses plans with {}", op.kind().name()),
    };
    launches.into_iter().filter(|launch| !launch.groups.contains(&0)).collect()
}

/// How kernels name an element type (`prelude.metal`).
fn type_code(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::Bf16 => 1,
        DType::F16 => 2,
        DType::U32 | DType::I32 | DType::I8 | DType::U8 => panic!("{dtype:?} is no type of weights"),
    }
}

fn number(n: usize) -> u32 {
    u32::try_from(n).expect("kernels count in 32 bits")
}

fn arguments(arguments: &impl NoUninit) -> Vec<u8> {
    bytes_of(arguments).to_vec()
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct RmsNormArguments {
    x_cols: u32,
    out_cols: u32,
    dim: u32,
    stride: u32,
    eps: f32,
}

fn rms_norm<'a>(step: &Step<'a>, o: &ops::rms_norm::RmsNorm) -> Prepared<'a> {
    let dim = o.dim();
    Prepared {
        source: RMS_NORM,
        kernel: "rms_norm",
        constants: Vec::new(),
        buffers: vec![step.at(&o.x), step.at(&o.weight), step.at(&o.out)],
        arguments: arguments(&RmsNormArguments {
            x_cols: number(o.x.cols),
            out_cols: number(o.out.cols),
            dim: number(dim),
            stride: number(o.stride),
            eps: o.eps,
        }),
        groups: [o.heads, step.inputs.rows(o.rows)],
        threads: dim.next_multiple_of(SIMD).min(ROW_THREADS),
    }
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct LinearArguments {
    outputs: u32,
    inputs: u32,
    weight_shift: u32,
    scales_shift: u32,
    biases_shift: u32,
}

fn linear<'a>(step: &Step<'a>, o: &ops::linear::Linear) -> Prepared<'a> {
    let Activations::Full(x) = &o.x else { unreachable!("`compile` refuses int8 activations") };
    let stored = &o.weight.stack[0];
    let (weight, weight_shift) = step.file(&stored.weight);
    // Dense weights have neither; a buffer is bound all the same.
    let affine = stored.affine.as_ref().map(|(scales, biases)| (step.file(scales), step.file(biases)));
    let ((scales, scales_shift), (biases, biases_shift)) = affine.unwrap_or(((weight, 0), (weight, 0)));
    let constants = match o.weight.format {
        Format::Dense(dtype) => [1, type_code(dtype), 0, 1],
        Format::Affine { bits, group, scale } => [0, type_code(scale), bits.into(), group.into()],
    };
    Prepared {
        source: LINEAR,
        kernel: "linear_rows",
        constants: constants.to_vec(),
        buffers: vec![step.at(x), weight, scales, biases, step.at(&o.out)],
        arguments: arguments(&LinearArguments {
            outputs: number(o.weight.rows),
            inputs: number(o.weight.cols),
            weight_shift,
            scales_shift,
            biases_shift,
        }),
        groups: [o.weight.rows.div_ceil(LINEAR_SIMDGROUPS * LINEAR_ROWS), step.inputs.rows(o.rows)],
        threads: LINEAR_SIMDGROUPS * SIMD,
    }
}

#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct GroupRowsArguments {
    pairs: u32,
    experts: u32,
}

fn group_rows<'a>(step: &Step<'a>, o: &ops::group_rows::GroupRows) -> Prepared<'a> {
    let experts = o.groups.experts();
    Prepared {
        source: GROUP_ROWS,
        kernel: "group_rows",
        constants: Vec::new(),
        buffers: vec![step.at(&o.experts), step.at(&o.groups.offsets), step.at(&o.groups.order)],
        arguments: arguments(&GroupRowsArguments {
            pairs: number(step.inputs.num_tokens() * o.groups.top_k()),
            experts: number(experts),
        }),
        groups: [1, 1],
        threads: experts.next_multiple_of(SIMD).min(MOST_THREADS),
    }
}
