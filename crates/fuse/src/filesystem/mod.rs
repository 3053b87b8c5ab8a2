//! The operations: which request does what. The kernel has checked modes and ACLs before it sends a
//! request (`default_permissions`), unless the mount is `fakeroot`; the engine and [`guard`] refuse
//! what ext4 itself refuses.
//!
//! Hazard: a serving thread must not wait for anything that takes another request. See
//! [`Notifier`].

mod attrs;
mod data;
mod dirs;
mod durable;
mod guard;
mod ioctl;
mod names;
mod space;
mod xattrs;

use crate::broker::Broker;
use crate::buffers::Outbox;
use crate::caller::Caller;
use crate::channel::Channel;
use crate::fault::{Answer, Fault};
use crate::fullness::Fullness;
use crate::handles::{Handles, NO_HANDLE, Open};
use crate::node_files::NodeFiles;
use crate::nodes::Nodes;
use crate::notifier::{self, Notice, NoticeJob, Notifier};
use crate::options::{Durably, MountOptions};
use crate::owners::Owners;
use crate::remounts::Remounts;
use crate::request::{NewXattr, Received, Request};
use crate::table::MountDevice;
use crate::wire::{ForgetOne, InHeader, InitFlags, OpenFlags, StatfsOut};
use guard::Hardening;
use lanefs::{Atime, Node, Observer, Volume};
use rustix::io::Errno;
use std::sync::Arc;

/// An open volume and what the kernel knows of it.
#[derive(Debug)]
pub(crate) struct Filesystem {
    volume: Volume,
    nodes: Nodes,
    handles: Handles,
    /// Files that are read and written without a handle, with `noopen`.
    node_files: NodeFiles,
    no_open: bool,
    no_xattr: bool,
    fullness: Fullness,
    atime: Atime,
    dir_atime: Atime,
    durably: Durably,
    remounts: Remounts,
    hardening: Hardening,
    notifier: Notifier,
    /// The user and the group besides root that may take reserved blocks (s_def_resuid,
    /// s_def_resgid).
    reserved_for: (u32, u32),
    owners: Owners,
    /// The user of this process.
    user: u32,
    /// What is written is dropped with the mount.
    overlay: bool,
    kernel_knows_acl: bool,
    /// What was agreed on with the kernel: nothing before FUSE_INIT.
    features: InitFlags,
    /// Asked about callers, where this process is confined.
    broker: Option<Arc<Broker>>,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is answered with the content of the outbox.
    Answered,
    /// It gets no answer from this thread: none at all, or one from a notifying thread, which
    /// serves it again.
    Silent,
    /// It is answered, and it is the last one.
    Last,
    /// It is answered with the content of the outbox, after this notice to the kernel.
    AfterNotice(Notice),
}

/// The progress of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It was just received.
    Fresh,
    /// The kernel has had the notice that the request asked for.
    Noticed,
}

impl Filesystem {
    /// Returns the file system of `volume`.
    ///
    /// # Errors
    /// The errors of a root directory that is damaged.
    pub(crate) fn new(
        volume: Volume,
        options: &MountOptions,
        broker: Option<Arc<Broker>>,
    ) -> lanefs::Result<Self> {
        let nodes = Nodes::new(volume.root_node()?);
        let (atime, dir_atime) = (options.atime(), options.dir_atime());
        let (durably, notifier) = (options.durably(), Notifier::default());
        let reserved_for = space::reserved_for(&volume);
        let (handles, fullness) = (Handles::default(), Fullness::default());
        Ok(Self {
            volume,
            nodes,
            handles,
            node_files: NodeFiles::default(),
            no_open: options.no_open,
            no_xattr: options.no_xattr,
            fullness,
            atime,
            dir_atime,
            durably,
            remounts: Remounts::default(),
            hardening: Hardening::default(),
            notifier,
            reserved_for,
            owners: options.owners,
            user: rustix::process::geteuid().as_raw(),
            overlay: options.overlay,
            kernel_knows_acl: options.acl(),
            features: InitFlags::empty(),
            broker,
        })
    }

    /// Notes which features were agreed on with the kernel.
    pub(crate) fn agreed_on(&mut self, features: InitFlags) {
        self.features = features;
    }

    pub(crate) fn features(&self) -> InitFlags {
        self.features
    }

