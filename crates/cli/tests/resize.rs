//! resize: sizes, files, partitions, and what is refused.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

mod support;

use serde_json::Value;
use std::fs::File;
use support::Image;

fn len(v: &Image) -> u64 {
    v.path.metadata().expect("the image").len()
}

#[test]
fn grows_a_volume_and_its_file() {
    let v = Image::new();
    v.ok(["mkdir", "v.img:/d"]);
    assert_eq!(
        v.ok(["resize", "v.img", "1G"]),
        "'v.img': 1.0G instead of 64M, 262144 blocks of 4096 bytes, 131072 inodes\n"
    );
    assert_eq!(len(&v), 1 << 30);
    v.fsck();
    let told: Value = serde_json::from_str(&v.ok(["resize", "--json", "v.img", "+1G"])).expect("JSON");
    assert_eq!(told["blocks_before"], 262_144);
    assert_eq!(told["blocks"], 524_288);
    assert_eq!(v.ok(["resize", "v.img", "2G"]), "'v.img': 2.0G, as before\n");
    assert_eq!(v.ok(["resize", "-q", "v.img"]), "");
    assert!(v.ok(["ls", "v.img:/"]).contains("d\n"));
    v.fsck();
}

/// A file becomes shorter with its volume, and a part of a file does not.
#[test]
fn shrinks_a_volume_and_its_file() {
    let v = Image::new();
    v.ok(["resize", "v.img", "1G"]);
    assert!(v.ok(["resize", "v.img", "64M"]).starts_with("'v.img': 64M instead of 1.0G, 16384 blocks"));
    assert_eq!(len(&v), 64 << 20);
    v.fsck();
    v.ok(["resize", "v.img", "min"]);
    let least = len(&v);
    assert!(least < 64 << 20);
    v.fsck();
    v.ok(["resize", "v.img", "fit+50%"]);
    assert_eq!(len(&v), (least * 3 / 2) / 4096 * 4096);
    v.fsck();
    let part = format!("v.img?offset=0&size={}", len(&v));
    v.ok(["resize", &part, "min"]);
    assert_eq!(len(&v), (least * 3 / 2) / 4096 * 4096);
    let out = v.lanefs(["resize", "v.img", "1M"]).output().expect("lanefs");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.starts_with("lanefs: cannot resize 'v.img': 256 blocks are too few: "), "{said}");
    v.fsck();
}

/// Without a size a volume takes all of its file, and in a partition no more than that.
#[test]
fn fills_what_it_is_in() {
    let v = Image::new();
    File::options().write(true).open(&v.path).expect("the image").set_len(300 << 20).expect("longer");
    assert!(v.ok(["resize", "v.img"]).starts_with("'v.img': 300M instead of 64M"));
    v.fsck();
    let part = "v.img?offset=0&size=400M";
    File::options().write(true).open(&v.path).expect("the image").set_len(500 << 20).expect("longer");
    assert!(v.ok(["resize", part]).contains("400M instead of 300M"));
    v.fails(
        ["resize", part, "450M"],
        1,
        "lanefs: cannot resize 'v.img?offset=0&size=400M': 115200 blocks of 4096 bytes do not fit on a device of \
         419430400 bytes",
    );
    assert_eq!(len(&v), 500 << 20);
    v.fsck();
}

/// A refusal leaves the volume and the length of its file.
#[test]
fn refusals() {
    let v = Image::mke2fs(&["-b", "4096", "-O", "^64bit"], None);
    v.fails(
        ["resize", "v.img", "17T"],
        1,
        "lanefs: cannot resize 'v.img': 4563402752 blocks: without the feature 64bit a volume has at most 4294967295",
    );
    assert_eq!(len(&v), 64 << 20);
    let out = v.lanefs(["resize", "v.img", "8X"]).output().expect("lanefs");
    assert_eq!(out.status.code(), Some(1));
    let out = v.lanefs(["resize", "v.img", "1P"]).env("RUST_BACKTRACE", "0").output().expect("lanefs");
    assert!(!out.status.success());
    assert_eq!(len(&v), 64 << 20);
    v.fsck();
    v.fails(["resize", "none.img", "1G"], 1, "lanefs: cannot resize 'none.img': No such file or directory; lanefs mkfs --size 1G VOLUME makes a volume");
}
