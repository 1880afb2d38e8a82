//! Many cases at once, as many as there are processors: the references, not the device, are what takes long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use lily_kernels::backend::Backend;
use lily_kernels::check::{Case, LazyCase, Report, cases, check_case, seeded, true_shapes, unsupported};
use lily_kernels::cpu::CpuBackend;
#[cfg(any(target_vendor = "apple", feature = "software-metal"))]
use lily_kernels::metal::MetalBackend;
use lily_kernels::op::OpKind;

/// What to run.
pub struct Wanted<'a> {
    /// Of these ops.
    pub kinds: Vec<OpKind>,
    /// On this device.
    pub device: &'a str,
    /// With seeds 1 to this.
    pub seeds: u64,
    /// The cases that every device runs in the tests.
    pub ordinary: bool,
    /// The cases at the model's shapes.
    pub at_true: bool,
}

/// Some cases of an op, which one thread runs.
enum Work {
    Ordinary,
    AtTrueShape(LazyCase),
}

struct Task {
    kind: OpKind,
    seed: u64,
    work: Work,
}

/// What is known of an op, or of all.
#[derive(Default)]
struct Tally {
    left: usize,
    cases: usize,
    skipped: usize,
    failed: usize,
    /// Largest error, of its case's tolerance.
    worst: f64,
    kernels: BTreeSet<&'static str>,
}

impl Tally {
    /// Adds a case, and says what went wrong.
    fn add(&mut self, case: &Case, outcome: Outcome) -> Option<String> {
        let Some((result, kernels)) = outcome else {
            self.skipped += 1;
            return None;
        };
        self.cases += 1;
        self.kernels.extend(kernels);
        match result {
            Ok(report) if case.tolerance > 0.0 => self.worst = self.worst.max(report.worst / case.tolerance),
            Ok(_) => (),
            Err(message) => {
                self.failed += 1;
                return Some(message);
            }
        }
        None
    }
}

/// What came of a case and the kernels that ran; none if the device does not run this op so.
type Outcome = Option<(Result<Report, String>, BTreeSet<&'static str>)>;

/// Runs them; whether all passed.
pub fn run(wanted: &Wanted) -> Result<bool, String> {
    prepare(wanted.device)?;
    let described = crate::open(wanted.device)?.describe();
    println!("device: {described}; errors are of the case's tolerance");
    println!("{:<20} {:>6} {:>6} {:>8}  kernels", "op", "cases", "failed", "worst");
    let tasks = tasks(wanted);
    let mut tallies: BTreeMap<OpKind, Tally> = BTreeMap::new();
    tasks.iter().for_each(|task| tallies.entry(task.kind).or_default().left += 1);
    let (tallies, next) = (Mutex::new(tallies), AtomicUsize::new(0));
    let worker = || {
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let done = run_task(task, wanted.device);
            let mut tallies = tallies.lock().unwrap_or_else(PoisonError::into_inner);
            let tally = tallies.entry(task.kind).or_default();
            for (case, outcome) in done {
                if let Some(message) = tally.add(&case, outcome) {
                    println!("FAILED seed {}: {message}", task.seed);
                }
            }
            tally.left -= 1;
            if tally.left == 0 {
                print_tally(task.kind, tally);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(worker))));
    let tallies = tallies.into_inner().unwrap_or_else(PoisonError::into_inner);
    let total = |of: fn(&Tally) -> usize| tallies.values().map(of).sum::<usize>();
    let worst = tallies.values().fold(0.0, |worst: f64, tally| worst.max(tally.worst));
    let (cases, failed) = (total(|t| t.cases), total(|t| t.failed));
    println!(
        "{cases} cases of {} ops with seeds 1 to {}: {failed} failed, worst error {worst:.2} of its tolerance, \
         {} cases are not for this device; {described}, {}",
        tallies.len(),
        wanted.seeds,
        total(|t| t.skipped),
        today()
    );
    Ok(failed == 0 && cases > 0)
}

/// The long ones first, so that no thread ends late.
fn tasks(wanted: &Wanted) -> Vec<Task> {
    let mut tasks = Vec::new();
    let all = || wanted.kinds.iter().flat_map(|kind| (1..=wanted.seeds).map(move |seed| (*kind, seed)));
    if wanted.at_true {
        let of = |(kind, seed)| true_shapes(kind).into_iter().rev().map(move |c| (kind, seed, Work::AtTrueShape(c)));
        tasks.extend(all().flat_map(of));
        // Stable: experts and projections have the weights.
        tasks.sort_by_key(|(kind, ..)| !matches!(kind, OpKind::ExpertGateUp | OpKind::ExpertLinear | OpKind::Linear));
    }
    if wanted.ordinary {
        tasks.extend(all().map(|(kind, seed)| (kind, seed, Work::Ordinary)));
    }
    tasks.into_iter().map(|(kind, seed, work)| Task { kind, seed, work }).collect()
}

