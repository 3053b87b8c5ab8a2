//! Hash trees of files, judged by fsverity, e2fsck and debugfs.

use crate::support::mount::Mount;
use crate::support::{Image, succeed, tool};
use std::fs;
use std::path::Path;

/// Of every shape: empty, no tree, one level and two, and a hole.
const SIZES: [u64; 9] = [0, 1, 4095, 4096, 4097, 1 << 20, (128 << 12) + 1, 20 << 20, 100 << 20];

/// A file of this size, which no two blocks have in common; the largest is a hole with two bytes.
fn file(path: &Path, size: u64) {
    let file = fs::File::create(path).expect("create");
    let text: Vec<u8> = (0..size.min(21 << 20)).map(|at| (at ^ at >> 9 ^ at >> 17) as u8).collect();
    match size > 50 << 20 {
        true => std::os::unix::fs::FileExt::write_all_at(&file, b"ab", size / 3).expect("write"),
        false => std::os::unix::fs::FileExt::write_all_at(&file, &text, 0).expect("write"),
    }
    file.set_len(size).expect("size");
}

/// The first word that `fsverity digest` prints.
fn digest(path: &Path, options: &[&str]) -> String {
    let out = succeed(tool("fsverity").arg("digest").arg(path).args(options));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.split(' ').next().expect("a digest").to_owned()
}

/// Everything that the blocks of a file hold, also behind its end, as debugfs reads it.
fn with_tree(v: &Image, path: &str, end: u64) -> Vec<u8> {
    let copy = v.beside("copy.img");
    succeed(tool("cp").arg("--sparse=always").args([&v.path, &copy]));
    let longer = format!("set_inode_field {path} size {end}");
    succeed(tool("debugfs").args(["-w", "-R", &longer]).arg(&copy));
    let dump = format!("dump {path} {}", v.beside("dump").display());
    succeed(tool("debugfs").args(["-R", &dump]).arg(&copy));
    fs::read(v.beside("dump")).expect("read")
}

#[test]
fn digests_and_trees_are_those_of_fsverity() {
    let cases: [&[&str]; 4] = [
        &[],
        &["--hash=sha512", "--salt=00112233"],
        &["--block-size=1024", "--salt=ff"],
        &["--hash=sha512", "--block-size=2048"],
    ];
    for options in cases {
        let v = Image::mke2fs(&["-b", "4096"], None);
        let theirs: Vec<String> = options.iter().map(|o| o.replace("--hash=", "--hash-alg=")).collect();
        let theirs: Vec<&str> = theirs.iter().map(String::as_str).collect();
        for size in SIZES {
            let host = v.beside("file");
            file(&host, size);
            let path = format!("/f{size}");
            v.ok(["cp", "file", &v.at(&path)]);
            v.ok([&["verity", "enable", &v.at(&path)], options].concat());
            let wanted = digest(&host, &theirs);
            assert_eq!(v.ok(["verity", "measure", &v.at(&path)]), format!("{wanted} v.img:{path}\n"));
            let (tree, descriptor) = (v.beside("tree"), v.beside("descriptor"));
            let outs = [("--out-merkle-tree", &tree), ("--out-descriptor", &descriptor)];
            let outs: Vec<String> = outs.iter().map(|(o, path)| format!("{o}={}", path.display())).collect();
            succeed(tool("fsverity").arg("digest").arg(&host).args(&theirs).args(&outs));
            let (tree, descriptor) = (fs::read(tree).expect("read"), fs::read(descriptor).expect("read"));
            let start = size.next_multiple_of(65_536);
            let at = (start + tree.len() as u64).next_multiple_of(4096);
            let mut behind = tree;
            behind.resize((at - start) as usize, 0);
            behind.extend(descriptor);
            behind.resize((at - start) as usize + 4092, 0);
            behind.extend(256_u32.to_le_bytes());
            let all = with_tree(&v, &path, at + 4096);
            assert!(all[start as usize..] == behind, "{options:?} {size}");
            let content = fs::read(&host).expect("read");
            assert!(all[..size as usize] == content);
            v.ok(["cp", &v.at(&path), "back"]);
            assert!(fs::read(v.beside("back")).expect("read") == content, "{options:?} {size}");
        }
        v.fsck();
        v.ok(["check", "v.img"]);
        assert!(v.debugfs("features").contains(" verity"));
    }
}

