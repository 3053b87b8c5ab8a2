//! New inodes: files, directories, symbolic links, devices, fifos, sockets.

use super::{add_dir_link, check_dir_links, check_new_name, find_name};
use crate::alloc::{self, BlockKind, InodeHint};
use crate::error::{Error, Result};
use crate::inode::{Node, NodeRef, ROOT_INO};
use crate::txn::{Txn, credits};
use crate::volume::Fs;
use crate::{dir, map, xattr};
use lanefs_format::{DeviceNumber, FileType, Incompat, Inode, InodeFlags, Timestamp, ext4_chksum};
use std::sync::Arc;

/// Bytes of the longest path, and so of the longest symbolic link, with its final NUL.
const PATH_MAX: usize = 4096;

/// What a new inode starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewAttr {
    /// Permission bits with set-user-id, set-group-id and sticky: the low 12 bits of i_mode.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group; a directory with set-group-id gives its own instead.
    pub gid: u32,
}

/// What kind of inode to make.
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
}

impl Fs {
    /// Makes an inode with a name in `dir`.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`] with nothing changed, [`Error::TooManyLinks`], ...
    pub(crate) fn create(
        self: &Arc<Self>,
        dir: &Node,
        name: &[u8],
        kind: NewKind<'_>,
        attr: NewAttr,
    ) -> Result<NodeRef> {
        check_new_name(name)?;
        if let NewKind::Symlink(target) = kind {
            check_target(target)?;
        }
        self.check_writable()?;
        let node;
        {
            let _exclusive = dir.lock();
            dir.check_alive()?;
            let slot = find_name(dir, name)?.vacant()?;
            if let NewKind::Symlink(target) = kind {
                check_fits(self, target)?;
            }
            dir.check_not_immutable()?;
            if matches!(kind, NewKind::Dir) {
                check_dir_links(self, &dir.state())?;
            }
            let entry = slot.credits(self, &dir.state());
            let mut txn = self.start(create_credits(&kind) + entry)?;
            let hint = match kind {
                NewKind::Dir if dir.ino == ROOT_INO || dir.state().flags.contains(InodeFlags::TOPDIR) => {
                    InodeHint::TopDir { spread: ext4_chksum(!0, name) }
                }
                NewKind::Dir => InodeHint::Dir { parent: dir.ino },
                _ => InodeHint::File { parent: dir.ino },
            };
            let ino = alloc::alloc_inode(&mut txn, hint)?;
            let now = self.now();
            let mut inode = new_inode(self, &dir.state(), &kind, attr, now);
            let made = fill(&mut txn, dir, ino, &mut inode, &kind)
                .and_then(|()| self.write_new_inode(&txn, ino, &inode))
                .and_then(|()| {
                    dir.update(&mut txn, |txn, parent| {
                        dir::insert(txn, dir.ino, parent, slot, name, ino, kind.file_type())?;
                        (parent.mtime, parent.ctime) = (now, now);
                        if matches!(kind, NewKind::Dir) {
                            add_dir_link(self, parent);
                        }
                        Ok(())
                    })
                });
            if let Err(e) = made {
                undo(&mut txn, ino, &mut inode)?;
                return Err(e);
            }
            node = self.new_node(ino, inode)?;
        }
        Ok(node)
    }

    /// Makes a file without a name: an orphan until [`link`](Fs::link) gives it one.
    pub(crate) fn create_nameless(self: &Arc<Self>, dir: &Node, attr: NewAttr) -> Result<NodeRef> {
        self.check_writable()?;
        dir.check_dir()?;
        let node;
        {
            let mut txn = self.start(create_credits(&NewKind::File) + credits::ORPHAN)?;
            let ino = alloc::alloc_inode(&mut txn, InodeHint::File { parent: dir.ino })?;
            let mut inode = new_inode(self, &dir.state(), &NewKind::File, attr, self.now());
            inode.links_count = 0;
            let made = fill(&mut txn, dir, ino, &mut inode, &NewKind::File)
                .and_then(|()| crate::orphan::add(&mut txn, ino))
                .and_then(|()| self.write_new_inode(&txn, ino, &inode));
            if let Err(e) = made {
                undo(&mut txn, ino, &mut inode)?;
                return Err(e);
            }
            node = self.new_node(ino, inode)?;
        }
        Ok(node)
    }
}

