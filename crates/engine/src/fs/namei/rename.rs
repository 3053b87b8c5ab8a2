//! Rename, atomic after a crash: to a new name, over an existing one, or exchanging two.
//!
//! Invariants:
//! - Only moves between directories change the shape of the tree. They run one at a time.
//! - Directories are locked in order of their inode numbers.
//!
//! Hazard: the names are looked up before the locks are taken, and again under them. If one leads
//! elsewhere by then, the rename begins anew.

use super::attr::check_owner;
use super::create::{NewInode, create_credits};
use super::is_dots;
use super::remove::{drop_dir, drop_link, lock_nodes};
use super::{NewAttr, NewKind, add_dir_link, check_dir_links, drop_dir_link, find, find_entry, find_name};
use crate::error::{Corrupt, Error, Result};
use crate::fs::inode::{CachedInode, InodeRef, Prepared};
use crate::store::ROOT_INO;
use crate::store::alloc::InodeHint;
use crate::store::dir::{self, FoundEntry, Lookup};
use crate::store::txn::{Txn, credits};
use lanefs_format::{DeviceNumber, FileType};
use lanefs_sync::order::{Level, Ordered};
use std::sync::Arc;

/// How a rename treats an existing name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameFlags {
    /// Replaces it.
    #[default]
    Replace,
    /// Fails with [`Error::Exists`] (RENAME_NOREPLACE).
    NoReplace,
    /// Swaps the two (RENAME_EXCHANGE).
    Exchange,
    /// Leaves a whiteout at the old name (RENAME_WHITEOUT): a character device 0/0 without
    /// permissions, by which overlayfs marks a name of a lower layer as removed.
    Whiteout {
        /// Whether to replace an existing name, or to fail with [`Error::Exists`].
        replace: bool,
        /// Owner of the whiteout.
        uid: u32,
        /// Group of the whiteout.
        gid: u32,
    },
}

impl RenameFlags {
    /// Returns whether the rename fails if the new name exists.
    pub(crate) fn keeps_target(self) -> bool {
        matches!(self, Self::NoReplace | Self::Whiteout { replace: false, .. })
    }

    /// Returns the attributes of the whiteout, if there is to be one.
    fn whiteout(self) -> Option<NewAttr> {
        match self {
            Self::Whiteout { uid, gid, .. } => Some(NewAttr { permissions: 0, uid, gid }),
            _ => None,
        }
    }
}

const WHITEOUT: NewKind<'static> =
    NewKind::Special { file_type: FileType::CharDevice, device: DeviceNumber { major: 0, minor: 0 } };

/// One side of a rename: a name that was looked up in a directory, which is locked. Once the rename
/// has changed a block, it reads no other.
struct Side<'a> {
    dir: &'a CachedInode,
    name: &'a [u8],
    place: Lookup,
}

impl CachedInode {
    /// Renames `old` in this directory to `new` in `to`. Returns the inode that lost the name
    /// `new`. It is deleted with its last name and its last user.
    ///
    /// # Errors
    /// The errors of renameat2(2); [`Error::OtherVolume`].
    pub(crate) fn rename(
        &self,
        old: &[u8],
        to: &CachedInode,
        new: &[u8],
        flags: RenameFlags,
    ) -> Result<Option<InodeRef>> {
        if !Arc::ptr_eq(&self.fs, &to.fs) {
            return Err(Error::OtherVolume);
        }
        if let RenameFlags::Whiteout { uid, gid, .. } = flags {
            check_owner(Some(uid), Some(gid))?;
        }
        self.fs.with_room(|| self.rename_once(old, to, new, flags))
    }

    fn rename_once(
        &self,
        old: &[u8],
        to: &CachedInode,
        new: &[u8],
        flags: RenameFlags,
    ) -> Result<Option<InodeRef>> {
        self.fs.check_writable()?;
        match (is_dots(old), is_dots(new)) {
            (false, true) if flags.keeps_target() => return Err(Error::Exists),
            (false, false) => {}
            _ => return Err(Error::Busy),
        }
        // Only moves between directories can change the tree's shape; they run one at a time.
        let _topology =
            (self.ino != to.ino).then(|| Ordered::take(Level::Topology, 0, || self.fs.topology.lock()));
        loop {
            let node = self.lookup(old)?;
            let target = match to.lookup(new) {
                Ok(target) => Some(target),
                Err(Error::NotFound) => None,
                Err(e) => return Err(e),
            };
            match (flags, &target) {
                (flags, Some(_)) if flags.keeps_target() => return Err(Error::Exists),
                (RenameFlags::Exchange, None) => return Err(Error::NotFound),
                _ => {}
            }
            if target.is_some() {
                // Over an existing name, the content becomes durable no later than the name: a
                // crash shows the old file or the new one.
                node.write_out()?;
            }
            let mut nodes = vec![self, to];
            nodes.extend(
                [Some(&node), target.as_ref()].into_iter().flatten().filter(|n| n.is_dir()).map(|n| &**n),
            );
            if self.ino != to.ino {
                node.check_tree(to, Error::Invalid("a directory cannot move below itself"))?;
                if let Some(target) = &target {
                    let nonempty = if flags == RenameFlags::Exchange {
                        Error::Invalid("a directory cannot move below itself")
                    } else {
                        Error::NotEmpty
                    };
                    target.check_tree(self, nonempty)?;
                }
            }
            let locks = lock_nodes(&nodes);
            // Between the lookups and the locks other threads may have given the names to other
            // inodes.
            let (src, dst) = (Side::new(self, old)?, Side::new(to, new)?);
            if src.ino() != Some(node.ino) || dst.ino() != target.as_ref().map(|t| t.ino) {
                continue;
            }
            let replaces = match &target {
                Some(target) if target.ino == node.ino => false,
                Some(target) if flags == RenameFlags::Exchange => {
                    src.exchange(&node, dst, target)?;
                    false
                }
                target => {
                    src.move_name(&node, dst, target.as_ref(), flags.whiteout())?;
                    true
                }
            };
            drop(locks);
            return Ok(target.filter(|_| replaces));
        }
    }

