//! The server over a fake engine: status codes, formats, streams, and what happens when clients leave.

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request as HttpRequest, StatusCode};
use lily_engine::engine::{EngineError, ModelInfo};
use lily_engine::prepare::{Prepared, Preparer};
use lily_engine::request::{
    CancelToken, Completion, Event, EventSink, FinishReason, Logprob, Prompt, Request, RequestError, SamplingParams,
    Timings, TokenLogprobs, ToolCall, Usage,
};
use lily_engine::schedule::{Deliver, Drive, EngineThread, RequestId, Stats, Update};
use lily_engine::text::{AnswerStream, Codec};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::guard::{Guard, Hosts};
use super::routes::{Server, router};

mod answers; // reasoning and calls, cut anywhere, on every route
mod edge; // keys, origins, ends of the server
mod logprobs; // log-probabilities in whole replies and streams
mod protocol; // what clients of other servers stumbled over
mod script; // a model that says what it is told

/// What the fake engine saw.
#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<Request>>,
    started: AtomicUsize,
    cancelled: AtomicUsize,
}

impl Seen {
    fn last(&self) -> Request {
        self.requests.lock().unwrap().last().unwrap().clone()
    }

    fn chat(&self) -> lily_engine::request::ChatPrompt {
        let Prompt::Chat(chat) = self.last().prompt else { panic!("chat") };
        chat
    }
}

/// Does what the last message says, one request after the other.
struct Fake {
    seen: Arc<Seen>,
    codec: Arc<Codec>,
    running: Vec<(RequestId, Request, AnswerStream, CancelToken)>,
}

impl Drive for Fake {
    fn capacity(&self) -> usize {
        1
    }

    fn running(&self) -> usize {
        self.running.len()
    }

    fn begin(&mut self, id: RequestId, prepared: Prepared, cancel: CancelToken) {
        let (request, answer) = prepared.into_answer();
        self.running.push((id, request, answer, cancel));
    }

