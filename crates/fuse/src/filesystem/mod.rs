//! The operations: which request does what.
//!
//! The kernel has checked modes and ACLs before it sends a request (`default_permissions`). The
//! engine and [`guard`] refuse what ext4 itself refuses. A request that changes something is
//! answered after the change.
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
use crate::caller::Caller;
use crate::channel::Channel;
use crate::fault::{Answer, Fault};
use crate::fullness::Fullness;
use crate::handles::Handles;
use crate::nodes::Nodes;
use crate::notifier::{self, Notice, Notifier};
use crate::options::MountOptions;
use crate::request::{Outbox, Request};
use crate::wire::{
    self, BatchForgetIn, ForgetIn, ForgetOne, InHeader, ReadIn, StatfsOut, WriteIn, oflag, op,
};
use crate::workers::Lasts;
pub(crate) use durable::Durably;
use lanefs::{Atime, Node, Observer, Volume};
use rustix::io::Errno;
use std::sync::Arc;

/// An open volume and what the kernel knows of it.
#[derive(Debug)]
pub(crate) struct Filesystem {
    volume: Volume,
    nodes: Nodes,
    handles: Handles,
    fullness: Fullness,
    atime: Atime,
    dir_atime: Atime,
    /// The only user besides root that may use the mount. `None`: every user may.
    only: Option<u32>,
    durably: Durably,
    notifier: Notifier,
    /// The user and the group besides root that may take reserved blocks (s_def_resuid,
    /// s_def_resgid).
    reserved_for: (u32, u32),
    /// Asked about callers, where this process is confined.
    broker: Option<Arc<Broker>>,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is answered with the content of the outbox.
    Answered,
    /// It wants no answer.
    Silent,
    /// It is answered, and it is the last one.
    Last,
    /// It is answered with the content of the outbox, after this notice to the kernel.
    AfterNotice(Notice),
    /// It changed nothing, and is served again after this notice to the kernel.
    NoticeFirst(Notice),
}

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It was just received.
    Fresh,
    /// The kernel has had the notice that the request asked for.
    Noticed,
}

impl Filesystem {
    /// # Errors
    /// Those of a root directory that is damaged.
    pub(crate) fn new(
        volume: Volume,
        options: &MountOptions,
        broker: Option<Arc<Broker>>,
    ) -> lanefs::Result<Self> {
        let nodes = Nodes::new(volume.root_node()?);
        let (atime, dir_atime) = (options.atime(), options.dir_atime());
        let only = options.allow_root.then(|| rustix::process::geteuid().as_raw());
        let (durably, notifier) = (options.durably(), Notifier::default());
        let reserved_for = space::reserved_for(&volume);
        let (handles, fullness) = (Handles::default(), Fullness::default());
        Ok(Self {
            volume,
            nodes,
            handles,
            fullness,
            atime,
            dir_atime,
            only,
            durably,
            notifier,
            reserved_for,
            broker,
        })
    }

    /// Returns the sender of a request.
    fn caller(&self, header: &InHeader) -> Caller<'_> {
        Caller::of(header, self.broker.as_deref())
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

    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    pub(crate) fn open_files(&self) -> usize {
        self.handles.len()
    }

    pub(crate) fn known_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Has the kernel write back the dirty pages of all open files. Closed files have none. The
    /// pages arrive as requests, so a serving thread must not call this.
    pub(crate) fn write_out(&self, channel: &Channel) {
        for ino in self.handles.written() {
            notifier::send(channel, Notice::Content { node: self.nodes.id_of(ino), offset: 0, len: 0 });
        }
    }

    /// Drops all inodes that the kernel knew, and closes the volume.
    ///
    /// # Errors
    /// Those of [`Volume::close`].
    pub(crate) fn close(self) -> lanefs::Result<()> {
        let Self { volume, nodes, handles, .. } = self;
        // The last use of a file without a name deletes it, for which the volume must be open.
        drop(handles);
        drop(nodes);
        volume.close()
    }

    /// Returns how long a request may last, judged by its kind and size.
    pub(crate) fn lasts(request: &Request<'_>) -> Lasts {
        let mut r = request.clone();
        match r.header.opcode {
            op::FSYNC
            | op::FSYNCDIR
            | op::FALLOCATE
            | op::COPY_FILE_RANGE
            | op::SYNCFS
            | op::IOCTL
            | op::LSEEK => Lasts::Long,
            op::READ => r.take().map_or(Lasts::Long, |args: ReadIn| of_size(args.size, args.flags)),
            op::WRITE => r.take().map_or(Lasts::Long, |args: WriteIn| {
                let cached = args.write_flags & wire::WRITE_CACHE != 0;
                if cached && args.size >= BULK { Lasts::Bulk } else { of_size(args.size, args.flags) }
            }),
            op::RENAME | op::RENAME2 => Lasts::Mostly,
            _ => Lasts::Short,
        }
    }

