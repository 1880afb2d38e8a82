//! The whole engine behind one door: opens a model, owns the device and the sessions, runs requests.
//! One thread owns an `Engine`; `schedule.rs` queues for it.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use lily_kernels::backend::Backend;
use lily_kernels::devices;
use sha2::{Digest, Sha256};

use crate::batch::{Batch, Turn};
use crate::budget::{Allowance, Budget};
use crate::checkpoint::Checkpoint;
use crate::generate::{Generation, Limits};
use crate::model::qwen3_5::Qwen3_5;
use crate::prepare::{Prepared, Preparer};
use crate::request::{CancelToken, Completion, EventSink, Request, SamplingParams};
use crate::runtime::Runtime;
use crate::schedule::{Deliver, Drive, RequestId, Stats, Update};
use crate::session::{CacheSize, DiskTier, Fingerprint};
use crate::text::Codec;

pub use crate::checkpoint::{EmbeddedModel, ModelSource};
pub use crate::error::EngineError;
pub use crate::session::DiskOptions;
pub use lily_kernels::devices::{DeviceKind, NAMES as DEVICES};
pub use lily_kernels::plan::Precision;
pub use lily_kernels::switches::{SWITCHES, Switches};

/// How to open a model.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Which model.
    pub source: ModelSource,
    /// One of `DEVICES`.
    pub device: String,
    /// Number formats.
    pub precision: Precision,
    /// Worker threads; `None` takes the cores this process may use (affinity, cgroup).
    pub threads: Option<usize>,
    /// Positions one session may hold; `None` takes the model's `max_position_embeddings`, or as many as fit.
    pub context_length: Option<usize>,
    /// Bytes of memory to plan with; `None` takes what the device has available.
    pub memory: Option<u64>,
    /// Bytes that earlier turns, and requests side by side, may take beyond one context; `None` takes a share of the
    /// memory.
    pub session_memory: Option<u64>,
    /// Where earlier turns are kept over restarts; `None` keeps none.
    pub session_disk: Option<DiskOptions>,
    /// Prefill chunk bound in tokens, at absolute positions.
    pub prefill_chunk: usize,
    /// Requests that may run at the same time.
    pub parallel: NonZeroUsize,
    /// Optimisations.
    pub switches: Switches,
    /// A folder where the device may keep what it compiled for the next time.
    pub cache: Option<PathBuf>,
}

impl EngineOptions {
    /// Defaults for a model.
    pub fn new(source: ModelSource) -> Self {
        Self {
            source,
            device: DEVICES[0].to_owned(),
            precision: Precision::Fast,
            threads: None,
            context_length: None,
            memory: None,
            session_memory: None,
            session_disk: None,
            prefill_chunk: 2048,
            parallel: NonZeroUsize::MIN,
            switches: Switches::default(),
            cache: None,
        }
    }
}

/// What was opened, for people.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// Folder name, repository name or the embedded model's name.
    pub name: String,
    /// `model_type` of the config.
    pub model_type: String,
    /// Positions one session can hold.
    pub context_length: usize,
    /// Vocabulary rows.
    pub vocab_size: usize,
    /// Bytes of the text model's tensors.
    pub weight_bytes: u64,
    /// Most bytes that earlier turns, and requests side by side, take beyond one context.
    pub session_bytes: u64,
    /// Device and instruction set in words, e.g. `cpu (avx2, 2 threads)`.
    pub device: String,
    /// One sentence each (unknown tensors, ...).
    pub warnings: Vec<String>,
}

/// A loaded model with its device, plans and sessions.
pub struct Engine {
    runtime: Runtime,
    preparer: Arc<Preparer>,
    limits: Limits,
    defaults: SamplingParams,
    info: ModelInfo,
    batch: Batch,
    /// Requests that ran by themselves.
    alone: u64,
    /// Requests that could not be taken up, and why.
    refused: Vec<(RequestId, EngineError)>,
    /// Kept for `changed`: its mappings are what the device reads.
    checkpoint: Checkpoint,
}

impl Engine {
    /// Loads a model.
    ///
    /// # Errors
    /// One sentence naming the file and the field.
    pub fn open(options: &EngineOptions) -> Result<Self, EngineError> {
        Self::open_on(options, devices::open(&options.device, options.threads)?)
    }