    /// Fails with `error` if this is `dir` or one of the directories above it.
    fn check_tree(&self, dir: &CachedInode, error: Error) -> Result<()> {
        if !self.is_dir() {
            return Ok(());
        }
        self.walk_up(dir, error).or_else(|e| {
            // A directory that another thread removes meanwhile leads nowhere, which is no damage.
            dir.check_alive()?;
            Err(e)
        })
    }

    fn walk_up(&self, dir: &CachedInode, error: Error) -> Result<()> {
        let mut at = dir.ino;
        // A cycle of ".." entries comes back to an inode that it has passed. Which one is kept is
        // changed after twice as many steps each time (Brent), so each cycle is found.
        let mut passed = None;
        for step in 1_u64.. {
            if passed == Some(at) {
                break;
            }
            if step.is_power_of_two() {
                passed = Some(at);
            }
            if at == self.ino {
                return Err(error);
            }
            if at == ROOT_INO {
                return Ok(());
            }
            let above = self.fs.inode(at)?;
            let _shared = above.share();
            match find(&above, b"..")? {
                Some(parent) => at = parent,
                None => break,
            }
        }
        Err(Corrupt::SpecialInode { ino: at, role: "directory", rule: "has no way up to the root" }.into())
    }
}

impl<'a> Side<'a> {
    fn new(dir: &'a CachedInode, name: &'a [u8]) -> Result<Self> {
        Ok(Self { dir, name, place: find_name(dir, name)? })
    }

    /// Returns the inode number of the name.
    fn ino(&self) -> Option<u32> {
        match &self.place {
            Lookup::Found(found) => Some(found.ino),
            Lookup::Vacant(_) => None,
        }
    }

