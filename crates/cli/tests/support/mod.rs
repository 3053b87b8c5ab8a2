//! Helpers of the tests of the command: images that mke2fs made, and the programs that judge them.

#![allow(dead_code, reason = "each binary of tests uses a part of this")]

pub(crate) mod mount;
pub(crate) mod peak;
pub(crate) mod tar;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// An image in a folder of its own.
pub(crate) struct Image {
    dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Image {
    /// What `mke2fs OPTIONS` makes, filled from `tree` if there is one.
    pub(crate) fn mke2fs(options: &[&str], tree: Option<&Path>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("v.img");
        let mut mke2fs = lanefs_tests::mke2fs_command(&[&["-t", "ext4"], options].concat());
        if let Some(tree) = tree {
            mke2fs.arg("-d").arg(tree);
        }
        mke2fs.arg(&path).arg("64M");
        succeed(&mut mke2fs);
        Self { dir, path }
    }

    /// A default image.
    pub(crate) fn new() -> Self {
        Self::mke2fs(&["-b", "4096"], None)
    }

    /// A path beside the image.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `v.img:/path`, to be run in the image's folder.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("v.img:{path}")
    }

    /// `lanefs ARGS` in the image's folder, where the image is `v.img`.
    pub(crate) fn lanefs<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lanefs"));
        command
            .args(args)
            .current_dir(self.dir.path())
            .env("TZ", "UTC")
            .env_remove("SOURCE_DATE_EPOCH")
            .env("RUST_BACKTRACE", "0");
        command
    }

    /// Runs it; it must succeed without a word on standard error.
    pub(crate) fn ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let out = self.lanefs(args).output().expect("lanefs");
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && stderr.is_empty(), "{}: {stderr}", out.status);
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Runs it; it must fail with `code` and say `message`.
    pub(crate) fn fails<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>, code: i32, message: &str) {
        let out = self.lanefs(args).output().expect("lanefs");
        assert_eq!(String::from_utf8_lossy(&out.stderr).trim_end(), message);
        assert_eq!(out.status.code(), Some(code), "{message}");
    }

    /// What debugfs prints for a request.
    pub(crate) fn debugfs(&self, request: &str) -> String {
        let out = succeed(tool("debugfs").args(["-R", request]).arg(&self.path));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// e2fsck must have nothing to say.
    pub(crate) fn fsck(&self) {
        let out = tool("e2fsck").args(["-fn"]).arg(&self.path).output().expect("e2fsck");
        assert!(out.status.success(), "e2fsck: {}\n{}", out.status, String::from_utf8_lossy(&out.stdout));
    }
}

/// A command of the system, which may live where only root looks.
pub(crate) fn tool(name: &str) -> Command {
    let mut command = lanefs_tests::tool(name);
    command.env("TZ", "UTC");
    command
}

/// Runs a command that must succeed.
pub(crate) fn succeed(command: &mut Command) -> Output {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    out
}

/// Runs a command with `input` on its standard input.
pub(crate) fn feed(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let out = child.wait_with_output().expect("output");
    writer.join().expect("the writer").expect("all written");
    out
}

/// The value of `Field: value` in a debugfs or dumpe2fs text, up to the next two blanks.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let at = text.find(name).unwrap_or_else(|| panic!("no {name} in\n{text}"));
    let rest = text[at + name.len()..].trim_start();
    rest.split(['\n', ' ']).next().unwrap_or(rest)
}
