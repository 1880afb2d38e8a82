//! The kernels of a device against their references.

use lily_kernels::check::{Case, Timing, cases, check_case, time_case, unsupported};
use lily_kernels::devices;
use lily_kernels::op::OpKind;

use crate::error::EngineError;

/// Runs of a case that is timed; the fastest counts.
const ROUNDS: usize = 5;

/// How a device did on one op.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelReport {
    /// Name of the op.
    pub op: &'static str,
    /// Cases that ran.
    pub cases: usize,
    /// Cases that the device does not run, and its reason for the last of them.
    pub unsupported: Option<(usize, String)>,
    /// Largest error of a float, relative to the RMS of the output it belongs to.
    pub worst: f64,
    /// How long the largest of them took.
    pub timing: Option<Timing>,
    /// One sentence for each case that was wrong.
    pub failures: Vec<String>,
}

/// Runs every case of every op, op by op as the reports are taken.
///
/// # Errors
/// The device cannot be opened, or it fails otherwise than by a wrong result.
pub fn check_kernels(
    device: &str,
) -> Result<impl Iterator<Item = Result<KernelReport, EngineError>> + use<>, EngineError> {
    devices::open(device, None)?;
    let device = device.to_owned();
    Ok(OpKind::ALL.iter().map(move |kind| check(&device, *kind)))
}

fn check(device: &str, kind: OpKind) -> Result<KernelReport, EngineError> {
    let mut report =
        KernelReport { op: kind.name(), cases: 0, unsupported: None, worst: 0.0, timing: None, failures: Vec::new() };
    let mut largest: Option<Case> = None;
    for case in cases(kind) {
        let mut backend = devices::open(device, None)?;
        if let Some(reason) = unsupported(&case, &mut *backend)? {
            let count = report.unsupported.map_or(0, |(count, _)| count);
            report.unsupported = Some((count + 1, reason));
            continue;
        }
        report.cases += 1;
        match check_case(&case, &mut *backend) {
            Ok(of_case) => report.worst = report.worst.max(of_case.worst),
            Err(failure) => report.failures.push(failure),
        }
        if largest.as_ref().is_none_or(|other| case.size() > other.size()) {
            largest = Some(case);
        }
    }
    if let Some(case) = largest {
        report.timing = Some(time_case(&case, &mut *devices::open(device, None)?, ROUNDS)?);
    }
    Ok(report)
}
