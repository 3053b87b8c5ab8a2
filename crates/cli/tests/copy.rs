//! cp between the host, volumes and the standard streams.

use crate::support::{Image, feed, succeed, tool};
use lanefs_tests::LoopDevice;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

/// Bytes that no short cut gets right.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9u32;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        })
        .collect()
}

#[test]
fn a_file_in_through_and_out() {
    let v = Image::new();
    let bytes = noise(3_000_001);
    fs::write(v.beside("in"), &bytes).expect("write");
    v.ok(["cp", "in", "v.img:/one"]);
    v.ok(["cp", "v.img:/one", "v.img:/two"]);
    v.ok(["cp", "v.img:/two", "out"]);
    assert!(fs::read(v.beside("out")).expect("read") == bytes);
    let out = v.lanefs(["cp", "v.img:/two", "-"]).output().expect("lanefs");
    assert!(out.stdout == bytes);
    v.debugfs(&format!("dump /one {}", v.beside("dumped").display()));
    assert!(fs::read(v.beside("dumped")).expect("read") == bytes);
    // A shorter file over a longer one.
    let out = feed(&mut v.lanefs(["cp", "-", "v.img:/one"]), b"short");
    assert!(out.status.success(), "{out:?}");
    assert_eq!(v.ok(["cat", "v.img:/one"]), "short");
    v.fsck();
}

#[test]
fn between_two_volumes() {
    let (a, b) = (Image::new(), Image::new());
    fs::write(a.beside("f"), "over").expect("write");
    a.ok(["cp", "f", "v.img:/f"]);
    let dst = format!("{}:/g", b.path.display());
    a.ok(["cp", "v.img:/f", &dst]);
    assert_eq!(b.ok(["cat", "v.img:/g"]), "over");
    b.fsck();
}

/// A tree with everything that a tree can have without root.
fn tree(root: &Path) {
    fs::create_dir_all(root.join("dir/deep/er")).expect("mkdir");
    fs::write(root.join("dir/file"), noise(100_000)).expect("write");
    fs::write(root.join("empty"), "").expect("write");
    fs::hard_link(root.join("dir/file"), root.join("linked")).expect("link");
    symlink("dir/file", root.join("short")).expect("symlink");
    symlink("y".repeat(200), root.join("dangling")).expect("symlink");
    fs::write(root.join("name with 'quotes'\nand \u{1b}[31m"), "odd").expect("write");
    let sparse = fs::File::create(root.join("dir/sparse")).expect("create");
    sparse.set_len(50 << 20).expect("truncate");
    sparse.write_all_at(b"island", 30 << 20).expect("write");
    succeed(tool("mkfifo").arg(root.join("fifo")));
    succeed(tool("chmod").args(["4750"]).arg(root.join("empty")));
    succeed(tool("chmod").args(["2770"]).arg(root.join("dir/deep")));
    succeed(tool("setfattr").args(["-n", "user.note", "-v", "kept"]).arg(root.join("dir/file")));
    succeed(tool("touch").args(["-h", "-d", "2001-02-03 04:05:06.123456789 UTC"]).arg(root.join("short")));
    succeed(tool("touch").args(["-d", "1999-12-31 23:59:59.987654321 UTC"]).arg(root.join("dir")));
}

/// Everything that cp -a keeps, as find and getfattr see it.
fn picture(root: &Path) -> String {
    let find = succeed(
        tool("find")
            .args([".", "-mindepth", "1", "-printf", "%P|%y|%m|%U:%G|%T+|%l|"])
            .args(["(", "-type", "d", "-printf", "-\\n", "-o", "-printf", "%s %n\\n", ")"])
            .current_dir(root),
    );
    let mut lines: Vec<String> = String::from_utf8_lossy(&find.stdout).lines().map(String::from).collect();
    lines.sort();
    let attributes = succeed(tool("getfattr").args(["-R", "-h", "-d", "-m", "user", "."]).current_dir(root));
    let sums =
        succeed(tool("sh").args(["-c", "find . -type f | sort | xargs -d '\\n' cksum"]).current_dir(root));
    format!(
        "{}\n{}\n{}",
        lines.join("\n"),
        String::from_utf8_lossy(&attributes.stdout),
        String::from_utf8_lossy(&sums.stdout)
    )
}

