//! The examples of the library do what their heads say.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panic")]

#[allow(dead_code, reason = "its main is the example's")]
#[path = "../examples/append_log.rs"]
mod append_log;

use append_log::Log;
use lanefs::Volume;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs an example, which cargo has built with this test, and returns what it printed.
fn example(name: &str, args: &[&str]) -> String {
    let this = std::env::current_exe().unwrap();
    let built = this.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    run(Command::new(built).args(args))
}

fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&out.stderr));
    said
}

fn e2fsck_clean(image: &Path) {
    run(Command::new("e2fsck").args(["-fn", text(image)]));
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn an_image_is_filled_alike_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder");
    fs::create_dir_all(folder.join("etc")).unwrap();
    fs::write(folder.join("etc/hostname"), "lane\n").unwrap();
    std::os::unix::fs::symlink("etc/hostname", folder.join("link")).unwrap();
    let (one, two) = (dir.path().join("one.img"), dir.path().join("two.img"));
    for image in [&one, &two] {
        example("fill_image", &[text(&folder), text(image)]);
    }
    e2fsck_clean(&one);
    assert!(fs::read(&one).unwrap() == fs::read(&two).unwrap());
    let volume = Volume::open_read_only(&one).unwrap();
    assert_eq!(volume.read("/link").unwrap(), b"lane\n");
    let listed = example("untrusted_image", &[text(&one)]);
    assert!(listed.contains("           5 \"/etc/hostname\"\n"), "{listed}");
    assert!(listed.ends_with("\n0 entries could not be read\n"), "{listed}");
}

#[test]
fn a_log_keeps_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("log.img");
    assert_eq!(example("append_log", &[text(&image), "one", "two"]), "one\ntwo\n");
    assert_eq!(example("append_log", &[text(&image), "three"]), "one\ntwo\nthree\n");
    e2fsck_clean(&image);
}

#[test]
fn writers_go_on_side_by_side() {
    let said = example("parallel_writers", &[]);
    assert_eq!(said.lines().count(), 8);
    assert!(said.starts_with("part 0: 1048576 bytes of 1\n"), "{said}");
    assert!(said.ends_with("part 7: 1048576 bytes of 8\n"), "{said}");
}

#[test]
fn threads_append_whole_records() {
    let volume = Volume::in_memory(16 << 20).unwrap();
    let log = Log::open(&volume, "/log").unwrap();
    std::thread::scope(|scope| {
        for thread in ["one", "two", "three", "four"] {
            let log = &log;
            scope.spawn(move || (0..250).for_each(|n| log.append(&format!("{thread} {n}")).unwrap()));
        }
    });
    let records = log.records().unwrap();
    for thread in ["one", "two", "three", "four"] {
        let whole = records.iter().filter_map(|record| record.strip_prefix(thread)?.strip_prefix(' '));
        let numbers: Vec<&str> = whole.collect();
        let wanted: Vec<String> = (0..250).map(|n: u32| n.to_string()).collect();
        assert_eq!(numbers, wanted, "{thread}");
    }
    assert_eq!(records.len(), 1000);
}
