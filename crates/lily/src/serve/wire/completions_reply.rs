//! The reply to a completion, whole and in chunks, and the scores of its tokens in their old shape.

use std::sync::Arc;

use axum::http::StatusCode;
use lily_engine::prepare::Preparer;
use lily_engine::request::{Completion, Event, FinishReason, Logprob, TokenLogprobs};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::completions::CompletionRequest;
use super::reply::{Head, WireUsage, finish_reason, to_value, total_usage};
use crate::serve::error::ApiError;
use crate::serve::sse::{Frames, Reply};

/// A whole reply, or one chunk of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub struct TextCompletion {
    #[serde(flatten)]
    head: Head,
    /// `text_completion`
    object: &'static str,
    choices: Vec<TextChoice>,
    /// In a stream absent unless asked for; then null in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<WireUsage>>,
}

#[derive(Debug, Serialize, ToSchema)]
struct TextChoice {
    /// The answers to the first prompt come first, then those to the second, and so on.
    index: usize,
    text: String,
    logprobs: Option<TextLogprobs>,
    /// `stop` or `length`; in a stream in the last chunk of a choice.
    finish_reason: Option<&'static str>,
}

/// Scores of tokens, as four lists of one length.
#[derive(Debug, Default, Serialize, ToSchema)]
struct TextLogprobs {
    /// What is not whole characters is written `bytes:\xf0\x9f`.
    tokens: Vec<String>,
    /// Null for the first token of a prompt.
    token_logprobs: Vec<Option<f32>>,
    /// The likeliest tokens, and the token itself.
    top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Where each token begins in the text, in characters.
    text_offset: Vec<usize>,
}

/// Answers a completion request.
pub struct CompletionReply {
    head: Head,
    n: usize,
    include_usage: bool,
    echo: bool,
    only_echo: bool,
    logprobs: bool,
    preparer: Arc<Preparer>,
    choices: Vec<Streamed>,
}

/// How far a choice's stream is.
#[derive(Debug, Default)]
struct Streamed {
    prompt: Vec<u32>,
    offset: Offset,
    /// Tokens of the next piece.
    tokens: Vec<TokenLogprobs>,
    /// Tokens that were said.
    said: usize,
}

/// Counts characters, token by token.
#[derive(Debug, Default, Clone, Copy)]
struct Offset(usize);

impl Offset {
    fn take(&mut self, bytes: &[u8]) -> usize {
        let at = self.0;
        // A character counts where its first byte stands.
        self.0 += bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        at
    }
}

impl TextLogprobs {
    fn push(&mut self, token: TokenLogprobs, offset: &mut Offset, has_text: bool) {
        self.text_offset.push(offset.take(if has_text { &token.token.bytes } else { &[] }));
        let mut top = Map::new();
        for Logprob { bytes, logprob, .. } in token.top.iter().chain([&token.token]) {
            top.entry(spelled(bytes)).or_insert_with(|| number(*logprob));
        }
        self.tokens.push(spelled(&token.token.bytes));
        self.token_logprobs.push(Some(token.token.logprob));
        self.top_logprobs.push(Some(top));
    }
}

/// With the digits that the same number has in the other lists.
fn number(logprob: f32) -> Value {
    serde_json::from_str(&logprob.to_string()).unwrap_or_else(|_| Value::from(logprob))
}

fn spelled(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("bytes:{}", bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>()),
    }
}

impl CompletionReply {
    /// The reply to a request.
    pub fn new(model: &str, asked: &CompletionRequest, preparer: Arc<Preparer>) -> Self {
        let count = asked.ask.n * asked.ask.prompts.len();
        Self {
            head: Head::new("cmpl-", model),
            n: asked.ask.n,
            include_usage: asked.include_usage,
            echo: asked.echo,
            only_echo: asked.only_echo,
            logprobs: asked.ask.logprobs.is_some(),
            preparer,
            choices: (0..count).map(|_| Streamed::default()).collect(),
        }
    }

    fn text(&self, ids: &[u32]) -> String {
        self.preparer.codec().tokenizer().decode(ids, false)
    }

    /// The scores of a prompt's tokens.
    fn of_prompt(
        &self,
        ids: &[u32],
        completion: &Completion,
        into: &mut TextLogprobs,
        offset: &mut Offset,
    ) -> Result<(), ApiError> {
        let scores = completion.prompt_logprobs.as_ref().filter(|scores| scores.len() + 1 == ids.len());
        let scores = scores.ok_or_else(|| {
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the engine told no scores of the prompt's tokens")
        })?;
        let first = self.preparer.codec().tokenizer().token_bytes(ids[0]).to_vec();
        into.text_offset.push(offset.take(&first));
        into.tokens.push(spelled(&first));
        into.token_logprobs.push(None);
        into.top_logprobs.push(None);
        for token in scores {
            into.push(token.clone(), offset, true);
        }
        Ok(())
    }

    /// A token of the answer, in whose text control tokens do not stand.
    fn push(&self, token: TokenLogprobs, into: &mut TextLogprobs, offset: &mut Offset) {
        let has_text = !self.preparer.codec().tokenizer().is_special(token.token.id);
        into.push(token, offset, has_text);
    }

