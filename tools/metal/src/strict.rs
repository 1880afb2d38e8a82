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
    "-finclude-default-header",
    "-fsyntax-only",
    "-ferror-limit=0",
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

/// The language without what Metal has not, and with the generic address space, which Metal has not either.
const GENERIC: &str = "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64,-__opencl_c_pipes,-__opencl_c_device_enqueue";
/// And without that: a pointer that names no space is one to private memory.
const STRICT: &str = "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64,-__opencl_c_generic_address_space,-__opencl_c_pipes,-__opencl_c_device_enqueue";

/// What clang says of structs that are copied, where there is no generic address space. Metal copies them from any; whether
/// a copy is otherwise right shows with the generic one.
const COPIES: &[&str] = &[
    "no matching constructor for initialization of",
    "no viable overloaded '='",
    "no viable conversion from",
    "suggest braces around initialization of subobject",
    "excess elements in scalar initializer",
    "missing field",
    "cannot initialize a member subobject of type",
];

/// Whether an error is of a copied struct. A pointer that is no other pointer is none: its space counts.
fn is_of_a_copy(error: &str) -> bool {
    let kind = COPIES.iter().find_map(|kind| error.find(kind));
    let types = kind.map(|at| error[at..].split('\'').skip(1).step_by(2).take(2));
    types.is_some_and(|mut types| !error.contains("member subobject") || !types.all(|of| of.contains('*')))
}

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
    run(&work, &text, GENERIC, |_| true)?;
    run(&work, &text, STRICT, |error| !is_of_a_copy(error))
}

/// Runs the compiler with a language; only errors that count are errors.
fn run(work: &Work, text: &str, language: &str, counts: impl Fn(&str) -> bool) -> Result<(), BuildError> {
    for compiler in COMPILERS {
        let mut command = Command::new(compiler);
        command.current_dir(&work.0).args(FLAGS).args(["-Xclang", language, "-"]);
        let Ok(mut child) = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn() else { continue };
        let sent = child.stdin.take().map(|mut input| input.write_all(text.as_bytes()));
        let output = child.wait_with_output().map_err(|reason| work.failed(reason))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let mut errors = said.lines().filter(|line| line.contains("error: "));
        let passes = output.status.success() || errors.clone().next().is_some() && !errors.any(&counts);
        return match (passes, sent) {
            (true, Some(Ok(()))) => Ok(()),
            _ => Err(BuildError::Compiler { compiler, text: counted(&said, counts) }),
        };
    }
    Err(BuildError::NoCompiler(COMPILERS))
}

/// What the compiler said, without the errors that do not count and what explains them.
fn counted(said: &str, counts: impl Fn(&str) -> bool) -> String {
    let mut out = String::new();
    let mut keep = true;
    for line in said.lines() {
        if line.contains("error: ") {
            keep = counts(line);
        }
        if keep {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}