#[test]
fn small_blocks_of_the_volume() {
    for block in ["1024", "2048"] {
        let v = Image::mke2fs(&["-b", block], None);
        file(&v.beside("file"), 300_001);
        v.ok(["cp", "file", "v.img:/f"]);
        v.ok(["verity", "enable", "v.img:/f"]);
        let wanted = digest(&v.beside("file"), &[&format!("--block-size={block}")]);
        assert_eq!(v.ok(["verity", "measure", "v.img:/f"]), format!("{wanted} v.img:/f\n"));
        v.ok(["cp", "v.img:/f", "back"]);
        assert!(fs::read(v.beside("back")).expect("read") == fs::read(v.beside("file")).expect("read"));
        v.fsck();
    }
}

#[test]
fn a_volume_moves_with_its_trees() {
    let v = Image::new();
    file(&v.beside("file"), 5 << 20);
    file(&v.beside("before"), 30 << 20);
    v.ok(["cp", "before", "v.img:/before"]);
    v.ok(["cp", "file", "v.img:/f"]);
    v.ok(["verity", "enable", "v.img:/f"]);
    let measured = v.ok(["verity", "measure", "v.img:/f"]);
    // A copy has no tree, and can be written; the file can be replaced and not written.
    v.ok(["cp", "v.img:/f", "v.img:/copy"]);
    v.fails(
        ["verity", "measure", "v.img:/copy"],
        1,
        "lanefs: cannot measure 'v.img:/copy': No data available",
    );
    let refused =
        "lanefs: cannot allocate 'v.img:/f': Operation not permitted (the file has a hash tree: fs-verity)";
    v.fails(["fallocate", "-l", "1M", "v.img:/f"], 1, refused);
    let there = "lanefs: cannot enable fs-verity on 'v.img:/f': File exists";
    v.fails(["verity", "enable", "v.img:/f"], 1, there);
    v.ok(["rm", "v.img:/before"]);
    v.ok(["resize", "v.img", "min"]);
    v.fsck();
    assert_eq!(v.ok(["verity", "measure", "v.img:/f"]), measured);
    v.ok(["cp", "v.img:/f", "back"]);
    assert!(fs::read(v.beside("back")).expect("read") == fs::read(v.beside("file")).expect("read"));
    v.ok(["rm", "v.img:/f"]);
    v.fsck();
}

/// The files of a folder and its parts, by name.
const NAMES: [(&str, u64); 4] = [("bin/app", 3 << 20), ("bin/small", 10), ("etc/conf", 5000), ("empty", 0)];

#[test]
fn a_build_gives_files_their_trees() {
    let v = Image::new();
    for (name, size) in NAMES {
        let path = v.beside("t").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("mkdir");
        file(&path, size);
    }
    let build = |image: &str, glob: &str| {
        let uuid = "--uuid=01234567-89ab-cdef-0123-456789abcdef";
        let mut command = v.lanefs(["build", "t", image, "-q", "-F", uuid, glob]);
        succeed(command.env("SOURCE_DATE_EPOCH", "1700000000"));
    };
    build("all.img", "--fs-verity");
    for (name, _) in NAMES {
        let wanted = digest(&v.beside("t").join(name), &[]);
        let path = format!("all.img:/{name}");
        assert_eq!(v.ok(["verity", "measure", &path]), format!("{wanted} {path}\n"));
    }
    succeed(tool("e2fsck").arg("-fn").arg(v.beside("all.img")));
    // The same bytes each time.
    build("again.img", "--fs-verity=*");
    assert!(fs::read(v.beside("all.img")).expect("read") == fs::read(v.beside("again.img")).expect("read"));
    build("some.img", "--fs-verity=/bin/*");
    v.ok(["verity", "measure", "some.img:/bin/app", "some.img:/bin/small"]);
    let none = "lanefs: cannot measure 'some.img:/etc/conf': No data available";
    v.fails(["verity", "measure", "some.img:/etc/conf"], 1, none);
    succeed(tool("e2fsck").arg("-fn").arg(v.beside("some.img")));
    // As small as it can be: the trees are in the plan.
    let sizes = ["all.img", "some.img"].map(|name| fs::metadata(v.beside(name)).expect("a file").len());
    assert!(sizes[0] >= sizes[1]);
    // What would do nothing, or not what it says.
    for args in [&["--fs-verity-hash=sha512"][..], &["--fs-verity", "-O", "^verity"]] {
        let out = v.lanefs([&["build", "t", "no.img", "-q"], args].concat()).output().expect("run");
        assert!(!out.status.success() && !v.beside("no.img").exists(), "{args:?}");
    }
}

