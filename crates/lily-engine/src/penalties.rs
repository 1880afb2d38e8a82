//! Flow 10: what a request does to logits before a token is chosen: bias, and penalties for what was said already. Keeps
//! the edits of one request up to date, one entry for each token concerned; the device applies them.

use std::collections::HashMap;

use lily_kernels::inputs::LogitEdit;

use crate::request::Request;

/// The edits of one request, on output row 0.
#[derive(Debug)]
pub struct Edits {
    list: Vec<LogitEdit>,
    /// How often each entry's token was generated.
    counts: Vec<u32>,
    /// Entry of a token.
    places: HashMap<u32, usize>,
    presence: f32,
    frequency: f32,
    repetition: f32,
}

impl Edits {
    /// Bias, and the repetition penalty for the prompt's tokens. With room for all that `budget` generated tokens add,
    /// of a vocabulary of `vocab` tokens.
    pub fn new(request: &Request, prompt: &[u32], budget: usize, vocab: usize) -> Self {
        let s = &request.sampling;
        let mut this = Self {
            list: Vec::new(),
            counts: Vec::new(),
            places: HashMap::new(),
            presence: s.presence_penalty,
            frequency: s.frequency_penalty,
            repetition: s.repetition_penalty,
        };
        let prompt = if s.repetition_penalty == 1.0 { &[] } else { prompt };
        let generated = if this.penalizes() { budget } else { 0 };
        let room = (request.logit_bias.len() + prompt.len() + generated).min(vocab);
        this.list.reserve(room);
        this.counts.reserve(room);
        this.places.reserve(room);
        for (id, bias) in &request.logit_bias {
            this.entry(*id).bias = *bias;
        }
        for id in prompt {
            this.entry(*id).repetition = s.repetition_penalty;
        }
        this
    }

    fn penalizes(&self) -> bool {
        (self.presence, self.frequency, self.repetition) != (0.0, 0.0, 1.0)
    }

    fn place(&mut self, id: u32) -> usize {
        *self.places.entry(id).or_insert_with(|| {
            self.list.push(LogitEdit { row: 0, id, bias: 0.0, repetition: 1.0, penalty: 0.0 });
            self.counts.push(0);
            self.list.len() - 1
        })
    }

    fn entry(&mut self, id: u32) -> &mut LogitEdit {
        let place = self.place(id);
        &mut self.list[place]
    }

    /// A token was generated.
    pub fn generated(&mut self, id: u32) {
        if self.penalizes() {
            let place = self.place(id);
            self.counts[place] += 1;
            self.list[place].repetition = self.repetition;
            self.list[place].penalty = self.presence + self.frequency * self.counts[place] as f32;
        }
    }

    /// What the next token's logits are edited by.
    pub fn list(&self) -> &[LogitEdit] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Prompt, SamplingParams};

    fn request(presence: f32, frequency: f32, repetition: f32, logit_bias: &[(u32, f32)]) -> Request {
        let sampling = SamplingParams {
            presence_penalty: presence,
            frequency_penalty: frequency,
            repetition_penalty: repetition,
            ..SamplingParams::GREEDY
        };
        Request { logit_bias: logit_bias.to_vec(), ..Request::new(Prompt::Tokens(vec![]), sampling) }
    }

    fn edit(id: u32, bias: f32, repetition: f32, penalty: f32) -> LogitEdit {
        LogitEdit { row: 0, id, bias, repetition, penalty }
    }

    #[test]
    fn presence_and_frequency_count_what_was_generated_repetition_the_prompt_too() {
        let mut edits = Edits::new(&request(0.5, 0.25, 1.5, &[(7, -3.0)]), &[4, 9, 4], 10, 100);
        assert_eq!(edits.list(), [edit(7, -3.0, 1.0, 0.0), edit(4, 0.0, 1.5, 0.0), edit(9, 0.0, 1.5, 0.0)]);
        for id in [7, 4, 4, 11] {
            edits.generated(id);
        }
        assert_eq!(
            edits.list(),
            [edit(7, -3.0, 1.5, 0.75), edit(4, 0.0, 1.5, 1.0), edit(9, 0.0, 1.5, 0.0), edit(11, 0.0, 1.5, 0.75)]
        );
    }

    #[test]
    fn what_penalizes_nothing_edits_nothing() {
        let mut edits = Edits::new(&request(0.0, 0.0, 1.0, &[]), &[4, 9], 10, 100);
        edits.generated(4);
        assert!(edits.list().is_empty() && edits.list.capacity() == 0);
        let mut edits = Edits::new(&request(0.0, 0.0, 1.0, &[(1, 2.0)]), &[4, 9], 10, 100);
        edits.generated(1);
        assert_eq!(edits.list(), [edit(1, 2.0, 1.0, 0.0)]);
    }

    #[test]
    fn generating_allocates_nothing() {
        let mut edits = Edits::new(&request(0.5, 0.0, 1.1, &[(1, 2.0)]), &[4, 9], 100, 1000);
        let room = (edits.list.capacity(), edits.counts.capacity(), edits.places.capacity());
        (100..200).for_each(|id| edits.generated(id));
        assert_eq!(edits.list().len(), 103);
        assert_eq!((edits.list.capacity(), edits.counts.capacity(), edits.places.capacity()), room);
    }
}