#[test]
fn a_tree_there_and_back_is_the_same() {
    let v = Image::new();
    let root = v.beside("tree");
    tree(&root);
    // xargs cannot pass the newline, so this name is compared by find alone.
    v.ok(["cp", "-a", "tree", "v.img:/t"]);
    v.ok(["cp", "-a", "v.img:/t", "v.img:/again"]);
    v.ok(["cp", "-a", "v.img:/again", "back"]);
    let odd = "name with 'quotes'\nand \u{1b}[31m";
    assert_eq!(fs::read_to_string(v.beside("back").join(odd)).expect("read"), "odd");
    for root in [&root, &v.beside("back")] {
        fs::remove_file(root.join(odd)).expect("rm");
        succeed(tool("touch").args(["-d", "2000-01-01 UTC"]).arg(root));
    }
    assert_eq!(picture(&root), picture(&v.beside("back")));
    let linked = fs::metadata(v.beside("back/linked")).expect("stat");
    assert_eq!(linked.ino(), fs::metadata(v.beside("back/dir/file")).expect("stat").ino());
    // Holes stayed holes, in the volume and on the way back.
    let blocks: u64 = v.ok(["stat", "-c", "%b", "v.img:/again/dir/sparse"]).trim().parse().expect("a number");
    assert!(blocks <= 64, "{blocks} sectors");
    assert!(fs::metadata(v.beside("back/dir/sparse")).expect("stat").blocks() <= 64);
    v.fsck();
}

#[test]
fn refuses_as_cp_does() {
    let v = Image::new();
    fs::write(v.beside("f"), "f").expect("write");
    fs::create_dir(v.beside("d")).expect("mkdir");
    v.ok(["mkdir", "v.img:/d"]);
    v.ok(["cp", "f", "v.img:/f"]);
    v.fails(["cp", "d", "v.img:/x"], 1, "lanefs: -r not specified; omitting directory 'd'");
    v.fails(["cp", "no", "v.img:/x"], 1, "lanefs: cannot access 'no': No such file or directory");
    v.fails(
        ["cp", "-r", "d", "v.img:/f"],
        1,
        "lanefs: cannot overwrite non-directory 'v.img:/f' with directory 'd'",
    );
    v.fails(
        ["cp", "-T", "f", "v.img:/d"],
        1,
        "lanefs: cannot overwrite directory 'v.img:/d' with non-directory",
    );
    v.fails(["cp", "f", "f", "v.img:/f"], 1, "lanefs: target 'v.img:/f' is not a directory");
    v.fails(["cp", "v.img:/f", "v.img:/f"], 1, "lanefs: 'v.img:/f' and 'v.img:/f' are the same file");
    v.fails(
        ["cp", "-r", "v.img:/d", "v.img:/d/e"],
        1,
        "lanefs: cannot copy a directory, 'v.img:/d', into itself, 'v.img:/d/e'",
    );
    v.fails(["cp", "f", "v.img:/no/f"], 1, "lanefs: cannot create 'v.img:/no/f': No such file or directory");
    v.fails(["cp", "f", "v.img:/f/g"], 1, "lanefs: cannot create 'v.img:/f/g': Not a directory");
    let name = format!("v.img:/{}", "n".repeat(256));
    v.fails(
        ["cp", "f", &name],
        1,
        &format!("lanefs: cannot create '{name}': File name too long (256 bytes, at most 255)"),
    );
    v.fsck();
}

#[test]
fn a_full_volume_says_so_and_stays_whole() {
    let v = Image::new();
    let big = fs::File::create(v.beside("big")).expect("create");
    big.write_all_at(&noise(80 << 20), 0).expect("write");
    v.fails(["cp", "big", "v.img:/big"], 1, "lanefs: cannot write 'v.img:/big': No space left on device");
    v.fsck();
    v.ok(["rm", "v.img:/big"]);
    v.fsck();
}

/// `--stats` reports the writes, as a table and as JSON.
#[test]
fn where_the_time_went() {
    let v = Image::new();
    fs::write(v.beside("in"), noise(75 * 4096)).expect("write");
    let run = |args: &[&str]| {
        let out = v.lanefs(args).output().expect("lanefs");
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stderr).expect("text")
    };
    let json: serde_json::Value =
        serde_json::from_str(&run(&["cp", "--stats=json", "in", "v.img:/f"])).expect("JSON");
    assert_eq!(json["counters"]["bytes_written_back"], 75 * 4096);
    assert!(json["counters"]["handles"].as_u64() >= Some(2), "{json}");
    let commit = &json["histograms"]["commit"];
    assert_eq!(commit["count"], json["counters"]["commits"]);
    assert!(commit["p50"].as_u64() > Some(0) && commit["p50"].as_u64() <= commit["max"].as_u64(), "{commit}");
    let buckets = commit["buckets"].as_array().expect("buckets");
    assert_eq!(buckets.iter().filter_map(|b| b[2].as_u64()).sum::<u64>(), commit["timed"]);
    let table = run(&["cp", "--stats", "v.img:/f", "out"]);
    assert!(table.lines().any(|line| line.starts_with("load ")), "{table}");
    assert!(run(&["cp", "v.img:/f", "out"]).is_empty());
}

