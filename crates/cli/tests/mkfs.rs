//! mkfs: its options reach the volume, and a volume is not thrown away by accident.

use crate::support::{Image, field, succeed, tool};
use std::fs;

fn dump(v: &Image, name: &str) -> String {
    let out = succeed(tool("dumpe2fs").arg("-h").arg(v.beside(name)));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn fsck(v: &Image, name: &str) {
    succeed(tool("e2fsck").arg("-fn").arg(v.beside(name)));
}

#[test]
fn options_reach_the_volume() {
    let v = Image::new();
    let uuid = "12345678-9abc-4def-8123-456789abcdef";
    let args = "mkfs -q --size 300M -b 1024 -I 128 -N 5000 -L name -m 2.5 -J size=8 -O ^64bit,metadata_csum_seed -E lazy_itable_init=0,root_owner=7:8 n.img";
    v.ok(args.split(' ').chain(["-U", uuid]));
    let text = dump(&v, "n.img");
    for (name, want) in [
        ("Block size:", "1024"),
        ("Block count:", "307200"),
        ("Inode size:", "128"),
        ("Filesystem volume name:", "name"),
        ("Filesystem UUID:", uuid),
        ("Reserved block count:", "7680"),
        ("Total journal size:", "8M"),
    ] {
        assert_eq!(field(&text, name), want, "{name}");
    }
    let features = text.lines().find(|l| l.starts_with("Filesystem features:")).expect("features");
    assert!(features.contains("metadata_csum_seed") && !features.contains("64bit"), "{features}");
    let inodes: u32 = field(&text, "Inode count:").parse().expect("a number");
    assert!((5000..6000).contains(&inodes), "{inodes}");
    assert_eq!(v.ok(["stat", "-c", "%u:%g", "n.img:/"]), "7:8\n");
    fsck(&v, "n.img");
    let inodes = |ratio: &str| {
        v.ok(["mkfs", "-qF", "--size", "64M", "-b", "4096", "-i", ratio, "i.img"]);
        field(&dump(&v, "i.img"), "Inode count:").parse::<u32>().expect("a number")
    };
    assert_eq!((inodes("32768"), inodes("8192")), (2048, 8192));
}

#[test]
fn the_same_twice_under_a_fixed_time_and_uuid() {
    let v = Image::new();
    for name in ["one.img", "two.img"] {
        let args = ["mkfs", "-q", "--size", "64M", "-U", "6ba7b810-9dad-41d1-80b4-00c04fd430c8", name];
        succeed(v.lanefs(args).env("SOURCE_DATE_EPOCH", "1700000000"));
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        for args in [&["mkdir", "/d"][..], &["import", sources, "/d/src"]] {
            let (last, first) = args.split_last().expect("a path");
            let at = format!("{name}:{last}");
            let all = first.iter().copied().chain([at.as_str()]);
            succeed(v.lanefs(all).env("SOURCE_DATE_EPOCH", "1700000000"));
        }
        fsck(&v, name);
    }
    assert!(fs::read(v.beside("one.img")).expect("read") == fs::read(v.beside("two.img")).expect("read"));
}

#[test]
fn a_volume_is_not_overwritten_by_accident() {
    let v = Image::new();
    let before = fs::read(&v.path).expect("read");
    v.fails(
        ["mkfs", "--size", "64M", "v.img"],
        1,
        "lanefs: cannot make a volume in 'v.img': it holds an ext4 volume; --force makes a new one in its place",
    );
    assert!(fs::read(&v.path).expect("read") == before);
    let said = v.ok(["mkfs", "--force", "v.img"]);
    assert!(said.starts_with("'v.img': 64M, "), "{said}");
    v.fsck();
    v.fails(
        ["mkfs", "none.img"],
        1,
        "lanefs: cannot make a volume in 'none.img': No such file or directory; --size 1G makes it",
    );
    let out = v
        .lanefs(["mkfs", "--size", "64M", "-L", "a-label-that-is-too-long", "x.img"])
        .output()
        .expect("lanefs");
    assert!(String::from_utf8_lossy(&out.stderr).contains("label of 24 bytes"), "{out:?}");
    for bad in
        [&["-O", "no_such_feature"][..], &["-E", "stride=4"], &["-J", "8"], &["-U", "x"], &["-t", "xfs"]]
    {
        let out =
            v.lanefs(["mkfs", "--size", "64M"].iter().chain(bad).chain(&["x.img"])).output().expect("lanefs");
        assert_eq!(out.status.code(), Some(1), "{bad:?}");
    }
    assert!(!v.beside("x.img").exists(), "a volume that was refused leaves no file");
}

/// A mapped volume is the same volume, and its name splits where it should.
#[test]
fn a_mapped_volume() {
    let v = Image::new();
    let absolute = format!("pmem:{}", v.beside("p.img").display());
    v.ok(["mkfs", "-q", "--size", "64M", &absolute]);
    v.fails(
        ["mkfs", "pmem:p.img"],
        1,
        "lanefs: cannot make a volume in 'pmem:p.img': it holds an ext4 volume; --force makes a new one in its place",
    );
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    v.ok(["import", sources, &format!("{absolute}:/src")]);
    fsck(&v, "p.img");
    let main = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/main.rs")).expect("read");
    assert_eq!(v.ok(["cat", "pmem:p.img:/src/main.rs"]), main);
    assert_eq!(v.ok(["cat", "p.img:/src/main.rs"]), main);
    assert!(v.ok(["info", &absolute]).contains("64M"));
    v.fails(
        ["ls", "pmem:none.img:/"],
        2,
        "lanefs: cannot open 'pmem:none.img': No such file or directory; lanefs mkfs --size 1G VOLUME makes a volume",
    );
    v.fails(
        ["mkfs", "mem:1X"],
        1,
        "lanefs: cannot make a volume in 'mem:1X': mem:1X: needs a size: mem:64M, mem:1G",
    );
}

/// Like mke2fs, mkfs does not overwrite a known content without a question, or --force.
#[test]
fn what_is_there_is_named_and_stays() {
    let v = Image::new();
    let here = v.path.parent().expect("a folder");
    let sh = |script: &str| succeed(tool("sh").args(["-euc", script]).current_dir(here));
    for (make, name) in [
        ("truncate -s 320M f; mkfs.xfs -q f", "an XFS file system"),
        (
            "truncate -s 64M f; printf 'EFI PART' | dd of=f bs=1 seek=512 conv=notrunc status=none",
            "a GPT partition table",
        ),
        ("truncate -s 64M f; mkswap -q f", "swap space"),
        ("echo 'a text of worth' > f", "text"),
        ("yes \"$(printf '\\001pattern')\" | head -c 200000 > f", "data"),
        ("truncate -s 64M f; printf x | dd of=f bs=1 seek=9M conv=notrunc status=none", "data"),
        ("tar -cf f /dev/null", "a tar archive"),
    ] {
        sh(&format!("rm -f f; {make}; cp --sparse=always f before"));
        for args in [&["mkfs", "--size", "64M", "f"][..], &["mkfs", "f"]] {
            let said = format!(
                "lanefs: cannot make a volume in 'f': it holds {name}; --force makes a volume in its place"
            );
            v.fails(args, 1, &said);
            sh("cmp f before");
        }
        // On a terminal it asks: only a yes goes on.
        let lanefs = env!("CARGO_BIN_EXE_lanefs");
        let ask = |answer: &str| {
            let script =
                format!("echo {answer} | script -E never -qec '{lanefs} mkfs --size 64M f' /dev/null");
            let out = tool("sh").args(["-c", &script]).current_dir(here).output().expect("script");
            String::from_utf8_lossy(&out.stdout).into_owned()
        };
        let said = ask("n");
        assert!(said.contains(&format!("'f' holds {name}. Make a volume in its place? (y,N)")), "{said}");
        sh("cmp f before");
        ask("y");
        fsck(&v, "f");
        // blkid finds nothing of the old content afterwards.
        let found = succeed(tool("blkid").args(["-p", "-o", "value", "-s", "TYPE"]).arg(v.beside("f")));
        assert_eq!(String::from_utf8_lossy(&found.stdout).trim(), "ext4", "{name}");
    }
    for name in ["zeros", "empty"] {
        sh(&format!("rm -f {name}; : > {name}; [ {name} = empty ] || truncate -s 64M {name}"));
        v.ok(["mkfs", "-q", "--size", "64M", name]);
        fsck(&v, name);
    }
}

/// An error for a volume that is none says what it is.
#[test]
fn no_volume_but_what() {
    let v = Image::new();
    let here = v.path.parent().expect("a folder");
    for (make, said) in [
        (
            "truncate -s 64M f; printf 'EFI PART' | dd of=f bs=1 seek=512 conv=notrunc status=none",
            "it holds no ext4 volume but a GPT partition table; it is damaged: its header has a wrong length",
        ),
        ("truncate -s 320M f; mkfs.xfs -q f", "it holds no ext4 volume but an XFS file system"),
        (
            "gzip -c v.img > f",
            "it holds no ext4 volume but compressed data (gzip); unpack it first: gzip -dc",
        ),
        ("truncate -s 64M f", "it holds no ext4 volume but zeros; lanefs mkfs makes a volume"),
        ("seq 10000 > f", "it holds no ext4 volume but text"),
    ] {
        succeed(tool("sh").args(["-euc", &format!("rm -f f; {make}")]).current_dir(here));
        v.fails(["cat", "f:/x"], 1, &format!("lanefs: cannot open 'f': {said}"));
        v.fails(["info", "f"], 1, &format!("lanefs: cannot open 'f': {said}"));
    }
}

#[test]
fn a_volume_that_cannot_be_leaves_the_file_as_it_was() {
    let v = Image::new();
    let old = b"precious".repeat(10_000);
    fs::write(v.beside("old.img"), &old).expect("write");
    for (size, wrong) in [
        ("1G", &["-b", "3000"][..]),
        ("1G", &["-I", "100"]),
        ("1G", &["-L", "a name of more than 16"]),
        ("8M", &["-J", "size=100"]),
        ("8M", &["-O", "^extent"]),
        ("10K", &[]),
        // More than an offset can be.
        ("9000000T", &["-b", "65536"]),
    ] {
        for name in ["old.img", "pmem:old.img", "new.img"] {
            let args = [&["mkfs", "-qF", "--size", size][..], wrong, &[name]].concat();
            let out = v.lanefs(args).output().expect("lanefs");
            assert_eq!(out.status.code(), Some(1), "{size} {wrong:?} {name}");
        }
        assert!(fs::read(v.beside("old.img")).expect("read") == old, "{size} {wrong:?}");
        assert!(!v.beside("new.img").exists(), "{size} {wrong:?}");
    }
}
