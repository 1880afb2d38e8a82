//! `lily bench` with the built-in model and tiny lengths: the numbers are there and make sense.

use serde_json::Value;

use super::support::bare;
use super::{run, stderr, stdout};

#[test]
fn bench_measures_each_length_apart() {
    let sizes = ["--prompt-tokens", "3,20", "--tokens", "4", "--rounds", "3"];
    let args = [&["bench", "--model", "lily-demo", "--threads", "1", "--json"][..], &sizes].concat();
    let output = run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_str(stdout(&output)).expect("one JSON object");
    assert_eq!((&report["model"], &report["precision"]), (&"lily-demo".into(), &"fast".into()));
    for (name, want) in [("tokens", 4), ("rounds", 3), ("threads", 1)] {
        assert_eq!(report[name], want, "{name}");
    }
    assert!(report["device"].as_str().is_some_and(|device| device.contains("1 thread")), "{report}");
    assert!(report["load_ms"].as_f64().is_some_and(|load| load > 0.0) && report["weight_bytes"].is_u64());
    let rows = report["results"].as_array().expect("rows");
    assert_eq!(rows.iter().map(|row| row["prompt_tokens"].as_u64()).collect::<Vec<_>>(), [Some(3), Some(20)]);
    for name in ["prefill_tps", "decode_tps", "first_token_ms"] {
        for row in rows {
            let [min, median, max] = ["min", "median", "max"].map(|part| row[name][part].as_f64().expect(name));
            assert!(0.0 < min && min <= median && median <= max, "{name}: {row}");
        }
    }
    if cfg!(target_os = "linux") {
        let bytes = |name: &str| report[name].as_u64().expect(name);
        assert!(bytes("peak_resident_bytes") > bytes("anonymous_bytes") && report["load_average"].is_f64());
    }
}

#[test]
fn bench_prints_a_table_and_knows_its_bounds() {
    let output = run(&["bench", "--model", "lily-demo", "--prompt-tokens", "5", "--tokens", "1", "--rounds", "1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let last = stdout(&output).lines().last().unwrap_or_default();
    assert!(last.trim_start().starts_with("5 ") && last.contains('–'), "{}", stdout(&output));
    for length in ["100000000", "18446744073709551615"] {
        let output = run(&["bench", "--model", "lily-demo", "--prompt-tokens", length]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).starts_with(&format!("lily: --prompt-tokens {length} with ")), "{}", stderr(&output));
    }
    assert_eq!(run(&["bench", "--rounds", "0"]).status.code(), Some(2));
}

/// `script` gives the program a terminal; what is seen there comes out of it, stdout and stderr in one.
fn at_a_terminal(term: &str, command: &str) -> Option<String> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let args = ["-q", "-e", "-c", command];
    let output = bare("script").args(args).arg(file.path()).env("TERM", term).output().ok()?;
    let seen = stdout(&output).to_owned();
    // Of another system, with other flags, or none at all.
    (output.status.success() && !seen.is_empty()).then_some(seen)
}

#[test]
fn bench_tells_a_person_which_round_runs_and_a_pipe_nothing() {
    let args = ["bench", "--model", "lily-demo", "--prompt-tokens", "9,300", "--tokens", "2", "--rounds", "2"];
    let piped = run(&args);
    assert_eq!((piped.status.code(), stderr(&piped)), (Some(0), ""));
    let command = [&[env!("CARGO_BIN_EXE_lily")][..], &args].concat().join(" ");
    let (Some(bar), Some(plain)) = (at_a_terminal("xterm", &command), at_a_terminal("dumb", &command)) else {
        return println!("SKIP bench_tells_a_person_which_round_runs_and_a_pipe_nothing: no `script` gives a terminal");
    };
    for words in ["9 prompt tokens: warming up", "300 prompt tokens: round 2 of 2"] {
        assert!(plain.contains(&format!("lily: {words}\r\n")), "{plain:?}");
    }
    // A bar that is drawn too often leaves some out.
    assert!(bar.contains(" prompt tokens: ") && bar.contains("/6") && !plain.contains('\x1b'), "{bar:?}");
    assert!(!bar.split("first token ms").nth(1).expect("a table").contains("round"), "{bar:?}");
}
