//! Messages of a conversation, from OpenAI's form into that of the chat templates.

use serde_json::{Map, Value, json};

use super::fields::{Fields, is_empty};
use super::unique::{self, Refusal};
use crate::serve::error::ApiError;

/// The messages of a request, at least one.
pub fn messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let messages: Vec<Value> =
        fields.take("messages")?.ok_or_else(|| ApiError::field("messages", "required, but not there"))?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "empty; at least one is needed"));
    }
    messages.into_iter().enumerate().map(|(i, message)| parse_message(message, i)).collect()
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
            if reasoning.is_some() && other_name.is_some() && reasoning != other_name {
                return Err(fields.error("reasoning", "not the same as reasoning_content"));
            }
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
            // The function's name; results are matched to calls by their ids.
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
        Some(arguments) => arguments_object(&function, "arguments", arguments)?,
    };
    function.finish()?;
    fields.finish()?;
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}

/// The arguments of a call: an object, or the JSON text of one, which is what OpenAI's APIs send.
pub fn arguments_object(fields: &Fields, name: &str, value: Value) -> Result<Map<String, Value>, ApiError> {
    const WORDS: &str = "the JSON text of an object";
    let text = match value {
        Value::Object(arguments) => return Ok(arguments),
        Value::String(text) if text.trim().is_empty() => return Ok(Map::new()),
        Value::String(text) => text,
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_)) => {
            return Err(fields.wrong(name, WORDS, &other));
        }
    };
    // Read as any JSON first: that it is no object is then ours to say.
    match unique::from_slice(text.as_bytes()) {
        Ok(Value::Object(arguments)) => Ok(arguments),
        Ok(other) => Err(fields.wrong(name, WORDS, &other)),
        Err(Refusal::Twice(key)) => Err(fields.error(name, format!("{key} is given twice in one object"))),
        Err(Refusal::Many) => Err(fields.error(name, "too many objects")),
        Err(Refusal::Syntax { error, .. }) => Err(fields.error(name, format!("not {WORDS}: {error}"))),
    }
}
