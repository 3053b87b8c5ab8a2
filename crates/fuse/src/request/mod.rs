//! A request of the kernel, decoded once: [`Received::decode`] checks every length, number and
//! flag of the message, and no code behind it reads the message again.
//!
//! Names and content are borrowed from the buffer of the thread that received the message. What
//! the engine checks for all of its callers (names, offsets, sizes of files) is not checked here.

mod decode;
#[cfg(test)]
mod tests;

use crate::fault::Answer;
use crate::scheduling::{Cost, User, Work};
use crate::wire::{ForgetOne, InHeader, InitFlags, OpenFlags, TrimRange};
use lanefs::format::InodeFlags;
use lanefs::format::verity::MAX_SALT;
use lanefs::{FallocMode, NewAttr, NewKind, RenameFlags, SetAttr, SetXattr, VerityHash};
use std::ffi::OsStr;

/// The most content of one request or answer, in bytes.
pub(crate) const MAX_CONTENT: usize = 1 << 20;

/// A message of the kernel.
#[derive(Debug)]
pub(crate) struct Received<'b> {
    pub(crate) header: InHeader,
    /// What it asks for; the errno that it gets if it asks for nothing that lanefs knows.
    pub(crate) request: Answer<Request<'b>>,
}

/// Bytes of a message that may be parked. Only writes and long attributes have more.
const PARKED: usize = 8 << 10;

impl Received<'_> {
    /// Returns the user whose share of the threads the request takes from, in a message of `len`
    /// bytes. Returns `None` for a request that is never parked:
    /// - the kernel's writeback, which is no user's, and what is longer than [`PARKED`];
    /// - a close, which never lasts: a file without a name is deleted later, when the kernel
    ///   forgets it. Until the close is served, programs find the file open (ETXTBSY);
    /// - a rename between directories. The kernel sends one at a time, and all others of the mount
    ///   wait for it (s_vfs_rename_mutex).
    pub(crate) fn share(&self, len: usize) -> Option<User> {
        let is_parked = match &self.request {
            Ok(
                Request::Write(Write { from: WriteFrom::Cache, .. })
                | Request::Release { .. }
                | Request::ReleaseDir,
            ) => false,
            Ok(Request::Rename { to, .. }) => *to == self.header.nodeid,
            _ => true,
        };
        let forgets = self.request.as_ref().is_ok_and(Request::forgets);
        let user = (!forgets).then_some(self.header.uid);
        (len <= PARKED && is_parked).then_some(user)
    }

    /// Returns the kind of work that it is. A look is at names or attributes, or tells the times
    /// that the kernel keeps. The kernel sends such requests also while it holds directories, or
    /// the lock for which all renames between directories wait: the times of what was renamed.
    pub(crate) fn work(&self) -> Work {
        let looks = matches!(
            self.request,
            Ok(Request::Lookup { .. }
                | Request::GetAttr { .. }
                | Request::Statx
                | Request::GetXattr { .. }
                | Request::Access { .. }
                | Request::SetAttr(SetAttrs { times_alone: true, .. }))
        );
        if looks { Work::Look } else { Work::Other }
    }
}

/// A request of the kernel, of the node that the header names.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Request<'b> {
    Init(Init),
    Lookup {
        name: &'b OsStr,
    },
    Forget {
        lookups: u64,
    },
    BatchForget(&'b [ForgetOne]),
    GetAttr {
        handle: Option<u64>,
    },
    Statx,
    SetAttr(SetAttrs),
    ReadLink,
    /// MKNOD, MKDIR and SYMLINK.
    Make(Make<'b>),
    Create {
        name: &'b OsStr,
        file: NewFile,
    },
    TmpFile(NewFile),
    Unlink {
        name: &'b OsStr,
    },
    RmDir {
        name: &'b OsStr,
    },
    /// RENAME and RENAME2.
    Rename {
        name: &'b OsStr,
        to: u64,
        new_name: &'b OsStr,
        flags: RenameFlags,
    },
    Link {
        node: u64,
        name: &'b OsStr,
    },
    Open(OpenHow),
    Read(Read),
    Write(Write<'b>),
    Release {
        handle: u64,
    },
    Fsync {
        handle: u64,
        data_only: bool,
    },
    FsyncDir,
    Fallocate(Fallocate),
    Seek(Seek),
    CopyRange(CopyRange),
    ReadDir(Listing),
    ReadDirPlus(Listing),
    ReleaseDir,
    StatFs,
    SyncFs,
    /// Of a mount whose permissions the kernel does not check.
    Access {
        executes: bool,
    },
    GetXattr {
        name: &'b OsStr,
        wanted: Wanted,
    },
    ListXattr {
        wanted: Wanted,
    },
    SetXattr(NewXattr<'b>),
    RemoveXattr {
        name: &'b OsStr,
    },
    Ioctl(Ioctl),
    Destroy,
}

/// The version and the features of the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Init {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    /// Bytes.
    pub(crate) max_readahead: u32,
    pub(crate) offered: InitFlags,
}

/// Attributes to set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetAttrs {
    pub(crate) size: Option<u64>,
    /// The new size takes set-id bits away.
    pub(crate) kills_ids: bool,
    /// The rest, without `by`.
    pub(crate) set: SetAttr,
    /// A file handle that may write is open.
    pub(crate) by_handle: bool,
    /// It is about given times mtime and ctime, and nothing else.
    pub(crate) times_alone: bool,
}

/// Flags of the open of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenHow {
    pub(crate) flags: OpenFlags,
    /// O_TRUNC takes set-id bits away.
    pub(crate) kills_ids: bool,
}

