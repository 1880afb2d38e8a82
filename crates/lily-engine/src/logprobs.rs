//! Flow 10: how likely a chosen token was, and which were the likeliest. Of the model's own distribution: the log-softmax
//! of its logits over the tokens that exist, before bias, penalties, temperature and filters.

use crate::request::{Logprob, TokenLogprobs};
use crate::step::Stepper;
use crate::text::Tokenizer;

/// Stands for all that is less likely, as in OpenAI's API; JSON has no −∞.
const UNLIKELY: f32 = -9999.0;

/// Works out the log-probabilities of one request's tokens.
#[derive(Debug)]
pub struct Scorer {
    /// The last step's logits.
    logits: Vec<f32>,
    /// The likeliest ids, likeliest first.
    top: Vec<u32>,
    count: usize,
}

impl Scorer {
    /// With the `count` likeliest tokens, of `rows` logits.
    pub fn new(count: usize, rows: usize) -> Self {
        Self { logits: vec![0.0; rows], top: Vec::with_capacity(count + 1), count }
    }

    /// About a token that was chosen from the last step's logits.
    pub fn score(&mut self, stepper: &mut Stepper, tokenizer: &Tokenizer, id: u32) -> TokenLogprobs {
        stepper.read_logits(&mut self.logits);
        let logits = &self.logits[..tokenizer.vocab_size().min(self.logits.len())];
        let normalizer = log_sum_exp(logits);
        self.top.clear();
        likeliest(logits, self.count, &mut self.top);
        let logprob = |id: u32| {
            let logprob = (f64::from(logits[id as usize]) - normalizer) as f32;
            // False for NaN too.
            let logprob = if logprob > UNLIKELY { logprob } else { UNLIKELY };
            Logprob { id, bytes: tokenizer.token_bytes(id).to_vec(), logprob }
        };
        TokenLogprobs { token: logprob(id), top: self.top.iter().map(|id| logprob(*id)).collect(), in_content: false }
    }
}

/// ln Σ eˣ over what is a number.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, x| if *x > max { *x } else { max });
    let weight = |x: &f32| if *x > f32::NEG_INFINITY { f64::from((x - max).exp()) } else { 0.0 };
    f64::from(max) + logits.iter().map(weight).sum::<f64>().ln()
}

/// The ids of the `count` largest logits, largest first, equal ones by id; of those that may be chosen at all.
fn likeliest(logits: &[f32], count: usize, ids: &mut Vec<u32>) {
    for (id, &logit) in logits.iter().enumerate() {
        let last = if ids.len() < count {
            f32::NEG_INFINITY
        } else {
            ids.last().map_or(f32::INFINITY, |last| logits[*last as usize])
        };
        if logit > last {
            let at = ids.partition_point(|other| logits[*other as usize] >= logit);
            ids.insert(at, id as u32);
            ids.truncate(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_come_first_and_equal_ones_by_id() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let logits = [1.0, 5.0, nan, 5.0, -inf, 2.0, 7.0, 1.0];
        let top = |count| {
            let mut ids = Vec::new();
            likeliest(&logits, count, &mut ids);
            ids
        };
        assert_eq!(top(0), [0; 0]);
        assert_eq!(top(1), [6]);
        assert_eq!(top(4), [6, 1, 3, 5]);
        assert_eq!(top(20), [6, 1, 3, 5, 0, 7]);
    }

    #[test]
    fn probabilities_add_up_to_one() {
        let logits = [1.0f32, -2.0, 0.5, f32::NEG_INFINITY, f32::NAN, 30.0, 29.0];
        let normalizer = log_sum_exp(&logits);
        let sum: f64 = logits.iter().filter(|x| !x.is_nan()).map(|x| (f64::from(*x) - normalizer).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    }

    /// Seconds that this thread has run: other work on the machine does not count.
    #[cfg(target_os = "linux")]
    fn thread_seconds() -> f64 {
        let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
        let nanoseconds: f64 = statistics.split(' ').next().expect("three numbers").parse().expect("a number");
        nanoseconds / 1e9
    }

    #[test]
    #[cfg(target_os = "linux")]
    #[ignore = "a measurement"]
    fn score_rates() {
        const ROUNDS: u32 = 300;
        // The vocabulary of the 35B model; a row like a model's: few that stand out.
        let device: Vec<f32> = (0..248_320u32)
            .map(|id| {
                let noise = (id.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32;
                if id % 2477 == 5 { 12.0 + 8.0 * noise } else { 4.0 * noise - 2.0 }
            })
            .collect();
        let mut logits = vec![0.0; device.len()];
        for count in [0, 5, 20] {
            let mut ids = Vec::with_capacity(count + 1);
            let start = thread_seconds();
            for _ in 0..ROUNDS {
                logits.copy_from_slice(&device);
                ids.clear();
                likeliest(&logits, count, &mut ids);
                std::hint::black_box((log_sum_exp(&logits), &ids));
            }
            let us = (thread_seconds() - start) / f64::from(ROUNDS) * 1e6;
            println!("log-probabilities of {} logits, top {count}: {us:.0} µs a token", logits.len());
        }
    }
}
