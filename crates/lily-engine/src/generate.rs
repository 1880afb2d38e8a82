//! Flow 11: one request from tokens to events: prefill in chunks at absolute bounds, decode, stop. Cancellation is
//! looked for between chunks and between tokens; what was computed stays in the session.

use std::ops::ControlFlow;
use std::time::Instant;

use lily_kernels::backend::DeviceError;
use lily_kernels::inputs::SamplingInputs;
use lily_kernels::ops::sample::NO_TOKEN;
use lily_kernels::plan::Logits;

use crate::error::EngineError;
use crate::logprobs::Scorer;
use crate::penalties::Edits;
use crate::request::{
    CancelToken, Completion, Event, EventSink, FinishReason, Request, Timings, TokenLogprobs, ToolCall, Usage,
};
use crate::runtime::Runtime;
use crate::session::Session;
use crate::text::{AnswerStream, Tokenizer};

/// What bounds a generation, from options and checkpoint.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Positions that a session may hold.
    pub context_length: usize,
    /// Prefill chunk bound.
    pub prefill_chunk: usize,
    /// Bytes of snapshots that a session may keep.
    pub snapshot_bytes: usize,
    /// Ids that end an answer.
    pub stop_ids: Vec<u32>,
    /// Ids from here on are padding of the vocabulary.
    pub vocab_limit: u32,
}

/// A prompt ready to run.
#[derive(Debug, Clone, Copy)]
pub struct PromptIds<'a> {
    /// All tokens.
    pub ids: &'a [u32],
    /// Leading tokens that stay the same when the conversation goes on; a snapshot is kept there.
    pub stable: usize,
}

/// One request on one session.
pub struct Turn<'a, 's> {
    /// Model and device.
    pub runtime: &'a mut Runtime,
    /// The timeline, rewound to a prefix of the prompt.
    pub session: &'a mut Session,
    /// Bounds.
    pub limits: &'a Limits,
    /// Names tokens in log-probabilities.
    pub tokenizer: &'a Tokenizer,
    /// Asked for from outside.
    pub cancel: &'a CancelToken,
    /// Takes events.
    pub sink: &'a mut EventSink<'s>,
    /// Set when the sink has had enough.
    pub closed: bool,
}

/// An answer as it comes, and what of it was sent.
struct Answer {
    stream: AnswerStream,
    /// When the first token was there.
    first_token: Option<Instant>,
    tokens: Vec<u32>,
    content: String,
    reasoning: String,
    tool_calls: Vec<ToolCall>,
}

impl Turn<'_, '_> {
    /// Runs the request to its end.
    ///
    /// # Errors
    /// The cache is too small, the device failed, or the logits are not numbers.
    pub fn run(
        &mut self,
        prompt: PromptIds,
        request: &Request,
        stream: AnswerStream,
    ) -> Result<Completion, EngineError> {
        let started = Instant::now();
        let cached_tokens = self.session.len();
        let budget = self.budget(prompt.ids.len(), request);
        self.session.reserve_tokens(prompt.ids.len() + budget);
        self.send(Event::Start { prompt_tokens: prompt.ids.len(), cached_tokens });
        // A chunk may take seconds, so a cancellation is looked for inside it; a decode step is short enough.
        self.runtime.stepper.backend.interrupt_by(Some(self.cancel.flag()));
        let prefilled = self.prefill(prompt);
        self.runtime.stepper.backend.interrupt_by(None);
        let prefilled = prefilled?;
        let prefill_ms = started.elapsed().as_secs_f64() * 1e3;
        let mut answer = Answer {
            stream,
            first_token: None,
            tokens: Vec::with_capacity(budget),
            content: String::new(),
            reasoning: String::new(),
            tool_calls: Vec::new(),
        };
        let mut finish_reason = FinishReason::Cancelled;
        if prefilled {
            finish_reason = self.decode(prompt.ids, request, &mut answer)?;
        }
        let events = answer.stream.finish();
        self.forward(events, &mut answer);
        if answer.stream.stopped() && finish_reason == FinishReason::Length {
            // It was found where the text ended.
            finish_reason = FinishReason::Stop;
        }
        self.keep_snapshot();
        let completion_tokens = answer.tokens.len();
        let ms_since_start = |at: Instant| at.duration_since(started).as_secs_f64() * 1e3;
        Ok(Completion {
            content: answer.content,
            reasoning: answer.reasoning,
            tool_calls: answer.tool_calls,
            tokens: answer.tokens,
            logprobs: request.logprobs.map(|_| answer.stream.into_logprobs().unwrap_or_default()),
            prompt_logprobs: None,
            finish_reason,
            usage: Usage { prompt_tokens: prompt.ids.len(), cached_tokens, completion_tokens },
            timings: Timings {
                prefill_ms,
                first_token_ms: answer.first_token.map_or(0.0, ms_since_start),
                decode_ms: ms_since_start(Instant::now()) - prefill_ms,
            },
        })
    }

    fn send(&mut self, event: Event) {
        if !self.closed && (self.sink)(event) == ControlFlow::Break(()) {
            self.closed = true;
        }
    }

    fn forward(&mut self, events: Vec<Event>, answer: &mut Answer) {
        for event in events {
            match &event {
                Event::Content(text) => answer.content.push_str(text),
                Event::Reasoning(text) => answer.reasoning.push_str(text),
                Event::ToolCall(call) => answer.tool_calls.push(call.clone()),
                Event::Start { .. } | Event::Prefill { .. } | Event::Logprobs(_) => {}
            }
            self.send(event);
        }
    }

