//! Flow 12: all running requests, side by side. One turn is a decode step of every request that is generating, and a
//! prefill chunk of one that is not yet: so a long prompt holds the others up for no more than a chunk. Which requests
//! share a step changes no byte of an answer on the CPU.

use lily_kernels::backend::DeviceError;
use lily_kernels::inputs::{LogitEdit, SamplingInputs};
use lily_kernels::plan::Logits;

use crate::error::EngineError;
use crate::generate::{Generation, Limits, Phase};
use crate::request::FinishReason;
use crate::runtime::Runtime;
use crate::schedule::{Deliver, RequestId, Stats, Update};
use crate::session::Session;
use crate::structure::Masks;
use crate::text::Codec;

/// The running requests, oldest first.
#[derive(Default)]
pub struct Batch {
    generations: Vec<Generation>,
    /// Requests whose logits lie on the device, by row, and that wait for a token from them; some may have ended.
    ready: Vec<RequestId>,
    /// Rows of the last sampling, if its tokens are those that the requests took.
    slots: Vec<RequestId>,
    /// Whose chunk ran last.
    served: Option<RequestId>,
    /// What was done so far.
    pub stats: Stats,
    sampling: Vec<SamplingInputs>,
    edits: Vec<LogitEdit>,
    tokens: Vec<u32>,
    logits: Vec<f32>,
    /// Finds masks; there since the first request that needs one.
    masks: Option<Masks>,
}

impl Batch {
    /// Takes a request up.
    pub fn push(&mut self, generation: Generation) {
        self.generations.push(generation);
    }

    /// Requests that run.
    pub fn len(&self) -> usize {
        self.generations.len()
    }

    fn find(&self, id: RequestId) -> Option<&Generation> {
        self.generations.iter().find(|generation| generation.id == id)
    }

    fn find_mut(&mut self, id: RequestId) -> Option<&mut Generation> {
        self.generations.iter_mut().find(|generation| generation.id == id)
    }

    fn is_decoding(&self, id: RequestId) -> bool {
        self.find(id).is_some_and(|generation| generation.phase == Phase::Decode)
    }

    fn in_phase(&self, phase: Phase) -> Vec<RequestId> {
        self.generations.iter().filter(|generation| generation.phase == phase).map(|g| g.id).collect()
    }

    /// Whose turn it is to run a chunk: each in turn.
    fn next_prefill(&self) -> Option<RequestId> {
        let waiting = self.in_phase(Phase::Prefill);
        let after = |served| waiting.iter().copied().find(|id| *id > served);
        self.served.and_then(after).or(waiting.first().copied())
    }

    /// Sessions of these requests, in this order: that of the batch.
    fn sessions(&mut self, rows: &[RequestId]) -> Vec<&mut Session> {
        let in_rows = self.generations.iter_mut().filter(|generation| rows.contains(&generation.id));
        in_rows.filter_map(|generation| generation.session.as_mut()).collect()
    }
}

/// One turn.
pub struct Turn<'a, 'd> {
    /// Model and device.
    pub runtime: &'a mut Runtime,
    /// Bounds.
    pub limits: &'a Limits,
    /// Names tokens, and remembers how answers were written.
    pub codec: &'a Codec,
    /// The requests.
    pub batch: &'a mut Batch,
    /// Takes what comes of them.
    pub deliver: &'a mut Deliver<'d>,
}

impl Turn<'_, '_> {
    /// Runs at most one decode step and one chunk.
    pub fn run(&mut self) {
        self.end_stopped();
        self.decode();
        self.prefill();
    }

    fn end_stopped(&mut self) {
        let stopped: Vec<RequestId> = self.batch.generations.iter().filter(|g| g.stopped()).map(|g| g.id).collect();
        for id in stopped {
            self.end(id, Ok(FinishReason::Cancelled));
        }
    }