    /// Loads a model on a given device.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_on(options: &EngineOptions, mut backend: Box<dyn Backend>) -> Result<Self, EngineError> {
        if options.prefill_chunk == 0 {
            return Err(EngineError::Options("--prefill-chunk 0: a chunk has at least one token".into()));
        }
        if let Some(folder) = &options.cache {
            backend.cache_in(folder);
        }
        let mut checkpoint = Checkpoint::open(&options.source)?;
        let codec = open_codec(&checkpoint)?;
        let precision = if options.precision == Precision::Fast { backend.kind().fast() } else { options.precision };
        let kind = backend.kind();
        let model = Qwen3_5::load(&mut checkpoint, precision)?;
        let files = (checkpoint.weight_bytes(), checkpoint.file("tokenizer.json")?.map_or(0, |file| file.len() as u64));
        let available = options.memory.or_else(|| backend.available_bytes());
        let most = (options.prefill_chunk, options.parallel.get());
        let budget = Budget::of(&model, files, most, (kind, precision, options.switches), available);
        let allowance = budget.settle(options.context_length, options.session_memory)?;
        let limits = limits(options, &checkpoint, &codec, &allowance)?;
        let size = CacheSize { blocks: allowance.blocks, snapshot_bytes: allowance.snapshot_bytes };
        let layout = (model.memory.state_bytes, model.memory.block_bytes);
        let mut runtime = Runtime::new(model, &checkpoint, backend, size, (precision, options.switches))?;
        if let Some(disk) = &options.session_disk {
            let fingerprint = fingerprint(&checkpoint, &format!("{kind:?} {precision:?} {layout:?}"))?;
            let tier = DiskTier::open(disk, fingerprint)
                .map_err(|error| EngineError::Options(format!("{}: {error}", disk.folder.display())))?;
            runtime.keep_on_disk(tier);
        }
        let mut info = describe(&checkpoint, &limits, &allowance, &*runtime.stepper.backend);
        info.warnings.extend(allowance.note);
        let defaults = default_sampling(&checkpoint);
        let rows = runtime.stepper.model().config.vocab_size;
        let preparer = Preparer::new(Arc::new(codec), limits.context_length, limits.vocab_limit, rows);
        let preparer = preparer.ending_at(&limits.stop_ids).into();
        Ok(Self {
            runtime,
            preparer,
            limits,
            defaults,
            info,
            batch: Batch::default(),
            alone: 0,
            refused: Vec::new(),
            checkpoint,
        })
    }

    /// What was opened.
    pub fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    /// Sampling parameters of `generation_config.json`; seed 0.
    pub fn default_sampling(&self) -> SamplingParams {
        self.defaults
    }

    /// The model without text; for measurements and tests.
    pub fn runtime(&mut self) -> &mut Runtime {
        &mut self.runtime
    }

    /// Tokenizer and template.
    pub fn codec(&self) -> &Codec {
        self.preparer.codec()
    }

    /// Turns requests into what `begin` takes, on any thread.
    pub fn preparer(&self) -> Arc<Preparer> {
        Arc::clone(&self.preparer)
    }

    /// Runs one request to its end, while no other runs.
    ///
    /// # Errors
    /// The request is out of range, the device failed, or the model's logits are not numbers. Cancellation is no error.
    pub fn generate(
        &mut self,
        request: &Request,
        cancel: &CancelToken,
        sink: &mut EventSink,
    ) -> Result<Completion, EngineError> {
        assert_eq!(self.running(), 0, "requests that run side by side are driven by `step`");
        let prepared = self.preparer.prepare(request.clone())?;
        // A name of its own: what is still being found for the one before must not count for this one.
        self.alone += 1;
        self.begin(RequestId(self.alone), prepared, cancel.clone());
        loop {
            let mut done = None;
            self.step(&mut |_, update| match update {
                Update::Event(event) => sink(event),
                Update::Done(result) => {
                    done = Some(*result);
                    ControlFlow::Continue(())
                }
            });
            if let Some(result) = done {
                return result;
            }
        }
    }

    fn changed_file(&self) -> Option<EngineError> {
        self.checkpoint.weight_files().iter().find_map(|file| file.changed()).map(EngineError::Options)
    }
}

impl Drive for Engine {
    fn capacity(&self) -> usize {
        self.limits.parallel
    }

    fn running(&self) -> usize {
        self.batch.len() + self.refused.len()
    }

    fn begin(&mut self, id: RequestId, prepared: Prepared, cancel: CancelToken) {
        match self.changed_file() {
            Some(error) => self.refused.push((id, error)),
            None => self.batch.push(Generation::new(id, prepared, cancel, &self.limits)),
        }
    }

