//! How long a pull bears with a network that fails: which failures may pass, and how long to wait for it.

use std::time::Duration;

use anyhow::anyhow;

use crate::terminal::progress::Report;

/// Waits and bounds.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Failures in a row that are borne.
    pub failures: u32,
    /// Before the second attempt; each further one waits twice as long.
    pub first_wait: Duration,
    /// The longest wait of our own choice.
    pub longest_wait: Duration,
    /// The longest wait that the server may ask for.
    pub longest_asked: Duration,
    /// To find and reach a host.
    pub connect: Duration,
    /// Without a byte from a host that was reached.
    pub stall: Duration,
    /// Bytes after which the failures before them are forgotten.
    pub progress: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            failures: 6,
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(30),
            longest_asked: Duration::from_secs(600),
            connect: Duration::from_secs(20),
            stall: Duration::from_secs(30),
            progress: 1 << 20,
        }
    }
}

/// Why one attempt failed.
#[derive(Debug)]
pub enum Failure {
    /// May pass by itself; the server may have said when.
    Passing {
        /// For people.
        reason: String,
        /// The server's wish.
        wait: Option<Duration>,
    },
    /// No host of that name, or nobody there. It passes if it worked a moment ago.
    Unreachable(String),
    /// Trying again is no use.
    Final(anyhow::Error),
}

impl Failure {
    /// A failure that may pass, when nobody said when.
    pub fn passing(reason: impl Into<String>) -> Self {
        Self::Passing { reason: reason.into(), wait: None }
    }
}

/// Counts failures in a row.
pub struct Patience<'a> {
    limits: &'a Limits,
    report: &'a dyn Report,
    failures: u32,
    gained: u64,
}

impl<'a> Patience<'a> {
    /// Nothing has failed yet.
    pub fn new(limits: &'a Limits, report: &'a dyn Report) -> Self {
        Self { limits, report, failures: 0, gained: 0 }
    }

    /// Bytes came. Enough of them, and a bad line is only a slow one.
    pub fn gain(&mut self, bytes: u64) {
        self.gained += bytes;
        if self.gained >= self.limits.progress {
            (self.failures, self.gained) = (0, 0);
        }
    }

    /// Waits for the failure to pass.
    ///
    /// # Errors
    /// It will not pass, or it did not often enough.
    pub fn bear(&mut self, failure: Failure, what: &str) -> anyhow::Result<()> {
        let (reason, asked) = match failure {
            Failure::Passing { reason, wait } => (reason, wait),
            Failure::Unreachable(reason) => (reason, None),
            Failure::Final(error) => return Err(error),
        };
        self.failures += 1;
        if self.failures > self.limits.failures {
            return Err(anyhow!(
                "{what}: {reason}; gave up after {} attempts, the next pull goes on from here",
                self.failures
            ));
        }
        let doubled = self.limits.first_wait.saturating_mul(1 << (self.failures - 1).min(16));
        let wait = asked.unwrap_or(doubled.min(self.limits.longest_wait));
        if wait > self.limits.longest_asked {
            return Err(anyhow!("{what}: {reason}; the server asks to come back in {} s", wait.as_secs()));
        }
        self.report.note(&format!("{what}: {reason}; trying again in {:.0} s", wait.as_secs_f64()));
        std::thread::sleep(wait);
        Ok(())
    }
}