    /// Ends a request: its timeline can be resumed, unless a step of it failed.
    fn end(&mut self, id: RequestId, result: Result<FinishReason, EngineError>) {
        let Some(at) = self.batch.generations.iter().position(|generation| generation.id == id) else { return };
        let mut generation = self.batch.generations.remove(at);
        let result = match result {
            Ok(reason) => {
                let completion = generation.finish(reason, self.deliver);
                self.batch.stats.cached_tokens += completion.usage.cached_tokens as u64;
                self.codec.remember(generation.ids(), generation.prompt_len());
                if let Some(session) = generation.session {
                    self.runtime.keep(session);
                }
                Ok(completion)
            }
            Err(error) => {
                // A failed step may have left half a state.
                if let Some(session) = generation.session {
                    self.runtime.discard(session);
                }
                Err(error)
            }
        };
        let parked = self.batch.generations.iter_mut().filter(|generation| generation.phase == Phase::Parked);
        parked.for_each(|generation| generation.phase = Phase::Prefill);
        let _ = (self.deliver)(id, Update::Done(Box::new(result)));
    }

    /// Room for `more` positions of a request. Where there is none, the youngest request gives way. `false` if that is
    /// this one, or if nobody is left to.
    fn make_room(&mut self, id: RequestId, more: usize) -> bool {
        loop {
            let Some(session) = self.batch.find_mut(id).and_then(|generation| generation.session.as_mut()) else {
                return false;
            };
            let Err(full) = self.runtime.reserve(session, more) else { return true };
            if !self.give_way(id, full.into()) {
                return false;
            }
        }
    }

    /// Takes the timeline of the youngest request, for one that needs blocks. `false` if that one cannot go on now.
    fn give_way(&mut self, id: RequestId, full: EngineError) -> bool {
        let mut holders = self.batch.generations.iter_mut().filter(|g| g.session.is_some() || g.id == id);
        let (first, last) = (holders.next().map(|g| g.id), holders.next_back());
        let Some(youngest) = last else {
            // Alone, and still too little.
            debug_assert_eq!(first, Some(id));
            self.end(id, Err(full));
            return false;
        };
        youngest.phase = Phase::Parked;
        let (youngest_id, session) = (youngest.id, youngest.session.take());
        if let Some(session) = session {
            self.batch.stats.preemptions += 1;
            self.runtime.discard(session);
        }
        youngest_id != id
    }

    /// A step of every request that is generating, unless it has run already, and a token for each.
    fn decode(&mut self) {
        let mut rows = std::mem::take(&mut self.batch.ready);
        if !rows.iter().any(|id| self.batch.is_decoding(*id)) {
            rows = self.forward();
        }
        if !rows.is_empty() {
            self.choose(rows);
        }
    }

    /// Computes the last token of every request that is generating; returns their rows.
    fn forward(&mut self) -> Vec<RequestId> {
        for id in self.batch.in_phase(Phase::Decode) {
            // Those that gave way meanwhile have no timeline.
            if self.batch.is_decoding(id) {
                self.make_room(id, 1);
            }
        }
        let rows = self.batch.in_phase(Phase::Decode);
        if rows.is_empty() {
            return rows;
        }
        let last = |id: &RequestId| self.batch.find(*id).and_then(|generation| generation.ids().last().copied());
        let tokens: Vec<u32> = rows.iter().filter_map(last).collect();
        let stepper = &mut self.runtime.stepper;
        let on_device = stepper.hands_tokens_on() && self.batch.slots == rows;
        let result = stepper.decode(&mut self.batch.sessions(&rows), &tokens, on_device);
        self.batch.stats.decode_steps += 1;
        match result {
            Ok(()) => rows,
            Err(error) => {
                self.fail(&rows, error);
                Vec::new()
            }
        }
    }

    /// A step failed: so did everyone in it.
    fn fail(&mut self, rows: &[RequestId], error: DeviceError) {
        let error = std::sync::Arc::new(error);
        for id in rows {
            self.end(*id, Err(EngineError::Device(error.clone())));
        }
    }

