//! New inodes: files, directories, symbolic links, devices, fifos, sockets.
//!
//! Invariants:
//! - Inode and name are made under one handle, in the locked directory.
//! - All that can fail is read and claimed first: an inode whose name cannot be inserted is given
//!   back before the handle ends.

use super::attr::check_owner;
use super::{add_dir_link, check_dir_links, check_new_name, find_name};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::fs::inode::{CachedInode, InodeRef};
use crate::store::ROOT_INO;
use crate::store::alloc::{self, InodeHint};
use crate::store::txn::{BlockKind, Mark, Txn, credits};
use crate::store::{Store, TableSlot};
use crate::store::{dir, map, orphan, xattr};
use lanefs_format::{DeviceNumber, FileType, Incompat, Inode, InodeFlags, S_ISGID, ext4_chksum};
use std::mem;

/// Bytes of the longest path, and so of the longest symbolic link, with its final NUL.
pub(crate) const PATH_MAX: usize = 4096;

/// The attributes of a new inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewAttr {
    /// Permission bits with set-user-id, set-group-id and sticky: the low 12 bits of i_mode.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group; a directory with set-group-id gives its own instead.
    pub gid: u32,
}

/// The type of a new inode.
#[derive(Debug, Clone, Copy)]
pub enum NewKind<'a> {
    /// An empty file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A device, fifo or socket.
    Special {
        /// Which of them.
        file_type: FileType,
        /// The device that a device file stands for.
        device: DeviceNumber,
    },
}

impl NewKind<'_> {
    fn file_type(&self) -> FileType {
        match self {
            NewKind::File => FileType::Regular,
            NewKind::Dir => FileType::Directory,
            NewKind::Symlink(_) => FileType::Symlink,
            NewKind::Special { file_type, .. } => *file_type,
        }
    }

    /// Checks what needs no volume.
    ///
    /// # Errors
    /// The errors of [`check_target`]; [`Error::Invalid`] for a special file that mknod(2) does not
    /// make.
    fn check(&self) -> Result<()> {
        match *self {
            Self::File | Self::Dir => Ok(()),
            Self::Symlink(target) => check_target(target),
            Self::Special { file_type, device } => match file_type {
                FileType::CharDevice | FileType::BlockDevice if !device.fits() => {
                    Err(Error::Invalid("a device number of more than 12 bits and 20 bits"))
                }
                FileType::Fifo | FileType::Socket | FileType::CharDevice | FileType::BlockDevice => Ok(()),
                FileType::Regular | FileType::Directory | FileType::Symlink => {
                    Err(Error::Invalid("not a type that mknod makes"))
                }
            },
        }
    }
}

impl CachedInode {
    /// Makes an inode with a name in this directory.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`] and [`Error::NoInodes`] with nothing changed,
    /// [`Error::TooManyLinks`], [`Error::Invalid`] for an owner that no file can have, ...
    pub(crate) fn create(&self, name: &[u8], kind: NewKind<'_>, attr: NewAttr) -> Result<InodeRef> {
        check_owner(Some(attr.uid), Some(attr.gid))?;
        self.fs.with_room(|| self.create_once(name, kind, attr))
    }

    fn create_once(&self, name: &[u8], kind: NewKind<'_>, attr: NewAttr) -> Result<InodeRef> {
        check_new_name(name)?;
        kind.check()?;
        self.fs.check_writable()?;
        let node;
        {
            let _exclusive = self.lock();
            self.check_alive()?;
            let slot = find_name(self, name)?.vacant()?;
            if let NewKind::Symlink(target) = kind {
                check_fits(&self.fs, target)?;
            }
            self.check_not_immutable()?;
            if matches!(kind, NewKind::Dir) {
                check_dir_links(&self.fs, &self.state())?;
            }
            let hint = match kind {
                NewKind::Dir if self.ino == ROOT_INO || self.state().flags.contains(InodeFlags::TOPDIR) => {
                    InodeHint::TopDir { spread: ext4_chksum(!0, name) }
                }
                NewKind::Dir => InodeHint::Dir { parent: self.ino },
                _ => InodeHint::File { parent: self.ino },
            };
            let prepared = self.prepare()?;
            let needed = create_credits(&kind) + slot.credits(&self.fs, &self.state());
            node = self.fs.transact(needed, |txn| {
                let mut new = NewInode::take(txn, self, hint, &kind, attr)?;
                let now = new.inode.crtime;
                let made = new.fill(txn, self, &kind).map(|()| {
                    let start = txn.mark();
                    let named = prepared.update(txn, |txn, parent| {
                        let entry = dir::NewEntry { name, child: new.inode.ino, file_type: kind.file_type() };
                        dir::insert(txn, parent, slot, &entry)?;
                        (parent.mtime, parent.ctime) = (now, now);
                        if matches!(kind, NewKind::Dir) {
                            add_dir_link(&self.fs, parent);
                        }
                        Ok(())
                    });
                    (named, txn.mark() == start)
                });
                match made {
                    Ok((Ok(()), _)) => {
                        let ino = new.inode.ino;
                        self.fs.new_inode(ino, || new.named(txn).map(|()| new.inode))
                    }
                    // Part of the directory has changed already: settling the handle will abort the
                    // journal.
                    Ok((Err(e), false)) => Err(e),
                    Ok((Err(e), true)) | Err(e) => {
                        new.undo(txn)?;
                        Err(e)
                    }
                }
            })?;
        }
        Ok(node)
    }

