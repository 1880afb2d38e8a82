//! Flow 10: how likely a chosen token was, and which were the likeliest. Of the model's own distribution: the log-softmax
//! of its logits over the tokens that exist, before bias, penalties, temperature and filters.

use lily_kernels::cpu::normalizer::log_sum_exp;

use crate::request::{Logprob, TokenLogprobs};
use crate::text::Tokenizer;

/// Stands for all that is less likely, as in OpenAI's API; JSON has no −∞.
const UNLIKELY: f32 = -9999.0;

/// Logits that are compared together.
const RUN: usize = 16;

/// Works out the log-probabilities of one request's tokens.
#[derive(Debug)]
pub struct Scorer {
    /// The likeliest ids, likeliest first.
    top: Vec<u32>,
    count: usize,
}

impl Scorer {
    /// With the `count` likeliest tokens.
    pub fn new(count: usize) -> Self {
        Self { top: Vec::with_capacity(count + 1), count }
    }

    /// About a token that was chosen from these logits.
    pub fn score(&mut self, logits: &[f32], tokenizer: &Tokenizer, id: u32) -> TokenLogprobs {
        let logits = &logits[..tokenizer.vocab_size().min(logits.len())];
        let normalizer = log_sum_exp(logits);
        self.top.clear();
        likeliest(logits, self.count, &mut self.top);
        let logprob = |id: u32| {
            let logprob = logits.get(id as usize).map_or(f32::NEG_INFINITY, |l| (f64::from(*l) - normalizer) as f32);
            // False for NaN too.
            let logprob = if logprob > UNLIKELY { logprob } else { UNLIKELY };
            Logprob { id, bytes: tokenizer.token_bytes(id).to_vec(), logprob }
        };
        TokenLogprobs { token: logprob(id), top: self.top.iter().map(|id| logprob(*id)).collect(), in_content: false }
    }
}

/// The ids of the `count` largest logits, largest first, equal ones by id; of those that may be chosen at all.
fn likeliest(logits: &[f32], count: usize, ids: &mut Vec<u32>) {
    if count == 0 {
        return;
    }
    // What a logit must exceed to be among them. Nearly all runs have none that does, and the compiler compares a run as
    // a whole.
    let mut floor = f32::NEG_INFINITY;
    for (i, run) in logits.chunks(RUN).enumerate() {
        if !run.iter().fold(false, |any, logit| any | (*logit > floor)) {
            continue;
        }
        for (j, &logit) in run.iter().enumerate() {
            if logit > floor {
                ids.truncate(count - 1);
                let at = ids.partition_point(|other| logits[*other as usize] >= logit);
                ids.insert(at, (i * RUN + j) as u32);
                if let Some(last) = ids.get(count - 1) {
                    floor = logits[*last as usize];
                }
            }
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
    fn selection_is_a_stable_sort() {
        let logits: Vec<f32> = (0..1000u32).map(|id| (id.wrapping_mul(2_654_435_761) >> 26) as f32).collect();
        let mut sorted: Vec<u32> = (0..1000).collect();
        sorted.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        for count in [1, 2, 16, 20, 999, 1000, 1001] {
            let mut ids = Vec::new();
            likeliest(&logits, count, &mut ids);
            assert_eq!(ids, sorted[..count.min(1000)]);
        }
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
