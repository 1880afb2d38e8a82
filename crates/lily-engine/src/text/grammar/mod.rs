//! What an answer may be, token by token: the text of a JSON value, or tool calls in the form that `tool_call.rs` reads.
//! Compiled by `llguidance` before a request runs; then asked for the ids that may come next. Knows no device.

use std::sync::Arc;

use super::Tokenizer;
use crate::request::{Request, RequestError};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

mod parameter;
mod scan;
mod source;
#[cfg(test)]
mod tests;

use scan::Scan;
use source::{Free, Source};

/// Why a grammar cannot go on; no text of a caller or a model should make one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the grammar of the answer failed: {0}")]
pub struct GrammarError(String);

/// Compiles grammars over one vocabulary.
pub struct Grammars {
    factory: ParserFactory,
    tokenizer: Arc<Tokenizer>,
    /// Ids that end an answer.
    stop_ids: Vec<u32>,
}

/// What the rest of one request's answer may be. `accept` each token, and ask for the `mask` of the next.
#[derive(Clone)]
pub struct Grammar {
    tokenizer: Arc<Tokenizer>,
    stop_ids: Arc<[u32]>,
    /// As it was compiled, for each time that a call begins.
    fresh: Matcher,
    state: State,
    /// Without a call, the answer is free text.
    free: Option<Free>,
}

#[derive(Clone)]
enum State {
    /// Inside the think block, until it is closed.
    Thinking(Scan),
    /// Free text, until a call begins.
    Free(Scan),
    /// The grammar says what may come.
    Bound(Box<Matcher>),
    /// Nothing but the end.
    Done,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("stop_ids", &self.stop_ids).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match self.state {
            State::Thinking(_) => "thinking",
            State::Free(_) => "free",
            State::Bound(_) => "bound",
            State::Done => "done",
        };
        f.debug_struct("Grammar").field("state", &state).finish_non_exhaustive()
    }
}

impl Grammars {
    /// Sorts a vocabulary; a quarter of a million tokens take a second and 85 MiB. `stop_ids` end an answer.
    ///
    /// # Errors
    /// The vocabulary is not one that `llguidance` takes.
    pub fn new(tokenizer: Arc<Tokenizer>, stop_ids: &[u32]) -> Result<Self, GrammarError> {
        let vocab = tokenizer.vocab_size() as u32;
        let mut words: Vec<Vec<u8>> = (0..vocab).map(|id| tokenizer.token_bytes(id).to_vec()).collect();
        // No text is ever spelled with them.
        for id in tokenizer.control_tokens().filter_map(|token| tokenizer.token_to_id(token)) {
            words[id as usize].insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
        }
        let eos = stop_ids.iter().copied().find(|id| *id < vocab).unwrap_or(INVALID_TOKEN);
        let trie = TokTrie::from(&TokRxInfo::new(vocab, eos), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|e| failed(&e))?;
        factory.quiet();
        Ok(Self { factory, tokenizer, stop_ids: stop_ids.to_vec() })
    }

    /// Its vocabulary.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Whether a request says anything of what its answer must be.
    pub fn are_needed(request: &Request) -> bool {
        Source::is_needed(request)
    }

    /// The grammar of a request's answer; `None` if it may be anything. `open_think` says that the prompt ends inside a
    /// think block.
    ///
    /// # Errors
    /// A schema has a keyword that cannot be enforced, or a tool choice cannot be met.
    pub fn compile(&self, request: &Request, open_think: bool) -> Result<Option<Grammar>, RequestError> {
        let Some(source) = Source::of(request, open_think, self.tokenizer.tag_ids())? else { return Ok(None) };
        let grammar = TopLevelGrammar::from_grammar(GrammarWithLexer::from_lark(source.lark.clone()));
        let fresh = Matcher::new(self.factory.create_parser(grammar));
        if let Some(error) = fresh.get_error() {
            let reason = source::sentence(&error, &source.lark);
            return Err(RequestError::Field { field: source.field, reason });
        }
        let state = match (open_think, &source.free) {
            (true, _) => State::Thinking(Scan::default()),
            (false, Some(_)) => State::Free(Scan::default()),
            (false, None) => State::Bound(Box::new(fresh.clone())),
        };
        let (tokenizer, stop_ids) = (Arc::clone(&self.tokenizer), self.stop_ids.as_slice().into());
        Ok(Some(Grammar { tokenizer, stop_ids, fresh, state, free: source.free }))
    }
}

impl Grammar {
    /// Whether something is out of the question for the next token.
    pub fn is_bound(&self) -> bool {
        match self.state {
            State::Thinking(_) => self.free.is_none(),
            State::Free(_) => false,
            State::Bound(_) | State::Done => true,
        }
    }

