//! LMDB, with its pages written through a map of the file and without: the writer is killed, and in
//! turn the mount. Every transaction that LMDB acknowledged must be there.

use crate::support::{Image, bounded, compile_with, judged, must};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The place of a database, and how it is opened: `0`, or `w` for MDB_WRITEMAP.
struct Database<'a> {
    program: &'a Path,
    flags: &'a str,
}

impl Database<'_> {
    fn command(&self, what: &str, folder: &Path) -> Command {
        let mut command = bounded(200, self.program);
        command.arg(what).arg(folder).arg(self.flags);
        command
    }

    /// Checks all records; returns the last transaction. A folder without a database gets one.
    fn check(&self, folder: &Path) -> u64 {
        let last = must(&mut self.command("check", folder)).parse().unwrap();
        must(bounded(60, "mdb_stat").arg("-ef").arg(folder));
        last
    }

    /// Starts a writer that goes on after transaction `from`.
    fn writer(&self, folder: &Path, from: u64) -> Writer {
        let mut command = Command::new(self.program);
        command.arg("write").arg(folder).arg(self.flags).arg(from.to_string());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Writer { child, acknowledged: lines, last: from }
    }
}

struct Writer {
    child: Child,
    acknowledged: BufReader<std::process::ChildStdout>,
    last: u64,
}

impl Writer {
    /// Takes the next number; `false` at the end. A line without its end was not printed whole.
    fn next(&mut self) -> bool {
        let mut line = String::new();
        let n = self.acknowledged.read_line(&mut line).unwrap_or(0);
        match line.strip_suffix('\n').filter(|_| n > 0) {
            Some(number) => self.last = number.parse().unwrap(),
            None => return false,
        }
        true
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn killed(flags: &str, rounds: u64) {
    let image = Image::new(1 << 30, &[]);
    let program = compile_with(&image, "lmdb.c", &["-llmdb"]);
    let database = Database { program: &program, flags };
    let server = judged();
    for round in 0..rounds {
        let mounted = image.mount(&server);
        let folder = mounted.path().join("db");
        fs::create_dir_all(&folder).unwrap();
        let from = database.check(&folder);
        let mut writer = database.writer(&folder, from);
        let enough = from + 50 + 37 * (round % 5);
        while writer.last < enough {
            assert!(writer.next(), "the writer ended after {}", writer.last);
        }
        let kills_mount = round % 2 == 1;
        if kills_mount {
            mounted.kill(|| writer.kill());
        } else {
            writer.kill();
            mounted.unmount();
        }
        while writer.next() {}
        let mounted = image.mount(&server);
        let found = database.check(&mounted.path().join("db"));
        assert!(found >= writer.last, "{} acknowledged, {found} found, round {round}", writer.last);
        mounted.unmount();
    }
}

#[test]
#[ignore = "long: make judge-mount"]
fn lmdb_whose_map_is_written() {
    killed("w", 10);
}

#[test]
#[ignore = "long: make judge-mount"]
fn lmdb_that_writes_by_call() {
    killed("0", 10);
}
