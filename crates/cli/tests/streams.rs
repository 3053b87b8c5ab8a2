//! Standard output and standard error: what cannot be written there, and the order of what goes to
//! both.

use crate::support::{Image, succeed, tool};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").expect("/dev/full")
}

/// An image with the files `a` and `b`, whose content is their name.
fn sample() -> Image {
    let v = Image::new();
    for name in ["a", "b"] {
        fs::write(v.beside(name), format!("{name}\n")).expect("write");
        v.ok(["cp", name, "v.img:/"]);
    }
    v
}

/// Of many names that cannot be written, the first ends the command.
#[test]
fn a_full_output_is_told_once() {
    let v = Image::new();
    fs::create_dir(v.beside("d")).expect("mkdir");
    for number in 0..3000 {
        fs::write(v.beside(&format!("d/a-name-of-a-file-that-is-rather-long-{number}")), "").expect("write");
    }
    v.ok(["cp", "-r", "d", "v.img:/"]);
    for command in [&["find", "v.img:/d"][..], &["tree", "v.img:/d"], &["rm", "-rv", "v.img:/d"]] {
        let out = v.lanefs(command).stdout(full()).output().expect("lanefs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(said, "lanefs: cannot write to standard output: No space left on device\n", "{command:?}");
        assert_eq!(out.status.code(), Some(1), "{command:?}");
    }
    // The volume was closed all the same.
    v.fsck();
}

/// What cannot be told is no reason to panic.
#[test]
fn a_full_standard_error_leaves_the_exit_code() {
    let v = sample();
    let mut missing = v.lanefs(["ls", "none.img"]);
    assert_eq!(missing.stderr(full()).status().expect("lanefs").code(), Some(2));
    let mut counted = v.lanefs(["cp", "--stats", "a", "v.img:/c"]);
    assert_eq!(counted.stderr(full()).status().expect("lanefs").code(), Some(0));
    v.fsck();
}

#[test]
fn a_failure_follows_what_was_written_before_it() {
    let v = sample();
    let log = File::create(v.beside("log")).expect("create");
    let mut cat = v.lanefs(["cat", "v.img:/a", "v.img:/none", "v.img:/b"]);
    cat.stdout(log.try_clone().expect("a descriptor")).stderr(log);
    assert_eq!(cat.status().expect("lanefs").code(), Some(1));
    let said = fs::read_to_string(v.beside("log")).expect("read");
    assert_eq!(said, "a\nlanefs: cannot open 'v.img:/none': No such file or directory\nb\n");
}

/// A line is on the terminal while the command goes on, here with standard input.
#[test]
fn a_terminal_gets_each_line_at_once() {
    let v = sample();
    succeed(tool("mkfifo").arg(v.beside("fifo")));
    // Opened for both, it waits for no reader.
    let held = OpenOptions::new().read(true).write(true).open(v.beside("fifo")).expect("fifo");
    // script(1) gives the command a terminal.
    let line = format!("{} cat v.img:/a - < fifo", env!("CARGO_BIN_EXE_lanefs"));
    let mut script = tool("script");
    script.args(["-qec", &line, "/dev/null"]).current_dir(v.beside(""));
    let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script");
    let lines = BufReader::new(script.stdout.take().expect("a pipe")).lines();
    let (sender, came) = channel();
    let reader = thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    // Not how fast, but that it comes at all.
    let first = came.recv_timeout(Duration::from_secs(60));
    drop(held);
    script.wait().expect("wait");
    drop(came);
    let _ = reader.join().expect("the reader");
    assert_eq!(first.as_deref().map(str::trim_end), Ok("a"));
}
