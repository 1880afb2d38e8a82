//! Every case of the ops that have Metal kernels, through the Metal host, against the reference. Without a Mac: on the
//! device in software, which runs the kernels' own text and looks at every access, in several orders of threads.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code")]
#![cfg(any(target_vendor = "apple", feature = "software-metal"))]

use std::collections::BTreeMap;
use std::sync::Arc;

use lily_kernels::backend::{Backend, DeviceError};
use lily_kernels::check::{Case, cases, check_case};
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

/// One test, because how kernels are run is set for the whole process.
#[test]
fn the_metal_device_agrees_with_the_reference_on_every_case_and_needs_every_barrier() {
    check_all(1);
    check_variants(1, 9);
    #[cfg(not(target_vendor = "apple"))]
    leave_out_each_barrier();
}

/// Ops with several legal grids, and how many.
const WITH_VARIANTS: [(OpKind, usize); 4] =
    [(OpKind::Linear, 4), (OpKind::ExpertLinear, 3), (OpKind::ExpertGateUp, 3), (OpKind::Attention, 2)];

/// The one legal grid of `linear` that rounds both sides to bf16.
const ROUNDING: (OpKind, usize) = (OpKind::Linear, 3);

/// A case on another of its op's legal grids than the policy's. A device that cannot run it says nothing.
fn check_variant(kind: OpKind, mut case: Case, variant: usize) -> Result<(), String> {
    if (kind, variant) == ROUNDING {
        case.tolerance = 3e-2;
    }
    let mut device = MetalBackend::new().unwrap();
    device.run_variant(variant);
    match check_case(&case, &mut device) {
        Err(e) if !e.contains("cannot run this model") => Err(e),
        _ => Ok(()),
    }
}

/// Every legal grid of one case in `of`, also where the policy would never choose it.
fn check_variants(seed: u32, of: usize) {
    prepare(seed);
    let (mut checked, mut failures) = (0, Vec::new());
    for (kind, variants) in WITH_VARIANTS {
        for variant in 1..variants {
            for case in cases(kind).into_iter().skip(variant).step_by(of) {
                checked += 1;
                failures.extend(check_variant(kind, case, variant).err());
            }
        }
    }
    println!("{checked} cases of other variants");
    assert!(checked > 20 && failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

/// Kernel files with barriers, and the ops that run them.
#[cfg(not(target_vendor = "apple"))]
const WITH_BARRIERS: [(&str, &[OpKind], usize); 13] = [
    (include_str!("../src/ops/linear/tile.metal"), &[OpKind::Linear], 0),
    (include_str!("../src/ops/linear/linear_tensor.metal"), &[ROUNDING.0], ROUNDING.1),
    (include_str!("../src/ops/linear_add/linear_add.metal"), &[OpKind::LinearAdd], 0),
    (include_str!("../src/ops/expert_gate_up/expert_gate_up_tile.metal"), &[OpKind::ExpertGateUp], 0),
    (include_str!("../src/ops/rms_norm/rms_norm.metal"), &[OpKind::RmsNorm], 0),
    (include_str!("../src/ops/group_rows/group_rows.metal"), &[OpKind::GroupRows], 0),
    (include_str!("../src/ops/attention/attention.metal"), &[OpKind::Attention], 0),
    (include_str!("../src/ops/attention/attention_tile.metal"), &[OpKind::Attention], 0),
    (include_str!("../src/ops/attention_parts/attention_parts.metal"), &[OpKind::AttentionParts], 0),
    (include_str!("../src/ops/attention_parts/attention_blocks.metal"), &[OpKind::AttentionParts], 0),
    (include_str!("../src/ops/attention_merge/attention_merge.metal"), &[OpKind::AttentionMerge], 0),
    (include_str!("../src/ops/gated_delta/gated_delta.metal"), &[OpKind::GatedDelta, OpKind::GatedDeltaNorm], 0),
    (include_str!("../src/ops/gated_delta_step/gated_delta_step.metal"), &[OpKind::GatedDeltaStep], 0),
];

/// Without any one of its barriers, a kernel fails a case.
#[cfg(not(target_vendor = "apple"))]
fn leave_out_each_barrier() {
    let (mut barriers, mut missed) = (0, Vec::new());
    for (text, kinds, variant) in WITH_BARRIERS {
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| text.contains("barrier(")) {
            barriers += 1;
            software_metal::leave_out_barriers(Some(line));
            let all = kinds.iter().flat_map(|kind| cases(*kind).into_iter().map(|case| (*kind, case)));
            let caught = all.into_iter().find_map(|(kind, case)| check_variant(kind, case, variant).err());
            software_metal::leave_out_barriers(None);
            match caught {
                Some(message) => println!("{kinds:?}, line {line}: {message}"),
                None => missed.push(format!("{kinds:?}, line {line}: {text}")),
            }
        }
    }
    println!("{barriers} barriers left out, {} missed", missed.len());
    assert!(barriers >= 10 && missed.is_empty(), "{missed:#?}");
}

/// Types and address spaces of every library, as far as clang knows Metal's.
#[test]
#[cfg(not(target_vendor = "apple"))]
fn every_library_passes_the_strict_front_end() {
    if !software_metal::strict::is_possible() {
        println!("SKIP Metal's address spaces: there is no clang");
        return;
    }
    let mut names = Vec::new();
    let mut refused = Vec::new();
    for (name, text) in lily_kernels::metal::libraries() {
        if let Err(e) = software_metal::strict::check(name, &text) {
            refused.push(format!("{name}: {e}"));
        }
        names.push(name);
    }
    assert!(names.len() >= OpKind::ALL.len() - 3, "all but int8, sampling, and one that shares its kernel: {names:?}");
}

/// A kernel with a barrier is in the table above.
#[test]
fn every_kernel_with_a_barrier_is_known() {
    let ops = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ops");
    let files = std::fs::read_dir(ops).unwrap().filter_map(|op| std::fs::read_dir(op.unwrap().path()).ok()).flatten();
    let metal = files.map(|file| file.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "metal"));
    let with: Vec<_> = metal.filter(|path| std::fs::read_to_string(path).unwrap().contains("barrier(")).collect();
    #[cfg(not(target_vendor = "apple"))]
    assert_eq!(with.len(), WITH_BARRIERS.len(), "{with:?}");
    assert!(!with.is_empty());
}

#[test]
#[ignore = "by hand: more orders of threads, a minute each"]
fn the_metal_device_agrees_with_the_reference_in_other_orders_of_threads() {
    for seed in [0, 2, 3, 4] {
        check_all(seed);
        check_variants(seed, 1);
    }
}
