//! Flow 6: what a model will take of the machine's memory, before it takes any: weights, cache, states, snapshots,
//! scratch. Chooses the context where the caller did not, and refuses in numbers.

use std::fmt;

use lily_kernels::devices::DeviceKind;
use lily_kernels::inputs::KV_BLOCK;
use lily_kernels::plan::{Logits, Phase, PlanKey, Precision, Program};
use lily_kernels::switches::Switches;

use crate::error::EngineError;
use crate::model::qwen3_5::Qwen3_5;

/// Most bytes that sessions take if nobody says how much: of all snapshots, and of the cache beyond one context.
const MAX_SESSION_BYTES: u64 = 4 << 30;
/// and which part of the memory.
const SESSION_SHARE: u64 = 8;
/// Snapshots that there is always room for: a turn's beginning and its end.
const MIN_SNAPSHOTS: u64 = 2;
/// Most contexts of cache beyond the one, for requests that run at the same time and for earlier turns.
const MAX_SHARED_CONTEXTS: u64 = 7;
/// A context below this is no help to anyone who did not ask for it.
const MIN_CONTEXT: usize = 4096;
/// The tokenizer's tables take about this many times its file.
const TOKENIZER_FACTOR: u64 = 10;

/// Bytes, part by part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// The text model's tensors. Mapped: the system can drop and read them again, but then every token waits for the disk.
    pub weights: u64,
    /// Keys and values of the whole context.
    pub kv_cache: u64,
    /// Both halves of the recurrent state of each request that may run at the same time, and the least snapshots.
    pub states: u64,
    /// Most that earlier turns and requests side by side take beyond that: snapshots, keys and values.
    pub sessions: u64,
    /// Temporaries of the largest step, logits, small tensors.
    pub scratch: u64,
    /// Tables of the tokenizer.
    pub tokenizer: u64,
}

impl MemoryEstimate {
    /// All parts but the sessions, by name.
    pub const fn parts(&self) -> [(&'static str, u64); 5] {
        [
            ("weights", self.weights),
            ("KV cache", self.kv_cache),
            ("state", self.states),
            ("scratch", self.scratch),
            ("tokenizer", self.tokenizer),
        ]
    }

    /// What cannot give way: without the sessions, which save time only.
    pub const fn needed(&self) -> u64 {
        self.weights + self.kv_cache + self.states + self.scratch + self.tokenizer
    }

    /// What the process takes at worst.
    pub const fn at_most(&self) -> u64 {
        self.needed() + self.sessions
    }
}

impl fmt::Display for MemoryEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", Bytes(self.needed()))?;
        for (i, (name, bytes)) in self.parts().into_iter().filter(|(_, bytes)| *bytes > 0).enumerate() {
            write!(f, "{}{} {name}", if i > 0 { " + " } else { "" }, Bytes(bytes))?;
        }
        f.write_str(")")?;
        if self.sessions > 0 {
            write!(f, " and at most {} with sessions", Bytes(self.at_most()))?;
        }
        Ok(())
    }
}

/// A number of bytes for people, in powers of ten.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(f64, &str); 3] = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
        let bytes = self.0 as f64;
        match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
            Some((unit, name)) => write!(f, "{:.1} {name}", bytes / unit),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// What a model needs at any context, and what there is.
#[derive(Debug, Clone)]
pub struct Budget {
    /// All parts but cache and sessions.
    fixed: MemoryEstimate,
    /// Bytes of 256 positions.
    block_bytes: u64,
    /// Bytes of one snapshot.
    state_bytes: u64,
    /// Bytes that may be used; `None` if nobody knows.
    available: Option<u64>,
    /// The model's own limit.
    max_context: usize,
}

/// What a model will run with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowance {
    /// Positions of the cache.
    pub context_length: usize,
    /// Blocks of the cache: the context, and more where there is room.
    pub blocks: u32,
    /// Bytes of snapshots.
    pub snapshot_bytes: usize,
    /// All of it.
    pub estimate: MemoryEstimate,
    /// One sentence, if the context is less than the model's though nobody asked for that.
    pub note: Option<String>,
}

