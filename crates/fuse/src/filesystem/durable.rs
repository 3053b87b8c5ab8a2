//! The options `sync` and `dirsync`, and chattr(1)'s S and D: a change is durable before its
//! request is answered.
//!
//! Under `sync`, the kernel itself sends an fsync after each cached write. It does not know the
//! flags of inodes, so files with S are opened past its cache.

use super::Filesystem;
use crate::fault::Answer;
use crate::request::{CopyRange, Request};
use lanefs::Node;
use lanefs::format::InodeFlags;

impl Filesystem {
    /// Returns whether changes of this inode are to be durable when they are answered.
    pub(super) fn is_durable(&self, node: &Node) -> bool {
        self.durably.all || node.flags().contains(InodeFlags::SYNC)
    }

    fn is_durable_dir(&self, node: &Node) -> bool {
        self.is_durable(node) || self.durably.dirs || node.flags().contains(InodeFlags::DIRSYNC)
    }

    /// Makes the changes of a request for node `id` durable, if the mount or an inode says so. Does
    /// not do so for writes, which [`write`](Self::write) makes durable, nor for O_TRUNC: see
    /// [`check_open`](Self::check_open).
    ///
    /// # Errors
    /// The journal's or the device's.
    pub(super) fn settle(&self, id: u64, request: &Request<'_>) -> Answer {
        let other = match *request {
            Request::Make(_)
            | Request::Create { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::RmDir { .. } => id,
            Request::Rename { to, .. } => to,
            Request::SetAttr(_)
            | Request::SetXattr(_)
            | Request::RemoveXattr { .. }
            | Request::Fallocate(_)
            | Request::Ioctl(_) => return self.settle_inode(id),
            Request::CopyRange(CopyRange { to_node, .. }) => return self.settle_inode(to_node),
            // These change nothing, or what no name leads to, or what their function makes durable.
            Request::Init(_)
            | Request::Destroy
            | Request::Lookup { .. }
            | Request::Forget { .. }
            | Request::BatchForget(_)
            | Request::GetAttr { .. }
            | Request::Statx
            | Request::ReadLink
            | Request::TmpFile(_)
            | Request::Open(_)
            | Request::Read(_)
            | Request::Write(_)
            | Request::Release { .. }
            | Request::Fsync { .. }
            | Request::FsyncDir
            | Request::Seek(_)
            | Request::ReadDir(_)
            | Request::ReadDirPlus(_)
            | Request::ReleaseDir
            | Request::StatFs
            | Request::SyncFs
            | Request::Access { .. }
            | Request::GetXattr { .. }
            | Request::ListXattr { .. } => return Ok(()),
        };
        let (dir, other) = (self.node(id)?, self.node(other)?);
        if self.is_durable_dir(&dir) || self.is_durable_dir(&other) {
            // One transaction has both directories and the new inode.
            dir.sync_all()?;
        }
        Ok(())
    }

    pub(super) fn settle_inode(&self, id: u64) -> Answer {
        let node = self.node(id)?;
        if self.is_durable(&node) { Ok(node.sync_all()?) } else { Ok(()) }
    }
}
