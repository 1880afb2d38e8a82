//! OpenAI's responses, translated into the same form as its chat. Nothing is kept between requests, so a conversation
//! comes whole each time. A field is honoured or refused by name.

use lily_engine::request::{ChatPrompt, Prompt, ResponseFormat};
use serde_json::{Map, Value, json};

use super::ask::Ask;
use super::fields::{Fields, Neutral};
use super::messages::arguments_object;
use super::thinking::{Thinking, effort};
use super::tools::{Choice, Tools, choose, schema_of, word_of_choice};
use crate::flags::SamplingFlags;
use crate::serve::error::ApiError;

/// Fields of features that are not here, and fields about them: name, what is accepted in words, and the test.
const NEUTRAL: [Neutral; 8] = [
    ("store", "false", |v| *v == false),
    ("background", "false", |v| *v == false),
    ("truncation", r#""disabled""#, |v| *v == "disabled"),
    ("service_tier", r#""auto" or "default""#, |v| *v == "auto" || *v == "default"),
    ("top_logprobs", "0", |v| *v == 0),
    ("stream_options", r#"{"include_obfuscation": false}"#, |v| *v == json!({"include_obfuscation": false})),
    // Thoughts are sent as they are; whoever wants to have them sealed too gets them unsealed.
    ("include", r#"["reasoning.encrypted_content"]"#, |v| {
        v.as_array().is_some_and(|all| all.iter().all(|one| *one == "reasoning.encrypted_content"))
    }),
    ("metadata", "an object", Value::is_object),
];

/// Tags for the server's records and hints for its cache; this server keeps none and caches without them.
const NO_OPS: [&str; 5] =
    ["user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "client_metadata"];

/// What a response repeats of its request.
const REPEATED: [&str; 11] = [
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "reasoning",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "user",
];

/// A request, checked field by field.
#[derive(Debug)]
pub struct ResponsesRequest {
    /// What is asked.
    pub ask: Ask,
    /// What the response repeats.
    pub repeated: Map<String, Value>,
}

impl ResponsesRequest {
    /// What the engine calls otherwise.
    pub const NAMES: [(&str, &str); 3] =
        [("messages", "input"), ("max_tokens", "max_output_tokens"), ("response_format", "text.format")];

    /// Reads a request body.
    ///
    /// # Errors
    /// 400, naming the first field that is wrong or unknown.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let repeated = REPEATED.iter().map(|name| ((*name).to_owned(), fields.peek(name))).collect();
        let instructions: Option<String> = fields.take("instructions")?;
        let system = instructions.map(|text| json!({"role": "system", "content": text}));
        let mut input = Input { messages: system.into_iter().collect() };
        input.take(&mut fields)?;
        let tools = tools(&mut fields)?;
        let thinking = reasoning(&mut fields)?;
        let chat = ChatPrompt {
            messages: input.messages,
            tools: tools.tools,
            enable_thinking: thinking.enabled,
            template_kwargs: thinking.template_kwargs,
        };
        let ask = Ask {
            model: fields.take("model")?,
            sampling: SamplingFlags {
                temperature: fields.take("temperature")?,
                top_p: fields.take("top_p")?,
                max_tokens: fields.take("max_output_tokens")?,
                ..SamplingFlags::default()
            },
            thinking_budget: thinking.budget,
            response_format: text_format(&mut fields)?,
            tool_choice: tools.choice,
            parallel_tool_calls: tools.parallel,
            stream: fields.take("stream")?.unwrap_or(false),
            ..Ask::new(Prompt::Chat(chat))
        };
        fields.only(&NEUTRAL)?;
        fields.without_effect(&NO_OPS)?;
        fields.finish()?;
        Ok(Self { ask, repeated })
    }
}

/// Items of the input as messages. What the model said in one turn are several items, and one message.
struct Input {
    messages: Vec<Value>,
}

impl Input {
    fn take(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        let items = match fields.required::<Value>("input")? {
            Value::String(text) => vec![json!({"role": "user", "content": text})],
            Value::Array(items) => items,
            other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
                return Err(fields.wrong("input", "a string or an array of items", &other));
            }
        };
        if items.is_empty() {
            return Err(fields.error("input", "empty; at least one item is needed"));
        }
        for (i, item) in items.into_iter().enumerate() {
            self.item(Fields::new(item, &format!("input[{i}]"))?)?;
        }
        Ok(())
    }

    fn item(&mut self, mut item: Fields) -> Result<(), ApiError> {
        // Of items that came from here and go back: nothing is looked up by them.
        item.take::<String>("id")?;
        item.take::<String>("status")?;
        let kind: Option<String> = item.take("type")?;
        match kind.as_deref().unwrap_or("message") {
            "message" => self.message(&mut item)?,
            "reasoning" => {
                let thought = thought(&mut item)?;
                self.messages.push(json!({"role": "assistant", "content": "", "reasoning_content": thought}));
            }
            "function_call" => {
                let id: String = item.required("call_id")?;
                let name: String = item.required("name")?;
                let arguments: Value = item.required("arguments")?;
                let arguments = arguments_object(&item, "arguments", arguments)?;
                let function = json!({"name": name, "arguments": arguments});
                self.call(json!({"id": id, "type": "function", "function": function}));
            }
            "function_call_output" => {
                let id: String = item.required("call_id")?;
                let output = parts(&mut item, "output", &["input_text", "output_text"])?;
                self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": output}));
            }
            other => {
                let reason = format!("{other} items are not supported");
                return Err(item.error("type", reason));
            }
        }
        item.finish()
    }

    fn message(&mut self, item: &mut Fields) -> Result<(), ApiError> {
        let role: String = item.required("role")?;
        let kinds: &[&str] = match role.as_str() {
            "user" | "system" | "developer" => &["input_text", "text"],
            "assistant" => &["output_text", "input_text", "text"],
            _ => return Err(item.error("role", "not one of system, developer, user, assistant")),
        };
        item.take::<String>("phase")?;
        let text = parts(item, "content", kinds)?;
        match self.messages.last_mut() {
            Some(last)
                if role == "assistant"
                    && last["role"] == "assistant"
                    && last["content"] == ""
                    && last.get("tool_calls").is_none() =>
            {
                last["content"] = text.into();
            }
            Some(_) | None => {
                let role = if role == "developer" { "system" } else { &role };
                self.messages.push(json!({"role": role, "content": text}));
            }
        }
        Ok(())
    }

    fn call(&mut self, call: Value) {
        if self.messages.last().is_none_or(|last| last["role"] != "assistant") {
            self.messages.push(json!({"role": "assistant", "content": ""}));
        }
        if let Some(last) = self.messages.last_mut() {
            match last.get_mut("tool_calls").and_then(Value::as_array_mut) {
                Some(calls) => calls.push(call),
                None => last["tool_calls"] = json!([call]),
            }
        }
    }
}

/// A string, or parts that are text.
fn parts(item: &mut Fields, name: &str, kinds: &[&str]) -> Result<String, ApiError> {
    let parts = match item.required::<Value>(name)? {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            return Err(item.wrong(name, "a string or an array of parts", &other));
        }
    };
    let text = |(i, part)| {
        let mut part = Fields::new(part, &item.path(&format!("{name}[{i}]")))?;
        let kind: String = part.required("type")?;
        if !kinds.contains(&kind.as_str()) {
            return Err(part.error("type", format!("{kind} parts are not supported here, only {}", kinds.join(", "))));
        }
        let text: String = part.required("text")?;
        // What replies carry and clients send back.
        for empty in ["annotations", "logprobs"] {
            part.take::<Vec<Value>>(empty)?;
        }
        part.finish()?;
        Ok(text)
    };
    parts.into_iter().enumerate().map(text).collect()
}

