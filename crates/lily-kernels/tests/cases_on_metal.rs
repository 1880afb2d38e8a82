//! Every case of the ops that have Metal kernels, through the Metal host, against the reference. Without a Mac: on the
//! device in software, which runs the kernels' own text and looks at every access, in several orders of threads.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code")]
#![cfg(any(target_vendor = "apple", feature = "software-metal"))]

use std::collections::BTreeMap;
use std::sync::Arc;

use lily_kernels::backend::{Backend, DeviceError};
use lily_kernels::check::{cases, check_case};
use lily_kernels::metal::MetalBackend;
use lily_kernels::op::OpKind;

fn prepare(seed: u32) {
    #[cfg(not(target_vendor = "apple"))]
    software_metal::set_mode(software_metal::Mode::Checked { seed });
    #[cfg(target_vendor = "apple")]
    let _ = seed;
}

/// Runs every case with the threads in an order of this seed.
fn check_all(seed: u32) {
    prepare(seed);
    let mut failures = Vec::new();
    let mut checked = 0;
    let mut skipped = BTreeMap::new();
    for &kind in OpKind::ALL {
        for case in cases(kind) {
            let mut device = MetalBackend::new().unwrap();
            match device.compile(Arc::new(case.plan.clone())) {
                Ok(plan) => device.discard(plan),
                Err(DeviceError::Unsupported { reason, .. }) => {
                    *skipped.entry((kind.name(), reason)).or_insert(0) += 1;
                    continue;
                }
                Err(e) => panic!("{e}"),
            }
            checked += 1;
            if let Err(message) = check_case(&case, &mut device) {
                failures.push(message);
            }
        }
    }
    for ((kind, reason), count) in &skipped {
        println!("SKIP {count} cases of {kind} on metal: {reason}");
    }
    println!("{checked} cases");
    assert!(checked > 800 && failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn the_metal_device_agrees_with_the_reference_on_every_case() {
    check_all(1);
}

#[test]
#[ignore = "by hand: more orders of threads, a minute each"]
fn the_metal_device_agrees_with_the_reference_in_other_orders_of_threads() {
    for seed in [0, 2, 3, 4] {
        check_all(seed);
    }
}