impl Budget {
    /// Adds up what a model needs. `weights` and `tokenizer` are bytes of files, `chunk` the most tokens of a step,
    /// `parallel` the most requests at the same time.
    pub fn of(
        model: &Qwen3_5,
        (weights, tokenizer): (u64, u64),
        (chunk, parallel): (usize, usize),
        (device, precision, switches): (DeviceKind, Precision, Switches),
        available: Option<u64>,
    ) -> Self {
        let max_context = model.config.max_position_embeddings;
        let token_bucket = chunk.min(max_context).next_power_of_two();
        let (program, phase, logits) = (Program::Forward, Phase::Prefill, Logits::Last);
        let key = PlanKey { program, phase, token_bucket, sequence_bucket: 1, logits, precision, device, switches };
        let plan = model.record(key);
        // One row of logits is the plan's own.
        let rows = (parallel.next_power_of_two() - 1) * model.config.vocab_size * size_of::<f32>();
        let scratch = plan.arena_bytes + plan.logits_bytes + rows + size_of_val(model.weights.constants.as_slice());
        let (state_bytes, block_bytes) = (model.memory.state_bytes as u64, model.memory.block_bytes as u64);
        let fixed = MemoryEstimate {
            weights,
            kv_cache: 0,
            states: (2 * parallel as u64 + MIN_SNAPSHOTS) * state_bytes,
            sessions: 0,
            scratch: scratch as u64,
            tokenizer: TOKENIZER_FACTOR * tokenizer,
        };
        Self { fixed, block_bytes, state_bytes, available, max_context }
    }

    fn cache(&self, context: usize) -> u64 {
        context.div_ceil(KV_BLOCK) as u64 * self.block_bytes
    }

    /// Positions that fit in so many bytes, up to the model's limit.
    fn positions(&self, bytes: u64) -> usize {
        let blocks = bytes.checked_div(self.block_bytes).unwrap_or(u64::MAX);
        let positions = usize::try_from(blocks.saturating_mul(KV_BLOCK as u64));
        positions.map_or(self.max_context, |positions| positions.min(self.max_context))
    }

    /// Whole snapshots that may take so many bytes, beyond the least.
    fn snapshots(&self, bytes: u64) -> u64 {
        // There are fewer moments to come back to than tokens.
        let all = self.state_bytes.saturating_mul(self.max_context as u64);
        let most = bytes.min(all);
        most - most.checked_rem(self.state_bytes).unwrap_or(most)
    }

    /// Cache beyond one context, in whole blocks, if it may take so many bytes.
    fn shared(&self, bytes: u64, context: usize) -> u64 {
        let all = self.cache(context).saturating_mul(MAX_SHARED_CONTEXTS);
        let most = bytes.min(all);
        most - most.checked_rem(self.block_bytes).unwrap_or(most)
    }

    /// The context to run with (the one asked for, or the largest that fits) and what remains for sessions: at most
    /// `session_bytes`, or a share of the memory.
    ///
    /// # Errors
    /// The context is out of the model's range, or there is too little memory for it: the numbers, and what to change.
    pub fn settle(&self, asked: Option<usize>, session_bytes: Option<u64>) -> Result<Allowance, EngineError> {
        let most = self.max_context;
        if let Some(context) = asked.filter(|context| !(2..=most).contains(context)) {
            let message = format!("--context {context}: this model takes 2 to {most} positions");
            return Err(EngineError::Options(message));
        }
        let available = self.available.unwrap_or(u64::MAX);
        let session_bytes = session_bytes.unwrap_or(MAX_SESSION_BYTES.min(available / SESSION_SHARE));
        let least = asked.unwrap_or(MIN_CONTEXT.min(most));
        let need = MemoryEstimate { kv_cache: self.cache(least), ..self.fixed };
        let Some(free) = available.checked_sub(need.needed()) else {
            return Err(EngineError::Memory(self.refusal(least, need, available)));
        };
        let snapshots = self.snapshots(session_bytes.min(free) / 2);
        let context_length = asked.unwrap_or_else(|| self.positions(free - snapshots + need.kv_cache));
        let need = MemoryEstimate { kv_cache: self.cache(context_length), sessions: snapshots, ..self.fixed };
        let left = available.saturating_sub(need.at_most()) / 2;
        let shared = self.shared(left.min(session_bytes - snapshots), context_length);
        let estimate = MemoryEstimate { sessions: snapshots + shared, ..need };
        let blocks = context_length.div_ceil(KV_BLOCK) as u64 + shared.checked_div(self.block_bytes).unwrap_or(0);
        let blocks = u32::try_from(blocks)
            .map_err(|_| EngineError::Options(format!("--context {context_length} is too large")))?;
        let snapshot_bytes = (snapshots + MIN_SNAPSHOTS * self.state_bytes) as usize;
        let note = (asked.is_none() && context_length < most).then(|| {
            format!(
                "the context is {context_length} positions, not the model's {most}, to stay within {} of memory: \
                 {estimate}; see --context and --memory",
                Bytes(available)
            )
        });
        Ok(Allowance { context_length, blocks, snapshot_bytes, estimate, note })
    }