    fn stopped(&self) -> bool {
        self.closed || self.cancel.is_cancelled()
    }

    fn keep_snapshot(&mut self) {
        self.session.snapshot(&mut *self.runtime.stepper.backend, self.limits.snapshot_bytes);
    }

    /// Computes what the session lacks of the prompt; `false` if cancelled on the way.
    fn prefill(&mut self, prompt: PromptIds) -> Result<bool, EngineError> {
        let total = prompt.ids.len();
        let missing = total - self.session.len();
        self.runtime.reserve(self.session, missing)?;
        while self.session.len() < total {
            if self.stopped() {
                return Ok(false);
            }
            let at = self.session.len();
            let end = chunk_end(at, total, prompt.stable, self.limits.prefill_chunk);
            let logits = if end == total { Logits::Last } else { Logits::None };
            match self.runtime.stepper.prefill(self.session, &prompt.ids[at..end], logits) {
                Ok(()) => self.keep_snapshot(),
                Err(DeviceError::Interrupted) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            self.send(Event::Prefill { done: end, total });
        }
        Ok(!self.stopped())
    }

    /// Samples and steps until a stop id, a stop string, a bound or cancellation.
    fn decode(&mut self, prompt: &[u32], request: &Request, answer: &mut Answer) -> Result<FinishReason, EngineError> {
        let budget = self.budget(prompt.len(), request);
        let mut edits = Edits::new(request, prompt, budget, self.limits.vocab_limit as usize);
        let rows = self.runtime.stepper.model().config.vocab_size;
        let mut scorer = request.logprobs.map(|count| Scorer::new(count, rows));
        // A scorer reads the logits, which the next step overwrites.
        let runs_ahead = self.runtime.stepper.runs_ahead() && scorer.is_none();
        let hands_on = self.runtime.stepper.hands_tokens_on();
        while answer.tokens.len() < budget {
            let mut next = [0];
            let position = prompt.len() + answer.tokens.len();
            let sampling = self.sampling(request, position);
            let ticket = self.runtime.stepper.submit_sample(&[sampling], edits.list())?;
            // Whatever token it is, all but the last take a step. What a stop makes void is no part of the session.
            let is_last = answer.tokens.len() + 1 == budget;
            let is_ahead = runs_ahead && !is_last && self.runtime.has_room(self.session, 1);
            if is_ahead {
                self.runtime.stepper.decode_ahead(self.session)?;
            }
            self.runtime.stepper.sampled(ticket, &mut next)?;
            let [id] = next;
            if id == NO_TOKEN {
                return Err(EngineError::Logits { position });
            }
            answer.tokens.push(id);
            edits.generated(id);
            let scores = scorer.as_mut().map(|s| s.score(&mut self.runtime.stepper, self.tokenizer, id));
            if self.limits.stop_ids.contains(&id) && !request.ignore_eos {
                answer.stream.end(scores);
                return Ok(FinishReason::Stop);
            }
            self.hand_on(id, scores, answer);
            if answer.stream.stopped() {
                return Ok(FinishReason::Stop);
            }
            if self.stopped() {
                return Ok(FinishReason::Cancelled);
            }
            if is_ahead {
                self.session.advance(&next);
            } else if !is_last {
                self.runtime.reserve(self.session, 1)?;
                self.runtime.stepper.decode(&mut [self.session], &next, hands_on)?;
            }
        }
        Ok(FinishReason::Length)
    }

    fn hand_on(&mut self, id: u32, scores: Option<TokenLogprobs>, answer: &mut Answer) {
        answer.first_token.get_or_insert_with(Instant::now);
        let events = answer.stream.push(id, scores);
        self.forward(events, answer);
    }

    /// Most tokens that the request may generate.
    fn budget(&self, prompt_tokens: usize, request: &Request) -> usize {
        let room = self.limits.context_length - prompt_tokens;
        request.max_tokens.map_or(room, |max| max.min(room))
    }

    fn sampling(&self, request: &Request, position: usize) -> SamplingInputs {
        let s = &request.sampling;
        SamplingInputs {
            temperature: s.temperature,
            top_k: s.top_k,
            top_p: s.top_p,
            min_p: s.min_p,
            seed: s.seed,
            counter: position as u64,
            vocab_limit: self.limits.vocab_limit,
            mask: None,
        }
    }
}

/// End of the chunk that starts at `at`: the next absolute multiple of `chunk`, the stable prefix (so that its state
/// can be kept), or the prompt's end. Absolute bounds make chunks independent of what was cached.
fn chunk_end(at: usize, total: usize, stable: usize, chunk: usize) -> usize {
    let bound = (at / chunk + 1) * chunk;
    let end = bound.min(total);
    if at < stable && stable < end { stable } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(mut at: usize, total: usize, stable: usize, chunk: usize) -> Vec<usize> {
        let mut ends = Vec::new();
        while at < total {
            at = chunk_end(at, total, stable, chunk);
            ends.push(at);
        }
        ends
    }

    #[test]
    fn chunks_end_at_absolute_bounds_and_at_the_stable_prefix() {
        assert_eq!(chunks(0, 10, 0, 4), [4, 8, 10]);
        assert_eq!(chunks(3, 10, 0, 4), [4, 8, 10]);
        assert_eq!(chunks(0, 10, 6, 4), [4, 6, 8, 10]);
        assert_eq!(chunks(0, 8, 8, 4), [4, 8]);
        assert_eq!(chunks(7, 8, 4, 2048), [8]);
    }
}
