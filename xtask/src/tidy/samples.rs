//! For each check at least one bad sample that it must find, and good ones that it must let pass.

use super::source::Source;
use super::{CHECKS, Dependency, Package, Tree};

/// Files that are alone in a repository, and how many findings the check must make.
struct Sample {
    check: &'static str,
    files: &'static [(&'static str, &'static str)],
    hits: usize,
}

const fn sample(check: &'static str, hits: usize, files: &'static [(&'static str, &'static str)]) -> Sample {
    Sample { check, files, hits }
}

const SIMD: &str = "crates/lily-kernels/src/ops/qmm/simd.rs";
const ENGINE: &str = "crates/lily-engine/src/lib.rs";
const MAIN: &str = "crates/lily/src/main.rs";
const ROW: &str = r#"{"commit":"a","date":"2026-01-02","machine":"m","command":"c","what":"w","value":1.5,"unit":"tps","load":"idle"}"#;
const LINTS: &str = "unsafe_op_in_unsafe_fn = \"deny\"\nundocumented_unsafe_blocks = \"deny\"\nunwrap_used = \"deny\"\n\
    wildcard_enum_match_arm = \"deny\"\ndbg_macro = \"deny\"\ntodo = \"deny\"\nunimplemented = \"forbid\"\n";

static SAMPLES: &[Sample] = &[
    sample("env", 1, &[(MAIN, "fn f() { std::env::var(\"A\"); }")]),
    sample("env", 1, &[(MAIN, "use std::env::{args, var_os};")]),
    sample("env", 1, &[(ENGINE, "fn f() { env::vars(); }")]),
    sample("env", 1, &[(SIMD, "fn f() { libc::getenv(x); }")]),
    sample("env", 0, &[(MAIN, "fn f() { env!(\"A\"); std::env::args(); } // std::env::var")]),
    sample("env", 0, &[("crates/lily/src/flags.rs", "fn f() { std::env::var(\"A\"); }")]),
    sample("env", 0, &[(MAIN, "// tidy: allow(env): the test sets it\nfn f() { std::env::var(\"A\"); }")]),
    sample("forbid-unsafe", 1, &[(ENGINE, "// #![forbid(unsafe_code)]")]),
    sample("forbid-unsafe", 0, &[(ENGINE, "#![forbid(unsafe_code)]")]),
    sample("unsafe", 1, &[(MAIN, "// SAFETY: no\nfn f() { unsafe { g() } }")]),
    sample("unsafe", 1, &[("crates/lily-kernels/src/plan/arena.rs", "// SAFETY: no\nunsafe impl Send for A {}")]),
    sample("unsafe", 1, &[("crates/lily-kernels/src/ops/simd/mod.rs", "// SAFETY: no\nfn f() { unsafe { g() } }")]),
    sample(
        "unsafe",
        1,
        &[("crates/lily-kernels/src/ops/qmm/reference.rs", "// SAFETY: no\nfn f() { unsafe { g() } }")],
    ),
    sample("unsafe", 1, &[("crates/lily-kernels/src/plan/simd/x86.rs", "// SAFETY: no\nfn f() { unsafe { g() } }")]),
    sample("unsafe", 1, &[("crates/lily-kernels/src/ops/qmm/simd/x86.rs", "fn f() { unsafe { g() } }")]),
    sample("unsafe", 0, &[("crates/lily-kernels/src/ops/qmm/simd/x86.rs", "// SAFETY: no\nfn f() { unsafe { g() } }")]),
    sample("unsafe", 1, &[(SIMD, "fn f() {\n    unsafe { g() }\n}")]),
    sample("unsafe", 1, &[(SIMD, "// SAFETY: of another\nlet a = unsafe { g() };\nlet b = unsafe { g() };")]),
    sample("unsafe", 0, &[(SIMD, "// SAFETY: g asks nothing.\n#[inline]\nfn f() { unsafe { g() } }")]),
    sample("unsafe", 0, &[(SIMD, "// SAFETY: g asks nothing.\nlet a =\n    h(unsafe { g() });")]),
    sample("unsafe", 0, &[(SIMD, "type F = unsafe fn(u8);\nstruct S { f: unsafe extern \"C\" fn(u8) } // unsafe")]),
    sample("gpu-words", 2, &[(ENGINE, "struct MetalBuffer;\n// one warp each")]),
    sample("gpu-words", 0, &[(MAIN, "// metal"), (ENGINE, "// wrap")]),
    sample("wire-types", 1, &[(ENGINE, "#[derive(serde::Serialize)]\nstruct Reply;")]),
    sample("wire-types", 1, &[("crates/lily/src/bench/mod.rs", "let kind = \"chat.completion\";")]),
    sample("wire-types", 0, &[("crates/lily/src/serve/openai.rs", "let kind = \"chat.completion\"; // Serialize")]),
    sample("wire-types", 0, &[(ENGINE, "#[derive(Deserialize)]\nstruct Config; // chat.completion")]),
    sample("op-folder", 2, &[("crates/lily-kernels/src/ops/rope/mod.rs", "")]),
    sample("op-folder", 0, &[("crates/lily-kernels/src/ops/mod.rs", "")]),
    sample("module-name", 1, &[("crates/lily/src/utils.rs", "")]),
    sample("module-name", 1, &[("crates/lily/tests/common/mod.rs", "")]),
    sample("module-name", 1, &[(MAIN, "mod helpers { }")]),
    sample("module-name", 0, &[(MAIN, "mod serve; // mod utils")]),
    sample("lints", 1, &[("Cargo.toml", LINTS), ("crates/lily/Cargo.toml", "[package]")]),
    sample("lints", 7, &[("Cargo.toml", "unwrap_used = \"warn\"")]),
    sample("lints", 0, &[("Cargo.toml", LINTS), ("xtask/Cargo.toml", "[lints]\nworkspace = true\n")]),
    sample("wildcard", 1, &[(MAIN, "#[allow(clippy::wildcard_enum_match_arm)]\nfn f() {}")]),
    sample("unfinished", 3, &[(MAIN, "fn f() { todo!(); unimplemented!() }\n#[ignore]\nfn g() {}")]),
    sample("unfinished", 0, &[(MAIN, "#[ignore = \"needs the real model\"]\nfn g() {} // todo!")]),
    sample("private-path", 2, &[("README.md", concat!("in /wo", "rk/x\nand (/ro", "ot/.cache)"))]),
    sample("private-path", 0, &[("README.md", concat!("a/wo", "rk/x and ../ro", "ot/"))]),
    sample("registry", 1, &[("tools/a.sh", concat!("pip --index-url https://pypi", ".org/simple"))]),
    sample("registry", 0, &[("Cargo.lock", concat!("https://github.com/rust-lang/crates.io", "-index"))]),
    sample("decisions", 1, &[("DECISIONS.md", "- `serde`: no date")]),
    sample("decisions", 0, &[("DECISIONS.md", "- 2026-01-02 `serde`: reads JSON")]),
    sample("perf-log", 1, &[("README.md", "")]),
    sample("perf-log", 1, &[("perf/log.jsonl", "{")]),
    sample("perf-log", 1, &[("perf/log.jsonl", r#"{"commit":"a"}"#)]),
    sample("perf-log", 0, &[("perf/log.jsonl", ROW)]),
];

/// A repository of these files alone, whose one crate depends on serde.
fn tree(files: &[(&str, &str)]) -> Tree {
    let serde = Dependency { name: "serde".into(), local: false };
    let packages = vec![Package { name: "lily".into(), dependencies: vec![serde] }];
    Tree { sources: files.iter().map(|(path, text)| Source::new(path, text)).collect(), packages }
}

fn messages(tree: &Tree, check: &str) -> Vec<String> {
    let findings = tree.findings();
    findings.iter().filter(|finding| finding.check == check).map(|finding| format!("{finding:?}")).collect()
}

#[test]
fn each_sample_gets_its_findings() {
    for Sample { check, files, hits } in SAMPLES {
        let messages = messages(&tree(files), check);
        assert_eq!(messages.len(), *hits, "{check} on {files:?}: {messages:?}");
    }
}

#[test]
fn each_check_bites() {
    let elsewhere = ["edges", "function-length", "file-length"]; // the tests below
    for check in CHECKS {
        let bad = SAMPLES.iter().any(|sample| sample.check == check.name && sample.hits > 0);
        assert!(bad || elsewhere.contains(&check.name), "{} has no bad sample", check.name);
    }
}

#[test]
fn a_rotten_row_of_the_log_is_named() {
    let faults = [("\"a\"", "\"\""), ("1.5", "\"1.5\""), ("\"idle\"", "null"), ("2026-01-02", "yesterday evening")];
    for (from, to) in faults {
        let row = ROW.replacen(from, to, 1);
        assert_eq!(messages(&tree(&[("perf/log.jsonl", &row)]), "perf-log").len(), 1, "{row}");
    }
}

#[test]
fn edges_between_crates() {
    let edge = |from: &str, to: &str| {
        let dependencies = vec![Dependency { name: to.into(), local: true }];
        let packages = vec![Package { name: from.into(), dependencies }];
        messages(&Tree { sources: Vec::new(), packages }, "edges").len()
    };
    assert_eq!(edge("lily", "lily-engine"), 0);
    assert_eq!(edge("lily-engine", "lily-kernels"), 0);
    assert_eq!(edge("lily", "lily-kernels"), 1);
    assert_eq!(edge("lily-kernels", "lily-engine"), 1);
    assert_eq!(edge("xtask", "lily-engine"), 1);
    assert_eq!(edge("lily-extra", "lily"), 1);
}

#[test]
fn long_functions_and_files() {
    let body = |lines: usize| format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2));
    let count = |check: &str, path: &str, text: &str| messages(&tree(&[(path, text)]), check).len();
    assert_eq!(count("function-length", MAIN, &body(70)), 0);
    assert_eq!(count("function-length", MAIN, &body(71)), 1);
    assert_eq!(count("function-length", "a.metal", &format!("kernel void {}", &body(71)[3..])), 1);
    let python = format!("def f():\n{}", "  g()\n".repeat(70));
    assert_eq!(count("function-length", "tools/a.py", &python), 1);
    assert_eq!(count("function-length", "tools/demo-model/a.py", &python), 0);
    let waived = format!("// tidy: allow(function-length): one table\n#[test]\n{}", body(71));
    assert_eq!(count("function-length", MAIN, &waived), 0);

    let long = "// x\n".repeat(501);
    assert_eq!(count("file-length", MAIN, &long), 0);
    assert_eq!(count("file-length", "crates/lily-engine/src/model/qwen3_5.rs", &long), 1);
    assert_eq!(count("file-length", "a.metal", &"// x\n".repeat(601)), 1);
    assert_eq!(count("file-length", "NOTES.md", &"x\n".repeat(601)), 0);
}

#[test]
fn waivers_are_sound_and_needed() {
    let faults = |text: &str| messages(&tree(&[(MAIN, text)]), "waiver").len();
    assert_eq!(faults("// tidy: allow(env): the test sets it\nfn f() { std::env::var(\"A\"); }"), 0);
    assert_eq!(faults("// tidy: allow(env)\nfn f() { std::env::var(\"A\"); }"), 1);
    assert_eq!(faults("// tidy: allow(env): nothing here\nfn f() {}"), 1);
    assert_eq!(faults("// tidy: allow(no-such-check): really\nfn f() {}"), 1);
    assert_eq!(faults("//! A `tidy: allow(CHECK): REASON` comment waives.\nlet s = \"// tidy: allow(x)\";"), 0);
}
