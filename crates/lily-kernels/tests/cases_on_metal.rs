//! Every case of the ops that have Metal kernels, through the Metal host, against the reference. Without a Mac: on the
//! device in software, which runs the kernels' own text and looks at every access, in several orders of threads.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code")]
#![cfg(any(target_vendor = "apple", feature = "software-metal"))]

#[cfg(not(target_vendor = "apple"))]
mod counting;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use lily_kernels::check::{Case, cases, check_case, unsupported};
use lily_kernels::metal::MetalBackend;
use lily_kernels::op::OpKind;
use lily_kernels::policy::variants;

fn prepare(seed: u32) {
    #[cfg(not(target_vendor = "apple"))]
    {
        software_metal::set_mode(software_metal::Mode::Checked { seed });
        software_metal::set_machine(software_metal::Machine::with_units());
    }
    #[cfg(target_vendor = "apple")]
    let _ = seed;
}

/// Runs every case with the threads in an order of this seed.
fn check_all(seed: u32) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    prepare(seed);
    let start = std::time::Instant::now();
    let mut failures = Vec::new();
    let mut checked = 0;
    let mut skipped = BTreeMap::new();
    for &kind in OpKind::ALL {
        for case in cases(kind) {
            let mut device = MetalBackend::new().unwrap();
            if let Some(reason) = unsupported(&case, &mut device).unwrap() {
                *skipped.entry((kind.name(), reason)).or_insert(0) += 1;
                continue;
            }
            checked += 1;
            if let Err(message) = check(&case, &mut device) {
                failures.push(message);
            }
        }
    }
    for ((kind, reason), count) in &skipped {
        println!("SKIP {count} cases of {kind} on metal: {reason}");
    }
    let seconds = start.elapsed().as_secs();
    println!("PROOF cases in thread order {seed}: {checked}, {} failed, {seconds} s", failures.len());
    assert!(checked > 800 && failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

/// Ops with several legal grids, and how many. Of the last, which has few cases, all are checked.
const WITH_VARIANTS: [(OpKind, usize); 5] = [
    (OpKind::Linear, 4),
    (OpKind::ExpertLinear, 3),
    (OpKind::ExpertGateUp, 3),
    (OpKind::Attention, 2),
    (OpKind::GatedDelta, 2),
];

/// Kernels that round more than the policy's choice, and how far from the reference they may be; and of outputs of so few
/// numbers that all of them may be sums that cancel.
const ROUNDING: [(&str, f64, f64); 1] = [("linear_tensor", 3e-2, 0.3)];
const FEW: usize = 16;

/// A case on another of its op's legal grids than the policy's. A device that cannot run it says nothing.
fn check_variant(mut case: Case, variant: usize) -> Result<(), String> {
    let mut device = MetalBackend::new().unwrap();
    device.run_variant(variant);
    let (op, counts) = (&case.plan.dispatches[0].op, case.inputs.counts(0));
    let legal = variants(op, &counts, case.plan.key.switches, device.abilities());
    let kernel = legal[variant % legal.len()].kernel;
    let is_few = op.contract().cost(&counts).written < FEW * size_of::<f32>();
    let rounds = ROUNDING.iter().find(|(name, ..)| *name == kernel);
    case.tolerance = rounds.map_or(case.tolerance, |(_, most, of_few)| if is_few { *of_few } else { *most });
    match check(&case, &mut device) {
        Err(e) if !e.contains("cannot run this model") => Err(e),
        _ => Ok(()),
    }
}

/// Every legal grid of one case in `of`, also where the policy would never choose it.
fn check_variants(seed: u32, of: usize) {
    prepare(seed);
    let (mut checked, mut failures) = (0, Vec::new());
    for (kind, legal) in WITH_VARIANTS {
        let of = if kind == OpKind::GatedDelta { 1 } else { of };
        for variant in 1..legal {
            for case in cases(kind).into_iter().skip(variant % of).step_by(of) {
                checked += 1;
                failures.extend(check_variant(case, variant).err());
            }
        }
    }
    println!("{checked} cases of other variants");
    assert!(checked > 20 && failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

/// The values of a case, and the bytes that its kernels touch: those of the contract.
#[cfg(not(target_vendor = "apple"))]
fn check(case: &Case, device: &mut MetalBackend) -> Result<(), String> {
    software_metal::count(true);
    let report = check_case(case, device)?;
    let launches = software_metal::take_counts();
    let counted = counting::distinct_bytes(&launches, &case.plan.dispatches[0].op);
    let (read, written) = counted.map_err(|e| format!("{}: {e}", case.name))?;
    let declared = report.cost;
    if (read, written) == (declared.read, declared.written) || case.plan.dispatches[0].op.kind() == OpKind::Sample {
        return Ok(());
    }
    Err(format!(
        "{}: the contract declares {} bytes read and {} written, the kernels touched {read} and {written}",
        case.name, declared.read, declared.written
    ))
}

#[cfg(target_vendor = "apple")]
fn check(case: &Case, device: &mut MetalBackend) -> Result<(), String> {
    check_case(case, device).map(|_| ())
}

#[test]
fn the_metal_device_agrees_with_the_reference_on_every_case() {
    check_all(1);
    check_variants(1, 9);
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
    let mut kernels = std::collections::BTreeSet::new();
    let mut refused = Vec::new();
    for (name, text) in lily_kernels::metal::libraries() {
        if let Err(e) = software_metal::strict::check(name, &text) {
            refused.push(format!("{name}: {e}"));
        }
        let is_kernel = |line: &&str| line.starts_with("kernel void ") || line.contains("host_name(");
        kernels.extend(text.lines().filter(is_kernel).map(str::to_owned));
        names.push(name);
    }
    assert!(names.len() >= OpKind::ALL.len() - 3, "all but int8, sampling, and one that shares its kernel: {names:?}");
    let passed = names.len() - refused.len();
    println!("PROOF libraries through the strict front end: {passed} of {}, {} kernels", names.len(), kernels.len());
    assert!(names.len() > 20 && refused.is_empty(), "{} refused:\n{}", refused.len(), refused.join("\n"));
}

macro_rules! orders {
    ($($name:ident = $seed:literal)*) => {$(
        #[test]
        #[ignore = "by hand: `cargo xtask metal-proof`"]
        fn $name() {
            check_all($seed);
            check_variants($seed, 3);
        }
    )*};
}

// The device runs one order of threads at a time, so one of these runs at a time too.
orders! {
    order_0 = 0 order_1 = 1 order_2 = 2 order_3 = 3 order_4 = 4 order_5 = 5 order_6 = 6 order_7 = 7 order_8 = 8
}
