//! The structures of the FUSE protocol, version 7, as `linux/fuse.h` has them.
//!
//! All numbers are in the machine's order. What the kernel sends is read by copy from any
//! alignment; a field that it added in a later minor version is at the end.

// The names and meanings are those of linux/fuse.h.
#![allow(missing_docs)]

use zerocopy::native_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version that is spoken.
pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 41;

/// The node of the root directory.
pub(crate) const ROOT_ID: u64 = 1;

macro_rules! codes {
    ($($name:ident = $value:literal)*) => { $(pub(crate) const $name: u32 = $value;)* };
}

pub(crate) mod op {
    codes! {
        LOOKUP = 1 FORGET = 2 GETATTR = 3 SETATTR = 4 READLINK = 5 SYMLINK = 6 MKNOD = 8 MKDIR = 9
        UNLINK = 10 RMDIR = 11 RENAME = 12 LINK = 13 OPEN = 14 READ = 15 WRITE = 16 STATFS = 17
        RELEASE = 18 FSYNC = 20 SETXATTR = 21 GETXATTR = 22 LISTXATTR = 23 REMOVEXATTR = 24 INIT = 26
        READDIR = 28 RELEASEDIR = 29 FSYNCDIR = 30 ACCESS = 34 CREATE = 35 DESTROY = 38 IOCTL = 39
        BATCH_FORGET = 42 FALLOCATE = 43 READDIRPLUS = 44 RENAME2 = 45 LSEEK = 46 COPY_FILE_RANGE = 47
        SYNCFS = 50 TMPFILE = 51 STATX = 52
    }
}

pub(crate) mod fattr {
    codes! {
        MODE = 0x1 UID = 0x2 GID = 0x4 SIZE = 0x8 ATIME = 0x10 MTIME = 0x20 FH = 0x40 ATIME_NOW = 0x80
        MTIME_NOW = 0x100 CTIME = 0x400 KILL_SUIDGID = 0x800
    }
}

pub(crate) mod fopen {
    codes! { DIRECT_IO = 0x1 KEEP_CACHE = 0x2 PARALLEL_DIRECT_WRITES = 0x40 }
}

/// Commands of linux/fs.h on a 64-bit machine.
pub(crate) mod ioc {
    codes! {
        GETFLAGS = 0x8008_6601 SETFLAGS = 0x4008_6602 GETVERSION = 0x8008_7601 FSGETXATTR = 0x801C_581F
        FSSETXATTR = 0x401C_5820 FITRIM = 0xC018_5879 ENABLE_VERITY = 0x4080_6685
        MEASURE_VERITY = 0xC004_6686 RESIZE_FS = 0x4008_6610
    }
}

/// A notification of the file system, in the place of an error: forget the cache of an inode.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
/// Another one: forget a name. With this flag the kernel only looks it up again at its next use.
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;
pub(crate) const EXPIRE_ONLY: u32 = 0x1;

/// A direct read or write: the kernel holds no page of its cache for it.
pub(crate) const READ_LOCKOWNER: u32 = 0x2;
pub(crate) const GETATTR_FH: u32 = 0x1;
pub(crate) const WRITE_CACHE: u32 = 0x1;
pub(crate) const WRITE_LOCKOWNER: u32 = 0x2;
pub(crate) const WRITE_KILL_SUIDGID: u32 = 0x4;
pub(crate) const OPEN_KILL_SUIDGID: u32 = 0x1;
pub(crate) const X_OK: u32 = 0x1;
pub(crate) const FSYNC_FDATASYNC: u32 = 0x1;
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 0x1;

macro_rules! incoming {
    ($(struct $name:ident { $($field:ident: $type:ty,)* })*) => { $(
        #[derive(Debug, Clone, Copy, FromBytes, KnownLayout, Immutable)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }
    )* };
}

macro_rules! outgoing {
    ($(struct $name:ident { $($field:ident: $type:ty,)* })*) => { $(
        #[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }
    )* };
}

incoming! {
    struct InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16,
    }
    struct InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    // Behind it, with INIT_EXT; and fields without a meaning yet.
    struct InitExtIn { flags2: u32, }
    struct ForgetIn { nlookup: u64, }
    // Read in place, from any alignment.
    struct ForgetOne { nodeid: U64, nlookup: U64, }
    struct BatchForgetIn { count: u32, dummy: u32, }
    struct GetattrIn { getattr_flags: u32, dummy: u32, fh: u64, }
    struct SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    struct MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    struct MkdirIn { mode: u32, umask: u32, }
    struct RenameIn { newdir: u64, }
    struct Rename2In { newdir: u64, flags: u32, padding: u32, }
    struct LinkIn { oldnodeid: u64, }
    struct OpenIn { flags: u32, open_flags: u32, }
    struct CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    struct ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    struct ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    struct WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    struct FsyncIn { fh: u64, fsync_flags: u32, padding: u32, }
    struct SetxattrIn { size: u32, flags: u32, }
    // Behind it, with SETXATTR_EXT.
    struct SetxattrExtIn { setxattr_flags: u32, padding: u32, }
    struct AccessIn { mask: u32, padding: u32, }
    struct GetxattrIn { size: u32, padding: u32, }
    struct FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    struct LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    struct CopyIn { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64, }
    struct IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
}

