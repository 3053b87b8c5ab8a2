//! A volume that is opened with `noacl`: ACLs neither count nor are seen, and those that are stored
//! stay. The errors are those of the kernel's VFS for a file system without SB_POSIXACL.

use lanefs::{Error, NewAttr, NewKind, Node, SetAttr, SetXattr, Volume};
use lanefs_format::acl::{Acl, AclEntry, Tag};
use lanefs_tests::{e2fsck_clean, mke2fs, open, writing};
use std::ffi::OsStr;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const CAPABILITY: &str = "security.capability";
const ATTR: NewAttr = NewAttr { permissions: 0o666, uid: 0, gid: 0 };

fn acl() -> Vec<u8> {
    let entries = [(Tag::UserObj, 7), (Tag::User(5), 7), (Tag::GroupObj, 0), (Tag::Mask, 7), (Tag::Other, 0)];
    Acl { entries: entries.map(|(tag, perm)| AclEntry { tag, perm }).to_vec() }.to_xattr()
}

fn node(volume: &Volume, path: &str) -> Node {
    path.split('/')
        .filter(|name| !name.is_empty())
        .fold(volume.root_node().unwrap(), |dir, name| dir.lookup(OsStr::new(name)).unwrap())
}

fn names(volume: &Volume, path: &str) -> Vec<String> {
    let all = node(volume, path).xattr_names().unwrap();
    all.into_iter().map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn acls_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("v");
    mke2fs(&image, 32 << 20, &["-t", "ext4", "-I", "128"]);
    let volume = open(writing(), &image).unwrap();
    volume.create_dir("/d").unwrap();
    volume.write("/d/old", b"content").unwrap();
    for (path, name) in [("/d", DEFAULT), ("/d", ACCESS), ("/d/old", ACCESS)] {
        volume.set_xattr(path, name, &acl(), SetXattr::Any).unwrap();
    }
    volume.set_xattr("/d/old", CAPABILITY, &[1; 20], SetXattr::Any).unwrap();
    volume.close().unwrap();

    let volume = open(writing().mount_option("noacl").unwrap(), &image).unwrap();
    for path in ["/d", "/d/old"] {
        for name in [ACCESS, DEFAULT] {
            let (node, os) = (node(&volume, path), OsStr::new(name));
            let errors = [
                node.xattr(os).unwrap_err(),
                node.set_xattr(os, &acl(), SetXattr::Any).unwrap_err(),
                node.set_xattr(os, b"", SetXattr::Any).unwrap_err(),
                node.remove_xattr(os).unwrap_err(),
            ];
            assert!(errors.iter().all(|e| matches!(e, Error::NotSupported(_))), "{path} {name}: {errors:?}");
        }
        assert!(!names(&volume, path).iter().any(|name| name.contains("posix_acl")), "{path}");
    }
    let made = node(&volume, "/d").create(OsStr::new("new"), NewKind::File, ATTR, 0o022).unwrap();
    assert_eq!(made.metadata().permissions(), 0o644);
    let dir = node(&volume, "/d").create(OsStr::new("nd"), NewKind::Dir, ATTR, 0o077).unwrap();
    assert_eq!(dir.metadata().permissions(), 0o600);
    // A new mode and a new owner together change the capability, and no list.
    let (old, mode) = (node(&volume, "/d/old"), Some(0o640));
    old.set_attr(&SetAttr { permissions: mode, uid: Some(3), ..SetAttr::default() }).unwrap();
    assert_eq!(old.metadata().permissions(), 0o640);
    assert_eq!(names(&volume, "/d/old"), [""; 0]);
    drop((made, dir, old));
    volume.close().unwrap();

    let volume = open(writing().mount_option("acl").unwrap(), &image).unwrap();
    for path in ["/d/new", "/d/nd"] {
        assert_eq!(names(&volume, path), [""; 0], "{path}");
    }
    for (path, name) in [("/d", DEFAULT), ("/d/old", ACCESS)] {
        let list = node(&volume, path).xattr(OsStr::new(name)).unwrap();
        assert_eq!(list, acl(), "{path}");
    }
    volume.close().unwrap();
    e2fsck_clean(&image);
}
