//! The executor runs kernels as Metal would, and reports each kind of fault.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code")]

use software_metal::Mode;
use software_metal::library::{Binding, Launch, Library, Report};
use software_metal::translate::translate;

const FAULTS: &str = include_str!("faults.metal");

/// Runs a kernel of `groups` threadgroups of 64 threads on two buffers of 64 words.
fn run(library: &Library, kernel: &str, groups: u32, seed: u64, without_barrier: Option<u32>) -> (Report, Vec<u32>) {
    let (mut first, mut second) = (vec![0u32; 64], vec![0u32; 64]);
    let binding =
        |index, words: &mut Vec<u32>| Binding { index, at: words.as_mut_ptr().cast(), bytes: 256, writable: true };
    let bindings = [binding(0, &mut first), binding(1, &mut second)];
    let (groups, threads) = ([groups, 1, 1], [64, 1, 1]);
    let launch = Launch {
        kernel,
        groups,
        threads,
        bindings: &bindings,
        constants: &[],
        memories: &[],
        seed,
        without_barrier,
        count: false,
    };
    // SAFETY: both buffers have 256 bytes, which nothing else uses; the library is checked.
    let report = unsafe { library.launch(&launch) };
    (report, first)
}

fn kinds(report: &Report) -> Vec<&str> {
    report.problems.iter().map(|p| p.kind.as_str()).collect()
}

#[test]
fn each_fault_is_reported_by_its_name_in_any_order_of_threads() {
    let library = Library::build("faults.metal", FAULTS, Mode::Checked { seed: 0 }).unwrap();
    let faults = [
        ("race_in_threadgroup_memory", "race"),
        ("barrier_for_other_memory", "race"),
        ("barrier_for_no_memory", "race"),
        ("simdgroup_barrier_between_simdgroups", "race"),
        ("race_between_threadgroups", "race"),
        ("plain_read_of_an_atomic", "race"),
        ("write_past_the_end", "out of bounds"),
        ("read_past_the_end", "out of bounds"),
        ("divergent_simd_operation", "divergent simd operation"),
        ("partial_simd_operation", "partial simd operation"),
        ("divergent_barrier", "divergent barrier"),
        ("barrier_against_simd_operation", "partial simd operation"),
        ("barrier_after_exit", "barrier after exit"),
        ("misaligned_vector", "misaligned access"),
        ("misaligned_factor", "misaligned access"),
        ("uninitialised_threadgroup_memory", "uninitialised read"),
        ("too_much_threadgroup_memory", "threadgroup memory"),
    ];
    for (kernel, kind) in faults {
        let groups = if kernel == "race_between_threadgroups" { 2 } else { 1 };
        for seed in 0..4 {
            let (report, _) = run(&library, kernel, groups, seed, None);
            assert!(kinds(&report).contains(&kind), "{kernel}, seed {seed}: {:?}", report.problems);
        }
    }
    println!("PROOF kernels with a planted fault: {}, all reported by name in 4 thread orders", faults.len());
    for (kernel, want) in [("ordered_by_threadgroup_barrier", 63), ("ordered_by_simdgroup_barrier", 1)] {
        for seed in 0..4 {
            let (report, out) = run(&library, kernel, 1, seed, None);
            assert!(report.problems.is_empty() && report.accesses > 0, "{kernel}: {:?}", report.problems);
            assert!((0..64).all(|i: u32| out[i as usize] == i ^ want), "{kernel}: {out:?}");
        }
    }
}

#[test]
fn a_barrier_that_is_left_out_is_missed() {
    let library = Library::build("faults.metal", FAULTS, Mode::Checked { seed: 0 }).unwrap();
    for (kernel, text) in [
        ("ordered_by_threadgroup_barrier", "threadgroup_barrier(mem_flags::mem_threadgroup)"),
        ("ordered_by_simdgroup_barrier", "simdgroup_barrier(mem_flags::mem_threadgroup)"),
    ] {
        let body = FAULTS.find(&format!("kernel void {kernel}(")).unwrap();
        let at = body + FAULTS[body..].find(text).unwrap();
        let line = FAULTS[..at].matches('\n').count() as u32 + 1;
        let (report, _) = run(&library, kernel, 1, 1, Some(line));
        assert!(kinds(&report).contains(&"race"), "{kernel}: {:?}", report.problems);
    }
}

#[test]
fn what_a_launch_touched_is_told_by_the_byte() {
    let library = Library::build("faults.metal", FAULTS, Mode::Checked { seed: 0 }).unwrap();
    let (report, _) = run(&library, "ordered_by_simdgroup_barrier", 1, 0, None);
    assert_eq!(report.touched.len(), 1);
    assert_eq!((report.touched[0].index, report.touched[0].first), (0, 0));
    assert_eq!(report.touched[0].bits, [2; 256]);
}

#[test]
fn sources_that_break_a_rule_are_refused_with_their_line() {
    let refused = |body: &str| {
        let source = format!("#include <metal_stdlib>\nusing namespace metal;\n{body}");
        translate("a.metal", &source).unwrap_err().to_string()
    };
    for (body, sentence) in [
        ("kernel void f(device uint* x) {}", "a.metal:3: a parameter of kernel f has no attribute"),
        ("kernel void f(uint x [[position]]) {}", "a.metal:3: kernel f: unknown attribute [[position]]"),
        (
            "kernel void f(device uint* x [[buffer(1)]], device uint* y [[buffer(1)]]) {}",
            "a.metal:3: kernel f binds {'b', 1} twice",
        ),
        ("\nthreadgroup uint x[3];", "a.metal:4: a threadgroup variable stands outside of a kernel's body"),
        (
            "kernel void f(device uint* x [[buffer(0)]]) { threadgroup float y[2 * 3], z; }",
            "a.metal:3: a threadgroup array is declared alone and without a value",
        ),
        (
            "kernel void f(device uint* x [[buffer(0)]]) { threadgroup float y; }",
            "a.metal:3: a threadgroup variable is an array or a parameter",
        ),
        ("kernel void f(device uint* x [[buffer(0)]]);", "a.metal:3: kernel f is declared and not defined"),
        (
            "template [[host_name(\"f\")]] kernel decltype(f<uint>) f<int>;",
            "a.metal:3: decltype(f < uint >) instantiates f < int >",
        ),
        ("using namespace metal;", "a.metal:1: a file says `using namespace metal;` once"),
    ] {
        assert_eq!(refused(body), sentence);
    }
}
