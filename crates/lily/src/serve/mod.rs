//! `lily serve`: the APIs of OpenAI and Anthropic on a local port. This file owns the life of the server; `routes` has
//! the addresses, `wire` the formats, `guard` who may ask.

mod call;
mod document;
mod error;
mod generation;
mod guard;
mod listen;
mod log;
mod metrics;
mod observe;
mod page;
mod routes;
mod sse;
#[cfg(test)]
mod tests;
mod tokens;
mod wire;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use lily_engine::budget::Bytes;
use lily_engine::schedule::EngineThread;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::flags::ServeFlags;
use crate::terminal::note;
use guard::{Guard, Hosts};
use routes::Server;

/// What running answers get after the first signal.
const GRACE: Duration = Duration::from_secs(10);
/// What connections get to pass on the end of a cut answer.
const LINGER: Duration = Duration::from_secs(1);
/// How often the engine is looked after.
const ROUND: Duration = Duration::from_millis(100);

/// Runs the command until SIGINT or SIGTERM: running answers then have ten seconds, a second signal cuts them.
///
/// # Errors
/// One sentence: no model, no such address, the port is taken.
pub fn serve(flags: &ServeFlags) -> anyhow::Result<ExitCode> {
    log::start(flags.log_format, flags.log_level);
    let keys = flags.keys()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2) // sockets only; the cores are the engine's
        .enable_all()
        .build()
        .context("tokio")?;
    // Bound before the model loads: a taken port should not cost a minute.
    let bind = TcpListener::bind((flags.host.trim_matches(['[', ']']), flags.port));
    let listener = runtime.block_on(bind).with_context(|| format!("{}:{}", flags.host, flags.port))?;
    let options = flags.over(crate::engine_options(&flags.model)?);
    let (engine, facts) = EngineThread::start(flags.queue.get(), move || {
        let engine = crate::open_engine(&options)?;
        let facts = (engine.info(), engine.default_sampling(), engine.preparer());
        Ok((engine, facts))
    })?;
    let address = listener.local_addr().context("address")?;
    let (model, device) = (&facts.0.name, &facts.0.device);
    note(format_args!("serving {model} on http://{address}/v1 ({device}); Ctrl-C stops"));
    note(format_args!(
        "{} at the same time (--parallel); earlier turns and requests side by side take at most {} beyond one context of \
         {} positions (--session-memory)",
        flags.parallel,
        Bytes(facts.0.session_bytes),
        facts.0.context_length
    ));
    crate::flags::tell_ready();
    let (close, closing) = watch::channel(false);
    let server = Server { log_prompts: flags.log_prompts, ..Server::new(engine, facts, closing)? };
    let server = Arc::new(server);
    let guard = Guard { hosts: Hosts::new(&flags.host, &flags.allow_host), keys };
    let end = runtime.block_on(until_the_end(listener, Arc::clone(&server), guard, &close));
    runtime.shutdown_timeout(LINGER);
    match end? {
        End::Whole => return Ok(ExitCode::SUCCESS),
        End::Cut => {
            note("stopped; an answer was cut");
            // It keeps what was computed, on the disk if it was told one.
            server.engine.ended_within(GRACE);
        }
        End::Failed => note("stopped; the engine failed"),
    }
    // Dropped, it would wait for the engine's step to end; the process need not.
    std::mem::forget(server);
    Ok(ExitCode::FAILURE)
}

/// How the server ended.
enum End {
    /// Every answer could end.
    Whole,
    /// One could not.
    Cut,
    /// The engine failed.
    Failed,
}

/// Serves until a signal, or until the engine fails.
async fn until_the_end(
    listener: TcpListener,
    server: Arc<Server>,
    guard: Guard,
    close: &watch::Sender<bool>,
) -> anyhow::Result<End> {
    let mut signals = Signals::listen()?;
    let app = routes::router(Arc::clone(&server), guard);
    let mut serving = tokio::spawn(listen::listen(listener, app, server.closing.clone()));
    tokio::select! {
        () = signals.next() => {}
        () = failure(&server) => {
            // The callers were told; what they were told is on its way.
            close.send_replace(true);
            let _ = tokio::time::timeout(LINGER, &mut serving).await;
            return Ok(End::Failed);
        }
    }
    crate::flags::tell_stopping();
    note("stopping; running answers have ten seconds, another Ctrl-C cuts them");
    close.send_replace(true);
    tokio::select! {
        ended = &mut serving => {
            ended.context("server")?;
            return Ok(if server.engine.is_alive() { End::Whole } else { End::Failed });
        }
        () = tokio::time::sleep(GRACE) => {}
        () = signals.next() => {}
    }
    server.engine.stop();
    // Connections that still hang are dropped with the runtime.
    let _ = tokio::time::timeout(LINGER, serving).await;
    Ok(End::Cut)
}

/// Returns when the engine has failed.
async fn failure(server: &Server) {
    while server.engine.is_alive() {
        tokio::time::sleep(ROUND).await;
    }
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let signal = |kind| signal(kind).context("signals");
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
