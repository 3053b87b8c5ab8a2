//! Images that take less: zero-free, export --sparse, and Android sparse images by simg2img.

use crate::support::{Image, succeed, tool};
use lanefs_tests::LoopMount;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// A volume from which the kernel has removed a file of 8 MiB of a word that nothing else has.
fn used(options: &[&str]) -> Image {
    let image = Image::mke2fs(options, None);
    let mount = LoopMount::new(&image.path, "");
    let script = r#"
        mkdir d; head -c 3000000 /dev/urandom > d/f; echo small > d/g; head -c 2M /dev/zero > zeros; sync
        yes deleted-content | head -c 8M > gone; sync; rm gone; sync; ln -s d/f link
    "#;
    succeed(tool("bash").args(["-euc", script]).current_dir(mount.path()));
    drop(mount);
    image
}

/// Whether a file has what was removed.
fn shows_removed(image: &Image, name: &str) -> bool {
    let bytes = fs::read(image.beside(name)).unwrap();
    bytes.windows(16).any(|window| window == b"deleted-content\n")
}

fn sh(image: &Image, script: &str) -> String {
    let out = succeed(tool("bash").args(["-euc", script]).current_dir(image.beside("")));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn zero_free_leaves_nothing_of_old_files() {
    for options in [&["-b", "4096"][..], &["-b", "1024", "-O", "^has_journal"]] {
        let image = used(options);
        assert!(shows_removed(&image, "v.img"));
        fs::copy(&image.path, image.beside("before.img")).unwrap();
        let said = image.ok(["zero-free", "-v", "v.img"]);
        let bytes: u64 =
            said.split(['(', ' ']).find_map(|word| word.parse().ok().filter(|n| *n > 999)).unwrap();
        assert!((8 << 20..16 << 20).contains(&bytes), "{said}");
        assert!(!shows_removed(&image, "v.img"));
        assert_eq!(image.ok(["diff", "before.img", "v.img"]), "");
        image.fsck();
        // Nothing is left to do, and the blocks went back to the host.
        assert!(image.ok(["zero-free", "-v", "v.img"]).contains("(0 bytes)"));
        let blocks = |name: &str| image.beside(name).metadata().unwrap().blocks();
        sh(&image, "cp --sparse=never before.img whole.img");
        assert!(blocks("whole.img") >= 64 << 11);
        image.ok(["fstrim", "whole.img"]);
        assert!(blocks("whole.img") < 16 << 11, "{}", blocks("whole.img"));
        assert_eq!(image.ok(["diff", "before.img", "whole.img"]), "");
    }
    let image = Image::new();
    let mount = LoopMount::new(&image.path, "");
    let out = image.lanefs(["zero-free", "v.img"]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).starts_with("lanefs: cannot open for writing 'v.img': "));
    drop(mount);
}

/// The checksum in the header, and that of a whole file.
const CHECKSUMS: &str = "import struct, sys, zlib
head, data = open('o.simg', 'rb').read(), open('raw.img', 'rb').read()
print(struct.unpack('<IHHHHIII', head[:24]), *struct.unpack('<I', head[24:28]), *struct.unpack('<I', head[-4:]), zlib.crc32(data))";

#[test]
fn android_sparse_images_are_those_that_simg2img_reads() {
    for (options, block) in [(&["-b", "4096"][..], 4096), (&["-b", "1024"], 1024)] {
        let image = used(options);
        image.ok(["export", "--android-sparse", "v.img", "o.simg"]);
        sh(&image, "simg2img o.simg raw.img; e2fsck -fn raw.img");
        assert!(!shows_removed(&image, "o.simg"));
        assert!(image.beside("o.simg").metadata().unwrap().len() < 5_000_000);
        assert_eq!(image.ok(["diff", "v.img", "raw.img"]), "");
        let said = sh(&image, &format!("python3 -c \"{CHECKSUMS}\""));
        let said = said.trim().replace([',', '(', ')'], "");
        let words: Vec<u64> = said.split(' ').map(|word| word.parse().unwrap()).collect();
        assert_eq!(words[..7], [0xed26_ff3a, 1, 0, 28, 12, block, (64 << 20) / block], "{said}");
        assert!(words[7] > 3 && words[8] == words[9] && words[9] == words[10], "{said}");
        // All that is in use is the same, byte by byte: behind zero-free that is all.
        image.ok(["zero-free", "v.img"]);
        for name in ["zeroed.simg", "again.simg"] {
            image.ok(["export", "--android-sparse", "v.img", name]);
        }
        sh(&image, "simg2img zeroed.simg raw.img; cmp v.img raw.img; cmp zeroed.simg again.simg");
    }
}

#[test]
fn what_is_no_android_sparse_image() {
    let image = used(&["-b", "4096"]);
    fs::write(image.beside("there"), "mine").unwrap();
    let args = ["export", "--android-sparse", "v.img", "there"];
    image.fails(args, 1, "lanefs: cannot write 'there': it exists already; --force replaces a file");
    assert_eq!(fs::read(image.beside("there")).unwrap(), b"mine");
    let whole = "lanefs: --android-sparse writes a whole volume into a file: VOLUME FILE";
    image.fails(["export", "--android-sparse", "v.img:/d", "o"], 1, whole);
    image.fails(["export", "--android-sparse", "v.img", "-"], 1, whole);
    image.ok(["export", "--android-sparse", "--force", "v.img", "there"]);
    sh(&image, "simg2img there raw.img; debugfs -w -R 'feature needs_recovery' v.img 2> /dev/null");
    image.fails(
        ["export", "--android-sparse", "v.img", "o.simg"],
        1,
        "lanefs: cannot write 'o.simg': the volume needs recovery; lanefs recover makes it whole",
    );
    assert_eq!(sh(&image, "ls -A"), "raw.img\nthere\nv.img\n");
}

#[test]
fn export_makes_holes_of_zeros() {
    let image = used(&["-b", "4096"]);
    image.ok(["export", "v.img", "plain"]);
    image.ok(["export", "--sparse", "v.img", "holes"]);
    let blocks = |name: &str| image.beside(name).metadata().unwrap().blocks();
    assert!(blocks("plain/zeros") >= 4096 && blocks("holes/zeros") == 0);
    assert!(blocks("holes/d/f") >= 5860);
    sh(&image, "diff -r --no-dereference plain holes");
    image.ok(["export", "v.img", "plain.tar"]);
    image.ok(["export", "--sparse", "v.img", "holes.tar"]);
    let len = |name: &str| image.beside(name).metadata().unwrap().len();
    assert!(len("plain.tar") - len("holes.tar") > 2_000_000);
    sh(&image, "mkdir out; tar -xf holes.tar -C out; diff -r --no-dereference plain out");
    // The end of a file that is all zeros, and one that is not a multiple of blocks.
    image.ok(["mkfs", "-q", "--size", "64M", "again.img"]);
    image.ok(["import", "holes.tar", "again.img:/"]);
    assert_eq!(image.ok(["diff", "v.img", "again.img"]), "");
}

/// A bit of its bitmaps is a cluster: nothing is called damaged, and nothing is written.
#[test]
fn a_volume_with_bigalloc_is_refused() {
    let image = Image::mke2fs(&["-O", "bigalloc"], None);
    for command in [&["export", "--android-sparse", "v.img", "a.simg"][..], &["frag", "v.img"]] {
        let out = image.lanefs(command).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains("not supported (free blocks of a volume with bigalloc)"), "{said}");
    }
    assert_eq!(sh(&image, "ls -A"), "v.img\n");
}
