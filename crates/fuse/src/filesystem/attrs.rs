//! Attributes.
//!
//! While the kernel has dirty pages of a file, it keeps size and times of the file itself, and sets
//! them at writeback. The engine stamps the times that the kernel does not set.

use super::guard::{Change, Keeps, chown_modifier};
use super::{Filesystem, Outcome};
use crate::attr::{attr_out, statx_out};
use crate::buffers::Outbox;
use crate::fault::{Answer, Fault};
use crate::request::SetAttrs;
use crate::wire::InHeader;
use lanefs::format::InodeFlags;
use lanefs::{Metadata, SetAttr, SetTime, Timestamp};
use rustix::io::Errno;
use std::time::{SystemTime, UNIX_EPOCH};

impl Filesystem {
    pub(super) fn getattr(&self, id: u64, handle: Option<u64>, out: &mut Outbox) -> Answer<Outcome> {
        let node = self.node(id)?;
        self.check_space(&node, handle)?;
        out.put(&attr_out(&node.metadata(), self.owners))?;
        Ok(self.after_attributes(id, node.ino()))
    }

    pub(super) fn statx(&self, id: u64, out: &mut Outbox) -> Answer<Outcome> {
        let node = self.node(id)?;
        out.put(&statx_out(&node.metadata(), self.owners))?;
        Ok(self.after_attributes(id, node.ino()))
    }

    /// Answers access(2) as the kernel does for root: it refuses only the execution of a file
    /// without an execute bit.
    pub(super) fn access(&self, id: u64, executes: bool) -> Answer {
        let meta = self.node(id)?.metadata();
        let refused = executes && !meta.is_dir() && meta.permissions() & 0o111 == 0;
        if refused { Err(Fault(Errno::ACCESS)) } else { Ok(()) }
    }

    pub(super) fn setattr(&self, header: &InHeader, attrs: &SetAttrs, out: &mut Outbox) -> Answer {
        let node = self.node(header.nodeid)?;
        let meta = node.metadata();
        let mut set = attrs.set;
        self.owners.check_chown(&mut set)?;
        if !meta.is_dir() {
            let foreign = self.owners.foreign_ids(header.uid, meta.uid(), meta.gid());
            set.permissions = set.permissions.map(|permissions| permissions & !foreign);
        }
        if let Some(size) = attrs.size {
            let keeps = Keeps::Decided { kill: attrs.kills_ids };
            self.before_change(header, &node, Change::Overwrite, keeps)?;
            node.set_len(size)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            set.by = chown_modifier(&self.caller(header), &meta);
        }
        if attrs.times_alone {
            set = times_allowed(set, &meta, attrs.by_handle)?;
        }
        // After a write past its cache the kernel has an older mtime than the inode, and stores it,
        // with a new ctime, when something else of the inode changes.
        let outdated = self.nodes.outdated(header.nodeid).map(SetTime::At);
        if attrs.times_alone && outdated.is_some() && set.mtime == outdated {
            set.mtime = None;
        }
        if set != SetAttr::default() {
            node.set_attr(&set)?;
        }
        if set.mtime.is_some() {
            self.nodes.update(header.nodeid);
        }
        let mut attr = attr_out(&node.metadata(), self.owners);
        if self.is_asked_for(node.ino()) {
            // The kernel takes this answer for its cache whatever notice came before.
            attr.attr_valid = 0;
        }
        out.put(&attr)
    }
}

/// Returns what a request for mtime and ctime alone may set. The kernel sends such requests for
/// files that it caches: for `touch -m`, and by itself for times that it kept while the file was
/// written (`by_handle`, if a writing handle is open). ext4 refuses the first kind if the inode is
/// append-only or immutable. The second kind does not exist there.
///
/// No program chooses a ctime, and setting a flag moves it. So a ctime older than the inode's is
/// from before the flag. A ctime of the inode in the future proves nothing: the clock was set back
/// since.
///
/// # Errors
/// EPERM for a program's request where a flag forbids it.
fn times_allowed(set: SetAttr, meta: &Metadata, by_handle: bool) -> Answer<SetAttr> {
    let Some(SetTime::At(ctime)) = set.ctime else { return Ok(set) };
    let (flags, stored) = (meta.flags(), meta.ctime());
    let may_write_on = by_handle && !flags.contains(InodeFlags::IMMUTABLE);
    if may_write_on || !flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
        return Ok(set);
    }
    // Equal times: a request of a program, unless it comes by a handle.
    let is_old = (ctime < stored || by_handle && ctime == stored) && is_past(stored);
    match (is_old, by_handle) {
        (true, _) => Ok(SetAttr { ctime: Some(SetTime::At(stored)), ..set }),
        // Times of writes that will be refused.
        (false, true) => Ok(SetAttr::default()),
        (false, false) => Err(Fault(Errno::PERM)),
    }
}

/// Returns whether a time is not in a later second than now.
fn is_past(time: Timestamp) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    time.sec <= now.cast_signed()
}
