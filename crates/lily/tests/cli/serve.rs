//! What a server says on stderr, and what it keeps to itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use super::interrupt;
use super::support::lily;

/// Serves one request with these flags; returns the reply and the lines on stderr.
fn once(flags: &[&str], headers: &str, body: &str) -> (String, Vec<String>) {
    let flags = [&["serve", "--port", "0", "--model", "lily-demo"], flags].concat();
    let mut child = lily(&flags).spawn().expect("starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let address = address.unwrap_or_else(|| panic!("no address in {line:?}"));
    let mut stream = TcpStream::connect(address).expect("connects");
    let length = body.len();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}");
    stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes()).expect("writes");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("reads");
    interrupt(&child);
    let mut rest = String::new();
    lines.read_to_string(&mut rest).expect("text");
    assert!(child.wait().expect("ends").success());
    (reply, rest.lines().map(str::to_owned).collect())
}

const BODY: &str = r#"{"messages": [{"role": "user", "content": "xylophone"}], "max_tokens": 3, "seed": 1}"#;

#[test]
fn a_request_is_one_line_without_a_word_of_it() {
    let (reply, lines) = once(&["--log-format", "json"], "x-request-id: abc\r\n", BODY);
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("x-request-id: abc"), "{reply}");
    let requests: Vec<Value> = lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(requests.len(), 1, "{lines:?}");
    let request = &requests[0];
    assert_eq!((&request["id"], &request["route"]), (&"abc".into(), &"/v1/chat/completions".into()));
    assert_eq!((&request["status"], &request["completion_tokens"]), (&"200".into(), &3.into()));
    assert!(request["total_ms"].as_f64().is_some_and(|ms| ms > 0.0));
    assert!(!lines.concat().contains("xylophone"));
}

#[test]
fn bodies_are_logged_only_where_that_is_asked_for() {
    let (_, lines) = once(&["--log-prompts"], "", BODY);
    assert!(lines.iter().any(|line| line.contains("xylophone")), "{lines:?}");
    let (_, lines) = once(&["--log-level", "off"], "", BODY);
    assert!(lines.iter().all(|line| line.starts_with("lily: ")), "{lines:?}");
}

#[test]
fn a_key_file_locks_the_door() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "# ours\n\n  first \nsecond\n").expect("written");
    let path = file.path().to_str().expect("text");
    let (reply, _) = once(&["--api-key-file", path], "", BODY);
    assert!(reply.starts_with("HTTP/1.1 401"), "{reply}");
    let (reply, _) = once(&["--api-key-file", path], "Authorization: Bearer first\r\n", BODY);
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    std::fs::write(file.path(), "# none\n").expect("written");
    let refused = lily(&["serve", "--port", "0", "--api-key-file", path]).output().expect("runs");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("no key in it"), "{text}");
}
