//! OpenAI's old completions: a text or tokens, continued as they stand. Evaluation harnesses ask it for the scores of
//! their own texts, with `echo`.

use lily_engine::request::Prompt;
use serde::Deserialize;
use serde_json::Value;

use super::ask::Ask;
use super::fields::Fields;
use super::sampling::{answers, sampling, stream_options};
use crate::serve::error::ApiError;

/// OpenAI's default. A text that is continued has no end of its own as an answer has.
const MAX_TOKENS: usize = 16;

/// A completion request, checked field by field; ranges are the engine's business.
#[derive(Debug)]
pub struct CompletionRequest {
    /// What is asked.
    pub ask: Ask,
    /// The text begins with the prompt.
    pub echo: bool,
    /// The prompt is all that is wanted: `max_tokens: 0`.
    pub only_echo: bool,
    /// A last chunk with the token counts.
    pub include_usage: bool,
}

impl CompletionRequest {
    /// What the engine calls otherwise.
    pub const NAMES: [(&str, &str); 2] = [("messages", "prompt"), ("top_logprobs", "logprobs")];

    /// Reads a request body.
    ///
    /// # Errors
    /// 400, naming the first field that is wrong or unknown.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let stream = fields.take("stream")?.unwrap_or(false);
        let include_usage = stream_options(&mut fields, stream)?;
        let prompts = prompts(&mut fields)?;
        let echo = fields.take("echo")?.unwrap_or(false);
        let logprobs: Option<usize> = fields.take("logprobs")?;
        let mut sampling = sampling(&mut fields)?;
        let only_echo = echo && sampling.max_tokens == Some(0);
        // Without scores, the engine chooses at least one token; that one is then left out.
        let least = usize::from(only_echo && logprobs.is_none());
        sampling.max_tokens = Some(sampling.max_tokens.unwrap_or(MAX_TOKENS).max(least));
        let ask = Ask {
            model: fields.take("model")?,
            n: answers(&mut fields)?,
            prompts,
            sampling,
            logprobs,
            prompt_logprobs: logprobs.filter(|_| echo),
            stream,
            ..Ask::new(Prompt::Raw(String::new()))
        };
        if fields.take::<usize>("best_of")?.is_some_and(|best_of| best_of != ask.n) {
            return Err(fields.error("best_of", "only the value of n is supported").code("unsupported_value"));
        }
        fields.take::<String>("user")?;
        fields.finish()?;
        Ok(Self { ask, echo, only_echo, include_usage })
    }
}

/// A text, token ids, or several of either.
fn prompts(fields: &mut Fields) -> Result<Vec<Prompt>, ApiError> {
    const WORDS: &str = "a string, an array of strings, an array of token ids or an array of such arrays";
    let prompt: Value = fields.required("prompt")?;
    let items = match &prompt {
        Value::String(text) => return Ok(vec![Prompt::Raw(text.clone())]),
        Value::Array(items) if items.is_empty() => return Err(fields.error("prompt", "empty; at least one is needed")),
        Value::Array(items) => items,
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            return Err(fields.wrong("prompt", WORDS, other));
        }
    };
    if items[0].is_number() {
        return Ok(vec![Prompt::Tokens(token_ids(fields, "prompt", items)?)]);
    }
    let of = |(i, item): (usize, &Value)| {
        let at = format!("prompt[{i}]");
        if items[0].is_string() {
            let text = item.as_str().ok_or_else(|| fields.wrong(&at, "a string", item))?;
            return Ok(Prompt::Raw(text.to_owned()));
        }
        let ids = item.as_array().ok_or_else(|| fields.wrong(&at, "an array of token ids", item))?;
        Ok(Prompt::Tokens(token_ids(fields, &at, ids)?))
    };
    items.iter().enumerate().map(of).collect()
}

/// Ids as numbers.
pub fn token_ids(fields: &Fields, name: &str, items: &[Value]) -> Result<Vec<u32>, ApiError> {
    let of = |(i, item): (usize, &Value)| {
        u32::deserialize(item).map_err(|_| fields.wrong(&format!("{name}[{i}]"), "a token id", item))
    };
    items.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(body: &Value) -> Result<CompletionRequest, ApiError> {
        CompletionRequest::parse(body.to_string().as_bytes())
    }

    #[test]
    fn a_prompt_is_text_or_tokens_or_several() {
        for (prompt, want) in [
            (json!("a"), vec!["a"]),
            (json!(["a", "b"]), vec!["a", "b"]),
            (json!([1, 2]), vec!["[1, 2]"]),
            (json!([[1], [2, 3]]), vec!["[1]", "[2, 3]"]),
        ] {
            let asked = parse(&json!({"prompt": prompt})).unwrap().ask;
            let shown = asked.prompts.iter().map(|prompt| match prompt {
                Prompt::Raw(text) => text.clone(),
                Prompt::Tokens(ids) => format!("{ids:?}"),
                Prompt::Chat(_) => panic!("chat"),
            });
            assert_eq!(shown.collect::<Vec<_>>(), want);
            assert_eq!(asked.sampling.max_tokens, Some(16));
        }
    }

    #[test]
    fn wrong_fields_are_refused_by_name() {
        for (field, value, param) in [
            ("prompt", json!(null), "prompt"),
            ("prompt", json!([]), "prompt"),
            ("prompt", json!({}), "prompt"),
            ("prompt", json!(["a", 1]), "prompt[1]"),
            ("prompt", json!([1, "a"]), "prompt[1]"),
            ("prompt", json!([[1], [-1]]), "prompt[1][0]"),
            ("suffix", json!("b"), "suffix"),
            ("best_of", json!(3), "best_of"),
            ("n", json!(9), "n"),
            ("echo", json!(1), "echo"),
            ("logprobs", json!(true), "logprobs"),
            ("messages", json!([]), "messages"),
        ] {
            let mut body = json!({"prompt": "a"});
            body[field] = value;
            let error = parse(&body).expect_err(param);
            assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
        }
    }

    #[test]
    fn no_tokens_are_wanted_only_of_an_echo() {
        let echo = parse(&json!({"prompt": "a", "max_tokens": 0, "echo": true, "logprobs": 1})).unwrap();
        assert!(echo.only_echo && echo.ask.prompt_logprobs == Some(1) && echo.ask.sampling.max_tokens == Some(0));
        let unscored = parse(&json!({"prompt": "a", "max_tokens": 0, "echo": true})).unwrap();
        assert!(unscored.only_echo && unscored.ask.sampling.max_tokens == Some(1));
        let plain = parse(&json!({"prompt": "a", "max_tokens": 0})).unwrap();
        assert!(!plain.only_echo && plain.ask.sampling.max_tokens == Some(0), "the engine refuses it");
    }
}
