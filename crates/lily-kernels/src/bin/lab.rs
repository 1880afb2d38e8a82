//! The kernel lab: `lab check [op] [--device NAME]` runs the cases of one op, or of all, and prints how far the device
//! is from the reference.

#![allow(clippy::print_stdout, reason = "a table for people is what it is for")]

use std::process::ExitCode;

use lily_kernels::backend::Backend;
use lily_kernels::check::{Case, cases, check_case};
use lily_kernels::devices;
use lily_kernels::op::OpKind;
use lily_kernels::reference::ReferenceBackend;

const USAGE: &str = "usage: lab check [op] [--device NAME]";

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
    let (mut words, mut device) = (Vec::new(), "cpu");
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--device" => device = args.next().ok_or(USAGE)?,
            word => words.push(word),
        }
    }
    match words[..] {
        ["check"] => check(OpKind::ALL, device),
        ["check", name] => {
            let kind = OpKind::ALL.iter().find(|kind| kind.name() == name);
            check(&[*kind.ok_or_else(|| format!("no op is called {name}"))?], device)
        }
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
