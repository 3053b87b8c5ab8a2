//! Directories that form no tree: walks of a damaged or hostile volume.

use crate::support::{Image, field, succeed, tool};
use std::os::unix::fs::{FileExt, MetadataExt};
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
    file.write_all_at(&[1], at).expect("write");
    let out = v.lanefs(["ls", "v.img:/d"]).output().expect("lanefs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        said.starts_with("lanefs: cannot open directory 'v.img:/d': ") && said.contains("checksum"),
        "{said}"
    );
    assert!(said.ends_with("; e2fsck -f may mend the volume\n"), "{said}");
    assert_eq!(out.status.code(), Some(2));
}

/// Flips a bit of an inode, whose checksum then is wrong.
fn damage_inode(v: &Image, path: &str) {
    let place = v.debugfs(&format!("imap {path}"));
    let block: u64 = field(&place, "located at block").trim_end_matches(',').parse().expect("a block");
    let offset = field(&place, "offset").trim_start_matches("0x");
    // Of i_generation.
    let at = block * 4096 + u64::from_str_radix(offset, 16).expect("an offset") + 0x64;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&v.path).expect("open");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 1], at).expect("write");
}

#[test]
fn a_damaged_directory_is_missed_by_no_tree() {
    let v = Image::new();
    v.ok(["mkdir", "v.img:/t", "v.img:/t/bad", "v.img:/t/good"]);
    damage_inode(&v, "/t/bad");
    for options in [&["-d"][..], &[]] {
        let out = v.lanefs(["tree"].iter().chain(options).chain(&["v.img:/t"])).output().expect("lanefs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.starts_with("lanefs: cannot access 'v.img:/t/bad': "), "{options:?}: {said}");
        assert!(String::from_utf8_lossy(&out.stdout).contains("└── good\n"), "{options:?}: {out:?}");
        assert_eq!(out.status.code(), Some(1), "{options:?}");
    }
}

#[test]
fn a_tree_names_the_link_that_is_damaged() {
    let v = Image::new();
    v.ok(["mkdir", "v.img:/t"]);
    v.ok(["ln", "-s", "target", "v.img:/t/link"]);
    succeed(tool("debugfs").args(["-w", "-R", "sif /t/link size 0"]).arg(&v.path));
    let out = v.lanefs(["tree", "v.img:/t"]).output().expect("lanefs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.starts_with("lanefs: cannot read symbolic link 'v.img:/t/link': "), "{said}");
    assert_eq!(out.status.code(), Some(1));
}

/// A list that cannot be read may grant the group less than the mode. All else is kept.
#[test]
fn a_copy_whose_attributes_cannot_be_read_keeps_mode_and_times() {
    let v = Image::new();
    // Attributes that do not fit into the inode.
    let script = "echo text > f; chmod 640 f; setfattr -n user.note -v $(printf 'x%.0s' $(seq 300)) f
        setfacl -m u:1000:rwx f; touch -d '2003-04-05 06:07:08 UTC' f";
    succeed(tool("bash").args(["-euc", script]).current_dir(v.beside("")));
    v.ok(["cp", "-a", "f", "v.img:/"]);
    assert_eq!(v.ok(["stat", "-c", "%a", "v.img:/f"]), "670\n");
    let block = field(&v.debugfs("stat /f"), "File ACL:").parse::<u64>().expect("a block");
    assert_ne!(block, 0);
    let file = std::fs::OpenOptions::new().write(true).open(&v.path).expect("open");
    // Of the checksum.
    file.write_all_at(&[1; 4], block * 4096 + 16).expect("write");
    for (option, copy) in [("-a", "all"), ("-p", "permissions")] {
        let out = v.lanefs(["cp", option, "v.img:/f", copy]).output().expect("lanefs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.starts_with("lanefs: cannot read attributes of 'v.img:/f': "), "{option}: {said}");
        assert_eq!((out.status.code(), said.lines().count()), (Some(1), 1), "{option}");
        let copy = std::fs::metadata(v.beside(copy)).expect("a copy");
        assert_eq!((copy.mode() & 0o7777, copy.mtime()), (0o600, 1_049_522_828), "{option}");
    }
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
