//! Flow 7: plan key → plan (recorded and compiled once, at most 64 alive), step inputs filled in place, one step run.
//! A step is one session's prefill chunk or N one-token decodes. Knows no text and no requests.

use std::collections::HashMap;
use std::sync::Arc;

use lily_kernels::backend::{Backend, DeviceError, ExecutableId, Observer, Ticket};
use lily_kernels::inputs::{LogitEdit, SamplingInputs, SequenceInputs, StepInputs, mask_words};
use lily_kernels::plan::{Logits, Phase, Plan, PlanKey, Precision, Program};
use lily_kernels::switches::Switches;

use crate::model::qwen3_5::Qwen3_5;
use crate::session::Session;

/// Most plans alive; the least recently used is discarded.
const MAX_PLANS: usize = 64;
/// Smallest token bucket of a prefill.
const MIN_BUCKET: usize = 16;

struct Compiled {
    executable: ExecutableId,
    plan: Arc<Plan>,
    last_used: u64,
}

/// Runs steps of one model on one device.
pub struct Stepper {
    /// The device.
    pub backend: Box<dyn Backend>,
    pub(crate) model: Qwen3_5,
    precision: Precision,
    switches: Switches,
    plans: HashMap<PlanKey, Compiled>,
    clock: u64,
    inputs: StepInputs,
    /// Sequence entries not used by the current step, kept for their memory.
    spare: Vec<SequenceInputs>,
}

impl Stepper {
    /// A stepper whose device already has the model's weights and constants.
    pub fn new(backend: Box<dyn Backend>, model: Qwen3_5, precision: Precision, switches: Switches) -> Self {
        Self {
            backend,
            model,
            precision,
            switches,
            plans: HashMap::with_capacity(MAX_PLANS + 1),
            clock: 0,
            inputs: StepInputs::default(),
            spare: Vec::new(),
        }
    }

    /// The model.
    pub fn model(&self) -> &Qwen3_5 {
        &self.model
    }

    fn key(&self, program: Program, phase: Phase, tokens: usize, logits: Logits) -> PlanKey {
        let smallest = if phase == Phase::Prefill { MIN_BUCKET } else { 1 };
        let token_bucket = tokens.next_power_of_two().max(smallest);
        PlanKey {
            program,
            phase,
            token_bucket,
            sequence_bucket: phase.sequences(token_bucket),
            logits,
            precision: self.precision,
            device: self.backend.kind(),
            switches: self.switches,
        }
    }

    fn compiled(&mut self, key: PlanKey) -> Result<ExecutableId, DeviceError> {
        self.clock += 1;
        if let Some(c) = self.plans.get_mut(&key) {
            c.last_used = self.clock;
            return Ok(c.executable);
        }
        let oldest = self.plans.iter().min_by_key(|(_, c)| c.last_used).map(|(k, _)| *k);
        if self.plans.len() >= MAX_PLANS
            && let Some(c) = oldest.and_then(|key| self.plans.remove(&key))
        {
            self.backend.discard(c.executable);
        }
        let plan = Arc::new(self.model.record(key));
        let executable = self.backend.compile(Arc::clone(&plan))?;
        self.plans.insert(key, Compiled { executable, plan, last_used: self.clock });
        Ok(executable)
    }

    /// Bytes of scratch memory of the largest plan so far.
    pub fn arena_bytes(&self) -> usize {
        self.plans.values().map(|c| c.plan.arena_bytes).max().unwrap_or(0)
    }

    fn begin(&mut self, sessions: usize) {
        let inputs = &mut self.inputs;
        while inputs.sequences.len() > sessions {
            self.spare.extend(inputs.sequences.pop());
        }
        while inputs.sequences.len() < sessions {
            inputs.sequences.push(self.spare.pop().unwrap_or_default());
        }
        inputs.tokens.clear();
        inputs.outputs.clear();
        inputs.sampling.clear();
        inputs.edits.clear();
        inputs.masks.clear();
        inputs.tokens_on_device = false;
    }

    fn outputs(&mut self, logits: Logits, rows: usize, last: impl Iterator<Item = usize>) {
        match logits {
            Logits::None => {}
            Logits::Last => self.inputs.outputs.extend(last.map(|r| r as u32)),
            Logits::All => self.inputs.outputs.extend(0..rows as u32),
        }
    }

    /// Runs a chunk of one session's prompt. The session must have room for it.
    ///
    /// # Errors
    /// The device failed; the session is as it was.
    pub fn prefill(&mut self, session: &mut Session, tokens: &[u32], logits: Logits) -> Result<(), DeviceError> {
        let executable = self.prepare_prefill(session, tokens, logits)?;
        let ticket = self.backend.submit(executable, &self.inputs)?;
        self.backend.wait(ticket)?;
        session.advance(tokens);
        Ok(())
    }

    fn prepare_prefill(
        &mut self,
        session: &Session,
        tokens: &[u32],
        logits: Logits,
    ) -> Result<ExecutableId, DeviceError> {
        assert!(!tokens.is_empty(), "a step computes at least one token");
        let executable = self.compiled(self.key(Program::Forward, Phase::Prefill, tokens.len(), logits))?;
        self.begin(1);
        self.inputs.tokens.extend_from_slice(tokens);
        session.fill_inputs(0, tokens.len(), &mut self.inputs.sequences[0]);
        self.outputs(logits, tokens.len(), std::iter::once(tokens.len() - 1));
        Ok(executable)
    }

