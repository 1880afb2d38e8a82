//! What clients of other servers stumbled over: messages, templates, streams, formats. Each name begins with the row of
//! `tests/complaints.md` that it answers.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use lily_engine::request::{Prompt, SamplingParams};
use serde_json::{Value, json};

use super::script::{events, post as script};
use super::{app, ask, chunks, post, request, send, stream};

const CHAT: &str = "/v1/chat/completions";

fn called(content: &Value) -> Value {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}});
    let mut assistant = json!({"role": "assistant", "tool_calls": [call]});
    if *content != json!("absent") {
        assistant["content"] = content.clone();
    }
    json!({"messages": [
        {"role": "user", "content": "a"}, assistant,
        {"role": "tool", "tool_call_id": "c", "content": "one"}, {"role": "user", "content": "hello"},
    ]})
}

#[tokio::test]
async fn c31_arguments_in_the_history_are_an_object_for_the_template() {
    let (app, seen) = app(4);
    assert_eq!(post(&app, &called(&Value::Null)).await.0, StatusCode::OK);
    assert_eq!(seen.chat().messages[1]["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
    let mut body = called(&Value::Null);
    body["messages"][1]["tool_calls"][0]["function"]["arguments"] = "{x".into();
    let (status, error) = post(&app, &body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(error["error"]["param"], "messages[1].tool_calls[0].function.arguments");
}

#[tokio::test]
async fn c32_no_content_beside_calls_is_empty_content() {
    let (app, _) = app(4);
    let mut prompts = Vec::new();
    for content in [Value::Null, json!(""), json!("absent")] {
        let body = called(&content);
        let (status, _, text) = send(&app, request("POST", "/tokenize", body.to_string())).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        prompts.push(text);
    }
    assert!(prompts[0] == prompts[1] && prompts[1] == prompts[2]);
    let ids: Value = serde_json::from_str(&prompts[0]).unwrap();
    let text = script(&app, "/detokenize", &json!({"tokens": ids["tokens"]})).await;
    let text = text["prompt"].as_str().unwrap();
    assert!(text.contains("one") && !text.contains("None"), "{text}");
}

#[tokio::test]
async fn c37_developer_is_system_and_system_messages_anywhere_are_one_at_the_front() {
    let (app, _) = app(4);
    let body = json!({"messages": [
        {"role": "developer", "content": "first rule"}, {"role": "user", "content": "question"},
        {"role": "system", "content": "second rule"},
    ]});
    let ids = script(&app, "/tokenize", &body).await;
    let text = script(&app, "/detokenize", &json!({"tokens": ids["tokens"]})).await;
    let text = text["prompt"].as_str().unwrap().to_owned();
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}: {text}"));
    assert!(at("first rule\n\nsecond rule") < at("question"));
    assert_eq!(text.matches("<|im_start|>system").count(), 1);
}

#[tokio::test]
async fn c38_a_conversation_without_a_question_is_answered_or_refused_by_name() {
    let (app, _) = app(4);
    for messages in [
        json!([{"role": "assistant", "content": "hello"}]),
        json!([{"role": "tool", "content": "x"}]),
        json!([{"role": "system", "content": "x"}]),
        json!([{"role": "user", "content": "<tool_response>\nx\n</tool_response>"}]),
    ] {
        let (status, reply) = post(&app, &json!({"messages": messages})).await;
        let refused = status == StatusCode::BAD_REQUEST && reply["error"]["param"] == "messages";
        assert!(refused || status == StatusCode::OK, "{status} {reply}");
    }
}

#[tokio::test]
async fn a_variable_that_no_template_reads_is_refused_and_those_of_the_family_pass() {
    let (app, seen) = app(4);
    let mut body = ask("hello");
    body["chat_template_kwargs"] = json!({"preserve_thinking": true, "enable_thinking": true});
    assert_eq!(post(&app, &body).await.0, StatusCode::OK);
    assert_eq!(seen.chat().template_kwargs["preserve_thinking"], true);
    body["chat_template_kwargs"] = json!({"thinkign": true});
    let (status, error) = post(&app, &body).await;
    assert_eq!((status, &error["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("chat_template_kwargs")));
    assert!(error["error"]["message"].as_str().unwrap().contains("thinkign"));
}

#[tokio::test]
async fn a_refusal_names_the_field_as_its_api_calls_it() {
    let (app, seen) = app(4);
    let schema = json!({"type": "object", "not": {}});
    let messages = json!([{"role": "user", "content": "hello"}]);
    for (path, body, name) in [
        ("/v1/completions", json!({"prompt": "a", "logprobs": 21}), "logprobs: "),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 0}), "max_output_tokens: "),
        (
            "/v1/responses",
            json!({"input": "a", "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}),
            "text.format: ",
        ),
        ("/v1/messages", json!({"max_tokens": 5, "messages": messages, "stop_sequences": [""]}), "stop_sequences: "),
        (
            "/v1/messages",
            json!({
                "max_tokens": 5, "messages": messages,
                "output_config": {"format": {"type": "json_schema", "schema": schema}},
            }),
            "output_config.format: ",
        ),
    ] {
        let (status, _, text) = send(&app, request("POST", path, body.to_string())).await;
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status, StatusCode::BAD_REQUEST, "{text}");
        assert!(error["error"]["message"].as_str().unwrap().starts_with(name), "{text}");
    }
    assert_eq!(seen.started.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[tokio::test]
async fn c39_text_parts_are_joined_and_images_refused() {
    let (app, seen) = app(4);
    let parts = json!([{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]);
    post(&app, &json!({"messages": [{"role": "user", "content": parts}]})).await;
    assert_eq!(seen.chat().messages[0]["content"], "hello");
    let image = json!([{"type": "image_url", "image_url": {"url": "data:,"}}]);
    let (status, error) = post(&app, &json!({"messages": [{"role": "user", "content": image}]})).await;
    assert_eq!((status, &error["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("messages[0].content[0].type")));
}

#[tokio::test]
async fn c45_a_cut_in_the_middle_of_a_character_drops_it_streamed_or_not() {
    let (app, _) = app(4);
    for most in 1..12 {
        let body = json!({
            "messages": [{"role": "user", "content": "script:é🙂漢字🙂"}], "enable_thinking": false,
            "max_tokens": most, "seed": 1,
        });
        let whole = script(&app, CHAT, &body).await;
        let whole = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        let pieces = events(&app, CHAT, body).await;
        let pieces = pieces.iter().map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        assert_eq!(pieces.collect::<String>(), whole, "{most}");
        assert!("é🙂漢字🙂".starts_with(&whole) && !whole.contains('\u{fffd}'), "{whole}");
    }
}

#[tokio::test]
async fn c48_a_long_prefill_is_kept_alive_by_the_clock_on_every_route() {
    let (app, _) = app(4);
    for (path, mut body) in [
        (CHAT, ask("quiet")),
        ("/v1/messages", json!({"max_tokens": 5, "messages": [{"role": "user", "content": "quiet"}]})),
        ("/v1/responses", json!({"input": "quiet"})),
        ("/v1/completions", json!({"prompt": "quiet"})),
    ] {
        body["stream"] = true.into();
        let (_, _, text) = send(&app, request("POST", path, body.to_string())).await;
        let signs = text.lines().filter(|line| line.starts_with(':') || *line == "event: ping").count();
        assert!(signs >= 2, "{path}: {text}");
    }
}

#[tokio::test]
async fn c49_usage_comes_when_asked_for_and_no_tokens_are_no_default() {
    let (app, _) = app(4);
    for (options, asked) in
        [(json!({"include_usage": true}), true), (json!({"include_usage": false}), false), (Value::Null, false)]
    {
        let mut body = ask("hello");
        body["stream_options"] = options;
        let chunks = chunks(&stream(&app, body).await.0);
        let last = chunks.last().unwrap();
        assert_eq!(last["choices"] == json!([]) && last["usage"]["total_tokens"] == 9, asked);
    }
    for most in [0, -1] {
        let mut body = ask("hello");
        body["max_tokens"] = most.into();
        let (status, error) = post(&app, &body).await;
        assert_eq!((status, &error["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("max_tokens")));
    }
}

#[tokio::test]
async fn c50_without_a_limit_an_answer_runs_to_the_end_of_the_context() {
    let (app, seen) = app(4);
    post(&app, &ask("hello")).await;
    assert_eq!(seen.last().max_tokens, None);
}

#[tokio::test]
async fn c53_every_error_has_openais_shape_and_its_own_status() {
    let (app, _) = app(4);
    let long = json!({"messages": [{"role": "user", "content": "word ".repeat(5000)}]}).to_string();
    let other = json!({"messages": [{"role": "user", "content": "a"}], "model": "other"}).to_string();
    for (method, path, body, status, code) in [
        ("POST", CHAT, "{".to_owned(), 400, Value::Null),
        ("POST", CHAT, r#"{"messages": 1}"#.to_owned(), 400, Value::Null),
        ("POST", CHAT, other, 404, json!("model_not_found")),
        ("POST", CHAT, long, 400, json!("context_length_exceeded")),
        ("POST", CHAT, " ".repeat((32 << 20) + 1), 413, Value::Null),
        ("GET", CHAT, String::new(), 405, json!("method_not_allowed")),
        ("POST", "/v2", String::new(), 404, json!("unknown_url")),
    ] {
        let (got, _, text) = send(&app, request(method, path, body)).await;
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((got.as_u16(), &error["error"]["code"]), (status, &code), "{text}");
        let fields: Vec<&String> = error["error"].as_object().unwrap().keys().collect();
        assert_eq!(fields, ["message", "type", "param", "code"]);
    }
}

#[tokio::test]
async fn c56_the_seed_reaches_the_engine_and_each_choice_has_its_own() {
    let (app, seen) = app(8);
    let mut body = ask("hello");
    body["seed"] = 7.into();
    body["n"] = 3.into();
    let (status, reply) = post(&app, &body).await;
    assert_eq!(status, StatusCode::OK);
    let mut seeds: Vec<u64> = seen.requests.lock().unwrap().iter().map(|asked| asked.sampling.seed).collect();
    seeds.sort_unstable();
    assert_eq!(seeds, [7, 8, 9]);
    let indexes: Vec<&Value> = reply["choices"].as_array().unwrap().iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indexes, [0, 1, 2]);
    assert_eq!((&reply["usage"]["prompt_tokens"], &reply["usage"]["completion_tokens"]), (&json!(7), &json!(6)));
    let chunks = chunks(&stream(&app, body).await.0);
    for index in 0..3 {
        let pieces = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == index);
        let text: String = pieces.filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(text, "Hello", "choice {index}");
    }
}

#[tokio::test]
async fn a_failure_of_one_choice_is_a_failure_of_all() {
    let (app, _) = app(8);
    let mut body = ask("no numbers");
    body["n"] = 2.into();
    assert_eq!(post(&app, &body).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    let (_, text) = stream(&app, body).await;
    assert_eq!(text.matches(r#""error""#).count(), 1, "{text}");
}

#[tokio::test]
async fn c59_health_answers_at_once_while_an_answer_runs() {
    let (app, seen) = app(4);
    let running = tokio::spawn({
        let app = app.clone();
        async move { post(&app, &ask("endless")).await }
    });
    super::until(|| seen.started.load(std::sync::atomic::Ordering::SeqCst) == 1).await;
    for path in ["/health", "/health/live", "/health/ready", "/metrics", "/v1/models"] {
        let start = Instant::now();
        assert_eq!(send(&app, request("GET", path, "")).await.0, StatusCode::OK, "{path}");
        assert!(start.elapsed() < Duration::from_millis(100), "{path}");
    }
    running.abort();
}

#[tokio::test]
async fn a_completion_continues_text_and_tokens_and_indexes_its_choices() {
    let (app, seen) = app(8);
    let body = json!({"prompt": ["script:a b", "script:c d"], "n": 2, "temperature": 0});
    let reply = script(&app, "/v1/completions", &body).await;
    let texts: Vec<&Value> = reply["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["a b", "a b", "c d", "c d"]);
    assert_eq!((&reply["object"], &reply["choices"][3]["index"]), (&json!("text_completion"), &json!(3)));
    assert_eq!((&reply["usage"]["prompt_tokens"], &reply["usage"]["completion_tokens"]), (&json!(14), &json!(8)));
    assert_eq!(seen.last().max_tokens, Some(16));
    let chunks = events(&app, "/v1/completions", body).await;
    for (index, want) in texts.iter().enumerate() {
        let pieces = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == index);
        assert_eq!(pieces.filter_map(|choice| choice["text"].as_str()).collect::<String>(), want.as_str().unwrap());
    }
    script(&app, "/v1/completions", &json!({"prompt": [1, 2, 3], "temperature": 0})).await;
    assert!(matches!(seen.last().prompt, Prompt::Tokens(ids) if ids == [1, 2, 3]));
    assert_eq!(
        seen.last().sampling,
        SamplingParams { top_k: 20, top_p: 0.95, seed: seen.last().sampling.seed, ..SamplingParams::GREEDY }
    );
    let echo = script(&app, "/v1/completions", &json!({"prompt": "script:x", "echo": true, "max_tokens": 0})).await;
    assert_eq!((&echo["choices"][0]["text"], &echo["usage"]["completion_tokens"]), (&json!("script:x"), &json!(0)));
}

#[tokio::test]
async fn a_stop_sequence_is_named_by_anthropics_api() {
    let (app, _) = app(4);
    for (text, reason, sequence) in [("one two three", "stop_sequence", json!("tw")), ("one", "end_turn", Value::Null)]
    {
        let body = json!({
            "max_tokens": 50, "messages": [{"role": "user", "content": format!("script:{text}")}],
            "stop_sequences": ["zzz", "tw"],
        });
        let reply = script(&app, "/v1/messages", &body).await;
        assert_eq!((&reply["stop_reason"], &reply["stop_sequence"]), (&json!(reason), &sequence));
        let events = events(&app, "/v1/messages", body).await;
        let end = events.iter().find(|event| event["type"] == "message_delta").unwrap();
        assert_eq!((&end["delta"]["stop_reason"], &end["delta"]["stop_sequence"]), (&json!(reason), &sequence));
    }
}

#[tokio::test]
async fn agents_bodies_are_taken_as_they_send_them() {
    let (app, seen) = app(4);
    let mark = json!({"type": "ephemeral"});
    let body = json!({
        "model": "fake", "max_tokens": 32000, "stream": false, "temperature": 1,
        "system": [
            {"type": "text", "text": "You are an agent.", "cache_control": mark},
            {"type": "text", "text": "Rules.", "cache_control": mark},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "list"}, {"type": "text", "text": " files"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I call.", "signature": ""},
                {"type": "text", "text": "Calling."}, {"type": "tool_use", "id": "t1", "name": "ls", "input": {"p": "."}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a.rs"}], "is_error": true},
                {"type": "text", "text": "hello", "cache_control": mark},
            ]},
        ],
        "tools": [{"name": "ls", "description": "d", "input_schema": {"type": "object"}, "cache_control": mark}],
        "metadata": {"user_id": "u"}, "thinking": {"type": "enabled", "budget_tokens": 31999},
    });
    script(&app, "/v1/messages", &body).await;
    let chat = seen.chat();
    let roles: Vec<&Value> = chat.messages.iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "user"]);
    assert_eq!(chat.messages[0]["content"], "You are an agent.\n\nRules.");
    assert_eq!(chat.messages[2]["tool_calls"][0]["function"]["arguments"], json!({"p": "."}));
    assert_eq!(chat.messages[3]["content"], "Error: a.rs");
    assert_eq!((chat.enable_thinking, seen.last().thinking_budget), (Some(true), Some(31999)));
    let body = json!({
        "model": "fake", "instructions": "You are an agent.", "store": false, "include": ["reasoning.encrypted_content"],
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list"}]},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "I call."}], "encrypted_content": null},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Calling."}]},
            {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{\"p\": \".\"}"},
            {"type": "function_call", "call_id": "c2", "name": "ls", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "a.rs"},
            {"type": "function_call_output", "call_id": "c2", "output": "b.rs"},
            {"role": "user", "content": "hello"},
        ],
        "tools": [{"type": "function", "name": "ls", "parameters": {"type": "object"}, "strict": false}],
        "tool_choice": "auto", "parallel_tool_calls": true, "reasoning": {"effort": "medium", "summary": "auto"},
        "prompt_cache_key": "k", "stream": false,
    });
    script(&app, "/v1/responses", &body).await;
    let chat = seen.chat();
    let roles: Vec<&Value> = chat.messages.iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["system", "system", "user", "assistant", "tool", "tool", "user"]);
    let said = &chat.messages[3];
    assert_eq!((&said["content"], &said["reasoning_content"]), (&json!("Calling."), &json!("I call.")));
    assert_eq!(said["tool_calls"].as_array().unwrap().len(), 2);
    assert_eq!((chat.enable_thinking, seen.last().thinking_budget), (Some(true), Some(4096)));
    for field in ["previous_response_id", "conversation", "prompt"] {
        let (status, _, text) =
            send(&app, request("POST", "/v1/responses", json!({"input": "a", field: "x"}).to_string())).await;
        assert!(status == StatusCode::BAD_REQUEST && text.contains(field), "{text}");
    }
}
