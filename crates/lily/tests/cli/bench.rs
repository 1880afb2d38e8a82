//! `lily bench` with the built-in model and tiny lengths: the numbers are there and make sense.

use serde_json::Value;

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