/// The map says which blocks are holes, and no digest is of the map.
#[test]
fn no_copy_has_a_hole_that_the_tree_does_not_have() {
    for requests in [&["punch /f 2 20"][..], &["punch /f 2 20", "fallocate /f 2 20"]] {
        let v = Image::mke2fs(&["-b", "4096"], None);
        file(&v.beside("file"), 300_001);
        v.ok(["cp", "file", "v.img:/f"]);
        v.ok(["verity", "enable", "v.img:/f"]);
        fs::copy(&v.path, v.beside("whole.img")).expect("copy");
        for request in requests {
            succeed(tool("debugfs").args(["-w", "-R", request]).arg(&v.path));
        }
        for args in [
            &["cp", "v.img:/f", "out"][..],
            &["cp", "v.img:/f", "v.img:/copy"],
            &["export", "v.img:/", "out.dir"],
            &["export", "v.img:/", "out.tar"],
            &["export", "--sparse", "v.img:/", "sparse.tar"],
            &["diff", "whole.img", "v.img"],
        ] {
            let out = v.lanefs(args).output().expect("lanefs");
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(!out.status.success() && said.contains("hash tree"), "{args:?}: {said}");
        }
    }
}

/// `fsverity enable`, again while the file that was just closed counts as open for writing: the
/// kernel tells of a close later.
fn enable(path: &Path, options: &[&str]) {
    loop {
        let out = tool("fsverity").arg("enable").arg(path).args(options).output().expect("fsverity");
        let said = String::from_utf8_lossy(&out.stderr);
        if out.status.success() {
            return;
        }
        assert!(said.contains("Text file busy"), "{said}");
    }
}

#[test]
fn a_mount_verifies_and_refuses() {
    let mount = Mount::blank_with(&["-O", "verity"]);
    let v = &mount.image;
    let host = v.beside("file");
    file(&host, 3 << 20);
    v.ok(["cp", "file", "v.img:/f"]);
    v.ok(["verity", "enable", "v.img:/f"]);
    v.ok(["mount", "v.img", "m"]);
    let measured = |name: &str| {
        let out = succeed(tool("fsverity").arg("measure").arg(mount.path(name)));
        String::from_utf8_lossy(&out.stdout).split(' ').next().expect("a digest").to_owned()
    };
    let refused = |name: &str| {
        for options in [fs::File::options().write(true), fs::File::options().append(true)] {
            let opened = options.open(mount.path(name));
            assert_eq!(
                opened.expect_err("a tree").raw_os_error(),
                Some(rustix::io::Errno::PERM.raw_os_error())
            );
        }
        let cut = fs::File::create(mount.path(name)).expect_err("a tree");
        assert_eq!(cut.raw_os_error(), Some(rustix::io::Errno::PERM.raw_os_error()));
        let flags = succeed(tool("lsattr").arg(mount.path(name)));
        let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
        assert!(flags.split(' ').next().expect("flags").contains('V'), "{flags}");
    };
    let content = fs::read(&host).expect("read");
    assert_eq!(measured("f"), digest(&host, &[]));
    assert!(fs::read(mount.path("f")).expect("read") == content);
    refused("f");

    let salted = ["--hash-alg=sha512", "--salt=00ff", "--block-size=1024"];
    for (name, options) in [("g", &[][..]), ("h", &salted)] {
        fs::write(mount.path(name), &content).expect("write");
        let none = tool("fsverity").arg("measure").arg(mount.path(name)).output().expect("fsverity");
        assert!(!none.status.success());
        let writer = fs::File::options().append(true).open(mount.path(name)).expect("open");
        let busy = tool("fsverity").arg("enable").arg(mount.path(name)).output().expect("fsverity");
        assert!(String::from_utf8_lossy(&busy.stderr).contains("Text file busy"));
        drop(writer);
        enable(&mount.path(name), options);
        assert_eq!(measured(name), digest(&host, options));
        assert!(fs::read(mount.path(name)).expect("read") == content);
        refused(name);
    }
    mount.umount();
    v.fsck();
    v.ok(["cp", "v.img:/h", "back"]);
    assert!(fs::read(v.beside("back")).expect("read") == content);

    // Wrong on the device: the mount tells it.
    let block = v.debugfs("bmap /f 5").trim().parse::<u64>().expect("a block");
    let image = fs::File::options().write(true).open(&v.path).expect("open");
    std::os::unix::fs::FileExt::write_all_at(&image, b"xyz", block * 4096).expect("write");
    drop(image);
    v.ok(["mount", "v.img", "m"]);
    let told = fs::read(mount.path("f")).expect_err("a changed block");
    assert_eq!(told.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    mount.umount();
}
