//! Anthropic's messages, translated into the same form as OpenAI's chat. Its names, its defaults (no thinking unless
//! asked for), our rules: a field is honoured or refused by name.

use lily_engine::request::{ChatPrompt, Prompt};
use serde_json::{Map, Value, json};

use super::ask::Ask;
use super::fields::Fields;
use super::sampling::stop;
use super::thinking::{Thinking, effort};
use super::tools::{Choice, Tools, choose, schema_of};
use crate::flags::SamplingFlags;
use crate::serve::error::ApiError;

/// A request, checked field by field.
#[derive(Debug)]
pub struct MessagesRequest {
    /// What is asked.
    pub ask: Ask,
}

impl MessagesRequest {
    /// What the engine calls otherwise.
    pub const NAMES: [(&str, &str); 2] = [("stop", "stop_sequences"), ("response_format", "output_config.format")];

    /// Reads the body of `/v1/messages`.
    ///
    /// # Errors
    /// 400, naming the first field that is wrong or unknown.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let max_tokens: usize = fields.required("max_tokens")?;
        let sampling = SamplingFlags {
            temperature: fields.take("temperature")?,
            top_k: fields.take("top_k")?,
            top_p: fields.take("top_p")?,
            stop: stop(&mut fields, "stop_sequences")?,
            max_tokens: Some(max_tokens),
            ..SamplingFlags::default()
        };
        let stream = fields.take("stream")?.unwrap_or(false);
        if let Some(tags) = fields.take::<Map<String, Value>>("metadata")? {
            let mut tags = Fields::new(tags.into(), "metadata")?;
            tags.take::<String>("user_id")?;
            tags.finish()?;
        }
        if fields.take::<String>("service_tier")?.is_some_and(|tier| tier != "auto" && tier != "standard_only") {
            return Err(fields.error("service_tier", "only auto and standard_only are supported"));
        }
        let ask = Ask { sampling, stream, ..conversation(&mut fields)? };
        fields.finish()?;
        Ok(Self { ask })
    }

    /// Reads the body of `/v1/messages/count_tokens`.
    ///
    /// # Errors
    /// As `parse`.
    pub fn parse_count(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let ask = conversation(&mut fields)?;
        fields.finish()?;
        Ok(Self { ask })
    }
}

/// The fields that both routes share: all that makes the prompt.
fn conversation(fields: &mut Fields) -> Result<Ask, ApiError> {
    let model = fields.take("model")?;
    let mut messages = Vec::new();
    if let Some(system) = fields.take::<Value>("system")? {
        messages.push(json!({"role": "system", "content": texts(fields, "system", system)?}));
    }
    let turns: Vec<Value> = fields.required("messages")?;
    if let Some(last) = turns.len().checked_sub(1).filter(|last| turns[*last]["role"] == "assistant") {
        return Err(fields.error(&format!("messages[{last}]"), "an answer that was begun cannot be gone on with"));
    }
    if turns.is_empty() {
        return Err(fields.error("messages", "empty; at least one is needed"));
    }
    for (i, turn) in turns.into_iter().enumerate() {
        message(Fields::new(turn, &format!("messages[{i}]"))?, &mut messages)?;
    }
    let tools = tools(fields)?;
    let mut thinking = thinking(fields)?;
    let response_format = output_config(fields, &mut thinking)?;
    context_management(fields)?;
    let chat = ChatPrompt {
        messages,
        tools: tools.tools,
        enable_thinking: Some(thinking.enabled.unwrap_or(false)),
        template_kwargs: Map::new(),
    };
    Ok(Ask {
        model,
        thinking_budget: thinking.budget,
        response_format,
        tool_choice: tools.choice,
        parallel_tool_calls: tools.parallel,
        ..Ask::new(Prompt::Chat(chat))
    })
}

/// A string, or text blocks, which are paragraphs.
fn texts(fields: &Fields, name: &str, value: Value) -> Result<String, ApiError> {
    let blocks = match value {
        Value::String(text) => return Ok(text),
        Value::Array(blocks) => blocks,
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            return Err(fields.wrong(name, "a string or an array of blocks", &other));
        }
    };
    let text = |(i, block)| {
        let mut block = Fields::new(block, &fields.path(&format!("{name}[{i}]")))?;
        block.word("type", "text")?;
        let text: String = text_of(&mut block)?;
        block.finish()?;
        Ok(text)
    };
    let all: Vec<String> = blocks.into_iter().enumerate().map(text).collect::<Result<_, ApiError>>()?;
    Ok(all.join("\n\n"))
}

