//! Compiles translated kernels to a shared library that carries its own machine, and runs them on it.

use std::collections::hash_map::DefaultHasher;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::translate::{Refused, translate};

/// The shim, as it stands beside this crate's sources.
const SHIM: &[(&str, &str)] = &[
    ("types.h", include_str!("../shim/types.h")),
    ("kernel.h", include_str!("../shim/kernel.h")),
    ("machine.h", include_str!("../shim/machine.h")),
    ("counting.h", include_str!("../shim/counting.h")),
    ("machine.cpp", include_str!("../shim/machine.cpp")),
    ("strict.h", include_str!("../shim/strict.h")),
    ("tensor.h", include_str!("../shim/tensor.h")),
    ("strict_tensor.h", include_str!("../shim/strict_tensor.h")),
    ("include/metal_tensor", include_str!("../shim/include/metal_tensor")),
    (
        "include/MetalPerformancePrimitives/MetalPerformancePrimitives.h",
        include_str!("../shim/include/MetalPerformancePrimitives/MetalPerformancePrimitives.h"),
    ),
    ("strict/metal_tensor", include_str!("../shim/strict/metal_tensor")),
    (
        "strict/MetalPerformancePrimitives/MetalPerformancePrimitives.h",
        include_str!("../shim/strict/MetalPerformancePrimitives/MetalPerformancePrimitives.h"),
    ),
    ("include/metal_stdlib", include_str!("../shim/include/metal_stdlib")),
    ("include/metal_simdgroup", include_str!("../shim/include/metal_simdgroup")),
    ("include/metal_simdgroup_matrix", include_str!("../shim/include/metal_simdgroup_matrix")),
    ("include/metal_atomic", include_str!("../shim/include/metal_atomic")),
    ("include/metal_math", include_str!("../shim/include/metal_math")),
    ("strict/metal_stdlib", include_str!("../shim/strict/metal_stdlib")),
    ("strict/metal_simdgroup", include_str!("../shim/strict/metal_simdgroup")),
    ("strict/metal_simdgroup_matrix", include_str!("../shim/strict/metal_simdgroup_matrix")),
    ("strict/metal_atomic", include_str!("../shim/strict/metal_atomic")),
    ("strict/metal_math", include_str!("../shim/strict/metal_math")),
];

/// Compilers that instrument with `-fsanitize=thread`, the preferred one first.
const COMPILERS: [&str; 3] = ["clang++-19", "clang++", "g++"];

const FLAGS: &[&str] = &[
    "-std=c++20",
    "-O2",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-Wno-unknown-attributes",
    "-Wno-attributes",
    "-Wno-unused-function",
];

/// Why there is no library.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The source breaks a rule.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// None of the compilers is there.
    #[error("a Metal device in software needs a C++ compiler: one of {}", COMPILERS.join(", "))]
    NoCompiler,
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

/// What a kernel must be given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Indices of buffers.
    pub buffers: Vec<usize>,
    /// Indices of threadgroup memory.
    pub memories: Vec<usize>,
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
    /// Line of the source, or 0.
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

#[repr(C)]
struct RawBinding {
    index: c_int,
    writable: c_int,
    at: *mut c_void,
    bytes: usize,
}

#[repr(C)]
struct RawBytes {
    index: c_int,
    at: *const c_void,
    bytes: usize,
}

#[repr(C)]
struct RawLaunch {
    kernel: *const c_char,
    groups: [u32; 3],
    threads: [u32; 3],
    bindings: *const RawBinding,
    binding_count: usize,
    constants: *const RawBytes,
    constant_count: usize,
    memories: *const RawBytes,
    memory_count: usize,
    seed: u64,
    check: c_int,
    without_barrier: c_int,
    count: c_int,
}

#[repr(C)]
struct RawCounts {
    accesses: u64,
    switches: u64,
    problems: u64,
}