    /// A token for each of these requests, whose logits are those of the last step, row by row. Where the device can,
    /// the step behind it is submitted before the tokens are read.
    fn choose(&mut self, rows: Vec<RequestId>) {
        self.take_masks();
        let ahead = self.may_run_ahead(&rows);
        let tokens = match self.sample(&rows, ahead) {
            Ok(tokens) => tokens,
            Err(error) => return self.fail(&rows, error),
        };
        let mut own = true;
        let mut ended = Vec::new();
        for (row, (id, token)) in rows.iter().zip(&tokens).enumerate() {
            let cols = self.limits.vocab_size;
            let logits = self.batch.logits.get(row * cols..(row + 1) * cols).unwrap_or_default();
            let generations = &mut self.batch.generations;
            let decoding = |g: &&mut Generation| g.id == *id && g.phase == Phase::Decode;
            let Some(generation) = generations.iter_mut().find(decoding) else { continue };
            own &= generation.is_free();
            let means = (self.limits, &**self.codec.tokenizer());
            match generation.take(*token, logits, means, self.deliver) {
                // The step of this token runs meanwhile, or comes next.
                Ok(None) => {
                    if let Some(structure) = generation.structure.take() {
                        self.batch.masks.get_or_insert_with(Masks::new).find(*id, structure);
                    }
                }
                Ok(Some(reason)) => ended.push((*id, Ok(reason))),
                Err(error) => ended.push((*id, Err(error))),
            }
            self.batch.stats.generated_tokens += 1;
        }
        for (id, result) in ended {
            self.end(id, result);
        }
        self.batch.slots = if own { rows.clone() } else { Vec::new() };
        if ahead {
            for (id, token) in rows.iter().zip(&tokens) {
                if let Some(session) = self.batch.find_mut(*id).and_then(|generation| generation.session.as_mut()) {
                    session.advance(std::slice::from_ref(token));
                }
            }
            self.batch.ready = rows;
        }
        self.batch.tokens = tokens;
    }

    /// Waits for the masks that are being found.
    fn take_masks(&mut self) {
        while let Some((id, structure, result)) = self.batch.masks.as_mut().and_then(Masks::next) {
            // Those that have ended need none.
            if let Some(generation) = self.batch.find_mut(id) {
                generation.structure = Some(structure);
            }
            if let Err(error) = result {
                self.end(id, Err(error.into()));
            }
        }
    }

    /// Whether the step behind the next tokens can be submitted before they are known: if all take part, and nothing
    /// else needs the logits.
    fn may_run_ahead(&mut self, rows: &[RequestId]) -> bool {
        let runs = |g: &Generation| g.phase == Phase::Decode && rows.contains(&g.id) && g.may_run_ahead();
        let all = self.batch.generations.len() == rows.len() && self.batch.generations.iter().all(runs);
        let runtime = &mut *self.runtime;
        runtime.stepper.runs_ahead()
            && all
            && self.batch.sessions(rows).into_iter().all(|session| runtime.has_room(session, 1))
    }

    fn sample(&mut self, rows: &[RequestId], ahead: bool) -> Result<Vec<u32>, DeviceError> {
        let (mut sampling, mut edits) =
            (std::mem::take(&mut self.batch.sampling), std::mem::take(&mut self.batch.edits));
        sampling.clear();
        edits.clear();
        let mut scored = false;
        for (row, id) in rows.iter().enumerate() {
            match self.batch.find(*id).filter(|generation| generation.phase == Phase::Decode) {
                Some(generation) => {
                    let mask = generation.mask().map(|mask| self.runtime.stepper.push_mask(mask));
                    sampling.push(SamplingInputs { mask, ..generation.sampling(self.limits) });
                    edits.extend(generation.edits(row));
                    scored |= generation.wants_scores();
                }
                // It has ended; nobody looks at the token.
                None => sampling.push(SamplingInputs { vocab_limit: self.limits.vocab_limit, ..UNUSED }),
            }
        }
        let mut tokens = std::mem::take(&mut self.batch.tokens);
        tokens.clear();
        tokens.resize(rows.len(), 0);
        let stepper = &mut self.runtime.stepper;
        let ticket = stepper.submit_sample(&sampling, &edits);
        (self.batch.sampling, self.batch.edits) = (sampling, edits);
        let ticket = ticket?;
        if ahead {
            stepper.decode_ahead(self.batch.sessions(rows).iter().map(|session| &**session))?;
            self.batch.stats.decode_steps += 1;
        }
        stepper.sampled(ticket, &mut tokens)?;
        let logits = &mut self.batch.logits;
        logits.clear();
        if scored {
            logits.resize(rows.len() * self.limits.vocab_size, 0.0);
            stepper.read_logits(logits);
        }
        Ok(tokens)
    }

