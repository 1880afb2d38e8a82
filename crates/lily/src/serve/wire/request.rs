//! OpenAI's chat request. A field is honoured or refused by name, never dropped in silence: `ChatRequest::parse`
//! takes what it knows, accepts the values in `NEUTRAL` that ask for what happens anyway and the two fields in
//! `NO_OPS`, and refuses the rest. `null` is the same as absent, as OpenAI has it.

use axum::http::StatusCode;
use lily_engine::request::ChatPrompt;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::unique::{self, Refusal};
use crate::flags::SamplingFlags;
use crate::serve::error::ApiError;

/// Fields that name the caller or tag the request for the server's records; this server keeps none.
const NO_OPS: [&str; 2] = ["user", "metadata"];

/// A value test.
type Accepts = fn(&Value) -> bool;

/// Fields of features that are not here: name, what is accepted in words, and the test.
const NEUTRAL: [(&str, &str, Accepts); 6] = [
    ("n", "1", |v| *v == 1),
    ("response_format", r#"{"type": "text"}"#, |v| *v == json!({"type": "text"})),
    ("parallel_tool_calls", "true", |v| *v == true),
    ("store", "false", |v| *v == false),
    ("service_tier", r#""auto" or "default""#, |v| *v == "auto" || *v == "default"),
    ("modalities", r#"["text"]"#, |v| *v == json!(["text"])),
];

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

/// A chat request, checked field by field; ranges are the engine's business.
#[derive(Debug)]
pub struct ChatRequest {
    /// The model asked for.
    pub model: Option<String>,
    /// Messages, tools and template variables.
    pub prompt: ChatPrompt,
    /// What replaces the model's sampling defaults.
    pub sampling: SamplingFlags,
    /// Log-probabilities of the content's tokens and of this many of the likeliest.
    pub logprobs: Option<usize>,
    /// Server-sent events instead of one object.
    pub stream: bool,
    /// A last chunk with the token counts.
    pub include_usage: bool,
}

impl ChatRequest {
    /// Reads a request body.
    ///
    /// # Errors
    /// 400, naming the first field that is wrong or unknown.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let value = unique::from_slice(body).map_err(|refusal| match refusal {
            Refusal::Twice(path) => ApiError::field(path, "given twice in one object"),
            Refusal::Syntax(error) => ApiError::new(StatusCode::BAD_REQUEST, format!("the body is not JSON: {error}")),
        })?;
        let mut fields = Fields::new(value, "")?;
        let stream = fields.take("stream")?.unwrap_or(false);
        let this = Self {
            model: fields.take("model")?,
            include_usage: stream_options(&mut fields, stream)?,
            prompt: prompt(&mut fields)?,
            sampling: sampling(&mut fields)?,
            logprobs: logprobs(&mut fields)?,
            stream,
        };
        for (name, accepted, accepts) in NEUTRAL {
            if fields.take::<Value>(name)?.is_some_and(|value| !accepts(&value)) {
                return Err(ApiError::field(name, format!("only {accepted} is supported")).code("unsupported_value"));
            }
        }
        for name in NO_OPS {
            fields.take::<Value>(name)?;
        }
        fields.finish()?;
        Ok(this)
    }
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = fields.take::<Map<String, Value>>("stream_options")? else { return Ok(false) };
    if !stream {
        return Err(ApiError::field("stream_options", "allowed only with stream: true"));
    }
    let mut options = Fields::new(options.into(), "stream_options")?;
    let include_usage = options.take("include_usage")?.unwrap_or(false);
    options.finish()?;
    Ok(include_usage)
}

