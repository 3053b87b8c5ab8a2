//! Names: finding, making, moving and removing them.

use super::Filesystem;
use super::data::{access, open_flags};
use crate::attr::{entry_out, no_entry, unpack};
use crate::fault::{Answer, Fault};
use crate::request::{Outbox, Request};
use crate::wire::{CreateIn, LinkIn, MkdirIn, MknodIn, OpenOut, Rename2In, RenameIn, oflag};
use lanefs::{Error, FileType, NewAttr, NewKind, Node, RenameFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

impl Filesystem {
    pub(super) fn lookup(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let name = r.name()?;
        // By a file handle (open_by_handle_at, NFS) the kernel asks for inodes that it forgot.
        if name == "." || name == ".." {
            let node = self.any_node(r.header.nodeid)?;
            let node = if name == "." { node } else { node.lookup(name)? };
            return self.tell(node, out);
        }
        match self.node(r.header.nodeid)?.lookup(name) {
            Ok(node) => self.tell(node, out),
            Err(Error::NotFound) => out.put(&no_entry()),
            Err(e) => Err(e.into()),
        }
    }

    fn any_node(&self, id: u64) -> Answer<Node> {
        self.node(id).or_else(|_| {
            let ino = u32::try_from(id).map_err(|_| Fault(Errno::STALE))?;
            Ok(self.volume.node_at(ino)?)
        })
    }

    /// Tells the kernel of an inode, which it then knows once more.
    fn tell(&self, node: Node, out: &mut Outbox) -> Answer {
        let id = self.nodes.id_of(node.ino());
        out.put(&entry_out(id, &node.metadata()))?;
        self.nodes.remember(node);
        Ok(())
    }

    pub(super) fn mknod(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let args: MknodIn = r.take()?;
        let file_type = FileType::from_mode(args.mode as u16).ok_or(Fault(Errno::INVAL))?;
        let kind = match file_type {
            FileType::Regular => NewKind::File,
            FileType::Directory | FileType::Symlink => return Err(Fault(Errno::INVAL)),
            _ => NewKind::Special { file_type, device: unpack(args.rdev) },
        };
        let node = self.make(r, kind, args.mode, args.umask)?;
        self.tell(node, out)
    }

    pub(super) fn mkdir(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let args: MkdirIn = r.take()?;
        let node = self.make(r, NewKind::Dir, args.mode, args.umask)?;
        self.tell(node, out)
    }

    pub(super) fn symlink(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let name = r.name()?;
        let target = r.name()?;
        let dir = self.node(r.header.nodeid)?;
        let kind = NewKind::Symlink(target.as_bytes());
        let node = dir.create(name, kind, new_attr(r, 0o777), 0)?;
        self.tell(node, out)
    }

    fn make(&self, r: &mut Request<'_>, kind: NewKind<'_>, mode: u32, umask: u32) -> Answer<Node> {
        let name = r.name()?;
        let dir = self.node(r.header.nodeid)?;
        Ok(dir.create(name, kind, new_attr(r, mode), umask as u16)?)
    }

    pub(super) fn create(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let args: CreateIn = r.take()?;
        let name = r.name()?;
        let dir = self.node(r.header.nodeid)?;
        let privileged = self.is_privileged(&r.header);
        let node = match dir.create(name, NewKind::File, new_attr(r, args.mode), args.umask as u16) {
            Err(Error::Exists) if args.flags & oflag::EXCL == 0 => {
                let node = dir.lookup(name)?;
                self.check_open(r, &node, args.flags, args.open_flags)?;
                node
            }
            made => made?,
        };
        self.tell_open(node, args.flags, privileged, out)
    }

    pub(super) fn tmpfile(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let args: CreateIn = r.take()?;
        let dir = self.node(r.header.nodeid)?;
        let node = dir.create_nameless(new_attr(r, args.mode), args.umask as u16)?;
        self.tell_open(node, args.flags, self.is_privileged(&r.header), out)
    }

    /// Tells the kernel of an inode and of its open file.
    fn tell_open(&self, node: Node, flags: u32, privileged: bool, out: &mut Outbox) -> Answer {
        let open_flags = self.opened_when_full(flags, open_flags(flags, &node));
        let fh = self.handles.open(node.clone(), access(flags, &node), privileged)?;
        self.tell(node, out)?;
        out.put(&OpenOut { fh, open_flags, backing_id: 0 })
    }

    pub(super) fn unlink(&self, r: &mut Request<'_>) -> Answer {
        let name = r.name()?;
        self.nodes.hold(self.node(r.header.nodeid)?.unlink(name)?);
        Ok(())
    }

    pub(super) fn rmdir(&self, r: &mut Request<'_>) -> Answer {
        let name = r.name()?;
        self.nodes.hold(self.node(r.header.nodeid)?.rmdir(name)?);
        Ok(())
    }

    pub(super) fn rename(&self, r: &mut Request<'_>) -> Answer {
        let args: RenameIn = r.take()?;
        self.move_name(r, args.newdir, RenameFlags::Replace)
    }

    pub(super) fn rename2(&self, r: &mut Request<'_>) -> Answer {
        let args: Rename2In = r.take()?;
        let (uid, gid) = (r.header.uid, r.header.gid);
        let flags = match args.flags {
            0 => RenameFlags::Replace,
            1 => RenameFlags::NoReplace,
            2 => RenameFlags::Exchange,
            flags @ (4 | 5) => RenameFlags::Whiteout { replace: flags == 4, uid, gid },
            _ => return Err(Fault(Errno::INVAL)),
        };
        self.move_name(r, args.newdir, flags)
    }

    fn move_name(&self, r: &mut Request<'_>, newdir: u64, flags: RenameFlags) -> Answer {
        let (old, new): (&OsStr, &OsStr) = (r.name()?, r.name()?);
        let (from, to) = (self.node(r.header.nodeid)?, self.node(newdir)?);
        if let Some(replaced) = from.rename(old, &to, new, flags)? {
            self.nodes.hold(replaced);
        }
        Ok(())
    }

    pub(super) fn link(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let args: LinkIn = r.take()?;
        let name = r.name()?;
        let node = self.node(args.oldnodeid)?;
        self.node(r.header.nodeid)?.link(&node, name)?;
        self.tell(node, out)
    }

    pub(super) fn readlink(&self, r: &mut Request<'_>, out: &mut Outbox) -> Answer {
        let node = self.node(r.header.nodeid)?;
        out.put_bytes(node.read_link()?.as_bytes())?;
        Ok(node.accessed(self.atime)?)
    }
}

fn new_attr(r: &Request<'_>, mode: u32) -> NewAttr {
    NewAttr { permissions: mode as u16 & 0o7777, uid: r.header.uid, gid: r.header.gid }
}
