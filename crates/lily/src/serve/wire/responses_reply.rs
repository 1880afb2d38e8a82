//! Replies in the form of OpenAI's responses: output items, whole or event by event.

use lily_engine::request::{Completion, Event, FinishReason, ToolCall, Usage};
use serde_json::{Map, Value, json};

use super::reply::random_id;
use crate::serve::error::ApiError;
use crate::serve::routes::unix_time_s;
use crate::serve::sse::{Frames, Reply};

/// Answers a responses request.
pub struct ResponseReply {
    id: String,
    created_at: u64,
    model: String,
    repeated: Map<String, Value>,
    /// Items so far; the last may be open.
    output: Vec<Value>,
    open: Option<Open>,
    sequence: usize,
}

/// The item that pieces are added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Reasoning,
    Message,
}

impl Open {
    /// Of the one part: its type, and the event that adds to it.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Reasoning => ("reasoning_text", "response.reasoning_text"),
            Self::Message => ("output_text", "response.output_text"),
        }
    }

    fn part(self, text: &str) -> Value {
        match self {
            Self::Reasoning => json!({"type": "reasoning_text", "text": text}),
            Self::Message => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
        }
    }

    fn item(self, status: &str) -> Value {
        match self {
            Self::Reasoning => {
                json!({"id": random_id("rs_"), "type": "reasoning", "status": status, "summary": [], "content": []})
            }
            Self::Message => json!({
                "id": random_id("msg_"), "type": "message", "status": status, "role": "assistant", "content": [],
            }),
        }
    }
}

fn function_call(call: &ToolCall, status: &str, arguments: String) -> Value {
    json!({
        "id": random_id("fc_"), "type": "function_call", "status": status, "call_id": random_id("call_"),
        "name": call.name, "arguments": arguments,
    })
}

impl ResponseReply {
    /// The reply to a request that gave these fields.
    pub fn new(model: &str, mut repeated: Map<String, Value>) -> Self {
        for (name, default) in [
            ("parallel_tool_calls", json!(true)),
            ("tool_choice", json!("auto")),
            ("tools", json!([])),
            ("metadata", json!({})),
            ("text", json!({"format": {"type": "text"}})),
        ] {
            if repeated.get(name).is_none_or(Value::is_null) {
                repeated.insert(name.into(), default);
            }
        }
        Self {
            id: random_id("resp_"),
            created_at: unix_time_s(),
            model: model.to_owned(),
            repeated,
            output: Vec::new(),
            open: None,
            sequence: 0,
        }
    }