    /// Returns whether the answer has so much content that it should lie in huge pages.
    pub(crate) fn answers_bulk(request: &Request<'_>) -> bool {
        let mut r = request.clone();
        r.header.opcode == op::READ && r.take().is_ok_and(|args: ReadIn| args.size >= BULK)
    }

    /// Carries out a request. Blocks on the engine only, never on another request.
    ///
    /// # Errors
    /// The errno that the program gets.
    pub(crate) fn serve(&self, mut request: Request<'_>, out: &mut Outbox, stage: Stage) -> Answer<Outcome> {
        let r = &mut request;
        let forgets = matches!(r.header.opcode, op::FORGET | op::BATCH_FORGET | op::DESTROY);
        if !forgets && self.only.is_some_and(|uid| r.header.uid != 0 && r.header.uid != uid) {
            return Err(Fault(Errno::ACCESS));
        }
        let outcome = match forgets || self.is_privileged(&r.header) {
            true => self.carry_out(r, out, stage),
            false => Volume::keeping_reserved(|| self.carry_out(r, out, stage)),
        };
        if space::may_shrink(r.header.opcode) {
            self.look_at_space();
        }
        outcome
    }

    fn carry_out(&self, r: &mut Request<'_>, out: &mut Outbox, stage: Stage) -> Answer<Outcome> {
        let whole = r.clone();
        match r.header.opcode {
            op::LOOKUP => self.lookup(r, out),
            op::GETATTR => return self.getattr(r, out),
            op::STATX => self.statx(r, out),
            op::SETATTR => self.setattr(r, out),
            op::READLINK => self.readlink(r, out),
            op::SYMLINK => self.symlink(r, out),
            op::MKNOD => self.mknod(r, out),
            op::MKDIR => self.mkdir(r, out),
            op::CREATE => self.create(r, out),
            op::TMPFILE => self.tmpfile(r, out),
            op::UNLINK => self.unlink(r),
            op::RMDIR => self.rmdir(r),
            op::RENAME => self.rename(r),
            op::RENAME2 => self.rename2(r),
            op::LINK => self.link(r, out),
            op::OPEN => self.open(r, out),
            op::READ => return self.read(r, out, stage),
            op::WRITE => return self.write(r, out),
            op::RELEASE => self.release(r),
            op::FSYNC => self.fsync(r),
            op::FSYNCDIR => self.fsyncdir(r),
            op::FALLOCATE => self.fallocate(r),
            op::LSEEK => return self.lseek(r, out, stage),
            op::COPY_FILE_RANGE => self.copy_file_range(r, out),
            op::READDIR => self.readdir(r, out),
            op::READDIRPLUS => self.readdirplus(r, out),
            op::RELEASEDIR => Ok(()),
            op::STATFS => self.statfs(out),
            op::SYNCFS => Ok(self.volume.sync()?),
            op::GETXATTR => self.getxattr(r, out),
            op::LISTXATTR => self.listxattr(r, out),
            op::SETXATTR => self.setxattr(r),
            op::REMOVEXATTR => self.removexattr(r),
            op::IOCTL => return self.ioctl(r, out, stage),
            op::FORGET => return self.forget(r),
            op::BATCH_FORGET => return self.batch_forget(r),
            op::DESTROY => return Ok(Outcome::Last),
            // The kernel then sends these requests no more: FLUSH and ACCESS, which have nothing to
            // do here, OPENDIR, since directories are read by position alone, INTERRUPT, since no
            // request waits long, and locks, which the kernel keeps itself.
            _ => Err(Fault(Errno::NOSYS)),
        }?;
        self.settle(whole)?;
        Ok(Outcome::Answered)
    }

    fn forget(&self, r: &mut Request<'_>) -> Answer<Outcome> {
        if let Ok(forget) = r.take::<ForgetIn>() {
            self.nodes.forget(r.header.nodeid, forget.nlookup);
        }
        Ok(Outcome::Silent)
    }

    fn batch_forget(&self, r: &mut Request<'_>) -> Answer<Outcome> {
        if let Ok(batch) = r.take::<BatchForgetIn>() {
            for _ in 0..batch.count {
                let Ok(one) = r.take::<ForgetOne>() else { break };
                self.nodes.forget(one.nodeid, one.nlookup);
            }
        }
        Ok(Outcome::Silent)
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

/// Bytes from which on a request of the kernel's cache counts as [`Lasts::Bulk`].
const BULK: u32 = 128 << 10;

/// Returns how long it may last to move `size` bytes of content.
fn of_size(size: u32, flags: u32) -> Lasts {
    const SMALL: u32 = 64 << 10;
    // Past the caches it is the device's time, and a read may have the kernel write out first.
    if size <= SMALL && flags & oflag::DIRECT == 0 { Lasts::Mostly } else { Lasts::Long }
}
