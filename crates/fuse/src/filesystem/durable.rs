//! The options `sync` and `dirsync`, and chattr(1)'s S and D: a change is durable before its
//! request is answered.
//!
//! Under `sync`, the kernel itself sends an fsync after each cached write. It does not know the
//! flags of inodes, so files with S are opened past its cache.

use super::Filesystem;
use crate::fault::Answer;
use crate::notifier::{Notice, NoticeJob};
use crate::request::{CopyRange, Request};
use lanefs::Node;
use lanefs::format::InodeFlags;
use std::ffi::OsStr;

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
    /// for removals, renames and writes, whose functions make them durable, nor for O_TRUNC: see
    /// [`check_open`](Self::check_open).
    ///
    /// # Errors
    /// The journal's or the device's.
    pub(super) fn settle(&self, id: u64, request: &Request<'_>) -> Answer {
        match *request {
            Request::SetAttr(_)
            | Request::SetXattr(_)
            | Request::RemoveXattr { .. }
            | Request::Fallocate(_)
            | Request::Ioctl(_) => self.settle_inode(id),
            Request::CopyRange(CopyRange { to_node, .. }) => self.settle_inode(to_node),
            // These change nothing, or what no name leads to, or what their function makes durable.
            Request::Init(_)
            | Request::Destroy
            | Request::Lookup { .. }
            | Request::Make(_)
            | Request::Create { .. }
            | Request::Unlink { .. }
            | Request::RmDir { .. }
            | Request::Link { .. }
            | Request::Rename { .. }
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
            | Request::ListXattr { .. } => Ok(()),
        }
    }

    /// Makes changes of names in directories durable, if the mount or one of the directories says
    /// so. Where that fails, the names have changed all the same, and the kernel, which keeps its
    /// own at an error, is told to look them up again. It is told to ask again for the attributes
    /// of `counted`, a node that has lost a name or got another one.
    ///
    /// # Errors
    /// The journal's or the device's.
    pub(super) fn settle_names(&self, names: &[(u64, &OsStr)], counted: Option<u64>) -> Answer {
        let settled = self.settle_dirs(names.iter().map(|(dir, _)| *dir));
        if settled.is_err() {
            for (dir, name) in names {
                self.notifier.hand_over(NoticeJob::Name { dir: *dir, name: name.to_os_string() });
            }
            if let Some(node) = counted {
                self.notifier.tell(Notice::Attributes(node));
            }
        }
        settled
    }

    fn settle_dirs(&self, ids: impl Iterator<Item = u64>) -> Answer {
        for id in ids {
            let dir = self.node(id)?;
            if self.is_durable_dir(&dir) {
                // One transaction has all of the directories and the new inode.
                return Ok(dir.sync_all()?);
            }
        }
        Ok(())
    }

    /// Makes the changes of an inode durable, if the mount or the inode says so. Where that fails,
    /// it has changed all the same, and the kernel, which keeps its attributes at an error, is told
    /// to ask for them again.
    ///
    /// # Errors
    /// The journal's or the device's.
    pub(super) fn settle_inode(&self, id: u64) -> Answer {
        let node = self.node(id)?;
        if !self.is_durable(&node) {
            return Ok(());
        }
        let settled = node.sync_all();
        if settled.is_err() {
            self.notifier.tell(Notice::Attributes(id));
        }
        Ok(settled?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panic")]

    use super::super::{Outcome, Stage};
    use super::*;
    use crate::buffers::Outbox;
    use crate::options::{Durably, MountOptions};
    use crate::request::{Make, NewXattr, OpenHow, Received, SetAttrs};
    use crate::wire::{InHeader, OpenFlags};
    use lanefs::device::{BlockDevice, DeviceError, MemDevice, Op, Result, forward_to};
    use lanefs::{NewAttr, NewKind, OpenOptions, RenameFlags, SetAttr, SetXattr, Volume};
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

    /// Returns a filesystem whose changes are durable when they are answered, made by `prepare`
    /// before its device fails.
    fn failing(prepare: impl FnOnce(&Volume)) -> Filesystem {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        lanefs_tests::mke2fs(&path, 16 << 20, &["-t", "ext4"]);
        let inner = MemDevice::from_bytes(std::fs::read(path).unwrap());
        let device = Arc::new(Failing { inner, fails: AtomicBool::new(false) });
        let volume = OpenOptions::new().write(true).open_device(Arc::clone(&device) as _).unwrap();
        prepare(&volume);
        let mut filesystem = Filesystem::new(volume, &MountOptions::default(), None).unwrap();
        filesystem.durably = Durably { all: true, dirs: true };
        device.fails.store(true, Ordering::SeqCst);
        filesystem
    }

    /// Makes the kernel know a file. Returns its node.
    fn known(filesystem: &Filesystem, path: &str) -> u64 {
        let ino = filesystem.volume.symlink_metadata(path).unwrap().ino();
        filesystem.nodes.remember(filesystem.volume.node_at(ino).unwrap());
        ino.into()
    }

    /// Serves a request for a node.
    fn serve(filesystem: &Filesystem, nodeid: u64, request: Request<'_>) -> Answer<Outcome> {
        let header = InHeader { nodeid, ..InHeader::new_zeroed() };
        let received = Received { header, request: Ok(request) };
        filesystem.serve(&received, &mut Outbox::new(), Stage::Fresh)
    }

    /// The kernel, which gets an error, forgets no inode and closes no file.
    #[test]
    fn an_inode_that_cannot_be_made_durable_is_not_told() {
        let filesystem = failing(|_| ());
        let attr = NewAttr { permissions: 0o755, uid: 0, gid: 0 };
        let make = Make { name: OsStr::new("d"), kind: NewKind::Dir, attr, umask: 0 };
        assert!(serve(&filesystem, 1, Request::Make(make)).is_err());
        assert_eq!((filesystem.known_nodes(), filesystem.open_files()), (0, 0));
    }

    /// The kernel keeps its names where a request fails, but they have changed.
    #[test]
    fn names_that_cannot_be_made_durable_are_looked_up_again() {
        let [a, b] = ["a", "b"].map(OsStr::new);
        let attr = NewAttr { permissions: 0o755, uid: 0, gid: 0 };
        let make = Make { name: b, kind: NewKind::Dir, attr, umask: 0 };
        let rename = Request::Rename { name: a, to: 1, new_name: b, flags: RenameFlags::Replace };
        let prepare = |volume: &Volume| volume.write("/a", b"").unwrap();
        let id = known(&failing(prepare), "/a");
        for (request, changed, counted) in [
            (rename, &[a, b][..], None),
            (Request::Unlink { name: a }, &[a][..], Some(id)),
            (Request::Link { node: id, name: b }, &[b][..], Some(id)),
            (Request::Make(make), &[b][..], None),
        ] {
            let filesystem = failing(prepare);
            assert_eq!(known(&filesystem, "/a"), id);
            assert!(serve(&filesystem, 1, request).is_err());
            let jobs = filesystem.notifier.queued();
            let told = jobs.iter().map(|job| match job {
                NoticeJob::Name { dir: 1, name } => (Some(name.as_os_str()), None),
                NoticeJob::Notify(Notice::Attributes(node)) => (None, Some(*node)),
                other => panic!("{other:?}"),
            });
            let names = changed.iter().map(|name| (Some(*name), None));
            assert!(told.eq(names.chain(counted.map(|node| (None, Some(node))))), "{request:?}: {jobs:?}");
        }
    }

    /// The kernel keeps its attributes too.
    #[test]
    fn attributes_that_cannot_be_made_durable_are_asked_for_again() {
        let set = SetAttr { permissions: Some(0o600), ..SetAttr::default() };
        let (size, by_handle, times_alone, kills_ids) = (None, false, false, false);
        let chmod = Request::SetAttr(SetAttrs { size, kills_ids, set, by_handle, times_alone });
        let xattr = NewXattr {
            name: OsStr::new("user.a"),
            value: b"value",
            how: SetXattr::Create,
            kills_group_id: false,
        };
        let truncate = OpenHow { flags: OpenFlags::WRITE_ONLY | OpenFlags::TRUNC, kills_ids };
        for request in [chmod, Request::SetXattr(xattr), Request::Open(truncate)] {
            let filesystem = failing(|volume| volume.write("/a", b"content").unwrap());
            let id = known(&filesystem, "/a");
            assert!(serve(&filesystem, id, request).is_err());
            let jobs = filesystem.notifier.queued();
            let is_told = matches!(jobs[..], [NoticeJob::Notify(Notice::Attributes(node))] if node == id);
            assert!(is_told, "{request:?}: {jobs:?}");
        }
    }
}