    /// The tokens that belong to the answer: all but those that a stop string cut off.
    fn of_answer(&self, completion: &Completion) -> Vec<TokenLogprobs> {
        let mut tokens = completion.logprobs.clone().unwrap_or_default();
        let is_end = |token: &TokenLogprobs| self.preparer.codec().tokenizer().is_special(token.token.id);
        if completion.finish_reason == FinishReason::Stop && !tokens.last().is_some_and(is_end) {
            let text = tokens.iter().rposition(|token| token.in_content).map_or(0, |last| last + 1);
            tokens.truncate(text);
        }
        tokens
    }

    fn choice(&self, index: usize, ids: &[u32], completion: &Completion) -> Result<TextChoice, ApiError> {
        let mut text = if self.echo { self.text(ids) } else { String::new() };
        let mut logprobs = TextLogprobs::default();
        let mut offset = Offset::default();
        if self.echo && self.logprobs {
            self.of_prompt(ids, completion, &mut logprobs, &mut offset)?;
        }
        let mut reason = FinishReason::Length;
        if !self.only_echo {
            text += &completion.content;
            self.of_answer(completion).into_iter().for_each(|token| self.push(token, &mut logprobs, &mut offset));
            reason = completion.finish_reason;
        }
        let logprobs = self.logprobs.then_some(logprobs);
        Ok(TextChoice { index, text, logprobs, finish_reason: Some(finish_reason(reason, false)) })
    }

    fn chunk(&self, choices: Vec<TextChoice>, usage: Option<WireUsage>) -> TextCompletion {
        let usage = self.include_usage.then_some(usage);
        TextCompletion { head: self.head.clone(), object: "text_completion", choices, usage }
    }

    /// The token that was generated because one must be is not counted where none was wanted.
    fn usage(&self, completions: &[Completion]) -> WireUsage {
        let mut usage = total_usage(completions, self.n);
        if self.only_echo {
            usage.completion_tokens = 0;
        }
        usage.into()
    }

    fn piece(&mut self, index: usize, text: String, tokens: Vec<TokenLogprobs>) -> TextChoice {
        let mut logprobs = TextLogprobs::default();
        let mut offset = self.choices[index].offset;
        self.choices[index].said += tokens.len();
        tokens.into_iter().for_each(|token| self.push(token, &mut logprobs, &mut offset));
        self.choices[index].offset = offset;
        let logprobs = Some(logprobs).filter(|logprobs| !logprobs.tokens.is_empty());
        TextChoice { index, text, logprobs, finish_reason: None }
    }
}

impl Reply for CompletionReply {
    fn begin(&mut self, prompts: &[Vec<u32>], frames: &mut Frames) {
        for (index, ids) in prompts.iter().enumerate() {
            self.choices[index].prompt.clone_from(ids);
            // With scores, the prompt is said when its scores are known.
            if self.echo && !self.logprobs {
                let choice = self.piece(index, self.text(ids), Vec::new());
                frames.data(&self.chunk(vec![choice], None));
            }
        }
    }

    fn event(&mut self, choice: usize, event: Event, frames: &mut Frames) {
        // The scores of an echoed prompt come with the completion; the rest waits for them.
        let waits = self.only_echo || self.echo && self.logprobs;
        match event {
            Event::Logprobs(tokens) if !waits => self.choices[choice].tokens.extend(tokens),
            Event::Content(text) if !waits => {
                let tokens = std::mem::take(&mut self.choices[choice].tokens);
                let piece = self.piece(choice, text, tokens);
                frames.data(&self.chunk(vec![piece], None));
            }
            Event::Start { .. }
            | Event::Prefill { .. }
            | Event::Logprobs(_)
            | Event::Content(_)
            | Event::Reasoning(_)
            | Event::ToolCall(_) => {}
        }
    }

    fn end(&mut self, choice: usize, completion: &Completion, frames: &mut Frames) {
        let last = if self.echo && self.logprobs {
            match self.choice(choice, &self.choices[choice].prompt, completion) {
                Ok(whole) => whole,
                Err(error) => return frames.data(&error.body()),
            }
        } else if self.only_echo {
            TextChoice { index: choice, text: String::new(), logprobs: None, finish_reason: Some("length") }
        } else {
            let said = self.choices[choice].said;
            let rest = if self.logprobs { self.of_answer(completion).split_off(said) } else { Vec::new() };
            let reason = finish_reason(completion.finish_reason, false);
            TextChoice { finish_reason: Some(reason), ..self.piece(choice, String::new(), rest) }
        };
        frames.data(&self.chunk(vec![last], None));
    }

    fn finish(&mut self, completions: &[Completion], frames: &mut Frames) {
        if self.include_usage {
            frames.data(&self.chunk(vec![], Some(self.usage(completions))));
        }
        frames.done();
    }

    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.data(&error.body());
        frames.done();
    }

    fn whole(self, prompts: &[Vec<u32>], completions: Vec<Completion>) -> Result<Value, ApiError> {
        let choices = completions.iter().zip(prompts).enumerate();
        let choices =
            choices.map(|(i, (completion, ids))| self.choice(i, ids, completion)).collect::<Result<_, _>>()?;
        let usage = Some(Some(self.usage(&completions)));
        to_value(&TextCompletion { head: self.head, object: "text_completion", choices, usage })
    }
}
