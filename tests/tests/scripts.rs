//! Scripts of the project that decide whether a run has passed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panic")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// What `scripts/test-summary.sh` says of the output of a run of tests, and whether the run passed.
fn summary(said: &str, status: &str, left: &str) -> (Vec<String>, bool) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/test-summary.sh");
    let mut command = Command::new(script);
    command.args([status, "77", left]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(said.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    (text.lines().map(str::to_owned).collect(), out.status.success())
}

const GOOD: &str = "     Running unittests src/lib.rs (target/debug/deps/lanefs-e493bfd8a468a6ab)
test a ... ok
test result: ok. 7 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.06s
   Doc-tests lanefs
test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.37s
";

const BAD: &str = "     Running tests/mount.rs (target/debug/deps/mount-0123)
failures:

---- b stdout ----
    what it said

failures:
    b
    deep::c

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.06s
error: test failed, to rerun pass `-p lanefs-cli --test mount`
";

const DEAD: &str = "     Running tests/top.rs (target/debug/deps/top-4567)
error: test failed, to rerun pass `-p lanefs-cli --test top`
  process didn't exit successfully: (signal: 6, SIGABRT: process abort signal)
";

#[test]
fn the_summary_of_a_good_run() {
    let (lines, passed) = summary(GOOD, "0", "");
    assert!(passed, "{lines:?}");
    assert_eq!(lines[lines.len() - 2..], ["3 ignored", "9 passed, 0 failed"]);
}

#[test]
fn every_kind_of_failure_is_counted_and_named() {
    let (lines, passed) = summary(&[BAD, DEAD, GOOD].concat(), "101", ".tmpAbC");
    assert!(!passed);
    let failed: Vec<&String> = lines.iter().filter(|line| line.starts_with("FAILED ")).collect();
    let named = [
        "FAILED tests/mount.rs b",
        "FAILED tests/mount.rs deep::c",
        "FAILED tests/top.rs: died without a result",
        "FAILED 1 left in TMPDIR: .tmpAbC",
    ];
    assert_eq!(failed, named);
    assert_eq!(lines.last().unwrap(), "10 passed, 4 failed");
    // The last binary died.
    assert_eq!(summary(&[GOOD, DEAD].concat(), "101", "").0.last().unwrap(), "9 passed, 1 failed");
    // Nothing was built.
    let (lines, passed) = summary("error[E0308]: mismatched types\n", "101", "");
    assert_eq!((lines.last().unwrap().as_str(), passed), ("0 passed, 1 failed", false));
    let many = BAD.repeat(30);
    let (lines, _) = summary(&many, "101", "");
    assert!(lines.len() <= 13, "{lines:?}");
    assert_eq!(lines.last().unwrap(), "30 passed, 60 failed");
}

/// Whether `scripts/filtered.sh` takes a run for one of tests that says this, with these filters.
fn is_run(said: &str, filters: &[&str]) -> bool {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/filtered.sh");
    let mut command = Command::new(script);
    command.args(["echo", said, "--"]).args(filters).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().unwrap().success()
}

#[test]
fn a_filter_that_matches_nothing_is_a_failure() {
    let none = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 9 filtered out\n";
    let one = "running 1 test\ntest gate::tests::opens ... ok\n";
    assert!(!is_run(none, &[]) && !is_run(none, &["gate::"]));
    let both = [none, one].concat();
    assert!(is_run(&both, &[]) && is_run(&both, &["gate::", "--test-threads=1"]));
    assert!(!is_run(&both, &["gate::", "flush::"]));
}

/// What a mutant's patch says in its first lines.
fn field<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let prefix = format!("# {key}: ");
    text.lines().take(3).find_map(|line| line.strip_prefix(&prefix)).filter(|value| !value.is_empty())
}

/// A patch that applies no more proves nothing, and `make mutants` runs seldom.
#[test]
fn every_mutant_applies_and_names_what_kills_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let table = std::fs::read_to_string(root.join("docs/mutants.md")).unwrap();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("tests/mutants")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let breaks = field(&text, "breaks").unwrap_or_else(|| panic!("{name}: breaks is missing"));
        let command = field(&text, "killed-by").unwrap_or_else(|| panic!("{name}: killed-by is missing"));
        let known = ["cargo run ", "cargo test ", "scripts/schedules.sh "];
        assert!(known.iter().any(|start| command.starts_with(start)), "{name}: {command}");
        assert!(field(&text, "finds").is_some(), "{name}: finds is missing");
        let shown = command.trim_start_matches("cargo ").replace('|', "\\|");
        let row = format!("| `{name}` | {breaks} | `{shown}` |");
        assert!(table.contains(&row), "docs/mutants.md: no row\n{row}");
        let mut patch = Command::new("patch");
        patch.args(["--dry-run", "--silent", "--strip=1", "--fuzz=0", "--directory"]).arg(&root);
        let out = patch.stdin(std::fs::File::open(&path).unwrap()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{name} does not apply: make the patch again\n{said}");
        names.push(name);
    }
    assert!(names.len() > 50, "{names:?}");
    let rows = table.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, names.len(), "docs/mutants.md has rows of patches that are gone");
}
