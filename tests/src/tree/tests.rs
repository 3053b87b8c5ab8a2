//! Listings of a tree that holds one of everything, on the kernel's ext4.

use super::*;
use crate::{LoopMount, mke2fs, run};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

/// A volume of the kernel's with one file of each kind.
fn full_tree() -> (tempfile::TempDir, LoopMount) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("volume");
    mke2fs(&image, 16 << 20, &["-t", "ext4", "-b", "4096"]);
    let mount = LoopMount::new(&image, "");
    let at = |name: &str| mount.path().join(name);
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("dir/plain"), "content").unwrap();
    fs::hard_link(at("dir/plain"), at("dir/second")).unwrap();
    symlink("dir/plain", at("symlink")).unwrap();
    run("mkfifo", &[at("fifo")]);
    let node = |name, args: &[&str]| {
        run("mknod", &[&[at(name).to_str().unwrap()], args].concat());
    };
    node("char", &["c", "5", "1"]);
    node("block", &["b", "300", "70000"]);
    std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    let sparse = File::create(at("sparse")).unwrap();
    sparse.set_len(100_000).unwrap();
    sparse.write_all_at(b"x", 50_000).unwrap();
    fs::set_permissions(at("sparse"), fs::Permissions::from_mode(0o000)).unwrap();
    xattr::set(at("dir"), "user.key", b"value").unwrap();
    xattr::set(at("symlink"), "trusted.key", b"of the link").unwrap();
    run("setfacl", &["-m", "u:17:rx", at("dir/plain").to_str().unwrap()]);
    (dir, mount)
}

#[test]
fn nothing_is_left_out() {
    let (_dir, mount) = full_tree();
    let list = tree_listing(mount.path());
    let names: Vec<&str> = list.iter().map(|e| e.path.to_str().unwrap()).collect();
    let all = ["", "block", "char", "dir", "dir/plain", "dir/second", "fifo", "lost+found"];
    assert_eq!(names, [&all[..], &["socket", "sparse", "symlink"]].concat());
    let get = |name: &str| list.iter().find(|e| e.path == Path::new(name)).unwrap();
    assert_eq!((get("block").kind, get("block").rdev), (Kind::BlockDevice, rustix::fs::makedev(300, 70000)));
    assert_eq!((get("char").kind, get("char").rdev), (Kind::CharDevice, rustix::fs::makedev(5, 1)));
    assert_eq!((get("fifo").kind, get("socket").kind), (Kind::Fifo, Kind::Socket));
    assert_eq!(get("sparse").mode, 0);
    assert_eq!(get("sparse").data, [Range { start: 49152, end: 53248 }]);
    assert_eq!(get("dir").xattrs[&OsString::from("user.key")], b"value");
    assert_eq!(get("symlink").xattrs[&OsString::from("trusted.key")], b"of the link");
    assert!(get("dir/plain").xattrs.contains_key(&OsString::from("system.posix_acl_access")));
    assert_eq!((get("dir/plain").nlink, &get("dir/plain").link_of), (2, &None));
    assert_eq!(get("dir/second").link_of.as_deref(), Some(Path::new("dir/plain")));
    assert_eq!(get("symlink").target.as_deref(), Some(Path::new("dir/plain")));
    assert_eq!(get("dir/plain").content, get("dir/second").content);
    assert_ne!(get("dir/plain").content, get("sparse").content);
    assert_same_tree(&list, &tree_listing(mount.path()));
}

/// Each change that a copy could get wrong shows up, and names its file.
#[test]
fn every_difference_is_seen() {
    let (_dir, mount) = full_tree();
    let plain = mount.path().join("dir/plain");
    let path = plain.to_str().unwrap().to_owned();
    let sparse = mount.path().join("sparse").to_str().unwrap().to_owned();
    let mut before = tree_listing(mount.path());
    for command in [
        format!("chmod u+s {path}"),
        format!("chown 5 {path}"),
        format!("chgrp 6 {path}"),
        format!("touch -d @5.000000001 {path}"),
        format!("touch -d @5.000000002 {path}"),
        format!("printf CONTENT | dd of={path} conv=notrunc status=none; touch -d @5.000000002 {path}"),
        format!("setfacl -m u:17:r {path}"),
        format!("setfattr -n user.a -v 1 {path}"),
        format!("ln {path} {path}3"),
        format!("fallocate -l 4096 {sparse}; touch -d @9 {sparse}"),
        format!("ln -sfn other {}", mount.path().join("symlink").display()),
        format!("rm {path}"),
    ] {
        run("sh", &["-c", &command]);
        let after = tree_listing(mount.path());
        let lines = tree_diff(&before, &after);
        assert!(!lines.is_empty(), "{command} was not seen");
        assert!(lines.iter().all(|l| l.starts_with("- /") || l.starts_with("+ /")), "{lines:#?}");
        assert!(std::panic::catch_unwind(|| assert_same_tree(&before, &after)).is_err());
        before = after;
    }
}
