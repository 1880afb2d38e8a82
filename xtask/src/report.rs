//! Reads what `cargo test -- --nocapture` prints: the result line of each test binary, the names of failed tests, and
//! the `SKIP <name>: <reason>` lines of tests whose outside material is absent.

use std::collections::BTreeSet;

/// Tests of all binaries together.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Digest {
    /// Tests that ran to their end, those that skipped themselves included.
    pub passed: usize,
    /// Tests that failed.
    pub failed: usize,
    /// Tests marked `#[ignore]`.
    pub ignored: usize,
    /// `SKIP` lines, each once.
    pub skips: BTreeSet<String>,
    /// Names of failed tests.
    pub failures: BTreeSet<String>,
}

impl Digest {
    /// Takes one line of output. A test may have left text without a newline in front of it.
    pub fn line(&mut self, line: &str) {
        if let Some(at) = line.find("test result: ") {
            self.result(&line[at..]);
        } else if let Some(at) =
            line.find("SKIP ").filter(|&at| line[..at].trim().is_empty() || line.starts_with("test "))
        {
            self.skips.insert(line[at..].trim().to_owned());
        } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failures.insert(name.to_owned());
        }
    }

    /// Adds `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn result(&mut self, line: &str) {
        for part in line.split([';', '.']) {
            let mut words = part.split_whitespace();
            let Some(count) = words.next().and_then(|word| word.parse::<usize>().ok()) else { continue };
            match words.next() {
                Some("passed") => self.passed += count,
                Some("failed") => self.failed += count,
                Some("ignored") => self.ignored += count,
                _ => {}
            }
        }
    }

    /// Tests that passed and did not skip themselves.
    pub fn really_passed(&self) -> usize {
        self.passed.saturating_sub(self.skips.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(text: &str) -> Digest {
        let mut digest = Digest::default();
        text.lines().for_each(|line| digest.line(line));
        digest
    }

    #[test]
    fn counts_are_summed_over_binaries() {
        let digest = digest(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.10s\n\
             left by a test without newlinetest result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out",
        );
        assert_eq!((digest.passed, digest.failed, digest.ignored), (5, 1, 1));
    }

    #[test]
    fn a_skip_is_no_pass_and_counts_once() {
        let digest = digest(
            "SKIP golden::real: no ../shared/oracle\n\
             test golden::real ... SKIP golden::real: no ../shared/oracle\n\
             SKIP gpu: no device\n\
             the word SKIP inside a sentence\n\
             test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        );
        assert_eq!(digest.skips.len(), 2);
        assert_eq!(digest.really_passed(), 3);
    }

    #[test]
    fn failed_tests_are_named() {
        let digest = digest("test plan::arena ... FAILED\ntest plan::fuse ... ok");
        assert_eq!(digest.failures.into_iter().collect::<Vec<_>>(), ["plan::arena"]);
    }
}
