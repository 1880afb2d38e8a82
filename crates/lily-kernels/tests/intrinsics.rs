//! Every intrinsic of the kernels is inlined. One that is not has become a function of its own, called for each vector:
//! the result is right and the kernel twenty times slower. It happens where code inside a closure was not compiled for
//! the instruction set of the function around it.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code")]

use lily_kernels::check::{cases, check_case, unsupported};
use lily_kernels::cpu::CpuBackend;
use lily_kernels::op::OpKind;
use object::{Object, ObjectSymbol};

#[test]
fn no_intrinsic_is_a_function_of_its_own() {
    // Uses every kernel, so that they are part of this program.
    for &kind in OpKind::ALL {
        let case = cases(kind).into_iter().next().unwrap();
        let mut device = CpuBackend::new(Some(1)).unwrap();
        match unsupported(&case, &mut device).unwrap() {
            Some(reason) => println!("SKIP {} on the CPU: {reason}", kind.name()),
            None => drop(check_case(&case, &mut device).unwrap()),
        }
    }
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let file = object::File::parse(&*program).unwrap();
    let names: Vec<&str> = file.symbols().filter_map(|symbol| symbol.name().ok()).collect();
    if !names.iter().any(|name| name.contains("lily_kernels")) {
        println!("SKIP intrinsics: this program has no symbols");
        return;
    }
    // `_xgetbv` belongs to the detection of features, and runs once.
    let called = |name: &&&str| name.contains("core_arch") && !name.contains("_xgetbv");
    let called: Vec<_> = names.iter().filter(called).collect();
    assert!(called.is_empty(), "{called:#?}");
}
