//! The content of files.
//!
//! The kernel opens for writing what it may have to read (a page that is written in part), and
//! writes through any open handle what it has cached: so each handle does both, and the kernel has
//! checked which the program may.

use super::guard::{Change, Keeps, check_flags};
use super::{Filesystem, Outcome, Stage};
use crate::fault::{Answer, Fault};
use crate::handles::{Access, Open};
use crate::notifier::Notice;
use crate::request::{Outbox, Request};
use crate::wire::{
    self, CopyIn, FallocateIn, FsyncIn, LseekIn, LseekOut, OpenIn, OpenOut, ReadIn, ReleaseIn, WriteIn,
    WriteOut, fopen, oflag,
};
use lanefs::format::InodeFlags;
use lanefs::{FallocMode, File, Node};
use rustix::io::Errno;

impl Filesystem {
    pub(super) fn open(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let args: OpenIn = r.take()?;
        let node = self.node(r.header.nodeid)?;
        self.check_open(r, &node, args.flags, args.open_flags)?;
        let open_flags = self.opened_when_full(args.flags, open_flags(args.flags, &node));
        let access = access(args.flags, &node);
        let fh = self.handles.open(node, access, self.is_privileged(&r.header))?;
        // Behind the handle: a thread that finds the volume full has the kernel told, or it is
        // found full here.
        if access != Access::Reads && self.fullness.is_full() {
            self.notifier.tell(Notice::Attributes(r.header.nodeid));
        }
        out.put(&OpenOut { fh, open_flags, backing_id: 0 })
    }

    /// Checks what ext4 asks of a program that opens a file, and carries out O_TRUNC.
    pub(super) fn check_open(&self, r: &Request<'_>, node: &Node, flags: u32, how: u32) -> Answer {
        let (write, truncate) = (flags & oflag::ACCMODE != 0, flags & oflag::TRUNC != 0);
        if truncate {
            let keeps = Keeps::Told { kill: how & wire::OPEN_KILL_SUIDGID != 0 };
            self.before_change(r, node, Change::Overwrite, keeps)?;
            node.set_len(0)?;
            if self.is_durable(node) {
                node.sync()?;
            }
        } else if write {
            let change = if flags & oflag::APPEND != 0 { Change::Append } else { Change::Overwrite };
            check_flags(&node.metadata(), change)?;
        }
        Ok(())
    }

    pub(super) fn release(&self, r: &mut Request<'_>) -> Answer {
        let args: ReleaseIn = r.take()?;
        self.handles.close(args.fh);
        Ok(())
    }

    pub(super) fn read(&self, r: &mut Request<'_>, out: &mut Outbox, stage: Stage) -> Answer<Outcome> {
        let args: ReadIn = r.take()?;
        let open = self.handles.get(args.fh)?;
        let room = out.room(args.size as usize)?;
        // A fault or a readahead holds pages, and comes by O_DIRECT handles too.
        let for_cache = args.read_flags & wire::READ_LOCKOWNER == 0;
        let n = match for_cache {
            true => {
                // Before the bytes are read: a direct write that they are older than finds it said.
                open.inode.cached();
                open.cached.read_for_cache(room, args.offset)?
            }
            false => way(&open, args.flags).read_at(room, args.offset)?,
        };
        if !for_cache && n < room.len() && stage == Stage::Fresh && open.inode.is_written() {
            // Past its own cache the kernel asks without handing down what lies behind, and with it
            // the size.
            let from = args.offset.saturating_add(n as u64);
            return Ok(Outcome::NoticeFirst(written_out(r, from)));
        }
        out.said(n);
        open.node.accessed(self.atime)?;
        Ok(Outcome::Answered)
    }

