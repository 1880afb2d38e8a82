//! A request → the grammar of its answer, in `llguidance`'s dialect of Lark.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::super::arguments::Tools;
use super::super::{FUNCTION_START, TOOL_CALL_END, TOOL_CALL_START, TagIds};
use super::parameter::{self, Form};
use crate::request::{ChatPrompt, Prompt, Request, RequestError, ResponseFormat, ToolChoice};

/// Between the parts of JSON: a space or two, or a new line and its indentation. Without a bound, a model that does not
/// know how to go on writes white space for ever.
const WHITE_SPACE: &str = r"[ ]{1,2}|\n[ ]{0,40}|\n\t{1,12}";

/// Most `$ref`s followed into one another.
pub(super) const MAX_DEPTH: usize = 16;

/// What ends a value, and what `tool_call.rs` would take for the end of one or for a call inside it.
const VALUE_END: &str = r#"END_OF_VALUE: "\n</parameter>\n"
NO_VALUE: /(?s:.*)\n<\/parameter>\n(?s:.+)/ | /(?s:.*)<\/parameter>\s*<parameter=(?s:.*)/ | /(?s:.*)<\/parameter>\s*<\/function>(?s:.*)/ | /(?s:.*)<tool_call>\s*<function=(?s:.*)/ | /(?s:.*)<\/function>\s*<\/tool_call>(?s:.*)/
"#;

/// A parameter of any name with any text, as `arguments.rs` takes it.
const ANY_PARAMETER: &str = r#"any_parameter: "<parameter=" ANY_NAME ANY_VALUE
ANY_NAME: /[^<>\s\x00-\x1F]([^<>\x00-\x1F]{0,100}[^<>\s\x00-\x1F])?>\n/
ANY_VALUE: /(?s:.*)/ END_OF_VALUE & ~NO_VALUE
"#;

/// A grammar's text.
#[derive(Debug)]
pub(super) struct Source {
    pub lark: String,
    /// Set if it is that of one call, between which the answer is free.
    pub free: Option<Free>,
    /// The field of the request that it comes from.
    pub field: &'static str,
}

/// Answers that are free until they call.
#[derive(Debug, Clone)]
pub(super) struct Free {
    pub tools: Tools,
    /// More may follow a call.
    pub parallel: bool,
}

/// One tool of a request.
struct Tool<'a> {
    name: &'a str,
    parameters: Option<&'a Value>,
    /// Its arguments obey the schema.
    is_enforced: bool,
}

fn refused<T>(field: &'static str, reason: impl Into<String>) -> Result<T, RequestError> {
    Err(RequestError::Field { field, reason: reason.into() })
}

impl Source {
    /// Whether there may be one.
    pub(super) fn is_needed(request: &Request) -> bool {
        let tools = chat(request).map_or(&[][..], |chat| &chat.tools);
        request.response_format != ResponseFormat::Text
            || request.tool_choice != ToolChoice::Auto
            || tools.iter().filter_map(|tool| read_tool(tool, false)).any(|tool| tool.is_enforced)
    }

    /// `None` if the answer may be anything.
    pub(super) fn of(request: &Request, open_think: bool, tags: TagIds) -> Result<Option<Self>, RequestError> {
        let schema = match &request.response_format {
            ResponseFormat::Text => None,
            ResponseFormat::JsonObject => Some(json!({"type": "object"})),
            ResponseFormat::JsonSchema(schema) => Some(schema.clone()),
        };
        let schema = schema.map(|schema| with_options(schema, "response_format")).transpose()?;
        let tools = tools(request)?;
        let is_any_strict = tools.iter().any(|tool| tool.is_enforced);
        let must_call = request.tool_choice != ToolChoice::Auto;
        let field = if schema.is_some() && !must_call { "response_format" } else { "tools" };
        // What a model writes between its thoughts and its answer.
        let lead = if open_think { r"/\n{0,2}/ " } else { "" };
        let more = if request.parallel_tool_calls { r#" ("\n" call)*"# } else { "" };
        let calls = || call_rules(&tools, tags);
        let (lark, free) = match schema {
            _ if must_call => (format!("start: {lead}call{more}\n{}", calls()?), None),
            Some(schema) if tools.is_empty() => (format!("start: {lead}json\njson: %json {schema}\n"), None),
            Some(schema) => (format!("start: {lead}(json | call{more})\njson: %json {schema}\n{}", calls()?), None),
            None if is_any_strict => {
                let tools = Tools::new(&chat(request).map(|chat| chat.tools.clone()).unwrap_or_default());
                let free = Free { tools, parallel: request.parallel_tool_calls };
                (format!("start: call | bare\nbare: function\n{}", calls()?), Some(free))
            }
            None => return Ok(None),
        };
        Ok(Some(Self { lark, free, field }))
    }
}

fn chat(request: &Request) -> Option<&ChatPrompt> {
    match &request.prompt {
        Prompt::Chat(chat) => Some(chat),
        Prompt::Raw(_) | Prompt::Tokens(_) => None,
    }
}

/// The tools that may be called.
fn tools(request: &Request) -> Result<Vec<Tool<'_>>, RequestError> {
    let all = chat(request).map_or(&[][..], |chat| &chat.tools);
    let must_call = request.tool_choice != ToolChoice::Auto;
    let mut tools: Vec<Tool> = all.iter().filter_map(|tool| read_tool(tool, must_call)).collect();
    match &request.tool_choice {
        ToolChoice::Auto => {}
        ToolChoice::Required if tools.is_empty() => return refused("tool_choice", "required, but there are no tools"),
        ToolChoice::Required => {}
        ToolChoice::Named(name) => {
            tools.retain(|tool| tool.name == name);
            if tools.is_empty() {
                return refused("tool_choice", format!("no tool is called {name:?}"));
            }
        }
    }
    Ok(tools)
}

