//! Messages as bytes, and what they are decoded to.

use super::*;
use crate::fault::Fault;
use crate::wire::op;
use proptest::prelude::{any, prop, proptest};
use rustix::io::Errno;

const HEADER: usize = 40;

/// A message about node 9 of thread 13, user 11 and group 12.
fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [(HEADER + body.len()) as u32, opcode, 7, 0, 9, 0, 11, 12, 13, 0] {
        bytes.extend_from_slice(&number.to_ne_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

/// A part of a body: a number of 32 or 64 bits, or bytes.
enum Part {
    U32(u32),
    U64(u64),
    Bytes(&'static [u8]),
}
use Part::{Bytes, U32, U64};

fn body(parts: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        match part {
            U32(number) => bytes.extend_from_slice(&number.to_ne_bytes()),
            U64(number) => bytes.extend_from_slice(&number.to_ne_bytes()),
            Bytes(part) => bytes.extend_from_slice(part),
        }
    }
    bytes
}

fn zeros(words: usize) -> Part {
    Bytes(&[0; 64][..4 * words])
}

/// Decodes a message of a kernel that has all features.
fn received(message: &[u8]) -> Option<Received<'_>> {
    Received::decode(message, InitFlags::all())
}

fn decoded(opcode: u32, body: &[u8]) -> Result<String, Errno> {
    decoded_with(InitFlags::all(), opcode, body)
}

fn decoded_with(features: InitFlags, opcode: u32, body: &[u8]) -> Result<String, Errno> {
    let message = message(opcode, body);
    let received = Received::decode(&message, features).unwrap();
    let header = received.header;
    assert_eq!((header.unique, header.nodeid, header.uid, header.gid, header.pid), (7, 9, 11, 12, 13));
    received.request.map(|request| format!("{request:?}")).map_err(|Fault(errno)| errno)
}

/// A message: its opcode, its body, each byte of which it needs, and the request that it is decoded
/// to.
type Case = (u32, Vec<u8>, &'static str);

fn case(opcode: u32, parts: &[Part], request: &'static str) -> Case {
    (opcode, body(parts), request)
}

/// A message of each opcode at least.
fn cases() -> impl Iterator<Item = Case> {
    let kinds = [
        requests_on_attributes(),
        requests_on_names(),
        requests_on_data(),
        requests_on_directories(),
        ioctls(),
        requests_without_answer(),
    ];
    kinds.into_iter().flatten()
}

/// The beginning of a mount, lookups and attributes.
fn requests_on_attributes() -> Vec<Case> {
    vec![
        case(
            op::INIT,
            &[U32(7), U32(35), U32(1), U32(2)],
            "Init(Init { major: 7, minor: 35, max_readahead: 1, offered: InitFlags(0x2) })",
        ),
        case(op::LOOKUP, &[Bytes(b"name\0")], r#"Lookup { name: "name" }"#),
        case(op::GETATTR, &[U32(1), U32(0), U64(5)], "GetAttr { handle: Some(5) }"),
        case(op::GETATTR, &[U32(0), U32(0), U64(5)], "GetAttr { handle: None }"),
        case(op::STATX, &[], "Statx"),
        // Mode, uid, size by a handle, atime now, mtime given, KILL_SUIDGID.
        case(
            op::SETATTR,
            &[
                U32(0x1 | 0x2 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80 | 0x800),
                U32(0),
                U64(5),
                U64(6),
                U64(0),
                U64(1),
                U64(2),
                U64(3),
                U32(4),
                U32(999_999_999),
                U32(1 << 31),
                U32(0o107_644),
                U32(0),
                U32(7),
                U32(8),
                U32(0),
            ],
            "SetAttr(SetAttrs { size: Some(6), kills_ids: true, set: SetAttr { permissions: Some(4004), uid: Some(7), gid: None, \
            atime: Some(Now), mtime: Some(At(Timestamp { sec: 2, nsec: 999999999 })), ctime: None, by: Privileged }, \
            by_handle: true, times_alone: false })",
        ),
        case(
            op::SETATTR,
            &[
                U32(0x20 | 0x400),
                U32(0),
                U64(5),
                U64(6),
                U64(0),
                U64(1),
                U64(2),
                U64(3),
                U32(4),
                U32(5),
                U32(6),
                U32(0),
                U32(0),
                U32(7),
                U32(8),
                U32(0),
            ],
            "SetAttr(SetAttrs { size: None, kills_ids: false, set: SetAttr { permissions: None, uid: None, gid: None, \
            atime: None, mtime: Some(At(Timestamp { sec: 2, nsec: 5 })), ctime: Some(At(Timestamp { sec: 3, nsec: 6 })), \
            by: Privileged }, by_handle: false, times_alone: true })",
        ),
    ]
}

/// Names: made, moved and removed.
fn requests_on_names() -> Vec<Case> {
    vec![
        case(op::READLINK, &[], "ReadLink"),
        case(
            op::SYMLINK,
            &[Bytes(b"a\0"), Bytes(b"/b\0")],
            r#"Make(Make { name: "a", kind: Symlink([47, 98]), attr: NewAttr { permissions: 511, uid: 11, gid: 12 }, umask: 0 })"#,
        ),
        case(
            op::MKNOD,
            &[U32(0o100_640), U32(0), U32(0o22), U32(0), Bytes(b"a\0")],
            r#"Make(Make { name: "a", kind: File, attr: NewAttr { permissions: 416, uid: 11, gid: 12 }, umask: 18 })"#,
        ),
        case(
            op::MKNOD,
            &[U32(0o060_600), U32(0x811), U32(0), U32(0), Bytes(b"a\0")],
            r#"Make(Make { name: "a", kind: Special { file_type: BlockDevice, device: DeviceNumber { major: 8, minor: 17 } }, attr: NewAttr { permissions: 384, uid: 11, gid: 12 }, umask: 0 })"#,
        ),
        case(
            op::MKDIR,
            &[U32(0o41_755), U32(0o77), Bytes(b"a\0")],
            r#"Make(Make { name: "a", kind: Dir, attr: NewAttr { permissions: 1005, uid: 11, gid: 12 }, umask: 63 })"#,
        ),
        case(
            op::CREATE,
            &[U32(0o301), U32(0o100_644), U32(0o22), U32(1), Bytes(b"a\0")],
            r#"Create { name: "a", file: NewFile { attr: NewAttr { permissions: 420, uid: 11, gid: 12 }, umask: 18, how: OpenHow { flags: OpenFlags(WRITE_ONLY | EXCL | 0x40), kills_ids: true } } }"#,
        ),
        case(
            op::TMPFILE,
            &[U32(2), U32(0o100_644), U32(0o22), U32(0)],
            "TmpFile(NewFile { attr: NewAttr { permissions: 420, uid: 11, gid: 12 }, umask: 18, how: OpenHow { flags: OpenFlags(READ_WRITE), kills_ids: false } })",
        ),
        case(op::UNLINK, &[Bytes(b"a\0")], r#"Unlink { name: "a" }"#),
        case(op::RMDIR, &[Bytes(b"a\0")], r#"RmDir { name: "a" }"#),
        case(
            op::RENAME,
            &[U64(3), Bytes(b"a\0"), Bytes(b"b\0")],
            r#"Rename { name: "a", to: 3, new_name: "b", flags: Replace }"#,
        ),
        case(
            op::RENAME2,
            &[U64(3), U32(1), U32(0), Bytes(b"a\0"), Bytes(b"b\0")],
            r#"Rename { name: "a", to: 3, new_name: "b", flags: NoReplace }"#,
        ),
        case(
            op::RENAME2,
            &[U64(3), U32(2), U32(0), Bytes(b"a\0"), Bytes(b"b\0")],
            r#"Rename { name: "a", to: 3, new_name: "b", flags: Exchange }"#,
        ),
        case(
            op::RENAME2,
            &[U64(3), U32(5), U32(0), Bytes(b"a\0"), Bytes(b"b\0")],
            r#"Rename { name: "a", to: 3, new_name: "b", flags: Whiteout { replace: false, uid: 11, gid: 12 } }"#,
        ),
        case(op::LINK, &[U64(3), Bytes(b"a\0")], r#"Link { node: 3, name: "a" }"#),
    ]
}

/// Open files and their data.
fn requests_on_data() -> Vec<Case> {
    vec![
        case(
            op::OPEN,
            &[U32(0o41_002), U32(1)],
            "Open(OpenHow { flags: OpenFlags(READ_WRITE | TRUNC | DIRECT), kills_ids: true })",
        ),
        case(
            op::READ,
            &[U64(1), U64(2), U32(1 << 20), U32(0), U64(4), U32(0o40_000), U32(0)],
            "Read(Read { handle: 1, offset: 2, size: 1048576, flags: OpenFlags(DIRECT), for_cache: true })",
        ),
        case(
            op::READ,
            &[U64(1), U64(2), U32(3), U32(2), U64(4), U32(0), U32(0)],
            "Read(Read { handle: 1, offset: 2, size: 3, flags: OpenFlags(0x0), for_cache: false })",
        ),
        case(
            op::WRITE,
            &[U64(1), U64(2), U32(3), U32(1 | 2), U64(4), U32(0o10_001), U32(0), Bytes(b"xyz")],
            "Write(Write { handle: 1, offset: 2, bytes: [120, 121, 122], flags: OpenFlags(WRITE_ONLY | DSYNC), from: Cache })",
        ),
        case(
            op::WRITE,
            &[U64(1), U64(2), U32(1), U32(2 | 4), U64(4), U32(0), U32(0), Bytes(b"x")],
            "Write(Write { handle: 1, offset: 2, bytes: [120], flags: OpenFlags(0x0), from: Program { kills_ids: true, direct: true } })",
        ),
        case(
            op::WRITE,
            &[U64(1), U64(2), U32(0), U32(0), U64(4), U32(0), U32(0)],
            "Write(Write { handle: 1, offset: 2, bytes: [], flags: OpenFlags(0x0), from: Program { kills_ids: false, direct: false } })",
        ),
        case(op::RELEASE, &[U64(5), zeros(4)], "Release { handle: 5 }"),
        case(op::FSYNC, &[U64(5), U32(1), U32(0)], "Fsync { handle: 5, data_only: true }"),
        case(op::FSYNC, &[U64(5), U32(2), U32(0)], "Fsync { handle: 5, data_only: false }"),
        case(op::FSYNCDIR, &[], "FsyncDir"),
        case(
            op::FALLOCATE,
            &[U64(5), U64(6), U64(7), U32(3), U32(0)],
            "Fallocate(Fallocate { handle: 5, mode: PunchHole, offset: 6, len: 7 })",
        ),
        case(op::LSEEK, &[U64(5), U64(6), U32(3), U32(0)], "Seek(Seek { handle: 5, offset: 6, to: Data })"),
        case(op::LSEEK, &[U64(5), U64(6), U32(4), U32(0)], "Seek(Seek { handle: 5, offset: 6, to: Hole })"),
        case(
            op::COPY_FILE_RANGE,
            &[U64(1), U64(2), U64(3), U64(4), U64(5), U64(6), U64(0)],
            "CopyRange(CopyRange { from: 1, from_offset: 2, to: 4, to_node: 3, to_offset: 5, len: 6 })",
        ),
    ]
}

/// Lists of directories, the volume, and extended attributes.
fn requests_on_directories() -> Vec<Case> {
    vec![
        case(
            op::READDIR,
            &[U64(0), U64(2), U32(4096), U32(0), U64(0), U32(0), U32(0)],
            "ReadDir(Listing { position: 2, size: 4096, flags: OpenFlags(0x0) })",
        ),
        case(
            op::READDIRPLUS,
            &[U64(0), U64(2), U32(4096), U32(0), U64(0), U32(0), U32(0)],
            "ReadDirPlus(Listing { position: 2, size: 4096, flags: OpenFlags(0x0) })",
        ),
        case(op::RELEASEDIR, &[], "ReleaseDir"),
        case(op::STATFS, &[], "StatFs"),
        case(op::SYNCFS, &[], "SyncFs"),
        case(op::ACCESS, &[U32(5), U32(0)], "Access { executes: true }"),
        case(op::ACCESS, &[U32(6), U32(0)], "Access { executes: false }"),
        case(
            op::GETXATTR,
            &[U32(0), U32(0), Bytes(b"user.a\0")],
            r#"GetXattr { name: "user.a", wanted: Length }"#,
        ),
        case(
            op::GETXATTR,
            &[U32(1), U32(0), Bytes(b"user.a\0")],
            r#"GetXattr { name: "user.a", wanted: Bytes(1) }"#,
        ),
        case(op::LISTXATTR, &[U32(64), U32(0)], "ListXattr { wanted: Bytes(64) }"),
        case(
            op::SETXATTR,
            &[U32(2), U32(1), U32(1), U32(0), Bytes(b"user.a\0"), Bytes(b"xy")],
            r#"SetXattr(NewXattr { name: "user.a", value: [120, 121], how: Create, kills_group_id: true })"#,
        ),
        case(
            op::SETXATTR,
            &[U32(0), U32(2), U32(0), U32(0), Bytes(b"user.a\0")],
            r#"SetXattr(NewXattr { name: "user.a", value: [], how: Replace, kills_group_id: false })"#,
        ),
        case(op::REMOVEXATTR, &[Bytes(b"user.a\0")], r#"RemoveXattr { name: "user.a" }"#),
    ]
}

/// The ioctls.
fn ioctls() -> Vec<Case> {
    vec![
        case(
            op::IOCTL,
            &[U64(5), U32(0), U32(0x8008_6601), U64(0), U32(0), U32(8)],
            "Ioctl(Ioctl { command: GetFlags, room: 8 })",
        ),
        case(
            op::IOCTL,
            &[U64(5), U32(0), U32(0x4008_6602), U64(0), U32(8), U32(0), U32(0x10), U32(0)],
            "Ioctl(Ioctl { command: SetFlags(InodeFlags(IMMUTABLE)), room: 0 })",
        ),
        case(
            op::IOCTL,
            &[U64(5), U32(0), U32(0x8008_7601), U64(0), U32(0), U32(8)],
            "Ioctl(Ioctl { command: GetVersion, room: 8 })",
        ),
        case(
            op::IOCTL,
            &[U64(5), U32(0), U32(0x801C_581F), U64(0), U32(0), U32(28)],
            "Ioctl(Ioctl { command: GetXFlags, room: 28 })",
        ),
        case(
            op::IOCTL,
            &[
                U64(5),
                U32(0),
                U32(0x401C_5820),
                U64(0),
                U32(28),
                U32(0),
                U32(8),
                U32(0),
                U32(0),
                U32(6),
                zeros(3),
            ],
            "Ioctl(Ioctl { command: SetXFlags { xflags: 8, project: 6 }, room: 0 })",
        ),
        case(
            op::IOCTL,
            &[U64(5), U32(0), U32(0xC018_5879), U64(0), U32(24), U32(24), U64(1), U64(2), U64(3)],
            "Ioctl(Ioctl { command: Trim(TrimRange { start: 1, len: 2, minlen: 3 }), room: 24 })",
        ),
        case(
            op::IOCTL,
            &[U64(5), U32(0), U32(0xC004_6686), U64(0), U32(4), U32(36), U32(32 << 16)],
            "Ioctl(Ioctl { command: MeasureVerity, room: 36 })",
        ),
        case(
            op::IOCTL,
            &[U64(5), U32(0), U32(0x4008_6610), U64(0), U32(8), U32(0), U64(1 << 33)],
            "Ioctl(Ioctl { command: Resize(8589934592), room: 0 })",
        ),
    ]
}

/// Requests that forget, and the end of a mount.
fn requests_without_answer() -> Vec<Case> {
    vec![
        case(op::FORGET, &[U64(3)], "Forget { lookups: 3 }"),
        case(
            op::BATCH_FORGET,
            &[U32(2), U32(0), U64(3), U64(1), U64(4), U64(2)],
            "BatchForget([ForgetOne { nodeid: U64(3), nlookup: U64(1) }, ForgetOne { nodeid: U64(4), nlookup: U64(2) }])",
        ),
        case(op::DESTROY, &[], "Destroy"),
    ]
}

fn is_forget(opcode: u32) -> bool {
    opcode == op::FORGET || opcode == op::BATCH_FORGET
}

#[test]
fn each_opcode_is_decoded() {
    for (opcode, body, request) in cases() {
        assert_eq!(decoded(opcode, &body).as_deref(), Ok(request));
    }
}

#[test]
fn a_message_cut_off_anywhere_is_refused() {
    for (opcode, body, request) in cases() {
        for len in (0..body.len()).filter(|_| !is_forget(opcode)) {
            assert_eq!(decoded(opcode, &body[..len]), Err(Errno::INVAL), "{len} bytes of {request}");
        }
        let whole = message(opcode, &body);
        for len in 0..whole.len() {
            // The header says how long the message is.
            let received = received(&whole[..len]);
            assert_eq!(received.is_some(), len >= HEADER);
            assert!(received.is_none_or(|received| received.request.unwrap_err() == Fault(Errno::IO)));
        }
    }
}

/// The kernel takes no answer to it, so there is no error: what is there is forgotten.
#[test]
fn a_forget_cut_off_forgets_what_it_names() {
    let none = Ok("BatchForget([])".to_owned());
    assert!((0..8).all(|len| decoded(op::FORGET, &[1; 8][..len]) == none));
    let two = body(&[U32(u32::MAX), U32(0), U64(3), U64(1), U64(4), U64(2)]);
    for len in 0..=two.len() {
        let entries = decoded(op::BATCH_FORGET, &two[..len]).unwrap().matches("ForgetOne").count();
        assert_eq!(entries, len.saturating_sub(8) / 16);
    }
}

#[test]
fn bytes_that_are_left_over_are_ignored() {
    for (opcode, mut body, request) in cases() {
        body.extend_from_slice(&[0xFF; 9]);
        assert_eq!(decoded(opcode, &body).as_deref(), Ok(request));
    }
}

/// Version 7.36 has more features, in a longer INIT.
#[test]
fn features_of_more_than_32_bits_are_read_where_they_are() {
    const EXT: u32 = 1 << 30;
    let init = |flags, rest: &[Part]| {
        let parts = [body(&[U32(7), U32(41), U32(1), U32(flags)]), body(rest)].concat();
        let message = message(op::INIT, &parts);
        let Ok(Request::Init(init)) = received(&message).unwrap().request else { unreachable!() };
        init.offered.bits()
    };
    let (low, high) = (u64::from(EXT | 1), 1 << 36);
    assert_eq!(init(EXT | 1, &[U32(1 << 4), zeros(11)]), high | low);
    assert_eq!(init(EXT | 1, &[U32(1 << 4)]), high | low);
    // Without the flag the bytes mean nothing, and with it they may be missing.
    assert_eq!(init(1, &[U32(1 << 4), zeros(11)]), 1);
    assert_eq!(init(EXT | 1, &[]), low);
}

/// Before version 7.33 two fields are not there.
#[test]
fn an_attribute_of_an_older_kernel_is_set() {
    let old = InitFlags::all() - InitFlags::SETXATTR_EXT;
    let parts = body(&[U32(2), U32(1), Bytes(b"user.a\0"), Bytes(b"xy")]);
    let request =
        r#"SetXattr(NewXattr { name: "user.a", value: [120, 121], how: Create, kills_group_id: false })"#;
    assert_eq!(decoded_with(old, op::SETXATTR, &parts).as_deref(), Ok(request));
    for len in 0..parts.len() {
        assert_eq!(decoded_with(old, op::SETXATTR, &parts[..len]), Err(Errno::INVAL), "{len} bytes");
    }
}

#[test]
fn a_number_without_meaning_is_refused() {
    let times = |valid, nsec| {
        let from = [U32(valid), U32(0), U64(0), U64(0), U64(0), U64(0), U64(0), U64(0)];
        [body(&from), body(&[U32(nsec), U32(nsec), U32(nsec)]), vec![0; 24]].concat()
    };
    let size = |size| body(&[U64(1), U64(2), U32(size), U32(0), U64(4), U32(0), U32(0)]);
    let names = || Bytes(b"a\0b\0");
    let command = |command, len| body(&[U64(5), U32(0), U32(command), U64(0), U32(len), U32(0), U64(0)]);
    let wrong = [
        (op::SETATTR, times(0x10, 1_000_000_000), Errno::INVAL),
        (op::SETATTR, times(0x20, 1_000_000_000), Errno::INVAL),
        (op::SETATTR, times(0x400, u32::MAX), Errno::INVAL),
        // A directory, a link, no type.
        (op::MKNOD, body(&[U32(0o040_755), zeros(3), names()]), Errno::INVAL),
        (op::MKNOD, body(&[U32(0o120_777), zeros(3), names()]), Errno::INVAL),
        (op::MKNOD, body(&[U32(0o644), zeros(3), names()]), Errno::INVAL),
        (op::RENAME2, body(&[U64(3), U32(3), U32(0), names()]), Errno::INVAL),
        (op::RENAME2, body(&[U64(3), U32(8), U32(0), names()]), Errno::INVAL),
        (op::READ, size(MAX_CONTENT as u32 + 1), Errno::INVAL),
        (op::READDIR, size(u32::MAX), Errno::INVAL),
        (op::READDIRPLUS, size(u32::MAX), Errno::INVAL),
        (op::WRITE, size(u32::MAX), Errno::INVAL),
        (op::FALLOCATE, body(&[U64(5), U64(6), U64(7), U32(2), U32(0)]), Errno::OPNOTSUPP),
        (op::FALLOCATE, body(&[U64(5), U64(6), U64(7), U32(0x40), U32(0)]), Errno::OPNOTSUPP),
        (op::LSEEK, body(&[U64(5), U64(6), U32(2), U32(0)]), Errno::INVAL),
        (op::SETXATTR, body(&[U32(1), U32(3), U32(0), U32(0), names()]), Errno::INVAL),
        (op::IOCTL, command(0x4008_6602, 3), Errno::INVAL),
        (op::IOCTL, command(0x4008_6602, 9), Errno::INVAL),
        (op::IOCTL, command(0xC018_5879, 8), Errno::INVAL),
        (op::IOCTL, command(0x401C_5820, 8), Errno::INVAL),
        (op::IOCTL, command(0x4008_6610, 4), Errno::INVAL),
        // FIEMAP, and a number that differs from a known one in the size alone.
        (op::IOCTL, command(0xC020_660B, 8), Errno::NOTTY),
        (op::IOCTL, command(0x4004_6602, 8), Errno::NOTTY),
    ];
    for (opcode, body, errno) in wrong {
        assert_eq!(decoded(opcode, &body), Err(errno), "{opcode}: {body:?}");
    }
}

#[test]
fn an_unknown_opcode_is_not_implemented() {
    // FLUSH, OPENDIR, INTERRUPT, SETLK, and numbers that no opcode has.
    for opcode in [0, 7, 25, 27, 36, 32, 53, 4096, u32::MAX] {
        assert_eq!(decoded(opcode, &[0; 200]), Err(Errno::NOSYS), "{opcode}");
    }
    let known = cases().map(|(opcode, ..)| opcode);
    let mut known: Vec<u32> = known.collect();
    known.sort_unstable();
    known.dedup();
    let found: Vec<u32> = (0..10_000).filter(|o| decoded(*o, &[0; 200]) != Err(Errno::NOSYS)).collect();
    assert_eq!(known, found, "opcodes that have a case, and opcodes that are known");
}

#[test]
fn content_and_names_stay_where_they_are() {
    let at = [U64(1), U64(2), U32(3), U32(0), U64(4), U32(0), U32(0), Bytes(b"xyz")];
    let message = message(op::WRITE, &body(&at));
    let Ok(Request::Write(write)) = received(&message).unwrap().request else { unreachable!() };
    assert_eq!(write.bytes.as_ptr_range(), message[HEADER + 40..].as_ptr_range());
}

#[test]
fn it_lasts_as_long_as_its_size_and_kind() {
    let lasts =
        |opcode, parts: &[Part]| received(&message(opcode, &body(parts))).unwrap().request.unwrap().cost();
    let read =
        |size, flags| lasts(op::READ, &[U64(1), U64(2), U32(size), U32(0), U64(4), U32(flags), U32(0)]);
    assert_eq!(read(64 << 10, 0), Cost::MayWait);
    assert_eq!(read((64 << 10) + 1, 0), Cost::Long);
    assert_eq!(read(512, 0o40_000), Cost::Long);
    static CONTENT: [u8; BULK] = [0; BULK];
    let write = |size: usize, from| {
        let args = [U64(1), U64(2), U32(size as u32), U32(from), U64(4), U32(0), U32(0)];
        let args = args.into_iter().chain([Bytes(&CONTENT[..size])]).collect::<Vec<_>>();
        lasts(op::WRITE, &args)
    };
    assert_eq!(write(4096, 1), Cost::MayWait);
    assert_eq!(write(BULK - 1, 1), Cost::Long);
    assert_eq!(write(BULK, 1), Cost::Bulk);
    assert_eq!(write(BULK, 0), Cost::Long);
    assert_eq!(lasts(op::SYNCFS, &[]), Cost::Long);
    assert_eq!(lasts(op::LOOKUP, &[Bytes(b"a\0")]), Cost::Short);
}

#[test]
fn what_one_program_waits_for_takes_from_the_share_of_its_user() {
    let share = |opcode, parts: &[Part]| {
        let message = message(opcode, &body(parts));
        received(&message).unwrap().share(message.len())
    };
    static CONTENT: [u8; PARKED] = [0; PARKED];
    let write = |size: usize, from| {
        let args = [U64(1), U64(2), U32(size as u32), U32(from), U64(4), U32(0), U32(0)];
        let args = args.into_iter().chain([Bytes(&CONTENT[..size])]).collect::<Vec<_>>();
        share(op::WRITE, &args)
    };
    // User 11: see `message`. What has no meaning is answered too.
    assert_eq!(share(op::READ, &[U64(1), U64(2), U32(4096), zeros(6)]), Some(Some(11)));
    assert_eq!(share(op::LOOKUP, &[Bytes(b"a")]), Some(Some(11)));
    assert_eq!(share(op::FORGET, &[U64(1)]), Some(None));
    assert_eq!(share(op::BATCH_FORGET, &[U32(0), U32(0)]), Some(None));
    let closes = [share(op::RELEASE, &[U64(1), U32(0), U32(0), U64(0)]), share(op::RELEASEDIR, &[])];
    assert_eq!(closes, [None, None]);
    // Node 9, too. The kernel keeps all other renames between directories waiting.
    let rename = |to| share(op::RENAME, &[U64(to), Bytes(b"a\0b\0")]);
    let rename2 = |to| share(op::RENAME2, &[U64(to), U32(1), U32(0), Bytes(b"a\0b\0")]);
    assert_eq!([rename(9), rename2(9)], [Some(Some(11)); 2]);
    assert_eq!([rename(3), rename2(3)], [None, None]);
    let looks =
        |opcode, parts: &[Part]| received(&message(opcode, &body(parts))).unwrap().work() == Work::Look;
    assert!(looks(op::LOOKUP, &[Bytes(b"a\0")]) && looks(op::GETATTR, &[zeros(4)]));
    assert!(!looks(op::UNLINK, &[Bytes(b"a\0")]) && !looks(op::STATFS, &[]));
    // Mtime and ctime; a mode too.
    let set = |valid| looks(op::SETATTR, &[U32(valid), zeros(16), zeros(5)]);
    assert!(set(0x420) && !set(0x421));
    assert_eq!([write(4096, 0), write(4096, 1), write(PARKED, 0)], [Some(Some(11)), None, None]);
}

proptest! {
    /// Whatever the bytes are, the answer is a request or an errno.
    #[test]
    fn no_message_makes_it_panic(opcode in 0..60u32, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let message = message(opcode, &bytes);
        for features in [InitFlags::all(), InitFlags::empty()] {
            if let Some(Ok(request)) = Received::decode(&message, features).map(|m| m.request) {
                let _ = (request.cost(), request.answers_bulk(), request.may_take_space());
            }
            let _ = Received::decode(&bytes, features);
        }
    }
}