fn sampling(fields: &mut Fields) -> Result<SamplingFlags, ApiError> {
    let max_tokens: Option<usize> = fields.take("max_tokens")?;
    let max_completion_tokens: Option<usize> = fields.take("max_completion_tokens")?;
    if let (Some(old), Some(new)) = (max_tokens, max_completion_tokens)
        && old != new
    {
        return Err(ApiError::field("max_completion_tokens", format!("{new}, but max_tokens is {old}")));
    }
    Ok(SamplingFlags {
        temperature: fields.take("temperature")?,
        top_k: fields.take("top_k")?,
        top_p: fields.take("top_p")?,
        min_p: fields.take("min_p")?,
        presence_penalty: fields.take("presence_penalty")?,
        frequency_penalty: fields.take("frequency_penalty")?,
        repetition_penalty: fields.take("repetition_penalty")?,
        logit_bias: logit_bias(fields)?,
        stop: stop(fields)?,
        seed: fields.take::<i64>("seed")?.map(i64::cast_unsigned),
        max_tokens: max_completion_tokens.or(max_tokens),
    })
}

/// An object from token id to bias; ids are JSON's strings.
fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let biases: Map<String, Value> = fields.take("logit_bias")?.unwrap_or_default();
    let bias = |(id, bias): (String, Value)| {
        let of_id = id.parse().map_err(|_| fields.error("logit_bias", format!("{id:?} is not a token id")))?;
        let bias: f32 = f32::deserialize(&bias)
            .map_err(|_| fields.error("logit_bias", format!("{bias} for id {id} is not a number")))?;
        Ok((of_id, bias))
    };
    biases.into_iter().map(bias).collect()
}

/// One string or several.
fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let several = match fields.take::<Value>("stop")? {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => return Ok(vec![stop]),
        Some(Value::Array(several)) => several,
        Some(other) => return Err(fields.wrong("stop", "a string or an array of strings", &other)),
    };
    let of = |(i, stop): (usize, Value)| match stop.as_str() {
        Some(stop) => Ok(stop.to_owned()),
        None => Err(fields.wrong(&format!("stop[{i}]"), "a string", &stop)),
    };
    several.into_iter().enumerate().map(of).collect()
}

/// `top_logprobs` counts only with `logprobs`.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let asked = fields.take::<bool>("logprobs")? == Some(true);
    match fields.take::<usize>("top_logprobs")? {
        Some(count) if count > 0 && !asked => Err(fields.error("top_logprobs", "allowed only with logprobs: true")),
        count => Ok(asked.then_some(count.unwrap_or(0))),
    }
}

fn prompt(fields: &mut Fields) -> Result<ChatPrompt, ApiError> {
    let messages: Vec<Value> =
        fields.take("messages")?.ok_or_else(|| ApiError::field("messages", "required, but not there"))?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "empty; at least one is needed"));
    }
    let messages = messages.into_iter().enumerate().map(|(i, message)| parse_message(message, i));
    let messages = messages.collect::<Result<_, _>>()?;
    let tools: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    for (i, tool) in tools.iter().enumerate() {
        check_tool(tool, i)?;
    }
    let tools = match fields.take::<Value>("tool_choice")? {
        // A model that is shown no tools calls none.
        Some(choice) if choice == "none" => Vec::new(),
        Some(choice) if choice != "auto" => {
            return Err(
                ApiError::field("tool_choice", r#"only "auto" and "none" are supported"#).code("unsupported_value")
            );
        }
        _ => tools,
    };
    let mut kwargs: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    for reserved in ["messages", "tools", "add_generation_prompt"] {
        if kwargs.contains_key(reserved) {
            return Err(ApiError::field(format!("chat_template_kwargs.{reserved}"), "set by the server"));
        }
    }
    let thinking = kwargs.shift_remove_entry("enable_thinking").into_iter().collect::<Map<_, _>>();
    let enable_thinking = Fields::new(thinking.into(), "chat_template_kwargs")?.take("enable_thinking")?;
    Ok(ChatPrompt { messages, tools, enable_thinking, template_kwargs: kwargs })
}