/// The text of a text block, without what changes nothing here.
fn text_of(block: &mut Fields) -> Result<String, ApiError> {
    let text = block.required("text")?;
    cache_control(block)?;
    if block.take::<Vec<Value>>("citations")?.is_some_and(|citations| !citations.is_empty()) {
        return Err(block.error("citations", "only [] is supported"));
    }
    Ok(text)
}

/// Everything is cached without being asked, so the mark is taken and means nothing.
fn cache_control(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(mark) = fields.take::<Map<String, Value>>("cache_control")? else { return Ok(()) };
    let mut mark = Fields::new(mark.into(), &fields.path("cache_control"))?;
    mark.word("type", "ephemeral")?;
    mark.take::<String>("ttl")?;
    mark.take::<String>("scope")?;
    mark.finish()
}

/// One turn: results of tools are messages of their own, in front of what else the user says.
fn message(mut fields: Fields, out: &mut Vec<Value>) -> Result<(), ApiError> {
    let role: String = fields.required("role")?;
    if !["user", "assistant", "system"].contains(&role.as_str()) {
        return Err(fields.error("role", "not one of user, assistant, system"));
    }
    let content: Value = fields.required("content")?;
    let blocks = match content {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        Value::Array(blocks) => blocks,
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            return Err(fields.wrong("content", "a string or an array of blocks", &other));
        }
    };
    let mut turn = Turn::default();
    for (i, block) in blocks.into_iter().enumerate() {
        turn.block(Fields::new(block, &fields.path(&format!("content[{i}]")))?, &role, out)?;
    }
    fields.finish()?;
    turn.finish(&role, out);
    Ok(())
}

/// What the blocks of a turn add up to.
#[derive(Default)]
struct Turn {
    text: Option<String>,
    reasoning: Option<String>,
    calls: Vec<Value>,
    results: usize,
}

impl Turn {
    fn block(&mut self, mut block: Fields, role: &str, out: &mut Vec<Value>) -> Result<(), ApiError> {
        let kind: String = block.required("type")?;
        match (kind.as_str(), role) {
            ("text", _) => {
                let text = text_of(&mut block)?;
                self.text.get_or_insert_default().push_str(&text);
            }
            ("thinking", "assistant") => {
                let thought: String = block.required("thinking")?;
                block.take::<String>("signature")?;
                self.reasoning.get_or_insert_default().push_str(&thought);
            }
            ("tool_use", "assistant") => {
                let id: String = block.required("id")?;
                let name: String = block.required("name")?;
                let input: Map<String, Value> = block.take("input")?.unwrap_or_default();
                cache_control(&mut block)?;
                let function = json!({"name": name, "arguments": input});
                self.calls.push(json!({"id": id, "type": "function", "function": function}));
            }
            ("tool_result", "user") => {
                let id: String = block.required("tool_use_id")?;
                let mut content = match block.take::<Value>("content")? {
                    Some(content) => texts(&block, "content", content)?,
                    None => String::new(),
                };
                // The template has no mark for failures.
                if block.take::<bool>("is_error")? == Some(true) {
                    content.insert_str(0, "Error: ");
                }
                cache_control(&mut block)?;
                self.results += 1;
                out.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
            }
            _ => {
                let reason = format!("{kind} blocks are not supported in a message of the {role}");
                return Err(block.error("type", reason));
            }
        }
        block.finish()
    }

    fn finish(self, role: &str, out: &mut Vec<Value>) {
        if self.text.is_none() && self.results > 0 {
            return;
        }
        let mut message = json!({"role": role, "content": self.text.unwrap_or_default()});
        if let Some(reasoning) = self.reasoning {
            message["reasoning_content"] = reasoning.into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.into();
        }
        out.push(message);
    }
}