    pub(super) fn write(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer<Outcome> {
        let args: WriteIn = r.take()?;
        let bytes = r.bytes(args.size as usize)?;
        let open = self.handles.get(args.fh)?;
        out.put(&WriteOut { size: args.size, padding: 0 })?;
        if args.write_flags & wire::WRITE_CACHE != 0 {
            self.check_cached(r, &open)?;
            // The kernel took set-id bits into account when the program wrote.
            self.write_late(&open, args.offset, bytes)?;
            return Ok(Outcome::Answered);
        }
        let keeps = Keeps::Told { kill: args.write_flags & wire::WRITE_KILL_SUIDGID != 0 };
        // Whether it is at the end, the engine looks under the lock of the file's bytes.
        self.before_change(r, &open.node, Change::Append, keeps)?;
        let file = way(&open, args.flags);
        file.write_at(bytes, args.offset)?;
        if args.flags & oflag::SYNC == oflag::SYNC {
            file.sync_all()?;
        } else if args.flags & oflag::DSYNC != 0 || self.is_durable(&open.node) {
            file.sync_data()?;
        }
        // Since the kernel forgot these bytes, and before they were written, it may have read them
        // again. It holds pages for a write that is not direct.
        let direct = args.write_flags & wire::WRITE_LOCKOWNER != 0;
        if direct && open.inode.is_cached() {
            let (node, len) = (r.header.nodeid, bytes.len().max(1) as u64);
            return Ok(Outcome::AfterNotice(Notice::Content { node, offset: args.offset, len }));
        }
        Ok(Outcome::Answered)
    }

    pub(super) fn fsync(&self, r: &mut Request<'_>) -> Answer {
        let args: FsyncIn = r.take()?;
        let open = self.handles.get(args.fh)?;
        if args.fsync_flags & wire::FSYNC_FDATASYNC != 0 {
            return Ok(open.cached.sync_data()?);
        }
        Ok(open.cached.sync_all()?)
    }

    pub(super) fn fallocate(&self, r: &mut Request<'_>) -> Answer {
        const KEEP_SIZE: u32 = 0x1;
        let args: FallocateIn = r.take()?;
        let open = self.handles.get(args.fh)?;
        let mode = match (args.mode & !KEEP_SIZE, args.mode & KEEP_SIZE != 0) {
            (0, false) => FallocMode::Allocate,
            (0, true) => FallocMode::KeepSize,
            (0x2, true) => FallocMode::PunchHole,
            (0x8, false) => FallocMode::CollapseRange,
            (0x10, false) => FallocMode::ZeroRange,
            (0x10, true) => FallocMode::ZeroRangeKeepSize,
            (0x20, false) => FallocMode::InsertRange,
            _ => return Err(Fault(Errno::OPNOTSUPP)),
        };
        let change = match mode {
            FallocMode::Allocate | FallocMode::KeepSize => Change::Append,
            _ => Change::Overwrite,
        };
        self.before_change(r, &open.node, change, Keeps::Unknown)?;
        Ok(open.cached.fallocate(mode, args.offset, args.length)?)
    }

    pub(super) fn lseek(&self, r: &mut Request<'_>, out: &mut Outbox, stage: Stage) -> Answer<Outcome> {
        const SEEK_DATA: u32 = 3;
        const SEEK_HOLE: u32 = 4;
        let args: LseekIn = r.take()?;
        let open = self.handles.get(args.fh)?;
        // The kernel asks without handing down first what it has cached.
        if stage == Stage::Fresh && open.inode.is_written() {
            return Ok(Outcome::NoticeFirst(written_out(r, args.offset)));
        }
        let offset = match args.whence {
            SEEK_DATA => open.cached.seek_data(args.offset)?,
            SEEK_HOLE => open.cached.seek_hole(args.offset)?,
            _ => return Err(Fault(Errno::INVAL)),
        };
        out.put(&LseekOut { offset })?;
        Ok(Outcome::Answered)
    }

    pub(super) fn copy_file_range(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let args: CopyIn = r.take()?;
        let (from, to) = (self.handles.get(args.fh_in)?, self.handles.get(args.fh_out)?);
        self.before_change(r, &to.node, Change::Overwrite, Keeps::Unknown)?;
        // The answer counts in 32 bits.
        let len = args.len.min(1 << 30);
        let n = from.cached.copy_range(args.off_in, &to.cached, args.off_out, len)?;
        out.put(&WriteOut { size: n as u32, padding: 0 })
    }
}

/// Returns the file for a request with these flags: a program may change O_DIRECT at any time.
fn way(open: &Open, flags: u32) -> &File {
    if flags & oflag::DIRECT != 0 { &open.direct } else { &open.cached }
}

/// Has the kernel write out what it has cached from there on.
fn written_out(r: &Request<'_>, offset: u64) -> Notice {
    Notice::Content { node: r.header.nodeid, offset, len: 0 }
}

/// Returns what a program may do that opens `node` with these flags.
pub(super) fn access(flags: u32, node: &Node) -> Access {
    match flags & oflag::ACCMODE != 0 {
        false => Access::Reads,
        true if node.flags().contains(InodeFlags::APPEND) => Access::Appends,
        true => Access::Writes,
    }
}

/// Returns what the kernel is to do with a file that a program opens with these flags.
pub(super) fn open_flags(flags: u32, node: &Node) -> u32 {
    if flags & oflag::DIRECT != 0 {
        // Without DIRECT_IO it lets direct writes of one file come one by one only.
        return fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
    }
    let writes = flags & oflag::ACCMODE != 0;
    if writes && node.flags().intersects(InodeFlags::APPEND | InodeFlags::SYNC) {
        // The kernel does not know these flags: past its cache, each write is asked for.
        return fopen::DIRECT_IO;
    }
    fopen::KEEP_CACHE
}