/// One message in the form the template takes: `content` a string, `arguments` objects, developer = system.
fn parse_message(message: Value, index: usize) -> Result<Value, ApiError> {
    let mut fields = Fields::new(message, &format!("messages[{index}]"))?;
    let role: String = fields.take("role")?.ok_or_else(|| fields.error("role", "required, but not there"))?;
    let mut out = Map::new();
    let as_role = if role == "developer" { "system" } else { &role };
    out.insert("role".into(), as_role.into());
    out.insert("content".into(), content(&mut fields)?.into());
    match as_role {
        "system" | "user" => {}
        "assistant" => {
            let reasoning: Option<String> = fields.take("reasoning_content")?;
            let other_name: Option<String> = fields.take("reasoning")?;
            if let Some(reasoning) = reasoning.or(other_name) {
                out.insert("reasoning_content".into(), reasoning.into());
            }
            if let Some(calls) = fields.take::<Vec<Value>>("tool_calls")? {
                let calls =
                    calls.into_iter().enumerate().map(|(i, call)| tool_call(call, &fields.path("tool_calls"), i));
                out.insert("tool_calls".into(), Value::Array(calls.collect::<Result<_, _>>()?));
            }
            // What OpenAI's own replies carry and clients send back.
            if fields.take::<Value>("annotations")?.is_some_and(|value| !is_empty(&value)) {
                return Err(fields.error("annotations", "only [] is supported"));
            }
        }
        "tool" => {
            if let Some(id) = fields.take::<String>("tool_call_id")? {
                out.insert("tool_call_id".into(), id.into());
            }
            // The function's name; results are matched to calls by their order, as the template has it.
            fields.take::<String>("name")?;
        }
        _ => return Err(fields.error("role", "not one of system, developer, user, assistant, tool")),
    }
    fields.finish()?;
    Ok(Value::Object(out))
}

/// Text, or text parts joined; `null` and absent are the empty string.
fn content(fields: &mut Fields) -> Result<String, ApiError> {
    let parts = match fields.take::<Value>("content")? {
        None => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(fields.wrong("content", "a string or an array of parts", &other)),
    };
    let at = fields.path("content");
    let texts = parts.into_iter().enumerate().map(|(i, part)| {
        let mut part = Fields::new(part, &format!("{at}[{i}]"))?;
        match part.take::<String>("type")?.as_deref() {
            Some("text") => {}
            Some(other) => return Err(part.error("type", format!("{other} parts are not supported, only text"))),
            None => return Err(part.error("type", "required, but not there")),
        }
        let text: String = part.take("text")?.ok_or_else(|| part.error("text", "required, but not there"))?;
        part.finish()?;
        Ok(text)
    });
    texts.collect()
}

/// A call in the history. Its arguments come as JSON text, and the template wants the object.
fn tool_call(call: Value, at: &str, index: usize) -> Result<Value, ApiError> {
    let mut fields = Fields::new(call, &format!("{at}[{index}]"))?;
    let id: Option<String> = fields.take("id")?;
    fields.take::<usize>("index")?; // streamed calls carry it; the order says the same
    if fields.take::<String>("type")?.is_some_and(|kind| kind != "function") {
        return Err(fields.error("type", "only function calls are supported"));
    }
    let function: Value =
        fields.take("function")?.ok_or_else(|| fields.error("function", "required, but not there"))?;
    let mut function = Fields::new(function, &fields.path("function"))?;
    let name: String = function.take("name")?.ok_or_else(|| function.error("name", "required, but not there"))?;
    let arguments = match function.take::<Value>("arguments")? {
        None => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        Some(Value::String(text)) if text.trim().is_empty() => Map::new(),
        // Read as any JSON first: that it is no object is then ours to say.
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(Value::Object(arguments)) => arguments,
            Ok(other) => return Err(function.wrong("arguments", "the JSON text of an object", &other)),
            Err(error) => {
                return Err(function.error("arguments", format!("not the JSON text of an object: {error}")));
            }
        },
        Some(other) => return Err(function.wrong("arguments", "the JSON text of an object", &other)),
    };
    function.finish()?;
    fields.finish()?;
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}

