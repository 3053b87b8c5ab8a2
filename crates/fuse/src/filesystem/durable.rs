//! The options `sync` and `dirsync`, and chattr(1)'s S and D: a change is durable before its
//! request is answered.
//!
//! Under `sync`, the kernel itself sends an fsync after each cached write. It does not know the
//! flags of inodes, so files with S are opened past its cache.

use super::Filesystem;
use crate::fault::Answer;
use crate::request::Request;
use crate::wire::{CopyIn, Rename2In, RenameIn, op};
use lanefs::Node;
use lanefs::format::InodeFlags;

/// Which changes of a volume are durable when their request is answered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Durably {
    /// All changes.
    pub(crate) all: bool,
    /// Changes of directories.
    pub(crate) dirs: bool,
}

impl Filesystem {
    /// Returns whether changes of this inode are to be durable when they are answered.
    pub(super) fn is_durable(&self, node: &Node) -> bool {
        self.durably.all || node.flags().contains(InodeFlags::SYNC)
    }

    fn is_durable_dir(&self, node: &Node) -> bool {
        self.is_durable(node) || self.durably.dirs || node.flags().contains(InodeFlags::DIRSYNC)
    }

    /// Makes the changes of `request` durable, if the mount or an inode says so. Does not do so for
    /// writes, which [`write`](Self::write) makes durable, nor for O_TRUNC: see
    /// [`check_open`](Self::check_open).
    ///
    /// # Errors
    /// The journal's or the device's.
    pub(super) fn settle(&self, mut request: Request<'_>) -> Answer {
        let r = &mut request;
        let id = r.header.nodeid;
        let other = match r.header.opcode {
            op::MKNOD | op::MKDIR | op::SYMLINK | op::CREATE | op::LINK | op::UNLINK | op::RMDIR => id,
            op::RENAME => r.take::<RenameIn>()?.newdir,
            op::RENAME2 => r.take::<Rename2In>()?.newdir,
            op::SETATTR | op::SETXATTR | op::REMOVEXATTR | op::FALLOCATE | op::IOCTL => {
                return self.settle_inode(id);
            }
            op::COPY_FILE_RANGE => return self.settle_inode(r.take::<CopyIn>()?.nodeid_out),
            _ => return Ok(()),
        };
        let (dir, other) = (self.node(id)?, self.node(other)?);
        if self.is_durable_dir(&dir) || self.is_durable_dir(&other) {
            // One transaction has both directories and the new inode.
            dir.sync()?;
        }
        Ok(())
    }

    fn settle_inode(&self, id: u64) -> Answer {
        let node = self.node(id)?;
        if self.is_durable(&node) { Ok(node.sync()?) } else { Ok(()) }
    }
}
