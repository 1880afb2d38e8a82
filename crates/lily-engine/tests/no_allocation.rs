//! After warm-up a step allocates nothing: decode, sample and prefill, on every thread of the process. One test, so
//! that nothing else allocates meanwhile.
#![allow(clippy::unwrap_used, reason = "all of this is test code")]

mod support;

use std::alloc::System;

use lily_engine::checkpoint::Checkpoint;
use lily_engine::engine::{ModelSource, Precision, Switches};
use lily_engine::runtime::Runtime;
use lily_engine::session::Session;
use lily_kernels::cpu::CpuBackend;
use lily_kernels::inputs::{LogitEdit, SamplingInputs};
use lily_kernels::plan::Logits;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn sampling(position: usize) -> SamplingInputs {
    SamplingInputs {
        temperature: 0.8,
        top_k: 0,
        top_p: 0.9,
        min_p: 0.01,
        seed: 1,
        counter: position as u64,
        vocab_limit: 4096,
        mask: None,
    }
}

fn decode(runtime: &mut Runtime, session: &mut Session, steps: usize) {
    for _ in 0..steps {
        let mut next = [0];
        let edits: [LogitEdit; 300] = std::array::from_fn(|i| {
            let id = (session.len() + i) as u32;
            LogitEdit { row: 0, id, bias: 0.5, repetition: 1.1, penalty: 0.1 }
        });
        // Sometimes with, sometimes without.
        let edits = if session.len().is_multiple_of(3) { &[] } else { &edits[..] };
        let mask = session.len().is_multiple_of(2).then(|| runtime.stepper.push_mask(&[0x5555_5555; 128]));
        let sampling = SamplingInputs { mask, ..sampling(session.len()) };
        runtime.stepper.sample(&[sampling], edits, &mut next).unwrap();
        runtime.reserve(session, 1).unwrap();
        runtime.stepper.decode(&mut [session], &next, true).unwrap();
    }
}

fn prefill(runtime: &mut Runtime, session: &mut Session, chunks: usize) {
    let tokens: [u32; 64] = std::array::from_fn(|i| 300 + i as u32);
    for _ in 0..chunks {
        runtime.reserve(session, tokens.len()).unwrap();
        runtime.stepper.prefill(session, &tokens, Logits::Last).unwrap();
    }
}

#[test]
fn a_step_allocates_nothing_after_warm_up() {
    for precision in [Precision::Exact, Precision::Fast] {
        let mut checkpoint = Checkpoint::open(&ModelSource::Embedded(support::DEMO)).unwrap();
        let device = Box::new(CpuBackend::new(Some(3)).unwrap());
        let mut runtime = Runtime::load(&mut checkpoint, device, 4096, precision, Switches::default()).unwrap();
        let mut session = runtime.take_session(&[]).unwrap();
        session.reserve_tokens(4096);
        prefill(&mut runtime, &mut session, 2);
        decode(&mut runtime, &mut session, 2);

        // Across the ends of several KV blocks.
        let region = Region::new(GLOBAL);
        decode(&mut runtime, &mut session, 600);
        prefill(&mut runtime, &mut session, 12);
        let change = region.change();
        assert_eq!((change.allocations, change.reallocations), (0, 0), "{precision:?}: {change:?}");
        assert!(session.len() > 1400);
    }
}
