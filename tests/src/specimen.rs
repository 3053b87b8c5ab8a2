//! One tree with some of everything, as operations; and changes to it that reach every structure.

use crate::Kind;
use crate::ops::{Op, OpenHow, RenameHow, XattrHow};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Names in the large directory. A block of 1 KiB holds some 20 of them.
const NAMES: usize = 1200;

/// How far a sparse file reaches: with blocks of 1 KiB into the third level of indirect blocks.
const FAR: u64 = 150 << 20;

/// The operations that make the tree on an empty volume.
pub fn specimen() -> Vec<Op> {
    let mut make = Maker::default();
    make.contents();
    make.names();
    make.kinds();
    make.xattrs();
    make.stamp();
    make.ops
}

/// Changes to a volume that holds the [`specimen`].
pub fn edits() -> Vec<Op> {
    let mut make = Maker::default();
    // Names: out of the large directory, into it, across directories, over others.
    for i in (0..NAMES).step_by(3) {
        make.op(Op::Unlink { path: large_name(i) });
    }
    for i in (0..NAMES).step_by(5).filter(|i| i % 3 != 0) {
        make.rename(large_name(i), format!("many/renamed {i}"), RenameHow::Replace);
    }
    make.dir("made later", 0o755);
    make.rename("tree/a", "made later/a", RenameHow::NoReplace);
    make.rename("made later/a/b", "tree/b", RenameHow::Replace);
    make.rename("made later", "files", RenameHow::Exchange);
    // Now "files" and "made later" have changed places.
    make.file("files/new", 0, 70_000, 9);
    make.write("made later/small", 3, 5, 10);
    make.write("made later/two blocks", 100_000, 4000, 11);
    make.write("made later/sparse", 500_000, 9000, 12);
    make.op(Op::Append { path: "made later/medium".into(), len: 12_345, fill: 13 });
    for (path, len) in [("large", 1_234_567), ("sparse", 3_000_001), ("two blocks", 5), ("empty", 99_999)] {
        make.op(Op::Truncate { path: PathBuf::from("made later").join(path), len });
    }
    make.op(Op::Unlink { path: "made later/link to small".into() });
    make.op(Op::Link { from: "made later/medium".into(), to: "tree/medium too".into() });
    make.op(Op::Unlink { path: "links/slow".into() });
    make.op(Op::Symlink { target: "elsewhere".repeat(20).into(), path: "links/slow".into() });
    make.op(Op::Chmod { path: "acl/file".into(), mode: 0o750 });
    make.op(Op::Chown { path: "modes/0755".into(), uid: 7, gid: 70_000, follow: true });
    make.op(Op::RemoveXattr { path: "xattrs/both".into(), name: "user.large".into() });
    make.xattr("xattrs/in inode", "user.grown", &[b'g'; 700]);
    make.xattr("xattrs/shared 1", "user.shared", b"no more");
    make.op(Op::Unlink { path: "xattrs/shared 2".into() });
    make.op(Op::Rmdir { path: "tree/empty".into() });
    make.stamp();
    make.ops
}

fn large_name(i: usize) -> PathBuf {
    format!("many/a name of some length, number {i}").into()
}

#[derive(Default)]
struct Maker {
    ops: Vec<Op>,
    paths: Vec<PathBuf>,
}

impl Maker {
    fn op(&mut self, op: Op) {
        self.ops.push(op);
    }

    fn made(&mut self, path: impl Into<PathBuf>) -> PathBuf {
        let path = path.into();
        self.paths.push(path.clone());
        path
    }

    fn dir(&mut self, path: impl Into<PathBuf>, mode: u16) {
        let path = self.made(path);
        self.op(Op::Mkdir { path, mode });
    }

    fn create(&mut self, path: impl Into<PathBuf>, mode: u16) {
        let path = self.made(path);
        let how = OpenHow { create: true, excl: true, write: true, ..OpenHow::default() };
        self.op(Op::Open { path, how, mode });
    }

