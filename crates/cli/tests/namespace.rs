//! mkdir, ln, mv, rm, chmod, chown and xattr on images that mke2fs made, judged by debugfs and
//! e2fsck.

use crate::support::tar::{TarStream, record};
use crate::support::{Image, feed, field, succeed, tool};
use lanefs_tests::LoopMount;
use std::fs;
use std::os::unix::fs::MetadataExt;

#[test]
fn mkdir_makes_parents_modes_and_says_so() {
    let v = Image::new();
    let said = v.ok(["mkdir", "-pv", "-m", "1770", "v.img:/a/b/c"]);
    assert_eq!(said.lines().count(), 3, "{said}");
    v.ok(["mkdir", "-p", "v.img:/a/b"]);
    assert_eq!(field(&v.debugfs("stat /a/b/c"), "Mode:"), "01770");
    assert_eq!(field(&v.debugfs("stat /a"), "Links:"), "3");
    v.fails(["mkdir", "v.img:/a"], 1, "lanefs: cannot create directory 'v.img:/a': File exists");
    v.fails(
        ["mkdir", "v.img:/x/y"],
        1,
        "lanefs: cannot create directory 'v.img:/x/y': No such file or directory",
    );
    v.fsck();
}

#[test]
fn hard_and_symbolic_links() {
    let v = Image::new();
    fs::write(v.beside("f"), "text").expect("write");
    v.ok(["cp", "f", "v.img:/f"]);
    v.ok(["mkdir", "v.img:/d"]);
    v.ok(["ln", "v.img:/f", "v.img:/d/g"]);
    v.ok(["ln", "-s", "../f", "v.img:/d/s"]);
    v.ok(["ln", "-s", "v.img:/f", "v.img:/absolute"]);
    let long = "x".repeat(300);
    v.ok(["ln", "-s", &long, "v.img:/long"]);
    assert_eq!(field(&v.debugfs("stat /f"), "Links:"), "2");
    assert!(v.debugfs("stat /d/s").contains("Fast link dest: \"../f\""));
    assert!(v.debugfs("stat /absolute").contains("Fast link dest: \"/f\""));
    assert_eq!(v.ok(["cat", "v.img:/d/s", "v.img:/absolute", "v.img:/d/g"]), "texttexttext");
    assert_eq!(v.ok(["stat", "-c", "%s", "v.img:/long"]), "300\n");
    v.ok(["ln", "-sf", "other", "v.img:/d/s"]);
    assert!(v.debugfs("stat /d/s").contains("Fast link dest: \"other\""));
    v.fails(
        ["ln", "v.img:/f", "v.img:/d/g"],
        1,
        "lanefs: cannot create hard link 'v.img:/d/g' to 'v.img:/f': File exists",
    );
    v.fails(
        ["ln", "v.img:/d", "v.img:/dd"],
        1,
        "lanefs: cannot create hard link 'v.img:/dd' to 'v.img:/d': Operation not permitted (a directory has one name)",
    );
    v.fsck();
}

/// What `ln -f` replaces is there until the new link is, whatever refuses that.
#[test]
fn a_forced_link_that_fails_removes_nothing() {
    let v = Image::new();
    fs::write(v.beside("f"), "text").expect("write");
    v.ok(["cp", "f", "v.img:/a"]);
    v.ok(["cp", "f", "v.img:/b"]);
    v.ok(["mkdir", "v.img:/d"]);
    v.fails(
        ["ln", "-f", "v.img:/a", "v.img:/a"],
        1,
        "lanefs: cannot create hard link 'v.img:/a' to 'v.img:/a': they are the same file",
    );
    v.fails(
        ["ln", "-fT", "v.img:/d", "v.img:/b"],
        1,
        "lanefs: cannot create hard link 'v.img:/b' to 'v.img:/d': Operation not permitted (a directory has one name)",
    );
    v.fails(
        ["ln", "-f", "v.img:/none", "v.img:/b"],
        1,
        "lanefs: cannot create hard link 'v.img:/b' to 'v.img:/none': No such file or directory",
    );
    let large = "x".repeat(5000);
    assert_eq!(v.lanefs(["ln", "-sf", &large, "v.img:/b"]).output().expect("lanefs").status.code(), Some(1));
    v.fails(
        ["ln", "-fT", "v.img:/a", "v.img:/d"],
        1,
        "lanefs: cannot create hard link 'v.img:/d' to 'v.img:/a': Is a directory",
    );
    assert_eq!(v.ok(["cat", "v.img:/a", "v.img:/b"]), "texttext");
    // Once more is no error, and the links of one file stay links of it.
    for _ in 0..2 {
        v.ok(["ln", "-f", "v.img:/a", "v.img:/b"]);
        assert_eq!(v.ok(["stat", "-c", "%h", "v.img:/a", "v.img:/b"]), "2\n2\n");
    }
    assert_eq!(v.ok(["ls", "-A", "v.img:/"]), "a\nb\nd\nlost+found\n");
    v.fsck();
}

