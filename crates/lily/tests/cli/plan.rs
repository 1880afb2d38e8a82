//! `lily plan`: what a step of the 35B model does on each kind of device, from its config alone.

use std::path::Path;

use super::{run, stderr, stdout};

/// The report for a device and a step, which must succeed.
fn plan(device: &str, more: &[&str]) -> String {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/checkpoint/qwen3_6_35b_a3b_4bit.config.json");
    let config = config.to_string_lossy();
    let output = run(&[&["plan", &config, "--device", device][..], more].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).to_owned()
}

/// The number after `name` at the beginning of a line.
fn number(report: &str, name: &str) -> usize {
    let line = report.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {report}"));
    line[name.len()..].split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn plans_on_metal_are_as_recorded() {
    insta::assert_snapshot!("decode_on_metal", plan("metal", &["--context", "4096"]));
    insta::assert_snapshot!("prefill_on_metal", plan("metal", &["--context", "4096", "--tokens", "2048"]));
}

/// What a GPU needs of a token's plan: few dispatches, few barriers, work for all of its cores, no bytes without need.
#[test]
fn a_token_on_metal_takes_few_dispatches_and_the_bytes_of_the_specification() {
    for context in [0_usize, 300, 511, 512, 4096, 32_766, 32_767, 33_000, 131_071, 262_143] {
        let report = plan("metal", &["--context", &context.to_string()]);
        assert!(number(&report, "dispatches:") <= 340, "{report}");
        assert!(number(&report, "sequential stages:") <= 320, "{report}");
        assert!(number(&report, "threadgroups of a dispatch over 1 MiB:") >= 40, "{report}");
        let total = report.lines().find(|l| l.starts_with("total ")).unwrap_or_default();
        let bytes: usize = total.split_whitespace().skip(2).take(2).filter_map(|n| n.parse::<usize>().ok()).sum();
        // SPEC §4: weights, both states read and written, 20,480 bytes of cache a position.
        let want = 1_669_561_728 + 125_829_120 + 2_949_120 + 20_480 * (context + 1);
        let over = bytes as f64 / want as f64 - 1.0;
        println!("{context} positions: {bytes} bytes, {:.2} % over the specification", 100.0 * over);
        assert!((0.0..0.03).contains(&over), "{context}: {bytes} bytes, {want} expected");
    }
}

#[test]
fn every_switch_of_a_device_changes_a_plan() {
    for device in ["cpu", "metal"] {
        let refused = run(&["plan", "--device", device, "--without", "no-such-switch"]);
        let names = stderr(&refused).trim().rsplit_once("there are ").map(|(_, names)| names.to_owned());
        let names = names.unwrap_or_else(|| panic!("{}", stderr(&refused)));
        let body = |step: &[&str]| {
            let report = plan(device, &[&["--dispatches", "--context", "33000"][..], step].concat());
            report.lines().filter(|l| !l.starts_with("switched off")).collect::<Vec<_>>().join("\n")
        };
        let steps: [&[&str]; 2] = [&[], &["--tokens", "2048"]];
        let on = steps.map(body);
        for name in names.split(", ") {
            let off = steps.map(|step| body(&[step, &["--without", name]].concat()));
            assert!(on != off, "{device}: {name} changes nothing");
        }
    }
}
