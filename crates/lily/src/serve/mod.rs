//! `lily serve`: the OpenAI chat API on a local port. This file owns the life of the server; `routes` has the
//! addresses, `wire` the formats, `guard` who may ask.

mod error;
mod generation;
mod guard;
mod page;
mod routes;
mod sse;
#[cfg(test)]
mod tests;
mod wire;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use lily_engine::schedule::EngineThread;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::flags::ServeFlags;
use crate::terminal::note;
use guard::Hosts;
use routes::Server;

/// Well under the shortest idle timeouts of clients and proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Long enough for tokenizing and rendering, short enough not to look dead.
const FIRST_WORD: Duration = Duration::from_secs(1);
/// What running answers get after the first signal.
const GRACE: Duration = Duration::from_secs(10);
/// What connections get to pass on the end of a cut answer.
const LINGER: Duration = Duration::from_secs(1);

/// Runs the command until SIGINT or SIGTERM: running answers then have ten seconds, a second signal cuts them.
///
/// # Errors
/// One sentence: no model, no such address, the port is taken.
pub fn serve(flags: &ServeFlags) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2) // sockets only; the cores are the engine's
        .enable_all()
        .build()
        .context("tokio")?;
    // Bound before the model loads: a taken port should not cost a minute.
    let bind = TcpListener::bind((flags.host.trim_matches(['[', ']']), flags.port));
    let listener = runtime.block_on(bind).with_context(|| format!("{}:{}", flags.host, flags.port))?;
    let options = crate::engine_options(&flags.model)?;
    let (engine, (model, defaults, preparer)) = EngineThread::start(flags.queue.get(), move || {
        let engine = crate::open_engine(&options)?;
        let facts = (engine.info(), engine.default_sampling(), engine.preparer());
        Ok((engine, facts))
    })?;
    let address = listener.local_addr().context("address")?;
    note(format_args!("serving {} on http://{address}/v1 ({}); Ctrl-C stops", model.name, model.device));
    let created = routes::unix_time_s();
    let server =
        Arc::new(Server { engine, preparer, model, defaults, created, keep_alive: KEEP_ALIVE, first_word: FIRST_WORD });
    let hosts = Hosts::new(&flags.host, &flags.allow_host);
    let served = runtime.block_on(until_signalled(listener, Arc::clone(&server), hosts));
    runtime.shutdown_timeout(LINGER);
    if served? {
        return Ok(ExitCode::SUCCESS);
    }
    note("stopped; an answer was cut");
    // Dropped, it would wait for the engine's step to end; the process need not.
    std::mem::forget(server);
    Ok(ExitCode::FAILURE)
}

/// Serves until a signal; returns whether every answer could end.
async fn until_signalled(listener: TcpListener, server: Arc<Server>, hosts: Hosts) -> anyhow::Result<bool> {
    let mut signals = Signals::listen()?;
    let (drain, mut draining) = tokio::sync::watch::channel(false);
    let app = routes::router(Arc::clone(&server), hosts);
    let serving = axum::serve(listener, app).with_graceful_shutdown(async move {
        // The other end lives as long as this function.
        let _ = draining.changed().await;
    });
    let mut serving = tokio::spawn(serving.into_future());
    signals.next().await;
    note("stopping; running answers have ten seconds, another Ctrl-C cuts them");
    let _ = drain.send(true);
    tokio::select! {
        ended = &mut serving => return ended.context("server")?.map(|()| true).context("server"),
        () = tokio::time::sleep(GRACE) => {}
        () = signals.next() => {}
    }
    server.engine.stop();
    // Connections that still hang are dropped with the runtime.
    let _ = tokio::time::timeout(LINGER, serving).await;
    Ok(false)
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
