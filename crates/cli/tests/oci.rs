//! export --oci and --oci-layer: umoci, skopeo and an import judge images and layers.

use crate::support::{Image, succeed, tool};
use lanefs_tests::{LoopMount, TreeEntry, assert_same_tree, tree_listing};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

/// A tree with everything that a layer has a form for.
const OLD: &str = r#"
    mkdir -p dir/sub etc usr/bin lib opaque/deep tofile/x emptied; echo hello > file; ln file hard
    ln -s /nowhere soft; mknod null c 1 3; mknod block b 259 70000; mkfifo fifo; chown 5:6 dir; chmod 2775 dir
    echo root > etc/passwd; chown 123456:7 etc/passwd; chmod 4755 etc/passwd; setfattr -n user.comment -v one file
    setfattr -n user.d -v d dir; setfattr -n trusted.x -v 0x00ff dir; echo ping > usr/bin/ping
    setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 usr/bin/ping
    touch -d '2001-02-03 04:05:06.123456789Z' file; touch -d '1999-12-31 23:59:59.5Z' dir
    truncate -s 10M hole; head -c 300000 /dev/urandom > big; echo x > $(printf 'n%.0s' $(seq 255))
    echo gone > gone; echo 1 > opaque/1; echo 2 > opaque/2; echo 3 > opaque/deep/3; echo x > todir; echo y > lib/y
    echo 4 > emptied/4; echo 1 > one; ln one two; ln one three; echo a > apart; ln apart lib/apart; ln one lib/one
    echo same > 'odd name'; echo k > lib/kept; touch -d '2002-02-02Z' lib/kept lib
"#;