/// The text of a reasoning item: its content, or else its summary.
fn thought(item: &mut Fields) -> Result<String, ApiError> {
    item.take::<String>("encrypted_content")?;
    let mut texts = [String::new(), String::new()];
    for (text, (name, kind)) in texts.iter_mut().zip([("content", "reasoning_text"), ("summary", "summary_text")]) {
        if let Some(all) = item.take::<Vec<Value>>(name)? {
            for (i, part) in all.into_iter().enumerate() {
                let mut part = Fields::new(part, &item.path(&format!("{name}[{i}]")))?;
                part.word("type", kind)?;
                text.push_str(&part.required::<String>("text")?);
                part.finish()?;
            }
        }
    }
    let [content, summary] = texts;
    Ok(if content.is_empty() { summary } else { content })
}

fn tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    let tools: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let tools = tools.into_iter().enumerate().map(|(i, tool)| parse_tool(tool, i)).collect::<Result<_, _>>()?;
    let choice = match fields.take::<Value>("tool_choice")? {
        None => Choice::Auto,
        Some(Value::String(word)) => word_of_choice(fields, &word)?,
        Some(Value::Object(choice)) => {
            let mut choice = Fields::new(choice.into(), "tool_choice")?;
            choice.word("type", "function")?;
            let name = choice.required("name")?;
            choice.finish()?;
            Choice::Named(name)
        }
        Some(other) => return Err(fields.wrong("tool_choice", "a string or an object", &other)),
    };
    let parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    choose(fields, tools, choice, parallel)
}