/// An inode to be made, with a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Make<'b> {
    pub(crate) name: &'b OsStr,
    pub(crate) kind: NewKind<'b>,
    pub(crate) attr: NewAttr,
    pub(crate) umask: u16,
}

/// A file to be made and opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewFile {
    pub(crate) attr: NewAttr,
    pub(crate) umask: u16,
    pub(crate) how: OpenHow,
}

/// A read of at most [`MAX_CONTENT`] bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) size: usize,
    pub(crate) flags: OpenFlags,
    /// The kernel holds pages of its cache for it: a fault or a readahead, which also come by
    /// O_DIRECT handles.
    pub(crate) for_cache: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Write<'b> {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: &'b [u8],
    pub(crate) flags: OpenFlags,
    pub(crate) from: WriteFrom,
}

/// The source of the bytes of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteFrom {
    /// The kernel's cache: writeback.
    Cache,
    /// A program's write(2), which takes set-id bits away if `kills_ids`. `direct`: the kernel
    /// holds no pages of its cache for it.
    Program { kills_ids: bool, direct: bool },
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Fallocate {
    pub(crate) handle: u64,
    pub(crate) mode: FallocMode,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// An extended attribute to be set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewXattr<'b> {
    pub(crate) name: &'b OsStr,
    pub(crate) value: &'b [u8],
    pub(crate) how: SetXattr,
    /// It takes the set-group-id bit away.
    pub(crate) kills_group_id: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Seek {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) to: SeekTo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeekTo {
    Data,
    Hole,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct CopyRange {
    pub(crate) from: u64,
    pub(crate) from_offset: u64,
    pub(crate) to: u64,
    pub(crate) to_node: u64,
    pub(crate) to_offset: u64,
    pub(crate) len: u64,
}

/// A part of a directory, from a position on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listing {
    pub(crate) position: u64,
    /// Bytes of the answer at most.
    pub(crate) size: usize,
    pub(crate) flags: OpenFlags,
}

/// The kind of answer about extended attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Length,
    /// The bytes, if they are no more than this.
    Bytes(usize),
}

/// A command of ioctl(2), with at most `room` bytes of answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ioctl {
    pub(crate) command: Command,
    pub(crate) room: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Command {
    GetFlags,
    SetFlags(InodeFlags),
    GetVersion,
    GetXFlags,
    SetXFlags {
        xflags: u32,
        project: u32,
    },
    Trim(TrimRange),
    EnableVerity(VerityArgs),
    MeasureVerity,
    /// Grow the volume to so many blocks.
    Resize(u64),
}

/// The parameters of a file's hash tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VerityArgs {
    pub(crate) hash: VerityHash,
    pub(crate) block_size: u32,
    pub(crate) salt: [u8; MAX_SALT],
    pub(crate) salt_size: usize,
}

/// Bytes from which on a request has much content.
const BULK: usize = 128 << 10;

impl Request<'_> {
    /// Returns how long it may last, judged by its kind and size.
    pub(crate) fn cost(&self) -> Cost {
        match self {
            Self::Read(read) => of_size(read.size, read.flags),
            Self::Write(write) if write.from == WriteFrom::Cache && write.bytes.len() >= BULK => Cost::Bulk,
            Self::Write(write) => of_size(write.bytes.len(), write.flags),
            Self::Rename { .. } => Cost::MayWait,
            Self::Fsync { .. }
            | Self::FsyncDir
            | Self::SyncFs
            | Self::Fallocate(_)
            | Self::CopyRange(_)
            | Self::Seek(_)
            | Self::Ioctl(_) => Cost::Long,
            Self::Init(_)
            | Self::Destroy
            | Self::Lookup { .. }
            | Self::Forget { .. }
            | Self::BatchForget(_)
            | Self::GetAttr { .. }
            | Self::Statx
            | Self::SetAttr(_)
            | Self::ReadLink
            | Self::Make(_)
            | Self::Create { .. }
            | Self::TmpFile(_)
            | Self::Unlink { .. }
            | Self::RmDir { .. }
            | Self::Link { .. }
            | Self::Open(_)
            | Self::Release { .. }
            | Self::ReadDir(_)
            | Self::ReadDirPlus(_)
            | Self::ReleaseDir
            | Self::StatFs
            | Self::Access { .. }
            | Self::GetXattr { .. }
            | Self::ListXattr { .. }
            | Self::SetXattr(_)
            | Self::RemoveXattr { .. } => Cost::Short,
        }
    }

    /// Returns whether the answer has so much content that it should lie in huge pages.
    pub(crate) fn answers_bulk(&self) -> bool {
        matches!(self, Self::Read(read) if read.size >= BULK)
    }

    /// Returns whether it ends what the kernel knows, and so needs no permission.
    pub(crate) fn forgets(&self) -> bool {
        matches!(self, Self::Forget { .. } | Self::BatchForget(_) | Self::Destroy)
    }

    /// Returns whether it may take much space, or opens a file for writing.
    pub(crate) fn may_take_space(&self) -> bool {
        matches!(
            self,
            Self::Write(_)
                | Self::Fallocate(_)
                | Self::CopyRange(_)
                | Self::Open(_)
                | Self::Create { .. }
                | Self::TmpFile(_)
        )
    }
}

/// Returns how long it may last to move `size` bytes of content.
fn of_size(size: usize, flags: OpenFlags) -> Cost {
    const SMALL: usize = 64 << 10;
    // Past the caches it is the device's time, and a read may have the kernel write out first.
    if size <= SMALL && !flags.contains(OpenFlags::DIRECT) { Cost::MayWait } else { Cost::Long }
}
