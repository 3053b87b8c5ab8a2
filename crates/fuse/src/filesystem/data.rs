//! The content of files.
//!
//! The kernel also reads from files opened for writing (to fill a page written in part), and
//! writes through any open handle what it has cached: so each handle does both, and the kernel has
//! checked which the program may.

use super::guard::{Change, Keeps, check_flags};
use super::{Filesystem, Outcome, Stage};
use crate::buffers::Outbox;
use crate::fault::Answer;
use crate::handles::{Access, Open, OpenKind};
use crate::notifier::Notice;
use crate::request::{CopyRange, Fallocate, OpenHow, Read, Request, Seek, SeekTo, Write, WriteFrom};
use crate::wire::{InHeader, InitFlags, LseekOut, OpenFlags, OpenOut, WriteOut, fopen};
use lanefs::format::InodeFlags;
use lanefs::{FallocMode, File, Metadata, Modifier, Node};

/// A user other than root, where the kernel does not say which.
const ANY_USER: u32 = u32::MAX;

impl Filesystem {
    pub(super) fn open(&self, header: &InHeader, how: OpenHow, out: &mut Outbox) -> Answer<Outcome> {
        let node = self.node(header.nodeid)?;
        self.check_open(header, &node, how)?;
        let open_flags = self.open_flags(how.flags, &node);
        let kind = open_kind(how.flags, &node, open_flags, self.is_privileged(header));
        let was_written = how.flags.writes() && self.is_written(node.ino());
        let fh = self.handles.open(node.clone(), kind)?;
        out.put(&OpenOut { fh, open_flags, backing_id: 0 })?;
        if kind.access == Access::Reads {
            return Ok(Outcome::Answered);
        }
        // Behind the handle: a thread that finds the volume full has the kernel told, or it is
        // found full here.
        let notice = Notice::Attributes(header.nodeid);
        if self.fullness.is_full() {
            self.notifier.tell(notice);
        }
        // From the first writer on, an answer says that the file has one block at least, and is
        // valid for a short time: see `attr.rs`. At O_TRUNC the kernel forgets older ones by
        // itself.
        if how.flags.contains(OpenFlags::TRUNC) {
            return Ok(Outcome::Answered);
        }
        // Of another writer's open too, whose notice may still be on its way.
        if node.metadata().sectors() == 0 {
            return Ok(Outcome::AfterNotice(notice));
        }
        if !was_written {
            self.handles.get(fh)?.inode.outdate_count();
        }
        Ok(Outcome::Answered)
    }

    /// Returns what the kernel is to do with a file that a program opens with these flags.
    ///
    /// A kernel without DIRECT_IO_ALLOW_MMAP (before Linux 6.6) neither writes back nor forgets its
    /// dirty pages of a file that it reads and writes past its cache, because DIRECT_IO was
    /// answered. For O_DIRECT it does both without that answer.
    pub(super) fn open_flags(&self, flags: OpenFlags, node: &Node) -> u32 {
        let heeds_cache = self.features.contains(InitFlags::DIRECT_IO_ALLOW_MMAP);
        let may_pass = heeds_cache || !self.handles.is_written_in_cache(node.ino());
        // The kernel does not know these flags: past its cache, each write is asked for.
        let is_flagged = flags.writes() && node.flags().intersects(InodeFlags::APPEND | InodeFlags::SYNC);
        let mut answer = match flags.contains(OpenFlags::DIRECT) {
            // Without DIRECT_IO it lets direct writes of one file come one by one only.
            true if heeds_cache || is_flagged && may_pass => fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES,
            false if is_flagged && may_pass => fopen::DIRECT_IO,
            _ => fopen::KEEP_CACHE,
        };
        if may_pass && self.is_written_through(flags) {
            answer |= fopen::DIRECT_IO;
        }
        answer
    }

