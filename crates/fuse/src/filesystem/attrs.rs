//! Attributes.
//!
//! While the kernel has dirty pages of a file, it keeps size and times of the file itself, and sets
//! them at writeback. The engine stamps the times that the kernel does not set.

use super::guard::{Change, chown_modifier};
use super::{Filesystem, Outcome};
use crate::attr::{Writers, attr_out, statx_out};
use crate::buffers::Outbox;
use crate::fault::{Answer, Fault};
use crate::request::SetAttrs;
use crate::wire::InHeader;
use lanefs::format::InodeFlags;
use lanefs::{Metadata, Node, SetAttr, SetTime, Timestamp};
use rustix::io::Errno;
use std::time::{SystemTime, UNIX_EPOCH};

impl Filesystem {
    /// Returns the attributes of an inode, and whether programs may write to it.
    pub(super) fn observed(&self, node: &Node) -> (Metadata, Writers) {
        // In this order: what a program has written that has closed the file meanwhile is in the
        // attributes.
        let writers = if self.no_open {
            Writers::Unknown
        } else if self.handles.is_written(node.ino()) {
            Writers::Some
        } else {
            Writers::None
        };
        (node.metadata(), writers)
    }

    pub(super) fn getattr(&self, id: u64, handle: Option<u64>, out: &mut Outbox) -> Answer<Outcome> {
        let node = self.node(id)?;
        self.check_space(&node, handle)?;
        let (meta, writers) = self.observed(&node);
        out.put(&attr_out(&meta, self.owners, writers))?;
        Ok(self.after_attributes(id, node.ino()))
    }

    pub(super) fn statx(&self, id: u64, out: &mut Outbox) -> Answer<Outcome> {
        let node = self.node(id)?;
        let (meta, writers) = self.observed(&node);
        out.put(&statx_out(&meta, self.owners, writers))?;
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
            self.before_change(header, &node, Change::Overwrite, self.keeps(attrs.kills_ids))?;
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
        let (meta, writers) = self.observed(&node);
        let mut attr = attr_out(&meta, self.owners, writers);
        // A file without sectors may be opened for writing meanwhile.
        if self.is_asked_for(node.ino()) || meta.is_file() && attr.attr.blocks == 0 {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panic")]

    use super::*;
    use crate::attr::VALID;
    use crate::handles::{Access, OpenKind};
    use crate::options::MountOptions;
    use crate::wire::EntryOut;
    use lanefs::{OpenOptions, Volume};
    use lanefs_tests::{debugfs_write, mke2fs};
    use zerocopy::FromZeros;

    fn filesystem(volume: Volume) -> Filesystem {
        Filesystem::new(volume, &MountOptions::default(), None).unwrap()
    }

    /// Returns how many sectors the kernel is told of a file, and for how many seconds it may take
    /// them for valid.
    fn told(filesystem: &Filesystem, node: &Node) -> (u64, u64) {
        let EntryOut { attr, attr_valid, .. } = filesystem.entry(node);
        (attr.blocks, attr_valid)
    }

    /// The kernel may have its first bytes, and tells no program how many blocks they will take.
    #[test]
    fn a_file_that_is_open_for_writing_has_a_sector_for_a_second() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        volume.write("/empty", b"").unwrap();
        volume.write("/full", b"content").unwrap();
        let nodes = ["empty", "full"].map(|name| volume.root_node().unwrap().lookup(name).unwrap());
        let mut filesystem = filesystem(volume);
        let all = |filesystem: &Filesystem| nodes.each_ref().map(|node| told(filesystem, node));
        let full = nodes[1].metadata().sectors();
        let closed = [(0, VALID), (full, VALID)];
        assert_eq!(all(&filesystem), closed);
        for (access, expected) in [(Access::Reads, closed), (Access::Writes, [(1, 1), (full, 1)])] {
            let kind = OpenKind { access, privileged: true, past_cache: false };
            let handles = nodes.each_ref().map(|node| filesystem.handles.open(node.clone(), kind).unwrap());
            assert_eq!(all(&filesystem), expected, "{access:?}");
            for handle in handles {
                filesystem.handles.close(handle);
            }
            assert_eq!(all(&filesystem), closed);
        }
        filesystem.no_open = true;
        assert_eq!(all(&filesystem), [(1, VALID), (full, VALID)]);
    }

    /// The kernel takes the answer to SETATTR although it was told meanwhile to ask again.
    #[test]
    fn that_a_file_has_no_sector_is_not_kept_from_setattr() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        volume.write("/f", b"content").unwrap();
        let node = volume.root_node().unwrap().lookup("f").unwrap();
        let filesystem = filesystem(volume);
        let nodeid = filesystem.nodes.id_of(node.ino());
        filesystem.nodes.remember(node);
        let header = InHeader { nodeid, ..InHeader::new_zeroed() };
        let (kills_ids, by_handle, times_alone) = (false, false, false);
        for (size, valid) in [(3, VALID), (0, 0)] {
            let (size, set) = (Some(size), SetAttr::default());
            let mut out = Outbox::new();
            let attrs = SetAttrs { size, kills_ids, set, by_handle, times_alone };
            filesystem.setattr(&header, &attrs, &mut out).unwrap();
            assert_eq!(out.content()[..8], valid.to_ne_bytes(), "{size:?}");
        }
    }

    /// A file whose content is in its inode, and a root directory of another generation, as ext4
    /// and the kernel's half of FUSE have them.
    #[test]
    fn what_other_programs_made_is_told_as_the_kernel_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let (image, file) = (dir.path().join("volume"), dir.path().join("file"));
        mke2fs(&image, 16 << 20, &["-t", "ext4", "-I", "256", "-O", "inline_data,^metadata_csum"]);
        std::fs::write(&file, b"content").unwrap();
        debugfs_write(&image, &format!("write {} f", file.display()));
        debugfs_write(&image, "set_inode_field <2> generation 7");
        let filesystem = filesystem(OpenOptions::new().open(&image).unwrap());
        let root = filesystem.volume.root_node().unwrap();
        assert_eq!((root.generation(), filesystem.entry(&root).generation), (7, 0));
        let inline = root.lookup("f").unwrap();
        assert!(inline.flags().contains(InodeFlags::INLINE_DATA));
        assert_eq!(told(&filesystem, &inline), (1, VALID));
    }
}
