//! Flow 11: one request on its way from tokens to an answer: what it is to compute next, what each chosen token means,
//! and how it ends. Runs no step; `batch.rs` does, for all requests at once.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Instant;

use lily_kernels::inputs::{LogitEdit, SamplingInputs};
use lily_kernels::ops::sample::NO_TOKEN;

use crate::error::EngineError;
use crate::logprobs::Scorer;
use crate::penalties::Edits;
use crate::prepare::Prepared;
use crate::request::{CancelToken, Completion, Event, FinishReason, Request, Timings, TokenLogprobs, ToolCall, Usage};
use crate::schedule::{Deliver, RequestId, Update};
use crate::session::Session;
use crate::structure::Structure;
use crate::text::{AnswerStream, Tokenizer};

/// Most bytes of logits of one chunk where those of every prompt token are wanted.
const SCORED_BYTES: usize = 16 << 20;

/// What bounds a generation, from options and checkpoint.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Positions that a session may hold.
    pub context_length: usize,
    /// Prefill chunk bound.
    pub prefill_chunk: usize,
    /// Requests that may run at the same time.
    pub parallel: usize,
    /// Ids that end an answer.
    pub stop_ids: Vec<u32>,
    /// Ids from here on are padding of the vocabulary.
    pub vocab_limit: u32,
    /// Rows of logits.
    pub vocab_size: usize,
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Some of its tokens are not computed, and no token was chosen behind the last.
    Prefill,
    /// It gave its memory to an older request, and waits until one ends.
    Parked,
    /// All its tokens but the last are computed, or all and a token is to be chosen.
    Decode,
}

/// One running request.
pub struct Generation {
    /// Its name.
    pub id: RequestId,
    /// What it waits for.
    pub phase: Phase,
    /// Its timeline; none before the first chunk and while it is parked.
    pub session: Option<Session>,
    /// Ends it from outside.
    pub cancel: CancelToken,
    request: Request,
    /// The prompt, and what was generated.
    ids: Vec<u32>,
    prompt_len: usize,
    resume_points: Vec<usize>,
    /// Most tokens to generate.
    budget: usize,
    edits: Edits,
    scorer: Option<Scorer>,
    prompt_scores: Option<Vec<TokenLogprobs>>,
    close_think: Vec<u32>,
    /// Tokens that come next, whatever the model says.
    forced: VecDeque<u32>,
    /// Tokens inside the think block.
    thought: usize,
    answer: Answer,
    /// What the answer must be; away while its mask is found.
    pub structure: Option<Structure>,
    /// Prompt tokens computed for it.
    prefilled: usize,
    prefill_ms: Option<f64>,
    started: Instant,
    /// The caller knows that it runs.
    announced: bool,
    /// The caller has had enough.
    closed: bool,
}

/// An answer as it comes.
struct Answer {
    stream: AnswerStream,
    /// When the first token was there.
    first_token: Option<Instant>,
    content: String,
    reasoning: String,
    tool_calls: Vec<ToolCall>,
}

impl Generation {
    /// A request that has computed nothing.
    pub fn new(id: RequestId, prepared: Prepared, cancel: CancelToken, limits: &Limits) -> Self {
        let Prepared { request, ids, resume_points, close_think, answer, structure } = prepared;
        let prompt_len = ids.len();
        let room = limits.context_length - prompt_len;
        let budget = request.max_tokens.map_or(room, |max| max.min(room));
        let mut this = Self {
            id,
            phase: Phase::Prefill,
            session: None,
            cancel,
            edits: Edits::new(&request, &ids, budget, limits.vocab_limit as usize),
            scorer: request.logprobs.map(Scorer::new),
            prompt_scores: request.prompt_logprobs.map(|_| Vec::with_capacity(prompt_len)),
            request,
            ids,
            prompt_len,
            resume_points,
            budget,
            close_think,
            forced: VecDeque::new(),
            thought: 0,
            answer: Answer {
                stream: answer,
                first_token: None,
                content: String::new(),
                reasoning: String::new(),
                tool_calls: Vec::new(),
            },
            structure,
            prefilled: 0,
            prefill_ms: None,
            started: Instant::now(),
            announced: false,
            closed: false,
        };
        this.ids.reserve_exact(budget);
        this.bound_thinking();
        this
    }

    /// All its tokens so far.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Tokens of the prompt.
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// Tokens computed so far.
    pub fn computed(&self) -> usize {
        self.session.as_ref().map_or(0, Session::len)
    }

    /// Whether someone has asked it to end.
    pub fn stopped(&self) -> bool {
        self.closed || self.cancel.is_cancelled()
    }

    /// Whether it may begin with what earlier requests have computed: not where the logits of the prompt are wanted.
    pub fn may_resume(&self) -> bool {
        self.prompt_scores.is_none()
    }

