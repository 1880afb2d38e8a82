//! Flow 2: text ↔ tokens. Messages → prompt text (`messages`, `template`, `guard`) → ids (`tokenizer`), and
//! ids → text (`detokenizer`) → reasoning, content, calls (`parser`), up to a stop string (`stop`, `answer`).
//! Knows no model and no wire format.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::request::{CancelToken, ChatPrompt, Prompt, Request, RequestError};

mod answer;
mod arguments;
mod detokenizer;
mod encode_cache;
mod grammar;
mod guard;
mod jinja;
mod messages;
mod parser;
mod parts;
mod pyjson;
mod spoken;
mod stop;
mod template;
mod tokenizer;
mod tool_call;
mod tool_results;

pub use answer::AnswerStream;
pub use detokenizer::Detokenizer;
pub use grammar::{Grammar, GrammarError, Grammars};
pub use parser::OutputParser;
pub use stop::StopStrings;
pub use template::{ChatTemplate, Rendered};
pub use tokenizer::{TagIds, Tokenizer};

const THINK_START: &str = "<think>";
const THINK_END: &str = "</think>";
const TOOL_CALL_START: &str = "<tool_call>";
const TOOL_CALL_END: &str = "</tool_call>";
const FUNCTION_START: &str = "<function=";

/// As the family's templates write it.
const CLOSE_THINK: &str = "\n</think>\n\n";

/// Tokens below which going on is not faster than beginning.
const MIN_RESUME: usize = 8;

/// Why text could not be made into tokens.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TextError {
    /// A file of the checkpoint is missing or not what it should be.
    #[error("{file}: {reason}")]
    File {
        /// File name.
        file: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The chat template does not compile.
    #[error("the chat template does not compile: {0}")]
    Template(String),
    /// The chat template refused the messages, in its own words, or failed.
    #[error("{0}")]
    Render(String),
    /// A message has no form that a template could render.
    #[error("messages[{index}]: {reason}")]
    Message {
        /// Which message, from 0.
        index: usize,
        /// What is wrong.
        reason: String,
    },
    /// The checkpoint cannot take conversations.
    #[error("this checkpoint has no chat template; send a raw prompt")]
    NoTemplate,
    /// The tokenizer refused a text.
    #[error("tokenizer: {0}")]
    Encode(String),
    /// A variable that the chat template does not read.
    #[error("the chat template has no variable {0:?}")]
    Variable(String),
    /// Nobody wants the tokens any more.
    #[error("cancelled")]
    Cancelled,
}

impl From<TextError> for RequestError {
    fn from(error: TextError) -> Self {
        match error {
            TextError::Cancelled => Self::Cancelled,
            TextError::Variable(_) => Self::Field { field: "chat_template_kwargs", reason: error.to_string() },
            TextError::File { .. }
            | TextError::Template(_)
            | TextError::Render(_)
            | TextError::Message { .. }
            | TextError::NoTemplate
            | TextError::Encode(_) => Self::Template(error.to_string()),
        }
    }
}

/// A prompt as the model reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptTokens {
    /// Token ids.
    pub ids: Vec<u32>,
    /// The prompt ends inside a think block: the answer begins as reasoning.
    pub open_think: bool,
}

/// A checkpoint's tokenizer and chat template: everything between text and token ids.
#[derive(Debug)]
pub struct Codec {
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
}

