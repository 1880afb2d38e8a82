//! The closed list of ops and what an op must declare. Hazards, memory plan, roofline and the test harness all
//! read the contract; nothing about an op is declared anywhere else.

use crate::ops;
use crate::ops::attention_parts::Cut;
use crate::tensor::{FileSlice, Matrix, Space, Stored, Tensor};

/// A byte range that an op may read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Which space.
    pub space: Space,
    /// First byte.
    pub offset: usize,
    /// Length.
    pub bytes: usize,
}

impl Access {
    /// Whether two ranges share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.space == other.space && self.offset < other.offset + other.bytes && other.offset < self.offset + self.bytes
    }
}

impl From<&Tensor> for Access {
    fn from(t: &Tensor) -> Self {
        Self { space: t.space, offset: t.offset, bytes: t.bytes() }
    }
}

impl From<&FileSlice> for Access {
    fn from(s: &FileSlice) -> Self {
        Self { space: Space::Weights(s.file), offset: s.offset as usize, bytes: s.bytes as usize }
    }
}

/// Ranges of a weight matrix. Experts that lie one after the other are one range.
pub fn matrix_reads(m: &Matrix) -> Vec<Access> {
    if let Some(expanded) = &m.expanded {
        return vec![Access::from(expanded)];
    }
    let part = |slice: fn(&Stored) -> Option<&FileSlice>| {
        let mut ranges: Vec<Access> = Vec::new();
        for next in m.stack.iter().filter_map(slice).map(Access::from) {
            match ranges.last_mut() {
                Some(last) if last.space == next.space && last.offset + last.bytes == next.offset => {
                    last.bytes += next.bytes;
                }
                _ => ranges.push(next),
            }
        }
        ranges
    };
    let mut reads = part(|stored| Some(&stored.weight));
    reads.extend(part(|stored| stored.affine.as_ref().map(|(scales, _)| scales)));
    reads.extend(part(|stored| stored.affine.as_ref().map(|(_, biases)| biases)));
    reads
}

/// Which count of `StepInputs` gives the true rows of a per-row op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One row per token of the step.
    Tokens,
    /// One row per position whose logits are wanted.
    Outputs,
}

/// True sizes of one step, from which costs follow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens computed.
    pub tokens: usize,
    /// Rows whose logits are wanted.
    pub outputs: usize,
    /// Sequences in the step.
    pub sequences: usize,
    /// Σ over sequences of the cache length after the step: positions whose K and V are read.
    pub kv_positions: usize,
    /// Σ over rows of the positions the row attends to.
    pub attended: usize,
    /// Distinct experts chosen in a layer by the tokens of this step.
    pub experts_hit: usize,
    /// Distinct token ids: rows of the embedding that are read.
    pub distinct_tokens: usize,
    /// The longest cache after the step.
    pub longest: usize,
    /// Σ over sequences of the spans that an op cuts its cache into; 0 if all caches are as long as the longest.
    pub cut_spans: usize,
}

impl Counts {
    /// Σ over sequences of the spans of its cache.
    pub const fn spans(&self, cut: Cut) -> usize {
        if self.cut_spans > 0 { self.cut_spans } else { self.sequences * cut.spans(self.longest) }
    }

    /// True rows of a per-row op.
    pub fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.tokens,
            Rows::Outputs => self.outputs,
        }
    }
}

/// Memory traffic and arithmetic of one dispatch. Each byte counts once however often it is used; step inputs
/// (positions, block tables, sampling parameters) are control data and do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Distinct bytes read.
    pub read: usize,
    /// Distinct bytes written.
    pub written: usize,
    /// Multiply and add count one each.
    pub flops: usize,
}

impl std::ops::Add for Cost {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        Self { read: self.read + o.read, written: self.written + o.written, flops: self.flops + o.flops }
    }
}

/// What every op declares.
pub trait Contract {
    /// Ranges it may read.
    fn reads(&self) -> Vec<Access>;
    /// Ranges it may write. Never overlaps `reads`: no op works in place.
    fn writes(&self) -> Vec<Access>;
    /// Traffic and arithmetic of a step of these sizes.
    fn cost(&self, counts: &Counts) -> Cost;
    /// Every tensor operand, so that the memory plan can place temporaries.
    fn tensors(&mut self) -> Vec<&mut Tensor>;
    /// Panics at record time if shapes or dtypes do not fit together.
    fn check(&self);
}

macro_rules! ops {
    ($($op:ident in $module:ident),+ $(,)?) => {
        /// One dispatch. Closed: a device matches it exhaustively.
        #[derive(Debug, Clone, PartialEq)]
        #[expect(clippy::large_enum_variant, reason = "a plan has some hundreds of them, made once")]
        pub enum Op { $(#[doc = concat!("See `ops::", stringify!($module), "`.")] $op(ops::$module::$op)),+ }

        /// The kinds of `Op`, for fusion patterns and tables.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum OpKind { $(#[doc = concat!("See `ops::", stringify!($module), "`.")] $op),+ }

        impl OpKind {
            /// Every kind, in the order of the enum.
            pub const ALL: &'static [Self] = &[$(Self::$op),+];

            /// Folder name of the op.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$op => stringify!($module)),+ }
            }
        }

        impl Op {
            /// Kind without operands.
            pub const fn kind(&self) -> OpKind {
                match self { $(Self::$op(_) => OpKind::$op),+ }
            }

            /// The op's declarations.
            pub fn contract(&self) -> &dyn Contract {
                match self { $(Self::$op(o) => o),+ }
            }

            /// Every tensor operand, mutable.
            pub fn tensors(&mut self) -> Vec<&mut Tensor> {
                match self { $(Self::$op(o) => o.tensors()),+ }
            }
        }

        $(impl From<ops::$module::$op> for Op {
            fn from(o: ops::$module::$op) -> Self { Self::$op(o) }
        })+
    };
}

ops! {
    Embed in embed,
    RmsNorm in rms_norm,
    QuantizeRows in quantize_rows,
    Linear in linear,
    Rope in rope,
    KvWrite in kv_write,
    QkNormRopeWrite in qk_norm_rope_write,
    Attention in attention,
    SigmoidGate in sigmoid_gate,
    SplitHeads in split_heads,
    Conv1dSilu in conv1d_silu,
    GdnGates in gdn_gates,
    L2Norm in l2_norm,
    GatedDelta in gated_delta,
    GatedRmsNorm in gated_rms_norm,
    GatedDeltaNorm in gated_delta_norm,
    RouterTopK in router_top_k,
    GroupRows in group_rows,
    ExpandWeights in expand_weights,
    ExpertLinear in expert_linear,
    SwiGlu in swiglu,
    ExpertGateUp in expert_gate_up,
    CombineExperts in combine_experts,
    SharedExpertAdd in shared_expert_add,
    Add in add,
    MoeOutput in moe_output,
    GatherRows in gather_rows,
    NormLinears in norm_linears,
    LinearAdd in linear_add,
    GatedDeltaStep in gated_delta_step,
    MoeGateUp in moe_gate_up,
    MoeDown in moe_down,
    AttentionParts in attention_parts,
    AttentionMerge in attention_merge,
    Sample in sample,
}
