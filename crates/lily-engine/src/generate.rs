//! Flow 10: one request from tokens to events: prefill in chunks at absolute bounds, decode, stop. Cancellation is
//! looked for between chunks and between tokens; what was computed stays in the session.

use std::ops::ControlFlow;
use std::time::Instant;

use lily_kernels::backend::DeviceError;
use lily_kernels::inputs::SamplingInputs;
use lily_kernels::plan::Logits;

use crate::error::EngineError;
use crate::request::{CancelToken, Completion, Event, EventSink, FinishReason, Request, Timings, ToolCall, Usage};
use crate::runtime::Runtime;
use crate::session::Session;
use crate::text::AnswerStream;

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
    /// Asked for from outside.
    pub cancel: &'a CancelToken,
    /// Takes events.
    pub sink: &'a mut EventSink<'s>,
    /// Set when the sink has had enough.
    pub closed: bool,
}

/// Text collected from the events that were sent.
#[derive(Default)]
struct Collected {
    content: String,
    reasoning: String,
    tool_calls: Vec<ToolCall>,
}

impl Turn<'_, '_> {
    /// Runs the request to its end.
    ///
    /// # Errors
    /// The cache is too small or the device failed.
    pub fn run(
        &mut self,
        prompt: PromptIds,
        request: &Request,
        mut answer: AnswerStream,
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
        let mut collected = Collected::default();
        let mut tokens = Vec::with_capacity(budget);
        let finish_reason = if prefilled {
            self.decode(prompt.ids.len(), request, &mut tokens, &mut |turn, id| {
                let events = answer.push(id);
                turn.forward(events, &mut collected);
            })?
        } else {
            FinishReason::Cancelled
        };
        let events = answer.finish();
        self.forward(events, &mut collected);
        self.keep_snapshot();
        Ok(Completion {
            content: collected.content,
            reasoning: collected.reasoning,
            tool_calls: collected.tool_calls,
            finish_reason,
            usage: Usage { prompt_tokens: prompt.ids.len(), cached_tokens, completion_tokens: tokens.len() },
            timings: Timings { prefill_ms, decode_ms: started.elapsed().as_secs_f64() * 1e3 - prefill_ms },
            tokens,
        })
    }

    fn send(&mut self, event: Event) {
        if !self.closed && (self.sink)(event) == ControlFlow::Break(()) {
            self.closed = true;
        }
    }

    fn forward(&mut self, events: Vec<Event>, collected: &mut Collected) {
        for event in events {
            match &event {
                Event::Content(text) => collected.content.push_str(text),
                Event::Reasoning(text) => collected.reasoning.push_str(text),
                Event::ToolCall(call) => collected.tool_calls.push(call.clone()),
                Event::Start { .. } | Event::Prefill { .. } => {}
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

    /// Samples and steps until a stop id, a bound or cancellation.
    fn decode(
        &mut self,
        prompt_tokens: usize,
        request: &Request,
        tokens: &mut Vec<u32>,
        on_token: &mut dyn FnMut(&mut Self, u32),
    ) -> Result<FinishReason, EngineError> {
        let budget = self.budget(prompt_tokens, request);
        loop {
            if tokens.len() >= budget {
                return Ok(FinishReason::Length);
            }
            let mut next = [0];
            let sampling = self.sampling(request, prompt_tokens + tokens.len());
            self.runtime.stepper.sample(&[sampling], &mut next)?;
            tokens.push(next[0]);
            if self.limits.stop_ids.contains(&next[0]) && !request.ignore_eos {
                return Ok(FinishReason::Stop);
            }
            on_token(self, next[0]);
            if self.stopped() {
                return Ok(FinishReason::Cancelled);
            }
            if tokens.len() < budget {
                self.runtime.reserve(self.session, 1)?;
                self.runtime.stepper.decode(&mut [self.session], &next, true)?;
            }
        }
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
