//! The strict front end refuses what Metal refuses: every file of `refused/`, each for its own reason.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code")]

use software_metal::strict;

#[test]
fn every_file_of_refused_is_refused_and_nothing_else() {
    if !strict::is_possible() {
        println!("SKIP the strict front end: there is no clang");
        return;
    }
    let good = "#include <metal_stdlib>\nusing namespace metal;\n\
        kernel void k(device float* x [[buffer(0)]], constant uint& n [[buffer(1)]], uint i [[thread_position_in_grid]]) \
        { if (i < n) { x[i] = precise::exp(x[i]); } }\n";
    strict::check("good.metal", good).unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/refused");
    let mut files = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let source = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let refusal = strict::check(&name, &source).err().map(|e| e.to_string());
        let first = refusal.as_deref().and_then(|text| text.lines().find(|line| line.contains("error"))).unwrap_or("");
        println!("{name}: {first}");
        assert!(first.contains(&name), "{name}: {refusal:?}");
        files += 1;
    }
    println!("PROOF files that the strict front end must refuse: {files}, all refused");
    assert!(files >= 15);
}
