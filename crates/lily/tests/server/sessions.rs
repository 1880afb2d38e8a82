//! Earlier turns over restarts.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Server, http};

fn start(folder: &Path) -> Server {
    Server::start(&["--session-dir", folder.to_str().expect("UTF-8")])
}

/// Asks a long question; how many tokens of it were cached, and the answer.
fn ask(server: &Server) -> (u64, String) {
    let words = "The train goes over the hills to the sea. ".repeat(40);
    let body = json!({
        "messages": [{"role": "system", "content": words}, {"role": "user", "content": "What is 27 + 58?"}],
        "temperature": 0, "chat_template_kwargs": {"enable_thinking": false},
    });
    let reply = http::post(&server.address, "/v1/chat/completions", &body.to_string());
    let reply: Value = serde_json::from_str(&reply.body).expect("JSON");
    let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count");
    (cached, reply["choices"][0]["message"]["content"].as_str().expect("a text").to_owned())
}

#[test]
fn a_restart_keeps_them_and_after_a_pause_so_does_a_kill() {
    for signal in ["-TERM", "-KILL"] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = start(folder.path());
        let (cached, cold) = ask(&server);
        assert_eq!(cached, 0);
        let start_of_pause = Instant::now();
        let on_disk = || {
            let metrics = http::get(&server.address, "/metrics").body;
            let line = metrics.lines().find_map(|line| line.strip_prefix("lily_disk_snapshots ")).map(str::to_owned);
            line.and_then(|count| count.parse::<f64>().ok()).expect("a gauge")
        };
        while signal == "-KILL" && on_disk() < 3.0 {
            assert!(start_of_pause.elapsed() < Duration::from_secs(60), "nothing was written");
            std::thread::sleep(Duration::from_millis(200));
        }
        server.signal(signal);
        server.wait(Duration::from_secs(20));
        let (cached, warm) = ask(&start(folder.path()));
        assert!(cached > 300, "{signal}: {cached} tokens");
        assert_eq!(warm, cold);
    }
}
