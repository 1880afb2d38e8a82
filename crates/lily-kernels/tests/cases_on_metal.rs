//! Every case of the ops that have Metal kernels, through the Metal host, against the reference. Without a Mac: on the
//! device in software, which runs the kernels' own text and looks at every access, in several orders of threads.
#![cfg(any(target_vendor = "apple", feature = "software-metal"))]

use lily_kernels::backend::{Backend, DeviceError};
use lily_kernels::check::{cases, check_case};
use lily_kernels::metal::MetalBackend;
use lily_kernels::op::OpKind;
use std::sync::Arc;

/// Orders of the threads; 0 is their own.
const SEEDS: [u32; 2] = [0, 1];

fn prepare(seed: u32) {
    #[cfg(not(target_vendor = "apple"))]
    software_metal::set_mode(software_metal::Mode::Checked { seed });
    #[cfg(target_vendor = "apple")]
    let _ = seed;
}

#[test]
fn the_metal_device_agrees_with_the_reference_on_every_case() {
    let mut failures = Vec::new();
    let (mut checked, mut skipped) = (0, 0);
    for seed in SEEDS {
        prepare(seed);
        for &kind in OpKind::ALL {
            for case in cases(kind) {
                let mut device = MetalBackend::new().unwrap();
                match device.compile(Arc::new(case.plan.clone())) {
                    Ok(plan) => device.discard(plan),
                    Err(DeviceError::Unsupported { reason, .. }) => {
                        skipped += 1;
                        println!("SKIP {} {} on metal: {reason}", kind.name(), case.name);
                        continue;
                    }
                    Err(e) => panic!("{e}"),
                }
                checked += 1;
                if let Err(message) = check_case(&case, &mut device) {
                    failures.push(format!("seed {seed}: {message}"));
                }
            }
        }
    }
    println!("{checked} runs of cases, {skipped} skipped");
    assert!(checked > 200 && failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}