#[test]
fn mv_renames_replaces_and_exchanges() {
    let v = Image::new();
    for name in ["a", "b"] {
        fs::write(v.beside(name), name).expect("write");
        v.ok(["cp", name, "v.img:/"]);
    }
    v.ok(["mkdir", "v.img:/d", "v.img:/e"]);
    v.ok(["mv", "--exchange", "v.img:/a", "v.img:/b"]);
    assert_eq!(v.ok(["cat", "v.img:/a", "v.img:/b"]), "ba");
    v.ok(["mv", "-n", "v.img:/a", "v.img:/b"]);
    assert_eq!(v.ok(["cat", "v.img:/a", "v.img:/b"]), "ba");
    v.ok(["mv", "v.img:/a", "v.img:/b"]);
    assert_eq!(v.ok(["cat", "v.img:/b"]), "b");
    v.ok(["mv", "v.img:/b", "v.img:/e", "v.img:/d"]);
    assert_eq!(v.ok(["ls", "v.img:/d"]), "b\ne\n");
    v.fails(
        ["mv", "v.img:/d", "v.img:/d/e"],
        1,
        "lanefs: cannot move 'v.img:/d' to a subdirectory of itself, 'v.img:/d/e/d'",
    );
    v.ok(["mv", "v.img:/d", "host"]);
    assert_eq!(fs::read_to_string(v.beside("host/b")).expect("moved out"), "b");
    v.ok(["mv", "host", "v.img:/back"]);
    assert_eq!(v.ok(["ls", "-a", "v.img:/"]), ".\n..\nback\nlost+found\n");
    assert!(!v.beside("host").exists());
    v.fsck();
}

/// What mv(1) does with two names of one file, a directory in the way, and two sources of one name.
#[test]
fn mv_loses_nothing() {
    let v = Image::new();
    fs::write(v.beside("f"), "text").expect("write");
    v.ok(["cp", "f", "v.img:/a"]);
    v.ok(["ln", "v.img:/a", "v.img:/b"]);
    v.fails(["mv", "v.img:/a", "v.img:/./a"], 1, "lanefs: 'v.img:/a' and 'v.img:/./a' are the same file");
    assert_eq!(v.ok(["mv", "-v", "v.img:/a", "v.img:/b"]), "renamed 'v.img:/a' -> 'v.img:/b'\n");
    assert_eq!(v.ok(["ls", "v.img:/"]), "b\nlost+found\n");
    v.ok(["mkdir", "-p", "v.img:/d", "v.img:/x/d", "v.img:/y", "v.img:/z", "v.img:/all"]);
    v.ok(["mkfs", "-q", "--size", "16M", "w.img"]);
    v.ok(["mkdir", "-p", "w.img:/x/d/full", "w.img:/e/d"]);
    v.fails(
        ["mv", "v.img:/d", "w.img:/x"],
        1,
        "lanefs: cannot move 'v.img:/d' to 'w.img:/x/d': Directory not empty",
    );
    v.ok(["mv", "v.img:/d", "w.img:/e"]);
    // A link is replaced, as mv(1) does: nothing is written through it.
    v.ok(["cp", "f", "w.img:/kept"]);
    v.ok(["ln", "-s", "/kept", "w.img:/link"]);
    v.ok(["ln", "-s", "/nowhere", "w.img:/dangling"]);
    fs::write(v.beside("g"), "other").expect("write");
    v.ok(["mv", "g", "w.img:/link"]);
    assert_eq!(v.ok(["cat", "w.img:/kept", "w.img:/link"]), "textother");
    v.ok(["cp", "-n", "f", "w.img:/dangling"]);
    v.ok(["mv", "w.img:/dangling", "./new"]);
    assert!(v.beside("new").is_symlink() && !v.ok(["ls", "w.img:/"]).contains("dangling"));
    // A directory does not take the place of a link, nor is it merged into what the link leads to.
    v.ok(["mkdir", "v.img:/h", "w.img:/etc"]);
    v.ok(["cp", "f", "v.img:/h/f"]);
    v.ok(["cp", "f", "w.img:/etc/motd"]);
    v.ok(["ln", "-s", "/etc", "w.img:/to-etc"]);
    let over = "lanefs: cannot overwrite non-directory 'w.img:/to-etc' with directory 'v.img:/h'";
    v.fails(["mv", "-T", "v.img:/h", "w.img:/to-etc"], 1, over);
    assert_eq!((v.ok(["ls", "w.img:/etc"]).as_str(), v.ok(["ls", "v.img:/h"]).as_str()), ("motd\n", "f\n"));
    for dir in ["y", "z"] {
        v.ok(["cp", "f", &format!("v.img:/{dir}/f")]);
    }
    let just = "lanefs: will not overwrite just-created 'v.img:/all/f' with 'v.img:/z/f'";
    v.fails(["mv", "v.img:/y/f", "v.img:/z/f", "v.img:/all"], 1, just);
    v.fails(["cp", "v.img:/all/f", "v.img:/z/f", "v.img:/y"], 1, &just.replace("/all/", "/y/"));
    assert_eq!(v.ok(["cat", "v.img:/all/f", "v.img:/z/f", "v.img:/b"]), "texttexttext");
    v.fsck();
}

