//! Recovery, judged by e2fsck on the same dirty journals.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is test code")]
mod common;

use common::{BURST, Image, block_size, different_blocks, log_config, open, run, run_codes};
use lanefs_journal::recovery;
use std::path::Path;

/// Makes a dirty journal with the kernel, recovers it with e2fsck and with lanefs: the same bytes.
fn against_e2fsck(mkfs: &[&str], mount: &str) -> recovery::Report {
    let image = Image::mke2fs("64M", mkfs);
    image.with_mount(mount, BURST);
    let dirty = image.dir.path().join("dirty.img");
    let theirs = image.dir.path().join("theirs.img");
    std::fs::copy(&dirty, &theirs).unwrap();
    run_codes(&[0, 1], "e2fsck", &["-y", "-E", "journal_only", theirs.to_str().unwrap()]);

    let (size, log) = (block_size(&dirty), log_config(&dirty));
    assert!(recovery::is_needed(&open(&dirty), size, &log).unwrap());
    let report = recovery::recover(&open(&dirty), size, &log).unwrap();
    assert!(report.needed && report.transactions > 1 && report.blocks > 0, "{report:?}");
    assert_eq!(different_blocks(&dirty, &theirs, size as usize, &log), []);
    assert!(!recovery::is_needed(&open(&dirty), size, &log).unwrap());
    fsck_clean(&dirty);
    report
}

/// What remains after the replay is only the superblock's note that a replay is needed.
fn fsck_clean(path: &Path) {
    run_codes(&[0, 1], "e2fsck", &["-p", "-E", "journal_only", path.to_str().unwrap()]);
    run("e2fsck", &["-fn", path.to_str().unwrap()]);
}

#[test]
fn default_features() {
    let report = against_e2fsck(&["-t", "ext4"], "defaults");
    assert!(report.revoked > 0, "the burst must make revokes that matter: {report:?}");
}

#[test]
fn small_blocks() {
    against_e2fsck(&["-t", "ext4", "-b", "1024"], "defaults");
}

#[test]
fn without_checksums() {
    against_e2fsck(&["-t", "ext4", "-O", "^metadata_csum,^64bit"], "defaults");
}

#[test]
fn one_checksum_for_a_transaction() {
    against_e2fsck(&["-t", "ext4", "-O", "^metadata_csum"], "journal_checksum");
}

#[test]
fn ext3() {
    against_e2fsck(&["-t", "ext3", "-b", "1024", "-J", "size=4"], "defaults");
}

#[test]
fn data_in_the_journal_is_escaped() {
    let image = Image::mke2fs("64M", &["-t", "ext4"]);
    image.with_mount(
        "data=journal",
        r#"printf '\xc0\x3b\x39\x98 this block starts with the magic' > "$1/magic"
        sync -f "$1/magic"; cp --sparse=always "$2" "$3/dirty.img""#,
    );
    let dirty = image.dir.path().join("dirty.img");
    recovery::recover(&open(&dirty), block_size(&dirty), &log_config(&dirty)).unwrap();
    let text = run("debugfs", &["-R", "cat /magic", dirty.to_str().unwrap()]);
    assert!(text.ends_with("9\u{fffd} this block starts with the magic"), "{text:?}");
}