    /// Checks what ext4 asks of a program that opens a file, and carries out O_TRUNC.
    fn check_open(&self, header: &InHeader, node: &Node, how: OpenHow) -> Answer {
        if how.flags.contains(OpenFlags::TRUNC) {
            let keeps = self.keeps(how.kills_ids);
            self.before_change(header, node, Change::Overwrite, keeps)?;
            node.set_len(0)?;
            self.settle_inode(header.nodeid)?;
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
            let counted = open.inode.has_old_count().then(|| open.node.metadata().sectors());
            self.write_late(&open, offset, bytes)?;
            let is_outdated = counted.is_some_and(|sectors| sectors != open.node.metadata().sectors());
            if is_outdated && open.inode.takes_old_count() {
                self.notifier.tell(Notice::Attributes(header.nodeid));
            }
            answer(bytes.len(), out)?;
            return Ok(Outcome::Answered);
        };
        // Whether it is at the end, the engine looks under the lock of the file's bytes.
        let meta = self.before_change(header, &open.node, Change::Append, self.keeps(kills_ids))?;
        let file = way(&open, flags);
        if self.nodes.outdated(header.nodeid).is_none() {
            self.nodes.outdate(header.nodeid, open.node.metadata().mtime());
        }
        reach_append(&open, &meta, offset)?;
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

    /// Changes the blocks of a range. Where that fails, a part may be done, and the kernel, which
    /// keeps its pages at an error, is told to forget those of bytes that have become zeros.
    pub(super) fn fallocate(&self, header: &InHeader, range: Fallocate) -> Answer {
        let Fallocate { handle, mode, offset, len } = range;
        let open = self.opened(header.nodeid, handle)?;
        let change = match mode {
            FallocMode::Allocate | FallocMode::KeepSize => Change::Append,
            _ => Change::Overwrite,
        };
        self.before_change(header, &open.node, change, Keeps::Unknown)?;
        let done = open.cached.fallocate(mode, offset, len);
        if done.is_err() && change == Change::Overwrite {
            self.notifier.tell(Notice::Content { node: header.nodeid, offset, len });
        }
        Ok(done?)
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

    /// Copies a range. The kernel forgets its pages of as many bytes as the answer counts, and none
    /// at an error. Where that is less than it asked for, more may have been copied: it is told to
    /// forget all.
    pub(super) fn copy_file_range(&self, header: &InHeader, copy: &CopyRange, out: &mut Outbox) -> Answer {
        let from = self.opened(header.nodeid, copy.from)?;
        let to = self.opened(copy.to_node, copy.to)?;
        self.before_change(header, &to.node, Change::Overwrite, Keeps::Unknown)?;
        // The answer has 32 bits for it.
        let len = copy.len.min(1 << 30);
        let copied = from.cached.copy_range(copy.from_offset, &to.cached, copy.to_offset, len);
        if copied.as_ref().ok().is_none_or(|n| *n < len) {
            let (node, offset) = (copy.to_node, copy.to_offset);
            self.notifier.tell(Notice::Content { node, offset, len: len.max(1) });
        }
        out.put(&WriteOut { size: copied? as u32, padding: 0 })
    }
}

/// Extends an append-only file to where an append begins. The kernel may have dirty pages in
/// between, of a handle from before the flag: they make the file longer than lanefs knows.
fn reach_append(open: &Open, meta: &Metadata, offset: u64) -> Answer {
    let has_gap = meta.flags().contains(InodeFlags::APPEND) && meta.len() < offset;
    if has_gap && open.inode.has_writers() {
        open.cached.extend_late(offset)?;
    }
    Ok(())
}

/// Returns the file for a request with these flags: a program may change O_DIRECT at any time.
fn way(open: &Open, flags: OpenFlags) -> &File {
    if flags.contains(OpenFlags::DIRECT) { &open.direct } else { &open.cached }
}

/// Returns the notice that makes the kernel write out what it has cached from there on.
fn written_out(header: &InHeader, offset: u64) -> Notice {
    Notice::Content { node: header.nodeid, offset, len: 0 }
}

/// Returns what a handle of `node` is for that a program opens with these flags, where the kernel
/// was answered `open_flags`.
pub(super) fn open_kind(flags: OpenFlags, node: &Node, open_flags: u32, privileged: bool) -> OpenKind {
    let access = match flags.writes() {
        false => Access::Reads,
        true if node.flags().contains(InodeFlags::APPEND) => Access::Appends,
        true => Access::Writes,
    };
    OpenKind { access, privileged, past_cache: open_flags & fopen::DIRECT_IO != 0 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panic")]

    use super::*;
    use crate::fault::Fault;
    use crate::notifier::NoticeJob;
    use crate::options::MountOptions;
    use lanefs::Volume;
    use rustix::io::Errno;
    use zerocopy::FromZeros;

    /// Returns a filesystem of a kernel with all features, with one file of these bytes: its node,
    /// and the header of a request for it.
    fn filesystem(bytes: &[u8]) -> (Filesystem, Node, InHeader) {
        let volume = Volume::in_memory(16 << 20).unwrap();
        volume.write("/f", bytes).unwrap();
        let node = volume.root_node().unwrap().lookup("f").unwrap();
        let mut filesystem = Filesystem::new(volume, &MountOptions::default(), None).unwrap();
        filesystem.features = InitFlags::all();
        filesystem.nodes.remember(node.clone());
        let nodeid = filesystem.nodes.id_of(node.ino());
        (filesystem, node, InHeader { nodeid, ..InHeader::new_zeroed() })
    }

    fn open(filesystem: &Filesystem, node: &Node, access: Access, past_cache: bool) -> u64 {
        filesystem.handles.open(node.clone(), OpenKind { access, privileged: true, past_cache }).unwrap()
    }

    /// Returns the notices that are to be sent.
    fn told(filesystem: &Filesystem) -> Vec<Notice> {
        let jobs = filesystem.notifier.queued().into_iter();
        let notice = |job| match job {
            NoticeJob::Notify(notice) => notice,
            other => panic!("{other:?}"),
        };
        jobs.map(notice).collect()
    }

    /// A kernel before Linux 6.6 would read and write beside its dirty pages.
    #[test]
    fn an_older_kernel_is_not_sent_past_its_dirty_pages() {
        const DIRECT: u32 = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
        let (mut filesystem, node, _) = filesystem(b"content");
        let answers = |filesystem: &Filesystem| {
            let flags = [OpenFlags::READ_WRITE, OpenFlags::READ_WRITE | OpenFlags::DIRECT];
            flags.map(|flags| filesystem.open_flags(flags, &node))
        };
        assert_eq!(answers(&filesystem), [fopen::KEEP_CACHE, DIRECT]);
        filesystem.features = InitFlags::all() - InitFlags::DIRECT_IO_ALLOW_MMAP;
        assert_eq!(answers(&filesystem), [fopen::KEEP_CACHE; 2]);
        let plain = node.flags();
        for flag in [InodeFlags::APPEND, InodeFlags::SYNC] {
            node.set_flags(plain | flag).unwrap();
            for (past_cache, expected) in
                [(true, [fopen::DIRECT_IO, DIRECT]), (false, [fopen::KEEP_CACHE; 2])]
            {
                let other = open(&filesystem, &node, Access::Writes, past_cache);
                assert_eq!(answers(&filesystem), expected, "{flag:?}");
                filesystem.handles.close(other);
            }
            assert_eq!(answers(&filesystem), [fopen::DIRECT_IO, DIRECT], "{flag:?}");
        }
    }

    /// What an appender has written through the cache of such a kernel is accepted, whether or not
    /// the handle that sent it there is open. Past the cache no handle leaves dirty pages.
    #[test]
    fn an_older_kernel_writes_back_what_it_was_let_cache() {
        for (past_cache, expected) in [(false, Ok(Outcome::Answered)), (true, Err(Fault(Errno::PERM)))] {
            let (filesystem, node, header) = filesystem(b"1");
            node.set_flags(node.flags() | InodeFlags::APPEND).unwrap();
            let handle = open(&filesystem, &node, Access::Appends, past_cache);
            let (bytes, flags) = (b"12", OpenFlags::WRITE_ONLY);
            let write = Write { handle, offset: 0, bytes, flags, from: WriteFrom::Cache };
            assert_eq!(filesystem.write(&header, &write, &mut Outbox::new()), expected);
            assert_eq!(filesystem.volume.read("/f").unwrap() == b"12", !past_cache);
        }
    }

    /// The kernel may have cached that it has none. It is told before the program can write.
    #[test]
    fn a_file_without_blocks_is_asked_for_again_once_it_is_open_for_writing() {
        let notice = |bytes: &[u8], flags| {
            let (filesystem, _, header) = filesystem(bytes);
            let how = OpenHow { flags, kills_ids: false };
            let opened = filesystem.open(&header, how, &mut Outbox::new()).unwrap();
            assert!(told(&filesystem).is_empty());
            opened == Outcome::AfterNotice(Notice::Attributes(header.nodeid))
        };
        assert!(notice(b"", OpenFlags::WRITE_ONLY) && notice(b"", OpenFlags::READ_WRITE));
        assert!(!notice(b"", OpenFlags::empty()) && !notice(b"content", OpenFlags::WRITE_ONLY));
        // The kernel forgets it by itself.
        assert!(!notice(b"content", OpenFlags::WRITE_ONLY | OpenFlags::TRUNC));
    }

    /// Where it is open for writing already, the notice of that open may be on its way.
    #[test]
    fn each_writer_of_an_empty_file_waits_for_a_notice() {
        let (filesystem, _, header) = filesystem(b"");
        let how = OpenHow { flags: OpenFlags::WRITE_ONLY, kills_ids: false };
        let open = || filesystem.open(&header, how, &mut Outbox::new());
        let behind = Outcome::AfterNotice(Notice::Attributes(header.nodeid));
        assert_eq!([open(), open()], [Ok(behind), Ok(behind)]);
    }

    /// What the kernel knows from before the open is outdated by the first writeback that changes
    /// it. What it asks for later it forgets soon.
    #[test]
    fn the_first_block_that_writeback_adds_is_told() {
        let (filesystem, _, header) = filesystem(b"content");
        let how = OpenHow { flags: OpenFlags::WRITE_ONLY, kills_ids: false };
        let mut out = Outbox::new();
        assert_eq!(filesystem.open(&header, how, &mut out), Ok(Outcome::Answered));
        let handle = u64::from_ne_bytes(out.content()[..8].try_into().unwrap());
        let told_by = |offset| {
            let (bytes, flags, from) = (b"changed", how.flags, WriteFrom::Cache);
            let write = Write { handle, offset, bytes, flags, from };
            assert_eq!(filesystem.write(&header, &write, &mut Outbox::new()), Ok(Outcome::Answered));
            told(&filesystem)
        };
        assert!(told_by(0).is_empty());
        assert_eq!(told_by(4096), [Notice::Attributes(header.nodeid)]);
        assert!(told_by(8192).is_empty());
    }

    /// The kernel keeps its pages where a request fails, but some of the bytes may be zeros.
    #[test]
    fn what_may_have_become_zeros_before_a_failure_is_forgotten() {
        for (mode, zeros) in [
            (FallocMode::ZeroRange, true),
            (FallocMode::ZeroRangeKeepSize, true),
            (FallocMode::Allocate, false),
        ] {
            let (filesystem, node, header) = filesystem(b"content");
            let handle = open(&filesystem, &node, Access::Writes, false);
            let (offset, len) = (0, 64 << 20);
            let range = Fallocate { handle, mode, offset, len };
            assert_eq!(filesystem.fallocate(&header, range), Err(Fault(Errno::NOSPC)));
            let notice = Notice::Content { node: header.nodeid, offset, len };
            assert_eq!(told(&filesystem), if zeros { vec![notice] } else { vec![] }, "{mode:?}");
        }
    }

    /// The kernel forgets as many bytes as the answer counts.
    #[test]
    fn what_a_copy_does_not_count_is_forgotten() {
        let (filesystem, node, header) = filesystem(b"content");
        let handle = open(&filesystem, &node, Access::Writes, false);
        let copy = |to_offset, len| {
            let (from, to, from_offset, to_node) = (handle, handle, 0, header.nodeid);
            let copy = CopyRange { from, from_offset, to, to_node, to_offset, len };
            let done = filesystem.copy_file_range(&header, &copy, &mut Outbox::new());
            (done, told(&filesystem))
        };
        let content = |offset, len| vec![Notice::Content { node: header.nodeid, offset, len }];
        assert_eq!(copy(4096, 7), (Ok(()), vec![]));
        // The end of the file comes first, and ranges that overlap.
        assert_eq!(copy(8192, 5000), (Ok(()), content(8192, 5000)));
        assert_eq!(copy(2, 7), (Err(Fault(Errno::INVAL)), content(2, 7)));
    }

    /// A handle from before chattr +a writes through the kernel's cache, one from after it past
    /// that.
    #[test]
    fn an_append_behind_dirty_pages_is_accepted() {
        let (filesystem, node, header) = filesystem(b"1");
        let before = open(&filesystem, &node, Access::Writes, false);
        node.set_flags(node.flags() | InodeFlags::APPEND).unwrap();
        let after = open(&filesystem, &node, Access::Appends, true);
        let write = |handle, offset, bytes: &[u8], from| {
            let write = Write { handle, offset, bytes, flags: OpenFlags::WRITE_ONLY, from };
            filesystem.write(&header, &write, &mut Outbox::new())
        };
        let append = WriteFrom::Program { kills_ids: false, direct: true };
        assert_eq!(write(after, 4096, b"2", append), Ok(Outcome::Answered));
        assert_eq!(write(after, 0, b"x", append), Err(Fault(Errno::PERM)));
        let page = [b"1".as_slice(), &[7; 4095]].concat();
        assert_eq!(write(before, 0, &page, WriteFrom::Cache), Ok(Outcome::Answered));
        assert_eq!(filesystem.volume.read("/f").unwrap(), [page.as_slice(), b"2"].concat());
        // Without such a handle there are no such pages.
        filesystem.handles.close(before);
        assert_eq!(write(after, 5000, b"x", append), Err(Fault(Errno::PERM)));
    }
}