    /// Returns the sender of a request.
    fn caller(&self, header: &InHeader) -> Caller<'_> {
        Caller::of(header, self.owners, self.broker.as_deref())
    }

    /// Returns what the volume has counted.
    pub(crate) fn stats(&self) -> lanefs::Stats {
        self.volume.stats()
    }

    /// Returns a handle for a reader of the device beside the mount.
    pub(crate) fn observer(&self) -> Observer {
        self.volume.observer()
    }

    /// Returns the inode that the kernel means by a node id.
    fn node(&self, id: u64) -> Answer<Node> {
        self.nodes.get(id, |ino| self.volume.node_at(ino))
    }

    /// Returns the open file that a request for node `id` means by a handle.
    ///
    /// # Errors
    /// EBADF if there is none.
    fn opened(&self, id: u64, handle: u64) -> Answer<Arc<Open>> {
        match self.no_open && handle == NO_HANDLE {
            true => self.node_files.get(id, || self.node(id)),
            false => self.handles.get(handle),
        }
    }

    /// Returns whether a program may write to an open file of this inode.
    fn is_written(&self, ino: u32) -> bool {
        self.no_open || self.handles.is_written(ino)
    }

    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    pub(crate) fn open_files(&self) -> usize {
        self.handles.len()
    }

    pub(crate) fn known_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Makes the kernel write back the dirty pages of all open files. Closed files have none. With
    /// `noopen` any inode may be an open file. The pages arrive as requests, so a serving thread
    /// must not call this.
    pub(crate) fn write_out(&self, channel: &Channel) {
        let written = match self.no_open {
            true => self.nodes.ids(),
            false => self.handles.written().into_iter().map(|ino| self.nodes.id_of(ino)).collect(),
        };
        for node in written {
            notifier::send(channel, Notice::Content { node, offset: 0, len: 0 });
        }
    }

    /// Drops all inodes that the kernel knew, and closes the volume.
    ///
    /// # Errors
    /// The errors of [`Volume::close`].
    pub(crate) fn close(self) -> lanefs::Result<()> {
        let Self { volume, nodes, handles, node_files, .. } = self;
        // The last use of a file without a name deletes it, for which the volume must be open.
        drop((handles, node_files));
        drop(nodes);
        volume.close()
    }

    /// Carries out a request. Blocks on the engine only, never on another request.
    ///
    /// # Errors
    /// The errno that the program gets.
    pub(crate) fn serve(&self, received: &Received<'_>, out: &mut Outbox, stage: Stage) -> Answer<Outcome> {
        let Received { header, request } = received;
        let forgets = request.as_ref().is_ok_and(Request::forgets);
        let request = request.as_ref().map_err(|fault| *fault)?;
        if self.is_declined(request) {
            return Err(Fault(Errno::NOSYS));
        }
        let outcome = match forgets || self.is_privileged(header) {
            true => self.carry_out(header, request, out, stage),
            false => Volume::keeping_reserved(|| self.carry_out(header, request, out, stage)),
        };
        if request.may_take_space() {
            self.look_at_space();
        }
        outcome
    }

    /// Returns whether the mount has no such request. From the first answer that says so on, the
    /// kernel does without it: it opens files by itself, makes them by MKNOD, and has EOPNOTSUPP
    /// for extended attributes.
    fn is_declined(&self, request: &Request<'_>) -> bool {
        match request {
            Request::Open(_) | Request::Create { .. } => self.no_open,
            Request::GetXattr { .. }
            | Request::ListXattr { .. }
            | Request::SetXattr(_)
            | Request::RemoveXattr { .. } => self.no_xattr,
            _ => false,
        }
    }

    fn carry_out(
        &self,
        header: &InHeader,
        request: &Request<'_>,
        out: &mut Outbox,
        stage: Stage,
    ) -> Answer<Outcome> {
        let id = header.nodeid;
        match *request {
            // Answered before the mount is served.
            Request::Init(_) => Err(Fault(Errno::NOSYS)),
            Request::Lookup { name } => self.lookup(id, name, out),
            Request::GetAttr { handle } => return self.getattr(id, handle, out),
            Request::Statx => return self.statx(id, out),
            Request::SetAttr(ref attrs) => self.setattr(header, attrs, out),
            Request::ReadLink => self.readlink(id, out),
            Request::Make(ref new) => self.make(id, new, out),
            Request::Create { name, ref file } => self.create(header, name, file, out),
            Request::TmpFile(ref file) => self.tmpfile(header, file, out),
            Request::Unlink { name } => self.unlink(id, name),
            Request::RmDir { name } => self.rmdir(id, name),
            Request::Rename { name, to, new_name, flags } => {
                return self.rename((id, name), (to, new_name), flags);
            }
            Request::Link { node, name } => self.link(id, node, name, out),
            Request::Open(how) => return self.open(header, how, out),
            Request::Read(read) => return self.read(header, read, out, stage),
            Request::Write(ref write) => return self.write(header, write, out),
            Request::Release { handle } => {
                self.handles.close(handle);
                Ok(())
            }
            Request::Fsync { handle, data_only } => self.fsync(id, handle, data_only),
            Request::FsyncDir => self.fsyncdir(id),
            Request::Fallocate(range) => self.fallocate(header, range),
            Request::Seek(seek) => return self.lseek(header, seek, out, stage),
            Request::CopyRange(ref copy) => self.copy_file_range(header, copy, out),
            Request::ReadDir(listing) => self.readdir(id, listing, out),
            Request::ReadDirPlus(listing) => self.readdirplus(id, listing, out),
            Request::ReleaseDir => Ok(()),
            Request::StatFs => self.statfs(out),
            Request::SyncFs => Ok(self.volume.sync()?),
            Request::Access { executes } => self.access(id, executes),
            Request::GetXattr { name, wanted } => self.getxattr(id, name, wanted, out),
            Request::ListXattr { wanted } => self.listxattr(header, wanted, out),
            Request::SetXattr(ref new) => self.setxattr(id, new),
            Request::RemoveXattr { name } => Ok(self.node(id)?.remove_xattr(name)?),
            Request::Ioctl(ioctl) => return self.ioctl(header, ioctl, out, stage),
            Request::Forget { lookups } => return Ok(self.forget(id, lookups)),
            Request::BatchForget(forgotten) => return Ok(self.batch_forget(forgotten)),
            Request::Destroy => return Ok(Outcome::Last),
        }?;
        self.settle(id, request)?;
        Ok(match *request {
            // It changes the mode. A kernel that knows of ACLs forgets the mode by itself.
            Request::SetXattr(NewXattr { name, .. }) | Request::RemoveXattr { name }
                if !self.kernel_knows_acl && name == "system.posix_acl_access" =>
            {
                Outcome::AfterNotice(Notice::Attributes(id))
            }
            _ => Outcome::Answered,
        })
    }

    /// Returns the outcome that makes a notifying thread serve a request, which has changed
    /// nothing so far, after `notice`.
    fn notice_first(&self, notice: Notice, header: &InHeader, request: Request<'static>) -> Outcome {
        let received = Received { header: *header, request: Ok(request) };
        self.notifier.hand_over(NoticeJob::Serve { notice, received });
        Outcome::Silent
    }

    /// Notes the time of the last read, unless the handle was opened with O_NOATIME or the mount
    /// has become read-only. A time that cannot be noted is no error of the read.
    fn accessed(&self, node: &Node, atime: Atime, flags: OpenFlags) {
        let moves = !flags.contains(OpenFlags::NOATIME) && node.is_atime_due(atime);
        if moves && !self.remounts.is_read_only() {
            let _ = node.accessed(atime);
        }
    }

    /// Starts to look for remounts in the mount namespace of the calling thread.
    pub(crate) fn mounted_as(&mut self, device: MountDevice) {
        self.remounts = Remounts::of(device);
    }

    fn forget(&self, id: u64, lookups: u64) -> Outcome {
        if self.no_open {
            self.node_files.close(id);
        }
        self.nodes.forget(id, lookups);
        Outcome::Silent
    }

    fn batch_forget(&self, forgotten: &[ForgetOne]) -> Outcome {
        for one in forgotten {
            self.forget(one.nodeid.get(), one.nlookup.get());
        }
        Outcome::Silent
    }

    fn statfs(&self, out: &mut Outbox) -> Answer {
        let stat = self.volume.statfs();
        out.put(&StatfsOut {
            blocks: stat.blocks,
            bfree: stat.blocks_free,
            bavail: stat.blocks_available,
            files: stat.inodes,
            ffree: stat.inodes_free,
            bsize: stat.block_size,
            frsize: stat.block_size,
            namelen: stat.name_max,
            ..StatfsOut::default()
        })
    }
}