/// Checks the target of a link before anything is looked up.
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

fn create_credits(kind: &NewKind<'_>) -> u32 {
    // New inode, the parent; ACLs inherited; a first block; and what an undo frees.
    let content = if matches!(kind, NewKind::Dir | NewKind::Symlink(_)) { 1 + credits::RUN } else { 0 };
    credits::NEW_INODE + credits::INODE + credits::XATTR + content
}

/// The inode before it has content, as a child of `parent`.
fn new_inode(fs: &Fs, parent: &Inode, kind: &NewKind<'_>, attr: NewAttr, now: Timestamp) -> Inode {
    const S_ISGID: u16 = 0o2000;
    let file_type = kind.file_type();
    let mut mode = file_type.mode_bits() | attr.permissions & 0o7777;
    let mut gid = attr.gid;
    if parent.mode & S_ISGID != 0 {
        gid = parent.gid;
        if file_type == FileType::Directory {
            mode |= S_ISGID;
        }
    }
    let mut inode = Inode::new(mode, &fs.inode_ctx);
    inode.uid = attr.uid;
    inode.gid = gid;
    inode.links_count = if file_type == FileType::Directory { 2 } else { 1 };
    inode.generation = fs.next_generation();
    inode.flags = parent.flags & InodeFlags::INHERITED;
    match file_type {
        FileType::Directory => {}
        FileType::Regular => inode.flags &= !(InodeFlags::DIRSYNC | InodeFlags::TOPDIR),
        _ => inode.flags &= InodeFlags::NODUMP | InodeFlags::NOATIME,
    }
    let mapped = matches!(kind, NewKind::File | NewKind::Dir);
    if mapped && fs.has_incompat(Incompat::EXTENTS) {
        map::init_extents(&mut inode);
    }
    (inode.atime, inode.mtime, inode.ctime, inode.crtime) = (now, now, now, now);
    inode
}

/// Gives a new inode its content and its inherited ACLs.
fn fill(txn: &mut Txn<'_>, parent: &Node, ino: u32, inode: &mut Inode, kind: &NewKind<'_>) -> Result<()> {
    xattr::inherit_acl(txn, parent.ino, &parent.state(), ino, inode)?;
    match *kind {
        NewKind::File => Ok(()),
        NewKind::Dir => dir::init(txn, ino, inode, parent.ino),
        NewKind::Symlink(target) => fill_symlink(txn, ino, inode, target),
        NewKind::Special { file_type, device } => {
            if matches!(file_type, FileType::CharDevice | FileType::BlockDevice) {
                inode.set_device(device);
            }
            Ok(())
        }
    }
}

/// Targets of less than 60 bytes lie in i_block, others in a block of their own.
fn fill_symlink(txn: &mut Txn<'_>, ino: u32, inode: &mut Inode, target: &[u8]) -> Result<()> {
    inode.size = target.len() as u64;
    if let Some(inline) = inode.i_block.get_mut(..target.len()).filter(|_| target.len() < 60) {
        inline.copy_from_slice(target);
        return Ok(());
    }
    if txn.fs().has_incompat(Incompat::EXTENTS) {
        map::init_extents(inode);
    }
    let block = map::alloc_append(txn, ino, inode, 0)?;
    let buffer = txn.create(block)?;
    let mut bytes = txn.write(&buffer)?;
    if let Some(place) = bytes.get_mut(..target.len()) {
        place.copy_from_slice(target);
    }
    Ok(())
}

/// Takes back an inode whose making failed, under the same handle.
fn undo(txn: &mut Txn<'_>, ino: u32, inode: &mut Inode) -> Result<()> {
    let fs = txn.fs();
    let is_dir = inode.is_dir();
    if let Some((block, len)) = map::first_run(fs, ino, inode)? {
        txn.free(block, len, BlockKind::Metadata)?;
    }
    xattr::free_all(txn, ino, inode)?;
    let mut gone = Inode::new(inode.mode, &fs.inode_ctx);
    gone.links_count = 0;
    gone.generation = inode.generation;
    gone.dtime = fs.now().sec.clamp(1, i64::from(u32::MAX)) as u32;
    fs.write_inode(txn, ino, &gone)?;
    alloc::free_inode(txn, ino, is_dir)
}
