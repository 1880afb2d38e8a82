//! Ctrl-C: the first one cancels the generation that runs, if any; otherwise it ends the program.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use lily_engine::request::CancelToken;
use tokio::signal::unix::{SignalKind, signal};

/// The exit code of a program ended by SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

type Running = Arc<Mutex<Option<CancelToken>>>;

/// Listens for SIGINT on a thread of its own.
pub struct Interrupts {
    running: Running,
}

impl Interrupts {
    /// Starts to listen; from here on Ctrl-C no longer kills by itself.
    ///
    /// # Errors
    /// The system gave no thread or no signal handler.
    pub fn listen() -> anyhow::Result<Self> {
        let running = Running::default();
        let seen = Arc::clone(&running);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("signals")?;
        let mut interrupts = {
            let _inside = runtime.enter();
            signal(SignalKind::interrupt()).context("signals")?
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                while runtime.block_on(interrupts.recv()).is_some() {
                    interrupt(&seen);
                }
            })
            .context("signals")?;
        Ok(Self { running })
    }

    /// A token that the next Ctrl-C cancels. It holds until the guard is dropped.
    pub fn guard(&self) -> Guard<'_> {
        let token = CancelToken::default();
        *lock(&self.running) = Some(token.clone());
        Guard { running: &self.running, token }
    }
}

/// Ties Ctrl-C to one generation.
pub struct Guard<'a> {
    running: &'a Running,
    /// Cancelled by Ctrl-C.
    pub token: CancelToken,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        *lock(self.running) = None;
    }
}

fn interrupt(running: &Running) {
    // Taken, not read: a second Ctrl-C finds nothing to cancel and ends a program that hangs.
    match lock(running).take() {
        Some(token) => token.cancel(),
        None => std::process::exit(EXIT_INTERRUPTED.into()),
    }
}

fn lock(running: &Running) -> std::sync::MutexGuard<'_, Option<CancelToken>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
