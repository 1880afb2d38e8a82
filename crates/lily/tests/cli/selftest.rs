//! `lily selftest` on each device of this build that tests can wait for.

use super::{FRANCE, run, stderr, stdout};

#[test]
fn selftest_says_whether_all_was_right() {
    let devices: &[&str] = if cfg!(feature = "software-metal") { &["cpu", "software-metal"] } else { &["cpu"] };
    if devices.len() == 1 {
        println!("SKIP selftest of the Metal device in software: this build has none");
    }
    for device in devices {
        let output = run(&["selftest", "--device", device]);
        assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
        let text = stdout(&output);
        let last = text.lines().last().unwrap_or_default();
        assert!(last.contains(" cases and one answer, 0 wrong, ") && last.ends_with("s: all right"), "{text}");
        for op in ["linear ", "gated_delta_norm ", "sample "] {
            let line = text.lines().find(|line| line.starts_with(op)).unwrap_or_default();
            assert!(line.contains(" cases, 0 wrong, largest error "), "{op}: {text}");
        }
        assert!(text.contains(FRANCE));
    }
}

#[test]
fn an_answer_on_the_device_in_software_is_that_of_the_cpu() {
    if !cfg!(feature = "software-metal") {
        println!("SKIP answers on the Metal device in software: this build has none");
        return;
    }
    for prompt in [FRANCE, "What is 27 + 58?"] {
        let ask = |device| run(&["run", "--device", device, "--no-think", "--temperature", "0", prompt]);
        let (cpu, metal) = (ask("cpu"), ask("software-metal"));
        assert!(metal.status.success(), "{}", stderr(&metal));
        assert_eq!(stdout(&metal), stdout(&cpu), "{prompt}");
    }
}