/// The cases, without their contents where those are large.
fn run_task(task: &Task, device: &str) -> Vec<(Case, Outcome)> {
    let check = |case: Case| {
        let outcome = check_on(&case, device).unwrap_or_else(|e| Some((Err(e), BTreeSet::new())));
        (case, outcome)
    };
    match &task.work {
        Work::Ordinary => seeded(task.seed, || cases(task.kind)).into_iter().map(check).collect(),
        Work::AtTrueShape(case) => vec![check(case.build(task.seed))],
    }
}

/// Runs a case on a device of its own.
fn check_on(case: &Case, device: &str) -> Result<Outcome, String> {
    match device {
        #[cfg(any(target_vendor = "apple", feature = "software-metal"))]
        name if METAL.contains(&name) => {
            let mut device = metal(name)?;
            let result = check_supported(case, &mut device)?;
            Ok(result.map(|result| (result, device.kernels())))
        }
        _ => {
            let mut device: Box<dyn Backend> = match device {
                // The cases are spread over the processors already.
                "cpu" => Box::new(CpuBackend::new(Some(1)).map_err(|e| e.to_string())?),
                _ => crate::open(device)?,
            };
            Ok(check_supported(case, device.as_mut())?.map(|result| (result, BTreeSet::new())))
        }
    }
}

/// None if the device does not run this op so.
fn check_supported(case: &Case, device: &mut dyn Backend) -> Result<Option<Result<Report, String>>, String> {
    let unsupported = unsupported(case, device).map_err(|e| format!("{}: {e}", case.name))?;
    Ok(if unsupported.is_some() { None } else { Some(check_case(case, device)) })
}

/// Names under which the Metal device runs: as itself, on the CPU, on an NVIDIA card.
#[cfg(any(target_vendor = "apple", feature = "software-metal"))]
pub const METAL: &[&str] = if cfg!(target_vendor = "apple") { &["metal"] } else { &["software-metal", "nvidia"] };

/// The Metal device.
#[cfg(any(target_vendor = "apple", feature = "software-metal"))]
pub fn metal(name: &str) -> Result<MetalBackend, String> {
    #[cfg(not(target_vendor = "apple"))]
    software_metal::set_mode(match name {
        "nvidia" => software_metal::Mode::Nvidia,
        _ => software_metal::Mode::Fast,
    });
    #[cfg(target_vendor = "apple")]
    let _ = name;
    MetalBackend::new().map_err(|e| e.to_string())
}

/// Compiles all kernels at once, before each thread waits for the same.
fn prepare(device: &str) -> Result<(), String> {
    #[cfg(all(feature = "software-metal", not(target_vendor = "apple")))]
    if device == "nvidia" {
        let compile = |(name, text): (&str, String)| {
            let compiled = software_metal::nvidia::compile(software_metal::metal::SOURCE, &text);
            compiled.map_err(|e| format!("{name}: {}", e.sentence()))
        };
        return std::thread::scope(|scope| {
            let libraries = lily_kernels::metal::libraries().filter(|(name, text)| {
                let has_tensors = text.contains("metal_tensor");
                if has_tensors {
                    println!("SKIP {name} on NVIDIA cards: its tensor operations are Apple's");
                }
                !has_tensors
            });
            let libraries: Vec<_> = libraries.collect();
            let threads: Vec<_> = libraries.into_iter().map(|library| scope.spawn(move || compile(library))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("nvcc".to_owned())))
        });
    }
    let _ = device;
    Ok(())
}

fn print_tally(kind: OpKind, tally: &Tally) {
    let Tally { cases, failed, worst, kernels, .. } = tally;
    let kernels = if kernels.is_empty() { "-".to_owned() } else { Vec::from_iter(kernels.iter().copied()).join(" ") };
    println!("{:<20} {cases:>6} {failed:>6} {worst:>8.3}  {kernels}", kind.name());
}

/// The date in UTC, as in 2026-12-01.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    // Years from March on have their odd day at the end; an era is 400 of them.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}