/// Also below the target, where both sources have a directory: a link to the first copy would be a
/// link to another file.
#[test]
fn no_source_overwrites_what_another_has_become() {
    let v = Image::new();
    let script = "mkdir -p d1/x d2/x out; echo A > d1/x/f; ln d1/x/f d2/x/z; echo B > d2/x/f";
    succeed(tool("bash").args(["-euc", script]).current_dir(v.beside("")));
    v.ok(["mkdir", "v.img:/o", "v.img:/n"]);
    let just = "lanefs: will not overwrite just-created 'v.img:/o/x/f' with 'd2/x/f'";
    v.fails(["cp", "-a", "d1/x", "d2/x", "v.img:/o"], 1, just);
    v.ok(["cp", "-an", "d1/x", "d2/x", "v.img:/n"]);
    for dir in ["o", "n"] {
        let [f, z] = ["f", "z"].map(|name| format!("v.img:/{dir}/x/{name}"));
        assert_eq!(v.ok(["cat", &f, &z]), "A\nA\n");
        assert_eq!(v.ok(["stat", "-c", "%h", &f]), "2\n");
    }
    // To the host as well.
    v.ok(["cp", "-a", "d1", "d2", "v.img:/"]);
    let just = "lanefs: will not overwrite just-created 'out/x/f' with 'v.img:/d2/x/f'";
    v.fails(["cp", "-a", "v.img:/d1/x", "v.img:/d2/x", "out"], 1, just);
    assert_eq!(fs::read_to_string(v.beside("out/x/z")).expect("read"), "A\n");
    v.fsck();
}

/// Each name is a source of its own, and is removed before the next is copied.
#[test]
fn mv_keeps_the_hard_links_between_its_sources() {
    let v = Image::new();
    fs::write(v.beside("f"), "text").expect("write");
    fs::create_dir(v.beside("out")).expect("mkdir");
    v.ok(["cp", "f", "v.img:/a"]);
    v.ok(["mkdir", "v.img:/d"]);
    v.ok(["ln", "v.img:/a", "v.img:/b"]);
    v.ok(["ln", "v.img:/a", "v.img:/d/c"]);
    v.ok(["mv", "v.img:/a", "v.img:/b", "v.img:/d", "out"]);
    let inodes = ["a", "b", "d/c"].map(|name| fs::metadata(v.beside("out").join(name)).expect("stat").ino());
    assert_eq!(inodes, [inodes[0]; 3]);
    v.ok(["mv", "out/a", "f", "out/b", "out/d/c", "v.img:/"]);
    assert_eq!(v.ok(["stat", "-c", "%h", "v.img:/a", "v.img:/b", "v.img:/c", "v.img:/f"]), "3\n3\n3\n1\n");
    assert_eq!(v.ok(["cat", "v.img:/b", "v.img:/c"]), "texttext");
    assert_eq!(fs::read_dir(v.beside("out")).expect("read").count(), 1, "the directory d");
    v.fsck();
}

