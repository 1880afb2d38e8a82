//! Flow 10: which tokens a request's grammar leaves for its next one. The mask is found while the forward pass runs: on a
//! thread of its own where a device takes this one, and nobody waits whose answer is free.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::schedule::RequestId;
use crate::text::{Grammar, GrammarError};

/// A grammar and the mask of the token that comes next.
#[derive(Debug, Clone)]
pub(crate) struct Structure {
    grammar: Grammar,
    /// Holds if the grammar is bound.
    mask: Vec<u32>,
}

impl Structure {
    /// At the beginning of an answer; `words` of 32 bits are a mask.
    ///
    /// # Errors
    /// The grammar failed.
    pub(crate) fn new(grammar: Grammar, words: usize) -> Result<Self, GrammarError> {
        let mut structure = Self { grammar, mask: vec![0; words] };
        structure.find_mask()?;
        Ok(structure)
    }

    /// Takes the token that was chosen. Until `find_mask`, the mask is that of this token.
    ///
    /// # Errors
    /// The grammar failed.
    pub(crate) fn accept(&mut self, id: u32) -> Result<(), GrammarError> {
        self.grammar.accept(id)
    }

    /// Finds the mask of the next token; most of a grammar's time.
    ///
    /// # Errors
    /// The grammar failed.
    pub(crate) fn find_mask(&mut self) -> Result<(), GrammarError> {
        if self.grammar.is_bound() && !self.grammar.must_end() { self.grammar.mask(&mut self.mask) } else { Ok(()) }
    }

    /// The mask of the next token, if anything is out of the question.
    pub(crate) fn mask(&self) -> Option<&[u32]> {
        self.grammar.is_bound().then_some(&self.mask)
    }

    /// Whether nothing but the end can follow.
    pub(crate) fn must_end(&self) -> bool {
        self.grammar.must_end()
    }
}

/// Whose mask a thread finds.
type Job = (RequestId, Structure);

/// The same, and whether it was found.
type Found = (RequestId, Structure, Result<(), GrammarError>);

/// A thread that finds masks. It sleeps while there are none to find.
#[derive(Debug)]
pub(crate) struct Masks {
    jobs: Option<Sender<Job>>,
    found: Receiver<Found>,
    thread: Option<JoinHandle<()>>,
    pending: usize,
}

impl Masks {
    /// Starts the thread.
    pub(crate) fn new() -> Self {
        let (jobs, taken) = channel::<Job>();
        let (give, found) = channel();
        let work = move || {
            for (id, mut structure) in taken {
                let result = structure.find_mask();
                if give.send((id, structure, result)).is_err() {
                    return;
                }
            }
        };
        Self { jobs: Some(jobs), found, thread: Some(std::thread::spawn(work)), pending: 0 }
    }

    /// Begins to find the mask of a request's next token.
    pub(crate) fn find(&mut self, id: RequestId, structure: Structure) {
        let jobs = self.jobs.as_ref().expect("they are there until the thread ends");
        jobs.send((id, structure)).expect("the thread ends after the last job");
        self.pending += 1;
    }

    /// Waits for one that was begun; `None` if all were given back.
    pub(crate) fn next(&mut self) -> Option<Found> {
        self.pending = self.pending.checked_sub(1)?;
        Some(self.found.recv().expect("each job is answered"))
    }
}

impl Drop for Masks {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
