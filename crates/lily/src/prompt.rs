//! From the words on the command line and stdin to a request.

use lily_engine::request::{ChatPrompt, Prompt};
use serde_json::{Value, json};

/// The prompt argument, a blank line, and what came through the pipe; either alone is fine. The newline that
/// `echo` and text files end with is not part of it.
///
/// # Errors
/// There is neither.
pub fn assemble(argument: Option<&str>, piped: Option<&str>) -> anyhow::Result<String> {
    let piped = piped.map(|text| text.strip_suffix('\n').unwrap_or(text)).filter(|text| !text.trim().is_empty());
    let argument = argument.filter(|text| !text.trim().is_empty());
    match (argument, piped) {
        (Some(argument), Some(piped)) => Ok(format!("{argument}\n\n{piped}")),
        (Some(text), None) | (None, Some(text)) => Ok(text.to_owned()),
        (None, None) => anyhow::bail!("no prompt: give one as an argument, or pipe text to stdin"),
    }
}

/// A one-turn conversation.
pub fn one_turn(system: Option<&str>, text: &str, enable_thinking: Option<bool>) -> Prompt {
    let mut messages = system_message(system);
    messages.push(message("user", text));
    Prompt::Chat(ChatPrompt { messages, enable_thinking, ..ChatPrompt::default() })
}

/// The system message, if there is one.
pub fn system_message(system: Option<&str>) -> Vec<Value> {
    system.map(|text| message("system", text)).into_iter().collect()
}

/// `{role, content}`.
pub fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pipe_follows_the_argument_after_a_blank_line() {
        assert_eq!(assemble(Some("Sum up:"), Some("a\nb\n")).unwrap(), "Sum up:\n\na\nb");
        assert_eq!(assemble(Some("Hi"), None).unwrap(), "Hi");
        assert_eq!(assemble(Some("Hi"), Some("")).unwrap(), "Hi");
        assert_eq!(assemble(None, Some("text\n")).unwrap(), "text");
    }

    #[test]
    fn nothing_at_all_is_an_error() {
        for (argument, piped) in [(None, None), (Some(""), None), (None, Some("\n")), (Some(" "), Some(" \n"))] {
            assert!(assemble(argument, piped).unwrap_err().to_string().starts_with("no prompt"));
        }
    }

    #[test]
    fn a_turn_has_the_system_message_first() {
        let Prompt::Chat(chat) = one_turn(Some("Be brief."), "Hi", Some(false)) else { panic!("chat") };
        assert_eq!(
            Value::Array(chat.messages),
            json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
        );
        assert_eq!(chat.enable_thinking, Some(false));
    }
}
