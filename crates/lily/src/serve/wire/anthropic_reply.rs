//! Replies in Anthropic's form: content blocks, whole or event by event.

use std::sync::Arc;

use axum::response::sse::{self, KeepAlive};
use lily_engine::prepare::Preparer;
use lily_engine::request::{Completion, Event, FinishReason, ToolCall, Usage};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::reply::{random_id, to_value};
use crate::serve::error::ApiError;
use crate::serve::sse::{Frames, Reply};

/// A whole reply.
#[derive(Debug, Serialize, ToSchema)]
pub struct AnthropicMessage {
    id: String,
    /// `message`
    r#type: &'static str,
    /// `assistant`
    role: &'static str,
    model: String,
    content: Vec<Block>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`; null at the start of a stream
    stop_reason: Option<&'static str>,
    /// The one that ended the answer.
    stop_sequence: Option<String>,
    usage: AnthropicUsage,
}

/// A piece of the content.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    /// What the model thought.
    Thinking {
        thinking: String,
        /// Always empty: thoughts need no proof here.
        signature: &'static str,
    },
    /// What it says.
    Text { text: String },
    /// A tool that it calls.
    ToolUse { id: String, name: String, input: Map<String, Value> },
}

/// Token counts. Tokens of the prompt are in exactly one of the first three.
#[derive(Debug, Serialize, ToSchema)]
struct AnthropicUsage {
    /// Tokens of the prompt that were computed.
    input_tokens: usize,
    /// Always 0: keeping costs nothing.
    cache_creation_input_tokens: usize,
    /// Tokens of the prompt whose state was taken from earlier turns.
    cache_read_input_tokens: usize,
    output_tokens: usize,
}

impl From<Usage> for AnthropicUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached_tokens,
            output_tokens: usage.completion_tokens,
        }
    }
}

/// Answers a message.
pub struct MessageReply {
    id: String,
    model: String,
    stops: Vec<String>,
    preparer: Arc<Preparer>,
    /// Blocks that were begun.
    blocks: usize,
    open: Option<Open>,
    begun: bool,
}

/// The block that pieces are added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
}

impl MessageReply {
    /// The reply to a request with these stop sequences.
    pub fn new(model: &str, stops: &[String], preparer: Arc<Preparer>) -> Self {
        let id = random_id("msg_");
        Self { id, model: model.to_owned(), stops: stops.to_vec(), preparer, blocks: 0, open: None, begun: false }
    }

    fn message(&self, content: Vec<Block>, ended: Option<&Completion>, usage: Usage) -> AnthropicMessage {
        let (stop_reason, stop_sequence) = ended.map(|completion| self.reason(completion)).unzip();
        AnthropicMessage {
            id: self.id.clone(),
            r#type: "message",
            role: "assistant",
            model: self.model.clone(),
            content,
            stop_reason,
            stop_sequence: stop_sequence.flatten(),
            usage: usage.into(),
        }
    }

    fn reason(&self, completion: &Completion) -> (&'static str, Option<String>) {
        match completion.finish_reason {
            FinishReason::Length => ("max_tokens", None),
            FinishReason::Stop | FinishReason::Cancelled => match self.stop_sequence(completion) {
                Some(stop) => ("stop_sequence", Some(stop)),
                None if completion.tool_calls.is_empty() => ("end_turn", None),
                None => ("tool_use", None),
            },
        }
    }

    /// The stop sequence that ended an answer: the one that stands behind its content in what was generated.
    fn stop_sequence(&self, completion: &Completion) -> Option<String> {
        if self.stops.is_empty() {
            return None;
        }
        let text = self.preparer.codec().tokenizer().decode(&completion.tokens, true);
        let behind = &text[text.rfind(&completion.content)? + completion.content.len()..];
        let found = self.stops.iter().filter_map(|stop| Some((behind.find(stop.as_str())?, stop)));
        found.min_by_key(|(at, _)| *at).map(|(_, stop)| stop.clone())
    }

    fn start(&mut self, usage: Usage, frames: &mut Frames) {
        if !std::mem::replace(&mut self.begun, true) {
            let message = self.message(Vec::new(), None, usage);
            frames.named("message_start", &json!({"type": "message_start", "message": message}));
        }
    }

    fn close(&mut self, frames: &mut Frames) {
        if self.open.take().is_some() {
            self.stop_block(frames);
        }
    }

    fn stop_block(&self, frames: &mut Frames) {
        let index = self.blocks - 1;
        frames.named("content_block_stop", &json!({"type": "content_block_stop", "index": index}));
    }

    fn start_block(&mut self, block: &Block, frames: &mut Frames) {
        let index = self.blocks;
        let event = json!({"type": "content_block_start", "index": index, "content_block": block});
        frames.named("content_block_start", &event);
        self.blocks += 1;
    }

    fn delta(&self, delta: &Value, frames: &mut Frames) {
        let event = json!({"type": "content_block_delta", "index": self.blocks - 1, "delta": delta});
        frames.named("content_block_delta", &event);
    }

    fn piece(&mut self, kind: Open, text: &str, frames: &mut Frames) {
        if self.open != Some(kind) {
            self.close(frames);
            let block = match kind {
                Open::Thinking => Block::Thinking { thinking: String::new(), signature: "" },
                Open::Text => Block::Text { text: String::new() },
            };
            self.start_block(&block, frames);
            self.open = Some(kind);
        }
        let delta = match kind {
            Open::Thinking => json!({"type": "thinking_delta", "thinking": text}),
            Open::Text => json!({"type": "text_delta", "text": text}),
        };
        self.delta(&delta, frames);
    }
}

fn tool_use(call: &ToolCall) -> Block {
    Block::ToolUse { id: random_id("toolu_"), name: call.name.clone(), input: call.arguments.clone() }
}

impl Reply for MessageReply {
    fn begin(&mut self, _prompts: &[Vec<u32>], _frames: &mut Frames) {
        // The start holds the cached tokens, which the engine tells.
    }

    fn event(&mut self, _choice: usize, event: Event, frames: &mut Frames) {
        match event {
            Event::Start { prompt_tokens, cached_tokens } => {
                self.start(Usage { prompt_tokens, cached_tokens, ..Usage::default() }, frames);
            }
            Event::Prefill { .. } | Event::Logprobs(_) => {}
            Event::Reasoning(text) => self.piece(Open::Thinking, &text, frames),
            Event::Content(text) => self.piece(Open::Text, &text, frames),
            Event::ToolCall(call) => {
                self.close(frames);
                if let Block::ToolUse { id, name, input } = tool_use(&call) {
                    let empty = Block::ToolUse { id, name, input: Map::new() };
                    self.start_block(&empty, frames);
                    let json = Value::Object(input).to_string();
                    self.delta(&json!({"type": "input_json_delta", "partial_json": json}), frames);
                    self.stop_block(frames);
                }
            }
        }
    }

    fn end(&mut self, _choice: usize, completion: &Completion, frames: &mut Frames) {
        self.start(completion.usage, frames);
        self.close(frames);
        let (stop_reason, stop_sequence) = self.reason(completion);
        let delta = json!({"stop_reason": stop_reason, "stop_sequence": stop_sequence});
        let usage = AnthropicUsage::from(completion.usage);
        frames.named("message_delta", &json!({"type": "message_delta", "delta": delta, "usage": usage}));
        frames.named("message_stop", &json!({"type": "message_stop"}));
    }

    fn finish(&mut self, _completions: &[Completion], _frames: &mut Frames) {}

    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.named("error", &error.anthropic_body());
    }

    fn whole(self, _prompts: &[Vec<u32>], completions: Vec<Completion>) -> Result<Value, ApiError> {
        let mut replies = completions.into_iter().map(|completion| {
            // The reason and the counts are looked up before the texts are taken out.
            let mut message = self.message(Vec::new(), Some(&completion), completion.usage);
            let Completion { content, reasoning, tool_calls, .. } = completion;
            let thinking = (!reasoning.is_empty()).then_some(Block::Thinking { thinking: reasoning, signature: "" });
            let text = (!content.is_empty()).then_some(Block::Text { text: content });
            message.content = thinking.into_iter().chain(text).chain(tool_calls.iter().map(tool_use)).collect();
            message
        });
        replies.next().map_or(Ok(Value::Null), |message| to_value(&message))
    }

    fn keep_alive() -> KeepAlive {
        KeepAlive::new().event(sse::Event::default().event("ping").data(r#"{"type": "ping"}"#))
    }
}