    /// Checks whether a move may change its directories, its inode and its target.
    fn check_move(&self, node: &InodeRef, dst: &Self, target: Option<&InodeRef>) -> Result<()> {
        dst.dir.check_alive()?;
        self.dir.check_mutable()?;
        node.check_mutable()?;
        match target {
            None => dst.dir.check_not_immutable()?,
            Some(target) => {
                dst.dir.check_mutable()?;
                target.check_mutable()?;
                match (node.is_dir(), target.is_dir()) {
                    (true, false) => return Err(Error::NotDir),
                    (false, true) => return Err(Error::IsDir),
                    (true, true) if !dir::is_empty(&self.dir.fs, &target.state())? => {
                        return Err(Error::NotEmpty);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn move_name(
        self,
        node: &InodeRef,
        dst: Self,
        target: Option<&InodeRef>,
        whiteout: Option<NewAttr>,
    ) -> Result<()> {
        self.check_move(node, &dst, target)?;
        let Self { dir, name, place } = self;
        let (fs, is_dir) = (&dir.fs, node.is_dir());
        let changes_parent = is_dir && dir.ino != dst.dir.ino;
        if changes_parent && target.is_none() {
            check_dir_links(fs, &dst.dir.state())?;
        }
        let above = changes_parent.then(|| dotdot(node)).transpose()?;
        let file_type = file_type(node)?;
        let found = place.found()?;
        let entry = match &dst.place {
            Lookup::Found(_) => 0,
            Lookup::Vacant(slot) => slot.credits(fs, &dst.dir.state()),
        };
        let (from, to, moved) = (dir.prepare()?, dst.dir.prepare()?, node.prepare()?);
        let over = target.map(|target| Ok::<_, Error>((target, target.prepare()?))).transpose()?;
        let now = fs.now();
        let extra = if whiteout.is_some() { create_credits(&WHITEOUT) } else { 0 };
        fs.transact(rename_credits() + entry + extra, |txn| {
            // First, because it may fail without a free inode, and then nothing has changed.
            let mut left = whiteout.map(|attr| take_whiteout(txn, dir, attr)).transpose()?;
            let start = txn.mark();
            let put = to.update(txn, |txn, parent| {
                match dst.place {
                    Lookup::Found(found) => {
                        dir::replace(txn, parent, &found, dst.name, node.ino, file_type)?;
                    }
                    Lookup::Vacant(slot) => {
                        let entry = dir::NewEntry { name: dst.name, child: node.ino, file_type };
                        dir::insert(txn, parent, slot, &entry)?;
                    }
                }
                (parent.mtime, parent.ctime) = (now, now);
                Ok(())
            });
            if let (Err(_), Some(new)) = (&put, left.as_mut().filter(|_| txn.mark() == start)) {
                new.undo(txn)?;
            }
            put?;
            from.update(txn, |txn, parent| {
                let found = dir::find_again(fs, parent, found, name)?;
                match &left {
                    None => dir::remove(txn, parent, &found, name)?,
                    Some(new) => {
                        dir::replace(txn, parent, &found, name, new.inode.ino, FileType::CharDevice)?;
                    }
                }
                (parent.mtime, parent.ctime) = (now, now);
                Ok(())
            })?;
            left.map_or(Ok(()), |new| new.named(txn))?;
            stamp_moved(txn, node, &moved, above.as_ref().map(|above| (above, dst.dir.ino)))?;
            match &over {
                Some((target, prepared)) if is_dir => drop_dir(txn, &to, target, prepared)?,
                Some((target, prepared)) => drop_link(txn, target, prepared)?,
                None => {}
            }
            if changes_parent {
                adjust_links(txn, &from, &to)?;
            }
            Ok(())
        })
    }

    fn exchange(self, node: &InodeRef, dst: Self, other: &InodeRef) -> Result<()> {
        for n in [self.dir, dst.dir, node, other] {
            n.check_mutable()?;
        }
        let (one, two) = (file_type(node)?, file_type(other)?);
        let across = self.dir.ino != dst.dir.ino;
        let (one_dir, two_dir) = (one == FileType::Directory, two == FileType::Directory);
        if across && one_dir != two_dir {
            check_dir_links(&self.dir.fs, &if one_dir { dst.dir } else { self.dir }.state())?;
        }
        let above_one = (across && one_dir).then(|| dotdot(node)).transpose()?;
        let above_two = (across && two_dir).then(|| dotdot(other)).transpose()?;
        let (from, to) = (self.dir.prepare()?, dst.dir.prepare()?);
        let (first, second) = (node.prepare()?, other.prepare()?);
        let (old, new) = (self.place.found()?, dst.place.found()?);
        let now = self.dir.fs.now();
        self.dir.fs.transact(rename_credits(), |txn| {
            for (dir, found, name, node, file_type) in
                [(&from, &old, self.name, other, two), (&to, &new, dst.name, node, one)]
            {
                dir.update(txn, |txn, parent| {
                    dir::replace(txn, parent, found, name, node.ino, file_type)?;
                    (parent.mtime, parent.ctime) = (now, now);
                    Ok(())
                })?;
            }
            stamp_moved(txn, node, &first, above_one.as_ref().map(|above| (above, dst.dir.ino)))?;
            stamp_moved(txn, other, &second, above_two.as_ref().map(|above| (above, self.dir.ino)))?;
            match (across, one_dir, two_dir) {
                (true, true, false) => adjust_links(txn, &from, &to),
                (true, false, true) => adjust_links(txn, &to, &from),
                _ => Ok(()),
            }
        })
    }
}

/// Stamps an inode that was renamed. If it is a directory with a new parent, its "..", which was
/// found, follows to that inode.
fn stamp_moved(
    txn: &mut Txn<'_>,
    node: &CachedInode,
    prepared: &Prepared<'_>,
    above: Option<(&FoundEntry, u32)>,
) -> Result<()> {
    let now = node.fs.now();
    prepared.update(txn, |txn, inode| {
        inode.ctime = now;
        match above {
            Some((found, parent)) => dir::replace(txn, inode, found, b"..", parent, FileType::Directory),
            None => Ok(()),
        }
    })
}

/// Returns the ".." of a directory that moves to another parent.
fn dotdot(node: &CachedInode) -> Result<FoundEntry> {
    find_entry(node, b"..")?.ok_or_else(|| crate::error::DirError::Dots { ino: node.ino, name: ".." }.into())
}

/// Counts a subdirectory that moved from one directory to another.
fn adjust_links(txn: &mut Txn<'_>, from: &Prepared<'_>, to: &Prepared<'_>) -> Result<()> {
    from.update(txn, |_, inode| {
        drop_dir_link(inode);
        Ok(())
    })?;
    to.update(txn, |txn, inode| {
        add_dir_link(txn.store(), inode);
        Ok(())
    })
}

/// Makes an inode for a whiteout in `dir`, without its directory entry.
fn take_whiteout<'f>(txn: &mut Txn<'f>, dir: &CachedInode, attr: NewAttr) -> Result<NewInode<'f>> {
    let hint = InodeHint::File { parent: dir.ino };
    let mut new = NewInode::take(txn, dir, hint, &WHITEOUT, attr)?;
    if let Err(e) = new.fill(txn, dir, &WHITEOUT) {
        new.undo(txn)?;
        return Err(e);
    }
    Ok(new)
}

fn file_type(node: &CachedInode) -> Result<FileType> {
    Ok(node.state().file_type()?)
}

fn rename_credits() -> u32 {
    3 * dir::CREDITS_REMOVE + 4 * credits::INODE + credits::ORPHAN
}
