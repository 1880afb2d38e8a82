//! Ctrl-C: the first one cancels the generation that runs, if any; otherwise it ends the program.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use lily_engine::request::CancelToken;
use tokio::signal::unix::{SignalKind, signal};

/// The exit code of a program ended by SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;
/// The exit code of a program ended by SIGTERM.
const EXIT_TERMINATED: u8 = 143;

/// From here on SIGINT and SIGTERM end the program after some last words. For work that may be cut anywhere.
///
/// # Errors
/// The system gave no thread or no signal handler.
pub fn exit_on_signals(last_words: impl Fn() + Send + 'static) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("signals")?;
    let (mut interrupts, mut terminations) = {
        let _inside = runtime.enter();
        let signal = |kind| signal(kind).context("signals");
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let wait = move || {
        let code = runtime.block_on(async {
            tokio::select! {
                _ = interrupts.recv() => EXIT_INTERRUPTED,
                _ = terminations.recv() => EXIT_TERMINATED,
            }
        });
        last_words();
        std::process::exit(code.into());
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).context("signals")?;
    Ok(())
}

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
