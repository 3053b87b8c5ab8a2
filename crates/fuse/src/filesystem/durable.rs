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
    /// not do so for new names, which must be durable before the kernel is told of an inode, nor
    /// for writes, which [`write`](Self::write) makes durable, nor for O_TRUNC: see
    /// [`check_open`](Self::check_open).
    ///
    /// # Errors
    /// The journal's or the device's.
    pub(super) fn settle(&self, id: u64, request: &Request<'_>) -> Answer {
        let other = match *request {
            Request::Unlink { .. } | Request::RmDir { .. } => id,
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
            | Request::Make(_)
            | Request::Create { .. }
            | Request::Link { .. }
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
        self.settle_dirs(id, other)
    }

    /// Makes the changes of directories durable, if the mount or one of them says so.
    ///
    /// # Errors
    /// The journal's or the device's.
    pub(super) fn settle_dirs(&self, id: u64, other: u64) -> Answer {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panic")]

    use super::super::Stage;
    use super::*;
    use crate::buffers::Outbox;
    use crate::options::{Durably, MountOptions};
    use crate::request::{Make, Received};
    use crate::wire::InHeader;
    use lanefs::device::{BlockDevice, DeviceError, MemDevice, Op, Result, forward_to};
    use lanefs::{NewAttr, NewKind, OpenOptions};
    use std::ffi::OsStr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use zerocopy::FromZeros;

    /// A device whose writes fail from some time on.
    #[derive(Debug)]
    struct Failing {
        inner: MemDevice,
        fails: AtomicBool,
    }

    impl BlockDevice for Failing {
        forward_to!(inner: size read_only read_at flush discard);

        fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
            if self.fails.load(Ordering::SeqCst) {
                let eio = std::io::Error::from_raw_os_error(5);
                return Err(DeviceError::new(Op::Write, offset, data.len() as u64, eio));
            }
            self.inner.write_at(data, offset)
        }
    }

    /// The kernel, which gets an error, forgets no inode and closes no file.
    #[test]
    fn an_inode_that_cannot_be_made_durable_is_not_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        lanefs_tests::mke2fs(&path, 16 << 20, &["-t", "ext4"]);
        let inner = MemDevice::from_bytes(std::fs::read(path).unwrap());
        let device = Arc::new(Failing { inner, fails: AtomicBool::new(false) });
        let volume = OpenOptions::new().write(true).open_device(Arc::clone(&device) as _).unwrap();
        let mut filesystem = Filesystem::new(volume, &MountOptions::default(), None).unwrap();
        filesystem.durably = Durably { all: true, dirs: true };
        device.fails.store(true, Ordering::SeqCst);
        let attr = NewAttr { permissions: 0o755, uid: 0, gid: 0 };
        let make = Make { name: OsStr::new("d"), kind: NewKind::Dir, attr, umask: 0 };
        let header = InHeader { nodeid: 1, ..InHeader::new_zeroed() };
        let received = Received { header, request: Ok(Request::Make(make)) };
        assert!(filesystem.serve(&received, &mut Outbox::new(), Stage::Fresh).is_err());
        assert_eq!((filesystem.known_nodes(), filesystem.open_files()), (0, 0));
    }
}