    fn write(&mut self, path: impl Into<PathBuf>, offset: u64, len: usize, fill: u8) {
        self.op(Op::Write { path: path.into(), offset, len, fill });
    }

    fn file(&mut self, path: &str, offset: u64, len: usize, fill: u8) {
        self.create(path, 0o644);
        self.write(path, offset, len, fill);
    }

    fn rename(&mut self, from: impl Into<PathBuf>, to: impl Into<PathBuf>, how: RenameHow) {
        self.op(Op::Rename { from: from.into(), to: to.into(), how });
    }

    fn xattr(&mut self, path: &str, name: &str, value: &[u8]) {
        let (path, name, value) = (path.into(), name.into(), value.to_vec());
        self.op(Op::SetXattr { path, name, value, how: XattrHow::Any });
    }

    /// Contents, holes, sizes.
    fn contents(&mut self) {
        self.dir("files", 0o755);
        self.create("files/empty", 0o600);
        self.file("files/small", 0, 11, 1);
        self.file("files/two blocks", 0, 5000, 2);
        self.file("files/medium", 0, 300_000, 3);
        self.file("files/large", 0, 1 << 20, 4);
        for i in 1..3 {
            self.write("files/large", i << 20, 1 << 20, 4);
        }
        self.file("files/sparse", 1 << 20, 6000, 5);
        for i in 1..40 {
            self.write("files/sparse", (1 << 20) + i * 90_000, 3000, 5);
        }
        self.file("files/far", FAR - 5000, 5000, 6);
        self.create("files/only a hole", 0o644);
        self.op(Op::Truncate { path: "files/only a hole".into(), len: 10_000_000 });
        self.file("files/cut", 0, 200_000, 7);
        self.op(Op::Truncate { path: "files/cut".into(), len: 100_001 });
        self.op(Op::Truncate { path: "files/cut".into(), len: 150_000 });
        self.op(Op::Link { from: "files/small".into(), to: "files/link to small".into() });
        // Blocks between others, so that the next files have many extents.
        for i in 0..60 {
            self.file(&format!("files/spacer {i}"), 0, 4096, 8);
        }
        for i in (0..60).step_by(2) {
            self.op(Op::Unlink { path: format!("files/spacer {i}").into() });
            let gone = PathBuf::from(format!("files/spacer {i}"));
            self.paths.retain(|p| *p != gone);
        }
        self.file("files/in pieces", 0, 200_000, 9);
    }

    /// Directories large and deep, names that are odd.
    fn names(&mut self) {
        self.dir("many", 0o755);
        for i in 0..NAMES {
            self.create(large_name(i), 0o640);
        }
        self.dir("tree", 0o755);
        let mut path = String::from("tree");
        for name in ["a", "b", "c", "d", "e"] {
            path = format!("{path}/{name}");
            self.dir(&*path, 0o700);
            self.file(&format!("{path}/leaf"), 0, 100, 20);
        }
        self.dir("tree/empty", 0o755);
        self.dir("names", 0o755);
        for i in 0..30_u8 {
            let long = format!("{i:03}").into_bytes().into_iter().chain([b'n'; 252]).collect();
            self.create(PathBuf::from("names").join(OsString::from_vec(long)), 0o644);
        }
        for odd in [&b"\xff\xfe\x01"[..], b"...", b" ", b"new\nline", "\u{e4}\u{4e2d}".as_bytes(), b"-"] {
            self.create(PathBuf::from("names").join(OsString::from_vec(odd.to_vec())), 0o644);
        }
    }

