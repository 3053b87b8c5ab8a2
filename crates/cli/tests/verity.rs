//! `lanefs verity` against veritysetup.

use crate::support::{Image, succeed, tool};
use std::os::unix::fs::FileExt;

const SALT: &str = "000102030405060708090a0b0c0d0e0f";
const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

/// What a table of the command says behind a name.
fn value(table: &str, name: &str) -> String {
    let line = table.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    line.trim().to_owned()
}

#[test]
fn a_tree_behind_a_volume_is_that_of_veritysetup() {
    let v = Image::new();
    let theirs = v.beside("theirs.img");
    std::fs::copy(&v.path, &theirs).expect("copy");
    let made = v.ok(["verity", "format", "--salt", SALT, "--uuid", UUID, "v.img"]);
    let root = value(&made, "Root hash");
    let (blocks, offset) = ("--data-blocks=16384", "--hash-offset=67108864");
    let options = [&format!("--salt={SALT}"), &format!("--uuid={UUID}")];
    let out = succeed(
        tool("veritysetup").arg("format").args(options).args([blocks, offset]).args([&theirs, &theirs]),
    );
    assert!(String::from_utf8_lossy(&out.stdout).contains(&root));
    assert!(std::fs::read(&v.path).expect("read") == std::fs::read(&theirs).expect("read"));
    succeed(tool("veritysetup").args(["verify", offset]).args([&v.path, &v.path]).arg(&root));
    assert_eq!(v.ok(["verity", "verify", "v.img", &root]), "");
    assert_eq!(value(&v.ok(["verity", "verify", "v.img"]), "Root hash"), root);
    let dump = v.ok(["verity", "dump", "v.img"]);
    assert_eq!((value(&dump, "Salt"), value(&dump, "UUID")), (SALT.into(), UUID.into()));
    // The volume is as usable as before, and a tree takes the place of a tree.
    assert_eq!(v.ok(["ls", "v.img:/"]), "lost+found\n");
    assert_ne!(value(&v.ok(["verity", "format", "v.img"]), "Root hash"), root);

    let file = std::fs::File::options().write(true).open(&v.path).expect("open");
    file.write_all_at(b"x", 4096 * 77 + 5).expect("write");
    let wrong = "lanefs: cannot verify 'v.img': data block 77 (byte 315392) is not what the tree says";
    v.fails(["verity", "verify", "v.img"], 1, wrong);
    let other = "lanefs: cannot verify 'v.img': the root hash is not that of the tree";
    v.fails(["verity", "verify", "v.img", &root], 1, other);
}

#[test]
fn a_tree_in_a_file_and_of_a_partition() {
    let v = Image::new();
    let args = ["verity", "format", "--hash", "sha512", "--hash-file", "h", "v.img"];
    let root = value(&v.ok(args), "Root hash");
    succeed(tool("veritysetup").arg("verify").args([&v.path, &v.beside("h")]).arg(&root));
    assert_eq!(v.ok(["verity", "verify", "--hash-file", "h", "v.img", &root]), "");
    std::fs::write(v.beside("text"), "text").expect("write");
    let kept = "lanefs: cannot write 'text': it holds text; --force writes over it";
    v.fails(["verity", "format", "--hash-file", "text", "v.img"], 1, kept);
    let kept = "lanefs: cannot write 'h': it holds a dm-verity hash tree; --force writes over it";
    v.fails(["verity", "format", "--hash-file", "h", "v.img"], 1, kept);

    // A disk with the volume, and 2 MiB behind it.
    let script = "truncate -s 72M d.raw; echo 'start=2048, size=66M, name=root' | sfdisk -q --label gpt d.raw
        dd if=v.img of=d.raw bs=1M seek=1 conv=notrunc status=none";
    succeed(tool("sh").args(["-euc", script]).current_dir(v.beside("")));
    let root = value(&v.ok(["verity", "format", "d.raw@root"]), "Root hash");
    assert_eq!(v.ok(["verity", "verify", "d.raw@1", &root]), "");
    let full = "lanefs: cannot make the hash tree of 'd.raw?offset=1M&size=64M': there are 0 bytes behind the \
                volume, and the tree takes 532480";
    v.fails(["verity", "format", "d.raw?offset=1M&size=64M"], 1, full);
}

