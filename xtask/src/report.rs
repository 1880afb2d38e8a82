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
    /// Why tests counted as ignored did not run.
    pub reasons: BTreeSet<String>,
    /// Failed tests, each with its binary.
    pub failures: BTreeSet<String>,
    /// Name of the binary that runs now.
    binary: String,
    /// Inside the list of failed tests that ends a binary's output.
    listing: bool,
}

impl Digest {
    /// Takes one line of output. A test may have left text without a newline in front of what counts.
    pub fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("    ").filter(|name| self.listing && !name.contains(' ')) {
            self.failures.insert(format!("{} {name}", self.binary));
            return;
        }
        self.listing = line.ends_with("failures:");
        if let Some(at) = line.find("test result: ") {
            self.result(&line[at..]);
        } else if let Some(path) = line.trim_start().strip_prefix("Running ") {
            let file = path.rsplit_once('/').map_or(path, |(_, file)| file);
            self.binary = file.rsplit_once('-').map_or(file, |(name, _)| name).to_owned();
        } else if let Some(name) = line.trim_start().strip_prefix("Doc-tests ") {
            self.binary = format!("{name} (doc)");
        } else if let Some(at) = line.find("SKIP ").filter(|_| !self.binary.is_empty()) {
            self.skip(line[at..].trim());
        }
    }

    /// Adds `SKIP <name>: <reason>`; other sentences with that word are none.
    fn skip(&mut self, line: &str) {
        if line.contains(": ") {
            self.skips.insert(line.to_owned());
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
            "note: SKIP of the compiler: none\n\
             Running unittests src/lib.rs (target/release/deps/lily-5f0c)\n\
             SKIP golden::real: no ../shared/oracle\n\
             test golden::real ... SKIP golden::real: no ../shared/oracle\n\
             text without newlineSKIP gpu: no device\n\
             the word SKIP inside a sentence\n\
             test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        );
        assert_eq!(digest.skips.len(), 2);
        assert_eq!(digest.really_passed(), 3);
    }

    #[test]
    fn failed_tests_are_named() {
        let digest = digest(
            "     Running unittests src/lib.rs (target/release/deps/lily_kernels-5f0c)\n\
             test plan::arena ... FAILED\n\
             failures:\n\
             \x20   plan::arena\n\
             \n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n\
             \x20   no::name\n",
        );
        assert_eq!(digest.failures.into_iter().collect::<Vec<_>>(), ["lily_kernels plan::arena"]);
    }
}