fn check_tool(tool: &Value, index: usize) -> Result<(), ApiError> {
    let mut fields = Fields::new(tool.clone(), &format!("tools[{index}]"))?;
    if fields.take::<String>("type")?.as_deref() != Some("function") {
        return Err(fields.error("type", "only function is supported"));
    }
    let function: Value =
        fields.take("function")?.ok_or_else(|| fields.error("function", "required, but not there"))?;
    fields.finish()?;
    let mut function = Fields::new(function, &fields.path("function"))?;
    if function.take::<String>("name")?.is_none_or(|name| name.is_empty()) {
        return Err(function.error("name", "required, but not there"));
    }
    function.take::<String>("description")?;
    function.take::<Map<String, Value>>("parameters")?;
    if function.take::<bool>("strict")? == Some(true) {
        return Err(function.error("strict", "only false is supported").code("unsupported_value"));
    }
    function.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &Value) -> Result<ChatRequest, ApiError> {
        ChatRequest::parse(body.to_string().as_bytes())
    }

    fn with(name: &str, value: Value) -> Value {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        body[name] = value;
        body
    }

    fn messages(messages: Value) -> Result<Vec<Value>, ApiError> {
        parse(&json!({"messages": messages})).map(|request| request.prompt.messages)
    }

    #[test]
    fn fields_are_refused_by_name() {
        for (name, value) in [
            ("temprature", json!(1)),
            ("n", json!(2)),
            ("stop", json!(1)),
            ("logprobs", json!(3)),
            ("top_logprobs", json!(3)),
            ("top_logprobs", json!(-1)),
            ("response_format", json!({"type": "json_object"})),
            ("presence_penalty", json!("much")),
            ("frequency_penalty", json!([])),
            ("repetition_penalty", json!({})),
            ("logit_bias", json!([1, 5])),
            ("logit_bias", json!({"the": 5})),
            ("logit_bias", json!({"1": "much"})),
            ("parallel_tool_calls", json!(false)),
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
        let sampling = |name, value| parse(&with(name, value)).unwrap().sampling;
        assert_eq!(sampling("stop", json!("a")).stop, ["a"]);
        assert_eq!(sampling("stop", json!(["a", "b"])).stop, ["a", "b"]);
        assert_eq!(sampling("logit_bias", json!({"5": -100, "7": 0.5})).logit_bias, [(5, -100.0), (7, 0.5)]);
        let penalized = sampling("repetition_penalty", json!(1.1));
        assert_eq!((penalized.repetition_penalty, penalized.presence_penalty), (Some(1.1), None));
    }

    #[test]
    fn top_logprobs_need_logprobs() {
        let mut body = with("logprobs", true.into());
        assert_eq!(parse(&body).unwrap().logprobs, Some(0));
        body["top_logprobs"] = 5.into();
        assert_eq!(parse(&body).unwrap().logprobs, Some(5));
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
        assert_eq!(parse(&with("max_tokens", 5.into())).unwrap().sampling.max_tokens, Some(5));
        let mut body = with("max_completion_tokens", 6.into());
        assert_eq!(parse(&body).unwrap().sampling.max_tokens, Some(6));
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
            (
                json!({"role": "assistant", "tool_calls": call("{".into())}),
                "messages[0].tool_calls[0].function.arguments",
            ),
            (
                json!({"role": "assistant", "tool_calls": call("[]".into())}),
                "messages[0].tool_calls[0].function.arguments",
            ),
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
        assert_eq!(parse(&with("tools", json!([tool]))).unwrap().prompt.tools, [tool]);
        for (tool, at) in [
            (json!({"type": "web_search"}), "tools[0].type"),
            (json!({"type": "function"}), "tools[0].function"),
            (json!({"type": "function", "function": {"name": ""}}), "tools[0].function.name"),
            (json!({"type": "function", "function": {"name": "f", "strict": true}}), "tools[0].function.strict"),
            (json!({"type": "function", "function": {"name": "f", "what": 1}}), "tools[0].function.what"),
        ] {
            let error = parse(&with("tools", json!([tool]))).expect_err(at);
            assert_eq!(error.param.as_deref(), Some(at), "{}", error.message);
        }
    }

    #[test]
    fn template_variables_pass_but_not_the_servers_own() {
        let kwargs = json!({"enable_thinking": false, "preserve_thinking": true});
        let prompt = parse(&with("chat_template_kwargs", kwargs)).unwrap().prompt;
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
}