/// A tool in OpenAI's chat form, where all but the type is one level deeper.
fn parse_tool(tool: Value, index: usize) -> Result<Value, ApiError> {
    let mut tool = Fields::new(tool, &format!("tools[{index}]"))?;
    tool.word("type", "function")?;
    let mut function = Map::new();
    function.insert("name".into(), tool.required::<String>("name")?.into());
    if let Some(description) = tool.take::<String>("description")? {
        function.insert("description".into(), description.into());
    }
    if let Some(parameters) = tool.take::<Map<String, Value>>("parameters")? {
        function.insert("parameters".into(), parameters.into());
    }
    if let Some(strict) = tool.take::<bool>("strict")? {
        function.insert("strict".into(), strict.into());
    }
    tool.finish()?;
    Ok(json!({"type": "function", "function": function}))
}

fn reasoning(fields: &mut Fields) -> Result<Thinking, ApiError> {
    let mut thinking = super::thinking::thinking(fields)?;
    let Some(asked) = fields.take::<Map<String, Value>>("reasoning")? else { return Ok(thinking) };
    let mut asked = Fields::new(asked.into(), "reasoning")?;
    if let Some(word) = asked.take::<String>("effort")? {
        effort(&asked, "effort", &word, &mut thinking)?;
    }
    // Thoughts come whole, which is more than any summary of them.
    asked.take::<String>("summary")?;
    asked.take::<String>("generate_summary")?;
    asked.finish()?;
    Ok(thinking)
}

fn text_format(fields: &mut Fields) -> Result<ResponseFormat, ApiError> {
    let Some(text) = fields.take::<Map<String, Value>>("text")? else { return Ok(ResponseFormat::Text) };
    let mut text = Fields::new(text.into(), "text")?;
    if text.take::<String>("verbosity")?.is_some_and(|verbosity| verbosity != "medium") {
        return Err(text.error("verbosity", "only medium is supported").code("unsupported_value"));
    }
    let format: Option<Map<String, Value>> = text.take("format")?;
    text.finish()?;
    let Some(format) = format else { return Ok(ResponseFormat::Text) };
    let mut format = Fields::new(format.into(), "text.format")?;
    let kind: String = format.required("type")?;
    let parsed = match kind.as_str() {
        "text" => ResponseFormat::Text,
        "json_object" => ResponseFormat::JsonObject,
        "json_schema" => schema_of(&mut format)?,
        _ => return Err(format.error("type", format!("{kind:?} is not one of text, json_object, json_schema"))),
    };
    format.finish()?;
    Ok(parsed)
}
