//! A library of kernels: a source, translated and built for the mode's machine, and run on it.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::mode::Mode;
use crate::nvidia;
use crate::software::{self, COMPILERS};
use crate::translate::{Parameters, Refused, translate};

/// Why there is no library.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The source breaks a rule.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// None of the compilers is there.
    #[error("kernels are built by one of these, and none is here: {}", .0.join(", "))]
    NoCompiler(&'static [&'static str]),
    /// The source is wrong.
    #[error("{compiler} does not take the source: {text}")]
    Compiler {
        /// Which one.
        compiler: &'static str,
        /// All that it says.
        text: String,
    },
    /// Files could not be written or read.
    #[error("cannot build kernels in {}: {reason}", path.display())]
    File {
        /// The folder.
        path: PathBuf,
        /// The system's reason.
        reason: io::Error,
    },
    /// What was built cannot be loaded.
    #[error("cannot load kernels: {0}")]
    Load(#[from] libloading::Error),
    /// The NVIDIA driver is not there, or does not take what was built.
    #[error("no kernels on an NVIDIA card: {0}")]
    Driver(String),
}

impl BuildError {
    /// One line of it.
    pub fn sentence(&self) -> String {
        let text = self.to_string();
        let error = text.lines().find(|line| line.contains("error:"));
        match (self, error) {
            (Self::Compiler { compiler, .. }, Some(line)) => format!("{compiler} does not take the source: {line}"),
            _ => text.lines().next().unwrap_or_default().to_owned(),
        }
    }
}

/// A buffer of a launch.
#[derive(Debug, Clone, Copy)]
pub struct Binding {
    /// `[[buffer(index)]]`.
    pub index: usize,
    /// First byte.
    pub at: *mut u8,
    /// Bytes from there on.
    pub bytes: usize,
    /// Whether kernels may write it.
    pub writable: bool,
}

/// One dispatch.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Name for the host.
    pub kernel: &'a str,
    /// Threadgroups.
    pub groups: [u32; 3],
    /// Threads of each; at most 1,024 in all.
    pub threads: [u32; 3],
    /// Buffers.
    pub bindings: &'a [Binding],
    /// Function constants: index and value.
    pub constants: &'a [(usize, Vec<u8>)],
    /// Threadgroup parameters: index and length.
    pub memories: &'a [(usize, usize)],
    /// Order of the threads; 0 is theirs.
    pub seed: u64,
    /// Line whose barriers do nothing: for tests of the check.
    pub without_barrier: Option<u32>,
    /// Whether to count loads, stores and lines.
    pub count: bool,
}

/// Something that Metal leaves to chance, or forbids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Which kind, e.g. `race`.
    pub kind: String,
    /// Line of the source; 0 if no line is to blame.
    pub line: u32,
    /// Where.
    pub text: String,
    /// How often.
    pub times: usize,
}

/// Some bytes of a buffer that a launch used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touched {
    /// Binding.
    pub index: usize,
    /// First byte, from the binding's own first.
    pub first: usize,
    /// Of each byte: 1 read, 2 written.
    pub bits: Vec<u8>,
}

/// Loads or stores of a binding.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Of whole simdgroups.
    pub simdgroups: u64,
    /// Cache lines that each of them touches, in sum.
    pub lines: u64,
    /// Bytes of all lanes.
    pub bytes: u64,
}

impl std::ops::Add for Traffic {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        Self { simdgroups: self.simdgroups + o.simdgroups, lines: self.lines + o.lines, bytes: self.bytes + o.bytes }
    }
}

/// What a launch did.
#[derive(Debug, Default)]
pub struct Report {
    /// Each once, in the order of their first occurrence.
    pub problems: Vec<Problem>,
    /// Of checked libraries only.
    pub touched: Vec<Touched>,
    /// Binding, loads, stores; of launches that count.
    pub moved: Vec<(usize, Traffic, Traffic)>,
    /// Loads and stores seen; 0 of unchecked libraries.
    pub accesses: u64,
}

/// Kernels, ready to run.
pub struct Library {
    kernels: Vec<(String, Parameters)>,
    constants: Vec<usize>,
    machine: Machine,
}

enum Machine {
    Software(software::Kernels),
    Nvidia(nvidia::Kernels),
}

impl Library {
    /// Builds a source, or loads what an earlier process built of the same. Checked kernels report what they touch, and
    /// are slower. Builds are kept in a folder beside the running program.
    ///
    /// # Errors
    /// The source is wrong, or there is no compiler, or no card.
    pub fn build(name: &str, source: &str, mode: Mode) -> Result<Self, BuildError> {
        let translation = translate(name, source)?;
        let constants = translation.constants.iter().map(|(index, _)| *index).collect();
        let machine = match mode {
            Mode::Fast | Mode::Checked { .. } => {
                Machine::Software(software::Kernels::build(&translation.text, mode.is_checked())?)
            }
            Mode::Nvidia => Machine::Nvidia(nvidia::Kernels::build(&translation)?),
        };
        Ok(Self { kernels: translation.kernels, constants, machine })
    }

    /// What a kernel takes; `None` if there is none of this name.
    pub fn parameters(&self, kernel: &str) -> Option<&Parameters> {
        self.kernels.iter().find(|(name, _)| name == kernel).map(|(_, parameters)| parameters)
    }

    /// Indices of the library's function constants.
    pub fn constants(&self) -> &[usize] {
        &self.constants
    }

    /// Runs one dispatch. What fails on a card is a problem of the report.
    ///
    /// # Safety
    /// Every binding's bytes can be read, and written where it says so, and nothing else uses them meanwhile. On a card
    /// those that may be written are from `commands::Memory`. Without check a wrong kernel may touch any memory.
    ///
    /// # Panics
    /// There is no such kernel, or a binding's index is none.
    pub unsafe fn launch(&self, launch: &Launch) -> Report {
        assert!(self.parameters(launch.kernel).is_some(), "no kernel {}", launch.kernel);
        assert!(launch.bindings.iter().all(|b| b.index < 31), "buffers have indices below 31");
        let threads: u32 = launch.threads.iter().product();
        assert!((1..=1024).contains(&threads), "a threadgroup has 1 to 1,024 threads");
        match &self.machine {
            // SAFETY: the caller's.
            Machine::Software(kernels) => unsafe { kernels.launch(launch) },
            // SAFETY: the caller's.
            Machine::Nvidia(kernels) => match unsafe { kernels.launch(launch) } {
                Ok(()) => Report::default(),
                Err(text) => {
                    let problem = Problem { kind: "the card failed".into(), line: 0, text, times: 1 };
                    Report { problems: vec![problem], ..Report::default() }
                }
            },
        }
    }
}

/// Whether kernels can be built here.
///
/// # Errors
/// There is no compiler, or no card.
pub fn ready(mode: Mode) -> Result<(), BuildError> {
    if mode == Mode::Nvidia {
        return nvidia::ready();
    }
    static READY: OnceLock<bool> = OnceLock::new();
    let there = |compiler: &&str| Command::new(compiler).arg("--version").output().is_ok();
    if *READY.get_or_init(|| COMPILERS.iter().any(there)) { Ok(()) } else { Err(BuildError::NoCompiler(&COMPILERS)) }
}