    /// Whether the logits of every row of its chunks are wanted.
    pub fn wants_prompt_scores(&self) -> bool {
        self.prompt_scores.is_some() && self.computed() + 1 < self.prompt_len
    }

    /// Whether the logits of its row are looked at.
    pub fn wants_scores(&self) -> bool {
        self.scorer.is_some()
    }

    /// Whether the next token is the model's choice, and not the last.
    pub fn may_run_ahead(&self) -> bool {
        self.forced.is_empty() && !self.wants_scores() && self.generated() + 1 < self.budget
    }

    /// Whether the next token is the model's choice.
    pub fn is_free(&self) -> bool {
        self.forced.is_empty()
    }

    /// Whether it may generate a token more.
    pub fn has_budget(&self) -> bool {
        self.generated() < self.budget
    }

    fn generated(&self) -> usize {
        self.ids.len() - self.prompt_len
    }

    /// Hands an event on.
    pub fn send(&mut self, event: Event, deliver: &mut Deliver) {
        if !self.closed && deliver(self.id, Update::Event(event)) == ControlFlow::Break(()) {
            self.closed = true;
        }
    }

    /// Its timeline has begun.
    pub fn begun(&mut self, deliver: &mut Deliver) {
        let most = self.prompt_len + self.budget;
        if let Some(session) = &mut self.session {
            session.reserve_tokens(most);
        }
        if !self.announced {
            self.announced = true;
            let event = Event::Start { prompt_tokens: self.prompt_len, cached_tokens: self.computed() };
            self.send(event, deliver);
        }
    }

    /// End of the chunk that comes next: the next absolute multiple of the chunk bound, the next place where a state is
    /// worth keeping, or the last token. Absolute bounds make chunks independent of what was cached.
    pub fn chunk_end(&self, limits: &Limits) -> usize {
        let (at, total) = (self.computed(), self.ids.len());
        if self.wants_prompt_scores() {
            // The logits of the last token are no score, but what the answer begins with.
            let chunk = limits.prefill_chunk.min((SCORED_BYTES / (4 * limits.vocab_size)).max(1));
            return chunk_end(at, self.prompt_len - 1, &[], chunk);
        }
        chunk_end(at, total, &self.resume_points, limits.prefill_chunk)
    }

    /// Whether the state at the end of a chunk is worth keeping.
    pub fn is_resume_point(&self, len: usize, limits: &Limits) -> bool {
        len.is_multiple_of(limits.prefill_chunk) || self.resume_points.contains(&len)
    }

    /// A chunk of `tokens` ended at `end`.
    pub fn chunk_done(&mut self, tokens: usize, end: usize, deliver: &mut Deliver) {
        if self.prefill_ms.is_none() {
            self.prefilled += tokens;
            self.send(Event::Prefill { done: end, total: self.prompt_len }, deliver);
            if end == self.ids.len() {
                self.prefill_ms = Some(self.started.elapsed().as_secs_f64() * 1e3);
            }
        }
    }

    /// The logits of a chunk's rows, which began at `at`: scores of the tokens behind each.
    pub fn score_prompt(&mut self, at: usize, logits: &[f32], limits: &Limits, tokenizer: &Tokenizer) {
        let Some(scores) = &mut self.prompt_scores else { return };
        let mut scorer = Scorer::new(self.request.prompt_logprobs.unwrap_or(0));
        // Some may be there from before it gave way to another.
        let rows = logits.chunks_exact(limits.vocab_size).zip(&self.ids[at + 1..]);
        for (row, id) in rows.skip(scores.len() - at) {
            scores.push(scorer.score(row, tokenizer, *id));
        }
    }

    /// How its next token is chosen.
    pub fn sampling(&self, limits: &Limits) -> SamplingInputs {
        let s = &self.request.sampling;
        SamplingInputs {
            temperature: s.temperature,
            top_k: s.top_k,
            top_p: s.top_p,
            min_p: s.min_p,
            seed: s.seed,
            counter: self.ids.len() as u64,
            vocab_limit: limits.vocab_limit,
            mask: None,
        }
    }

    /// The only ids that its next token may be, unless all may be.
    pub fn mask(&self) -> Option<&[u32]> {
        self.structure.as_ref().and_then(Structure::mask)
    }

    /// What the logits of its row are edited by.
    pub fn edits(&self, row: usize) -> impl Iterator<Item = LogitEdit> {
        self.edits.list().iter().map(move |edit| LogitEdit { row: row as u32, ..*edit })
    }

