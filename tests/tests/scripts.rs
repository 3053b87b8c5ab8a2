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
