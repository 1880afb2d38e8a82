//! Flow 2, last part: a request → tokens and all else that needs no device. Checks what can be checked, on any thread, so
//! that a long prompt holds up nobody's answer.

use std::sync::{Arc, OnceLock};

use lily_kernels::inputs::mask_words;

use crate::request::{CancelToken, Prompt, Request, RequestError};
use crate::structure::Structure;
use crate::text::{AnswerStream, Codec, GrammarError, Grammars};

/// A request that is ready to run.
#[derive(Debug)]
pub struct Prepared {
    /// What was asked.
    pub request: Request,
    /// Ids of the prompt.
    pub(crate) ids: Vec<u32>,
    /// Lengths of the prompt at which a state is worth keeping, ascending.
    pub(crate) resume_points: Vec<usize>,
    /// Ids that close the think block, if it has a budget.
    pub(crate) close_think: Vec<u32>,
    /// Turns generated tokens into events.
    pub(crate) answer: AnswerStream,
    /// What the answer must be.
    pub(crate) structure: Option<Structure>,
}

impl Prepared {
    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.ids.len()
    }

    /// What was asked, and what makes events of the tokens of its answer: all that a stand-in for the engine needs.
    pub fn into_answer(self) -> (Request, AnswerStream) {
        (self.request, self.answer)
    }

    /// Ids of the prompt.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }
}

/// Prepares requests for one engine.
#[derive(Debug)]
pub struct Preparer {
    codec: Arc<Codec>,
    context_length: usize,
    /// Ids from here on are padding of the vocabulary.
    vocab_limit: u32,
    /// Rows of the table of embeddings.
    rows: usize,
    /// Ids that end an answer.
    stop_ids: Vec<u32>,
    /// Made for the first request that needs them.
    grammars: OnceLock<Result<Grammars, GrammarError>>,
}

impl Preparer {
    /// For an engine with this context, whose model has embeddings for `rows` tokens, of which `vocab_limit` exist.
    pub fn new(codec: Arc<Codec>, context_length: usize, vocab_limit: u32, rows: usize) -> Self {
        let stop_ids = codec.tokenizer().stop_ids().to_vec();
        Self { codec, context_length, vocab_limit, rows, stop_ids, grammars: OnceLock::new() }
    }

    /// For an engine that ends answers at these ids, not only at the tokenizer's own.
    #[must_use]
    pub fn ending_at(mut self, stop_ids: &[u32]) -> Self {
        self.stop_ids = stop_ids.to_vec();
        self
    }

    /// Tokenizer and template.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// Checks and tokenizes.
    ///
    /// # Errors
    /// A field is out of its range, a schema cannot be enforced, the template refused the messages, or the prompt is too
    /// long.
    pub fn prepare(&self, request: Request) -> Result<Prepared, RequestError> {
        self.prepare_unless(request, &CancelToken::default())
    }

    /// As `prepare`, but ends early when cancelled.
    ///
    /// # Errors
    /// As `prepare`, and [`RequestError::Cancelled`].
    pub fn prepare_unless(&self, request: Request, cancel: &CancelToken) -> Result<Prepared, RequestError> {
        request.validate()?;
        let prompt = self.codec.prompt_tokens_unless(&request.prompt, cancel)?;
        self.check_prompt(&prompt.ids)?;
        self.check_bias(&request.logit_bias)?;
        let resume_points = match &request.prompt {
            Prompt::Chat(chat) => self.codec.resume_points(chat, &prompt.ids),
            // Asked again, or with another continuation. Whoever sends tokens measures.
            Prompt::Raw(_) => vec![prompt.ids.len() - 1],
            Prompt::Tokens(_) => Vec::new(),
        };
        let close_think = request.thinking_budget.map(|_| self.codec.close_think()).transpose()?.unwrap_or_default();
        let answer = self.codec.answer(&request, prompt.open_think);
        let structure = self.structure(&request, prompt.open_think)?;
        Ok(Prepared { request, ids: prompt.ids, resume_points, close_think, answer, structure })
    }

    /// What the answer must be, and which tokens may be its first.
    fn structure(&self, request: &Request, open_think: bool) -> Result<Option<Structure>, RequestError> {
        if !Grammars::are_needed(request) {
            return Ok(None);
        }
        let failed = |e: &GrammarError| RequestError::Field { field: "response_format", reason: e.to_string() };
        let grammars = self.grammars.get_or_init(|| Grammars::new(Arc::clone(self.codec.tokenizer()), &self.stop_ids));
        let grammar = grammars.as_ref().map_err(failed)?.compile(request, open_think)?;
        grammar.map(|grammar| Structure::new(grammar, mask_words(self.rows)).map_err(|e| failed(&e))).transpose()
    }

    fn check_bias(&self, bias: &[(u32, f32)]) -> Result<(), RequestError> {
        let vocab = self.vocab_limit;
        match bias.iter().find(|(id, _)| *id >= vocab) {
            Some((id, _)) => Err(RequestError::Field {
                field: "logit_bias",
                reason: format!("token id {id} is outside the vocabulary of {vocab}"),
            }),
            None => Ok(()),
        }
    }

    fn check_prompt(&self, ids: &[u32]) -> Result<(), RequestError> {
        let (prompt_tokens, context_length) = (ids.len(), self.context_length);
        if ids.is_empty() {
            return Err(RequestError::Field { field: "prompt", reason: "it has no tokens".into() });
        }
        if prompt_tokens >= context_length {
            return Err(RequestError::TooLong { prompt_tokens, context_length });
        }
        match ids.iter().find(|&&id| id as usize >= self.rows) {
            Some(id) => Err(RequestError::Field {
                field: "prompt",
                reason: format!("token id {id} is outside the vocabulary of {}", self.rows),
            }),
            None => Ok(()),
        }
    }
}