type ProblemCall = unsafe extern "C" fn(*mut c_void, *const c_char, i32, *const c_char);
type TouchedCall = unsafe extern "C" fn(*mut c_void, i32, usize, *const u8, usize);
type MovedCall = unsafe extern "C" fn(*mut c_void, i32, *const Traffic, *const Traffic);
type LaunchCall = unsafe extern "C" fn(*const RawLaunch, *mut c_void, ProblemCall, TouchedCall, MovedCall) -> RawCounts;
type KernelCall = unsafe extern "C" fn(*const c_char, *mut c_int, *mut c_int, c_int) -> c_int;
type ConstantsCall = unsafe extern "C" fn(*mut c_int, *mut usize, c_int) -> c_int;

/// Kernels, ready to run.
pub struct Library {
    library: libloading::Library,
    checked: bool,
}

/// A machine runs one launch at a time, and whoever loads the same file shares its machine.
static MACHINE: Mutex<()> = Mutex::new(());

impl Library {
    /// Builds a source, or loads what an earlier process built of the same. `checked` kernels report what they touch, and
    /// are slower. Builds are kept in a folder beside the running program.
    ///
    /// # Errors
    /// The source is wrong, or there is no compiler.
    pub fn build(name: &str, source: &str, checked: bool) -> Result<Self, BuildError> {
        let text = translate(name, source)?;
        let folder = folder()?;
        let failed = |reason| BuildError::File { path: folder.clone(), reason };
        let mut hasher = DefaultHasher::new();
        (&text, checked.then(|| COMPILERS.map(instrument)), SHIM, FLAGS).hash(&mut hasher);
        let id = format!("{:016x}", hasher.finish());
        let built = folder.join(format!("{id}.so"));
        if !built.exists() {
            compile(&folder, &id, &text, checked)?;
        }
        let library = match load(&built) {
            Ok(library) => library,
            Err(_) => {
                // What an earlier process left is no library: built anew, once.
                fs::remove_file(&built).map_err(failed)?;
                compile(&folder, &id, &text, checked)?;
                load(&built)?
            }
        };
        Ok(Self { library, checked })
    }

    /// What a kernel takes; `None` if there is none of this name.
    pub fn parameters(&self, kernel: &str) -> Option<Parameters> {
        let name = CString::new(kernel).ok()?;
        let (mut kinds, mut indices) = ([0; 64], [0; 64]);
        // SAFETY: the shim declares this function so; it writes at most the 64 numbers that are there.
        let count = unsafe {
            let call = self.library.get::<KernelCall>(b"lily_kernel").ok()?;
            call(name.as_ptr(), kinds.as_mut_ptr(), indices.as_mut_ptr(), 64)
        };
        let count = usize::try_from(count).ok()?;
        let of = |kind: u8| {
            let pairs = kinds[..count].iter().zip(&indices);
            pairs.filter(|(k, _)| **k == c_int::from(kind)).map(|(_, index)| *index as usize).collect()
        };
        Some(Parameters { buffers: of(b'b'), memories: of(b't') })
    }

    /// Function constants of the library: index and bytes.
    pub fn constants(&self) -> Vec<(usize, usize)> {
        let (mut indices, mut bytes) = ([0; 64], [0; 64]);
        // SAFETY: as in `parameters`.
        let count = unsafe {
            match self.library.get::<ConstantsCall>(b"lily_constants") {
                Ok(call) => call(indices.as_mut_ptr(), bytes.as_mut_ptr(), 64),
                Err(_) => 0,
            }
        };
        indices.iter().zip(bytes).take(count.max(0) as usize).map(|(i, b)| (*i as usize, b)).collect()
    }

