//! The examples of the library do what their heads say.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panic")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs an example, which cargo has built with this test, and returns what it printed.
fn example(name: &str, args: [&Path; 2]) -> String {
    let this = std::env::current_exe().unwrap();
    let built = this.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    let out = Command::new(built).args(args).output().unwrap();
    let said = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    said
}

#[test]
fn a_root_disk_is_the_same_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let [folder, disk] = ["folder", "root.img"].map(|name| dir.path().join(name));
    fs::create_dir_all(folder.join("etc")).unwrap();
    fs::write(folder.join("etc/hostname"), "lane\n").unwrap();
    let first = example("build-rootfs", [&folder, &disk]);
    assert!(first.starts_with("2 names, 5 bytes of data, in a file of "), "{first}");
    assert_eq!(first, example("build-rootfs", [&folder, &disk]));
    let out = Command::new("e2fsck").arg("-fn").arg(&disk).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    let volume = lanefs::Volume::open_read_only(&disk).unwrap();
    assert_eq!(volume.read("/etc/hostname").unwrap(), b"lane\n");
}
