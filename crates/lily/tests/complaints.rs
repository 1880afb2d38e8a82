//! `complaints.md` lists what users of other servers reported. Each row names the tests that show that it cannot happen
//! here, or says why it does not apply.

use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn every_complaint_names_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = String::new();
    for folder in ["../lily/src", "../lily/tests", "../lily-engine", "../lily-kernels"] {
        read(&root.join(folder), &mut sources);
    }
    let list = fs::read_to_string(root.join("tests/complaints.md")).expect("the list");
    let mut rows = 0;
    for line in list.lines().filter(|line| line.starts_with("| C")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 3, "{line}");
        let (row, held_by) = (cells[0], cells[2]);
        let tests: Vec<&str> = held_by.split('`').skip(1).step_by(2).collect();
        let reason = held_by.strip_prefix("does not apply:").is_some_and(|reason| !reason.trim().is_empty());
        assert!(reason || !tests.is_empty(), "{row}: neither a test nor a reason");
        for test in tests.iter().filter(|_| !reason) {
            assert!(sources.contains(&format!("fn {test}(")), "{row}: there is no test {test}");
        }
        rows += 1;
    }
    assert!(rows > 0, "no row was read");
}

fn read(folder: &Path, into: &mut String) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            read(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *into += &fs::read_to_string(&path).expect("a source");
        }
    }
}
