//! Kernels on the CPU: compiled as C++ with the machine that runs them, in one shared library.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::library::{BuildError, Launch, Problem, Report, Touched, Traffic};
use crate::work::{self, Work};

/// Compilers that instrument with `-fsanitize=thread`, the preferred one first.
pub const COMPILERS: [&str; 3] = ["clang++-19", "clang++", "g++"];

const FLAGS: &[&str] = &[
    "-std=c++20",
    "-O2",
    "-fPIC",
    "-ffp-contract=off",
    // A half is rounded after each operation.
    "-fexcess-precision=16",
    "-fno-strict-aliasing",
    "-Wno-unknown-attributes",
    "-Wno-attributes",
    "-Wno-unused-function",
];

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
/// Kernels, ready to run.
pub struct Kernels {
    library: libloading::Library,
    checked: bool,
}

/// A machine runs one launch at a time, and whoever loads the same file shares its machine.
static MACHINE: Mutex<()> = Mutex::new(());

impl Kernels {
    /// Builds C++, or loads what an earlier process built of the same.
    pub fn build(text: &str, checked: bool) -> Result<Self, BuildError> {
        let folder = work::folder()?;
        let id = work::id((text, checked.then(|| COMPILERS.map(instrument)), FLAGS));
        let built = folder.join(format!("{id}.so"));
        if work::sealed(&built).is_none() {
            compile(&folder, &id, text, checked)?;
        }
        let library = match load(&built) {
            Ok(library) => library,
            Err(_) => {
                // What an earlier process left is no library: built anew, once.
                fs::remove_file(&built).map_err(|reason| BuildError::File { path: folder.clone(), reason })?;
                compile(&folder, &id, text, checked)?;
                load(&built)?
            }
        };
        Ok(Self { library, checked })
    }

    /// Runs one dispatch.
    ///
    /// # Safety
    /// As for `Library::launch`.
    pub unsafe fn launch(&self, launch: &Launch) -> Report {
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

fn load(built: &Path) -> Result<libloading::Library, libloading::Error> {
    // SAFETY: the library was built from this crate's shim; loading it registers its kernels and does nothing else.
    unsafe { libloading::Library::new(built) }
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
    let id = format!("machine-{}", work::id(FLAGS));
    let built = folder.join(format!("{id}.o"));
    if work::sealed(&built).is_none() {
        let work = Work::new(folder, &id)?;
        run(&work.0, &["-Ishim", "-c", "shim/machine.cpp", "-o", "machine.o"], false)?;
        work.finish("machine.o", &built)?;
    }
    Ok(built)
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
    Err(BuildError::NoCompiler(&COMPILERS))
}
