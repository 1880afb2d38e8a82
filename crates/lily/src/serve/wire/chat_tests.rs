//! The chat request: what is honoured, what is refused, and by which name.

use axum::http::StatusCode;
use lily_engine::request::{ChatPrompt, Prompt, ResponseFormat, ToolChoice};
use serde_json::{Value, json};

use super::ChatRequest;
use crate::serve::error::ApiError;

fn parse(body: &Value) -> Result<ChatRequest, ApiError> {
    ChatRequest::parse(body.to_string().as_bytes())
}

fn chat(request: &ChatRequest) -> ChatPrompt {
    match &request.ask.prompts[..] {
        [Prompt::Chat(chat)] => chat.clone(),
        other => panic!("{other:?}"),
    }
}

fn with(name: &str, value: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    body[name] = value;
    body
}

fn messages(messages: Value) -> Result<Vec<Value>, ApiError> {
    parse(&json!({"messages": messages})).map(|request| chat(&request).messages)
}

#[test]
fn fields_are_refused_by_name() {
    for (name, value) in [
        ("temprature", json!(1)),
        ("stop", json!(1)),
        ("logprobs", json!(3)),
        ("n", json!(0)),
        ("n", json!(9)),
        ("tool_choice", json!({"type": "function", "function": {"name": "f"}})),
        ("tool_choice", json!("perhaps")),
        ("tool_choice", json!(1)),
        ("parallel_tool_calls", json!("no")),
        ("reasoning_effort", json!("huge")),
        ("enable_thinking", json!(1)),
        ("thinking_budget", json!(-1)),
        ("temperature", json!(1e39)),
        ("top_logprobs", json!(3)),
        ("top_logprobs", json!(-1)),
        ("presence_penalty", json!("much")),
        ("frequency_penalty", json!([])),
        ("repetition_penalty", json!({})),
        ("logit_bias", json!([1, 5])),
        ("logit_bias", json!({"the": 5})),
        ("logit_bias", json!({"1": "much"})),
        ("tool_choice", json!("required")),
        ("tool_choice", json!({"type": "function", "function": {"name": "f"}})),
        ("stream", json!("yes")),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(1.5)),
        ("temperature", json!("hot")),
        ("messages", json!([])),
        ("messages", json!("Hi")),
        ("messages", json!(null)),
        ("stream_options", json!({"include_usage": true})),
        ("chat_template_kwargs", json!(1)),
    ] {
        let error = parse(&with(name, value.clone())).expect_err(name);
        assert_eq!(error.param.as_deref(), Some(name), "{value}");
        assert!(error.message.starts_with(name), "{}", error.message);
        assert_no_rust(&error.message);
    }
}

/// The words of serde and of Rust's types say nothing to a caller.
fn assert_no_rust(message: &str) {
    for word in ["usize", "u32", "i64", "f32", "invalid type", "expected", "sequence", "a map", "boolean"] {
        assert!(!message.contains(word), "{message}");
    }
}

#[test]
fn a_field_of_another_kind_is_told_which_kind_it_must_be() {
    for (name, value, want) in [
        ("max_tokens", json!("many"), "max_tokens must be a whole number of at least 0, not a string"),
        ("temperature", json!({}), "temperature must be a number, not an object"),
        ("stream", json!(1), "stream must be true or false, not 1"),
        ("model", json!(7), "model must be a string, not 7"),
        ("messages", json!("Hi"), "messages must be an array, not a string"),
        ("messages", json!(["Hi"]), "messages[0] must be an object, not a string"),
        ("messages", json!([{"role": 1}]), "messages[0].role must be a string, not 1"),
        (
            "messages",
            json!([{"role": "user", "content": true}]),
            "messages[0].content must be a string or an array of parts, not true",
        ),
        ("stop", json!(1), "stop must be a string or an array of strings, not 1"),
        ("stop", json!(["a", null]), "stop[1] must be a string, not null"),
        ("tools", json!([{"type": "function", "function": 1}]), "tools[0].function must be an object, not 1"),
        (
            "chat_template_kwargs",
            json!({"enable_thinking": "no"}),
            "chat_template_kwargs.enable_thinking must be true or false, not a string",
        ),
    ] {
        let error = parse(&with(name, value)).expect_err(want);
        assert_no_rust(&error.message);
        assert_eq!((error.status, error.message.as_str()), (StatusCode::BAD_REQUEST, want));
        assert!(error.param.is_some_and(|param| want.starts_with(&param)));
    }
    let mut body = with("stream", true.into());
    body["stream_options"] = json!({"include_usage": "yes"});
    let error = parse(&body).unwrap_err().message;
    assert_eq!(error, "stream_options.include_usage must be true or false, not a string");
}

