//! Messages → prompt text through the checkpoint's own Jinja template, byte for byte as Hugging Face renders it.
//! Knows no tokens beyond the spellings that the template's callers must not forge.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use minijinja::{Environment, Value as JinjaValue};
use serde_json::Value;

use super::guard::{Guard, Guarding, Guards};
use super::{THINK_START, TextError, jinja};
use crate::request::ChatPrompt;

/// Work that a template may do, in minijinja's fuel: about one per instruction and per 64 bytes handled. Qwen3.6's
/// template renders 100,000 messages, or 60 MB of text, with it; a loop without end uses it up in a second or so.
const FUEL: u64 = 10_000_000;

/// Variables that callers may set whether or not this version of the template reads them.
const FAMILY_VARIABLES: [&str; 2] = ["enable_thinking", "preserve_thinking"];

const CHAT: &str = "chat template";
const TOOL_USE: &str = "tool-use chat template";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    /// What the source reads and does not set itself.
    variables: HashSet<String>,
    /// First characters of the spellings to guard.
    control_starts: Vec<char>,
    /// `bos_token` and the like.
    special_tokens: Vec<(String, String)>,
}

/// A rendered prompt that knows which of its control tokens the template wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    guarded: String,
    /// `None` if nothing needed guarding.
    guards: Option<Guards>,
}

impl ChatTemplate {
    /// Compiles a template's source.
    ///
    /// # Errors
    /// The source is not valid Jinja.
    pub fn new(source: &str) -> Result<Self, TextError> {
        Self::with_tool_use(source, None)
    }

