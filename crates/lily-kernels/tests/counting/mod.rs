//! What the kernels of an op moved, as the device in software counts it, in the terms of the op's contract.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::ops::Range;

use lily_kernels::check::{Case, cases, check_case};
use lily_kernels::metal::MetalBackend;
use lily_kernels::op::{Access, Op, OpKind};
use lily_kernels::ops::expert_gate_up::ExpertGateUp;
use lily_kernels::ops::expert_linear::ExpertLinear;
use lily_kernels::tensor::Space;
use software_metal::counts::{BindingCounts, DispatchCounts};
use software_metal::library::Traffic;

/// Kernels may fetch weights in aligned words, and so a few bytes beside a matrix that starts or ends within one.
const WEIGHT_WORD: usize = 16;

/// Labels of buffers, as the host and the check name them.
pub const STATE: &str = "state of a case";
pub const KV: &str = "KV blocks of a case";
const WEIGHTS: &str = "a weight file";
const SCRATCH: &str = "scratch memory";
const STEP_INPUTS: &str = "the numbers of a step";

/// The cases of an op that a test is about. `choose` looks at the op.
pub fn cases_where(kind: OpKind, choose: impl Fn(&Op) -> bool) -> Vec<Case> {
    let chosen: Vec<Case> = cases(kind).into_iter().filter(|case| choose(&case.plan.dispatches[0].op)).collect();
    assert!(!chosen.is_empty(), "no such case of {}", kind.name());
    chosen
}

/// The same case with a switch off.
pub fn without(case: &Case, switch: &str) -> Case {
    let mut case = case.clone();
    case.plan.key.switches = case.plan.key.switches.without(switch).expect("a switch of the table");
    case
}

/// Runs a case and returns its launches, in the order of their execution.
///
/// # Panics
/// The case fails.
pub fn launches(case: &Case) -> Vec<DispatchCounts> {
    software_metal::set_mode(software_metal::Mode::Checked { seed: 1 });
    software_metal::count(true);
    let mut device = MetalBackend::new().expect("the device in software");
    check_case(case, &mut device).expect("a case that passes");
    let launches = software_metal::take_counts();
    software_metal::count(false);
    launches
}

/// What launches moved between them and the buffers of one label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Distinct bytes read, binding by binding.
    pub read: usize,
    /// Distinct bytes written, binding by binding.
    pub written: usize,
    /// Loads of simdgroups, their lines, their bytes.
    pub loads: Traffic,
    /// The same of stores.
    pub stores: Traffic,
}

/// What launches moved between them and the buffers of one label.
pub fn moved(launches: &[DispatchCounts], label: &str) -> Moved {
    let bindings = launches.iter().flat_map(|launch| &launch.bindings).filter(|b| b.label.as_deref() == Some(label));
    bindings.fold(Moved::default(), |sum, b| Moved {
        read: sum.read + b.read_bytes(),
        written: sum.written + b.written_bytes(),
        loads: sum.loads + b.loads,
        stores: sum.stores + b.stores,
    })
}

/// Distinct bytes that the launches of one op read and wrote.
///
/// Not counted, because a contract does not: step inputs (the buffer of positions, block tables and output rows, and what
/// the encoder copied), and bytes of a weight file that share a word of 16 with a declared one. A byte that the op has
/// itself written is no traffic when it reads it again. A table of experts' offsets counts as a whole when any of it is
/// read: kernels search it.
///
/// # Errors
/// A byte of a weight file that is neither declared nor beside a declared one.
pub fn distinct_bytes(launches: &[DispatchCounts], op: &Op) -> Result<(usize, usize), String> {
    let (mut read, mut written) = (Sets::default(), Sets::default());
    for binding in launches.iter().flat_map(|launch| &launch.bindings).filter(|b| is_data(b)) {
        let all = if binding.label.as_deref() == Some(WEIGHTS) {
            declared_part(&binding.read, &op.contract().reads())?
        } else {
            whole_tables(binding, op)
        };
        read.add(binding.buffer, &all);
        written.add(binding.buffer, &binding.written);
    }
    read.remove(&written);
    Ok((read.bytes(), written.bytes()))
}

/// What was read, and the whole of a table of offsets of which something was.
fn whole_tables(binding: &BindingCounts, op: &Op) -> Vec<Range<usize>> {
    let mut read = binding.read.clone();
    let (Op::ExpertLinear(ExpertLinear { groups, .. })
    | Op::ExpertGateUp(ExpertGateUp { gate: ExpertLinear { groups, .. }, .. })) = op
    else {
        return read;
    };
    let table = groups.offsets.offset..groups.offsets.offset + groups.offsets.bytes();
    if binding.label.as_deref() == Some(SCRATCH) && read.iter().any(|r| r.start < table.end && table.start < r.end) {
        read.push(table);
    }
    read
}

fn is_data(binding: &BindingCounts) -> bool {
    binding.buffer != 0 && binding.label.as_deref() != Some(STEP_INPUTS)
}

/// The declared bytes among those read of a weight file.
fn declared_part(read: &[Range<usize>], declared: &[Access]) -> Result<Vec<Range<usize>>, String> {
    let declared: Vec<Range<usize>> = declared
        .iter()
        .filter(|access| matches!(access.space, Space::Weights(_)))
        .map(|access| access.offset..access.offset + access.bytes)
        .collect();
    let mut part = Vec::new();
    for range in read {
        for at in range.clone() {
            if declared.iter().any(|d| d.contains(&at)) {
                part.push(at..at + 1);
                continue;
            }
            let word = at / WEIGHT_WORD * WEIGHT_WORD..(at / WEIGHT_WORD + 1) * WEIGHT_WORD;
            if !declared.iter().any(|d| d.start < word.end && word.start < d.end) {
                return Err(format!("byte {at} of a weight file is read, and nothing near it is declared"));
            }
        }
    }
    Ok(part)
}

/// Sets of bytes, by buffer: a bit a byte.
#[derive(Default)]
struct Sets(BTreeMap<usize, Vec<bool>>);

impl Sets {
    fn add(&mut self, buffer: usize, ranges: &[Range<usize>]) {
        let bytes = self.0.entry(buffer).or_default();
        for range in ranges {
            let length = bytes.len().max(range.end);
            bytes.resize(length, false);
            bytes[range.clone()].fill(true);
        }
    }

    fn remove(&mut self, other: &Self) {
        for (buffer, bytes) in &mut self.0 {
            for (byte, gone) in bytes.iter_mut().zip(other.0.get(buffer).into_iter().flatten()) {
                *byte &= !gone;
            }
        }
    }

    fn bytes(&self) -> usize {
        self.0.values().flatten().filter(|byte| **byte).count()
    }
}
