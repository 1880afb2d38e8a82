//! Every case of every op on the CPU device against the reference: each instruction set, one thread and several.

use std::collections::BTreeMap;
use std::sync::Arc;

use lily_kernels::backend::{Backend, DeviceError};
use lily_kernels::check::{cases, check_case};
use lily_kernels::cpu::CpuBackend;
use lily_kernels::cpu::isa::Isa;
use lily_kernels::op::OpKind;

#[test]
fn the_cpu_device_agrees_with_the_reference_on_every_case() {
    for name in Isa::missing() {
        println!("SKIP cases on {name}: not on this CPU");
    }
    let mut failures = Vec::new();
    let mut checked = 0;
    let mut skipped = BTreeMap::new();
    for isa in Isa::available() {
        for threads in [1, 3] {
            for &kind in OpKind::ALL {
                for case in cases(kind) {
                    let mut device = CpuBackend::with_isa(Some(threads), isa).unwrap();
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
                        failures.push(format!("{} × {threads}: {message}", isa.name()));
                    }
                }
            }
        }
    }
    for ((kind, reason), count) in &skipped {
        println!("SKIP {count} runs of cases of {kind} on the CPU: {reason}");
    }
    println!("{checked} runs of cases");
    assert!(checked > 500 && failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}
