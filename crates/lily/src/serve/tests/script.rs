//! A model that says what it is told, token by token, with the text cut at random: what comes out of the engine's own
//! parser then goes through every route.

use lily_engine::request::{Completion, EventSink, FinishReason, Request};
use lily_engine::text::{AnswerStream, Codec};
use serde_json::{Value, json};

use super::{play, request, send};
use axum::Router;
use axum::http::StatusCode;

/// Says the script. Pieces are encoded on their own, so that tags come in halves as they do from real models; the seed
/// decides where they are cut, and `max_tokens` ends the answer early.
pub fn perform(
    codec: &Codec,
    script: &str,
    asked: &Request,
    mut answer: AnswerStream,
    sink: &mut EventSink,
) -> Completion {
    let mut tokens = Vec::new();
    for piece in cut(script, asked.sampling.seed) {
        tokens.extend(codec.tokenizer().encode(piece).unwrap());
    }
    let mut finish = FinishReason::Stop;
    if let Some(most) = asked.max_tokens.filter(|most| *most < tokens.len()) {
        tokens.truncate(most);
        finish = FinishReason::Length;
    }
    let mut events = Vec::new();
    for (i, id) in tokens.iter().enumerate() {
        events.extend(answer.push(*id, None));
        if answer.stopped() {
            tokens.truncate(i + 1);
            finish = FinishReason::Stop;
            break;
        }
    }
    events.extend(answer.finish());
    Completion { tokens, ..play(events, finish, sink) }
}

/// Seed 0 cuts nowhere, 1 everywhere, the others where a small generator says.
fn cut(text: &str, seed: u64) -> Vec<&str> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut pieces = Vec::new();
    let mut start = 0;
    for (at, _) in text.char_indices().skip(1) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if seed == 1 || seed > 1 && state >> 62 == 0 {
            pieces.push(&text[start..at]);
            start = at;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// An answer, whatever the route.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Said {
    pub reasoning: String,
    pub content: String,
    /// Names and arguments.
    pub calls: Vec<(String, Value)>,
}

/// What the model is asked to say, and how.
pub struct Play<'a> {
    pub script: &'a str,
    /// Name and parameters.
    pub tools: &'a [(&'a str, Value)],
    pub thinks: bool,
}

/// Plays a script on every route, whole and streamed, cut in several ways, and sees that all say the same.
pub async fn everywhere(app: &Router, script: &str, tools: &[(&str, Value)], thinks: bool) -> Said {
    let play = Play { script, tools, thinks };
    let first = chat(&post(app, "/v1/chat/completions", &play.chat(0)).await);
    for seed in 0..12 {
        let body = play.chat(seed);
        assert_eq!(chat(&post(app, "/v1/chat/completions", &body).await), first, "seed {seed}");
        assert_eq!(chat_stream(&events(app, "/v1/chat/completions", body).await), first, "streamed, seed {seed}");
    }
    for _ in 0..4 {
        let body = play.messages();
        assert_eq!(messages(&post(app, "/v1/messages", &body).await), first, "messages");
        assert_eq!(messages_stream(&events(app, "/v1/messages", body).await), first, "messages, streamed");
        let body = play.responses();
        assert_eq!(responses(&post(app, "/v1/responses", &body).await), first, "responses");
        assert_eq!(responses_stream(&events(app, "/v1/responses", body).await), first, "responses, streamed");
    }
    first
}

impl Play<'_> {
    fn words(&self) -> String {
        format!("script:{}", self.script)
    }

    fn chat(&self, seed: u64) -> Value {
        let tool = |(name, parameters): &(&str, Value)| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
        json!({
            "messages": [{"role": "user", "content": self.words()}], "seed": seed, "enable_thinking": self.thinks,
            "tools": self.tools.iter().map(tool).collect::<Vec<_>>(),
        })
    }

    fn messages(&self) -> Value {
        let tool = |(name, parameters): &(&str, Value)| json!({"name": name, "input_schema": parameters});
        json!({
            "max_tokens": 4000, "messages": [{"role": "user", "content": self.words()}],
            "thinking": {"type": if self.thinks { "adaptive" } else { "disabled" }},
            "tools": self.tools.iter().map(tool).collect::<Vec<_>>(),
        })
    }

    fn responses(&self) -> Value {
        let tool =
            |(name, parameters): &(&str, Value)| json!({"type": "function", "name": name, "parameters": parameters});
        json!({
            "input": self.words(), "enable_thinking": self.thinks,
            "tools": self.tools.iter().map(tool).collect::<Vec<_>>(),
        })
    }
}

/// A whole answer.
pub async fn post(app: &Router, path: &str, body: &Value) -> Value {
    let (status, _, text) = send(app, request("POST", path, body.to_string())).await;
    assert_eq!(status, StatusCode::OK, "{path} {text}");
    serde_json::from_str(&text).unwrap()
}