    fn step(&mut self, deliver: &mut Deliver) {
        if let Some((id, request, answer, cancel)) = self.running.pop() {
            let result = self.generate(&request, answer, &cancel, &mut |event| deliver(id, Update::Event(event)));
            let _ = deliver(id, Update::Done(Box::new(result)));
        }
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

impl Fake {
    fn generate(
        &mut self,
        request: &Request,
        answer: AnswerStream,
        cancel: &CancelToken,
        sink: &mut EventSink,
    ) -> Result<Completion, EngineError> {
        self.seen.requests.lock().unwrap().push(request.clone());
        self.seen.started.fetch_add(1, Ordering::SeqCst);
        let word = match &request.prompt {
            Prompt::Chat(chat) => chat.messages.last().and_then(|last| last["content"].as_str()).unwrap_or_default(),
            Prompt::Raw(text) => text,
            Prompt::Tokens(_) => "tokens",
        };
        if let Some(script) = word.strip_prefix("script:") {
            return Ok(script::perform(&self.codec, script, request, answer, sink));
        }
        let finish = if request.max_tokens == Some(1) { FinishReason::Length } else { FinishReason::Stop };
        match word {
            "too long" => Err(RequestError::TooLong { prompt_tokens: 9, context_length: 8 }.into()),
            "no template" => Err(RequestError::Template("no user query".into()).into()),
            "no numbers" => {
                let _ = sink(text("Hel"));
                Err(EngineError::Logits { position: 7 })
            }
            "panic" => panic!("boom"),
            "endless" => Ok(self.endless(cancel, sink)),
            "quiet" => {
                std::thread::sleep(Duration::from_millis(200));
                Ok(play(vec![Event::Content("late".into())], finish, sink))
            }
            "scored" => {
                let mut completion = play(scored_events(), finish, sink);
                let aside = TokenLogprobs { in_content: false, ..scored(b"<think>", &[]) };
                let tokens = |event| if let Event::Logprobs(tokens) = event { tokens } else { vec![] };
                let content = scored_events().into_iter().map(tokens);
                completion.logprobs = Some([vec![aside], content.flatten().collect()].concat());
                Ok(completion)
            }
            "thought" => {
                let mut completion = play(vec![Event::Reasoning("hm".into())], finish, sink);
                let aside = TokenLogprobs { in_content: false, ..scored(b"hm", &[]) };
                completion.logprobs = request.logprobs.map(|_| vec![aside]);
                Ok(completion)
            }
            "tools" => Ok(play(vec![Event::Content("Look:".into()), call("f", "a"), call("g", "b")], finish, sink)),
            "tool" => Ok(play(vec![call("f", "a")], finish, sink)),
            _ => Ok(play(vec![Event::Reasoning("hm".into()), text("Hel"), text("lo")], finish, sink)),
        }
    }
}

impl Fake {
    fn endless(&self, cancel: &CancelToken, sink: &mut EventSink) -> Completion {
        while !cancel.is_cancelled() && sink(text("x")).is_continue() {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.seen.cancelled.fetch_add(1, Ordering::SeqCst);
        play(vec![], FinishReason::Cancelled, &mut |_| ControlFlow::Continue(()))
    }
}

fn scored(bytes: &[u8], top: &[&[u8]]) -> TokenLogprobs {
    let logprob = |bytes: &[u8], logprob| Logprob { id: 1, bytes: bytes.to_vec(), logprob };
    TokenLogprobs {
        token: logprob(bytes, -0.5),
        top: top.iter().map(|bytes| logprob(bytes, -1.5)).collect(),
        in_content: true,
    }
}

/// Two tokens in the first piece, half a token in the second, three bytes of a character in the third.
fn scored_events() -> Vec<Event> {
    let emoji = "🙂".as_bytes();
    vec![
        Event::Logprobs(vec![scored(b"H", &[b"H", b"J"]), scored(b"el<", &[b"x", b"\xff"])]),
        text("Hel"),
        text("<"),
        Event::Logprobs(vec![scored(&emoji[..3], &[]), scored(&emoji[3..], &[])]),
        text("🙂"),
    ]
}

fn text(text: &str) -> Event {
    Event::Content(text.into())
}

fn call(name: &str, argument: &str) -> Event {
    let arguments = json!({"x": argument}).as_object().unwrap().clone();
    Event::ToolCall(ToolCall { name: name.into(), arguments })
}

/// Sends the events and sums them up, as the engine does.
fn play(events: Vec<Event>, finish_reason: FinishReason, sink: &mut EventSink) -> Completion {
    let usage = Usage { prompt_tokens: 7, cached_tokens: 3, completion_tokens: 2, reasoning_tokens: 1 };
    let mut completion = Completion {
        content: String::new(),
        reasoning: String::new(),
        tool_calls: vec![],
        tokens: vec![],
        logprobs: None,
        prompt_logprobs: None,
        finish_reason,
        usage,
        timings: Timings::default(),
    };
    let _ = sink(Event::Start { prompt_tokens: 7, cached_tokens: 3 });
    for event in events {
        match &event {
            Event::Content(text) => completion.content += text,
            Event::Reasoning(text) => completion.reasoning += text,
            Event::ToolCall(call) => completion.tool_calls.push(call.clone()),
            Event::Start { .. } | Event::Prefill { .. } | Event::Logprobs(_) => {}
        }
        let _ = sink(event);
    }
    completion
}

fn app(queue: usize) -> (Router, Arc<Seen>) {
    let (server, seen) = server(queue);
    (local(server), seen)
}

fn local(server: Arc<Server>) -> Router {
    router(server, Guard { hosts: Hosts::new("127.0.0.1", &[]), keys: Vec::new() })
}

fn server(queue: usize) -> (Arc<Server>, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let model = ModelInfo {
        name: "fake".into(),
        model_type: "fake".into(),
        context_length: 4096,
        vocab_size: 1,
        weight_bytes: 0,
        session_bytes: 0,
        device: "none".into(),
        warnings: vec![],
    };
    let file = |name: &str| crate::flags::DEMO.files.iter().find(|(file, _)| *file == name).map(|(_, bytes)| *bytes);
    let codec = Codec::open(&|name| file(name).map(Into::into)).unwrap();
    let codec = Arc::new(codec);
    let fake = Fake { seen: Arc::clone(&seen), codec: Arc::clone(&codec), running: Vec::new() };
    let (engine, ()) = EngineThread::start(queue, move || Ok((fake, ()))).unwrap();
    let preparer = Preparer::new(codec, 4096, 50_000, 50_000).into();
    let defaults = SamplingParams { temperature: 0.6, top_k: 20, top_p: 0.95, ..SamplingParams::GREEDY };
    let (_, closing) = tokio::sync::watch::channel(false);
    let server = Server {
        keep_alive: Duration::from_millis(20),
        first_word: Duration::from_millis(50),
        ..Server::new(engine, (model, defaults, preparer), closing).unwrap()
    };
    (Arc::new(server), seen)
}

async fn send(app: &Router, request: HttpRequest<Body>) -> (StatusCode, HeaderMap, String) {
    let response = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    (parts.status, parts.headers, String::from_utf8(body.to_vec()).unwrap())
}

fn request(method: &str, path: &str, body: impl Into<Body>) -> HttpRequest<Body> {
    let builder = HttpRequest::builder().method(method).uri(path).header("host", "localhost:8080");
    builder.body(body.into()).unwrap()
}

async fn post(app: &Router, body: &Value) -> (StatusCode, Value) {
    let (status, _, text) = send(app, request("POST", "/v1/chat/completions", body.to_string())).await;
    (status, serde_json::from_str(&text).unwrap())
}

fn ask(word: &str) -> Value {
    json!({"messages": [{"role": "user", "content": word}]})
}

/// The data lines of a stream and its raw text.
async fn stream(app: &Router, mut body: Value) -> (Vec<String>, String) {
    body["stream"] = true.into();
    let (status, headers, text) = send(app, request("POST", "/v1/chat/completions", body.to_string())).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert_eq!(headers["content-type"], "text/event-stream");
    (text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect(), text)
}

fn chunks(data: &[String]) -> Vec<Value> {
    assert_eq!(data.last().map(String::as_str), Some("[DONE]"));
    data[..data.len() - 1].iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn until(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(5), "nothing happened");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_whole_reply_has_openais_shape() {
    let (app, _) = app(4);
    let (status, mut reply) = post(&app, &ask("hello")).await;
    assert_eq!(status, StatusCode::OK);
    assert!(reply["id"].take().as_str().unwrap().starts_with("chatcmpl-"));
    assert!(reply["created"].take().as_u64().unwrap() > 1_700_000_000);
    assert_eq!(
        reply,
        json!({
            "id": null, "created": null, "object": "chat.completion", "model": "fake",
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "reasoning_content": "hm"},
                "logprobs": null,
                "finish_reason": "stop",
            }],
            "usage": {
                "prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 1},
            },
        })
    );
}

#[tokio::test]
async fn a_stream_is_the_same_reply_in_pieces() {
    let (app, _) = app(4);
    let (data, _) = stream(&app, ask("hello")).await;
    let chunks = chunks(&data);
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    assert_eq!(
        deltas,
        [
            &json!({"role": "assistant"}),
            &json!({"reasoning_content": "hm"}),
            &json!({"content": "Hel"}),
            &json!({"content": "lo"}),
            &json!({}),
        ]
    );
    assert_eq!(chunks[4]["choices"][0]["finish_reason"], "stop");
    for chunk in &chunks {
        assert_eq!(chunk["id"], chunks[0]["id"]);
        assert_eq!((&chunk["object"], &chunk["model"]), (&json!("chat.completion.chunk"), &json!("fake")));
        assert!(chunk.get("usage").is_none());
    }
}

#[tokio::test]
async fn usage_comes_last_and_only_when_asked_for() {
    let (app, _) = app(4);
    let mut body = ask("hello");
    body["stream_options"] = json!({"include_usage": true});
    let chunks = chunks(&stream(&app, body).await.0);
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    assert!(others.iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
}

#[tokio::test]
async fn tool_calls_have_index_id_type_and_json_arguments() {
    let (app, _) = app(4);
    let data = stream(&app, ask("tools")).await.0;
    let chunks = chunks(&data);
    let calls: Vec<&Value> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].get(0)).collect();
    assert_eq!(calls.len(), 2);
    for (i, (call, name)) in calls.iter().zip(["f", "g"]).enumerate() {
        assert_eq!((&call["index"], &call["type"]), (&json!(i), &json!("function")));
        assert!(call["id"].as_str().unwrap().starts_with("call_"));
        assert_eq!(call["function"]["name"], name);
    }
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    assert_eq!(calls[0]["function"]["arguments"], r#"{"x":"a"}"#);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    let (_, whole) = post(&app, &ask("tool")).await;
    let choice = &whole["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &Value::Null));
    assert!(choice["message"]["tool_calls"][0].get("index").is_none());
}

#[tokio::test]
async fn the_fields_reach_the_engine() {
    let (app, seen) = app(4);
    let mut body = ask("hello");
    for (name, value) in json!({
        "model": "fake", "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.25, "seed": -1,
        "max_completion_tokens": 1, "chat_template_kwargs": {"enable_thinking": false, "preserve_thinking": true},
        "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto",
        "presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.25, "logit_bias": {"7": -100},
        "stop": ["a", "b"], "top_logprobs": 3, "logprobs": true, "n": 1, "user": "u", "metadata": {"a": "b"},
    })
    .as_object()
    .unwrap()
    {
        body[name] = value.clone();
    }
    let (status, reply) = post(&app, &body).await;
    assert_eq!(status, StatusCode::OK, "{reply}");
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    let sampling = SamplingParams {
        temperature: 0.0,
        top_k: 3,
        top_p: 0.5,
        min_p: 0.25,
        presence_penalty: 0.5,
        frequency_penalty: -1.0,
        repetition_penalty: 1.25,
        seed: u64::MAX,
    };
    let last = seen.last();
    assert_eq!((last.sampling, last.logprobs), (sampling, Some(3)));
    assert_eq!((last.logit_bias, last.stop), (vec![(7, -100.0)], vec!["a".to_owned(), "b".to_owned()]));
    let chat = seen.chat();
    assert_eq!((chat.enable_thinking, chat.tools.len()), (Some(false), 1));
    assert_eq!(chat.template_kwargs["preserve_thinking"], true);

    body["tool_choice"] = "none".into();
    post(&app, &body).await;
    assert!(seen.chat().tools.is_empty());
    post(&app, &ask("hello")).await;
    assert_eq!(seen.last().sampling.top_k, 20);
    assert_eq!(seen.last().max_tokens, None);
}

#[tokio::test]
async fn engine_errors_have_a_status_streamed_or_not() {
    let (app, _) = app(4);
    for streamed in [false, true] {
        let mut body = ask("too long");
        body["stream"] = streamed.into();
        let (status, error) = post(&app, &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(error["error"]["code"], "context_length_exceeded");
        body["messages"][0]["content"] = "no template".into();
        let (status, error) = post(&app, &body).await;
        assert_eq!((status, &error["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("messages")));
    }
}

#[tokio::test]
async fn an_answer_that_fails_in_the_middle_ends_with_an_error() {
    let (app, _) = app(4);
    let (status, error) = post(&app, &ask("no numbers")).await;
    let message = EngineError::Logits { position: 7 }.to_string();
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(error["error"], json!({"message": message, "type": "server_error", "param": null, "code": null}));
    let chunks = chunks(&stream(&app, ask("no numbers")).await.0);
    assert_eq!(chunks[1]["choices"][0]["delta"]["content"], "Hel");
    assert_eq!((&chunks[2], chunks.len()), (&error, 3), "the error, and no reason to believe that it is finished");
}

#[tokio::test]
async fn ranges_are_refused_by_name() {
    let (app, seen) = app(4);
    for (field, value) in [
        ("temperature", json!(-1)),
        ("top_p", json!(0)),
        ("min_p", json!(2)),
        ("max_tokens", json!(0)),
        ("presence_penalty", json!(2.5)),
        ("frequency_penalty", json!(-3)),
        ("repetition_penalty", json!(0)),
        ("logit_bias", json!({"5": 101})),
        ("logit_bias", json!({"5": 1, "05": 1})),
        ("top_logprobs", json!(21)),
        ("stop", json!("")),
        ("stop", json!(vec!["x"; 17])),
    ] {
        let mut body = ask("hello");
        body["logprobs"] = true.into();
        body[field] = value;
        let (status, error) = post(&app, &body).await;
        assert_eq!((status, &error["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)));
    }
    assert_eq!(seen.started.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn http_errors_have_openais_shape() {
    let (app, _) = app(4);
    let path = "/v1/chat/completions";
    for (request, want) in [
        (request("POST", path, "{"), StatusCode::BAD_REQUEST),
        (request("POST", path, "[]"), StatusCode::BAD_REQUEST),
        (request("POST", path, vec![b' '; (32 << 20) + 1]), StatusCode::PAYLOAD_TOO_LARGE),
        (request("GET", path, ""), StatusCode::METHOD_NOT_ALLOWED),
        (request("POST", "/v1/models", ""), StatusCode::METHOD_NOT_ALLOWED),
        (request("GET", "/nowhere", ""), StatusCode::NOT_FOUND),
        (request("GET", "/v1/models/other", ""), StatusCode::NOT_FOUND),
        (request("GET", "/v1/models/%ff", ""), StatusCode::BAD_REQUEST),
    ] {
        let (status, _, text) = send(&app, request).await;
        assert_eq!(status, want, "{text}");
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert!(!error["error"]["message"].as_str().unwrap().is_empty());
    }
    let mut body = ask("hello");
    body["model"] = "other".into();
    let (status, error) = post(&app, &body).await;
    assert_eq!((status, &error["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
}

#[tokio::test]
async fn models_and_health() {
    let (app, _) = app(4);
    let (_, _, list) = send(&app, request("GET", "/v1/models", "")).await;
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("fake")));
    assert_eq!(send(&app, request("GET", "/v1/models/fake", "")).await.0, StatusCode::OK);
    assert_eq!(send(&app, request("GET", "/health", "")).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_panic_is_an_error_and_ends_the_engine() {
    let (app, _) = app(4);
    let (status, error) = post(&app, &ask("panic")).await;
    assert_eq!((status, &error["error"]["type"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!("server_error")));
    assert_eq!(post(&app, &ask("hello")).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(send(&app, request("GET", "/health", "")).await.0, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_full_queue_is_503_and_places_of_those_who_left_are_free() {
    let (server, seen) = server(1);
    let app = local(Arc::clone(&server));
    let run = |word: &'static str| {
        let app = app.clone();
        tokio::spawn(async move { post(&app, &ask(word)).await })
    };
    let running = run("endless");
    until(|| seen.started.load(Ordering::SeqCst) == 1).await;
    let waiting = run("endless");
    until(|| server.engine.waiting() == 1).await;
    let refused = request("POST", "/v1/chat/completions", ask("hello").to_string());
    let (status, headers, text) = send(&app, refused).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(headers.contains_key("retry-after"));
    assert!(text.contains(r#""code":"queue_full""#), "{text}");
    waiting.abort();
    assert!(waiting.await.is_err());
    let next = run("hello");
    tokio::time::sleep(Duration::from_millis(20)).await; // until it has taken the free place
    running.abort();
    assert_eq!(next.await.unwrap().0, StatusCode::OK);
    assert_eq!(seen.started.load(Ordering::SeqCst), 2, "the one that left was never started");
}

#[tokio::test]
async fn a_quiet_prompt_is_kept_alive_by_the_clock() {
    let (app, _) = app(4);
    let (data, raw) = stream(&app, ask("quiet")).await;
    assert!(raw.matches("\n:").count() + usize::from(raw.starts_with(':')) >= 2, "{raw}");
    assert_eq!(chunks(&data)[1]["choices"][0]["delta"]["content"], "late");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_cancels_streamed_or_not() {
    let (app, seen) = app(4);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(axum::serve(listener, app).into_future());
    for (round, streamed) in [true, false].into_iter().enumerate() {
        let mut body = ask("endless");
        body["stream"] = streamed.into();
        let body = body.to_string();
        let head =
            format!("POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut client = std::net::TcpStream::connect(address).unwrap();
        client.write_all(format!("{head}{body}").as_bytes()).unwrap();
        if streamed {
            let client = &mut client;
            tokio::task::block_in_place(|| client.read_exact(&mut [0; 64])).unwrap();
        }
        until(|| seen.started.load(Ordering::SeqCst) == round + 1).await;
        assert_eq!(seen.cancelled.load(Ordering::SeqCst), round);
        drop(client);
        until(|| seen.cancelled.load(Ordering::SeqCst) == round + 1).await;
    }
    server.abort();
}
