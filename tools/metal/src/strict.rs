//! The strict front end: does a source keep Metal's rules of types and address spaces? The executor is C++, which has no
//! address spaces and converts more; this is a type check and runs nothing.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::library::BuildError;
use crate::translate::translate;
use crate::work::{self, Work};

/// Compilers with C++ for OpenCL, the preferred one first.
const COMPILERS: &[&str] = &["clang-19", "clang"];

const FLAGS: &[&str] = &[
    "-x",
    "cl",
    "-cl-std=clc++2021",
    "--target=x86_64-linux-gnu",
    "-Xclang",
    "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64,-__opencl_c_generic_address_space,-__opencl_c_pipes,-__opencl_c_device_enqueue",
    "-Xclang",
    "-finclude-default-header",
    "-fsyntax-only",
    "-ferror-limit=5",
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Werror",
    "-Wno-unused-parameter",
    "-Wno-unused-function",
    "-Wno-unused-const-variable",
    "-Wno-undefined-inline",
    "-Wno-undefined-internal",
    "-Wno-sign-conversion",
    "-Wno-implicit-int-conversion",
    "-Wno-null-dereference",
    "-Ishim",
    "-Ishim/strict",
];

/// Whether this machine has a compiler for it.
pub fn is_possible() -> bool {
    COMPILERS.iter().any(|compiler| Command::new(compiler).arg("--version").stdout(Stdio::null()).status().is_ok())
}

/// Checks a source.
///
/// # Errors
/// The source breaks a rule, or there is no such compiler.
pub fn check(name: &str, source: &str) -> Result<(), BuildError> {
    let text = translate(name, source)?.text;
    let folder = work::folder()?;
    let work = Work::new(&folder, "strict")?;
    run(&work, &text)
}

fn run(work: &Work, text: &str) -> Result<(), BuildError> {
    for compiler in COMPILERS {
        let mut command = Command::new(compiler);
        command.current_dir(&work.0).args(FLAGS).arg("-").stdin(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut child) = command.spawn() else { continue };
        let sent = child.stdin.take().map(|mut input| input.write_all(text.as_bytes()));
        let output = child.wait_with_output().map_err(|reason| work.failed(reason))?;
        return match (output.status.success(), sent) {
            (true, Some(Ok(()))) => Ok(()),
            _ => Err(BuildError::Compiler { compiler, text: String::from_utf8_lossy(&output.stderr).into_owned() }),
        };
    }
    Err(BuildError::NoCompiler(COMPILERS))
}
