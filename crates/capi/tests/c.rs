//! C programs against the installed library: found by pkg-config, linked with the shared and with
//! the static one, judged by e2fsck.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

use lanefs_tests::{debugfs_write, e2fsck_clean, mke2fs, require_tools, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library, installed as a user would.
struct Installed {
    dir: tempfile::TempDir,
}

impl Installed {
    fn new() -> Self {
        require_tools(&["cc", "pkg-config"]);
        let dir = tempfile::tempdir().unwrap();
        // Cargo puts the library that this test is linked with beside it.
        let built = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
        let mut install = Command::new(root().join("scripts/install-lib.sh"));
        install.arg(built).env("DESTDIR", dir.path()).env("PREFIX", "/opt/lanefs").env_remove("LIBDIR");
        succeed(&mut install);
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What pkg-config says of the library, as if DESTDIR were the root.
    fn flags(&self, args: &[&str]) -> Vec<String> {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config
            .args(args)
            .arg("lanefs")
            .env("PKG_CONFIG_PATH", self.path("opt/lanefs/lib/pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", self.dir.path());
        succeed(&mut pkg_config).split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles one C file and links it with the library. `static` links only lanefs statically;
    /// `whole` links every library statically, with the flags of pkg-config alone.
    fn compile(&self, source: &Path, linked: &str) -> PathBuf {
        let program = self.path(&format!("{}-{linked}", source.file_stem().unwrap().to_str().unwrap()));
        let mut cc = Command::new("cc");
        if linked == "sanitized" {
            cc.args(["-fsanitize=address,undefined", "-fno-sanitize-recover"]);
        }
        cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"])
            .arg(format!("-DVERSION=\"{}\"", env!("CARGO_PKG_VERSION")))
            .args(self.flags(&["--cflags"]))
            .arg(source)
            .arg("-o")
            .arg(&program);
        if linked == "static" {
            cc.arg(self.path("opt/lanefs/lib/liblanefs.a"));
            let libs = self.flags(&["--libs", "--static"]);
            cc.args(libs.iter().filter(|flag| *flag != "-llanefs"));
        } else if linked == "whole" {
            cc.arg("-static").args(self.flags(&["--static", "--libs"]));
        } else {
            cc.args(self.flags(&["--libs"]));
        }
        succeed(&mut cc);
        program
    }

    /// Runs a program that was compiled, and returns what it printed.
    fn run(&self, program: &Path, args: &[&Path]) -> String {
        succeed(Command::new(program).args(args).env("LD_LIBRARY_PATH", self.path("opt/lanefs/lib")))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

fn succeed(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {}\n{stdout}{stderr}", out.status);
    stdout.into_owned()
}

#[test]
fn every_call_and_its_failures() {
    let installed = Installed::new();
    for linked in ["shared", "static", "sanitized"] {
        for (file, said) in [
            ("calls", "all calls answered\n"),
            ("relative", "all places found\n"),
            ("batch", "all batches carried out\n"),
            ("signals", "signals reach the program\n"),
        ] {
            let program = installed.compile(&source(&format!("{file}.c")), linked);
            let volume = installed.path(&format!("{file}-{linked}.img"));
            assert_eq!(installed.run(&program, &[&volume]), said);
            e2fsck_clean(&volume);
        }
    }
}

#[test]
fn many_threads() {
    let installed = Installed::new();
    let program = installed.compile(&source("threads.c"), "shared");
    let volume = installed.path("threads.img");
    assert_eq!(installed.run(&program, &[&volume]), "all threads agree\n");
    e2fsck_clean(&volume);
}

#[test]
fn flags_of_files() {
    let installed = Installed::new();
    let program = installed.compile(&source("flags.c"), "shared");
    let (volume, content) = (installed.path("flags.img"), installed.path("content"));
    mke2fs(&volume, 16 << 20, &["-t", "ext4"]);
    std::fs::write(&content, "line").unwrap();
    for (name, flags) in [("plain", "0x80000"), ("append", "0x80020"), ("immutable", "0x80010")] {
        debugfs_write(&volume, &format!("write {} {name}", content.display()));
        debugfs_write(&volume, &format!("set_inode_field /{name} flags {flags}"));
    }
    assert_eq!(installed.run(&program, &[&volume]), "all flags heeded\n");
    e2fsck_clean(&volume);
}

#[test]
fn the_example() {
    let installed = Installed::new();
    let program = installed.compile(&root().join("examples/c/notes.c"), "shared");
    let volume = installed.path("notes.img");
    assert_eq!(installed.run(&program, &[&volume, Path::new("one")]), "one\n");
    assert_eq!(installed.run(&program, &[&volume, Path::new("two")]), "one\ntwo\n");
    e2fsck_clean(&volume);
    assert_eq!(lanefs_tests::debugfs(&volume, "cat /notes"), "one\ntwo\n");
    let program = installed.compile(&root().join("examples/c/notes.c"), "whole");
    assert_eq!(installed.run(&program, &[&volume, Path::new("three")]), "one\ntwo\nthree\n");
    let dynamic = run("readelf", &["-d".as_ref(), program.as_os_str()]);
    assert!(!dynamic.contains("NEEDED"), "{dynamic}");
}

/// What is in the shared library for others: the functions of the header, under the name that
/// programs ask for.
#[test]
fn the_shared_library_has_its_name_and_nothing_else() {
    let installed = Installed::new();
    let library = installed.path("opt/lanefs/lib/liblanefs.so");
    let dynamic = run("readelf", &["-d".as_ref(), library.as_os_str()]);
    assert!(dynamic.contains("[liblanefs.so.0]") && dynamic.contains("NODELETE"), "{dynamic}");
    let symbols = run("nm", &["-D".as_ref(), "--defined-only".as_ref(), library.as_os_str()]);
    let header = std::fs::read_to_string(installed.path("opt/lanefs/include/lanefs.h")).unwrap();
    for symbol in symbols.lines().filter_map(|line| line.split_whitespace().last()) {
        assert!(header.contains(&format!("{symbol}(")), "exported and not declared: {symbol}");
    }
    assert!(symbols.lines().count() > 40);
}