    /// A prefill shown dispatch by dispatch; `observer` gets the plan first, for its taps.
    ///
    /// # Errors
    /// The device failed.
    pub fn observe_prefill<O: Observer>(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        observer: impl FnOnce(&Plan) -> O,
    ) -> Result<O, DeviceError> {
        let executable = self.prepare_prefill(session, tokens, Logits::All)?;
        let key = self.key(Program::Forward, Phase::Prefill, tokens.len(), Logits::All);
        let mut observer = observer(&self.plans[&key].plan);
        self.backend.observe(executable, &self.inputs, &mut observer)?;
        session.advance(tokens);
        Ok(observer)
    }

    /// Runs one token of each session. `tokens` are their ids; with `None`, the ids that the last `sample` left on the
    /// device (its rows being these sessions in this order), which `sample` also returned.
    ///
    /// # Errors
    /// The device failed; the sessions are as they were.
    pub fn decode(
        &mut self,
        sessions: &mut [&mut Session],
        tokens: &[u32],
        on_device: bool,
    ) -> Result<(), DeviceError> {
        assert_eq!(sessions.len(), tokens.len());
        let rows = sessions.iter().map(|session| &**session);
        let ticket = self.submit_decode(rows, tokens.iter().copied(), on_device)?;
        self.backend.wait(ticket)?;
        for (session, token) in sessions.iter_mut().zip(tokens) {
            session.advance(std::slice::from_ref(token));
        }
        Ok(())
    }

    fn submit_decode<'s>(
        &mut self,
        sessions: impl ExactSizeIterator<Item = &'s Session>,
        tokens: impl Iterator<Item = u32>,
        on_device: bool,
    ) -> Result<Ticket, DeviceError> {
        let rows = sessions.len();
        let executable = self.compiled(self.key(Program::Forward, Phase::Decode, rows, Logits::Last))?;
        self.begin(rows);
        self.inputs.tokens.extend(tokens);
        self.inputs.tokens_on_device = on_device;
        for (row, session) in sessions.enumerate() {
            session.fill_inputs(row, 1, &mut self.inputs.sequences[row]);
        }
        self.outputs(Logits::Last, rows, 0..rows);
        self.backend.submit(executable, &self.inputs)
    }

    /// Whether a token goes to the next step without the host.
    pub fn hands_tokens_on(&self) -> bool {
        self.switches.is_on("token-handoff", self.backend.kind())
    }

    /// Whether the next step is to be submitted before a token is read.
    pub fn runs_ahead(&self) -> bool {
        self.hands_tokens_on() && self.backend.runs_ahead()
    }

    /// Submits the step of the tokens that `submit_sample` is choosing, whose rows are these sessions in this order; they
    /// must have room for it. Once a token is read, `Session::advance` takes its step over. Without that it has not
    /// happened: it wrote the other half of the state and a row of the cache behind the session's end. It overwrites the
    /// logits.
    ///
    /// # Errors
    /// The device failed.
    pub fn decode_ahead<'s>(
        &mut self,
        sessions: impl ExactSizeIterator<Item = &'s Session>,
    ) -> Result<Ticket, DeviceError> {
        // Nobody looks at these ids.
        let ids = std::iter::repeat_n(0, sessions.len());
        self.submit_decode(sessions, ids, true)
    }

    /// Adds a mask to those of the next `submit_sample`, which are forgotten with the step after it; its number is for
    /// `SamplingInputs`.
    pub fn push_mask(&mut self, mask: &[u32]) -> u32 {
        let words = mask_words(self.model.config.vocab_size);
        assert_eq!(mask.len(), words, "a bit for each logit");
        let number = self.inputs.masks.len() / words;
        self.inputs.masks.extend_from_slice(mask);
        number as u32
    }

    /// Chooses the next token of each output row of the last step, on the device, into the other token slot. `edits`
    /// are ordered by row. A row whose logits are not numbers gets `NO_TOKEN`, and its session cannot go on.
    ///
    /// # Errors
    /// The device failed.
    pub fn sample(
        &mut self,
        sampling: &[SamplingInputs],
        edits: &[LogitEdit],
        tokens: &mut [u32],
    ) -> Result<(), DeviceError> {
        let ticket = self.submit_sample(sampling, edits)?;
        self.sampled(ticket, tokens)
    }

    /// The first half of `sample`: the device has been told.
    ///
    /// # Errors
    /// The device failed.
    pub fn submit_sample(&mut self, sampling: &[SamplingInputs], edits: &[LogitEdit]) -> Result<Ticket, DeviceError> {
        assert_eq!(sampling.len(), self.inputs.outputs.len(), "one token for each output row of the last step");
        let executable = self.compiled(self.key(Program::Sample, Phase::Decode, sampling.len(), Logits::Last))?;
        self.inputs.sampling.clear();
        self.inputs.sampling.extend_from_slice(sampling);
        self.inputs.edits.clear();
        self.inputs.edits.extend_from_slice(edits);
        let ticket = self.backend.submit(executable, &self.inputs)?;
        self.inputs.token_slot = 1 - self.inputs.token_slot;
        Ok(ticket)
    }

    /// The second half: waits for the tokens.
    ///
    /// # Errors
    /// The device failed.
    pub fn sampled(&mut self, ticket: Ticket, tokens: &mut [u32]) -> Result<(), DeviceError> {
        self.backend.wait(ticket)?;
        self.backend.sampled(self.inputs.token_slot, tokens);
        Ok(())
    }

    /// Logits of the last step, `[rows, vocab_size]`.
    pub fn logits(&mut self, rows: usize) -> Vec<f32> {
        let mut out = vec![0.0; rows * self.model.config.vocab_size];
        self.read_logits(&mut out);
        out
    }

    /// The same, into rows that the caller keeps.
    pub fn read_logits(&mut self, out: &mut [f32]) {
        let cols = self.model.config.vocab_size;
        self.backend.logits(out.len() / cols, cols, out);
    }
}