    /// The template of a checkpoint: `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`, which
    /// is a string or a list of named ones (`default`, `tool_use`). `None` if there is none.
    ///
    /// # Errors
    /// The source is not valid Jinja.
    pub fn from_files(chat_template_jinja: Option<&str>, tokenizer_config: &Value) -> Result<Option<Self>, TextError> {
        if let Some(source) = chat_template_jinja {
            return Self::new(source).map(Some);
        }
        let configured = tokenizer_config.get("chat_template");
        if let Some(source) = configured.and_then(Value::as_str) {
            return Self::new(source).map(Some);
        }
        let named = |name: &str| {
            let entries = configured?.as_array()?;
            let entry = entries.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some(name))?;
            entry.get("template")?.as_str()
        };
        named("default").map(|source| Self::with_tool_use(source, named("tool_use"))).transpose()
    }

    fn with_tool_use(source: &str, tool_use: Option<&str>) -> Result<Self, TextError> {
        let mut env = jinja::environment();
        env.set_fuel(Some(FUEL));
        let sources = [(CHAT, Some(source)), (TOOL_USE, tool_use)];
        for (name, source) in sources.into_iter().filter_map(|(name, source)| Some((name, source?))) {
            env.add_template_owned(name, source.to_owned()).map_err(|e| TextError::Template(jinja::sentence(&e)))?;
        }
        let variables = env.templates().flat_map(|(_, template)| template.undeclared_variables(false)).collect();
        Ok(Self { env, variables, control_starts: vec!['<'], special_tokens: Vec::new() })
    }

    /// Sets the control tokens that callers must not forge. Without it: whatever starts with `<`. Added tokens
    /// that start like a word or a space carry no control and are left alone.
    #[must_use]
    pub fn guarding<'a>(mut self, control_tokens: impl Iterator<Item = &'a str>) -> Self {
        self.control_starts = control_tokens
            .filter_map(|token| token.chars().next())
            .filter(|c| !c.is_alphanumeric() && !c.is_whitespace())
            .collect();
        self.control_starts.sort_unstable();
        self.control_starts.dedup();
        self
    }

    /// Sets a variable such as `bos_token`.
    #[must_use]
    pub fn with_special_token(mut self, name: &str, spelling: &str) -> Self {
        self.special_tokens.push((name.to_owned(), spelling.to_owned()));
        self
    }

    /// Whether the template reads a variable of the caller's: one that it names, or one that this family's templates
    /// read in some versions, so that clients send it to all.
    pub(super) fn reads(&self, variable: &str) -> bool {
        self.variables.contains(variable) || FAMILY_VARIABLES.contains(&variable)
    }

    /// Renders a conversation. `add_generation_prompt` opens the assistant's turn.
    ///
    /// The text is what Hugging Face renders, except where a template inspects a control token that the caller
    /// spelled in a message (other than the think block of an assistant's message and the tool-response frame of
    /// a user's message): such a spelling is text for the template too.
    ///
    /// # Errors
    /// The template refused the messages, failed, or did not come to an end.
    pub fn render(&self, chat: &ChatPrompt, add_generation_prompt: bool) -> Result<Rendered, TextError> {
        if chat.messages.is_empty() {
            return Err(TextError::Render(
                "Cannot apply chat template to an empty conversation. Provide at least one message.".into(),
            ));
        }
        let callers = chat.messages.iter().chain(&chat.tools).chain(chat.template_kwargs.values());
        let guards = Guards::for_values(callers, &self.control_starts)?;
        let render = |guards| {
            let guard = Guard { guards, starts: &self.control_starts };
            self.render_with(chat, add_generation_prompt, &guard)
        };
        let plain = render(None)?;
        let Some(guards) = guards else {
            return Ok(Rendered { guarded: plain, guards: None });
        };
        let guarded = match render(Some((guards, Guarding::All))) {
            Ok(guarded) if guards.remove(&guarded) == plain => guarded,
            // The template looked at a spelling. Again, with those visible that templates do look at.
            _ => render(Some((guards, Guarding::AllButDelimiters)))?,
        };
        Ok(Rendered { guarded, guards: Some(guards) })
    }

    fn render_with(&self, chat: &ChatPrompt, add_generation_prompt: bool, guard: &Guard) -> Result<String, TextError> {
        let mut variables: Vec<(&str, JinjaValue)> = Vec::new();
        variables.extend(self.special_tokens.iter().map(|(name, token)| (name.as_str(), token.as_str().into())));
        variables.extend(chat.template_kwargs.iter().map(|(name, value)| (name.as_str(), guard.value(value))));
        variables.push(("messages", chat.messages.iter().map(|m| guard.message(m)).collect::<Vec<_>>().into()));
        let tools: Vec<_> = chat.tools.iter().map(|tool| guard.value(tool)).collect();
        variables.push(("tools", if tools.is_empty() { JinjaValue::from(()) } else { tools.into() }));
        variables.push(("add_generation_prompt", add_generation_prompt.into()));
        variables.extend(chat.enable_thinking.map(|thinking| ("enable_thinking", thinking.into())));

        let with_tools = self.env.get_template(TOOL_USE).ok().filter(|_| !chat.tools.is_empty());
        let template = with_tools.map_or_else(|| self.env.get_template(CHAT), Ok);
        template
            .and_then(|template| template.render(JinjaValue::from_pairs(variables)))
            .map_err(|e| TextError::Render(jinja::sentence(&e)))
    }
}

impl Rendered {
    /// The prompt as text.
    pub fn text(&self) -> Cow<'_, str> {
        self.unguard(&self.guarded)
    }

    /// Whether the prompt ends inside a think block that the template opened: the model's first words are reasoning.
    pub fn open_think(&self) -> bool {
        self.guarded.trim_end().ends_with(THINK_START)
    }

    pub(super) fn guarded(&self) -> &str {
        &self.guarded
    }

    /// Whether the whole spelling at `range` of `guarded` is the caller's text.
    pub(super) fn is_callers(&self, range: Range<usize>) -> bool {
        self.guards.is_some_and(|guards| guards.beside(&self.guarded, range))
    }

    /// A stretch of `guarded` without guards.
    pub(super) fn unguard<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.guards.map_or(Cow::Borrowed(text), |guards| guards.remove(text))
    }
}
