//! resize: sizes, files, partitions, and what is refused.

use crate::support::{Image, succeed, tool};
use serde_json::Value;
use std::fs::File;

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

/// A resize that was cut before the file became shorter is finished by the same command.
#[test]
fn a_file_that_stayed_longer_becomes_shorter() {
    let v = Image::new();
    let longer =
        || File::options().write(true).open(&v.path).expect("the image").set_len(100 << 20).expect("longer");
    longer();
    assert_eq!(v.ok(["resize", "v.img", "64M"]), "'v.img': 64M, as before\n");
    assert_eq!(len(&v), 64 << 20);
    v.ok(["resize", "v.img", "min"]);
    let least = len(&v);
    longer();
    v.ok(["resize", "v.img", "min"]);
    assert_eq!(len(&v), least);
    longer();
    v.ok(["resize", "v.img", "+0"]);
    assert_eq!(len(&v), 100 << 20);
    v.fsck();
}

/// A growth for which the disk has no room leaves a file of the length of its volume.
#[test]
fn a_disk_that_is_full() {
    lanefs_tests::private_mounts();
    let v = Image::new();
    let small = v.beside("small");
    std::fs::create_dir(&small).expect("a folder");
    succeed(tool("mount").args(["-t", "tmpfs", "-o", "size=22m", "small"]).arg(&small));
    let path = small.join("v.img");
    for (options, journal) in [(&["-b", "1024"][..], true), (&["-b", "1024", "-O", "^has_journal"], false)] {
        lanefs_tests::mke2fs(&path, 20 << 20, &[&["-t", "ext4"], options].concat());
        let out = v.lanefs(["resize", "small/v.img", "800G"]).output().expect("lanefs");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.contains("No space left on device"), "{journal}: {said}");
        let told: Value =
            serde_json::from_str(&v.ok(["resize", "--json", "small/v.img", "+0"])).expect("JSON");
        let blocks = told["blocks"].as_u64().expect("blocks");
        assert_eq!(path.metadata().expect("the image").len(), blocks << 10, "{journal}");
        lanefs_tests::e2fsck_clean(&path);
        std::fs::remove_file(&path).expect("the image");
    }
    succeed(tool("umount").arg(&small));
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