    /// Runs one dispatch.
    ///
    /// # Safety
    /// Every binding's bytes can be read, and written where it says so, and nothing else uses them meanwhile. Without
    /// check a wrong kernel may touch any memory.
    ///
    /// # Panics
    /// There is no such kernel, or a binding's index is none.
    pub unsafe fn launch(&self, launch: &Launch) -> Report {
        assert!(self.parameters(launch.kernel).is_some(), "no kernel {}", launch.kernel);
        assert!(launch.bindings.iter().all(|b| b.index < 31), "buffers have indices below 31");
        let threads: u32 = launch.threads.iter().product();
        assert!((1..=1024).contains(&threads), "a threadgroup has 1 to 1,024 threads");
        let name = CString::new(launch.kernel).unwrap_or_default();
        let raw_bytes = |index: usize, at: *const c_void, bytes| RawBytes { index: index as c_int, at, bytes };
        let bindings: Vec<RawBinding> = launch
            .bindings
            .iter()
            .map(|b| RawBinding {
                index: b.index as c_int,
                writable: b.writable.into(),
                at: b.at.cast(),
                bytes: b.bytes,
            })
            .collect();
        let constants: Vec<_> =
            launch.constants.iter().map(|(i, v)| raw_bytes(*i, v.as_ptr().cast(), v.len())).collect();
        let memories: Vec<_> = launch.memories.iter().map(|(i, n)| raw_bytes(*i, std::ptr::null(), *n)).collect();
        let raw = RawLaunch {
            kernel: name.as_ptr(),
            groups: launch.groups,
            threads: launch.threads,
            bindings: bindings.as_ptr(),
            binding_count: bindings.len(),
            constants: constants.as_ptr(),
            constant_count: constants.len(),
            memories: memories.as_ptr(),
            memory_count: memories.len(),
            seed: launch.seed,
            check: self.checked.into(),
            without_barrier: launch.without_barrier.unwrap_or(0) as c_int,
            count: launch.count.into(),
        };
        let mut report = Report::default();
        let one = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the shim declares this function so; what `raw` points to lives until it returns, and so does `report`,
        // which only the calls below write. The bindings are the caller's promise.
        let counts = unsafe {
            match self.library.get::<LaunchCall>(b"lily_launch") {
                Ok(call) => call(&raw const raw, (&raw mut report).cast(), on_problem, on_touched, on_moved),
                Err(e) => panic!("the shim has no lily_launch: {e}"),
            }
        };
        drop(one);
        report.accesses = counts.accesses;
        report
    }
}

/// # Safety
/// Called by `lily_launch` with the report and two strings that end.
unsafe extern "C" fn on_problem(to: *mut c_void, kind: *const c_char, line: i32, text: *const c_char) {
    // SAFETY: the caller's.
    let (report, kind, text) = unsafe { (&mut *to.cast::<Report>(), CStr::from_ptr(kind), CStr::from_ptr(text)) };
    let (kind, text) = (kind.to_string_lossy(), text.to_string_lossy());
    match report.problems.iter_mut().find(|p| p.kind == kind && p.text == text) {
        Some(known) => known.times += 1,
        None => report.problems.push(Problem {
            kind: kind.into_owned(),
            line: line.max(0) as u32,
            text: text.into_owned(),
            times: 1,
        }),
    }
}

/// # Safety
/// Called by `lily_launch` with the report and `count` bytes.
unsafe extern "C" fn on_touched(to: *mut c_void, index: i32, first: usize, bits: *const u8, count: usize) {
    // SAFETY: the caller's.
    let (report, bits) = unsafe { (&mut *to.cast::<Report>(), std::slice::from_raw_parts(bits, count)) };
    report.touched.push(Touched { index: index as usize, first, bits: bits.to_vec() });
}

/// # Safety
/// Called by `lily_launch` with the report and two counts.
unsafe extern "C" fn on_moved(to: *mut c_void, index: i32, loads: *const Traffic, stores: *const Traffic) {
    // SAFETY: the caller's.
    let (report, loads, stores) = unsafe { (&mut *to.cast::<Report>(), *loads, *stores) };
    report.moved.push((index as usize, loads, stores));
}

/// Where builds are kept.
pub(crate) fn folder() -> Result<PathBuf, BuildError> {
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or_else(|| Path::new(".")).join("software-metal");
    let made = fs::create_dir_all(&folder);
    made.map(|()| folder.clone()).map_err(|reason| BuildError::File { path: folder, reason })
}

fn load(built: &Path) -> Result<libloading::Library, libloading::Error> {
    // SAFETY: the library was built from this crate's shim; loading it registers its kernels and does nothing else.
    unsafe { libloading::Library::new(built) }
}

