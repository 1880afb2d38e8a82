//! Connections: how many, how long they may dally, and how they end. What they say is the routes' business.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt;

/// Most connections; one more waits until another ends.
const MAX_CONNECTIONS: usize = 1024;
/// For a request's head, and for a connection to stay open between two requests.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// Most headers of a request, and most bytes of its head.
const MAX_HEADERS: usize = 100;
const MAX_HEAD_BYTES: usize = 64 << 10;
/// What a connection without a running answer gets at the end, to send what it has.
const FLUSH: Duration = Duration::from_millis(500);
/// After a failure to accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// Held while an answer runs, so that its connection is not closed.
#[derive(Debug, Clone)]
pub struct Busy(Arc<()>);

/// Serves until `closing` turns true, then until all running answers have ended.
pub async fn listen(listener: TcpListener, app: Router, closing: watch::Receiver<bool>) {
    let mut closed = closing.clone();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await.ok()?;
            let (stream, _) = listener.accept().await.ok()?;
            Some((place, stream))
        };
        tokio::select! {
            accepted = accepted => match accepted {
                Some((place, stream)) => {
                    let serving = connection(stream, app.clone(), closing.clone());
                    connections.spawn(async move {
                        serving.await;
                        drop(place);
                    });
                }
                None => tokio::time::sleep(PAUSE).await,
            },
            () = until(&mut closed) => break,
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Returns once `closing` is true.
pub async fn until(closing: &mut watch::Receiver<bool>) {
    if closing.wait_for(|closing| *closing).await.is_err() {
        // Nobody can say so any more.
        std::future::pending::<()>().await;
    }
}

async fn connection(stream: TcpStream, app: Router, mut closing: watch::Receiver<bool>) {
    // Small events must not wait for each other.
    let _ = stream.set_nodelay(true);
    let busy = Busy(Arc::new(()));
    let shared = busy.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(shared.clone());
        app.clone().oneshot(request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME);
    builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD_BYTES);
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    tokio::select! {
        // However a connection ends, nobody is there to be told.
        _ = serving.as_mut() => return,
        () = until(&mut closing) => serving.as_mut().graceful_shutdown(),
    }
    loop {
        let idle = Arc::strong_count(&busy.0) <= 2; // this one and the service's
        tokio::select! {
            _ = serving.as_mut() => return,
            // What is only half said would hold up the end as long as it likes.
            () = tokio::time::sleep(FLUSH) => if idle && Arc::strong_count(&busy.0) <= 2 {
                return;
            },
        }
    }
}
