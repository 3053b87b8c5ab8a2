//! Directories that form no tree: walks of a damaged or hostile volume.

use crate::support::{Image, succeed, tool};
use std::time::{Duration, Instant};

/// A directory that holds its own ancestor, made with debugfs.
fn looped() -> Image {
    let v = Image::new();
    v.ok(["mkdir", "-p", "v.img:/a/b"]);
    succeed(tool("debugfs").args(["-w", "-R", "link /a /a/b/loop"]).arg(&v.path));
    v
}

#[test]
fn a_directory_inside_itself_ends_no_walk_in_a_circle() {
    let v = looped();
    for args in [
        &["ls", "-R", "v.img:/"][..],
        &["tree", "v.img:/"],
        &["cp", "-r", "v.img:/a", "out"],
        &["chmod", "-R", "a+r", "v.img:/a"],
        &["chown", "-R", "1", "v.img:/a"],
        &["cp", "-r", "v.img:/a", "v.img:/copy"],
        &["rm", "-r", "v.img:/a"],
    ] {
        let began = Instant::now();
        let out = v.lanefs(args).output().expect("lanefs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("was met before by another name: the volume is damaged"), "{args:?}: {said}");
        // Not how fast, but that it ends at all.
        assert!(began.elapsed() < Duration::from_secs(600), "{args:?}");
    }
}

#[test]
fn a_volume_cut_short_is_refused_and_not_written() {
    let v = Image::new();
    let file = std::fs::OpenOptions::new().write(true).open(&v.path).expect("open");
    file.set_len(1 << 20).expect("truncate");
    let before = std::fs::read(&v.path).expect("read");
    for args in [&["ls", "v.img:/"][..], &["mkdir", "v.img:/d"], &["recover", "v.img"]] {
        let out = v.lanefs(args).output().expect("lanefs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.starts_with("lanefs: cannot open"), "{args:?}: {said}");
        assert_ne!(out.status.code(), Some(0), "{args:?}");
    }
    assert!(std::fs::read(&v.path).expect("read") == before);
}

#[test]
fn damage_is_named_with_what_to_do_about_it() {
    let v = Image::new();
    v.ok(["mkdir", "v.img:/d"]);
    let block = v.debugfs("bmap /d 0");
    // One byte of the directory's only block, without its checksum.
    let file = std::fs::OpenOptions::new().write(true).open(&v.path).expect("open");
    let at = block.trim().parse::<u64>().expect("a block") * 4096 + 100;
    std::os::unix::fs::FileExt::write_all_at(&file, &[1], at).expect("write");
    let out = v.lanefs(["ls", "v.img:/d"]).output().expect("lanefs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        said.starts_with("lanefs: cannot open directory 'v.img:/d': ") && said.contains("checksum"),
        "{said}"
    );
    assert!(said.ends_with("; e2fsck -f may mend the volume\n"), "{said}");
    assert_eq!(out.status.code(), Some(2));
}

#[test]
fn a_volume_in_use_is_refused() {
    let v = Image::new();
    // flock(1) holds what a writer would hold.
    let line = format!("{} mkdir v.img:/d", env!("CARGO_BIN_EXE_lanefs"));
    let out =
        tool("flock").args(["-x", "v.img", "-c", &line]).current_dir(v.beside("")).output().expect("flock");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.starts_with("lanefs: cannot open for writing 'v.img': is in use"), "{said}");
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(v.ok(["ls", "v.img"]), "lost+found\n");
    v.fsck();
}
