//! What service managers read: files that parse and name what is there, and a server that tells when it is ready.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::support::{lily, run, stderr, stdout};
use super::{Server, http};

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

fn text(file: &str) -> String {
    fs::read_to_string(packaging(file)).expect(file)
}

const UNITS: [&str; 2] = ["systemd/lily.service", "systemd/lily-system.service"];
const ALL: [&str; 4] = [UNITS[0], UNITS[1], "launchd/lily.plist", "homebrew/lily.rb"];

/// What a checker says of a file; none if there is no such program.
fn checked(program: &str, args: &[&str]) -> Option<Result<(), String>> {
    let output = Command::new(program).args(args).output().ok()?;
    Some(if output.status.success() { Ok(()) } else { Err(format!("{}{}", stdout(&output), stderr(&output))) })
}

#[test]
fn systemd_is_told_when_the_server_is_ready_and_when_it_stops() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let told = || {
        let mut message = [0; 256];
        let length = socket.recv(&mut message).expect("a message");
        String::from_utf8_lossy(&message[..length]).trim().to_owned()
    };
    let mut command = lily(&["serve", "--port", "0", "--model", "lily-demo"]);
    command.env("NOTIFY_SOCKET", &path);
    let mut server = Server::spawn(command);
    assert_eq!(told(), "READY=1");
    assert_eq!(http::get(&server.address, "/health/ready").status, 200);
    server.signal("-TERM");
    assert_eq!(told(), "STOPPING=1");
    assert!(server.wait(Duration::from_secs(15)).success());
}

#[test]
fn the_files_start_the_server_with_settings_that_it_has() {
    for file in ALL {
        let text = text(file);
        let names: Vec<&str> = text
            .split("LILY_")
            .skip(1)
            .map(|rest| rest.split(['=', '<', ':', '"', ' ']).next().unwrap_or_default())
            .collect();
        for name in names.iter().filter(|name| **name != "SOURCE") {
            let variable = format!("LILY_{name}");
            let output = lily(&["config", "serve"]).env(&variable, "json").output().expect("starts");
            assert!(stdout(&output).contains(&variable), "{file}: {variable}: {}", stderr(&output));
        }
        assert!(text.contains("serve"), "{file}");
    }
    for unit in UNITS {
        let text = text(unit);
        let start = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect(unit);
        let words: Vec<&str> = start.split(' ').skip(1).chain(["--help"]).collect();
        let output = run(&words);
        assert!(output.status.success() && stdout(&output).contains("--port"), "{unit}: {}", stderr(&output));
    }
}

#[test]
fn systemd_units_are_well_formed() {
    for unit in UNITS {
        let mut section = "";
        for line in text(unit).lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.strip_prefix('[') {
                Some(name) => {
                    section = ["Unit]", "Service]", "Install]"]
                        .into_iter()
                        .find(|known| *known == name)
                        .expect(unit)
                        .trim_end_matches(']')
                }
                None => assert!(!section.is_empty() && line.contains('='), "{unit}: {line}"),
            }
        }
        // systemd's own check wants the program at its place, and a manual page that is installed.
        let folder = tempfile::tempdir().expect("a folder");
        let copy = folder.path().join("lily.service");
        let program = env!("CARGO_BIN_EXE_lily");
        let real = text(unit).replace("%h/.local/bin/lily", program).replace("/usr/local/bin/lily", program);
        fs::write(&copy, real.replace("Documentation=man:lily-serve(1)\n", "")).expect("writes");
        match checked("systemd-analyze", &["verify", copy.to_str().expect("UTF-8")]) {
            None => println!("SKIP systemd_units_are_well_formed: there is no systemd-analyze"),
            Some(Err(words)) if words.contains("Failed to initialize manager") => {
                println!("SKIP systemd_units_are_well_formed: systemd-analyze does not work here: {}", words.trim());
            }
            Some(result) => assert_eq!(result, Ok(()), "{unit}"),
        }
    }
}

#[test]
fn the_launchd_agent_is_a_property_list() {
    let path = packaging("launchd/lily.plist");
    let path = path.to_str().expect("UTF-8");
    let read = "import plistlib, sys; agent = plistlib.load(open(sys.argv[1], 'rb')); \
                assert agent['Label'] == 'lily' and agent['ProgramArguments'][-1].count(' serve') == 1";
    let results = [checked("plutil", &["-lint", path]), checked("python3", &["-c", read, path])];
    if results.iter().all(Option::is_none) {
        println!("SKIP the_launchd_agent_is_a_property_list: there is no plutil and no python3");
    }
    for result in results.into_iter().flatten() {
        assert_eq!(result, Ok(()));
    }
}

#[test]
fn the_formula_is_ruby() {
    let path = packaging("homebrew/lily.rb");
    match checked("ruby", &["-c", path.to_str().expect("UTF-8")]) {
        None => println!("SKIP the_formula_is_ruby: there is no ruby"),
        Some(result) => assert_eq!(result, Ok(())),
    }
    let text = text("homebrew/lily.rb");
    for block in ["def install", "service do", "test do"] {
        assert!(text.contains(block), "{block}");
    }
}

#[test]
fn the_page_is_served_with_its_policy_and_needs_no_key() {
    let server = Server::start(&["--api-key", "k"]);
    let page = http::get(&server.address, "/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.header("content-security-policy").is_some_and(|policy| policy.starts_with("default-src 'none'; ")));
    assert!(page.body.starts_with("<!doctype html>") && page.body.ends_with("</html>\n"));
    assert_eq!(http::get(&server.address, "/v1/models").status, 401);
}