    fn response(&self, status: &str, ended: Option<&Completion>, error: Option<&ApiError>) -> Value {
        let cut = ended.is_some_and(|completion| completion.finish_reason == FinishReason::Length);
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": if cut { "incomplete" } else { status },
            "error": error.map(|error| json!({"code": "server_error", "message": error.message})),
            "incomplete_details": cut.then(|| json!({"reason": "max_output_tokens"})),
            "model": self.model,
            "output": self.output,
            "previous_response_id": null,
            "store": false,
            "background": false,
            "truncation": "disabled",
            "usage": ended.map(|completion| usage(completion.usage)),
        });
        if let Some(fields) = response.as_object_mut() {
            fields.extend(self.repeated.clone());
        }
        response
    }

    fn emit(&mut self, name: &str, mut event: Value, frames: &mut Frames) {
        event["type"] = name.into();
        event["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        frames.named(name, &event);
    }

    fn last(&self) -> (usize, String, Value) {
        let item = self.output.last().cloned().unwrap_or_default();
        (self.output.len().saturating_sub(1), item["id"].as_str().unwrap_or_default().to_owned(), item)
    }

    fn add(&mut self, item: Value, frames: &mut Frames) {
        self.output.push(item);
        let (index, _, item) = self.last();
        self.emit("response.output_item.added", json!({"output_index": index, "item": item}), frames);
    }

    fn piece(&mut self, kind: Open, text: &str, frames: &mut Frames) {
        if self.open != Some(kind) {
            self.close("completed", frames);
            self.add(kind.item("in_progress"), frames);
            let (index, id, _) = self.last();
            let part = kind.part("");
            let added = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
            self.emit("response.content_part.added", added, frames);
            self.open = Some(kind);
            if let Some(item) = self.output.last_mut() {
                item["content"] = json!([part]);
            }
        }
        let (index, id, _) = self.last();
        let mut delta = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text});
        if kind == Open::Message {
            delta["logprobs"] = json!([]);
        }
        let name = format!("{}.delta", kind.words().1);
        self.emit(&name, delta, frames);
        if let Some(Value::String(whole)) = self.output.last_mut().map(|item| &mut item["content"][0]["text"]) {
            whole.push_str(text);
        }
    }

    fn close(&mut self, status: &str, frames: &mut Frames) {
        let Some(kind) = self.open.take() else { return };
        if let Some(item) = self.output.last_mut() {
            item["status"] = status.into();
        }
        let (index, id, item) = self.last();
        let part = item["content"][0].clone();
        let mut done = json!({"item_id": id, "output_index": index, "content_index": 0, "text": part["text"]});
        if kind == Open::Message {
            done["logprobs"] = json!([]);
        }
        self.emit(&format!("{}.done", kind.words().1), done, frames);
        let done = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
        self.emit("response.content_part.done", done, frames);
        self.emit("response.output_item.done", json!({"output_index": index, "item": item}), frames);
    }

    fn call(&mut self, call: &ToolCall, frames: &mut Frames) {
        self.close("completed", frames);
        self.add(function_call(call, "in_progress", String::new()), frames);
        let arguments = Value::Object(call.arguments.clone()).to_string();
        if let Some(item) = self.output.last_mut() {
            item["status"] = "completed".into();
            item["arguments"] = arguments.clone().into();
        }
        let (index, id, item) = self.last();
        let delta = json!({"item_id": id, "output_index": index, "delta": arguments});
        self.emit("response.function_call_arguments.delta", delta, frames);
        let done = json!({"item_id": id, "output_index": index, "name": call.name, "arguments": arguments});
        self.emit("response.function_call_arguments.done", done, frames);
        self.emit("response.output_item.done", json!({"output_index": index, "item": item}), frames);
    }
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

impl Reply for ResponseReply {
    fn begin(&mut self, _prompts: &[Vec<u32>], frames: &mut Frames) {
        for name in ["response.created", "response.in_progress"] {
            let response = self.response("in_progress", None, None);
            self.emit(name, json!({"response": response}), frames);
        }
    }

    fn event(&mut self, _choice: usize, event: Event, frames: &mut Frames) {
        match event {
            Event::Start { .. } | Event::Prefill { .. } | Event::Logprobs(_) => {}
            Event::Reasoning(text) => self.piece(Open::Reasoning, &text, frames),
            Event::Content(text) => self.piece(Open::Message, &text, frames),
            Event::ToolCall(call) => self.call(&call, frames),
        }
    }

    fn end(&mut self, _choice: usize, completion: &Completion, frames: &mut Frames) {
        let cut = completion.finish_reason == FinishReason::Length;
        self.close(if cut { "incomplete" } else { "completed" }, frames);
        let response = self.response("completed", Some(completion), None);
        let name = if cut { "response.incomplete" } else { "response.completed" };
        self.emit(name, json!({"response": response}), frames);
    }

    fn finish(&mut self, _completions: &[Completion], _frames: &mut Frames) {}

    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        let response = self.response("failed", None, Some(error));
        self.emit("response.failed", json!({"response": response}), frames);
    }

    /// The same pieces as in a stream, each in one.
    fn whole(mut self, _prompts: &[Vec<u32>], completions: Vec<Completion>) -> Result<Value, ApiError> {
        let Some(completion) = completions.into_iter().next() else { return Ok(Value::Null) };
        let mut unsent = Frames::default();
        for (kind, text) in [(Open::Reasoning, &completion.reasoning), (Open::Message, &completion.content)] {
            if !text.is_empty() {
                self.piece(kind, text, &mut unsent);
            }
        }
        let cut = completion.finish_reason == FinishReason::Length && completion.tool_calls.is_empty();
        self.close(if cut { "incomplete" } else { "completed" }, &mut unsent);
        completion.tool_calls.iter().for_each(|call| self.call(call, &mut unsent));
        Ok(self.response("completed", Some(&completion), None))
    }
}