    fn refusal(&self, context: usize, need: MemoryEstimate, available: u64) -> String {
        let fitting = self.positions(available.saturating_sub(self.fixed.needed()));
        let smaller = if fitting < 2 { String::new() } else { format!("lower --context to {fitting}, or ") };
        let slow = if self.fixed.weights > available { ", and expect to wait for the disk" } else { "" };
        let available = Bytes(available);
        format!(
            "a context of {context} positions needs {need}, but {available} may be used: {smaller}raise --memory{slow}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    /// About the 35B model: 19.5 GB of weights, 5.2 MB for 256 positions, 64 MB of state.
    fn budget(available: Option<u64>) -> Budget {
        let fixed = MemoryEstimate { weights: 19_500_000_000, states: 512_000_000, ..MemoryEstimate::default() };
        Budget { fixed, block_bytes: 5_242_880, state_bytes: 64_000_000, available, max_context: 262_144 }
    }

    #[test]
    fn what_nobody_limits_is_the_models_own() {
        let allowance = budget(None).settle(None, None).unwrap();
        assert_eq!((allowance.context_length, allowance.note), (262_144, None));
        assert_eq!(allowance.snapshot_bytes, 35 * 64_000_000, "whole ones");
        assert_eq!(allowance.estimate.kv_cache, 1024 * 5_242_880);
        assert_eq!(allowance.blocks, 1440, "and as much for others");
    }

    #[test]
    fn a_context_that_nobody_asked_for_is_as_large_as_fits() {
        for available in [21 * GB, 22 * GB, 24 * GB, 27 * GB, 40 * GB] {
            let allowance = budget(Some(available)).settle(None, None).unwrap();
            assert!(allowance.estimate.at_most() <= available);
            assert_eq!(allowance.note.is_some(), allowance.context_length < 262_144);
            assert!(allowance.context_length >= MIN_CONTEXT);
            // One block more would be too much.
            let spare = available - allowance.estimate.at_most();
            assert!(spare < 5_242_880 || allowance.context_length == 262_144);
        }
    }

    #[test]
    fn snapshots_give_way_before_anything_is_refused() {
        let budget = budget(Some(20_100_000_000));
        let allowance = budget.settle(Some(4096), None).unwrap();
        assert_eq!((allowance.context_length, allowance.snapshot_bytes, allowance.blocks), (4096, 128_000_000, 16));
    }

    #[test]
    fn c10_sessions_take_a_share_of_the_memory_or_what_is_said() {
        let sessions =
            |available, asked| budget(Some(available)).settle(Some(32_768), asked).unwrap().estimate.sessions;
        for gigabytes in [30, 32] {
            let share = gigabytes * GB / SESSION_SHARE;
            assert!((share - 70_000_000..=share).contains(&sessions(gigabytes * GB, None)), "{gigabytes}");
        }
        assert!(sessions(128 * GB, None) <= MAX_SESSION_BYTES);
        assert_eq!(sessions(48 * GB, Some(0)), 0);
        assert!((990_000_000..=GB).contains(&sessions(48 * GB, Some(GB))));
    }

    #[test]
    fn refusals_name_the_numbers_and_the_knobs() {
        let sentence = |available, asked| budget(Some(available)).settle(asked, None).unwrap_err().to_string();
        assert_eq!(
            sentence(22 * GB, Some(262_144)),
            "a context of 262144 positions needs 25.4 GB (19.5 GB weights + 5.4 GB KV cache + 512.0 MB state), \
             but 22.0 GB may be used: lower --context to 97024, or raise --memory"
        );
        assert_eq!(
            sentence(10 * GB, None),
            "a context of 4096 positions needs 20.1 GB (19.5 GB weights + 83.9 MB KV cache + 512.0 MB state), \
             but 10.0 GB may be used: raise --memory, and expect to wait for the disk"
        );
        assert_eq!(sentence(30 * GB, Some(1)), "--context 1: this model takes 2 to 262144 positions");
        assert_eq!(sentence(30 * GB, Some(262_145)), "--context 262145: this model takes 2 to 262144 positions");
    }
}
