//! Whether and how long the model thinks. Clients say it in several ways; what two of them say must agree.

use serde_json::{Map, Value};

use super::fields::Fields;
use crate::serve::error::ApiError;

/// What a word of effort allows: tokens of thinking, `None` for no bound.
const EFFORTS: [(&str, Option<usize>); 5] =
    [("minimal", Some(256)), ("low", Some(1024)), ("medium", Some(4096)), ("high", Some(16384)), ("xhigh", None)];

/// Names of the budget: Qwen's, llama.cpp's and vLLM's.
const BUDGETS: [&str; 3] = ["thinking_budget", "thinking_budget_tokens", "thinking_token_budget"];

/// Variables that the server sets itself.
const SERVERS_OWN: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// What a template calls; a variable of that name would hide it.
const FUNCTIONS: [&str; 10] =
    ["range", "dict", "namespace", "cycler", "joiner", "lipsum", "debug", "raise_exception", "strftime_now", "loop"];

/// How the model thinks.
#[derive(Debug, Default)]
pub struct Thinking {
    /// None leaves it to the template.
    pub enabled: Option<bool>,
    /// Most tokens of it.
    pub budget: Option<usize>,
    /// Further variables of the template.
    pub template_kwargs: Map<String, Value>,
}

/// `chat_template_kwargs`, `enable_thinking`, `reasoning_effort` and the budget.
pub fn thinking(fields: &mut Fields) -> Result<Thinking, ApiError> {
    let (by_template, template_kwargs) = template_kwargs(fields)?;
    let by_field: Option<bool> = fields.take("enable_thinking")?;
    if let (Some(a), Some(b)) = (by_template, by_field)
        && a != b
    {
        return Err(fields.error("enable_thinking", format!("{b}, but chat_template_kwargs says {a}")));
    }
    let mut thinking = Thinking { enabled: by_field.or(by_template), budget: budget(fields)?, template_kwargs };
    if let Some(word) = fields.take::<String>("reasoning_effort")? {
        effort(fields, "reasoning_effort", &word, &mut thinking)?;
    }
    Ok(thinking)
}

/// Adds what a word of effort says; a budget in numbers stays.
pub fn effort(fields: &Fields, name: &str, word: &str, thinking: &mut Thinking) -> Result<(), ApiError> {
    let (enabled, budget) = match EFFORTS.iter().find(|(known, _)| *known == word) {
        Some((_, budget)) => (true, *budget),
        None if word == "none" => (false, None),
        None => {
            let words = EFFORTS.map(|(word, _)| word).join(", ");
            return Err(fields.error(name, format!("{word:?} is not one of none, {words}")));
        }
    };
    if thinking.enabled.is_some_and(|already| already != enabled) {
        return Err(fields.error(name, format!("{word:?}, but enable_thinking is {}", !enabled)));
    }
    thinking.enabled = Some(enabled);
    thinking.budget = thinking.budget.or(budget);
    Ok(())
}

fn budget(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let mut budget: Option<usize> = None;
    for name in BUDGETS {
        if let Some(tokens) = fields.take::<usize>(name)? {
            if let Some(other) = budget.filter(|other| *other != tokens) {
                return Err(fields.error(name, format!("{tokens}, but another name of it says {other}")));
            }
            budget = Some(tokens);
        }
    }
    Ok(budget)
}

/// `enable_thinking` and the other variables.
fn template_kwargs(fields: &mut Fields) -> Result<(Option<bool>, Map<String, Value>), ApiError> {
    let mut kwargs: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    for (names, why) in [(&SERVERS_OWN[..], "set by the server"), (&FUNCTIONS, "a function of the template")] {
        if let Some(name) = names.iter().find(|name| kwargs.contains_key(**name)) {
            return Err(fields.error(&format!("chat_template_kwargs.{name}"), why));
        }
    }
    let own = kwargs.shift_remove_entry("enable_thinking").into_iter().collect::<Map<_, _>>();
    let enabled = Fields::new(own.into(), "chat_template_kwargs")?.take("enable_thinking")?;
    kwargs.retain(|_, value| !value.is_null());
    Ok((enabled, kwargs))
}