    /// Links, devices, modes and owners.
    fn kinds(&mut self) {
        self.dir("links", 0o755);
        for (name, target) in [
            ("fast", "../files/small".to_owned()),
            ("dangling", "/nowhere".to_owned()),
            ("59", "x".repeat(59)),
            ("60", "y".repeat(60)),
            ("slow", "z/".repeat(400)),
        ] {
            let path = self.made(format!("links/{name}"));
            self.op(Op::Symlink { target: target.into(), path });
        }
        self.dir("devices", 0o755);
        for (name, kind, device) in [
            ("fifo", Kind::Fifo, (0, 0)),
            ("socket", Kind::Socket, (0, 0)),
            ("null", Kind::CharDevice, (1, 3)),
            ("disk", Kind::BlockDevice, (8, 1)),
            ("large", Kind::CharDevice, (300, 70_000)),
        ] {
            let path = self.made(format!("devices/{name}"));
            self.op(Op::Mknod { path, kind, device, mode: 0o660 });
        }
        self.dir("modes", 0o755);
        for mode in [0, 0o400, 0o755, 0o4711, 0o2755, 0o1777, 0o7777] {
            self.create(format!("modes/{mode:04o}"), mode);
        }
        self.dir("modes/sgid", 0o2775);
        self.op(Op::Chown { path: "modes/sgid".into(), uid: 1000, gid: 100_000, follow: true });
        self.op(Op::Chmod { path: "modes/sgid".into(), mode: 0o2775 });
        self.create("modes/sgid/file", 0o664);
        self.dir("modes/sgid/dir", 0o775);
        self.op(Op::Chown { path: "modes/0400".into(), uid: 70_000, gid: 4_000_000_000, follow: true });
    }

    /// Extended attributes and ACLs.
    fn xattrs(&mut self) {
        self.dir("xattrs", 0o755);
        self.file("xattrs/in inode", 0, 10, 30);
        self.xattr("xattrs/in inode", "user.a", b"1");
        self.xattr("xattrs/in inode", "user.empty", b"");
        self.file("xattrs/both", 0, 10, 31);
        self.xattr("xattrs/both", "user.short", b"value");
        self.xattr("xattrs/both", "user.large", &[b'L'; 500]);
        self.xattr("xattrs/both", "trusted.root", b"\x00\x01\x02");
        self.xattr("xattrs/both", "security.thing", b"label");
        for i in 1..4 {
            let path = format!("xattrs/shared {i}");
            self.create(&*path, 0o644);
            self.xattr(&path, "user.shared", &[b'S'; 600]);
        }
        self.xattr("xattrs", "user.of a directory", b"yes");
        self.dir("acl", 0o755);
        self.create("acl/file", 0o640);
        self.xattr("acl/file", "system.posix_acl_access", &acl(0o6, 1234, 0o7, 0o4, 0o7, 0o0));
        self.xattr("acl", "system.posix_acl_default", &acl(0o7, 99, 0o5, 0o5, 0o7, 0o5));
        self.create("acl/inherits", 0o666);
        self.dir("acl/inherits too", 0o777);
        self.create("acl/inherits too/deep", 0o600);
    }

    /// Times of all that was made, some beyond 2038 and before 1970; directories last.
    fn stamp(&mut self) {
        self.paths.sort();
        self.paths.push(PathBuf::from("."));
        let paths = std::mem::take(&mut self.paths);
        for (i, path) in paths.into_iter().enumerate() {
            let i = i as i64;
            let sec = [1_000_000_000, 4_000_000_000, -5_000, 0][i as usize % 4] + i;
            let nsec = (i * 7_654_321 % 1_000_000_000) as u32;
            self.op(Op::Utimes { path, atime: (sec + 1, nsec / 2), mtime: (sec, nsec), follow: false });
        }
    }
}

/// An ACL as programs write it: version 2, then tag, permissions and id of each entry.
fn acl(user: u16, named: u32, named_perm: u16, group: u16, mask: u16, other: u16) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let entries = [
        (0x01, user, NONE),
        (0x02, named_perm, named),
        (0x04, group, NONE),
        (0x10, mask, NONE),
        (0x20, other, NONE),
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}
