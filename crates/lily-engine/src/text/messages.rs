//! Conversations as clients send them → as chat templates expect them. Every client's habits end here; the
//! templates see one form.

use serde_json::{Map, Value};

use super::{TextError, tool_results};
use crate::request::ChatPrompt;

/// Brings messages into the form that templates were written for:
/// - `developer` is `system`, and all system messages are one, in their order, at the beginning;
/// - missing or null content is `""`, and text parts are joined;
/// - `reasoning` is `reasoning_content`;
/// - a tool call's `arguments` given as a JSON string are an object, and results stand in the order of their calls.
///
/// # Errors
/// A message is not an object, holds something else than text, has arguments that are not a JSON object, or is the
/// result of no call.
pub(super) fn normalize(chat: &ChatPrompt) -> Result<ChatPrompt, TextError> {
    let normal = |(index, message)| normalize_message(message).map_err(|reason| TextError::Message { index, reason });
    let mut normal: Vec<Value> = chat.messages.iter().enumerate().map(normal).collect::<Result<_, _>>()?;
    tool_results::order(&mut normal)?;
    let mut messages: Vec<Value> = Vec::with_capacity(normal.len());
    for message in normal {
        match messages.first_mut() {
            Some(first) if is_system(first) && is_system(&message) => join_content(first, &message),
            Some(_) if is_system(&message) => messages.insert(0, message),
            Some(_) | None => messages.push(message),
        }
    }
    Ok(ChatPrompt { messages, ..chat.clone() })
}

fn normalize_message(message: &Value) -> Result<Value, String> {
    let mut message = message.as_object().cloned().ok_or("not an object")?;
    if message.get("role").and_then(Value::as_str) == Some("developer") {
        message.insert("role".into(), "system".into());
    }
    let content = content_text(message.get("content"))?;
    message.insert("content".into(), content.into());
    let reasoning = message.shift_remove("reasoning").filter(Value::is_string);
    if let (Some(reasoning), false) = (reasoning, message.get("reasoning_content").is_some_and(Value::is_string)) {
        message.insert("reasoning_content".into(), reasoning);
    }
    if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
        for (index, call) in calls.iter_mut().enumerate() {
            parse_arguments(call).map_err(|reason| format!("tool_calls[{index}]: {reason}"))?;
        }
    }
    Ok(message.into())
}

fn content_text(content: Option<&Value>) -> Result<String, String> {
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => parts.iter().map(part_text).collect(),
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            Err("content is neither text nor a list of parts".into())
        }
    }
}

fn part_text(part: &Value) -> Result<&str, String> {
    let kind = part.get("type").and_then(Value::as_str);
    match (kind, part.get("text").and_then(Value::as_str)) {
        (None | Some("text" | "input_text" | "output_text"), Some(text)) => Ok(text),
        (Some(kind), _) => Err(format!("a content part of type {kind:?} is not text, and this model reads text only")),
        (None, None) => Err("a content part without text".into()),
    }
}

fn parse_arguments(call: &mut Value) -> Result<(), String> {
    let function = match call.get_mut("function") {
        Some(function) => function,
        None => call,
    };
    let Some(arguments) = function.get_mut("arguments") else {
        return Ok(());
    };
    let parsed = match arguments {
        Value::Object(_) => return Ok(()),
        Value::Null => Map::new(),
        Value::String(text) if text.trim().is_empty() => Map::new(),
        Value::String(text) => {
            serde_json::from_str(text).map_err(|e| format!("arguments are not a JSON object: {e}"))?
        }
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => return Err("arguments are not a JSON object".into()),
    };
    *arguments = parsed.into();
    Ok(())
}

fn is_system(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str) == Some("system")
}

/// Appends a system message's text to another, after a blank line.
fn join_content(first: &mut Value, next: &Value) {
    let text = |message: &Value| message.get("content").and_then(Value::as_str).unwrap_or_default().to_owned();
    let (a, b) = (text(first), text(next));
    let separator = if a.is_empty() || b.is_empty() { "" } else { "\n\n" };
    if let Some(content) = first.get_mut("content") {
        *content = format!("{a}{separator}{b}").into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn normalized(messages: &[(&str, &str)]) -> Vec<(String, String)> {
        let messages = messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
        let chat = normalize(&ChatPrompt { messages, ..ChatPrompt::default() }).unwrap();
        let text = |message: &Value, key: &str| message[key].as_str().unwrap().to_owned();
        chat.messages.iter().map(|message| (text(message, "role"), text(message, "content"))).collect()
    }

    #[test]
    fn system_messages_anywhere_are_one_at_the_front_in_their_order() {
        let got = normalized(&[
            ("user", "a"),
            ("system", "one"),
            ("assistant", "b"),
            ("developer", "two"),
            ("system", ""),
            ("user", "c"),
            ("system", "three"),
        ]);
        let want = [("system", "one\n\ntwo\n\nthree"), ("user", "a"), ("assistant", "b"), ("user", "c")];
        assert_eq!(got, want.map(|(role, content)| (role.to_owned(), content.to_owned())));
    }
}
