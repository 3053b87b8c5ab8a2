//! The content of files.
//!
//! The kernel opens for writing what it may have to read (a page that is written in part), and writes through any open handle
//! what it has cached: so each handle does both, and the kernel has checked which the program may.

use super::Filesystem;
use super::names::open_flags;
use crate::channel::Channel;
use crate::fault::{Answer, Fault};
use crate::handles::Open;
use crate::request::{Outbox, Request};
use crate::wire::{
    self, CopyIn, FallocateIn, FsyncIn, LseekIn, LseekOut, OpenIn, OpenOut, ReadIn, ReleaseIn, WriteIn,
    WriteOut, oflag,
};
use lanefs::format::InodeFlags;
use lanefs::{FallocMode, File, Node};
use rustix::io::Errno;

impl Filesystem {
    pub(super) fn open(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let args: OpenIn = r.take()?;
        let node = self.nodes.get(r.header.nodeid)?;
        self.check_open(&node, args.flags, args.open_flags)?;
        let fh = self.handles.open(node, args.flags & oflag::ACCMODE != 0)?;
        out.put(&OpenOut { fh, open_flags: open_flags(args.flags), backing_id: 0 })
    }

    /// What ext4 asks of who opens a file, and O_TRUNC.
    pub(super) fn check_open(&self, node: &Node, flags: u32, how: u32) -> Answer {
        let (write, truncate) = (flags & oflag::ACCMODE != 0, flags & oflag::TRUNC != 0);
        if !write && !truncate {
            return Ok(());
        }
        let has = node.metadata().flags();
        let appends = flags & oflag::APPEND != 0 && !truncate;
        if has.contains(InodeFlags::IMMUTABLE) || has.contains(InodeFlags::APPEND) && !appends {
            return Err(Fault(Errno::PERM));
        }
        if truncate {
            node.drop_privileges(how & wire::OPEN_KILL_SUIDGID != 0)?;
            node.set_len(0)?;
        }
        Ok(())
    }

    pub(super) fn release(&self, r: &mut Request<'_>) -> Answer {
        let args: ReleaseIn = r.take()?;
        self.handles.close(args.fh);
        Ok(())
    }

    pub(super) fn read(&self, r: &mut Request<'_>, out: &mut Outbox, channel: &Channel) -> Answer {
        let args: ReadIn = r.take()?;
        let open = self.handles.get(args.fh)?;
        let room = out.room(args.size as usize)?;
        let n = if args.flags & oflag::DIRECT == 0 {
            open.cached.read_for_cache(args.offset, room)?
        } else {
            let n = open.direct.read_at(args.offset, room)?;
            // Past its own cache the kernel asks without handing down what lies behind, and with it the size.
            if n < room.len() && self.handles.is_written(open.node.ino()) {
                channel.write_out(r.header.nodeid);
                open.direct.read_at(args.offset, room)?
            } else {
                n
            }
        };
        out.said(n);
        open.node.accessed(self.atime)?;
        Ok(())
    }

    pub(super) fn write(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let args: WriteIn = r.take()?;
        let bytes = r.bytes(args.size as usize)?;
        let open = self.handles.get(args.fh)?;
        if args.write_flags & wire::WRITE_CACHE != 0 {
            // The kernel has looked at what it had cached when it was written.
            open.cached.write_late(args.offset, bytes)?;
            return out.put(&WriteOut { size: args.size, padding: 0 });
        }
        open.node.drop_privileges(args.write_flags & wire::WRITE_KILL_SUIDGID != 0)?;
        let file = way(&open, args.flags);
        file.write_at(args.offset, bytes)?;
        if args.flags & oflag::SYNC == oflag::SYNC {
            file.sync_all()?;
        } else if args.flags & oflag::DSYNC != 0 {
            file.sync_data()?;
        }
        out.put(&WriteOut { size: args.size, padding: 0 })
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
        Ok(open.cached.fallocate(mode, args.offset, args.length)?)
    }

    pub(super) fn lseek(&self, r: &mut Request<'_>, out: &mut Outbox, channel: &Channel) -> Answer {
        const SEEK_DATA: u32 = 3;
        const SEEK_HOLE: u32 = 4;
        let args: LseekIn = r.take()?;
        let open = self.handles.get(args.fh)?;
        // The kernel asks without handing down first what it has cached.
        if self.handles.is_written(open.node.ino()) {
            channel.write_out(r.header.nodeid);
        }
        let offset = match args.whence {
            SEEK_DATA => open.cached.seek_data(args.offset)?,
            SEEK_HOLE => open.cached.seek_hole(args.offset)?,
            _ => return Err(Fault(Errno::INVAL)),
        };
        out.put(&LseekOut { offset })
    }

    pub(super) fn copy_file_range(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let args: CopyIn = r.take()?;
        let (from, to) = (self.handles.get(args.fh_in)?, self.handles.get(args.fh_out)?);
        // The answer counts in 32 bits.
        let len = args.len.min(1 << 30);
        let n = from.cached.copy_range(args.off_in, &to.cached, args.off_out, len)?;
        out.put(&WriteOut { size: n as u32, padding: 0 })
    }
}

/// The way of a request with these flags: O_DIRECT is the program's to change.
fn way(open: &Open, flags: u32) -> &File {
    if flags & oflag::DIRECT != 0 { &open.direct } else { &open.cached }
}