    /// Takes the token that the device chose for it, with the row's logits if it wants them. Returns why the answer is
    /// at its end, if it is.
    ///
    /// # Errors
    /// There was nothing to choose from, or the grammar failed.
    pub fn take(
        &mut self,
        chosen: u32,
        logits: &[f32],
        (limits, tokenizer): (&Limits, &Tokenizer),
        deliver: &mut Deliver,
    ) -> Result<Option<FinishReason>, EngineError> {
        let id = self.forced.pop_front().unwrap_or(chosen);
        if id == NO_TOKEN {
            return Err(EngineError::Logits { position: self.ids.len() });
        }
        self.ids.push(id);
        self.edits.generated(id);
        let scores = self.scorer.as_mut().map(|scorer| scorer.score(logits, tokenizer, id));
        if limits.stop_ids.contains(&id) && !self.request.ignore_eos {
            self.answer.stream.end(scores);
            return Ok(Some(FinishReason::Stop));
        }
        self.answer.first_token.get_or_insert_with(Instant::now);
        self.thought += usize::from(self.answer.stream.is_reasoning());
        let events = self.answer.stream.push(id, scores);
        self.forward(events, deliver);
        self.bound_thinking();
        self.structure.as_mut().map_or(Ok(()), |structure| structure.accept(id))?;
        let is_complete = self.structure.as_ref().is_some_and(Structure::must_end);
        Ok(if self.answer.stream.stopped() || is_complete {
            Some(FinishReason::Stop)
        } else if self.stopped() {
            Some(FinishReason::Cancelled)
        } else if !self.has_budget() {
            Some(FinishReason::Length)
        } else {
            None
        })
    }

    /// Closes the think block where it has had its tokens.
    fn bound_thinking(&mut self) {
        let spent = self.request.thinking_budget.is_some_and(|budget| self.thought >= budget);
        if spent && self.answer.stream.is_reasoning() {
            self.forced.extend(self.close_think.drain(..));
        }
    }

    fn forward(&mut self, events: Vec<Event>, deliver: &mut Deliver) {
        for event in events {
            match &event {
                Event::Content(text) => self.answer.content.push_str(text),
                Event::Reasoning(text) => self.answer.reasoning.push_str(text),
                Event::ToolCall(call) => self.answer.tool_calls.push(call.clone()),
                Event::Start { .. } | Event::Prefill { .. } | Event::Logprobs(_) => {}
            }
            self.send(event, deliver);
        }
    }

    /// Sends what was held back, and sums the answer up. Call once.
    pub fn finish(&mut self, reason: FinishReason, deliver: &mut Deliver) -> Completion {
        let events = self.answer.stream.finish();
        self.forward(events, deliver);
        // A stop string may be found only where the text ends.
        let found = self.answer.stream.stopped() && reason == FinishReason::Length;
        let finish_reason = if found { FinishReason::Stop } else { reason };
        let ms_since_start = |at: Instant| at.duration_since(self.started).as_secs_f64() * 1e3;
        let total_ms = ms_since_start(Instant::now());
        let prefill_ms = self.prefill_ms.unwrap_or(total_ms);
        let cached_tokens = self.prompt_len.min(self.computed()).saturating_sub(self.prefilled);
        Completion {
            content: std::mem::take(&mut self.answer.content),
            reasoning: std::mem::take(&mut self.answer.reasoning),
            tool_calls: std::mem::take(&mut self.answer.tool_calls),
            tokens: self.ids[self.prompt_len..].to_vec(),
            logprobs: self.request.logprobs.map(|_| self.answer.stream.take_logprobs()),
            prompt_logprobs: self.prompt_scores.take(),
            finish_reason,
            usage: Usage {
                prompt_tokens: self.prompt_len,
                cached_tokens,
                completion_tokens: self.generated(),
                reasoning_tokens: self.thought,
            },
            timings: Timings {
                prefill_ms,
                first_token_ms: self.answer.first_token.map_or(0.0, ms_since_start),
                decode_ms: total_ms - prefill_ms,
            },
        }
    }
}

fn chunk_end(at: usize, total: usize, points: &[usize], chunk: usize) -> usize {
    let bound = (at / chunk + 1) * chunk;
    let point = points.iter().copied().find(|point| *point > at).unwrap_or(total);
    bound.min(point).min(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(mut at: usize, total: usize, points: &[usize], chunk: usize) -> Vec<usize> {
        let mut ends = Vec::new();
        while at < total {
            at = chunk_end(at, total, points, chunk);
            ends.push(at);
        }
        ends
    }

    #[test]
    fn chunks_end_at_absolute_bounds_and_where_a_state_is_kept() {
        assert_eq!(chunks(0, 10, &[], 4), [4, 8, 10]);
        assert_eq!(chunks(3, 10, &[], 4), [4, 8, 10]);
        assert_eq!(chunks(0, 10, &[6], 4), [4, 6, 8, 10]);
        assert_eq!(chunks(0, 10, &[2, 6], 4), [2, 4, 6, 8, 10]);
        assert_eq!(chunks(0, 8, &[8], 4), [4, 8]);
        assert_eq!(chunks(7, 8, &[4], 2048), [8]);
    }
}
