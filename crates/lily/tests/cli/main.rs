//! The program as its users run it, with the built-in model: exit codes, and what goes to which stream.

mod bench;
mod config;
#[path = "../support/hub.rs"]
#[allow(dead_code)] // the unit tests of `pull` need the rest
mod hub;
mod pages;
mod plan;
mod pull;
mod selftest;
mod serve;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

#[path = "../support/mod.rs"]
mod support;
use support::{lily, run, run_with_stdin, stderr, stdout};

const FRANCE: &str = "What is the capital of France?";

fn interrupt(child: &Child) {
    signal(child, "-INT");
}

fn signal(child: &Child, signal: &str) {
    let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill");
    assert!(killed.success());
}

#[test]
fn an_answer_is_all_there_is_on_stdout() {
    let output = run(&["run", "--no-think", "--temperature", "0", FRANCE]);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.contains("Paris"), "{text:?}");
    assert!(text.ends_with('\n') && !text.ends_with("\n\n") && !text.contains('\x1b'), "{text:?}");
    assert!(!text.contains("think>") && !text.contains("<|"), "{text:?}");
    assert_eq!(stderr(&output).lines().filter(|line| line.starts_with("lily: model: ")).count(), 1);
}

#[test]
fn stdin_follows_the_prompt_or_stands_alone() {
    for (args, input) in [
        (&["run", "--no-think", "--temperature", "0", "What is the capital"][..], "of France?"),
        (&["run", "--no-think", "--temperature", "0"], "What is the capital of France?\n"),
    ] {
        let output = run_with_stdin(args, input);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).ends_with('\n'));
    }
}

