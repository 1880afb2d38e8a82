//! The document and the parsers say the same: every documented field is taken, every taken field is documented.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::description;
use crate::serve::error::ApiError;
use crate::serve::wire::{
    ChatRequest, CompletionRequest, DetokenizeRequest, MessagesRequest, ResponsesRequest, TokenizeRequest, taken,
};

/// Paths of all fields of a schema, with `[]` behind an array's. Objects without fields of their own are free.
fn documented(document: &Value, schema: &Value, at: &str, paths: &mut BTreeSet<String>) {
    if let Some(name) = schema["$ref"].as_str().and_then(|at| at.rsplit('/').next()) {
        return documented(document, &document["components"]["schemas"][name], at, paths);
    }
    for part in ["allOf", "oneOf", "anyOf"].iter().filter_map(|kind| schema[kind].as_array()).flatten() {
        documented(document, part, at, paths);
    }
    if let Some(items) = schema.get("items") {
        documented(document, items, &format!("{at}[]"), paths);
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        documented(document, field, &path, paths);
        paths.insert(path);
    }
}

/// Parses bodies that between them hold every nested object, and compares what was taken with the document.
fn compare<T: std::fmt::Debug>(route: &str, parse: fn(&[u8]) -> Result<T, ApiError>, bodies: &[Value]) {
    let document = serde_json::to_value(description()).unwrap();
    let schema = &document["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"];
    let mut want = BTreeSet::new();
    documented(&document, schema, "", &mut want);
    assert!(want.len() > 1, "{route}: {schema}");
    taken::all();
    for body in bodies {
        let parsed = parse(body.to_string().as_bytes());
        assert!(parsed.is_ok(), "{route}: {:?}", parsed.err());
    }
    let got = taken::all();
    let undocumented: Vec<_> = got.difference(&want).collect();
    let untaken: Vec<_> = want.difference(&got).collect();
    assert!(
        undocumented.is_empty() && untaken.is_empty(),
        "{route}: not documented {undocumented:?}, not taken {untaken:?}"
    );
}

fn messages() -> Value {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    json!([
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ])
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "f", "parameters": {}, "strict": true}}])
}

fn chosen() -> Value {
    json!({"type": "function", "function": {"name": "f"}})
}

#[test]
fn chats_are_documented_as_they_are_read() {
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {}}});
    compare(
        "/v1/chat/completions",
        ChatRequest::parse,
        &[json!({
            "messages": messages(), "tools": tools(), "tool_choice": chosen(), "response_format": schema,
            "stream": true, "stream_options": {"include_usage": true},
            "chat_template_kwargs": {"enable_thinking": true},
        })],
    );
}

#[test]
fn completions_and_tokens_are_documented_as_they_are_read() {
    let body = json!({"prompt": "a", "stream": true, "stream_options": {"include_usage": true}});
    compare("/v1/completions", CompletionRequest::parse, &[body]);
    let body = json!({
        "messages": messages(), "tools": tools(), "tool_choice": chosen(),
        "chat_template_kwargs": {"enable_thinking": true},
    });
    compare("/tokenize", TokenizeRequest::parse, &[body]);
    compare("/detokenize", DetokenizeRequest::parse, &[json!({"tokens": [1]})]);
}

#[test]
fn responses_are_documented_as_they_are_read() {
    let schema = json!({"type": "json_schema", "name": "x", "schema": {}});
    compare(
        "/v1/responses",
        ResponsesRequest::parse,
        &[json!({
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm"}],
                    "summary": [{"type": "summary_text", "text": "Hm"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
            ],
            "tools": [{"type": "function", "name": "f", "parameters": {}}],
            "tool_choice": {"type": "function", "name": "f"},
            "reasoning": {"effort": "low", "summary": "auto"}, "text": {"format": schema},
            "chat_template_kwargs": {"enable_thinking": true},
        })],
    );
}

#[test]
fn messages_are_documented_as_they_are_read() {
    let mark = json!({"type": "ephemeral"});
    let mut body = json!({
        "system": [{"type": "text", "text": "s", "cache_control": mark}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": mark}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm", "signature": ""},
                {"type": "tool_use", "id": "t", "name": "f", "input": {}},
            ]},
            {"role": "user", "content": [{
                "type": "tool_result", "tool_use_id": "t",
                "content": [{"type": "text", "text": "x", "cache_control": mark}],
            }]},
        ],
        "tools": [{"name": "f", "input_schema": {}, "cache_control": mark}],
        "tool_choice": {"type": "tool", "name": "f"},
        "thinking": {"type": "enabled", "budget_tokens": 7},
        "output_config": {"effort": "max", "format": {"type": "json_schema", "schema": {}}},
    });
    compare("/v1/messages/count_tokens", MessagesRequest::parse_count, &[body.clone()]);
    body["max_tokens"] = 5.into();
    body["metadata"] = json!({"user_id": "u"});
    compare("/v1/messages", MessagesRequest::parse, &[body]);
}

#[test]
fn every_reference_of_the_document_leads_somewhere() {
    let document = serde_json::to_value(description()).unwrap();
    let text = document.to_string();
    let mut count = 0;
    for name in text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
        count += 1;
    }
    assert!(count > 50, "{count}");
}
