//! diff: volumes that the kernel changed, and what is said of each change.

use crate::support::{Image, succeed, tool};
use lanefs_tests::LoopMount;
use serde_json::Value;

/// Runs a script on the kernel's mount of `name`, an image beside `image`.
fn on_kernel(image: &Image, name: &str, script: &str) {
    let mount = LoopMount::new(image.beside(name), "");
    succeed(tool("bash").args(["-euc", script]).current_dir(mount.path()));
}

/// Two copies of a volume with files of all kinds, `v.img` and `new.img`; `script` runs on the
/// second.
fn changed(script: &str) -> Image {
    let image = Image::new();
    let made = r#"
        mkdir -p etc/conf.d gone/deep 'odd name' kinds; cd etc; echo small > a.conf; echo x > conf.d/b.conf
        head -c 900000 /dev/zero | tr '\0' z > big; ln big again; ln -s conf.d/b.conf link; mkfifo pipe
        mknod null c 1 3; mknod disk b 259 70000; cd ..; echo 1 > gone/deep/1; touch kinds/file; mkdir kinds/dir
        setfattr -n user.note -v one etc/a.conf; setfattr -n user.other -v two etc/a.conf
        truncate -s 5M hole; echo one > linked1; ln linked1 linked2; ln linked1 linked3; echo one > apart; sync
    "#;
    on_kernel(&image, "v.img", made);
    std::fs::copy(&image.path, image.beside("new.img")).unwrap();
    if !script.is_empty() {
        on_kernel(&image, "new.img", script);
    }
    image
}

/// Runs `lanefs diff ARGS`, which must end with `code` and say nothing on standard error.
fn diff(image: &Image, args: &[&str], code: i32) -> String {
    let out = image.lanefs(["diff"].iter().chain(args)).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.is_empty() && out.status.code() == Some(code), "{args:?}: {}: {said}", out.status);
    String::from_utf8(out.stdout).unwrap()
}