/// What an upper layer does to it.
const NEW: &str = r#"
    rm -r gone tofile todir opaque/* emptied/*; echo f > tofile; mkdir todir; echo in > todir/in; echo 9 > opaque/9
    echo new > etc/passwd; rm hard; ln file dir/second; chmod 700 usr/bin; setfattr -x user.d dir
    setfattr -n user.e -v e dir; printf Z | dd of=big bs=1 seek=270000 conv=notrunc status=none
    echo more >> three; rm two; echo 1 > two; rm apart; echo apart > apart; mkdir -p new/a/b; echo b > new/a/b/c
    ln -sfn elsewhere soft; rm null; mknod null c 1 5; printf z | dd of=hole bs=1 seek=5M conv=notrunc status=none
    touch -d '2003-03-03 03:03:03.000000001Z' 'odd name'; echo z > lib/y; touch -d '2002-02-02Z' lib
"#;

/// Runs a script on the kernel's mount of an image beside `image`.
fn on_kernel(image: &Image, name: &str, script: &str) {
    let mount = LoopMount::new(image.beside(name), "");
    succeed(tool("bash").args(["-euc", script]).current_dir(mount.path()));
}

/// `old.img`, and `v.img`, which was made of it.
fn pair() -> Image {
    let image = Image::new();
    on_kernel(&image, "v.img", OLD);
    fs::copy(&image.path, image.beside("old.img")).unwrap();
    on_kernel(&image, "v.img", NEW);
    image
}

fn sh(image: &Image, script: &str) -> String {
    let out = succeed(tool("bash").args(["-euc", script]).current_dir(image.beside("")));
    String::from_utf8(out.stdout).unwrap()
}

/// What is below a folder, but for the volume's own and for where holes are: umoci writes them.
fn below(dir: &Path) -> Vec<TreeEntry> {
    let own = |path: &Path| path == Path::new("lost+found");
    let all = tree_listing(dir).into_iter().filter(|entry| !own(&entry.path));
    let links = |entry: &TreeEntry| if entry.path == Path::new("") { 0 } else { entry.nlink };
    all.map(|entry| TreeEntry { data: Vec::new(), nlink: links(&entry), ..entry }).collect()
}

fn mounted(image: &Image, name: &str) -> Vec<TreeEntry> {
    below(LoopMount::new(image.beside(name), "ro").path())
}

/// `umoci unpack` of an image must give the tree of a volume.
fn unpacks_to(image: &Image, oci: &str, volume: &str) {
    sh(image, &format!("rm -rf bundle; umoci unpack --image {oci} bundle"));
    let want = mounted(image, volume);
    assert!(want.len() > 25, "{want:?}");
    assert_same_tree(&want, &below(&image.beside("bundle/rootfs")));
}

/// An import of `sources` must give the tree of a volume, by `lanefs diff`.
fn imports_to(image: &Image, sources: &[&str], volume: &str) {
    sh(image, "rm -f again.img");
    image.ok(["mkfs", "-q", "--size", "64M", "again.img"]);
    image.ok([&["import"], sources, &["again.img:/"]].concat());
    let out = image.lanefs(["diff", volume, "again.img"]).output().unwrap();
    assert!(out.status.success(), "{sources:?}: {}", String::from_utf8_lossy(&out.stdout));
}

#[test]
fn images_are_taken_by_others() {
    let image = pair();
    image.ok(["export", "--oci", "--tag", "app", "old.img", "layout"]);
    unpacks_to(&image, "layout:app", "old.img");
    imports_to(&image, &["layout:app"], "old.img");
    let inspect = |of: &str| sh(&image, &format!("skopeo inspect --config {of}; skopeo inspect --raw {of}"));
    let said = inspect("oci:layout:app");
    assert!(
        said.contains(r#""os": "linux""#) && said.contains("tar+gzip") && !said.contains("created\":"),
        "{said}"
    );
    sh(&image, "skopeo --insecure-policy copy -q oci:layout:app docker-archive:saved:app:1");
    imports_to(&image, &["saved"], "old.img");
    // As an archive, and by zstd; to standard output the same.
    let options = ["export", "--oci", "--compress", "zstd", "--platform", "linux/arm64/v8", "--tag", "app"];
    image.ok([&options[..], &["old.img:/", "a.tar"]].concat());
    let said = inspect("oci-archive:a.tar:app");
    assert!(said.contains(r#""architecture": "arm64""#) && said.contains("tar+zstd"), "{said}");
    imports_to(&image, &["a.tar:app"], "old.img");
    let out = succeed(&mut image.lanefs([&options[..], &["old.img", "-"]].concat()));
    assert!(out.stdout == fs::read(image.beside("a.tar")).unwrap());
    // A directory of a volume, not compressed.
    image.ok(["export", "--oci", "--compress", "none", "old.img:/lib", "lib"]);
    image.ok(["mkdir", "v.img:/sub"]);
    image.ok(["import", "lib", "v.img:/sub"]);
    assert_eq!(image.ok(["diff", "--no-times", "old.img:/lib/y", "v.img:/sub/y"]), "");
}

#[test]
fn differences_lead_from_the_old_to_the_new() {
    let image = pair();
    image.ok(["export", "--oci", "--tag", "app", "--since", "old.img", "v.img", "layout"]);
    unpacks_to(&image, "layout:app", "v.img");
    imports_to(&image, &["layout:app"], "v.img");
    image.ok(["export", "--oci-layer", "old.img", "base.tar.gz"]);
    image.ok(["export", "--oci-layer", "--since", "old.img", "v.img", "top.tar"]);
    imports_to(&image, &["base.tar.gz", "top.tar"], "v.img");
    let names = sh(&image, "tar -tf top.tar");
    let names: Vec<&str> = names.lines().collect();
    for name in
        [".wh.gone", ".wh.hard", "opaque/.wh..wh..opq", "emptied/.wh..wh..opq", "new/a/b/c", "lib/y", "lib/"]
    {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    // All names of a file whose content changed; none of what stayed the same.
    for (name, there) in [
        ("one", true),
        ("three", true),
        ("lib/one", true),
        ("lib/kept", false),
        ("block", false),
        ("fifo", false),
    ] {
        assert_eq!(names.contains(&name), there, "{name}: {names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("lost+found")), "{names:?}");
    // Nothing but the root where nothing differs.
    image.ok(["export", "--oci-layer", "--since", "v.img", "v.img", "none.tar"]);
    assert_eq!(sh(&image, "tar -tf none.tar"), "./\n");
}

#[test]
fn the_same_volume_gives_the_same_bytes() {
    let image = pair();
    let make = |name: &str, before: &str| {
        let lanefs = env!("CARGO_BIN_EXE_lanefs");
        let since = "--since old.img v.img";
        sh(
            &image,
            &format!(
                "{before}; {lanefs} export --oci --tag t {since} {name}.tar; {lanefs} export --oci {since} {name}"
            ),
        );
        sh(&image, &format!("sha256sum < {name}.tar; cd {name}; find -type f | sort | xargs sha256sum"))
    };
    let one = make("one", "export SOURCE_DATE_EPOCH=1000000000");
    assert_eq!(
        one,
        make("two", "export SOURCE_DATE_EPOCH=1000000000 TZ=Asia/Tokyo; umask 077; touch old.img")
    );
    let said =
        sh(&image, "skopeo inspect --config oci-archive:one.tar:t; tar --full-time -tvf one.tar | grep json");
    assert!(said.contains("2001-09-09T01:46:40Z") && said.contains("2001-09-09 01:46:40"), "{said}");
    assert_ne!(one, make("three", "export SOURCE_DATE_EPOCH=1000000001"));
}

#[test]
fn what_is_there_stays() {
    let image = pair();
    fs::write(image.beside("there.tar"), "mine").unwrap();
    fs::create_dir(image.beside("folder")).unwrap();
    fs::write(image.beside("folder/mine"), "mine").unwrap();
    let said =
        |name: &str| format!("lanefs: cannot write '{name}': it exists already; --force replaces a file");
    image.fails(["export", "--oci", "v.img", "there.tar"], 1, &said("there.tar"));
    image.fails(["export", "--oci-layer", "v.img", "there.tar"], 1, &said("there.tar"));
    image.fails(["export", "--oci", "v.img", "folder"], 1, &said("folder"));
    image.fails(["export", "--oci", "--force", "v.img", "folder"], 1, &said("folder"));
    image.fails(["export", "--oci-layer", "--since", "none.img", "v.img", "l.tar"], 1,
        "lanefs: cannot open 'none.img': No such file or directory; lanefs mkfs --size 1G VOLUME makes a volume");
    image.fails(
        ["export", "--oci-layer", "--since", "old.img:/none", "v.img", "l.tar"],
        1,
        "lanefs: cannot compare 'old.img:/none': No such file or directory",
    );
    image.fails(
        ["export", "--since", "old.img", "v.img", "l.tar"],
        1,
        "lanefs: --since and --compress are for images: add --oci or --oci-layer",
    );
    assert_eq!(sh(&image, "cat there.tar folder/mine; ls -A"), "mineminefolder\nold.img\nthere.tar\nv.img\n");
    image.ok(["export", "--oci", "--force", "v.img", "there.tar"]);
    image.ok(["export", "--oci", "v.img", "new/"]);
    fs::create_dir(image.beside("empty")).unwrap();
    image.ok(["export", "--oci", "--tag", "latest", "v.img", "empty"]);
    unpacks_to(&image, "empty", "v.img");
}

#[test]
fn a_folder_keeps_its_mode_and_its_place() {
    let image = pair();
    sh(&image, "mkdir -m 700 private; mkdir -m 2775 shared; mkdir mnt here");
    for name in ["private", "shared", "new"] {
        image.ok(["export", "--oci", "v.img", name]);
    }
    let modes =
        sh(&image, "umask 022; mkdir plain; stat -c %a private shared new; stat -c %a plain; rmdir plain");
    assert_eq!(modes, "700\n2775\n755\n755\n");
    let stays =
        |name: &str| format!("lanefs: cannot write '{name}': it cannot be replaced: name a new folder in it");
    let lanefs = env!("CARGO_BIN_EXE_lanefs");
    let said = sh(&image, &format!("cd here; {lanefs} export --oci ../v.img . 2>&1 || true"));
    assert_eq!(said.trim_end(), stays("."));
    image.fails(
        ["export", "--oci", "v.img", "here/.."],
        1,
        "lanefs: cannot write 'here/..': it exists already; --force replaces a file",
    );
    sh(&image, "mount -t tmpfs none mnt");
    let out = image.lanefs(["export", "--oci", "v.img", "mnt"]).output().unwrap();
    sh(&image, "umount mnt");
    assert_eq!(String::from_utf8_lossy(&out.stderr).trim_end(), stays("mnt"));
    let by = "is the name of an archive by gzip: an image is a folder or a .tar";
    for name in ["img.tar.gz", "img.tgz"] {
        image.fails(["export", "--oci", "v.img", name], 1, &format!("lanefs: '{name}' {by}"));
    }
    assert!(!sh(&image, "ls -A").contains("img.t"));
}

/// What a layer cannot have in the place of what was there before.
#[test]
fn nothing_old_is_left_in_the_place_of_what_is_left_out() {
    let image = Image::new();
    on_kernel(
        &image,
        "v.img",
        "mkdir sd sub sub/lost+found; echo 1 > sd/f; echo 2 > run; echo 3 > sub/lost+found/f",
    );
    fs::copy(&image.path, image.beside("old.img")).unwrap();
    on_kernel(
        &image,
        "v.img",
        "rm -r sd run; python3 -c 'import os
for name in (\"sd\", \"run\"): os.mknod(name, 0o140644)'",
    );
    let out =
        image.lanefs(["export", "--oci-layer", "--since", "old.img", "v.img", "l.tar"]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(sh(&image, "tar -tf l.tar | sort"), "./\n.wh.run\n.wh.sd\n");
    // The volume's own is judged on each side.
    image.ok(["export", "--oci-layer", "--since", "old.img:/sub", "old.img", "up.tar"]);
    assert_eq!(sh(&image, "tar -tf up.tar | grep -v ^sub | grep lost"), ".wh.lost+found\n");
    image.ok(["export", "--oci-layer", "--since", "old.img", "old.img:/sub", "down.tar"]);
    assert_eq!(sh(&image, "tar -tf down.tar | grep lost"), "lost+found/\nlost+found/f\n");
}

/// Files whose content is not what their hash trees say.
#[test]
fn nothing_old_stays_where_a_file_cannot_be_compared() {
    let image = Image::new();
    let unreadable = |name: &str| {
        image.ok(["verity", "enable", &format!("{name}:/f")]);
        sh(&image, &format!("debugfs -w -R 'punch /f 1 3' {name}"));
    };
    for (name, content) in [("old.img", "old"), ("new.img", "new")] {
        sh(
            &image,
            &format!(
                "rm -rf t; mkdir t; (yes | head -c 20000; echo {content}) > t/f; rm -f {name}; touch -d @1 t/f t"
            ),
        );
        image.ok(["build", "t", name, "-q", "--size", "16M", "-O", "verity"]);
    }
    sh(&image, "cp new.img good.img");
    unreadable("old.img");
    image.ok(["export", "--oci-layer", "--since", "old.img", "good.img", "up.tar"]);
    assert_eq!(sh(&image, "tar -xOf up.tar f | cmp - t/f && echo same"), "same\n");
    unreadable("new.img");
    let out =
        image.lanefs(["export", "--oci-layer", "--since", "good.img", "new.img", "l.tar"]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(sh(&image, "tar -tf l.tar"), "./\n.wh.f\n");
}

/// An image has no zeros in place of what cannot be read. An archive has, and the message says so.
#[test]
fn what_cannot_be_read_ends_an_image() {
    let image = Image::new();
    sh(&image, "mkdir t; yes | head -c 20000 > t/f; echo g > t/g");
    image.ok(["build", "t", "bad.img", "-q", "--size", "16M", "--fs-verity"]);
    sh(
        &image,
        "at=$(($(debugfs -R 'bmap /f 2' bad.img) * 4096 + 7)); \
         printf X | dd of=bad.img bs=1 seek=$at conv=notrunc status=none",
    );
    let before = sh(&image, "ls -A");
    let failed = |args: &[&str]| {
        let out = image.lanefs([&["export"], args].concat()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(1) && said.contains("cannot export 'bad.img:/f': "), "{said}");
        said
    };
    for args in [
        &["--oci", "bad.img", "layout"][..],
        &["--oci", "bad.img", "a.tar"],
        &["--oci", "--since", "v.img", "bad.img", "layout"],
        &["--oci-layer", "bad.img", "l.tar.gz"],
        &["--oci-layer", "--since", "v.img", "bad.img", "l.tar"],
    ] {
        assert!(!failed(args).contains("zeros"), "{args:?}");
        assert_eq!(sh(&image, "ls -A"), before, "{args:?}");
    }
    let said = failed(&["bad.img", "plain.tar"]);
    assert!(said.contains("the archive has zeros in place of what cannot be read: "), "{said}");
    assert_eq!(sh(&image, "tar -xOf plain.tar f | wc -c; tar -xOf plain.tar g"), "20000\ng\n");
}

/// Names that would be whiteouts are left out, and each is told of once.
#[test]
fn whiteouts_that_are_files_have_no_form() {
    let image = Image::new();
    sh(&image, "cp v.img old.img");
    on_kernel(&image, "old.img", "echo b > b");
    on_kernel(&image, "v.img", "touch .wh.a; echo c > c; ln c d");
    for (since, expected) in [(&[][..], "./\nc\nd\n"), (&["--since", "old.img"], "./\n.wh.b\nc\nd\n")] {
        let command = ["export", "--oci-layer"].iter().chain(since).chain(&["v.img", "l.tar", "--force"]);
        let out = image.lanefs(command).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(
            said,
            "lanefs: cannot export 'v.img:/.wh.a': a layer has no form for names that begin with .wh.\n"
        );
        let names = sh(&image, "tar -tf l.tar | LC_ALL=C sort");
        assert_eq!((out.status.code(), names.as_str()), (Some(1), expected));
    }
}

/// A signal while the command waits for the reader of its messages: one for each of many sockets.
#[test]
fn a_signal_leaves_nothing() {
    let image = Image::new();
    let sockets = "python3 -c 'import os
for i in range(3000): os.mknod(f\"socket{i:060}\", 0o140644)'";
    on_kernel(&image, "v.img", sockets);
    for (option, target) in [("--oci", "layout"), ("--oci", "a.tar"), ("--oci-layer", "l.tar")] {
        let mut command = image.lanefs(["export", option, "v.img", target]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let begun = || sh(&image, "ls -A").contains(".lanefs-");
        while !begun() {
            assert!(child.try_wait().unwrap().is_none());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        sh(&image, &format!("kill -INT {}", child.id()));
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{target}: {said}");
        assert_eq!(sh(&image, "ls -A"), "v.img\n", "{target}");
    }
}
