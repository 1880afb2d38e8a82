//! Many requests, long ones, large ones; signals in the middle of an answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::http::{get, open, post, read};
use super::{Server, chat};

const CHAT: &str = "/v1/chat/completions";
const STORY: &str = "Tell me a story about a fox named Rosa.";

/// The slowest answers of small questions while a long prompt is read, and how often they were asked.
fn slowest_while_a_prompt_is_read(server: &Server, salt: usize) -> (Duration, usize) {
    // Not the same twice: what is cached is not read.
    let words = format!("{salt} {}", "The fox went home. ".repeat(900));
    let stream = open(&server.address, "POST", CHAT, &chat(&words, r#", "max_tokens": 1"#));
    let reading = thread::spawn(move || read(stream));
    let (mut slowest, mut asked) = (Duration::ZERO, 0);
    while !reading.is_finished() {
        for path in ["/health/live", "/health/ready", "/health", "/v1/models", "/metrics"] {
            let start = Instant::now();
            let reply = get(&server.address, path);
            let took = start.elapsed();
            // What ended after the prompt was read is no measure of it.
            if !reading.is_finished() {
                assert_eq!(reply.status, 200, "{path}: {}", reply.body);
                (slowest, asked) = (slowest.max(took), asked + 1);
            }
            thread::sleep(Duration::from_millis(10)); // who asks all the time is a load of its own
        }
    }
    let reply = reading.join().expect("a reply");
    let body: serde_json::Value = serde_json::from_str(&reply.body).expect("JSON");
    assert!(body["usage"]["prompt_tokens"].as_u64().is_some_and(|count| count > 4000), "{body}");
    (slowest, asked)
}

/// Held by each test: they measure times.
static ALONE: Mutex<()> = Mutex::new(());

/// A test that failed has nothing to say to the next one.
fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn c59_health_answers_within_100_ms_while_a_prompt_of_4k_tokens_is_read() {
    let _alone = alone();
    let server = Server::start(&["--context", "16384"]);
    // The machine may be busy with other tests: one of three undisturbed tries shows what the server does.
    let tries: Vec<_> = (0..3).map(|salt| slowest_while_a_prompt_is_read(&server, salt)).collect();
    assert!(tries.iter().all(|(_, asked)| *asked > 4), "the prompt was read too fast to ask: {tries:?}");
    assert!(tries.iter().any(|(slowest, _)| *slowest < Duration::from_millis(100)), "{tries:?}");
}

#[test]
fn c60_a_hundred_at_once_are_answered_or_told_to_come_back() {
    let _alone = alone();
    let server = Server::start(&["--queue", "8"]);
    let body = chat("What is the capital of France?", r#", "max_tokens": 4"#);
    let replies: Vec<_> = thread::scope(|scope| {
        let asking: Vec<_> = (0..100).map(|_| scope.spawn(|| post(&server.address, CHAT, &body))).collect();
        asking.into_iter().map(|asking| asking.join().expect("a reply")).collect()
    });
    let answered = replies.iter().filter(|reply| reply.status == 200).count();
    for reply in &replies {
        match reply.status {
            200 => assert!(reply.body.contains("The capital of France"), "{}", reply.body),
            503 => {
                let wait = reply.header("retry-after").and_then(|seconds| seconds.parse::<u64>().ok());
                assert!(wait.is_some_and(|seconds| (1..=60).contains(&seconds)), "{}", reply.head);
                assert!(reply.body.contains(r#""error""#), "{}", reply.body);
            }
            other => panic!("{other}: {}", reply.body),
        }
    }
    assert!(answered >= 8, "{answered} of 100 were answered");
    assert_eq!(post(&server.address, CHAT, &body).status, 200, "afterwards it goes on as before");
}

#[test]
fn a_signal_lets_a_running_answer_end() {
    let _alone = alone();
    let mut server = Server::start(&[]);
    let stream = open(&server.address, "POST", CHAT, &chat(STORY, r#", "stream": true"#));
    let mut lines = BufReader::new(stream).lines();
    let first = lines.by_ref().map_while(Result::ok).find(|line| line.contains(r#""content":"#));
    assert!(first.is_some(), "no first word");
    server.signal("-TERM");
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let says = |words: &str| rest.iter().any(|line| line.contains(words));
    assert!(says(r#""finish_reason":"stop""#) && says("data: [DONE]"), "{:?}", rest.last());
    assert!(server.wait(Duration::from_secs(15)).success());
    assert!(TcpStream::connect(&server.address).is_err(), "it is gone");
}

#[test]
fn a_second_signal_cuts_an_answer_and_says_so() {
    let _alone = alone();
    let mut server = Server::start(&[]);
    let endless = chat(STORY, r#", "stream": true, "temperature": 1, "seed": 1, "max_tokens": 20000"#);
    let endless =
        endless.replacen(r#""temperature": 0,"#, "", 1).replacen('{', r#"{"logit_bias": {"BIAS": -100}, "#, 1);
    // Without the tokens that end an answer it goes on to the end of the context.
    let endless = endless.replacen(r#""BIAS": -100"#, &end_tokens(), 1);
    let stream = open(&server.address, "POST", CHAT, &endless);
    let mut lines = BufReader::new(stream).lines();
    let first = lines.by_ref().map_while(Result::ok).find(|line| line.contains("chat.completion.chunk"));
    assert!(first.is_some(), "no first event");
    server.signal("-TERM");
    thread::sleep(Duration::from_millis(200));
    server.signal("-TERM");
    let status = server.wait(Duration::from_secs(10));
    assert!(!status.success(), "an answer was cut");
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let told = rest.iter().rev().find(|line| line.starts_with(r#"data: {"error""#));
    assert!(told.is_some_and(|line| line.contains("shutting down")), "{:?}", rest.last());
    assert!(!rest.iter().any(|line| line.contains(r#""finish_reason":"stop""#)), "the answer was not cut");
}

/// Bans on the ids that end an answer of the demo model.
fn end_tokens() -> String {
    let config = include_str!("../../../../models/lily-demo/generation_config.json");
    let config: serde_json::Value = serde_json::from_str(config).expect("JSON");
    let ids = &config["eos_token_id"];
    let ids = ids.as_array().cloned().unwrap_or_else(|| vec![ids.clone()]);
    ids.iter().map(|id| format!(r#""{id}": -100"#)).collect::<Vec<_>>().join(", ")
}

#[test]
fn a_body_that_is_too_big_is_refused_and_costs_nothing_else() {
    let _alone = alone();
    let server = Server::start(&[]);
    let mut stream = TcpStream::connect(&server.address).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let length = 64 << 20;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n",
        server.address
    );
    stream.write_all(head.as_bytes()).expect("writes");
    let part = vec![b' '; 1 << 20];
    // The server may stop reading, and close, at its limit.
    let sent = (0..64).take_while(|_| stream.write_all(&part).is_ok()).count();
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    let reply = String::from_utf8_lossy(&reply);
    assert!(reply.starts_with("HTTP/1.1 413") && reply.contains(r#""error""#), "after {sent} MiB: {reply}");
    assert_eq!(get(&server.address, "/health").status, 200);
}