#[test]
fn a_slash_behind_a_new_name_is_for_directories() {
    let v = Image::new();
    fs::create_dir(v.beside("d")).expect("mkdir");
    fs::write(v.beside("d/f"), "text").expect("write");
    v.ok(["cp", "-r", "d", "v.img:/new/"]);
    v.ok(["cp", "-a", "v.img:/new", "copied/"]);
    v.ok(["mv", "v.img:/new", "v.img:/renamed/"]);
    v.ok(["mv", "v.img:/renamed", "moved/"]);
    v.ok(["mv", "moved", "v.img:/back/"]);
    assert_eq!(v.ok(["cat", "v.img:/back/f"]), "text");
    assert_eq!(fs::read_to_string(v.beside("copied/f")).expect("read"), "text");
    let no = "lanefs: cannot create 'v.img:/no/': Not a directory";
    for args in [["cp", "d/f"], ["mv", "d/f"], ["mv", "v.img:/back/f"], ["ln", "v.img:/back/f"]] {
        v.fails([args[0], args[1], "v.img:/no/"], 1, no);
    }
    v.fails(["cp", "v.img:/back/f", "no/"], 1, "lanefs: cannot create 'no/': Not a directory");
    v.fails(["cp", "-r", "d", "d", "v.img:/no/"], 1, "lanefs: target 'v.img:/no/' is not a directory");
    let out = feed(&mut v.lanefs(["cp", "-", "v.img:/no/"]), b"");
    assert_eq!(String::from_utf8_lossy(&out.stderr), format!("{no}\n"));
    assert_eq!(v.ok(["ls", "v.img:/"]), "back\nlost+found\n");
    assert!(v.beside("d/f").exists() && !v.beside("no").exists());
    v.fsck();
}

/// A file that is moved to the host is on its disk before the volume loses it: a copy of the disk,
/// taken at once, has it.
#[test]
fn mv_to_the_host_is_durable() {
    let v = Image::new();
    fs::write(v.beside("f"), "text").expect("write");
    v.ok(["cp", "f", "v.img:/f"]);
    v.ok(["mkfs", "-q", "--size", "16M", "host.img"]);
    let mount = LoopMount::new(v.beside("host.img"), "");
    v.ok(["mv", "v.img:/f", mount.path().to_str().expect("a path in UTF-8")]);
    fs::copy(v.beside("host.img"), v.beside("lost-power.img")).expect("copy");
    v.ok(["recover", "lost-power.img"]);
    assert_eq!(v.ok(["cat", "lost-power.img:/f"]), "text");
    assert_eq!(v.ok(["ls", "v.img:/"]), "lost+found\n");
}

#[test]
fn rm_takes_trees_and_refuses_the_root() {
    let v = Image::new();
    v.ok(["mkdir", "-p", "v.img:/t/u/v"]);
    for n in 0..50 {
        let out = feed(&mut v.lanefs(["cp", "-", &v.at(&format!("/t/u/f{n}"))]), b"x");
        assert!(out.status.success(), "{out:?}");
    }
    v.fails(
        ["rm", "v.img:/t"],
        1,
        "lanefs: cannot remove 'v.img:/t': Is a directory; -r removes it with all that is in it",
    );
    v.fails(["rm", "-d", "v.img:/t"], 1, "lanefs: cannot remove 'v.img:/t': Directory not empty");
    v.fails(["rm", "v.img:/no"], 1, "lanefs: cannot remove 'v.img:/no': No such file or directory");
    v.ok(["rm", "-f", "v.img:/no"]);
    assert_eq!(v.ok(["rm", "-rv", "v.img:/t"]).lines().count(), 53);
    v.fails(
        ["rm", "-r", "v.img:/"],
        1,
        "lanefs: cannot remove the root of a volume, 'v.img:/': to empty it, make it anew with lanefs mkfs",
    );
    assert_eq!(v.ok(["ls", "v.img"]), "lost+found\n");
    v.fsck();
}