    /// Makes a file without a name: an orphan until [`link`](CachedInode::link) gives it one.
    pub(crate) fn create_nameless(&self, attr: NewAttr) -> Result<InodeRef> {
        check_owner(Some(attr.uid), Some(attr.gid))?;
        self.fs.with_room(|| self.create_nameless_once(attr))
    }

    fn create_nameless_once(&self, attr: NewAttr) -> Result<InodeRef> {
        self.fs.check_writable()?;
        self.check_alive()?;
        self.check_not_immutable()?;
        let (kind, hint) = (NewKind::File, InodeHint::File { parent: self.ino });
        let inode = self.fs.transact(create_credits(&kind) + credits::ORPHAN, |txn| {
            let mut new = NewInode::take(txn, self, hint, &kind, attr)?;
            new.inode.links_count = 0;
            // Written again after that: i_dtime of an orphan belongs to the orphan list.
            let made = new
                .fill(txn, self, &kind)
                .and_then(|()| orphan::add(txn, new.inode.ino))
                .and_then(|()| new.slot.write(txn, &new.inode));
            match made {
                Ok(()) => Ok(new.inode),
                Err(e) => {
                    new.undo(txn)?;
                    Err(e)
                }
            }
        })?;
        let node = self.fs.new_inode(inode.ino, || Ok(inode))?;
        node.set_linkable(true);
        Ok(node)
    }
}

/// Checks the target of a link. Done before any lookup.
pub(crate) fn check_target(target: &[u8]) -> Result<()> {
    if target.is_empty() {
        return Err(Error::NotFound);
    }
    if target.contains(&0) {
        return Err(Error::Invalid("a symbolic link that holds NUL"));
    }
    if target.len() >= PATH_MAX { Err(Error::NameTooLong { len: target.len() }) } else { Ok(()) }
}

/// Checks that a target with its final NUL fits in a block.
fn check_fits(fs: &Fs, target: &[u8]) -> Result<()> {
    let fits = target.len() < fs.block_size as usize;
    if fits { Ok(()) } else { Err(Error::NameTooLong { len: target.len() }) }
}

pub(super) fn create_credits(kind: &NewKind<'_>) -> u32 {
    // The new inode and its parent; inherited ACLs; a first block. Also enough for an undo.
    let content = if matches!(kind, NewKind::Dir | NewKind::Symlink(_)) { 1 + credits::RUN } else { 0 };
    credits::NEW_INODE + credits::INODE + credits::XATTR + content
}

/// Makes an inode without content, as a child of `parent`.
fn new_inode(store: &Store, ino: u32, parent: &Inode, kind: &NewKind<'_>, attr: NewAttr) -> Inode {
    let file_type = kind.file_type();
    let mut mode = file_type.mode_bits() | attr.permissions & 0o7777;
    let mut gid = attr.gid;
    if parent.mode & S_ISGID != 0 {
        gid = parent.gid;
        if file_type == FileType::Directory {
            mode |= S_ISGID;
        }
    }
    let mut inode = Inode::new(ino, mode, &store.inode_ctx);
    inode.uid = attr.uid;
    inode.gid = gid;
    inode.links_count = if file_type == FileType::Directory { 2 } else { 1 };
    inode.generation = store.next_generation();
    inode.flags = parent.flags & InodeFlags::INHERITED;
    match file_type {
        FileType::Directory => {}
        FileType::Regular => inode.flags &= !InodeFlags::OF_DIRECTORIES,
        _ => inode.flags &= InodeFlags::NODUMP | InodeFlags::NOATIME,
    }
    let mapped = matches!(kind, NewKind::File | NewKind::Dir);
    if mapped && store.has_incompat(Incompat::EXTENTS) {
        map::init_extents(&mut inode);
    }
    let now = store.now();
    (inode.atime, inode.mtime, inode.ctime, inode.crtime) = (now, now, now, now);
    inode
}

