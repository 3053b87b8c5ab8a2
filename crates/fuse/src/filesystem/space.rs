//! Space and requests: what a request does on a full volume (see
//! [`Fullness`](crate::fullness::Fullness)), and which blocks its user may take.

use super::{Filesystem, Outcome};
use crate::bdi::Bdi;
use crate::caller::Capability;
use crate::fault::{Answer, Fault};
use crate::handles::Open;
use crate::notifier::{Notice, NoticeJob};
use crate::wire::{InHeader, OpenFlags};
use lanefs::{Error, Node, Volume};
use rustix::io::Errno;

/// Returns the user and the group besides root that may take the reserved blocks of the volume.
pub(super) fn reserved_for(volume: &Volume) -> (u32, u32) {
    let info = volume.info();
    let raw = info.superblock.raw();
    let id = |low: u16, high: u16| u32::from(high) << 16 | u32::from(low);
    let user = id(raw.s_def_resuid.get(), raw.s_def_resuid_hi.get());
    (user, id(raw.s_def_resgid.get(), raw.s_def_resgid_hi.get()))
}

impl Filesystem {
    /// Passes on where the kernel's bound on dirty pages is set: see
    /// [`Fullness::bounded_in`](crate::fullness::Fullness).
    pub(crate) fn bounded_in(&self, bdi: Bdi) {
        self.fullness.bounded_in(bdi);
    }

    /// Returns whether the user of a request may take the reserved blocks. Only the user's primary
    /// group counts: a request does not name the others. CAP_SYS_RESOURCE counts for user 0 only,
    /// where the blocks are reserved for another user.
    pub(super) fn is_privileged(&self, header: &InHeader) -> bool {
        let (uid, gid) = self.reserved_for;
        self.owners.fakeroot
            || header.uid == uid
            || gid != 0 && header.gid == gid
            || header.uid == 0 && self.caller(header).has(Capability::SysResource)
    }

    /// Checks how full the volume is. If it has become full, has the kernel ask for attributes
    /// before each write.
    pub(super) fn look_at_space(&self) {
        if self.fullness.observe(&self.volume) {
            self.ask_before_writes();
        }
    }

    fn ask_before_writes(&self) {
        for ino in self.handles.written() {
            self.notifier.hand_over(NoticeJob::Notify(Notice::Attributes(self.nodes.id_of(ino))));
        }
    }

    /// Checks whether the write(2) is to be refused before which the kernel asks for attributes, by
    /// a writing handle.
    ///
    /// # Errors
    /// ENOSPC.
    pub(super) fn check_space(&self, file: &Node, handle: Option<u64>) -> Answer {
        let writes = |handle| self.handles.get(handle).is_ok_and(|open| open.writes());
        let full = self.fullness.is_full() && handle.is_some_and(writes);
        if full && self.fullness.refuses(file, &self.volume) { Err(Fault(Errno::NOSPC)) } else { Ok(()) }
    }

    /// Returns how a request for attributes is answered. While the volume is full, the kernel must
    /// not cache the attributes of files that are open for writing: a notice before the answer has
    /// it ignore the answer for its cache.
    pub(super) fn after_attributes(&self, node: u64, ino: u32) -> Outcome {
        match self.is_asked_for(ino) {
            true => Outcome::AfterNotice(Notice::Attributes(node)),
            false => Outcome::Answered,
        }
    }

    /// Returns whether the kernel must ask for the attributes of an inode each time.
    pub(super) fn is_asked_for(&self, ino: u32) -> bool {
        self.fullness.is_full() && self.handles.is_written(ino)
    }

    /// Returns whether a file that is opened with these flags is written through. On a full volume,
    /// one that is opened for writing only is: its handle does not need the cache to read.
    pub(super) fn is_written_through(&self, flags: OpenFlags) -> bool {
        flags.only_writes() && self.fullness.is_full()
    }

    /// Writes bytes of the kernel's writeback, which does not say which user wrote them. They may
    /// take reserved blocks if all users that have the file open for writing may.
    pub(super) fn write_late(&self, open: &Open, offset: u64, bytes: &[u8]) -> Answer {
        let write = || open.cached.write_late(bytes, offset);
        let written = match open.inode.is_privileged() {
            true => write(),
            false => Volume::keeping_reserved(write),
        };
        if matches!(written, Err(Error::NoSpace)) {
            if self.fullness.refuse(&open.node, &self.volume) {
                self.ask_before_writes();
            }
            self.notifier.tell(Notice::Attributes(self.nodes.id_of(open.node.ino())));
        }
        Ok(written?)
    }
}