/// A path has 4,095 bytes at most, and those of this tree would have more.
#[test]
fn a_tree_that_is_deeper_than_a_path_is_long() {
    let v = Image::new();
    let name = "n".repeat(250);
    let deep = format!("{name}/").repeat(20);
    let mut tar = TarStream(Vec::new());
    let path = |key: &str, name: &str| record(key, format!("{deep}{name}").as_bytes());
    tar.extended(&path("path", "f")).expect("a record");
    tar.member(b'0', "f", "", b"text").expect("a file");
    tar.extended(&[path("path", "g"), path("linkpath", "f")].concat()).expect("records");
    tar.member(b'1', "g", "f", b"").expect("a hard link");
    tar.extended(&path("path", "s")).expect("a record");
    tar.member(b'2', "s", "f", b"").expect("a symbolic link");
    fs::write(v.beside("deep.tar"), tar.end().expect("the end")).expect("write");
    v.ok(["import", "deep.tar", "v.img:/"]);

    let top = format!("v.img:/{name}");
    assert_eq!(v.ok(["find", &top]).lines().count(), 23);
    v.ok(["du", &top]);
    v.ok(["cp", "-a", &top, "v.img:/again"]);
    v.ok(["cp", "-a", "v.img:/again", "out"]);
    v.ok(["cp", "-a", "out", "v.img:/back"]);
    let below = format!("v.img:/back/{}", &deep[name.len() + 1..]);
    let [f, g, s, d] = ["f", "g", "s", "d"].map(|name| format!("{below}{name}"));
    assert_eq!(v.ok(["cat", &s, &g]), "texttext");
    assert_eq!(v.ok(["stat", "-c", "%h", &f]), "2\n");
    v.ok(["truncate", "-s", "3", &format!("{below}t")]);
    v.ok(["fallocate", "-l", "5", &format!("{below}t")]);
    assert_eq!(v.ok(["stat", "-c", "%s", &format!("{below}t")]), "5\n");
    v.ok(["mkdir", &d]);
    v.ok(["mv", &f, &g, &d]);
    v.ok(["mv", &d, "v.img:/d"]);
    assert_eq!(v.ok(["ls", "v.img:/d"]), "f\ng\n");
    v.ok(["rm", "-r", &top, "v.img:/again", "v.img:/back"]);
    assert_eq!(v.ok(["ls", "v.img:/"]), "d\nlost+found\n");
    assert_eq!(v.ok(["cat", "v.img:/d/f"]), "text");
    v.fsck();
}

#[test]
fn modes_and_owners_of_trees() {
    let v = Image::new();
    v.ok(["mkdir", "-p", "v.img:/t/u"]);
    fs::write(v.beside("f"), "").expect("write");
    v.ok(["cp", "f", "v.img:/t/u/f"]);
    v.ok(["chmod", "-R", "u=rwX,go=", "v.img:/t"]);
    assert_eq!(v.ok(["stat", "-c", "%a", "v.img:/t/u", "v.img:/t/u/f"]), "700\n600\n");
    v.ok(["chmod", "-w", "v.img:/t/u/f"]);
    v.ok(["chmod", "4711", "v.img:/t/u"]);
    assert_eq!(v.ok(["stat", "-c", "%A", "v.img:/t/u", "v.img:/t/u/f"]), "drws--x--x\n-r--------\n");
    v.ok(["chown", "-R", "70000:80000", "v.img:/t"]);
    let stat = v.debugfs("stat /t/u/f");
    assert_eq!((field(&stat, "User:"), field(&stat, "Group:")), ("70000", "80000"));
    v.ok(["chown", ":7", "v.img:/t"]);
    assert_eq!(v.ok(["stat", "-c", "%u:%g", "v.img:/t"]), "70000:7\n");
    v.ok(["ln", "-s", "u/f", "v.img:/t/s"]);
    v.ok(["chown", "1:1", "v.img:/t/s"]);
    v.ok(["chown", "-h", "2:2", "v.img:/t/s"]);
    assert_eq!(v.ok(["stat", "-c", "%u", "v.img:/t/u/f", "v.img:/t/s"]), "1\n2\n");
    v.fsck();
}

#[test]
fn attributes_are_set_read_and_removed() {
    let v = Image::new();
    v.ok(["mkdir", "v.img:/d"]);
    v.ok(["xattr", "set", "user.text", "some text", "v.img:/d"]);
    v.ok(["xattr", "set", "user.bytes", "0x00ff10", "v.img:/d"]);
    let out = feed(&mut v.lanefs(["xattr", "set", "trusted.piped", "-", "v.img:/d"]), b"from\na pipe");
    assert!(out.status.success(), "{out:?}");
    assert_eq!(v.ok(["xattr", "get", "user.text", "v.img:/d"]), "some text");
    assert_eq!(v.ok(["xattr", "get", "--hex", "user.bytes", "v.img:/d"]), "0x00ff10\n");
    let seen = v.debugfs("ea_list /d");
    assert!(
        seen.contains("user.text (9) = \"some text\"") && seen.contains("user.bytes (3) = 00 ff 10"),
        "{seen}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&v.ok(["xattr", "ls", "--json", "v.img:/d"])).expect("JSON");
    assert_eq!(json[0]["attributes"][1]["value_hex"], "00ff10", "{json}");
    v.ok(["xattr", "rm", "user.text", "v.img:/d"]);
    v.fails(
        ["xattr", "get", "user.text", "v.img:/d"],
        1,
        "lanefs: cannot read attribute 'user.text' of 'v.img:/d': No such attribute",
    );
    assert!(!v.debugfs("ea_list /d").contains("user.text"));
    v.fsck();
}
