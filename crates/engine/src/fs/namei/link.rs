//! Another name for an inode, and reading symbolic links.

use super::{check_new_name, find_name};
use crate::error::{Corrupt, Error, Result};
use crate::fs::inode::{CachedInode, InodeRef};
use crate::store::kind;
use crate::store::map::{self, Mapping};
use crate::store::txn::credits;
use crate::store::{dir, orphan};
use lanefs_format::{EXT4_LINK_MAX, FileType};
use std::sync::Arc;

/// Links the inode that `find` finds. If another thread removes the inode's last name meanwhile,
/// finds again which inode the path names.
///
/// # Errors
/// The errors of `find` and `link`; [`Corrupt::DeadInode`] if the name leads to an inode without
/// names.
pub(crate) fn link_found(
    find: impl Fn() -> Result<InodeRef>,
    link: impl Fn(&InodeRef) -> Result<()>,
) -> Result<()> {
    // Held, so that no other inode gets its number.
    let mut gone: Option<InodeRef> = None;
    loop {
        let node = find()?;
        if gone.is_some_and(|gone| gone.ino == node.ino) {
            return Err(Corrupt::DeadInode { ino: node.ino }.into());
        }
        match link(&node) {
            Err(Error::NotFound) if node.is_nameless() => gone = Some(node),
            done => return done,
        }
    }
}

impl CachedInode {
    /// Gives this inode the name `name` in `dir`.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for a directory, [`Error::Exists`], [`Error::TooManyLinks`];
    /// [`Error::NotFound`] if another thread has removed the last name meanwhile.
    pub(crate) fn link(&self, dir: &CachedInode, name: &[u8]) -> Result<()> {
        self.fs.with_room(|| self.link_once(dir, name))
    }

    fn link_once(&self, dir: &CachedInode, name: &[u8]) -> Result<()> {
        check_new_name(name)?;
        self.fs.check_writable()?;
        if !Arc::ptr_eq(&self.fs, &dir.fs) {
            return Err(Error::OtherVolume);
        }
        let _exclusive = dir.lock();
        dir.check_alive()?;
        let slot = find_name(dir, name)?.vacant()?;
        dir.check_not_immutable()?;
        self.check_mutable()?;
        let file_type = match self.state().file_type()? {
            FileType::Directory => return Err(Error::NotPermitted("a directory has one name")),
            file_type => file_type,
        };
        let (from, to) = (dir.prepare()?, self.prepare()?);
        let needed = slot.credits(&self.fs, &dir.state()) + 2 * credits::INODE + credits::ORPHAN;
        let now = self.fs.now();
        // No truncation is in progress meanwhile: at its end it decides, by the name, whether the
        // inode stays on the orphan list.
        let _whole = self.content_if_used().map(|content| content.hold_writeback());
        // A truncation that failed keeps it there, and a hash tree that is being written.
        let stays_orphan = self.file_if_used().is_some_and(|file| file.is_cut_short());
        self.fs.transact(needed, |txn| {
            let start = txn.mark();
            // The count goes up before the name is added, and down again if there is no room for
            // the name. The stamp comes last: no other thread sees one of a link that fails.
            to.update(txn, |txn, inode| {
                let was = inode.links_count;
                if was >= EXT4_LINK_MAX {
                    return Err(Error::TooManyLinks);
                }
                if was == 0 && !self.is_linkable() {
                    return Err(Error::NotFound);
                }
                inode.links_count += 1;
                if was == 0 && !stays_orphan {
                    orphan::settle(txn, inode)?;
                }
                Ok(())
            })?;
            let counted = txn.mark();
            let made = from.update(txn, |txn, parent| {
                dir::insert(txn, parent, slot, &dir::NewEntry { name, child: self.ino, file_type })?;
                (parent.mtime, parent.ctime) = (now, now);
                Ok(())
            });
            if made.is_err() && txn.mark() == counted {
                // From its current value: other threads may have added and removed names meanwhile.
                to.update(txn, |txn, inode| {
                    inode.links_count = inode.links_count.saturating_sub(1);
                    if inode.links_count == 0 { orphan::add(txn, self.ino) } else { Ok(()) }
                })?;
                txn.undone(start);
            }
            if made.is_ok() {
                to.update(txn, |_, inode| {
                    inode.ctime = now;
                    Ok(())
                })?;
                self.set_linkable(false);
            }
            made
        })
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is none; a link whose target breaks a rule.
    pub(crate) fn read_link(&self) -> Result<Vec<u8>> {
        let inode = self.state();
        if !inode.is_symlink() {
            return Err(Error::Invalid("not a symbolic link"));
        }
        let damaged = |rule| Corrupt::Symlink { ino: self.ino, size: inode.size, rule };
        let target = if let Some(target) = inode.fast_symlink(&self.fs.inode_ctx) {
            target.to_vec()
        } else {
            let Mapping::Mapped { block, unwritten: false, .. } = map::lookup(&self.fs, &inode, 0)? else {
                return Err(damaged("has no block").into());
            };
            let buffer = self.fs.file_block(block, kind::SYMLINK, |_| Ok(()))?;
            let len = usize::try_from(inode.size).unwrap_or(usize::MAX);
            let bytes = buffer.read();
            bytes
                .get(..len)
                .filter(|b| b.len() < bytes.len())
                .ok_or(damaged("is longer than a block"))?
                .to_vec()
        };
        if target.is_empty() || target.contains(&0) {
            return Err(damaged("is empty or holds NUL").into());
        }
        Ok(target)
    }
}
