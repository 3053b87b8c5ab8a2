//! Helpers of the judges: volumes, servers, and programs with a time limit.

use lanefs_sim::{Image as Medium, NbdServer, NbdSettings};
use lanefs_tests::{Mounted, Server, mke2fs};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// A server is killed after that, so that a judge fails and does not hang. The longest judges take
/// some minutes on a machine that has other work to do.
pub(crate) const LIMIT: Duration = Duration::from_secs(900);

/// How many times slower a busy machine may be than an idle one.
const SLOWER: u32 = 10;

/// The volumes that most judges use.
pub(crate) const SIZE: u64 = 512 << 20;

/// Returns the server under test: lanefs, or the peer that `LANEFS_SERVER` names.
pub(crate) fn judged() -> Server {
    match std::env::var("LANEFS_SERVER").as_deref() {
        Ok("kernel") => Server::Kernel,
        Ok("fuse2fs") => Server::Fuse2fs,
        Ok(other) => panic!("LANEFS_SERVER={other}: kernel or fuse2fs"),
        Err(_) => Server::Lanefs(env!("CARGO_BIN_EXE_lanefs").into()),
    }
}

/// Returns the options that make a mount usable by all users, with the permissions of the kernel's
/// ext4.
pub(crate) fn options(server: &Server) -> &'static str {
    match server {
        Server::Kernel | Server::KernelDirect => "",
        Server::Lanefs(_) | Server::Fuse2fs => "allow_other,default_permissions",
    }
}

/// A volume in a folder of its own.
pub(crate) struct Image {
    dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
    /// Options of lanefs beside [`options`], with commas before them.
    more: String,
}

impl Image {
    pub(crate) fn new(size: u64, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume.img");
        mke2fs(&path, size, &[&["-t", "ext4"], args].concat());
        Self { dir, path, more: String::new() }
    }

    /// The same volume, which lanefs mounts with another option.
    pub(crate) fn with(mut self, option: &str) -> Self {
        self.more = format!(",{option}");
        self
    }

    /// A path on the host, beside the image.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn mount(&self, server: &Server) -> Mounted {
        let more = if let Server::Lanefs(_) = server { &self.more } else { "" };
        Mounted::new(server, &self.path, &format!("{}{more}", options(server)), LIMIT)
    }
}

/// A disk that can lose its power: a server in this process, which loses what was not flushed.
pub(crate) struct Disk<'a> {
    image: &'a Image,
    server: NbdServer,
}

impl<'a> Disk<'a> {
    /// Begins with the volume in `image`.
    pub(crate) fn new(image: &'a Image) -> Self {
        let medium = Medium::from_bytes(std::fs::read(&image.path).unwrap());
        let server = NbdServer::start(image.dir.path(), medium, NbdSettings::default()).unwrap();
        Self { image, server }
    }

    /// Mounts it by lanefs, with these options alone.
    pub(crate) fn mount(&self, options: &str) -> Mounted {
        let server = Server::Lanefs(env!("CARGO_BIN_EXE_lanefs").into());
        Mounted::served(&server, (&self.server.url(""), &self.image.path), options, LIMIT)
    }

    /// Loses the connection of the mount, which waits until it can be made again after `resume`.
    pub(crate) fn pause(&self) {
        self.server.set_down(true);
        self.server.disconnect();
    }

    pub(crate) fn resume(&self) {
        self.server.set_down(false);
    }

    /// Cuts the power: no request is answered from now on. Returns what the disk may hold then:
    /// what was flushed, and that with a part of the rest.
    pub(crate) fn cut(&self, seed: u64) -> [Medium; 2] {
        self.pause();
        let flushed = self.server.durable();
        self.server.kill(seed);
        [flushed, self.server.image()]
    }
}

/// A program, with the folders where Debian keeps those of root. It is ended if it takes longer
/// than `seconds` would be on a machine that has nothing else to do.
pub(crate) fn bounded(seconds: u32, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = lanefs_tests::tool("timeout");
    command.env("TZ", "UTC");
    command.args(["-k", "5", &(seconds * SLOWER).to_string()]).arg(program);
    command
}

/// Compiles a program of this folder; where it is then.
pub(crate) fn compile(image: &Image, source: &str) -> PathBuf {
    compile_with(image, source, &[])
}

/// Compiles a program of this folder with `libraries`; where it is then.
pub(crate) fn compile_with(image: &Image, source: &str, libraries: &[&str]) -> PathBuf {
    let program = image.beside(source.trim_end_matches(".c"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/judges").join(source);
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"];
    must(bounded(60, "cc").args(flags).arg(&program).arg(source).args(libraries));
    program
}

/// Runs it, and wants success. What it printed on its standard output.
#[track_caller]
pub(crate) fn must(command: &mut Command) -> String {
    let out = output(command);
    assert!(out.status.success(), "{command:?}: {}\n{}", out.status, said(&out));
    String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
}

#[track_caller]
pub(crate) fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|e| panic!("{command:?}: {e}; `make test` installs what it lacks"))
}

/// Both streams.
pub(crate) fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// A script of the shell in `dir`, which stops at the first failure.
#[track_caller]
pub(crate) fn shell(dir: &Path, script: &str) -> String {
    must(bounded(200, "bash").args(["-euo", "pipefail", "-c", script]).current_dir(dir))
}

/// A judge from crates.io.
pub(crate) fn from_crates(name: &str) -> PathBuf {
    lanefs_tests::kept(&format!("bin/{name}"))
}

/// What kernel ext4 and the judged server make of the same work, as trees to be compared.
pub(crate) fn both(
    size: u64,
    mut work: impl FnMut(&Path) -> Vec<lanefs_tests::TreeEntry>,
) -> [Vec<lanefs_tests::TreeEntry>; 2] {
    [Server::Kernel, judged()].map(|server| {
        let image = Image::new(size, &[]);
        let mounted = image.mount(&server);
        let tree = work(mounted.path());
        mounted.unmount();
        // And it is the same for the kernel afterwards.
        let mounted = image.mount(&Server::Kernel);
        let again = work_again(mounted.path(), &tree);
        mounted.unmount();
        lanefs_tests::assert_same_tree(&tree, &again);
        tree
    })
}

fn work_again(root: &Path, tree: &[lanefs_tests::TreeEntry]) -> Vec<lanefs_tests::TreeEntry> {
    let mut again = lanefs_tests::tree_listing(root);
    // What the tree leaves out of a comparison, it leaves out here.
    if tree.iter().all(|e| e.mtime == (0, 0)) {
        again.iter_mut().for_each(|e| e.mtime = (0, 0));
    }
    if tree.iter().all(|e| e.data.is_empty()) {
        again.iter_mut().for_each(|e| e.data.clear());
    }
    again
}