    fn step(&mut self, deliver: &mut Deliver) {
        for (id, error) in self.refused.drain(..) {
            let _ = deliver(id, Update::Done(Box::new(Err(error))));
        }
        let Self { runtime, limits, preparer, batch, .. } = self;
        Turn { runtime, limits, codec: preparer.codec(), batch, deliver }.run();
    }

    fn rest(&mut self) -> bool {
        self.runtime.save_one()
    }

    fn close(&mut self) {
        self.runtime.close();
    }

    fn stats(&self) -> Stats {
        let held = self.runtime.held();
        Stats {
            running: self.running(),
            snapshots: held.snapshots,
            snapshot_bytes: held.snapshot_bytes as u64,
            snapshot_budget_bytes: held.snapshot_budget_bytes as u64,
            kv_blocks_used: held.blocks_used,
            kv_blocks: held.blocks,
            disk_snapshots: held.on_disk.0,
            disk_bytes: held.on_disk.1,
            ..self.batch.stats
        }
    }
}

/// What must be the same for a stored state to be of use: the model's files, and how they are computed with. Weights
/// count with their headers and samples, not with all of their gigabytes.
fn fingerprint(checkpoint: &Checkpoint, computed: &str) -> Result<Fingerprint, EngineError> {
    const SAMPLE: usize = 4096;
    const SAMPLES: usize = 64;
    let mut hasher = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    add(env!("CARGO_PKG_VERSION").as_bytes());
    add(computed.as_bytes());
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        add(&checkpoint.file(name)?.unwrap_or_default());
    }
    for (file, summary) in checkpoint.weight_files().iter().zip(checkpoint.weight_file_summaries()) {
        let bytes = file.bytes();
        let (header, data) = bytes.split_at((summary.data_start as usize).min(bytes.len()));
        add(header);
        add(&(data.len() as u64).to_le_bytes());
        let step = (data.len() / SAMPLES).max(SAMPLE);
        data.chunks(step).for_each(|part| add(&part[..part.len().min(SAMPLE)]));
    }
    Ok(hasher.finalize().into())
}

fn open_codec(checkpoint: &Checkpoint) -> Result<Codec, EngineError> {
    // Unreadable files are reported as what they are, not as missing.
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        checkpoint.file(name)?;
    }
    Codec::open(&|name| checkpoint.file(name).ok().flatten()).map_err(EngineError::Text)
}

fn limits(
    options: &EngineOptions,
    checkpoint: &Checkpoint,
    codec: &Codec,
    allowance: &Allowance,
) -> Result<Limits, EngineError> {
    let config = checkpoint.config();
    let mut stop_ids = checkpoint.eos_token_ids();
    stop_ids.extend_from_slice(codec.tokenizer().stop_ids());
    stop_ids.sort_unstable();
    stop_ids.dedup();
    let vocab = codec.tokenizer().vocab_size();
    if vocab > config.vocab_size {
        let message = format!(
            "tokenizer.json has {vocab} tokens, config.json a vocab_size of {}: they belong to different models",
            config.vocab_size
        );
        return Err(EngineError::Options(message));
    }
    Ok(Limits {
        context_length: allowance.context_length,
        prefill_chunk: options.prefill_chunk,
        parallel: options.parallel.get(),
        stop_ids,
        vocab_limit: u32::try_from(vocab).unwrap_or(u32::MAX),
        vocab_size: config.vocab_size,
    })
}

fn describe(checkpoint: &Checkpoint, limits: &Limits, allowance: &Allowance, backend: &dyn Backend) -> ModelInfo {
    ModelInfo {
        name: checkpoint.name().to_owned(),
        model_type: checkpoint.config().model_type.clone(),
        context_length: limits.context_length,
        vocab_size: checkpoint.config().vocab_size,
        weight_bytes: checkpoint.weight_bytes(),
        session_bytes: allowance.estimate.sessions,
        device: backend.describe(),
        warnings: checkpoint.warnings(),
    }
}

fn default_sampling(checkpoint: &Checkpoint) -> SamplingParams {
    let g = checkpoint.generation_config();
    let temperature = if g.do_sample { g.temperature } else { 0.0 };
    SamplingParams {
        temperature,
        top_k: g.top_k,
        top_p: g.top_p,
        min_p: g.min_p,
        repetition_penalty: g.repetition_penalty,
        ..SamplingParams::GREEDY
    }
}