/// The data of a stream's events; the names of named ones are those in their data.
pub async fn events(app: &Router, path: &str, mut body: Value) -> Vec<Value> {
    body["stream"] = true.into();
    let (status, _, text) = send(app, request("POST", path, body.to_string())).await;
    assert_eq!(status, StatusCode::OK, "{path} {text}");
    let mut events = Vec::new();
    let mut name = None;
    for line in text.lines() {
        if let Some(found) = line.strip_prefix("event: ") {
            name = Some(found.to_owned());
        } else if let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") {
            let event: Value = serde_json::from_str(data).unwrap();
            if let Some(name) = name.take() {
                assert_eq!(event["type"], name.as_str());
            }
            events.push(event);
        }
    }
    events
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn arguments(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn chat(reply: &Value) -> Said {
    let message = &reply["choices"][0]["message"];
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let call = |call: &Value| {
        let function = &call["function"];
        (text(&function["name"]).to_owned(), arguments(text(&function["arguments"])))
    };
    Said {
        reasoning: text(&message["reasoning_content"]).to_owned(),
        content: text(&message["content"]).to_owned(),
        calls: calls.map(call).collect(),
    }
}

/// Puts deltas together as OpenAI's own client does: by index, the first with id, type and name.
fn chat_stream(chunks: &[Value]) -> Said {
    let mut said = Said::default();
    let mut calls: Vec<(String, String, String)> = Vec::new();
    for delta in chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]) {
        said.reasoning += text(&delta["reasoning_content"]);
        said.content += text(&delta["content"]);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(call["index"].as_u64().expect("an index on every delta")).unwrap();
            if index == calls.len() {
                assert_eq!(call["type"], "function");
                let id = text(&call["id"]).to_owned();
                assert!(!id.is_empty() && calls.iter().all(|(other, ..)| *other != id));
                calls.push((id, text(&call["function"]["name"]).to_owned(), String::new()));
            } else {
                assert!(call["id"].is_null() || call["id"] == calls[index].0.as_str(), "one stable id");
            }
            calls[index].2 += text(&call["function"]["arguments"]);
        }
    }
    said.calls = calls.into_iter().map(|(_, name, json)| (name, arguments(&json))).collect();
    said
}

fn messages(reply: &Value) -> Said {
    let mut said = Said::default();
    for block in reply["content"].as_array().unwrap() {
        match text(&block["type"]) {
            "thinking" => said.reasoning += text(&block["thinking"]),
            "text" => said.content += text(&block["text"]),
            "tool_use" => said.calls.push((text(&block["name"]).to_owned(), block["input"].clone())),
            other => panic!("{other}"),
        }
    }
    said
}

fn messages_stream(events: &[Value]) -> Said {
    assert_eq!(events[0]["type"], "message_start");
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    let mut said = Said::default();
    let mut json = String::new();
    let (mut open, mut count) = (None, 0);
    for event in events {
        match text(&event["type"]) {
            "content_block_start" => {
                assert_eq!((open, event["index"].as_u64()), (None, Some(count)));
                open = Some(event["content_block"].clone()).map(|_| count);
                count += 1;
                if event["content_block"]["type"] == "tool_use" {
                    said.calls.push((text(&event["content_block"]["name"]).to_owned(), Value::Null));
                }
            }
            "content_block_delta" => {
                assert_eq!(event["index"].as_u64(), open);
                let delta = &event["delta"];
                said.reasoning += text(&delta["thinking"]);
                said.content += text(&delta["text"]);
                json += text(&delta["partial_json"]);
            }
            "content_block_stop" => {
                assert_eq!(event["index"].as_u64(), open.take());
                if !json.is_empty() {
                    said.calls.last_mut().unwrap().1 = arguments(&std::mem::take(&mut json));
                }
            }
            _ => {}
        }
    }
    said
}

fn responses(reply: &Value) -> Said {
    let mut said = Said::default();
    for item in reply["output"].as_array().unwrap() {
        match text(&item["type"]) {
            "reasoning" => said.reasoning += text(&item["content"][0]["text"]),
            "message" => said.content += text(&item["content"][0]["text"]),
            "function_call" => said.calls.push((text(&item["name"]).to_owned(), arguments(text(&item["arguments"])))),
            other => panic!("{other}"),
        }
    }
    said
}

fn responses_stream(events: &[Value]) -> Said {
    let mut said = Said::default();
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], i);
        match text(&event["type"]) {
            "response.reasoning_text.delta" => said.reasoning += text(&event["delta"]),
            "response.output_text.delta" => said.content += text(&event["delta"]),
            "response.function_call_arguments.done" => {
                said.calls.push((text(&event["name"]).to_owned(), arguments(text(&event["arguments"]))));
            }
            _ => {}
        }
    }
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(responses(&last["response"]), said, "the last event holds the whole");
    said
}
