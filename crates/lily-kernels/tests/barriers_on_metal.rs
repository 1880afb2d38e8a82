//! Without any one of its barriers, a kernel fails a case on the device in software: a barrier that nobody misses is either
//! not needed or not checked.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code")]
#![cfg(all(feature = "software-metal", not(target_vendor = "apple")))]

use std::collections::BTreeMap;
use std::sync::Arc;

use lily_kernels::backend::Backend;
use lily_kernels::check::{Case, cases, check_case};
use lily_kernels::metal::{MetalBackend, libraries};
use lily_kernels::op::OpKind;
use lily_kernels::policy::{Abilities, variants};

/// A line with a barrier, by file and number.
type Place = (String, u32);

/// What the GPU of this test can do.
const EVERYTHING: Abilities = Abilities { matrices: true, tensors: true };

/// Every barrier, and the libraries that contain it.
fn barriers() -> BTreeMap<Place, Vec<String>> {
    let mut barriers: BTreeMap<Place, Vec<String>> = BTreeMap::new();
    for (_, library) in libraries() {
        let (mut file, mut number) = (String::new(), 0);
        for line in library.lines() {
            if let Some(name) = line.strip_prefix("#line 1 ") {
                (file, number) = (name.trim_matches('"').to_owned(), 0);
                continue;
            }
            number += 1;
            if line.contains("barrier(") {
                barriers.entry((file.clone(), number)).or_default().push(library.clone());
            }
        }
    }
    barriers
}

/// Which of a case's legal grids runs a kernel of one of the libraries: the policy's choice, if it does.
fn variant(case: &Case, of: &[String]) -> Option<(usize, &'static str)> {
    let key = &case.plan.key;
    let grids = variants(&case.plan.dispatches[0].op, &case.inputs.counts(0), key.switches, EVERYTHING);
    let has = |kernel: &str| {
        let names = [format!("kernel void {kernel}("), format!("host_name(\"{kernel}\")")];
        of.iter().any(|library| names.iter().any(|name| library.contains(name)))
    };
    grids.iter().map(|grid| grid.kernel).enumerate().find(|(_, kernel)| has(kernel))
}

/// What a case of one of the libraries says when the barriers of this line do nothing; nothing if all pass.
fn missed(line: u32, of: &[String], all: &[Case]) -> Option<String> {
    software_metal::leave_out_barriers(Some(line));
    // What does not compile for the device is not run, and says nothing.
    let fault = |case: &Case| {
        let (number, kernel) = variant(case, of)?;
        let mut case = case.clone();
        if kernel == "linear_tensor" {
            case.tolerance = 3e-2; // it rounds to bf16
        }
        let mut device = MetalBackend::new().unwrap();
        device.compile(Arc::new(case.plan.clone())).ok()?;
        let mut device = MetalBackend::new().unwrap();
        device.run_variant(number);
        check_case(&case, &mut device).err()
    };
    let error = all.iter().find_map(fault);
    software_metal::leave_out_barriers(None);
    error
}

#[test]
fn every_barrier_is_missed_when_it_is_left_out() {
    software_metal::set_mode(software_metal::Mode::Checked { seed: 1 });
    software_metal::set_machine(software_metal::Machine::with_units());
    assert_eq!(MetalBackend::new().unwrap().abilities(), EVERYTHING);
    let all: Vec<Case> = OpKind::ALL.iter().flat_map(|kind| cases(*kind)).collect();
    let barriers = barriers();
    let mut not_missed = Vec::new();
    for ((file, line), of) in &barriers {
        match missed(*line, of, &all) {
            Some(error) => println!("{file}:{line}: {error}"),
            None => not_missed.push(format!("{file}:{line}")),
        }
    }
    let reported = barriers.len() - not_missed.len();
    println!("PROOF barriers of kernels left out in turn: {}, {reported} reported", barriers.len());
    assert!(barriers.len() >= 10 && not_missed.is_empty(), "{not_missed:#?}");
}