/// A new inode that no directory entry names yet: it can be undone.
pub(super) struct NewInode<'f> {
    pub(super) inode: Inode,
    slot: TableSlot<'f>,
    /// The mark before it was taken.
    start: Mark,
}

impl<'f> NewInode<'f> {
    /// Takes an inode as a child of `parent`.
    pub(super) fn take(
        txn: &mut Txn<'f>,
        parent: &CachedInode,
        hint: InodeHint,
        kind: &NewKind<'_>,
        attr: NewAttr,
    ) -> Result<Self> {
        let start = txn.mark();
        let (ino, slot) = alloc::alloc_inode(txn, hint)?;
        let inode = new_inode(txn.store(), ino, &parent.state(), kind, attr);
        Ok(Self { inode, slot, start })
    }

    /// Gives the inode its content and its inherited ACLs, and writes it to the table without
    /// links: a thread that asks for its number finds no inode before [`named`](Self::named). It
    /// would cache what an undo takes back.
    pub(super) fn fill(&mut self, txn: &mut Txn<'f>, parent: &CachedInode, kind: &NewKind<'_>) -> Result<()> {
        let inode = &mut self.inode;
        xattr::inherit_acl(txn, &parent.state(), inode)?;
        match *kind {
            NewKind::File => {}
            NewKind::Dir => dir::init(txn, inode, parent.ino)?,
            NewKind::Symlink(target) => fill_symlink(txn, inode, target)?,
            NewKind::Special { file_type, device } => {
                if matches!(file_type, FileType::CharDevice | FileType::BlockDevice) {
                    inode.set_device(device);
                }
            }
        }
        let links_count = mem::take(&mut inode.links_count);
        let written = self.slot.write_new(txn, inode);
        inode.links_count = links_count;
        written
    }

    /// Writes the inode with its links, once a directory entry names it. The table's block is in
    /// memory, because the handle has changed it before.
    pub(super) fn named(&self, txn: &Txn<'f>) -> Result<()> {
        self.slot.write(txn, &self.inode)
    }

    /// Undoes the inode, under the same handle. All blocks that this changes are in memory, because
    /// the handle has changed them before.
    pub(super) fn undo(&mut self, txn: &mut Txn<'f>) -> Result<()> {
        let (fs, inode) = (txn.store(), &mut self.inode);
        let is_dir = inode.is_dir();
        if let Some((block, len)) = map::first_run(fs, inode)? {
            txn.free(block, len, BlockKind::Metadata)?;
        }
        xattr::free_all(txn, inode)?;
        let mut gone = Inode::new(inode.ino, inode.mode, &fs.inode_ctx);
        gone.links_count = 0;
        gone.generation = inode.generation;
        gone.dtime = fs.now().sec.clamp(1, i64::from(u32::MAX)) as u32;
        self.slot.write_new(txn, &gone)?;
        alloc::free_inode(txn, gone.ino, is_dir)?;
        txn.undone(self.start);
        Ok(())
    }
}

/// Stores a target: in i_block if it has less than 60 bytes, else in a block of its own.
fn fill_symlink(txn: &mut Txn<'_>, inode: &mut Inode, target: &[u8]) -> Result<()> {
    inode.size = target.len() as u64;
    if let Some(inline) = inode.i_block.get_mut(..target.len()).filter(|_| target.len() < 60) {
        inline.copy_from_slice(target);
        return Ok(());
    }
    if txn.store().has_incompat(Incompat::EXTENTS) {
        map::init_extents(inode);
    }
    let block = map::alloc_append(txn, inode, 0)?;
    let buffer = txn.create(block)?;
    let mut bytes = txn.write(&buffer)?;
    if let Some(place) = bytes.get_mut(..target.len()) {
        place.copy_from_slice(target);
    }
    Ok(())
}
