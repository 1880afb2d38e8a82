//! What a device offers, at the grain of a whole plan. One virtual call a step; no call per op.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::devices::DeviceKind;
use crate::inputs::StepInputs;
use crate::mapped::MappedFile;
use crate::op::Op;
use crate::plan::Plan;
use crate::tensor::{Space, Tensor};

pub use crate::tensor::BufferId;

/// A compiled plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExecutableId(pub u32);

/// A submitted step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Something that a device has or lacks, and what follows from it: for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// What.
    pub name: &'static str,
    /// Whether it is there.
    pub available: bool,
    /// How that was found out, or what is done instead.
    pub why: String,
}

/// A failure of the device, not of the caller.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Memory ran out.
    #[error("not enough memory: {what} needs {bytes} bytes; lower --context, or close other programs")]
    OutOfMemory {
        /// What was being allocated.
        what: &'static str,
        /// How much.
        bytes: usize,
    },
    /// The device cannot run this plan.
    #[error("the {device} device cannot run this model: {reason}")]
    Unsupported {
        /// Device name.
        device: &'static str,
        /// What is missing.
        reason: String,
    },
    /// This build has no such device.
    #[error("this build has no {name} device; it runs on {names}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        names: String,
    },
    /// The device failed: a kernel that does not compile, or an error that it reports.
    #[error("the {device} device failed: {reason}")]
    Failed {
        /// Device name.
        device: &'static str,
        /// Its own words.
        reason: String,
    },
    /// The step was given up because the interrupt flag was set. Nothing that it wrote is current: the state half that
    /// it read is whole, and cache rows past a sequence's length are never read.
    #[error("the step was interrupted")]
    Interrupted,
    /// Worker threads could not be started.
    #[error("cannot start worker threads: {0}")]
    Threads(std::io::Error),
}

/// Reads tensors of a step that is being run one dispatch at a time.
pub trait Observer {
    /// Called after each dispatch; `read` gives a tensor's true rows as f32.
    fn after(&mut self, index: usize, op: &Op, read: &dyn Fn(&Tensor, usize) -> Vec<f32>);
}

/// A device. Copies, writes and steps take effect in the order of the calls.
pub trait Backend: Send {
    /// Device and instruction set in words.
    fn describe(&self) -> String;

    /// What plans for it are recorded for.
    fn kind(&self) -> DeviceKind;

    /// Bytes that this device could still take up, mapped weights included; `None` if it cannot tell.
    fn available_bytes(&self) -> Option<u64>;

    /// What it has and lacks, and what it does about it; may take seconds.
    fn features(&mut self) -> Vec<Feature> {
        Vec::new()
    }

    /// Names a folder where it may keep what it compiled for the next time. What goes wrong there costs time only.
    fn cache_in(&mut self, folder: &Path) {
        let _ = folder;
    }

    /// Makes a weight file readable for plans, as `Space::Weights(n)`: n counts the calls from 0. Its tensors begin at
    /// byte `first`, by which a device may judge whether they are aligned.
    ///
    /// # Errors
    /// The device cannot map or hold the file.
    fn open_weights(&mut self, file: Arc<MappedFile>, first: u64) -> Result<(), DeviceError>;

    /// Sets `Space::Constants`.
    ///
    /// # Errors
    /// Memory ran out.
    fn upload_constants(&mut self, values: &[f32]) -> Result<(), DeviceError>;

    /// A zeroed buffer; pages that are never touched cost nothing.
    ///
    /// # Errors
    /// Memory ran out.
    fn allocate(&mut self, what: &'static str, bytes: usize) -> Result<BufferId, DeviceError>;

    /// Gives a buffer back.
    fn free(&mut self, buffer: BufferId);

    /// Names the buffer that holds KV blocks, and the bytes of one block.
    fn bind_kv(&mut self, pool: BufferId, block_bytes: usize);

    /// Copies `bytes` between buffers, in step order.
    fn copy(&mut self, from: (BufferId, usize), to: (BufferId, usize), bytes: usize);

    /// Zeroes a range, in step order.
    fn clear(&mut self, buffer: BufferId, offset: usize, bytes: usize);

    /// Writes a range, in step order.
    fn write(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]);

    /// Waits, then reads a buffer.
    fn read(&mut self, buffer: BufferId, offset: usize, out: &mut [u8]);

    /// Prepares a plan. Grows the scratch memory to the largest plan seen; after that steps allocate nothing.
    ///
    /// # Errors
    /// Memory ran out, or an op has no kernel here.
    fn compile(&mut self, plan: Arc<Plan>) -> Result<ExecutableId, DeviceError>;

    /// Forgets a plan.
    fn discard(&mut self, executable: ExecutableId);

    /// Queues a step. It may start from token ids that an earlier step has yet to choose, and from `NO_TOKEN` among them:
    /// then it computes something, and touches nothing but what its true rows may touch.
    ///
    /// # Errors
    /// The device failed, in this step or in one before it.
    fn submit(&mut self, executable: ExecutableId, inputs: &StepInputs) -> Result<Ticket, DeviceError>;

    /// A flag that makes a running step end early with `DeviceError::Interrupted`, where the device can; looked at
    /// until the next call. `None` lets steps run to their end.
    fn interrupt_by(&mut self, flag: Option<Arc<AtomicBool>>);

    /// Waits for a step.
    ///
    /// # Errors
    /// The device failed while running it.
    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError>;

    /// Seconds that the device itself worked on a step that was waited for, of the last few; `None` if it cannot tell.
    fn seconds(&self, ticket: Ticket) -> Option<f64> {
        let _ = ticket;
        None
    }

    /// Whether steps run while the host does something else, so that the next one should be submitted before the result
    /// of the last one is looked at.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// Logits of the last step that wrote them, `[outputs, vocab_size]`; waits first.
    fn logits(&mut self, rows: usize, cols: usize, out: &mut [f32]);

    /// Ids that the last sampling left in a token slot, one per output row; waits first.
    fn sampled(&mut self, token_slot: usize, out: &mut [u32]);

    /// Sets bytes of `Arena`, `Tokens`, `NextTokens` (slots 0 and 1) or `Logits`: for the op harness, which runs plans of one op.
    fn poke(&mut self, space: Space, offset: usize, bytes: &[u8]);

    /// Reads what `poke` sets.
    fn peek(&mut self, space: Space, offset: usize, out: &mut [u8]);

    /// Runs a step one dispatch at a time, showing each result.
    ///
    /// # Errors
    /// The device failed.
    fn observe(
        &mut self,
        executable: ExecutableId,
        inputs: &StepInputs,
        observer: &mut dyn Observer,
    ) -> Result<(), DeviceError>;
}
