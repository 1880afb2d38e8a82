//! `lily serve` under load and under signals, as its clients meet it: the real program, real sockets, the built-in model.
//! Names that begin with `c` and a number say which complaint about other servers the test answers.

mod http;
mod load;
mod scores;
mod service;
mod sessions;
#[path = "../support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use support::lily;

/// A server that is stopped when the test ends, however it ends.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Starts it with the built-in model on a free port.
    fn start(flags: &[&str]) -> Self {
        Self::spawn(lily(&[&["serve", "--port", "0", "--model", "lily-demo"], flags].concat()))
    }

    /// Starts it by this command and waits for the line that names its address.
    fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().expect("starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut seen = Vec::new();
        let address = loop {
            let line = lines.next().unwrap_or_else(|| panic!("no address in {seen:?}")).expect("UTF-8");
            if let Some(rest) = line.split("http://").nth(1) {
                break rest.split('/').next().unwrap_or_default().to_owned();
            }
            seen.push(line);
        };
        // What it says later must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    fn signal(&self, signal: &str) {
        let killed = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill");
        assert!(killed.success());
    }

    /// How it ended; it must do so in this time.
    fn wait(&mut self, patience: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("waits") {
                return status;
            }
            assert!(start.elapsed() < patience, "still running");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A chat request without thinking.
fn chat(words: &str, more: &str) -> String {
    let words = serde_json::Value::from(words);
    format!(
        r#"{{"messages": [{{"role": "user", "content": {words}}}], "temperature": 0,
        "chat_template_kwargs": {{"enable_thinking": false}}{more}}}"#
    )
}