/// A tree that cannot be written leaves the file as long as it is.
#[test]
fn a_volume_that_is_read_gets_no_room() {
    let v = Image::new();
    // flock(1) holds what a reader would hold.
    let line = format!("{} verity format v.img", env!("CARGO_BIN_EXE_lanefs"));
    let mut locked = tool("flock");
    let out = locked.args(["-s", "v.img", "-c", &line]).current_dir(v.beside("")).output().expect("flock");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.starts_with("lanefs: cannot open for writing 'v.img': is in use"), "{said}");
    assert_eq!(v.path.metadata().expect("the image").len(), 64 << 20);
    v.ok(["verity", "format", "v.img"]);
}

/// The superblock of the tree, which the root hash does not cover, may not leave data out.
#[test]
fn a_tree_is_for_all_of_the_data() {
    let v = Image::new();
    let root = value(&v.ok(["verity", "format", "v.img"]), "Root hash");
    let file = std::fs::File::options().write(true).open(&v.path).expect("open");
    file.write_all_at(&16383_u64.to_le_bytes(), (64 << 20) + 72).expect("write");
    let shorter =
        "lanefs: cannot verify 'v.img': the tree is for 67104768 bytes of data, and there are 67108864";
    v.fails(["verity", "verify", "v.img", &root], 1, shorter);
    std::fs::write(v.beside("data"), vec![7; 40960]).expect("write");
    let root = value(&v.ok(["verity", "format", "--hash-file", "h", "data"]), "Root hash");
    assert_eq!(v.ok(["verity", "verify", "--hash-file", "h", "data", &root]), "");
    let file = std::fs::File::options().write(true).open(v.beside("data")).expect("open");
    file.write_all_at(b"x", 40960).expect("write");
    let longer = "lanefs: cannot verify 'data': the tree is for 40960 bytes of data, and there are 40961";
    v.fails(["verity", "verify", "--hash-file", "h", "data", &root], 1, longer);
}

#[test]
fn what_lies_behind_a_volume_is_kept() {
    let v = Image::new();
    let file = std::fs::File::options().write(true).open(&v.path).expect("open");
    file.write_all_at(b"something\x01", 64 << 20).expect("write");
    let kept = |at: u64| {
        format!(
            "lanefs: cannot make the hash tree of 'v.img': behind the volume, at byte {at}, is data; --force \
             writes over it"
        )
    };
    v.fails(["verity", "format", "v.img"], 1, &kept(64 << 20));
    // The tree takes 130 blocks: the last one counts, and the one behind it does not.
    file.set_len(64 << 20).expect("shorter");
    file.write_all_at(b"\x01", (64 << 20) + 130 * 4096 - 1).expect("write");
    v.fails(["verity", "format", "v.img"], 1, &kept((64 << 20) + 129 * 4096));
    file.set_len(64 << 20).expect("shorter");
    file.write_all_at(b"\x01", (64 << 20) + 130 * 4096).expect("write");
    v.ok(["verity", "format", "v.img"]);
    let mut behind = [0];
    std::fs::File::open(&v.path).expect("open").read_at(&mut behind, (64 << 20) + 130 * 4096).expect("read");
    assert_eq!(behind, [1]);
    // A larger tree takes the place of a smaller one only if it finds nothing else.
    v.fails(["verity", "format", "--data-block-size", "1024", "v.img"], 1, &kept((64 << 20) + 130 * 4096));
    v.ok(["verity", "format", "--force", "v.img"]);
    let none = "lanefs: cannot verify 'd.img': there is no dm-verity superblock at byte 67108864";
    std::fs::rename(&v.path, v.beside("d.img")).expect("rename");
    let file = std::fs::File::options().write(true).open(v.beside("d.img")).expect("open");
    file.set_len(64 << 20).expect("shorter");
    v.fails(["verity", "verify", "d.img"], 1, none);
}