fn tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    let tools: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let tools = tools.into_iter().enumerate().map(|(i, tool)| parse_tool(tool, i)).collect::<Result<_, _>>()?;
    let Some(choice) = fields.take::<Map<String, Value>>("tool_choice")? else {
        return choose(fields, tools, Choice::Auto, true);
    };
    let mut asked = Fields::new(choice.into(), "tool_choice")?;
    let kind: String = asked.required("type")?;
    let choice = match kind.as_str() {
        "auto" => Choice::Auto,
        "any" => Choice::Required,
        "none" => Choice::None,
        "tool" => Choice::Named(asked.required("name")?),
        _ => return Err(asked.error("type", format!("{kind:?} is not one of auto, any, tool, none"))),
    };
    let parallel = !asked.take("disable_parallel_tool_use")?.unwrap_or(false);
    asked.finish()?;
    choose(fields, tools, choice, parallel)
}

/// A tool in OpenAI's chat form.
fn parse_tool(tool: Value, index: usize) -> Result<Value, ApiError> {
    let mut tool = Fields::new(tool, &format!("tools[{index}]"))?;
    if tool.take::<String>("type")?.is_some_and(|kind| kind != "custom") {
        return Err(tool.error("type", "only custom is supported"));
    }
    let mut function = Map::new();
    function.insert("name".into(), tool.required::<String>("name")?.into());
    if let Some(description) = tool.take::<String>("description")? {
        function.insert("description".into(), description.into());
    }
    function.insert("parameters".into(), tool.required::<Map<String, Value>>("input_schema")?.into());
    if let Some(strict) = tool.take::<bool>("strict")? {
        function.insert("strict".into(), strict.into());
    }
    cache_control(&mut tool)?;
    if tool.take::<bool>("defer_loading")? == Some(true) {
        return Err(tool.error("defer_loading", "only false is supported"));
    }
    // Arguments always come whole.
    tool.take::<bool>("eager_input_streaming")?;
    tool.finish()?;
    Ok(json!({"type": "function", "function": function}))
}

fn thinking(fields: &mut Fields) -> Result<Thinking, ApiError> {
    let Some(asked) = fields.take::<Map<String, Value>>("thinking")? else { return Ok(Thinking::default()) };
    let mut asked = Fields::new(asked.into(), "thinking")?;
    let kind: String = asked.required("type")?;
    let (enabled, budget) = match kind.as_str() {
        "enabled" => (true, Some(asked.required("budget_tokens")?)),
        "adaptive" => (true, None),
        "disabled" => (false, None),
        _ => return Err(asked.error("type", format!("{kind:?} is not one of enabled, adaptive, disabled"))),
    };
    if asked.take::<String>("display")?.is_some_and(|display| display != "summarized" && display != "full") {
        return Err(asked.error("display", "thoughts are always sent as they are"));
    }
    asked.finish()?;
    Ok(Thinking { enabled: Some(enabled), budget, template_kwargs: Map::new() })
}

/// How much effort, and what the content must be.
fn output_config(
    fields: &mut Fields,
    thinking: &mut Thinking,
) -> Result<lily_engine::request::ResponseFormat, ApiError> {
    let mut format = lily_engine::request::ResponseFormat::Text;
    let Some(config) = fields.take::<Map<String, Value>>("output_config")? else { return Ok(format) };
    let mut config = Fields::new(config.into(), "output_config")?;
    if let Some(word) = config.take::<String>("effort")? {
        let word = if word == "max" { "xhigh".to_owned() } else { word };
        // Effort alone does not turn thinking on.
        if thinking.enabled == Some(true) {
            effort(&config, "effort", &word, thinking)?;
        } else {
            effort(&config, "effort", &word, &mut Thinking::default())?;
        }
    }
    if let Some(asked) = config.take::<Map<String, Value>>("format")? {
        let mut asked = Fields::new(asked.into(), "output_config.format")?;
        asked.word("type", "json_schema")?;
        format = schema_of(&mut asked)?;
        asked.finish()?;
    }
    config.finish()?;
    Ok(format)
}

/// Nothing is cut from a conversation here; what asks for that much is taken.
fn context_management(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(asked) = fields.take::<Value>("context_management")? else { return Ok(()) };
    let keeps = |edit: &Value| edit["type"] == "clear_thinking_20251015" && edit["keep"] == "all";
    let nothing = asked.as_object().is_some_and(|asked| {
        asked.iter().all(|(name, edits)| name == "edits" && edits.as_array().is_some_and(|e| e.iter().all(keeps)))
    });
    if nothing {
        Ok(())
    } else {
        Err(fields.error("context_management", "only edits that keep everything are supported"))
    }
}