/// What has no name is no tool, as in `arguments.rs`.
fn read_tool(tool: &Value, must_call: bool) -> Option<Tool<'_>> {
    let function = tool.get("function").unwrap_or(tool);
    let is_strict = function.get("strict").and_then(Value::as_bool) == Some(true);
    Some(Tool {
        name: function.get("name")?.as_str()?,
        parameters: function.get("parameters"),
        is_enforced: must_call || is_strict,
    })
}

/// The rules `call`, one in tags, and `function`, the same without.
fn call_rules(tools: &[Tool], tags: TagIds) -> Result<String, RequestError> {
    let tag = |id: Option<u32>, spelling: &str| id.map_or_else(|| literal(spelling), |id| format!("<[{id}]>"));
    let (start, end) = (tag(tags.tool_call_start, TOOL_CALL_START), tag(tags.tool_call_end, TOOL_CALL_END));
    let names: Vec<String> = (0..tools.len()).map(|i| format!("tool_{i}")).collect();
    let mut lark = format!("call: {start} \"\\n\" function \"\\n\" {end}\nfunction: {}\n", names.join(" | "));
    lark.push_str(VALUE_END);
    lark.push_str(ANY_PARAMETER);
    for (i, tool) in tools.iter().enumerate() {
        if !is_label(tool.name) {
            return refused("tools", format!("a call cannot spell the name {:?}", tool.name));
        }
        let opening = literal(&format!("{FUNCTION_START}{}>\n", tool.name));
        let parameters = match tool.parameters {
            Some(schema) if tool.is_enforced => parameter_rules(&mut lark, i, tool.name, schema)?,
            None if tool.is_enforced => String::new(),
            Some(_) | None => " any_parameter*".into(),
        };
        let _ = writeln!(lark, "tool_{i}: {opening}{parameters} \"</function>\"");
    }
    Ok(lark)
}

/// Appends the rules of a tool's parameters; what the tool's own rule says of them.
fn parameter_rules(lark: &mut String, tool: usize, name: &str, schema: &Value) -> Result<String, RequestError> {
    let wrong = |reason: String| RequestError::Field { field: "tools", reason: format!("{name}: {reason}") };
    let properties = parameter::properties(schema).map_err(wrong)?;
    let mut body = String::new();
    for (i, property) in properties.iter().enumerate() {
        let wrong = |reason: String| wrong(format!("parameters.properties.{}: {reason}", property.key));
        if !is_label(property.key) {
            return Err(wrong("a call cannot spell this name".into()));
        }
        let form = Form::of(property.schema, schema).map_err(wrong)?;
        let mut ways = Vec::new();
        if let Some(text) = form.text() {
            let _ = writeln!(lark, "TEXT_{tool}_{i}: ({text}) END_OF_VALUE & ~NO_VALUE");
            ways.push(format!("TEXT_{tool}_{i}"));
        }
        if let Some(json) = form.json(schema) {
            let json = with_options(json, "tools")?;
            // The comment is for `sentence`.
            let _ = writeln!(lark, "json_{tool}_{i}: %json {json} # {name}: parameters.properties.{}", property.key);
            ways.push(format!("json_{tool}_{i} END_OF_VALUE"));
        }
        if ways.is_empty() {
            return Err(wrong("no value fits it".into()));
        }
        let opening = literal(&format!("<parameter={}>\n", property.key));
        let _ = writeln!(lark, "parameter_{tool}_{i}: {opening} ({})", ways.join(" | "));
        let _ = write!(body, " parameter_{tool}_{i}{}", if property.is_required { "" } else { "?" });
    }
    Ok(body)
}

/// Whether `tool_call.rs` reads these words between `=` and `>` as they are.
fn is_label(label: &str) -> bool {
    let fits = !label.is_empty() && label.len() <= 200 && label.trim() == label;
    fits && !label.contains(['<', '>']) && !label.contains(char::is_control)
}

/// A string of Lark, which escapes as JSON does.
pub(super) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// A schema that says itself how its text is written.
fn with_options(schema: Value, field: &'static str) -> Result<Value, RequestError> {
    let mut schema = match schema {
        Value::Object(schema) => schema,
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return refused(field, "the schema allows nothing"),
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return refused(field, format!("{schema} is no schema"));
        }
    };
    schema.insert("x-guidance".into(), json!({"whitespace_pattern": WHITE_SPACE}));
    Ok(Value::Object(schema))
}

/// What `llguidance` says of a grammar, without the grammar around it.
pub(super) fn sentence(error: &str, lark: &str) -> String {
    // `at LINE(COLUMN): failed to compile JSON schema: REASON`, and the lines around it.
    let line = error.strip_prefix("at ").and_then(|rest| rest.split('(').next()?.parse::<usize>().ok());
    let line = line.and_then(|line| lark.lines().nth(line.checked_sub(1)?));
    let place = line.and_then(|line| line.rsplit_once("} # ")).map_or(String::new(), |(_, place)| format!("{place}: "));
    let error = error.split_once("failed to compile JSON schema: ").map_or(error, |(_, reason)| reason);
    // Of a regular expression the first lines show the place, and a later one the reason.
    let reason = error.lines().find_map(|line| line.strip_prefix("error: "));
    let mut lines = error.lines().map(str::trim);
    let first = lines.next().unwrap_or_default().replace("Unimplemented keys", "keywords that cannot be enforced");
    match reason {
        Some(reason) => format!("{place}{first} {}: {reason}", lines.next().unwrap_or_default()),
        None => format!("{place}{first}"),
    }
}