    /// Whether nothing but the end can follow.
    pub fn must_end(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Whether the answer may end here.
    ///
    /// # Errors
    /// The grammar failed.
    pub fn may_end(&mut self) -> Result<bool, GrammarError> {
        match &mut self.state {
            State::Thinking(_) => Ok(self.free.is_some()),
            State::Free(_) | State::Done => Ok(true),
            State::Bound(matcher) => matcher.is_accepting().map_err(|e| failed(&e)),
        }
    }

    /// Writes which ids may come next: bit `id % 32` of word `id / 32`. Bits beyond the vocabulary mean nothing.
    ///
    /// # Errors
    /// The grammar failed, or has no way on.
    pub fn mask(&mut self, out: &mut [u32]) -> Result<(), GrammarError> {
        match &mut self.state {
            State::Thinking(_) | State::Free(_) => out.fill(u32::MAX),
            State::Done => out.fill(0),
            State::Bound(matcher) => {
                let mask = matcher.compute_mask().map_err(|e| failed(&e))?;
                out.fill(0);
                out.iter_mut().zip(mask.as_slice()).for_each(|(word, bits)| *word = *bits);
            }
        }
        let may_end = self.may_end()?;
        for id in self.stop_ids.iter() {
            let Some(word) = out.get_mut(*id as usize / 32) else { continue };
            let bit = 1 << (id % 32);
            *word = if may_end { *word | bit } else { *word & !bit };
        }
        if out.iter().all(|word| *word == 0) {
            return Err(GrammarError("nothing may come next".into()));
        }
        Ok(())
    }

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// The grammar does not allow it, or failed.
    pub fn accept(&mut self, id: u32) -> Result<(), GrammarError> {
        let is_stop = self.stop_ids.contains(&id);
        let tokenizer = Arc::clone(&self.tokenizer);
        let bytes = tokenizer.token_bytes(id);
        match &mut self.state {
            State::Done => {}
            State::Thinking(scan) => {
                if let Some(rest) = scan.closes_thinking(bytes) {
                    self.begin();
                    self.read_on(&rest)?;
                }
            }
            State::Bound(_) if is_stop => self.state = State::Done,
            State::Bound(matcher) => {
                matcher.consume_token(id).map_err(|e| failed(&e))?;
                self.end_if_complete();
            }
            State::Free(scan) => {
                let tools = self.free.as_ref().map(|free| &free.tools);
                if let Some(opening) = tools.and_then(|tools| scan.opens_call(bytes, tools)) {
                    self.open(id, &opening)?;
                }
            }
        }
        Ok(())
    }

    /// What comes first in the answer.
    fn begin(&mut self) {
        self.state = match self.free {
            Some(_) => State::Free(Scan::default()),
            None => State::Bound(Box::new(self.fresh.clone())),
        };
    }

    /// Text that came in one token with the end of the think block.
    fn read_on(&mut self, text: &[u8]) -> Result<(), GrammarError> {
        if let State::Bound(matcher) = &mut self.state
            && !text.is_empty()
        {
            feed(matcher, text)?;
            self.end_if_complete();
        }
        Ok(())
    }

    /// Binds the rest of a call that free text has opened. What cannot become a call is text.
    fn open(&mut self, id: u32, opening: &[u8]) -> Result<(), GrammarError> {
        let mut matcher = self.fresh.clone();
        let is_tag = self.tokenizer.tag_ids().tool_call_start == Some(id);
        let is_call = if is_tag {
            matcher.try_consume_tokens(&[id]).map_err(|e| failed(&e))? == 1
        } else {
            feed(&mut matcher, opening)?
        };
        if is_call {
            self.state = State::Bound(Box::new(matcher));
            self.end_if_complete();
        }
        Ok(())
    }

    fn end_if_complete(&mut self) {
        if let State::Bound(matcher) = &self.state
            && matcher.is_stopped()
            && matcher.stop_reason().is_ok()
        {
            let goes_on = self.free.as_ref().is_some_and(|free| free.parallel);
            self.state = if goes_on { State::Free(Scan::default()) } else { State::Done };
        }
    }
}

/// Reads text that came otherwise than the grammar would have it cut into tokens; `false` if it allows no such text.
fn feed(matcher: &mut Matcher, text: &[u8]) -> Result<bool, GrammarError> {
    let env = matcher.tok_env().map_err(|e| failed(&e))?;
    let ids = env.tok_trie().greedy_tokenize(text);
    let read = matcher.try_consume_tokens(&ids).map_err(|e| failed(&e))?;
    Ok(read == ids.len())
}

fn failed(error: &dyn std::fmt::Display) -> GrammarError {
    let error = error.to_string();
    if error.contains("NoExtensionBias") {
        return GrammarError("the schema leaves no way on, such as where a value cannot be spelled".into());
    }
    GrammarError(source::sentence(&error, ""))
}
