//! Names: finding, making, moving and removing them.

use super::data::open_kind;
use super::{Filesystem, Outcome};
use crate::attr::{entry_out, no_entry};
use crate::buffers::Outbox;
use crate::fault::{Answer, Fault};
use crate::handles::NO_HANDLE;
use crate::notifier::Notice;
use crate::request::{Make, NewFile};
use crate::wire::{EntryOut, InHeader, OpenFlags, OpenOut};
use lanefs::{Error, NewAttr, NewKind, Node, RenameFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

impl Filesystem {
    pub(super) fn lookup(&self, id: u64, name: &OsStr, out: &mut Outbox) -> Answer {
        // By a file handle (open_by_handle_at, NFS) the kernel asks for inodes that it forgot.
        if name == "." || name == ".." {
            let node = self.any_node(id)?;
            let node = if name == "." { node } else { node.lookup(name)? };
            return self.tell(node, out);
        }
        match self.node(id)?.lookup(name) {
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

    /// Answers with an inode. The kernel counts a lookup for it, so the request must not fail
    /// afterwards.
    fn tell(&self, node: Node, out: &mut Outbox) -> Answer {
        out.put(&self.entry(&node))?;
        self.nodes.remember(node);
        Ok(())
    }

    /// Returns the entry of a name of `node`.
    pub(super) fn entry(&self, node: &Node) -> EntryOut {
        let (meta, writers) = self.observed(node);
        let entry = entry_out(self.nodes.id_of(node.ino()), &meta, self.owners, writers);
        // What the kernel must ask for each time it must not take from here.
        let attr_valid = if self.is_asked_for(node.ino()) { 0 } else { entry.attr_valid };
        EntryOut { attr_valid, ..entry }
    }

    pub(super) fn make(&self, id: u64, new: &Make<'_>, out: &mut Outbox) -> Answer {
        let dir = self.node(id)?;
        let attr = self.owners.of_new(new.attr, &dir.metadata());
        let node = dir.create(new.name, new.kind, attr, new.umask)?;
        self.settle_names(&[(id, new.name)], None)?;
        self.tell(node, out)
    }

    /// Makes a file and opens it. The kernel sends this request for a name that it takes for free,
    /// and so checks no permission of the file.
    ///
    /// # Errors
    /// ESTALE where the name is there all the same, because a damaged directory has it twice, and
    /// EEXIST with O_EXCL. At either the kernel looks the name up again. At ESTALE it then opens
    /// what it finds, with all of its checks.
    pub(super) fn create(&self, header: &InHeader, name: &OsStr, file: &NewFile, out: &mut Outbox) -> Answer {
        let NewFile { attr, umask, how } = *file;
        let dir = self.node(header.nodeid)?;
        let attr = self.owners.of_new(attr, &dir.metadata());
        let privileged = self.is_privileged(header);
        let node = match dir.create(name, NewKind::File, attr, umask) {
            Err(Error::Exists) if !how.flags.contains(OpenFlags::EXCL) => return Err(Fault(Errno::STALE)),
            made => made?,
        };
        self.settle_names(&[(header.nodeid, name)], None)?;
        self.tell_open(node, how.flags, privileged, out)
    }

    pub(super) fn tmpfile(&self, header: &InHeader, file: &NewFile, out: &mut Outbox) -> Answer {
        let dir = self.node(header.nodeid)?;
        let node = dir.create_nameless(self.owners.of_new(file.attr, &dir.metadata()), file.umask)?;
        self.tell_open(node, file.how.flags, self.is_privileged(header), out)
    }

    /// Tells the kernel of an inode and of its open file.
    fn tell_open(&self, node: Node, flags: OpenFlags, privileged: bool, out: &mut Outbox) -> Answer {
        let open_flags = self.open_flags(flags, &node);
        // With `noopen` a file that is made in another way than by MKNOD has no handle either.
        let fh = match self.no_open {
            true => NO_HANDLE,
            false => self.handles.open(node.clone(), open_kind(flags, &node, open_flags, privileged))?,
        };
        self.tell(node, out)?;
        out.put(&OpenOut { fh, open_flags, backing_id: 0 })
    }

    pub(super) fn unlink(&self, id: u64, name: &OsStr) -> Answer {
        let gone = self.hold_removed(self.node(id)?.remove_file(name)?);
        self.settle_names(&[(id, name)], Some(gone))
    }

    pub(super) fn rmdir(&self, id: u64, name: &OsStr) -> Answer {
        let gone = self.hold_removed(self.node(id)?.remove_dir(name)?);
        self.settle_names(&[(id, name)], Some(gone))
    }

    /// Holds an inode that has lost a name. Returns its node id.
    fn hold_removed(&self, node: Node) -> u64 {
        let id = self.nodes.id_of(node.ino());
        self.nodes.hold(node);
        id
    }

    pub(super) fn rename(
        &self,
        old: (u64, &OsStr),
        new: (u64, &OsStr),
        flags: RenameFlags,
    ) -> Answer<Outcome> {
        let (from, to) = (self.node(old.0)?, self.node(new.0)?);
        let flags = match flags {
            RenameFlags::Whiteout { replace, uid, gid } => {
                let attr = NewAttr { permissions: 0, uid, gid };
                let NewAttr { uid, gid, .. } = self.owners.of_new(attr, &from.metadata());
                RenameFlags::Whiteout { replace, uid, gid }
            }
            flags => flags,
        };
        let replaced = from.rename(old.1, &to, new.1, flags)?.map(|node| self.hold_removed(node));
        let settled = self.settle_names(&[old, new], replaced);
        if old.0 == new.0 {
            return settled.map(|()| Outcome::Answered);
        }
        let is_exchange = flags == RenameFlags::Exchange;
        let exchanged = if is_exchange { self.listing_of(&from, old.1) } else { None };
        let listings = [self.listing_of(&to, new.1), exchanged];
        if listings == [None, None] {
            return settled.map(|()| Outcome::Answered);
        }
        let notice = Notice::Listings(listings);
        if settled.is_err() {
            self.notifier.tell(notice);
        }
        settled.map(|()| Outcome::AfterNotice(notice))
    }

    /// Returns the node of the directory `name`, which has got another parent, if it is one: the
    /// kernel has to forget its listing. The kernel caches listings, with `..` in them, and takes
    /// one for valid until the times of its directory change, which a rename leaves. The kernel
    /// keeps both parents from changing meanwhile.
    fn listing_of(&self, parent: &Node, name: &OsStr) -> Option<u64> {
        let node = parent.lookup(name).ok()?;
        let is_dir = node.metadata().is_dir();
        is_dir.then(|| self.nodes.id_of(node.ino()))
    }

    pub(super) fn link(&self, dir: u64, id: u64, name: &OsStr, out: &mut Outbox) -> Answer {
        let node = self.node(id)?;
        self.node(dir)?.link_file(&node, name)?;
        self.settle_names(&[(dir, name)], Some(id))?;
        self.tell(node, out)
    }

    pub(super) fn readlink(&self, id: u64, out: &mut Outbox) -> Answer {
        let node = self.node(id)?;
        out.put_bytes(node.read_link()?.as_os_str().as_bytes())?;
        self.accessed(&node, self.atime, OpenFlags::empty());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panic")]

    use super::*;
    use crate::options::MountOptions;
    use crate::owners::Owners;
    use crate::request::OpenHow;
    use lanefs::{AtSymlink, SetAttr, Volume};
    use zerocopy::FromZeros;

    /// Like any new file of a mount whose files all look the same.
    #[test]
    fn a_whiteout_belongs_to_the_owner_of_its_directory() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        let set = SetAttr { uid: Some(5), gid: Some(6), ..SetAttr::default() };
        volume.set_attr("/", &set, AtSymlink::Follow).unwrap();
        volume.write("/old", b"content").unwrap();
        let mut filesystem = Filesystem::new(volume, &MountOptions::default(), None).unwrap();
        let whiteout = RenameFlags::Whiteout { replace: true, uid: 7, gid: 8 };
        for (owners, owner) in
            [(Owners { uid: Some(1), gid: Some(2), fakeroot: false }, (5, 6)), (Owners::default(), (7, 8))]
        {
            filesystem.owners = owners;
            filesystem.rename((1, OsStr::new("old")), (1, OsStr::new("new")), whiteout).unwrap();
            let left = filesystem.volume.symlink_metadata("/old").unwrap();
            assert_eq!((left.uid(), left.gid()), owner);
            filesystem.volume.rename("/new", "/old").unwrap();
        }
    }

    /// The kernel checks no permission of a file that it creates.
    #[test]
    fn a_name_that_is_there_is_not_created() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        volume.write("/f", b"content").unwrap();
        let filesystem = Filesystem::new(volume, &MountOptions::default(), None).unwrap();
        let attr = NewAttr { permissions: 0o644, uid: 1000, gid: 1000 };
        let header = InHeader { nodeid: 1, uid: 1000, ..InHeader::new_zeroed() };
        let create = |name: &str, flags| {
            let file = NewFile { attr, umask: 0, how: OpenHow { flags, kills_ids: false } };
            filesystem.create(&header, OsStr::new(name), &file, &mut Outbox::new())
        };
        for flags in [OpenFlags::empty(), OpenFlags::TRUNC] {
            assert_eq!(create("f", flags), Err(Fault(Errno::STALE)));
            assert_eq!(create("f", flags | OpenFlags::EXCL), Err(Fault(Errno::EXIST)));
        }
        assert_eq!((filesystem.known_nodes(), filesystem.open_files()), (0, 0));
        assert_eq!(filesystem.volume.read("/f").unwrap(), b"content");
        assert_eq!(create("g", OpenFlags::EXCL), Ok(()));
        assert_eq!(filesystem.open_files(), 1);
    }

    /// A directory with another parent has another `..`, which the kernel may have cached.
    #[test]
    fn the_listing_of_a_directory_with_another_parent_is_forgotten() {
        let volume = Volume::in_memory(16 << 20).unwrap();
        for dir in ["/a", "/b", "/a/d", "/b/e"] {
            volume.create_dir(dir).unwrap();
        }
        volume.write("/a/f", b"content").unwrap();
        let filesystem = Filesystem::new(volume, &MountOptions::default(), None).unwrap();
        let known = |path: &str| {
            let id = u64::from(filesystem.volume.symlink_metadata(path).unwrap().ino());
            filesystem.nodes.remember(filesystem.volume.node_at(id as u32).unwrap());
            id
        };
        let [a, b, d] = ["/a", "/b", "/a/d"].map(known);
        let rename = |old: (u64, &str), new: (u64, &str), flags| {
            filesystem.rename((old.0, OsStr::new(old.1)), (new.0, OsStr::new(new.1)), flags).unwrap()
        };
        let forgotten = |node| Outcome::AfterNotice(Notice::Listings([Some(node), None]));
        assert_eq!(rename((a, "d"), (a, "c"), RenameFlags::Replace), Outcome::Answered);
        assert_eq!(rename((a, "f"), (b, "f"), RenameFlags::Replace), Outcome::Answered);
        assert_eq!(rename((a, "c"), (b, "c"), RenameFlags::NoReplace), forgotten(d));
        assert_eq!(rename((b, "c"), (a, "d"), RenameFlags::Replace), forgotten(d));
        let both = Notice::Listings([Some(known("/b/e")), Some(known("/a/d"))]);
        assert_eq!(rename((b, "e"), (a, "d"), RenameFlags::Exchange), Outcome::AfterNotice(both));
        let one = Notice::Listings([None, Some(known("/a/d"))]);
        assert_eq!(rename((b, "f"), (a, "d"), RenameFlags::Exchange), Outcome::AfterNotice(one));
    }
}
