//! A model on a device, without text: weights opened, memory laid out, steps and sessions ready. What `engine.rs`
//! drives with requests, and what measurements and tests drive with token ids.

use std::sync::Arc;

use lily_kernels::backend::Backend;
use lily_kernels::inputs::KV_BLOCK;
use lily_kernels::plan::Precision;
use lily_kernels::switches::Switches;

use crate::checkpoint::Checkpoint;
use crate::error::EngineError;
use crate::model::qwen3_5::Qwen3_5;
use crate::session::{CacheSize, DiskTier, Held, OutOfBlocks, Session, Store};
use crate::step::Stepper;

/// Of a runtime whose memory nobody has planned.
const SNAPSHOT_BYTES: usize = 1 << 30;

/// Steps and sessions of one model.
pub struct Runtime {
    /// Runs steps.
    pub stepper: Stepper,
    /// Holds sessions and KV blocks.
    store: Store,
}

impl Runtime {
    /// Puts a checkpoint's model on a device, with a KV cache of `context_length` positions in all.
    ///
    /// # Errors
    /// A tensor is not what the config says, or the device has no memory.
    pub fn load(
        checkpoint: &mut Checkpoint,
        backend: Box<dyn Backend>,
        context_length: usize,
        precision: Precision,
        switches: Switches,
    ) -> Result<Self, EngineError> {
        let blocks = u32::try_from(context_length.div_ceil(KV_BLOCK))
            .map_err(|_| EngineError::Options(format!("--context {context_length} is too large")))?;
        let model = Qwen3_5::load(checkpoint, precision)?;
        let size = CacheSize { blocks, snapshot_bytes: SNAPSHOT_BYTES };
        Self::new(model, checkpoint, backend, size, (precision, switches))
    }

    /// The same for a model that was loaded from the checkpoint before.
    ///
    /// # Errors
    /// The device has no memory.
    pub(crate) fn new(
        model: Qwen3_5,
        checkpoint: &Checkpoint,
        mut backend: Box<dyn Backend>,
        size: CacheSize,
        (precision, switches): (Precision, Switches),
    ) -> Result<Self, EngineError> {
        for (file, summary) in checkpoint.weight_files().iter().zip(checkpoint.weight_file_summaries()) {
            backend.open_weights(Arc::clone(file), summary.data_start)?;
        }
        backend.upload_constants(&model.weights.constants)?;
        let pool = backend.allocate("the KV cache", size.blocks as usize * model.memory.block_bytes)?;
        backend.bind_kv(pool, model.memory.block_bytes);
        let store = Store::new(size, pool, &model.memory);
        Ok(Self { stepper: Stepper::new(backend, model, precision, switches), store })
    }

    /// A timeline that has computed as much of a prompt as can be taken from earlier ones; see `Store::begin`.
    ///
    /// # Errors
    /// The device has no memory for a new session, or running ones hold all blocks.
    pub fn take_session(&mut self, prompt: &[u32]) -> Result<Session, EngineError> {
        self.store.begin(&mut *self.stepper.backend, prompt)
    }

    /// A timeline that has computed nothing.
    ///
    /// # Errors
    /// The device has no memory for it.
    pub fn fresh_session(&mut self) -> Result<Session, EngineError> {
        Ok(self.store.fresh(&mut *self.stepper.backend)?)
    }

    /// Moves a timeline of a prompt on, if another one has come farther meanwhile; see `Store::catch_up`.
    ///
    /// # Errors
    /// Running sessions hold all blocks; the timeline is as it was.
    pub fn catch_up(&mut self, session: &mut Session, prompt: &[u32]) -> Result<(), OutOfBlocks> {
        self.store.catch_up(&mut *self.stepper.backend, session, prompt)
    }

    /// Room for `more` positions; see `Store::reserve`.
    ///
    /// # Errors
    /// The cache is too small.
    pub fn reserve(&mut self, session: &mut Session, more: usize) -> Result<(), OutOfBlocks> {
        self.store.reserve(&mut *self.stepper.backend, session, more)
    }

    /// The same, if it costs no snapshot; `false` if it would.
    pub fn has_room(&mut self, session: &mut Session, more: usize) -> bool {
        self.store.reserve_free(session, more)
    }

    /// Keeps what a timeline has computed so far, for later requests.
    pub fn snapshot(&mut self, session: &Session) {
        self.store.snapshot(&mut *self.stepper.backend, session);
    }

    /// Ends a timeline; later requests can go on where it ends.
    pub fn keep(&mut self, session: Session) {
        self.store.end(&mut *self.stepper.backend, session);
    }

    /// Ends a timeline and forgets what it holds.
    pub fn discard(&mut self, session: Session) {
        self.store.discard(session);
    }

    /// Snapshots that are given up go to the disk, and are found there.
    pub(crate) fn keep_on_disk(&mut self, disk: DiskTier) {
        self.store.keep_on_disk(disk);
    }

    /// Writes one snapshot to the disk; `false` if it lacks none.
    pub fn save_one(&mut self) -> bool {
        self.store.save_one(&mut *self.stepper.backend)
    }

    /// Writes what is worth it to the disk, if there is one for it, and waits for that.
    pub fn close(&mut self) {
        self.store.close(&mut *self.stepper.backend);
    }

    /// What sessions and snapshots take.
    pub fn held(&self) -> Held {
        self.store.held()
    }
}
