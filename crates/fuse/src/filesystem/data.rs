//! The content of files.
//!
//! The kernel also reads from files opened for writing (to fill a page written in part), and
//! writes through any open handle what it has cached: so each handle does both, and the kernel has
//! checked which the program may.

use super::guard::{Change, Keeps, check_flags};
use super::{Filesystem, Outcome, Stage};
use crate::buffers::Outbox;
use crate::fault::Answer;
use crate::handles::{Access, Open};
use crate::notifier::Notice;
use crate::request::{CopyRange, Fallocate, OpenHow, Read, Request, Seek, SeekTo, Write, WriteFrom};
use crate::wire::{InHeader, LseekOut, OpenFlags, OpenOut, WriteOut, fopen};
use lanefs::format::InodeFlags;
use lanefs::{FallocMode, File, Modifier, Node};

/// A user other than root, where the kernel does not say which.
const ANY_USER: u32 = u32::MAX;

impl Filesystem {
    pub(super) fn open(&self, header: &InHeader, how: OpenHow, out: &mut Outbox) -> Answer {
        let node = self.node(header.nodeid)?;
        self.check_open(header, &node, how)?;
        let open_flags = self.opened_when_full(how.flags, open_flags(how.flags, &node));
        let access = access(how.flags, &node);
        let fh = self.handles.open(node, access, self.is_privileged(header))?;
        // Behind the handle: a thread that finds the volume full has the kernel told, or it is
        // found full here.
        if access != Access::Reads && self.fullness.is_full() {
            self.notifier.tell(Notice::Attributes(header.nodeid));
        }
        out.put(&OpenOut { fh, open_flags, backing_id: 0 })
    }

    /// Checks what ext4 asks of a program that opens a file, and carries out O_TRUNC.
    fn check_open(&self, header: &InHeader, node: &Node, how: OpenHow) -> Answer {
        if how.flags.contains(OpenFlags::TRUNC) {
            let keeps = Keeps::Decided { kill: how.kills_ids };
            self.before_change(header, node, Change::Overwrite, keeps)?;
            node.set_len(0)?;
            if self.is_durable(node) {
                node.sync_all()?;
            }
        } else if how.flags.writes() {
            let appends = how.flags.contains(OpenFlags::APPEND);
            let change = if appends { Change::Append } else { Change::Overwrite };
            check_flags(&node.metadata(), change)?;
            self.drop_foreign(header.uid, node)?;
        }
        Ok(())
    }

    pub(super) fn read(
        &self,
        header: &InHeader,
        read: Read,
        out: &mut Outbox,
        stage: Stage,
    ) -> Answer<Outcome> {
        let open = self.opened(header.nodeid, read.handle)?;
        let room = out.room(read.size)?;
        let n = match read.for_cache {
            true => {
                // Before the bytes are read: a direct write that they are older than finds it said.
                open.inode.cached();
                open.cached.read_for_cache(room, read.offset)?
            }
            false => way(&open, read.flags).read_at(room, read.offset)?,
        };
        if !read.for_cache && n < room.len() && stage == Stage::Fresh && open.inode.is_written() {
            // Past its own cache the kernel asks without handing down what lies behind, and with it
            // the size.
            let notice = written_out(header, read.offset.saturating_add(n as u64));
            return Ok(self.notice_first(notice, header, Request::Read(read)));
        }
        out.filled(n);
        self.accessed(&open.node, self.atime, read.flags);
        Ok(Outcome::Answered)
    }

    pub(super) fn write(&self, header: &InHeader, write: &Write<'_>, out: &mut Outbox) -> Answer<Outcome> {
        let Write { bytes, offset, flags, .. } = *write;
        let open = self.opened(header.nodeid, write.handle)?;
        let answer = |n: usize, out: &mut Outbox| out.put(&WriteOut { size: n as u32, padding: 0 });
        let WriteFrom::Program { kills_ids, direct } = write.from else {
            self.check_cached(header, &open)?;
            // The kernel took set-id bits into account when the program wrote, and capabilities
            // unless it was told that there are none.
            if self.no_xattr {
                open.node.drop_privileges(Modifier::Privileged)?;
            }
            // A mapping drops nothing, and the pages do not say whose they are.
            self.drop_foreign(ANY_USER, &open.node)?;
            self.write_late(&open, offset, bytes)?;
            answer(bytes.len(), out)?;
            return Ok(Outcome::Answered);
        };
        let keeps = Keeps::Decided { kill: kills_ids };
        // Whether it is at the end, the engine looks under the lock of the file's bytes.
        self.before_change(header, &open.node, Change::Append, keeps)?;
        let file = way(&open, flags);
        if self.nodes.outdated(header.nodeid).is_none() {
            self.nodes.outdate(header.nodeid, open.node.metadata().mtime());
        }
        // The kernel moves its size by what was written, and tells the program that.
        let n = file.write_part_at(bytes, offset)?;
        answer(n, out)?;
        if flags.contains(OpenFlags::SYNC) {
            file.sync_all()?;
        } else if flags.contains(OpenFlags::DSYNC) || self.is_durable(&open.node) {
            file.sync_data()?;
        }
        // Since the kernel forgot these bytes, and before they were written, it may have read them
        // again. It holds pages for a write that is not direct.
        if direct && open.inode.is_cached() {
            let (node, len) = (header.nodeid, bytes.len().max(1) as u64);
            return Ok(Outcome::AfterNotice(Notice::Content { node, offset, len }));
        }
        Ok(Outcome::Answered)
    }