/// Whether kernels can be built here.
///
/// # Errors
/// There is no compiler.
pub fn ready() -> Result<(), BuildError> {
    let there = |compiler: &&str| Command::new(compiler).arg("--version").output().is_ok();
    if COMPILERS.iter().any(there) { Ok(()) } else { Err(BuildError::NoCompiler) }
}

/// Builds `<id>.so`. Everything is written under names of its own and renamed, so that processes do not meet.
fn compile(folder: &Path, id: &str, text: &str, checked: bool) -> Result<(), BuildError> {
    let work = Work::new(folder, id)?;
    fs::write(work.0.join("kernels.cpp"), text).map_err(|reason| work.failed(reason))?;
    let machine = machine(folder)?;
    let kernels = &["-Ishim/include", "-c", "kernels.cpp", "-o", "kernels.o"];
    run(&work.0, kernels, checked)?;
    run(&work.0, &["-shared", "kernels.o", &machine.to_string_lossy(), "-o", "kernels.so"], false)?;
    work.finish("kernels.so", &folder.join(format!("{id}.so")))
}

/// The machine, which is the same for all libraries.
fn machine(folder: &Path) -> Result<PathBuf, BuildError> {
    let mut hasher = DefaultHasher::new();
    (SHIM, FLAGS).hash(&mut hasher);
    let id = format!("machine-{:016x}", hasher.finish());
    let built = folder.join(format!("{id}.o"));
    if !built.exists() {
        let work = Work::new(folder, &id)?;
        run(&work.0, &["-Ishim", "-c", "shim/machine.cpp", "-o", "machine.o"], false)?;
        work.finish("machine.o", &built)?;
    }
    Ok(built)
}

/// A folder with the shim, to build in.
pub(crate) struct Work(pub PathBuf);

impl Work {
    pub fn new(folder: &Path, id: &str) -> Result<Self, BuildError> {
        static BUILDS: AtomicU32 = AtomicU32::new(0);
        let number = BUILDS.fetch_add(1, Ordering::Relaxed);
        let work = Self(folder.join(format!("{id}-{}-{number}", std::process::id())));
        ["shim/include/MetalPerformancePrimitives", "shim/strict/MetalPerformancePrimitives"]
            .iter()
            .try_for_each(|part| fs::create_dir_all(work.0.join(part)))
            .map_err(|reason| work.failed(reason))?;
        for (name, text) in SHIM {
            fs::write(work.0.join("shim").join(name), text).map_err(|reason| work.failed(reason))?;
        }
        Ok(work)
    }

    pub fn failed(&self, reason: io::Error) -> BuildError {
        BuildError::File { path: self.0.clone(), reason }
    }

    /// Moves the result to its place, once all of it is on the disk.
    fn finish(&self, result: &str, to: &Path) -> Result<(), BuildError> {
        let result = self.0.join(result);
        let synced = fs::File::open(&result).and_then(|file| file.sync_all());
        synced.and_then(|()| fs::rename(&result, to)).map_err(|reason| self.failed(reason))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // What cannot be removed does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a compiler lets code report each load and store as the source has it: none put together from several, and with
/// clang also the read of what is written right after.
fn instrument(compiler: &str) -> Vec<&'static str> {
    let mut flags = vec!["-fsanitize=thread", "-g1", "-fno-tree-vectorize", "-fno-tree-slp-vectorize"];
    if compiler.starts_with("clang") {
        flags.extend(["-mllvm", "-tsan-instrument-read-before-write=1"]);
    }
    flags
}

/// Runs the first compiler that is there.
fn run(folder: &Path, arguments: &[&str], checked: bool) -> Result<(), BuildError> {
    for compiler in COMPILERS {
        let more = if checked { instrument(compiler) } else { Vec::new() };
        let output = match Command::new(compiler).current_dir(folder).args(FLAGS).args(more).args(arguments).output() {
            Ok(output) => output,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(reason) => return Err(BuildError::File { path: folder.to_owned(), reason }),
        };
        return match output.status.success() {
            true => Ok(()),
            false => Err(BuildError::Compiler { compiler, text: String::from_utf8_lossy(&output.stderr).into_owned() }),
        };
    }
    Err(BuildError::NoCompiler)
}
