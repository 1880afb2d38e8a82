//! Tools, whether they must be called, and what the content must be.

use lily_engine::request::{ResponseFormat, ToolChoice};
use serde_json::{Map, Value};

use super::fields::Fields;
use crate::serve::error::ApiError;

/// The tools of a request and what is said about calling them.
#[derive(Debug)]
pub struct Tools {
    /// Those that the model is shown, in OpenAI's chat form.
    pub tools: Vec<Value>,
    /// Whether it must call one.
    pub choice: ToolChoice,
    /// Whether it may call several.
    pub parallel: bool,
}

/// `tools`, `tool_choice` and `parallel_tool_calls`.
pub fn tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    let tools: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    for (i, tool) in tools.iter().enumerate() {
        check_tool(tool, i)?;
    }
    let choice = match fields.take::<Value>("tool_choice")? {
        None => Choice::Auto,
        Some(Value::String(word)) => word_of_choice(fields, &word)?,
        Some(Value::Object(choice)) => Choice::Named(named_choice(choice)?),
        Some(other) => return Err(fields.wrong("tool_choice", "a string or an object", &other)),
    };
    let parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    choose(fields, tools, choice, parallel)
}

/// What a client may ask about calls.
#[derive(Debug)]
pub enum Choice {
    /// No calls.
    None,
    /// As the model likes.
    Auto,
    /// At least one.
    Required,
    /// One of this tool.
    Named(String),
}

/// OpenAI's words.
pub fn word_of_choice(fields: &Fields, word: &str) -> Result<Choice, ApiError> {
    match word {
        "none" => Ok(Choice::None),
        "auto" => Ok(Choice::Auto),
        "required" => Ok(Choice::Required),
        _ => Err(fields.error("tool_choice", format!("{word:?} is not one of none, auto, required"))),
    }
}

/// Sees that the choice can be kept.
pub fn choose(fields: &Fields, tools: Vec<Value>, choice: Choice, parallel: bool) -> Result<Tools, ApiError> {
    let mut names: Vec<&Value> = Vec::with_capacity(tools.len());
    for (i, tool) in tools.iter().enumerate() {
        let name = &tool["function"]["name"];
        if names.contains(&name) {
            return Err(ApiError::field(format!("tools[{i}]"), format!("there is another tool named {name}")));
        }
        names.push(name);
    }
    let (tools, choice) = match choice {
        // A model that is shown no tools calls none.
        Choice::None => (Vec::new(), ToolChoice::Auto),
        Choice::Auto => (tools, ToolChoice::Auto),
        Choice::Required if tools.is_empty() => {
            return Err(fields.error("tool_choice", "a call is required, but there are no tools"));
        }
        Choice::Required => (tools, ToolChoice::Required),
        Choice::Named(name) => {
            if !tools.iter().any(|tool| tool["function"]["name"] == name.as_str()) {
                return Err(fields.error("tool_choice", format!("{name:?} is not among the tools")));
            }
            (tools, ToolChoice::Named(name))
        }
    };
    Ok(Tools { tools, choice, parallel })
}

fn named_choice(choice: Map<String, Value>) -> Result<String, ApiError> {
    let mut choice = Fields::new(choice.into(), "tool_choice")?;
    choice.word("type", "function")?;
    let mut function = choice.object("function")?;
    choice.finish()?;
    let name = function.required("name")?;
    function.finish()?;
    Ok(name)
}

/// `response_format` of a chat.
pub fn response_format(fields: &mut Fields) -> Result<ResponseFormat, ApiError> {
    let Some(format) = fields.take::<Map<String, Value>>("response_format")? else { return Ok(ResponseFormat::Text) };
    let mut format = Fields::new(format.into(), "response_format")?;
    let kind: String = format.required("type")?;
    let parsed = match kind.as_str() {
        "text" => ResponseFormat::Text,
        "json_object" => ResponseFormat::JsonObject,
        "json_schema" => {
            let mut named = format.object("json_schema")?;
            let schema = schema_of(&mut named)?;
            named.finish()?;
            schema
        }
        _ => return Err(format.error("type", format!("{kind:?} is not one of text, json_object, json_schema"))),
    };
    format.finish()?;
    Ok(parsed)
}

/// A schema with its name. It is enforced whether or not `strict` asks for that.
pub fn schema_of(fields: &mut Fields) -> Result<ResponseFormat, ApiError> {
    fields.take::<String>("name")?;
    fields.take::<String>("description")?;
    fields.take::<bool>("strict")?;
    let schema: Map<String, Value> = fields.required("schema")?;
    Ok(ResponseFormat::JsonSchema(schema.into()))
}

fn check_tool(tool: &Value, index: usize) -> Result<(), ApiError> {
    let mut fields = Fields::new(tool.clone(), &format!("tools[{index}]"))?;
    fields.word("type", "function")?;
    let mut function = fields.object("function")?;
    fields.finish()?;
    if function.required::<String>("name")?.is_empty() {
        return Err(function.error("name", "empty"));
    }
    function.take::<String>("description")?;
    function.take::<Map<String, Value>>("parameters")?;
    function.take::<bool>("strict")?;
    function.finish()
}