const EVERY_CHANGE: &str = r#"
    rm -r gone; mkdir -p new/below; echo n > new/below/n; echo larger > etc/a.conf; chmod 4755 etc/conf.d
    chown 5:6 etc/conf.d/b.conf; printf Z | dd of=etc/big bs=1 seek=700001 conv=notrunc status=none
    ln -sfn 'https://h?key=v' etc/link; rm etc/null etc/disk; mknod etc/null c 1 5; mknod etc/disk b 259 70000
    rm -r kinds/*; mkdir kinds/file; mkfifo kinds/dir; setfattr -n user.note -v ONE etc/a.conf
    setfattr -x user.other etc/a.conf; touch -h -d '2003-04-05 06:07:08.090807060 UTC' hole
    rm linked2 linked3; cp linked1 linked2; ln apart linked3; touch "odd name/$(printf 'a\377')"
"#;

#[test]
fn every_change_has_a_line() {
    let image = changed(EVERY_CHANGE);
    let want = [
        "~ /etc/a.conf: size 6 -> 7, attribute user.note, attribute user.other",
        "~ /etc/again: content from byte 700001 on",
        "~ /etc/big: content from byte 700001 on",
        "~ /etc/conf.d: mode 0755 -> 4755",
        "~ /etc/conf.d/b.conf: user 0 -> 5, group 0 -> 6",
        "~ /etc/link: target 'conf.d/b.conf' -> 'https://h?key=v'",
        "~ /etc/null: device 1:3 -> 1:5",
        "- /gone",
        "~ /kinds/dir: type directory -> fifo",
        "~ /kinds/file: type regular file -> directory",
        "~ /linked2: hard links",
        "~ /linked3: hard links",
        "+ /new",
        "+ /odd name/a\u{fffd}",
    ];
    let out = image.lanefs(["diff", "--no-times", "v.img", "new.img"]).output().unwrap();
    let lossy = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(lossy.lines().collect::<Vec<_>>(), want);
    assert_eq!(out.status.code(), Some(1));
}

#[test]
fn times_are_compared_unless_they_are_left_out() {
    let image = changed("touch -m -d '2003-04-05 06:07:08.090807060 UTC' hole");
    let found: Value = serde_json::from_str(&diff(&image, &["--json", "v.img", "new.img"], 1)).unwrap();
    let found = found.as_array().unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["differs"], serde_json::json!(["modified"]));
    assert_eq!(found[0]["new"]["modified"], "2003-04-05T06:07:08.090807060Z");
    assert_eq!(diff(&image, &["--no-times", "v.img", "new.img"], 0), "");
}

#[test]
fn the_same_is_the_same() {
    // Other inodes, other holes, other places: the same tree.
    let image = changed(
        "mkdir x; cp -a etc/a.conf x/; rm etc/a.conf; mv x/a.conf etc/; rmdir x; touch -d @5 etc .
         fallocate -l 3M hole; dd if=/dev/zero of=hole bs=1M seek=3 count=1 conv=notrunc status=none",
    );
    on_kernel(&image, "v.img", "touch -d @5 etc . hole");
    on_kernel(&image, "new.img", "touch -d @5 hole");
    assert_eq!(diff(&image, &["v.img", "new.img"], 0), "");
    assert_eq!(diff(&image, &["v.img:/etc", "v.img:/etc"], 0), "");
    assert_eq!(diff(&image, &["--json", "v.img:/etc/big", "new.img:/etc/again"], 0), "[]\n");
    let zeros = diff(&image, &["--no-times", "v.img:/etc/big", "new.img:/hole"], 1);
    assert_eq!(zeros, "~ /: size 900000 -> 5242880\n");
    assert_eq!(diff(&image, &["--quiet", "v.img:/etc/big", "new.img:/hole"], 1), "");
}

/// A hole is compared with bytes as zeros, on either side, also behind the last extent.
#[test]
fn holes_are_zeros() {
    let image = changed("printf x | dd of=hole bs=1 seek=4000001 conv=notrunc status=none");
    let want = "~ /: content from byte 4000001 on\n";
    assert_eq!(diff(&image, &["--no-times", "v.img:/hole", "new.img:/hole"], 1), want);
    assert_eq!(diff(&image, &["--no-times", "new.img:/hole", "v.img:/hole"], 1), want);
}

#[test]
fn trouble_has_a_status_of_its_own() {
    let image = changed("");
    std::fs::write(image.beside("text"), "no volume\n".repeat(1000)).unwrap();
    let none = "lanefs: cannot compare 'new.img:/none': No such file or directory";
    image.fails(["diff", "v.img", "new.img:/none"], 2, none);
    let none = "lanefs: cannot compare 'v.img:/none': No such file or directory";
    image.fails(["diff", "v.img:/none", "new.img"], 2, none);
    let text = "lanefs: cannot open 'text': it holds no ext4 volume but text";
    image.fails(["diff", "v.img", "text"], 2, text);
    image.fails(
        ["diff", "-", "v.img"],
        2,
        "lanefs: '-' cannot be compared: name a volume, as VOLUME or VOLUME:/path",
    );
    assert_eq!(image.lanefs(["diff", "v.img"]).output().unwrap().status.code(), Some(2));
    // A part that is not there is not the whole file.
    let none = "lanefs: cannot open 'v.img@nosuch': has no partition table";
    image.fails(["diff", "v.img", "v.img@nosuch"], 2, none);
}

/// cp -a between volumes keeps all that diff compares, and the holes.
#[test]
fn a_copy_between_volumes_is_the_same() {
    let image = changed("");
    image.ok(["mkfs", "-q", "--size", "64M", "copy.img"]);
    image.ok(["cp", "-aT", "v.img:/", "copy.img:/"]);
    assert_eq!(diff(&image, &["v.img", "copy.img"], 0), "");
    image.ok(["cp", "-a", "v.img:/etc", "copy.img:/"]);
    image.ok(["cp", "-a", "v.img:/etc", "copy.img:/other"]);
    assert_eq!(diff(&image, &["v.img:/etc", "copy.img:/other"], 0), "");
    let blocks = |path: &str| image.ok(["du", "-s", path]).split('\t').next().unwrap().to_owned();
    assert_eq!((blocks("v.img:/hole"), blocks("copy.img:/hole")), ("0".into(), "0".into()));
    image.fsck();
}
