//! A step as data: recorded once per `PlanKey`, replayed with fresh `StepInputs`.
//! record → fuse → hazard (stages) → arena (scratch memory) → `Plan`. Lowering belongs to the devices.

mod arena;
mod expand;
mod fuse;
mod hazard;
mod print;
mod record;

pub use fuse::FUSIONS;
pub use record::{Recorder, Weight};

use crate::devices::DeviceKind;
use crate::inputs::StepInputs;
use crate::op::{Access, Cost, Counts, Op, OpKind, Rows};
use crate::switches::Switches;
use crate::tensor::Tensor;

/// A step is one sequence's prefill chunk or N one-token decodes, never mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// One sequence, many tokens.
    Prefill,
    /// Many sequences, one token each.
    Decode,
}

/// A step is two plans, so that sampling can wait for a grammar while the next forward pass already runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// Tokens to logits.
    Forward,
    /// Logits to the next step's tokens.
    Sample,
}

/// Which rows get logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Logits {
    /// None: a prefill chunk that is not the last.
    None,
    /// One row per sequence.
    Last,
    /// Every row.
    All,
}

/// Number formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// f32 throughout; for tests against goldens.
    Exact,
    /// int8 activations in the quantized matmuls (router, gates and the a/b projections keep f32), bf16 KV.
    Fast,
    /// f32 activations, bf16 KV: what `Fast` is on a device without int8 matmuls. Where a GPU has units for it, matmuls of
    /// many rows round to bf16, but for router, gates and the a/b projections.
    Half,
}

/// What a plan depends on. True counts are in `StepInputs`; buckets bound them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlanKey {
    /// Forward or sample.
    pub program: Program,
    /// Prefill or decode.
    pub phase: Phase,
    /// Most tokens of a step.
    pub token_bucket: usize,
    /// Most sequences of a step.
    pub sequence_bucket: usize,
    /// Rows with logits.
    pub logits: Logits,
    /// Number formats.
    pub precision: Precision,
    /// What it runs on.
    pub device: DeviceKind,
    /// Optimisations.
    pub switches: Switches,
}

impl PlanKey {
    /// Most rows with logits.
    pub const fn output_bucket(&self) -> usize {
        match self.logits {
            Logits::None => 0,
            Logits::Last => self.sequence_bucket,
            Logits::All => self.token_bucket,
        }
    }
}

/// One dispatch of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Dispatch {
    /// What runs.
    pub op: Op,
    /// Dispatches of one stage touch no common byte that either writes; stages follow one another.
    pub stage: usize,
    /// Place in the model, e.g. `layers.3`.
    pub scope: String,
}

/// A tensor worth looking at when a step is run one dispatch at a time.
#[derive(Debug, Clone, PartialEq)]
pub struct Tap {
    /// e.g. `hidden.03`.
    pub name: String,
    /// Dispatch that writes it; later ones may reuse its bytes.
    pub dispatch: usize,
    /// Where.
    pub tensor: Tensor,
    /// True rows.
    pub rows: Rows,
}

/// A recorded step.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What it was recorded for.
    pub key: PlanKey,
    /// In stage order.
    pub dispatches: Vec<Dispatch>,
    /// Number of stages.
    pub stages: usize,
    /// Scratch memory. Does not depend on the context length.
    pub arena_bytes: usize,
    /// Bytes of `Space::Logits`.
    pub logits_bytes: usize,
    /// Named tensors.
    pub taps: Vec<Tap>,
    /// Hits of each fusion, in table order.
    pub fusions: Vec<(&'static str, usize)>,
}

impl Plan {
    /// Traffic and arithmetic of a step of these sizes.
    pub fn cost(&self, counts: &Counts) -> Cost {
        self.dispatches.iter().map(|d| d.op.contract().cost(counts)).fold(Cost::default(), |a, b| a + b)
    }

    /// Whether the host does a dispatch, and the device waits for it.
    pub fn is_on_host(&self, op: &Op) -> bool {
        let device = self.key.device;
        let by_host = device == DeviceKind::Metal && !self.key.switches.is_on("gpu-routing", device);
        by_host && op.kind() == OpKind::GroupRows
    }

    /// Command buffers of a step on a GPU: each dispatch of the host ends one.
    pub fn command_buffers(&self) -> usize {
        1 + self.dispatches.iter().filter(|d| self.is_on_host(&d.op)).count()
    }

    /// Asserts that a step's inputs are within the plan's buckets and do not collide. Broken ones are the engine's bug:
    /// caught here, before a kernel sees them.
    pub(crate) fn check_inputs(&self, inputs: &StepInputs) {
        assert!(inputs.outputs.len() <= self.key.output_bucket(), "more output rows than the plan's bucket");
        if self.key.program == Program::Sample {
            assert!(inputs.edits.is_sorted_by_key(|edit| edit.row), "edits are not in the order of rows");
            return;
        }
        assert!(inputs.num_tokens() <= self.key.token_bucket, "more tokens than the plan's bucket");
        assert!(inputs.sequences.len() <= self.key.sequence_bucket, "more sequences than the plan's bucket");
        assert!(inputs.tokens_on_device || inputs.tokens.len() == inputs.num_tokens());
        inputs.check_exclusive();
    }

    /// Asserts that no op works in place: devices rely on it.
    pub(crate) fn check_disjoint(&self) {
        for d in &self.dispatches {
            let (reads, writes) = (d.op.contract().reads(), d.op.contract().writes());
            for (i, w) in writes.iter().enumerate() {
                let others: Vec<&Access> = reads.iter().chain(&writes[i + 1..]).collect();
                assert!(!others.iter().any(|o| o.overlaps(w)), "{} works in place", d.op.kind().name());
            }
        }
    }

    /// Table for people: see `lily plan`.
    pub fn report(&self, counts: &Counts, dispatches: bool) -> String {
        print::report(self, counts, dispatches)
    }
}
