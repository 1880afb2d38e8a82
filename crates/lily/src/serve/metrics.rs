//! Numbers for Prometheus, at `/metrics`. Names begin with `lily_` and end with their unit.

use lily_engine::request::Completion;
use lily_engine::schedule::Stats;
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram, with_local_recorder};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::routes::Server;

const REQUESTS: &str = "lily_http_requests_total";
const REQUEST_SECONDS: &str = "lily_http_request_duration_seconds";
const FIRST_TOKEN_SECONDS: &str = "lily_time_to_first_token_seconds";
const PREFILL_RATE: &str = "lily_prefill_tokens_per_second";
const DECODE_RATE: &str = "lily_decode_tokens_per_second";

const SECONDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
const RATES: [f64; 13] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4];

/// The numbers of one server.
#[derive(Debug)]
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

/// Gauges and counters of the server and its engine, read when somebody asks.
type Reading = (&'static str, &'static str, fn(&Stats) -> u64);

const COUNTERS: [Reading; 6] = [
    ("lily_prefilled_tokens_total", "Prompt tokens that were computed", |s| s.prefilled_tokens),
    ("lily_cached_tokens_total", "Prompt tokens whose state was taken from earlier turns", |s| s.cached_tokens),
    ("lily_generated_tokens_total", "Tokens that were generated", |s| s.generated_tokens),
    ("lily_decode_steps_total", "Decode steps; generated tokens over them is the mean batch", |s| s.decode_steps),
    ("lily_prefill_chunks_total", "Prefill chunks", |s| s.prefill_chunks),
    ("lily_preemptions_total", "Requests put back because the cache was full", |s| s.preemptions),
];

const GAUGES: [Reading; 8] = [
    ("lily_requests_running", "Requests in prefill or decode", |s| s.running as u64),
    ("lily_snapshots", "States that later requests may resume from", |s| s.snapshots as u64),
    ("lily_snapshot_bytes", "Their bytes", |s| s.snapshot_bytes),
    ("lily_snapshot_budget_bytes", "Most bytes that they may take", |s| s.snapshot_budget_bytes),
    ("lily_kv_blocks_used", "Blocks of 256 positions in use", |s| s.kv_blocks_used as u64),
    ("lily_kv_blocks", "All blocks of 256 positions", |s| s.kv_blocks as u64),
    ("lily_disk_snapshots", "States on the disk", |s| s.disk_snapshots as u64),
    ("lily_disk_bytes", "Their bytes", |s| s.disk_bytes),
];

impl Metrics {
    /// All at zero.
    ///
    /// # Errors
    /// The buckets are no buckets.
    pub fn new() -> Result<Self, BuildError> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?
            .set_buckets_for_metric(Matcher::Suffix("_per_second".into()), &RATES)?
            .build_recorder();
        let handle = recorder.handle();
        with_local_recorder(&recorder, || {
            describe_counter!(REQUESTS, "Requests by route and status; - if the client left before an answer");
            describe_histogram!(REQUEST_SECONDS, "From a request's head to the end of its answer");
            describe_histogram!(FIRST_TOKEN_SECONDS, "From the start of a request in the engine to its first token");
            describe_histogram!(PREFILL_RATE, "Prompt tokens computed in a second, for each answer");
            describe_histogram!(DECODE_RATE, "Tokens generated in a second, for each answer");
            describe_gauge!("lily_queue_depth", "Requests that wait");
            describe_gauge!("lily_ready", "1 while requests are taken");
            COUNTERS.iter().for_each(|(name, says, _)| describe_counter!(*name, *says));
            GAUGES.iter().for_each(|(name, says, _)| describe_gauge!(*name, *says));
        });
        Ok(Self { recorder, handle })
    }

    /// A request has ended.
    pub fn request(&self, route: &str, status: &str, seconds: f64) {
        let (route, status) = (route.to_owned(), status.to_owned());
        with_local_recorder(&self.recorder, || {
            counter!(REQUESTS, "route" => route.clone(), "status" => status).increment(1);
            histogram!(REQUEST_SECONDS, "route" => route).record(seconds);
        });
        // Else what was recorded piles up where nobody asks for the metrics.
        self.handle.run_upkeep();
    }

    /// An answer has ended.
    pub fn completion(&self, completion: &Completion) {
        let Completion { usage, timings, .. } = completion;
        with_local_recorder(&self.recorder, || {
            if timings.first_token_ms > 0.0 {
                histogram!(FIRST_TOKEN_SECONDS).record(timings.first_token_ms / 1e3);
            }
            let computed = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
            if timings.prefill_ms > 0.0 && computed > 0 {
                histogram!(PREFILL_RATE).record(computed as f64 / timings.prefill_ms * 1e3);
            }
            // The first token comes with the prefill.
            if timings.decode_ms > 0.0 && usage.completion_tokens > 1 {
                histogram!(DECODE_RATE).record((usage.completion_tokens - 1) as f64 / timings.decode_ms * 1e3);
            }
        });
    }

    /// Everything, in Prometheus' text format.
    pub fn render(&self, server: &Server) -> String {
        let stats = server.engine.stats();
        with_local_recorder(&self.recorder, || {
            COUNTERS.iter().for_each(|(name, _, read)| counter!(*name).absolute(read(&stats)));
            GAUGES.iter().for_each(|(name, _, read)| gauge!(*name).set(read(&stats) as f64));
            gauge!("lily_queue_depth").set(server.engine.waiting() as f64);
            gauge!("lily_ready").set(f64::from(u8::from(server.is_ready())));
        });
        self.handle.run_upkeep();
        self.handle.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_the_engine_is_told() {
        // All fields by name: a new one does not compile until it is here, and in a table above.
        let stats = Stats {
            running: 1,
            prefilled_tokens: 2,
            cached_tokens: 3,
            generated_tokens: 4,
            decode_steps: 5,
            prefill_chunks: 6,
            preemptions: 7,
            snapshots: 8,
            snapshot_bytes: 9,
            snapshot_budget_bytes: 10,
            kv_blocks_used: 11,
            kv_blocks: 12,
            disk_snapshots: 13,
            disk_bytes: 14,
        };
        let mut told: Vec<u64> = COUNTERS.iter().chain(&GAUGES).map(|(.., read)| read(&stats)).collect();
        told.sort_unstable();
        assert_eq!(told, (1..=14).collect::<Vec<u64>>());
    }
}
