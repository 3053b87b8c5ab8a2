//! check: output, JSON and exit status, held against e2fsck's.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

mod support;

use serde_json::Value;
use support::{Image, succeed, tool};

/// Runs check, and returns its exit status and what it printed.
fn check(v: &Image, args: &[&str]) -> (Option<i32>, String) {
    let out = v.lanefs([&["check"], args].concat()).output().expect("lanefs");
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
}

fn e2fsck(v: &Image) -> Option<i32> {
    tool("e2fsck").arg("-fn").arg(&v.path).output().expect("e2fsck").status.code()
}

#[test]
fn a_whole_volume_is_clean_and_stays_as_it_is() {
    let v = Image::new();
    let before = std::fs::read(&v.path).expect("the image");
    let (code, said) = check(&v, &["v.img"]);
    assert_eq!((code, e2fsck(&v)), (Some(0), Some(0)));
    assert!(said.starts_with("'v.img': clean; ") && said.lines().count() == 1, "{said}");
    let (code, said) = check(&v, &["--json", "v.img:/"]);
    let json: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((code, &json["clean"], &json["directories"]), (Some(0), &true.into(), &2.into()));
    assert!(before == std::fs::read(&v.path).expect("the image"));
}

#[test]
fn findings_have_structure_number_and_rule() {
    let v = Image::new();
    succeed(tool("debugfs").args(["-w", "-R", "set_inode_field / links_count 7"]).arg(&v.path));
    let (code, said) = check(&v, &["v.img"]);
    assert_eq!((code, e2fsck(&v)), (Some(4), Some(4)));
    assert!(
        said.starts_with("inode 2: i_links_count is 7, 3 entries lead to it\n'v.img': 1 finding; "),
        "{said}"
    );
    let (code, said) = check(&v, &["--json", "v.img"]);
    let json: Value = serde_json::from_str(&said).expect("JSON");
    let finding = &json["findings"][0];
    assert_eq!((code, &json["clean"], &json["count"]), (Some(4), &false.into(), &1.into()));
    assert_eq!((&finding["structure"], &finding["inode"]), (&"inode".into(), &2.into()));
    assert_eq!(finding["rule"], "Links");
}

#[test]
fn what_cannot_be_checked_ends_with_eight() {
    let v = Image::new();
    std::fs::write(v.beside("zeros"), vec![0; 1 << 20]).expect("write");
    v.fails(["check", "missing"], 8, "lanefs: cannot open 'missing': No such file or directory; lanefs mkfs --size 1G VOLUME makes a volume");
    let zeros = "superblock: s_magic is 0x0000, not 0xef53: not an ext2, ext3 or ext4 volume";
    v.fails(["check", "zeros"], 8, &format!("lanefs: cannot check 'zeros': {zeros}"));
    let out = v.lanefs(["check"]).output().expect("lanefs");
    assert_eq!(out.status.code(), Some(16));
}

/// A volume that is open for writing changes under the check, and is refused in one line.
#[test]
fn a_volume_in_use_is_refused() {
    let v = Image::new();
    let volume = lanefs::Volume::open(&v.path).expect("the volume");
    let out = v.lanefs(["check", "v.img"]).output().expect("lanefs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(8), "{said}");
    assert!(said.lines().count() == 1 && said.contains("is in use"), "{said}");
    volume.close().expect("closed");
    assert_eq!(check(&v, &["v.img"]).0, Some(0));
}

/// A journal that was not replayed is replayed in memory.
#[test]
fn a_volume_that_was_not_closed_is_checked_as_recovered() {
    let v = Image::new();
    let volume = lanefs::Volume::open(&v.path).expect("the volume");
    volume.create_dir("/dir").expect("a directory");
    volume.sync().expect("synced");
    std::fs::copy(&v.path, v.beside("copy.img")).expect("a copy");
    volume.close().expect("closed");
    let (code, said) = check(&v, &["copy.img"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("journal replayed in memory") && said.contains("(3 directories)"), "{said}");
}