    pub(super) fn fsync(&self, id: u64, handle: u64, data_only: bool) -> Answer {
        let open = self.opened(id, handle)?;
        if data_only {
            return Ok(open.cached.sync_data()?);
        }
        Ok(open.cached.sync_all()?)
    }

    pub(super) fn fallocate(&self, header: &InHeader, range: Fallocate) -> Answer {
        let Fallocate { handle, mode, offset, len } = range;
        let open = self.opened(header.nodeid, handle)?;
        let change = match mode {
            FallocMode::Allocate | FallocMode::KeepSize => Change::Append,
            _ => Change::Overwrite,
        };
        self.before_change(header, &open.node, change, Keeps::Unknown)?;
        Ok(open.cached.fallocate(mode, offset, len)?)
    }

    pub(super) fn lseek(
        &self,
        header: &InHeader,
        seek: Seek,
        out: &mut Outbox,
        stage: Stage,
    ) -> Answer<Outcome> {
        let open = self.opened(header.nodeid, seek.handle)?;
        // The kernel asks without handing down first what it has cached.
        if stage == Stage::Fresh && open.inode.is_written() {
            let notice = written_out(header, seek.offset);
            return Ok(self.notice_first(notice, header, Request::Seek(seek)));
        }
        let offset = match seek.to {
            SeekTo::Data => open.cached.seek_data(seek.offset)?,
            SeekTo::Hole => open.cached.seek_hole(seek.offset)?,
        };
        out.put(&LseekOut { offset })?;
        Ok(Outcome::Answered)
    }

    pub(super) fn copy_file_range(&self, header: &InHeader, copy: &CopyRange, out: &mut Outbox) -> Answer {
        let from = self.opened(header.nodeid, copy.from)?;
        let to = self.opened(copy.to_node, copy.to)?;
        self.before_change(header, &to.node, Change::Overwrite, Keeps::Unknown)?;
        // The answer counts in 32 bits.
        let len = copy.len.min(1 << 30);
        let n = from.cached.copy_range(copy.from_offset, &to.cached, copy.to_offset, len)?;
        out.put(&WriteOut { size: n as u32, padding: 0 })
    }
}

/// Returns the file for a request with these flags: a program may change O_DIRECT at any time.
fn way(open: &Open, flags: OpenFlags) -> &File {
    if flags.contains(OpenFlags::DIRECT) { &open.direct } else { &open.cached }
}

/// Returns the notice that makes the kernel write out what it has cached from there on.
fn written_out(header: &InHeader, offset: u64) -> Notice {
    Notice::Content { node: header.nodeid, offset, len: 0 }
}

/// Returns what a program may do that opens `node` with these flags.
pub(super) fn access(flags: OpenFlags, node: &Node) -> Access {
    match flags.writes() {
        false => Access::Reads,
        true if node.flags().contains(InodeFlags::APPEND) => Access::Appends,
        true => Access::Writes,
    }
}

/// Returns what the kernel is to do with a file that a program opens with these flags.
pub(super) fn open_flags(flags: OpenFlags, node: &Node) -> u32 {
    if flags.contains(OpenFlags::DIRECT) {
        // Without DIRECT_IO it lets direct writes of one file come one by one only.
        return fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
    }
    if flags.writes() && node.flags().intersects(InodeFlags::APPEND | InodeFlags::SYNC) {
        // The kernel does not know these flags: past its cache, each write is asked for.
        return fopen::DIRECT_IO;
    }
    fopen::KEEP_CACHE
}