#[test]
fn json_is_one_object_with_everything() {
    let output = run(&["run", "--json", "--temperature", "0", "--max-tokens", "8", FRANCE]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_str(stdout(&output)).expect("one JSON object");
    for name in ["text", "reasoning", "finish_reason", "model"] {
        assert!(report[name].is_string(), "{name}: {report}");
    }
    assert!(report["tool_calls"].as_array().is_some_and(Vec::is_empty));
    assert!(report["seed"].is_u64() && report["timings_ms"]["prefill"].is_f64());
    assert_eq!(report["finish_reason"], "length");
    assert_eq!(report["tokens"].as_array().map(Vec::len), Some(8));
    assert_eq!(report["usage"]["completion_tokens"], 8);
    assert!(report["usage"]["prompt_tokens"].as_u64().is_some_and(|count| count > 0));
    assert_eq!(report["usage"]["cached_tokens"], 0);
}

#[test]
fn json_has_logprobs_when_asked() {
    let output = run(&["run", "--json", "--no-think", "--temperature", "0", "--logprobs", "2", FRANCE]);
    let report: Value = serde_json::from_str(stdout(&output)).expect("JSON");
    let (tokens, ids) = (report["logprobs"].as_array().expect("a list"), report["tokens"].as_array().expect("a list"));
    assert_eq!(tokens.len(), ids.len());
    let mut text = String::new();
    for (token, id) in tokens.iter().zip(ids) {
        assert_eq!((&token["id"], &token["top"][0]["id"]), (id, id), "greedy takes the likeliest");
        let [first, second] = [0, 1].map(|i| token["top"][i]["logprob"].as_f64().expect("a number"));
        assert!(first <= 0.0 && second <= first && token["logprob"].as_f64() == Some(first));
        if token["in_text"] == true {
            text += token["token"].as_str().expect("text");
        }
    }
    assert_eq!(report["text"], *text);
    assert_eq!(tokens.last().expect("a stop token")["in_text"], false);
}

#[test]
fn a_stop_string_ends_the_answer_before_it() {
    let flags = ["run", "--json", "--no-think", "--temperature", "0", FRANCE];
    let whole: Value = serde_json::from_str(stdout(&run(&flags))).expect("JSON");
    let text = whole["text"].as_str().expect("text");
    let cut = run(&[&flags[..], &["--stop", "nowhere", "--stop", " is Par"]].concat());
    let report: Value = serde_json::from_str(stdout(&cut)).expect("JSON");
    assert_eq!(report["text"], text.split(" is Par").next().expect("before"));
    assert_eq!(report["finish_reason"], "stop");
}

#[test]
fn biased_tokens_are_said_or_avoided() {
    let flags = ["run", "--json", "--no-think", "--temperature", "0", "--max-tokens", "4", FRANCE];
    let first = |bias: &[&str]| {
        let output = run(&[&flags[..], bias].concat());
        let report: Value = serde_json::from_str(stdout(&output)).expect("JSON");
        report["tokens"][0].as_u64().expect("an id")
    };
    let plain = first(&[]);
    assert_ne!(first(&["--logit-bias", &format!("{plain}=-100")]), plain);
    assert_eq!(first(&["--logit-bias", "300=100"]), 300);
    let outside = run(&[&flags[..], &["--logit-bias", "99999=1"]].concat());
    assert_eq!(outside.status.code(), Some(1));
    assert!(stderr(&outside).contains("lily: logit_bias: token id 99999 is outside the vocabulary of "));
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let tokens = |seed: &str| {
        let output = run(&["run", "--json", "--temperature", "1", "--seed", seed, "--max-tokens", "24", FRANCE]);
        let report: Value = serde_json::from_str(stdout(&output)).expect("JSON");
        assert_eq!(report["seed"].to_string(), seed);
        report["tokens"].clone()
    };
    assert_eq!(tokens("7"), tokens("7"));
}

#[test]
fn no_prompt_is_one_sentence() {
    let output = run(&["run"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
    assert_eq!(stderr(&output), "lily: no prompt: give one as an argument, or pipe text to stdin\n");
}

#[test]
fn a_flag_out_of_range_is_one_sentence() {
    let output = run(&["run", "--temperature", "-1", "x"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "lily: temperature: -1 is not a finite number ≥ 0\n");
}

#[test]
fn a_wrong_model_path_is_one_sentence() {
    for command in [
        &["run", "--model", "/no/such/model", "x"][..],
        &["chat", "--model", "/no/such/model"],
        &["plan", "/no/such/model"],
    ] {
        let output = run(command);
        assert_eq!(output.status.code(), Some(1), "{command:?}");
        assert_eq!(stdout(&output), "");
        let complaint = stderr(&output);
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        assert!(complaint.starts_with("lily: ") && complaint.contains("/no/such/model"), "{complaint}");
    }
}

#[test]
fn a_closed_stdout_ends_quietly() {
    let mut child = lily(&["run", "--raw", "--max-tokens", "400", "Once upon a time"]).spawn().expect("starts");
    // Closed before the first word.
    drop(child.stdout.take());
    let mut complaint = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut complaint).expect("UTF-8");
    assert_eq!(child.wait().expect("ends").code(), Some(141), "{complaint}");
    assert!(complaint.lines().all(|line| line.starts_with("lily: model: ")), "{complaint}");
}

#[test]
fn ctrl_c_keeps_what_was_printed() {
    let mut child =
        lily(&["run", "--raw", "--temperature", "1", "--seed", "1", "Once upon a time"]).spawn().expect("starts");
    let mut out = child.stdout.take().expect("piped");
    let mut text = vec![0; 1];
    out.read_exact(&mut text).expect("a first byte");
    interrupt(&child);
    out.read_to_end(&mut text).expect("reads");
    let status = child.wait().expect("ends");
    // A story this short may end by itself before the signal arrives.
    assert!(matches!(status.code(), Some(130 | 0)), "{status}");
    assert!(text.ends_with(b"\n"));
}

#[test]
fn a_conversation_over_a_pipe() {
    let flags = ["chat", "--no-think", "--temperature", "0"];
    let talk = "My name is Ada and I love trains.\nWhat is my name?\n";
    let output = run_with_stdin(&flags, talk);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("Ada"), "{text:?}");
    assert!(!text.contains("> ") && !text.contains('\x1b'), "{text:?}");

    let forgotten = "My name is Ada and I love trains.\n/reset\nWhat is my name?\n";
    let output = run_with_stdin(&flags, forgotten);
    let last = stdout(&output).lines().last().unwrap_or_default().to_owned();
    assert!(!last.contains("Ada"), "{last:?}");
}

#[test]
fn a_line_that_is_no_text_costs_only_itself() {
    let flags = ["chat", "--no-think", "--temperature", "0"];
    let output = run_with_stdin(&flags, b"My name is Ada and I love trains.\n\xff\xfe\nWhat is my name?\n");
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(text.lines().count() == 2 && text.lines().last().is_some_and(|line| line.contains("Ada")), "{text:?}");
    assert!(stderr(&output).ends_with("lily: that line is not UTF-8 text; it was left out\n"), "{}", stderr(&output));
}

#[test]
fn commands_answer_on_stderr() {
    let output = run_with_stdin(&["chat"], "/nope\n/help\n/think maybe\n\n/quit\nnever asked\n");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    let notes = stderr(&output);
    assert!(notes.contains("lily: no command /nope (see /help)\n"), "{notes}");
    assert!(notes.contains("no command /think maybe") && notes.contains("/reset"), "{notes}");
}

#[test]
fn plan_describes_a_step_of_the_built_in_model() {
    let output = run(&["plan", "--model", "lily-demo"]);
    assert!(output.status.success() && stdout(&output).contains("dispatches"), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let listed = run(&["plan", "--tokens", "64", "--dispatches"]);
    assert!(stdout(&listed).lines().count() > stdout(&output).lines().count());
    let unknown = run(&["plan", "--without", "no-such-switch"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("no-such-switch"), "{}", stderr(&unknown));
    let beyond = run(&["plan", "--model", "lily-demo", "--context", "18446744073709551615"]);
    assert_eq!(beyond.status.code(), Some(1), "{}", stdout(&beyond));
    assert!(stderr(&beyond).starts_with("lily: --context 18446744073709551615: "), "{}", stderr(&beyond));
}

/// A server that is stopped when the test ends, however it ends.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        let mut child = lily(&["serve", "--port", "0", "--model", "lily-demo"]).spawn().expect("starts");
        let mut line = String::new();
        BufReader::new(child.stderr.take().expect("piped")).read_line(&mut line).expect("a line");
        let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        Self { child, address }
    }

    fn post(&self, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("connects");
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).expect("writes");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("reads");
        reply
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn serve_answers_and_stops_on_a_signal() {
    let mut server = Server::start();
    let body = r#"{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": false}}"#;
    let reply = server.post(body);
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("Paris"), "{reply}");
    let streamed = server.post(&body.replacen('{', r#"{"stream": true, "#, 1));
    assert!(streamed.contains("text/event-stream") && streamed.contains("data: [DONE]"), "{streamed}");
    interrupt(&server.child);
    let start = Instant::now();
    let status = loop {
        if let Some(status) = server.child.try_wait().expect("waits") {
            break status;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "still running");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{status}");
}
