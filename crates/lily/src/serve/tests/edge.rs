//! The edge of the server: keys, origins, ids, sockets that dally, and how it ends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::super::guard::{Guard, Hosts};
use super::super::listen::listen;
use super::super::routes::{Server, router};
use super::{app, ask, request, send, server, until};

fn locked() -> Router {
    let keys = vec!["right".to_owned(), "other".to_owned()];
    router(server(4).0, Guard { hosts: Hosts::new("127.0.0.1", &[]), keys })
}

fn with(mut request: Request<Body>, headers: &[(&str, &str)]) -> Request<Body> {
    for (name, value) in headers {
        request.headers_mut().insert(name.parse::<axum::http::HeaderName>().unwrap(), value.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn a_key_is_asked_for_where_there_are_keys() {
    let app = locked();
    for (headers, want) in [
        (vec![], 401),
        (vec![("authorization", "Bearer wrong")], 401),
        (vec![("authorization", "Basic right")], 401),
        (vec![("authorization", "Bearer right")], 200),
        (vec![("authorization", "bearer  other")], 200),
        (vec![("x-api-key", "right")], 200),
        (vec![("authorization", "Bearer wrong"), ("x-api-key", "right")], 200),
        (vec![("x-api-key", "")], 401),
    ] {
        let (status, _, text) = send(&app, with(request("GET", "/v1/models", ""), &headers)).await;
        assert_eq!(status.as_u16(), want, "{headers:?} {text}");
    }
    for path in ["/health/live", "/health/ready"] {
        assert_eq!(send(&app, request("GET", path, "")).await.0, StatusCode::OK);
    }
    let (status, _, text) = send(&app, request("POST", "/v1/messages", "{}")).await;
    let error: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &error["error"]["type"]), (StatusCode::UNAUTHORIZED, &json!("authentication_error")));
}

#[tokio::test]
async fn c51_preflights_need_no_key_and_errors_may_be_read() {
    let app = locked();
    let origin = ("origin", "http://localhost:3000");
    let asks = [origin, ("access-control-request-method", "POST"), ("access-control-request-headers", "x-api-key")];
    let (status, headers, _) = send(&app, with(request("OPTIONS", "/v1/messages", ""), &asks)).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(headers["access-control-allow-headers"], "x-api-key");
    let may_read = |headers: &HeaderMap| headers["access-control-allow-origin"] == origin.1;
    let (status, headers, _) = send(&app, with(request("GET", "/v1/models", ""), &[origin])).await;
    assert!(status == StatusCode::UNAUTHORIZED && may_read(&headers));
    let known = [origin, ("x-api-key", "right")];
    for (method, path, want) in [("GET", "/nowhere", 404), ("GET", "/v1/messages", 405), ("POST", "/v1/messages", 400)]
    {
        let (status, headers, _) = send(&app, with(request(method, path, ""), &known)).await;
        assert!(status.as_u16() == want && may_read(&headers), "{path} {status}");
    }
}

#[tokio::test]
async fn c52_foreign_hosts_and_origins_are_refused_local_pages_may_read() {
    let (app, _) = app(4);
    let get = |host: &str, origin: Option<&str>| {
        let mut request = Request::builder().uri("/v1/models").header("host", host);
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        request.body(Body::empty()).unwrap()
    };
    for (host, origin) in [
        ("evil.example", None),
        ("evil.example:8080", None),
        ("localhost", Some("https://evil.example")),
        ("localhost", Some("null")),
        ("localhost", Some("http://localhost.evil.example")),
    ] {
        let (status, headers, _) = send(&app, get(host, origin)).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{host} {origin:?}");
        assert!(!headers.contains_key("access-control-allow-origin"));
    }
    for (name, second) in [("host", "evil.example"), ("origin", "https://evil.example"), ("host", "localhost")] {
        let first = if name == "origin" { "http://localhost" } else { "localhost" };
        let twice = Request::builder().uri("/v1/models").header("host", "localhost");
        let twice = if name == "origin" { twice.header(name, first) } else { twice };
        let twice = twice.header(name, second).body(Body::empty()).unwrap();
        assert_eq!(send(&app, twice).await.0, StatusCode::FORBIDDEN, "a second {name}: {second}");
    }
    let no_host = Request::builder().uri("/v1/models").body(Body::empty()).unwrap();
    assert_eq!(send(&app, no_host).await.0, StatusCode::FORBIDDEN);

    let (status, headers, _) = send(&app, get("127.0.0.1:8080", Some("http://localhost:3000"))).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(headers["access-control-allow-origin"], "http://localhost:3000");

    let mut preflight = request("OPTIONS", "/v1/chat/completions", "");
    for (name, value) in [
        ("origin", "http://localhost:3000"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type"),
    ] {
        preflight.headers_mut().insert(name, value.parse().unwrap());
    }
    let (status, headers, _) = send(&app, preflight).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(headers["access-control-allow-headers"], "authorization,content-type");
}

#[tokio::test]
async fn an_id_goes_in_and_out_and_is_made_where_there_is_none() {
    let (app, _) = app(4);
    let (_, headers, _) = send(&app, with(request("GET", "/health", ""), &[("x-request-id", "mine")])).await;
    assert_eq!(headers["x-request-id"], "mine");
    let long = "x".repeat(5000);
    let (_, headers, _) = send(&app, with(request("GET", "/health", ""), &[("x-request-id", &long)])).await;
    assert!(headers["x-request-id"].to_str().unwrap().starts_with("req_"), "too long for a line of a log");
    let (_, headers, _) = send(&app, request("GET", "/nowhere", "")).await;
    assert!(headers["x-request-id"].to_str().unwrap().starts_with("req_"));
}

#[tokio::test]
async fn c60_the_queue_is_bounded_and_counted() {
    let (server, seen) = server(1);
    let app = super::local(Arc::clone(&server));
    let run = |app: &Router| {
        tokio::spawn({
            let app = app.clone();
            async move { super::post(&app, &ask("endless")).await }
        })
    };
    let running = run(&app);
    until(|| seen.started.load(Ordering::SeqCst) == 1).await;
    let waiting = run(&app);
    until(|| server.engine.waiting() == 1).await;
    for (path, body) in [
        ("/v1/chat/completions", ask("hello")),
        ("/v1/completions", json!({"prompt": "hello"})),
        ("/v1/responses", json!({"input": "hello"})),
        ("/v1/messages", json!({"max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]})),
    ] {
        let (status, headers, text) = send(&app, request("POST", path, body.to_string())).await;
        assert!(status == StatusCode::SERVICE_UNAVAILABLE && headers.contains_key("retry-after"), "{path} {text}");
    }
    let (_, _, metrics) = send(&app, request("GET", "/metrics", "")).await;
    assert!(metrics.contains("\nlily_queue_depth 1\n"), "{metrics}");
    assert!(metrics.contains(r#"lily_http_requests_total{route="/v1/responses",status="503"} 1"#), "{metrics}");
    running.abort();
    waiting.abort();
}

#[tokio::test]
async fn metrics_count_answers_and_their_times() {
    let (app, _) = app(4);
    super::post(&app, &ask("hello")).await;
    let (_, headers, text) = send(&app, request("GET", "/metrics", "")).await;
    assert!(headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    for line in [
        r#"lily_http_requests_total{route="/v1/chat/completions",status="200"} 1"#,
        r#"lily_http_request_duration_seconds_count{route="/v1/chat/completions"} 1"#,
        "lily_ready 1",
        "lily_requests_running 0",
        "lily_kv_blocks 0",
        "# TYPE lily_prefilled_tokens_total counter",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// A server on a socket, with what ends it.
async fn listening() -> (std::net::SocketAddr, watch::Sender<bool>, tokio::task::JoinHandle<()>, Arc<super::Seen>) {
    let (server, seen) = server(8);
    let (close, closing) = watch::channel(false);
    let server = Arc::into_inner(server).map(|server| Server { closing: closing.clone(), ..server }).unwrap();
    let app = super::local(Arc::new(server));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (address, close, tokio::spawn(listen(listener, app, closing)), seen)
}

fn open(address: std::net::SocketAddr, text: &str) -> TcpStream {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    client.write_all(text.as_bytes()).unwrap();
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_request_does_not_hold_up_the_end() {
    let (address, close, serving, _) = listening().await;
    let post = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Length: 100\r\n\r\n{{");
    let clients = [open(address, "GET /health HT"), open(address, &post), open(address, "")];
    tokio::time::sleep(Duration::from_millis(50)).await;
    let start = Instant::now();
    close.send_replace(true);
    tokio::time::timeout(Duration::from_secs(5), serving).await.unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    drop(clients);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_answer_is_finished_before_the_end() {
    let (address, close, serving, seen) = listening().await;
    let body = ask("quiet").to_string();
    let length = body.len();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n");
    let mut client = open(address, &(head + &body));
    until(|| seen.started.load(Ordering::SeqCst) == 1).await;
    close.send_replace(true);
    let text = tokio::task::block_in_place(|| {
        let mut text = String::new();
        client.read_to_string(&mut text).map(|_| text)
    });
    assert!(text.unwrap().contains("late"));
    tokio::time::timeout(Duration::from_secs(5), serving).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_are_too_large_are_refused() {
    let (address, _close, serving, _) = listening().await;
    let many = "x: y\r\n".repeat(200);
    let large = format!("x: {}\r\n", "y".repeat(400 << 10));
    for headers in [many, large] {
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        // The server may hang up before it has read all.
        let _ = client.write_all(format!("GET /health HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n").as_bytes());
        let mut start = [0; 12];
        let read = tokio::task::block_in_place(|| client.read(&mut start)).unwrap_or(0);
        assert!(read == 0 || start.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&start));
    }
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_cancels_on_every_route_and_all_choices() {
    let (address, _close, serving, seen) = listening().await;
    let messages = json!([{"role": "user", "content": "endless"}]);
    for (round, (path, body)) in [
        ("/v1/chat/completions", json!({"messages": messages, "n": 2})),
        ("/v1/completions", json!({"prompt": "endless", "stream": true})),
        ("/v1/responses", json!({"input": "endless", "stream": true})),
        ("/v1/messages", json!({"max_tokens": 5, "messages": messages})),
    ]
    .into_iter()
    .enumerate()
    {
        let body = body.to_string();
        let length = body.len();
        let client = open(
            address,
            &format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n{body}"),
        );
        until(|| seen.started.load(Ordering::SeqCst) == round + 1).await;
        drop(client);
        until(|| seen.cancelled.load(Ordering::SeqCst) == round + 1).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(seen.started.load(Ordering::SeqCst), 4, "the second choice was never started");
    serving.abort();
}

#[tokio::test]
async fn a_panic_gives_streams_an_error_and_turns_ready_off() {
    let (app, _) = app(4);
    let mut body = ask("panic");
    body["stream"] = true.into();
    let (_, _, text) = send(&app, request("POST", "/v1/chat/completions", body.to_string())).await;
    assert!(text.contains(r#""type":"server_error""#) && text.contains("boom"), "{text}");
    assert_eq!(send(&app, request("GET", "/health/ready", "")).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(send(&app, request("GET", "/health/live", "")).await.0, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_fails_ends_the_server_after_its_streams_were_told() {
    let (server, _) = server(4);
    let (close, closing) = watch::channel(false);
    let server = Arc::into_inner(server).map(|server| Server { closing, ..server }).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let guard = Guard { hosts: Hosts::new("127.0.0.1", &[]), keys: Vec::new() };
    let ending =
        tokio::spawn(async move { super::super::until_the_end(listener, Arc::new(server), guard, &close).await });
    let mut body = ask("panic");
    body["stream"] = true.into();
    let body = body.to_string();
    let length = body.len();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n");
    let mut client = open(address, &(head + &body));
    let text = tokio::task::block_in_place(|| {
        let mut text = String::new();
        client.read_to_string(&mut text).map(|_| text)
    });
    assert!(text.unwrap().contains("boom"));
    let end = tokio::time::timeout(Duration::from_secs(5), ending).await.unwrap().unwrap().unwrap();
    assert!(matches!(end, super::super::End::Failed), "which is exit code 1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_is_not_tokenized_to_the_end_for_a_client_that_left() {
    let (server, seen) = server(4);
    let app = super::local(Arc::clone(&server));
    let long = json!({"prompt": "all is well and all will be well ".repeat(700_000)}).to_string();
    let places = &server.preparing_large;
    let running = tokio::spawn({
        let app = app.clone();
        async move { send(&app, request("POST", "/v1/completions", long)).await.0 }
    });
    until(|| places.available_permits() == 0).await;
    assert_eq!(super::post(&app, &ask("hello")).await.0, StatusCode::OK, "it holds up nobody");
    assert_eq!((places.available_permits(), running.is_finished()), (0, false));
    let start = Instant::now();
    running.abort();
    let _ = running.await;
    until(|| places.available_permits() == 1).await;
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(seen.started.load(Ordering::SeqCst), 1, "the short one");
}