    /// A chunk of the request whose turn it is, and its first token if that was the last.
    fn prefill(&mut self) {
        let Some(id) = self.batch.next_prefill() else { return };
        self.batch.served = Some(id);
        if !self.resume(id) {
            return;
        }
        let Some(generation) = self.batch.find(id) else { return };
        let (at, end) = (generation.computed(), generation.chunk_end(self.limits));
        if !self.make_room(id, end - at) {
            return;
        }
        match self.chunk(id, at, end) {
            Ok(true) => self.prefilled(id),
            Ok(false) => {}
            Err(DeviceError::Interrupted) => self.end(id, Ok(FinishReason::Cancelled)),
            Err(error) => self.fail(&[id], error),
        }
    }

    /// Begins a request's timeline, or moves it on to where another has come meanwhile; `false` if it must wait.
    fn resume(&mut self, id: RequestId) -> bool {
        let Some(generation) = self.batch.generations.iter_mut().find(|generation| generation.id == id) else {
            return false;
        };
        let begins = generation.session.is_none();
        let result = match generation.session.take() {
            None if generation.may_resume() => self.runtime.take_session(generation.ids()),
            None => self.runtime.fresh_session(),
            Some(mut session) if generation.may_resume() => {
                // Where running requests hold all blocks it goes on by itself.
                let _ = self.runtime.catch_up(&mut session, generation.ids());
                Ok(session)
            }
            Some(session) => Ok(session),
        };
        match result {
            Ok(session) => {
                generation.session = Some(session);
                if begins {
                    generation.begun(self.deliver);
                }
                true
            }
            Err(error @ EngineError::Cache(_)) => self.give_way(id, error) && self.resume(id),
            Err(error) => {
                self.end(id, Err(error));
                false
            }
        }
    }

    /// Computes a request's tokens from `at` to `end`; whether those were the last.
    fn chunk(&mut self, id: RequestId, at: usize, end: usize) -> Result<bool, DeviceError> {
        let Some(generation) = self.batch.generations.iter_mut().find(|generation| generation.id == id) else {
            return Ok(false);
        };
        let scored = generation.wants_prompt_scores();
        let is_last = end == generation.ids().len();
        let logits = match (scored, is_last) {
            (true, _) => Logits::All,
            (false, true) => Logits::Last,
            (false, false) => Logits::None,
        };
        let tokens = generation.ids()[at..end].to_vec();
        let Some(session) = generation.session.as_mut() else { return Ok(false) };
        // The step puts its own tokens where the sampled ones lie.
        self.batch.slots.clear();
        let stepper = &mut self.runtime.stepper;
        // A chunk may take seconds, so a cancellation is looked for inside it; a decode step is short enough.
        stepper.backend.interrupt_by(Some(generation.cancel.flag()));
        let result = stepper.prefill(session, &tokens, logits);
        stepper.backend.interrupt_by(None);
        result?;
        if scored {
            let logits = stepper.logits(tokens.len());
            generation.score_prompt(at, &logits, self.limits, self.codec.tokenizer());
        }
        if generation.is_resume_point(end, self.limits)
            && let Some(session) = &generation.session
        {
            self.runtime.snapshot(session);
        }
        generation.chunk_done(tokens.len(), end, self.deliver);
        self.batch.stats.prefill_chunks += 1;
        self.batch.stats.prefilled_tokens += tokens.len() as u64;
        Ok(is_last)
    }

    /// All of a request's tokens are computed: its next one.
    fn prefilled(&mut self, id: RequestId) {
        let Some(generation) = self.batch.find_mut(id) else { return };
        generation.phase = Phase::Decode;
        if generation.stopped() {
            self.end(id, Ok(FinishReason::Cancelled));
        } else if generation.has_budget() {
            self.choose(vec![id]);
        } else {
            self.end(id, Ok(FinishReason::Length));
        }
    }
}

/// Of a row that nobody looks at.
const UNUSED: SamplingInputs = SamplingInputs {
    temperature: 0.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    seed: 0,
    counter: 0,
    vocab_limit: 0,
    mask: None,
};