impl Codec {
    /// Reads `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` through `file`, which returns
    /// `None` for files that are not there. Only the first is needed.
    ///
    /// # Errors
    /// A file is missing or not what it should be.
    pub fn open<'a>(file: &dyn Fn(&str) -> Option<Cow<'a, [u8]>>) -> Result<Self, TextError> {
        let tokenizer_json = file("tokenizer.json")
            .ok_or_else(|| TextError::File { file: "tokenizer.json", reason: "not found".into() })?;
        let config_json = file("tokenizer_config.json");
        let tokenizer = Tokenizer::from_json(&tokenizer_json, config_json.as_deref())?;
        let config: Value = config_json.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();

        let jinja = file("chat_template.jinja");
        let jinja = jinja.as_deref().map(std::str::from_utf8).transpose();
        let jinja = jinja.map_err(|e| TextError::File { file: "chat_template.jinja", reason: e.to_string() })?;
        let template = ChatTemplate::from_files(jinja, &config)?.map(|template| {
            let names = ["bos_token", "eos_token", "pad_token", "unk_token"];
            let special = |name| Some((name, config.get(name).and_then(tokenizer::token_spelling)?));
            names
                .into_iter()
                .filter_map(special)
                .fold(template.guarding(tokenizer.control_tokens()), |template, (name, spelling)| {
                    template.with_special_token(name, spelling)
                })
        });
        Ok(Self { tokenizer: Arc::new(tokenizer), template })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Token ids of a prompt. Of a conversation's control tokens, all come from the template.
    ///
    /// # Errors
    /// The messages are not in a form that the template takes.
    pub fn prompt_tokens(&self, prompt: &Prompt) -> Result<PromptTokens, TextError> {
        self.prompt_tokens_unless(prompt, &CancelToken::default())
    }

    /// As `prompt_tokens`, but ends early when cancelled.
    ///
    /// # Errors
    /// As `prompt_tokens`, and [`TextError::Cancelled`].
    pub fn prompt_tokens_unless(&self, prompt: &Prompt, cancel: &CancelToken) -> Result<PromptTokens, TextError> {
        match prompt {
            Prompt::Chat(chat) => {
                let rendered = self.render(chat)?;
                let ids = self.tokenizer.encode_rendered_unless(&rendered, cancel)?;
                Ok(PromptTokens { ids, open_think: rendered.open_think() })
            }
            Prompt::Raw(text) => {
                let open_think = text.trim_end().ends_with(THINK_START);
                Ok(PromptTokens { ids: self.tokenizer.encode_unless(text, cancel)?, open_think })
            }
            Prompt::Tokens(ids) => {
                let tail = self.tokenizer.decode(&ids[ids.len().saturating_sub(8)..], false);
                Ok(PromptTokens { ids: ids.clone(), open_think: tail.trim_end().ends_with(THINK_START) })
            }
        }
    }

    /// A conversation as the template writes it, with the assistant's turn opened.
    ///
    /// # Errors
    /// As `prompt_tokens`.
    pub fn render(&self, chat: &ChatPrompt) -> Result<Rendered, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        if let Some(name) = chat.template_kwargs.keys().find(|name| !template.reads(name)) {
            return Err(TextError::Variable(name.clone()));
        }
        template.render(&messages::normalize(chat)?, true)
    }

    /// Where in `prompt` (the ids of `chat`) a state is worth keeping, ascending: behind the system message and the
    /// tools, with which other conversations begin, and behind all that stays the same when this one goes on.
    pub fn resume_points(&self, chat: &ChatPrompt, prompt: &[u32]) -> Vec<usize> {
        // At least one token is always computed.
        let most = prompt.len().saturating_sub(1);
        let mut points = vec![self.shared_prefix_len(chat, prompt), self.stable_prefix_len(chat, prompt).min(most)];
        points.retain(|len| (MIN_RESUME..=most).contains(len));
        points.sort_unstable();
        points.dedup();
        points
    }

    /// How many leading tokens of `prompt` another conversation has in common that begins with the same system message
    /// and tools. 0 if there are none, or that cannot be rendered.
    fn shared_prefix_len(&self, chat: &ChatPrompt, prompt: &[u32]) -> usize {
        let Ok(normal) = messages::normalize(chat) else { return 0 };
        let is_system = |message: &&Value| message.get("role").and_then(Value::as_str) == Some("system");
        let mut messages: Vec<Value> = normal.messages.iter().take_while(is_system).cloned().collect();
        if messages.is_empty() && chat.tools.is_empty() {
            return 0;
        }
        // Two that differ from each other, so that one differs from the prompt where its user speaks.
        let other = |text: &str, messages: &mut Vec<Value>| {
            messages.push(json!({"role": "user", "content": text}));
            let other = ChatPrompt { messages: messages.clone(), ..chat.clone() };
            messages.pop();
            self.common_prefix_len(&other, prompt)
        };
        other("x", &mut messages).min(other("7", &mut messages))
    }

    /// How many leading tokens of `prompt` stay the same when the conversation goes on with an answer and another user
    /// turn. 0 if that cannot be rendered.
    pub fn stable_prefix_len(&self, chat: &ChatPrompt, prompt: &[u32]) -> usize {
        let with = |reasoning: &str| {
            let mut next = chat.clone();
            next.messages.push(json!({"role": "assistant", "content": "x", "reasoning_content": reasoning}));
            next.messages.push(json!({"role": "user", "content": "x"}));
            self.common_prefix_len(&next, prompt)
        };
        // Not every caller sends the reasoning back, and without thinking there is none.
        let without = with("");
        if chat.enable_thinking == Some(false) { without } else { without.min(with("x")) }
    }

    fn common_prefix_len(&self, chat: &ChatPrompt, prompt: &[u32]) -> usize {
        let ids = self.render(chat).and_then(|rendered| self.tokenizer.encode_rendered(&rendered));
        ids.map_or(0, |ids| prompt.iter().zip(&ids).take_while(|(a, b)| a == b).count())
    }

    /// Remembers how the model itself wrote the end of a timeline, from its last control token before `generated_from`
    /// on: the next turn, which holds the same text, then has the same ids.
    pub fn remember(&self, ids: &[u32], generated_from: usize) {
        self.tokenizer.remember(ids, generated_from);
    }

    /// Ids that close a think block.
    ///
    /// # Errors
    /// The tokenizer refused them.
    pub fn close_think(&self) -> Result<Vec<u32>, TextError> {
        self.tokenizer.encode(CLOSE_THINK)
    }

    /// What turns the tokens generated for a request into events.
    pub fn answer(&self, request: &Request, open_think: bool) -> AnswerStream {
        let parser = match &request.prompt {
            Prompt::Chat(chat) => OutputParser::new(open_think, &chat.tools),
            Prompt::Raw(_) | Prompt::Tokens(_) => OutputParser::verbatim(),
        };
        AnswerStream::new(Detokenizer::new(Arc::clone(&self.tokenizer), true), parser, &request.stop)
    }
}
