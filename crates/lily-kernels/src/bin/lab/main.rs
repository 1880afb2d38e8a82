//! The kernel lab. `lab check [op] [--device NAME]` runs the cases of one op, or of all, and prints how far the device is
//! from the reference. `lab sweep` does it with several seeds and at the model's shapes too, and prints a line an op.

#![allow(clippy::print_stdout, reason = "a table for people is what it is for")]

mod sweep; // many cases at once

use std::process::ExitCode;

use lily_kernels::backend::Backend;
use lily_kernels::check::{Case, cases, check_case};
use lily_kernels::devices;
use lily_kernels::op::OpKind;
use lily_kernels::reference::ReferenceBackend;

const USAGE: &str = "usage: lab check [op] [--device NAME]
       lab sweep [op] [--device NAME] [--seeds N] [--shapes all|true|ordinary]
devices: reference, cpu; on a Mac: metal; with the feature software-metal elsewhere: software-metal, nvidia";

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

/// Whether every case passed.
fn run(args: &[String]) -> Result<bool, String> {
    let (mut words, mut device, mut seeds, mut shapes) = (Vec::new(), "cpu", 3, "all");
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--device" => device = args.next().ok_or(USAGE)?,
            "--seeds" => seeds = args.next().and_then(|n| n.parse().ok()).ok_or(USAGE)?,
            "--shapes" => shapes = args.next().ok_or(USAGE)?,
            word => words.push(word),
        }
    }
    let kinds = match words[..] {
        [_] => OpKind::ALL.to_vec(),
        [_, name] => {
            let kind = OpKind::ALL.iter().find(|kind| kind.name() == name);
            vec![*kind.ok_or_else(|| format!("no op is called {name}"))?]
        }
        _ => return Err(USAGE.to_owned()),
    };
    let (ordinary, at_true) = match shapes {
        "all" => (true, true),
        "true" => (false, true),
        "ordinary" => (true, false),
        _ => return Err(USAGE.to_owned()),
    };
    match words[0] {
        "check" => check(&kinds, device),
        "sweep" => sweep::run(&sweep::Wanted { kinds, device, seeds, ordinary, at_true }),
        _ => Err(USAGE.to_owned()),
    }
}

/// A device without weights, buffers or plans.
fn open(device: &str) -> Result<Box<dyn Backend>, String> {
    match device {
        "reference" => Ok(Box::new(ReferenceBackend::new())),
        #[cfg(all(feature = "software-metal", not(target_vendor = "apple")))]
        "software-metal" => {
            software_metal::set_mode(software_metal::Mode::Checked { seed: 1 });
            devices::open(device, None).map_err(|e| e.to_string())
        }
        #[cfg(all(feature = "software-metal", not(target_vendor = "apple")))]
        "nvidia" => Ok(Box::new(sweep::metal(device)?)),
        _ => devices::open(device, None).map_err(|e| format!("{e}; {USAGE}")),
    }
}

fn check(kinds: &[OpKind], device: &str) -> Result<bool, String> {
    println!("device: {}", open(device)?.describe());
    println!("{:<20} {:>10} {:>10} {:>10}  case", "op", "elements", "worst", "tolerance");
    let mut failures = Vec::new();
    for &kind in kinds {
        for case in cases(kind) {
            failures.extend(check_one(kind, &case, device)?);
        }
    }
    for failure in &failures {
        println!("FAILED {failure}");
    }
    println!("{} failed", failures.len());
    Ok(failures.is_empty())
}

/// Prints a case's line; what failed, if anything.
fn check_one(kind: OpKind, case: &Case, device: &str) -> Result<Option<String>, String> {
    let result = check_case(case, open(device)?.as_mut());
    let (elements, worst) = match &result {
        Ok(report) => (report.elements.to_string(), format!("{:.1e}", report.worst)),
        Err(_) => ("-".to_owned(), "FAILED".to_owned()),
    };
    println!("{:<20} {elements:>10} {worst:>10} {:>10.0e}  {}", kind.name(), case.tolerance, case.name);
    Ok(result.err())
}
