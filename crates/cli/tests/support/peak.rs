//! The command, and the most memory that it had.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Bytes of memory that an import or a build may have, whatever it reads.
const BOUND_MIB: u64 = 256;

/// A folder of a test.
pub(crate) struct Bench(tempfile::TempDir);

/// The result of a run of the command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) said: String,
    /// The most memory that it had at a time.
    pub(crate) peak_mib: u64,
}

impl Ran {
    /// The run had no more memory than any may have.
    #[track_caller]
    pub(crate) fn is_bounded(&self, what: &str) {
        eprintln!("{what}: {} MiB", self.peak_mib);
        assert!(self.peak_mib <= BOUND_MIB, "{what}: {} MiB of memory", self.peak_mib);
    }
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a script in the folder; it must succeed. What it says.
    pub(crate) fn sh(&self, script: &str) -> String {
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", script]).current_dir(self.0.path()).env("PATH", path);
        let out = bash.env_remove("SOURCE_DATE_EPOCH").output().expect("bash");
        assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Runs `lanefs ARGS` in the folder.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.fed(args, |_| Ok(()))
    }

    /// As [`run`](Self::run), with what `write` writes on its standard input.
    pub(crate) fn fed(
        &self,
        args: &[&str],
        write: impl FnOnce(Box<dyn Write>) -> std::io::Result<()> + Send + 'static,
    ) -> Ran {
        let mut time = Command::new("/usr/bin/time");
        time.args(["-q", "-f", "%M", "-o", "peak", env!("CARGO_BIN_EXE_lanefs")]).args(args);
        time.current_dir(self.0.path()).env_remove("SOURCE_DATE_EPOCH").env("RUST_BACKTRACE", "0");
        time.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = time.spawn().expect("time(1)");
        let stdin = child.stdin.take().expect("a pipe");
        // A command that ends early reads no further.
        let writer = std::thread::spawn(move || drop(write(Box::new(BufWriter::new(stdin)))));
        let out = child.wait_with_output().expect("output");
        writer.join().expect("the writer");
        let peak = std::fs::read_to_string(self.at("peak")).expect("what time(1) wrote");
        Ran {
            code: out.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&out.stdout).into_owned(),
            said: String::from_utf8_lossy(&out.stderr).into_owned(),
            peak_mib: peak.trim().parse::<u64>().expect("KiB").div_ceil(1024),
        }
    }
}