#[test]
fn a_key_that_comes_twice_is_refused_by_name() {
    let messages = r#""messages": [{"role": "user", "content": "Hi"}]"#;
    for (body, at) in [
        (format!(r#"{{{messages}, "seed": 1, "seed": 1}}"#), "seed"),
        (format!(r#"{{{messages}, {messages}}}"#), "messages"),
        (r#"{"messages": [{"role": "user", "role": "system"}]}"#.to_owned(), "messages[0].role"),
        (format!(r#"{{{messages}, "user": {{"a": 1, "a": 2}}}}"#), "user.a"),
    ] {
        let error = ChatRequest::parse(body.as_bytes()).expect_err(at);
        assert_eq!((error.status, error.param.as_deref()), (StatusCode::BAD_REQUEST, Some(at)));
        assert_eq!(error.message, format!("{at}: given twice in one object"));
    }
}

#[test]
fn what_asks_for_the_usual_is_accepted_and_null_is_absent() {
    for (name, value) in [
        ("n", json!(1)),
        ("stop", json!([])),
        ("stop", json!(null)),
        ("presence_penalty", json!(0.0)),
        ("repetition_penalty", json!(null)),
        ("logprobs", json!(false)),
        ("logprobs", json!(null)),
        ("top_logprobs", json!(0)),
        ("response_format", json!({"type": "text"})),
        ("logit_bias", json!({})),
        ("user", json!("me")),
        ("metadata", json!({"a": 1})),
        ("whatever", json!(null)),
        ("temperature", json!(null)),
        ("tools", json!(null)),
    ] {
        assert!(parse(&with(name, value)).is_ok(), "{name}");
    }
}

#[test]
fn stop_is_a_string_or_several_and_bias_an_object() {
    let sampling = |name, value| parse(&with(name, value)).unwrap().ask.sampling;
    assert_eq!(sampling("stop", json!("a")).stop, ["a"]);
    assert_eq!(sampling("stop", json!(["a", "b"])).stop, ["a", "b"]);
    assert_eq!(sampling("logit_bias", json!({"5": -100, "7": 0.5})).logit_bias, [(5, -100.0), (7, 0.5)]);
    let penalized = sampling("repetition_penalty", json!(1.1));
    assert_eq!((penalized.repetition_penalty, penalized.presence_penalty), (Some(1.1), None));
}

#[test]
fn top_logprobs_need_logprobs() {
    let mut body = with("logprobs", true.into());
    assert_eq!(parse(&body).unwrap().ask.logprobs, Some(0));
    body["top_logprobs"] = 5.into();
    assert_eq!(parse(&body).unwrap().ask.logprobs, Some(5));
    body["logprobs"] = false.into();
    assert_eq!(parse(&body).unwrap_err().param.as_deref(), Some("top_logprobs"));
}

#[test]
fn stream_options_are_for_streams() {
    let mut body = with("stream", true.into());
    assert!(!parse(&body).unwrap().include_usage);
    body["stream_options"] = json!({"include_usage": true});
    assert!(parse(&body).unwrap().include_usage);
    body["stream_options"] = json!({"surprise": true});
    assert_eq!(parse(&body).unwrap_err().param.as_deref(), Some("stream_options.surprise"));
}

#[test]
fn both_names_of_the_token_limit() {
    assert_eq!(parse(&with("max_tokens", 5.into())).unwrap().ask.sampling.max_tokens, Some(5));
    let mut body = with("max_completion_tokens", 6.into());
    assert_eq!(parse(&body).unwrap().ask.sampling.max_tokens, Some(6));
    body["max_tokens"] = 5.into();
    assert_eq!(parse(&body).unwrap_err().param.as_deref(), Some("max_completion_tokens"));
}

#[test]
fn developer_is_system_and_text_parts_are_joined() {
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let got = messages(json!([{"role": "developer", "content": "s"}, {"role": "user", "content": parts}])).unwrap();
    assert_eq!(got, [json!({"role": "system", "content": "s"}), json!({"role": "user", "content": "ab"})]);
}

#[test]
fn null_absent_and_empty_content_are_the_same() {
    let call = json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]);
    let want = json!({
        "role": "assistant", "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
    });
    for content in [json!({"content": null}), json!({"content": ""}), json!({})] {
        let mut message = content;
        message["role"] = "assistant".into();
        message["tool_calls"] = call.clone();
        assert_eq!(messages(json!([message])).unwrap(), std::slice::from_ref(&want));
    }
}

#[test]
fn an_sdks_own_reply_can_be_sent_back() {
    let got = messages(json!([{
        "role": "assistant", "content": "a", "refusal": null, "annotations": [], "audio": null,
        "function_call": null, "tool_calls": null, "reasoning": "hm",
    }]));
    assert_eq!(got.unwrap(), [json!({"role": "assistant", "content": "a", "reasoning_content": "hm"})]);
    let tool = json!([{"role": "tool", "tool_call_id": "c", "name": "f", "content": "42"}]);
    assert_eq!(messages(tool).unwrap(), [json!({"role": "tool", "content": "42", "tool_call_id": "c"})]);
}

#[test]
fn wrong_messages_are_refused_with_their_place() {
    let image = json!([{"type": "image_url", "image_url": {"url": "data:"}}]);
    let call = |arguments: Value| json!([{"id": "c", "function": {"name": "f", "arguments": arguments}}]);
    for (message, at) in [
        (json!({"content": "x"}), "messages[0].role"),
        (json!({"role": "function", "content": "x"}), "messages[0].role"),
        (json!({"role": "user", "content": 1}), "messages[0].content"),
        (json!({"role": "user", "content": image}), "messages[0].content[0].type"),
        (json!({"role": "user", "content": "x", "name": "n"}), "messages[0].name"),
        (json!({"role": "user", "content": "x", "tool_calls": []}), "messages[0].tool_calls"),
        (json!({"role": "assistant", "tool_calls": call("{".into())}), "messages[0].tool_calls[0].function.arguments"),
        (json!({"role": "assistant", "tool_calls": call("[]".into())}), "messages[0].tool_calls[0].function.arguments"),
        (json!("Hi"), "messages[0]"),
    ] {
        let error = messages(json!([message])).expect_err(at);
        assert_eq!(error.param.as_deref(), Some(at), "{}", error.message);
        assert_no_rust(&error.message.replace("expected value", "")); // where JSON ends to be JSON
    }
}

#[test]
fn tools_are_checked_and_passed_whole() {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    assert_eq!(chat(&parse(&with("tools", json!([tool]))).unwrap()).tools, [tool]);
    for (tool, at) in [
        (json!({"type": "web_search"}), "tools[0].type"),
        (json!({"type": "function"}), "tools[0].function"),
        (json!({"type": "function", "function": {"name": ""}}), "tools[0].function.name"),
        (json!({"type": "function", "function": {"name": "f", "strict": 1}}), "tools[0].function.strict"),
        (json!({"type": "function", "function": {"name": "f", "what": 1}}), "tools[0].function.what"),
    ] {
        let error = parse(&with("tools", json!([tool]))).expect_err(at);
        assert_eq!(error.param.as_deref(), Some(at), "{}", error.message);
    }
}

#[test]
fn template_variables_pass_but_not_the_servers_own() {
    let kwargs = json!({"enable_thinking": false, "preserve_thinking": true});
    let prompt = chat(&parse(&with("chat_template_kwargs", kwargs)).unwrap());
    assert_eq!(prompt.enable_thinking, Some(false));
    assert_eq!(prompt.template_kwargs["preserve_thinking"], true);
    for (kwargs, at) in [
        (json!({"messages": []}), "chat_template_kwargs.messages"),
        (json!({"enable_thinking": 1}), "chat_template_kwargs.enable_thinking"),
    ] {
        let error = parse(&with("chat_template_kwargs", kwargs)).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(at));
    }
}

#[test]
fn tool_choice_must_be_one_that_the_tools_can_keep() {
    let tools = json!([{"type": "function", "function": {"name": "f", "strict": true}}]);
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (choice, want) in [
        (json!("auto"), ToolChoice::Auto),
        (json!("required"), ToolChoice::Required),
        (named("f"), ToolChoice::Named("f".into())),
    ] {
        let mut body = with("tools", tools.clone());
        body["tool_choice"] = choice;
        body["parallel_tool_calls"] = false.into();
        let asked = parse(&body).unwrap();
        assert_eq!((&asked.ask.tool_choice, asked.ask.parallel_tool_calls), (&want, false));
        assert_eq!(chat(&asked).tools.len(), 1);
    }
    let mut body = with("tools", tools);
    body["tool_choice"] = named("g");
    let error = parse(&body).unwrap_err();
    assert_eq!(error.message, r#"tool_choice: "g" is not among the tools"#);
    body["tool_choice"] = json!({"type": "function", "function": {"name": "f", "x": 1}});
    assert_eq!(parse(&body).unwrap_err().param.as_deref(), Some("tool_choice.function.x"));
}

#[test]
fn c54_response_formats_reach_the_engine_whole() {
    let format = |format: Value| parse(&with("response_format", format)).map(|asked| asked.ask.response_format);
    assert_eq!(format(json!({"type": "text"})).unwrap(), ResponseFormat::Text);
    assert_eq!(format(json!({"type": "json_object"})).unwrap(), ResponseFormat::JsonObject);
    let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
    let named = json!({"name": "x", "schema": schema, "strict": true, "description": "d"});
    let got = format(json!({"type": "json_schema", "json_schema": named})).unwrap();
    assert_eq!(got, ResponseFormat::JsonSchema(schema));
    for (wrong, at) in [
        (json!({"type": "xml"}), "response_format.type"),
        (json!({"type": "json_schema"}), "response_format.json_schema"),
        (json!({"type": "json_schema", "json_schema": {"name": "x"}}), "response_format.json_schema.schema"),
        (json!({"type": "json_object", "json_schema": {}}), "response_format.json_schema"),
        (json!({"type": "text", "more": 1}), "response_format.more"),
    ] {
        assert_eq!(format(wrong).unwrap_err().param.as_deref(), Some(at));
    }
}

#[test]
fn thinking_has_several_names_that_must_agree() {
    let asked = |body: Value| parse(&body).map(|asked| (chat(&asked).enable_thinking, asked.ask.thinking_budget));
    for (name, value, want) in [
        ("enable_thinking", json!(false), (Some(false), None)),
        ("reasoning_effort", json!("none"), (Some(false), None)),
        ("reasoning_effort", json!("minimal"), (Some(true), Some(256))),
        ("reasoning_effort", json!("low"), (Some(true), Some(1024))),
        ("reasoning_effort", json!("medium"), (Some(true), Some(4096))),
        ("reasoning_effort", json!("high"), (Some(true), Some(16384))),
        ("reasoning_effort", json!("xhigh"), (Some(true), None)),
        ("thinking_budget", json!(7), (None, Some(7))),
        ("thinking_budget_tokens", json!(7), (None, Some(7))),
        ("thinking_token_budget", json!(0), (None, Some(0))),
    ] {
        assert_eq!(asked(with(name, value)).unwrap(), want, "{name}");
    }
    let mut body = with("reasoning_effort", json!("high"));
    body["thinking_budget"] = 9.into();
    assert_eq!(asked(body.clone()).unwrap(), (Some(true), Some(9)), "a number beats a word");
    body["thinking_budget_tokens"] = 8.into();
    assert_eq!(asked(body).unwrap_err().param.as_deref(), Some("thinking_budget_tokens"));
    for (name, value, also, at) in [
        ("reasoning_effort", json!("high"), json!(false), "reasoning_effort"),
        ("reasoning_effort", json!("none"), json!(true), "reasoning_effort"),
        ("chat_template_kwargs", json!({"enable_thinking": true}), json!(false), "enable_thinking"),
    ] {
        let mut body = with(name, value);
        body["enable_thinking"] = also;
        assert_eq!(asked(body).unwrap_err().param.as_deref(), Some(at));
    }
}

#[test]
fn what_json_can_say_but_no_field_can_hold_is_refused_by_name() {
    let body = r#"{"messages": [{"role": "user", "content": "Hi"}], "#;
    let deep = "[".repeat(200);
    for (rest, at) in [
        (r#""temperature": 1e400}"#.to_owned(), "temperature"),
        (r#""logit_bias": {"5": -1e400}}"#.to_owned(), "logit_bias.5"),
        (format!(r#""metadata": {{"a": {deep}"#), "metadata"),
        (r#""chat_template_kwargs": {"range": 1}}"#.to_owned(), "chat_template_kwargs.range"),
    ] {
        let error = ChatRequest::parse(format!("{body}{rest}").as_bytes()).expect_err(at);
        assert_eq!((error.status, error.param.as_deref()), (StatusCode::BAD_REQUEST, Some(at)), "{}", error.message);
    }
    let arguments = r#"{\"a\": 1, \"a\": 2}"#;
    let call = format!(r#"{{"id": "c", "function": {{"name": "f", "arguments": "{arguments}"}}}}"#);
    let body = format!(r#"{{"messages": [{{"role": "assistant", "tool_calls": [{call}]}}]}}"#);
    let error = ChatRequest::parse(body.as_bytes()).unwrap_err();
    assert_eq!(error.message, "messages[0].tool_calls[0].function.arguments: a is given twice in one object");
    let error = parse(&with("logit_bias", json!({"5": 1e39}))).unwrap_err();
    assert!(!error.message.contains("inf"), "{}", error.message);
}

#[test]
fn what_contradicts_itself_is_refused_and_hints_for_caches_are_taken() {
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let error = parse(&with("tools", json!([tool, tool]))).unwrap_err();
    assert_eq!((error.status, error.param.as_deref()), (StatusCode::BAD_REQUEST, Some("tools[1]")));
    let thoughts = |other: &str| json!([{"role": "assistant", "reasoning_content": "a", "reasoning": other}]);
    let error = messages(thoughts("b")).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("messages[0].reasoning"));
    assert!(messages(thoughts("a")).is_ok());
    assert!(parse(&with("prompt_cache_key", json!("k"))).is_ok());
    let begun =
        json!({"max_tokens": 5, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]});
    let error = crate::serve::wire::MessagesRequest::parse(begun.to_string().as_bytes()).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("messages[1]"));
}