/// What a copy keeps is the source's alone, whatever its new directory hands down.
#[test]
fn a_copy_has_no_acl_of_its_new_directory() {
    let v = Image::new();
    let sh = |script: &str| succeed(tool("bash").args(["-euc", script]).current_dir(v.beside("")));
    sh("umask 022; mkdir shared out d; setfacl -d -m u:1000:rwx shared out d; setfacl -k d
        echo s > secret; echo s > d/f; chmod 640 secret; setfacl -m u:1001:r d/f");
    v.ok(["cp", "-a", "shared", "v.img:/"]);
    v.ok(["cp", "-p", "secret", "v.img:/shared/plain"]);
    v.ok(["cp", "-a", "d", "v.img:/shared/"]);
    v.ok(["mv", "secret", "v.img:/shared/"]);
    for name in ["plain", "secret", "d"] {
        let list = v.debugfs(&format!("ea_list /shared/{name}"));
        assert!(!list.contains("acl"), "{name}: {list}");
    }
    assert_eq!(v.ok(["stat", "-c", "%a", "v.img:/shared/secret"]), "640\n");
    v.ok(["cp", "-a", "v.img:/shared/d", "v.img:/shared/secret", "out"]);
    // As cp(1) does: the mode beside a list is not the mode without it.
    v.ok(["cp", "-p", "v.img:/shared/d/f", "out/p"]);
    let acls = sh("cd out; getfacl -cE d secret d/f p | grep -v '^$' | tr '\\n' ' '");
    assert_eq!(
        String::from_utf8_lossy(&acls.stdout),
        "user::rwx group::r-x other::r-x user::rw- group::r-- other::--- \
         user::rw- user:1001:r-- group::r-- mask::r-- other::r-- \
         user::rw- user:1001:r-- group::r-- mask::r-- other::r-- "
    );
    v.fsck();
}

/// What keeps no holes gets them as zeros: a pipe, and a device that holds something else.
#[test]
fn holes_are_zeros_in_a_pipe_and_on_a_device() {
    let v = Image::new();
    let sparse = fs::File::create(v.beside("sparse")).expect("create");
    sparse.write_all_at(b"first", 0).expect("write");
    sparse.write_all_at(b"island", 3 << 20).expect("write");
    sparse.set_len(4 << 20).expect("truncate");
    v.ok(["cp", "sparse", "v.img:/sparse"]);
    let script = r#"mkfifo pipe; cat pipe > got & "$LANEFS" cp v.img:/sparse pipe; wait; cmp sparse got
        "$LANEFS" cp v.img:/sparse /dev/stdout | cmp sparse -"#;
    let mut bash = tool("bash");
    bash.args(["-euc", script]).env("LANEFS", env!("CARGO_BIN_EXE_lanefs")).current_dir(v.beside(""));
    succeed(&mut bash);
    fs::write(v.beside("disk"), vec![0xFF; 4 << 20]).expect("write");
    let disk = LoopDevice::new(v.beside("disk"));
    let path = disk.path().to_str().expect("a path in UTF-8");
    v.ok(["cp", "--force", "v.img:/sparse", path]);
    assert!(fs::read(path).expect("read") == fs::read(v.beside("sparse")).expect("read"));
}

#[test]
fn what_exists_stays_from_standard_input_too() {
    let v = Image::new();
    let from_stdin = |args: &[&str], bytes: &[u8]| {
        let out = feed(&mut v.lanefs([&["cp"], args].concat()), bytes);
        assert!(out.status.success(), "{out:?}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    assert_eq!(from_stdin(&["-nv", "-", "v.img:/f"], b"first"), "'-' -> 'v.img:/f'\n");
    assert_eq!(from_stdin(&["-nv", "-", "v.img:/f"], b"second"), "");
    assert_eq!(v.ok(["cat", "v.img:/f"]), "first");
    let out = feed(&mut v.lanefs(["cp", "-nT", "-", "v.img:/"]), b"");
    assert!(!out.status.success(), "a directory is no file: {out:?}");
}

/// By the file itself, and by a loop device on it.
#[test]
fn standard_input_is_no_volume_that_is_written_to() {
    let v = Image::new();
    fs::write(v.beside("plain"), "plain").unwrap();
    v.ok(["cp", "plain", "v.img:/x"]);
    let from = |file: &Path, args: &[&str]| {
        let stdin = fs::File::open(file).unwrap();
        let out = v.lanefs(args).stdin(stdin).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let said = "lanefs: cannot read '-': it is a volume in use by this program\n".to_owned();
    for args in [&["cp", "-", "v.img:/x"][..], &["cp", "-n", "-", "v.img:/x"], &["cp", "-", "v.img:/new"]] {
        assert_eq!(from(&v.path, args), (Some(1), said.clone()), "{args:?}");
    }
    let device = LoopDevice::new(&v.path);
    assert_eq!(from(device.path(), &["cp", "-", "v.img:/x"]), (Some(1), said));
    drop(device);
    assert_eq!(v.ok(["cat", "v.img:/x"]), "plain");
    assert!(!v.ok(["ls", "v.img:/"]).contains("new"));
    // Another volume is a file as any.
    let other = Image::new();
    fs::File::options().write(true).open(&other.path).unwrap().set_len(1 << 20).unwrap();
    assert_eq!(from(&other.path, &["cp", "-", "v.img:/x"]), (Some(0), String::new()));
    v.fsck();
}

#[test]
fn standard_input_that_cannot_be_read_changes_nothing() {
    let v = Image::new();
    fs::write(v.beside("plain"), "plain").unwrap();
    v.ok(["cp", "plain", "v.img:/old"]);
    for name in ["/old", "/new"] {
        let stdin = fs::File::open("/").unwrap();
        let out = v.lanefs(["cp", "-", &v.at(name)]).stdin(stdin).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(said, "lanefs: cannot read '-': Is a directory\n");
        assert_eq!(out.status.code(), Some(1));
    }
    assert_eq!(v.ok(["cat", "v.img:/old"]), "plain");
    assert_eq!(v.ok(["ls", "v.img:/"]), "lost+found\nold\n");
    v.fsck();
}

/// Its metadata says 0 bytes, and a search finds no data in it.
#[test]
fn a_file_of_procfs_is_as_long_as_it_reads() {
    let v = Image::new();
    let path = "/proc/sys/kernel/ostype";
    v.ok(["cp", path, "v.img:/a"]);
    assert_eq!(v.ok(["cat", "v.img:/a"]), fs::read_to_string(path).expect("read"));
    v.fsck();
}

/// Its metadata says 4096 bytes.
#[test]
fn a_file_of_sysfs_is_as_long_as_it_reads() {
    let v = Image::new();
    let path = "/sys/class/net/lo/address";
    v.ok(["cp", path, "v.img:/a"]);
    assert_eq!(v.ok(["cat", "v.img:/a"]), fs::read_to_string(path).expect("read"));
    // A hole at the end stays.
    fs::File::create(v.beside("hole")).expect("create").set_len(10_000).expect("size");
    v.ok(["cp", "hole", "v.img:/hole"]);
    assert_eq!(v.ok(["stat", "-c", "%s", "v.img:/hole"]), "10000\n");
    v.fsck();
}

/// Owner, mode and times are those of what the link leads to, and so are the others.
#[test]
fn a_link_that_is_followed_brings_attributes_and_acls() {
    let v = Image::new();
    let sh = |script: &str| succeed(tool("bash").args(["-euc", script]).current_dir(v.beside("")));
    sh("mkdir d; echo f > d/f; ln -s d/f link; ln -s d dir; setfattr -n user.note -v kept d/f d
        setfacl -m u:1000:r d/f; setfacl -m d:u:1001:rx d");
    v.ok(["cp", "-aH", "link", "v.img:/f"]);
    v.ok(["cp", "-aH", "dir", "v.img:/d"]);
    for (name, acl) in [("f", "acl_access"), ("d", "acl_default")] {
        let list = v.debugfs(&format!("ea_list /{name}"));
        assert!(list.contains("user.note") && list.contains(acl), "{name}: {list}");
    }
    v.ok(["ln", "-s", "f", "v.img:/link"]);
    v.ok(["cp", "-aH", "v.img:/link", "out"]);
    let out = sh("getfattr -n user.note --only-values out; getfacl -ncE out | grep 1000");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "keptuser:1000:r--\n");
    // A link itself has neither.
    v.ok(["cp", "-a", "link", "v.img:/soft"]);
    assert_eq!(v.ok(["readlink", "v.img:/soft"]), "d/f\n");
    v.fsck();
}

#[test]
fn a_directory_that_was_there_keeps_its_mode() {
    let v = Image::new();
    succeed(tool("bash").args(["-euc", "mkdir -p t/d t/n; chmod 555 t/d t/n"]).current_dir(v.beside("")));
    v.ok(["mkdir", "-p", "v.img:/t/d"]);
    v.ok(["chmod", "1777", "v.img:/t/d"]);
    v.ok(["cp", "-r", "t", "v.img:/"]);
    assert_eq!(v.ok(["stat", "-c", "%a", "v.img:/t/d", "v.img:/t/n"]), "1777\n555\n");
    v.ok(["cp", "-rp", "t", "v.img:/"]);
    assert_eq!(v.ok(["stat", "-c", "%a", "v.img:/t/d"]), "555\n");
}

/// A target that is a link to a directory stands for it, with the copy's attributes too.
#[test]
fn attributes_are_of_what_a_named_link_leads_to() {
    let v = Image::new();
    succeed(tool("bash").args(["-euc", "mkdir t; chmod 711 t; chown 7:8 t"]).current_dir(v.beside("")));
    v.ok(["mkdir", "v.img:/d"]);
    v.ok(["ln", "-s", "d", "v.img:/link"]);
    v.ok(["cp", "-aT", "t", "v.img:/link"]);
    let stat = v.ok(["stat", "-c", "%a %u:%g", "v.img:/d", "v.img:/link"]);
    assert_eq!(stat, "711 7:8\n777 0:0\n");
    v.ok(["chmod", "-Rv", "700", "v.img:/link"]);
    assert_eq!(v.ok(["stat", "-c", "%a", "v.img:/d", "v.img:/link"]), "700\n777\n");
}

/// As cp(1) does: a named link stays, and what it leads to is written to.
#[test]
fn a_link_of_a_volume_that_is_named_is_written_through() {
    let v = Image::new();
    fs::write(v.beside("f"), "new").expect("write");
    for (target, link) in [("file", "link"), ("none", "dangling"), ("lost+found", "dir"), ("loop", "loop")] {
        v.ok(["ln", "-s", target, &format!("v.img:/{link}")]);
    }
    let out = feed(&mut v.lanefs(["cp", "-", "v.img:/file"]), b"something longer");
    assert!(out.status.success(), "{out:?}");
    let same = "lanefs: 'v.img:/file' and 'v.img:/link' are the same file";
    v.fails(["cp", "v.img:/file", "v.img:/link"], 1, same);
    assert_eq!(v.ok(["cat", "v.img:/file"]), "something longer");
    v.ok(["cp", "f", "v.img:/link"]);
    assert_eq!(v.ok(["cat", "v.img:/file"]), "new");
    assert_eq!(v.ok(["readlink", "v.img:/link"]), "file\n");
    let dangling = "lanefs: not writing through dangling symbolic link 'v.img:/dangling'";
    v.fails(["cp", "f", "v.img:/dangling"], 1, dangling);
    let dir = "lanefs: cannot overwrite directory 'v.img:/dir' with non-directory";
    v.fails(["cp", "-T", "f", "v.img:/dir"], 1, dir);
    let endless = "lanefs: cannot create 'v.img:/loop': Too many levels of symbolic links";
    v.fails(["cp", "f", "v.img:/loop"], 1, endless);
    v.fsck();
}

/// The second name of a file whose first copy failed is no link to a part of it.
#[test]
fn a_copy_that_failed_is_linked_to_by_none() {
    let v = Image::new();
    succeed(
        tool("bash")
            .args(["-euc", "mkdir t; head -c 80M /dev/zero > t/a; ln t/a t/b"])
            .current_dir(v.beside("")),
    );
    let out = v.lanefs(["cp", "-a", "t", "v.img:/"]).output().expect("lanefs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(1) && said.lines().count() == 2, "{said}");
    assert_eq!(v.ok(["stat", "-c", "%h", "v.img:/t/a", "v.img:/t/b"]), "1\n1\n");
    v.fsck();
}
