//! A model on a device, without text: weights opened, memory laid out, steps and sessions ready. What `engine.rs`
//! drives with requests, and what measurements and tests drive with token ids.

use std::sync::Arc;

use lily_kernels::backend::Backend;
use lily_kernels::inputs::KV_BLOCK;
use lily_kernels::plan::Precision;
use lily_kernels::switches::Switches;

use crate::budget::MAX_SESSIONS;
use crate::checkpoint::Checkpoint;
use crate::error::EngineError;
use crate::model::qwen3_5::Qwen3_5;
use crate::session::{Session, Store};
use crate::step::Stepper;

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
        let model = Qwen3_5::load(checkpoint, precision)?;
        Self::new(model, checkpoint, backend, context_length, (precision, switches))
    }

    /// The same for a model that was loaded from the checkpoint before.
    ///
    /// # Errors
    /// The device has no memory.
    pub fn new(
        model: Qwen3_5,
        checkpoint: &Checkpoint,
        mut backend: Box<dyn Backend>,
        context_length: usize,
        (precision, switches): (Precision, Switches),
    ) -> Result<Self, EngineError> {
        for (file, summary) in checkpoint.weight_files().iter().zip(checkpoint.weight_file_summaries()) {
            backend.open_weights(Arc::clone(file), summary.data_start)?;
        }
        backend.upload_constants(&model.weights.constants)?;
        let blocks = u32::try_from(context_length.div_ceil(KV_BLOCK))
            .map_err(|_| EngineError::Options(format!("--context {context_length} is too large")))?;
        let pool = backend.allocate("the KV cache", blocks as usize * model.memory.block_bytes)?;
        backend.bind_kv(pool, model.memory.block_bytes);
        let stepper = Stepper::new(backend, model, precision, switches);
        Ok(Self { stepper, store: Store::new(blocks, MAX_SESSIONS) })
    }

    /// The session that can skip most of a prompt; see `Store::take`.
    ///
    /// # Errors
    /// The device has no memory for a new session.
    pub fn take_session(&mut self, prompt: &[u32]) -> Result<Session, EngineError> {
        let Stepper { backend, model, .. } = &mut self.stepper;
        Ok(self.store.take(&mut **backend, &model.memory, prompt)?)
    }

    /// Room for `more` positions; see `Store::reserve`.
    ///
    /// # Errors
    /// The cache is too small.
    pub fn reserve(&mut self, session: &mut Session, more: usize) -> Result<(), EngineError> {
        Ok(self.store.reserve(&mut *self.stepper.backend, session, more)?)
    }

    /// The same, if it costs no other session anything; `false` if it would.
    pub fn has_room(&mut self, session: &mut Session, more: usize) -> bool {
        self.store.reserve_free(session, more)
    }

    /// Puts a session back for later requests.
    pub fn keep(&mut self, session: Session) {
        self.store.put(session);
    }

    /// Gives a session's memory back.
    pub fn discard(&mut self, session: Session) {
        self.store.discard(&mut *self.stepper.backend, session);
    }
}