impl InHeader {
    /// Returns whether the kernel takes an answer, be it an error.
    pub(crate) fn wants_answer(&self) -> bool {
        !matches!(self.opcode, op::FORGET | op::BATCH_FORGET)
    }

    pub(crate) fn is_init(&self) -> bool {
        self.opcode == op::INIT
    }
}

outgoing! {
    struct OutHeader { len: u32, error: i32, unique: u64, }
    struct InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused16: u16, unused: [u32; 5],
    }
    struct Attr {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    struct AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    struct EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: Attr,
    }
    struct OpenOut { fh: u64, open_flags: u32, backing_id: u32, }
    struct WriteOut { size: u32, padding: u32, }
    struct StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    struct GetxattrOut { size: u32, padding: u32, }
    struct Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
    struct LseekOut { offset: u64, }
    struct InvalInodeOut { ino: u64, off: i64, len: i64, }
    struct InvalEntryOut { parent: u64, namelen: u32, flags: u32, }
    struct IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    struct SxTime { tv_sec: i64, tv_nsec: u32, reserved: i32, }
    struct Statx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime,
        mtime: SxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    struct StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx, }
}

/// struct fsxattr.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct FsXattr {
    pub(crate) xflags: u32,
    pub(crate) extsize: u32,
    pub(crate) nextents: u32,
    pub(crate) projid: u32,
    pub(crate) cowextsize: u32,
    pub(crate) pad: [u8; 8],
}

/// struct fstrim_range.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct TrimRange {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) minlen: u64,
}

/// struct fsverity_enable_arg. The kernel sends salt and signature behind it.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct EnableVerity {
    pub(crate) version: u32,
    pub(crate) hash_algorithm: u32,
    pub(crate) block_size: u32,
    pub(crate) salt_size: u32,
    pub(crate) salt_ptr: u64,
    pub(crate) sig_size: u32,
    pub(crate) reserved1: u32,
    pub(crate) sig_ptr: u64,
    pub(crate) reserved2: [u64; 11],
}

/// struct fsverity_digest, without the digest.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct VerityDigest {
    pub(crate) digest_algorithm: u16,
    pub(crate) digest_size: u16,
}

bitflags::bitflags! {
    /// open(2)'s flags in requests.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct OpenFlags: u32 {
        const WRITE_ONLY = 0o1;
        const READ_WRITE = 0o2;
        const EXCL = 0o200;
        const TRUNC = 0o1000;
        const APPEND = 0o2000;
        const DSYNC = 0o10000;
        const DIRECT = 0o40000;
        const NOATIME = 0o1000000;
        const SYNC = 0o4010000;
        const _ = !0;
    }
}

impl OpenFlags {
    pub(crate) fn writes(self) -> bool {
        self.intersects(Self::WRITE_ONLY | Self::READ_WRITE)
    }

    pub(crate) fn only_writes(self) -> bool {
        self & (Self::WRITE_ONLY | Self::READ_WRITE) == Self::WRITE_ONLY
    }
}

bitflags::bitflags! {
    /// Features that the kernel offers in INIT, and that the server asks for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct InitFlags: u64 {
        const ASYNC_READ = 1 << 0;
        const ATOMIC_O_TRUNC = 1 << 3;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const HAS_IOCTL_DIR = 1 << 11;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const WRITEBACK_CACHE = 1 << 16;
        const PARALLEL_DIROPS = 1 << 18;
        const POSIX_ACL = 1 << 20;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const SETXATTR_EXT = 1 << 29;
        const INIT_EXT = 1 << 30;
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        const _ = !0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::size_of;

    #[test]
    fn structures_are_as_long_as_the_kernels() {
        assert_eq!((size_of::<InHeader>(), size_of::<OutHeader>()), (40, 16));
        assert_eq!((size_of::<InitIn>(), size_of::<InitOut>()), (16, 64));
        assert_eq!((size_of::<SetxattrIn>(), size_of::<SetxattrExtIn>()), (8, 8));
        assert_eq!((size_of::<Attr>(), size_of::<EntryOut>()), (88, 128));
        assert_eq!((size_of::<SetattrIn>(), size_of::<StatfsOut>()), (88, 80));
        assert_eq!((size_of::<WriteIn>(), size_of::<Dirent>()), (40, 24));
        assert_eq!((size_of::<Statx>(), size_of::<StatxOut>()), (256, 288));
    }
}
