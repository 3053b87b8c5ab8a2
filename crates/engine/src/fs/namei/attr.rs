//! What chmod, chown and utimes change.
//!
//! Invariant: before the first of several changes of the attribute block, space is claimed for all
//! of them and the block's bitmap is read, so that a call changes everything or nothing.
//!
//! Hazard: a change of owner or content takes set-id bits and capabilities away. The caller says as
//! what it counts ([`Modifier`]): this file knows of no users.

use crate::error::{Error, Result};
use crate::fs::inode::CachedInode;
use crate::store::alloc;
use crate::store::txn::{Txn, credits};
use crate::store::xattr;
use lanefs_format::{FileType, Inode, InodeFlags, RoCompat, S_ISGID, S_ISUID, Timestamp};

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the change.
    Now,
    /// This time.
    At(Timestamp),
}

/// When a read moves the time of the last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Atime {
    /// If it is not later than the last change, or a day old (`relatime`).
    #[default]
    Relative,
    /// With each read (`strictatime`).
    Strict,
    /// Never (`noatime`).
    Never,
}

/// Attributes to set; `None` stays as it is. The size is set by truncation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits with set-user-id, set-group-id and sticky: the low 12 bits of i_mode.
    pub permissions: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Time of the last read.
    pub atime: Option<SetTime>,
    /// Time of the last change of the content.
    pub mtime: Option<SetTime>,
    /// Time of the last change of the inode: now, unless the caller keeps the times of the file.
    pub ctime: Option<SetTime>,
    /// The caller: decides whether a new owner or group clears set-group-id.
    pub by: Modifier,
}

/// The caller of a change, as far as it decides which set-id bits the change clears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Modifier {
    /// Has CAP_FSETID: a change of content clears no bit.
    #[default]
    Privileged,
    /// A member of the file's group: set-group-id stays where the group may not execute the file.
    Member,
    /// Any other caller.
    Other,
}

impl Modifier {
    /// Returns the bits of `mode` that a change of the content clears. Only regular files have such
    /// bits.
    pub(crate) fn takes_with_content(self, mode: u16) -> u16 {
        match self {
            _ if FileType::from_mode(mode) != Some(FileType::Regular) => 0,
            Self::Privileged => 0,
            Self::Member | Self::Other => self.takes_with_owner(mode),
        }
    }

    /// Returns the bits of `mode` that a change of owner or group clears on anything but a
    /// directory. Without the group's right to execute, set-group-id is no privilege; it is cleared
    /// only if the caller could not set it again.
    fn takes_with_owner(self, mode: u16) -> u16 {
        let takes = if mode & S_IXGRP != 0 || self == Self::Other { S_ISUID | S_ISGID } else { S_ISUID };
        mode & takes
    }
}

impl SetAttr {
    /// Returns whether a caller with a cache of its own (the kernel, above a mount) only reports
    /// when it changed the inode: the change itself was allowed.
    fn is_note(&self) -> bool {
        let times = Self { mtime: self.mtime, ctime: self.ctime, by: self.by, ..Self::default() };
        self.ctime.is_some() && *self == times
    }

    /// Returns whether both times are set to now and nothing else is set, as by utimes(2) without
    /// times. A caller with a cache of its own passes the time, as mtime and as ctime.
    fn is_touch(&self) -> bool {
        let now = |t: Option<SetTime>| t == Some(SetTime::Now) || t.is_some() && t == self.ctime;
        self.permissions.is_none()
            && self.uid.is_none()
            && self.gid.is_none()
            && now(self.atime)
            && now(self.mtime)
    }
}

/// The attribute with the capabilities that a program gets when it is run.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

const S_IXGRP: u16 = 0o010;

/// Refuses as owner or group the number 2^32 - 1, which chown(2) takes for "leave it as it is". No
/// user or group has that number.
///
/// # Errors
/// [`Error::Invalid`].
pub(super) fn check_owner(uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    match (uid, gid) {
        (Some(u32::MAX), _) => Err(Error::Invalid("user 4294967295, which stands for no user")),
        (_, Some(u32::MAX)) => Err(Error::Invalid("group 4294967295, which stands for no group")),
        _ => Ok(()),
    }
}

impl CachedInode {
    /// Changes one inode under a handle of its own. If the change finds no space, and so has
    /// changed nothing, tries again once there may be space.
    pub(super) fn change(
        &self,
        credits: u32,
        mut change: impl FnMut(&mut Txn<'_>, &mut Inode) -> Result<()>,
    ) -> Result<()> {
        self.fs.with_room(|| {
            let prepared = self.prepare()?;
            self.fs.transact(credits, |txn| prepared.update(txn, &mut change))
        })
    }

    /// Returns whether a new owner and a new mode both change the attributes.
    fn has_capability_and_acl(&self, inode: &Inode) -> Result<bool> {
        let has = |name: &[u8]| match xattr::get(&self.fs, inode, name) {
            Ok(_) => Ok(true),
            Err(Error::NoData | Error::NotSupported(_)) => Ok(false),
            Err(e) => Err(e),
        };
        Ok(!inode.is_dir() && has(CAPABILITY)? && has(b"system.posix_acl_access")?)
    }

    /// Sets attributes. A new mode changes the ACL's mask too. A new owner of a file clears its
    /// set-user-id and set-group-id, as in the kernel.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an owner or group that no file can have; [`Error::NotPermitted`] by
    /// the flags; [`Error::NoSpace`].
    pub(crate) fn set_attr(&self, set: &SetAttr) -> Result<()> {
        self.fs.check_writable()?;
        check_owner(set.uid, set.gid)?;
        match (set.is_note(), set.is_touch()) {
            (true, _) => {}
            // An append-only inode may change its content, so touch(1) may change its times.
            (false, true) => self.check_not_immutable()?,
            (false, false) => self.check_mutable()?,
        }
        let only_times = set.permissions.is_none() && set.uid.is_none() && set.gid.is_none();
        // A new owner removes a capability, a new mode changes the ACL: both may change the
        // attributes.
        let twice = set.permissions.is_some() && (set.uid.is_some() || set.gid.is_some());
        let needed = credits::INODE
            + match (only_times, twice) {
                (true, _) => 0,
                (false, false) => credits::XATTR,
                (false, true) => 2 * credits::XATTR,
            };
        let now = self.fs.now();
        self.change(needed, |txn, inode| {
            let _held = if twice && inode.file_acl != 0 && self.has_capability_and_acl(inode)? {
                // Claims space for both changes, and reads what either may free, so that the second
                // one does not fail.
                let held = xattr::hold_for_free(&self.fs, inode)?;
                txn.spend(alloc::claim(&self.fs, 2)?);
                Some(held)
            } else {
                None
            };
            let fine = inode.has_fine_times();
            // As precise as the inode on disk can hold.
            let time = |t: SetTime| match t {
                SetTime::Now => now,
                SetTime::At(t) => t.clamped(fine),
            };
            if set.uid.is_some() || set.gid.is_some() {
                inode.uid = set.uid.unwrap_or(inode.uid);
                inode.gid = set.gid.unwrap_or(inode.gid);
                if !inode.is_dir() {
                    inode.mode &= !set.by.takes_with_owner(inode.mode);
                    drop_capability(txn, inode)?;
                }
            }
            if let Some(permissions) = set.permissions {
                inode.mode = inode.mode & !0o7777 | permissions & 0o7777;
                xattr::chmod_acl(txn, inode)?;
            }
            if let Some(t) = set.atime {
                inode.atime = time(t);
            }
            if let Some(t) = set.mtime {
                inode.mtime = time(t);
            }
            inode.ctime = set.ctime.map_or(now, time);
            Ok(())
        })
    }

    /// Clears the privileges that a change of the content by `by` clears: set-id bits and file
    /// capabilities.
    pub(crate) fn drop_privileges(&self, by: Modifier) -> Result<()> {
        self.fs.check_writable()?;
        let now = self.fs.now();
        self.change(credits::INODE + credits::XATTR, |txn, inode| {
            inode.mode &= !by.takes_with_content(inode.mode);
            drop_capability(txn, inode)?;
            inode.ctime = now;
            Ok(())
        })
    }

    /// Replaces the flags that a user may change, and sets i_projid, both under one handle; `None`
    /// leaves either unchanged.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for a flag that chattr(1) does not have or that this type of inode
    /// cannot have, for a change that lanefs does not make, and for another project on a volume
    /// without the feature; [`Error::Invalid`] for project 2^32 - 1; [`Error::NotPermitted`] for an
    /// inode that was immutable and stays so. Nothing is changed.
    pub(crate) fn set_file_attr(&self, flags: Option<InodeFlags>, project: Option<u32>) -> Result<()> {
        self.fs.check_writable()?;
        let project = project.filter(|project| *project != self.state().projid);
        match project {
            Some(_) if !self.fs.has_ro(RoCompat::PROJECT) => {
                return Err(Error::NotSupported("the volume has no projects".into()));
            }
            Some(u32::MAX) => return Err(Error::Invalid("project 4294967295, which stands for no project")),
            None if flags.is_none() => return Ok(()),
            _ => {}
        }
        let now = self.fs.now();
        self.change(credits::INODE, |_, inode| {
            let old = inode.flags;
            if let Some(flags) = flags {
                set_flags(inode, flags)?;
            }
            check_stays_immutable(old, inode.flags, project)?;
            inode.projid = project.unwrap_or(inode.projid);
            inode.ctime = now;
            Ok(())
        })
    }

    /// Notes that the inode was read.
    pub(crate) fn accessed(&self, atime: Atime) -> Result<()> {
        let now = self.fs.now();
        if !self.is_atime_due(atime, now) {
            return Ok(());
        }
        self.change(credits::INODE, |_, inode| {
            inode.atime = now;
            Ok(())
        })
    }

    /// Returns whether a read at `now` moves the time of the last read.
    pub(crate) fn is_atime_due(&self, atime: Atime, now: Timestamp) -> bool {
        if atime == Atime::Never || self.fs.check_writable().is_err() {
            return false;
        }
        let inode = self.state();
        let stale = inode.atime <= inode.mtime.max(inode.ctime) || now.sec - inode.atime.sec >= DAY;
        // An immutable inode is no exception in the kernel.
        let kept = inode.flags.contains(InodeFlags::NOATIME);
        !kept && (stale || atime == Atime::Strict && now.sec != inode.atime.sec)
    }
}

/// Seconds after which a read moves the time of the last read in any case.
const DAY: i64 = 24 * 60 * 60;

/// Flags that chattr(1) may change and that change nothing else of the inode.
const CHANGEABLE: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::DAX)
    .union(InodeFlags::PROJINHERIT);

/// Flags that the kernel lets a user change and lanefs does not: they change the form of the
/// content, or (`EXT4_EOFBLOCKS_FL`) have no meaning any more.
const FIXED: InodeFlags = InodeFlags::JOURNAL_DATA
    .union(InodeFlags::EXTENTS)
    .union(InodeFlags::CASEFOLD)
    .union(InodeFlags::from_bits_retain(0x40_0000));

/// Flags with which the kernel refuses DAX.
const NO_DAX: InodeFlags = InodeFlags::JOURNAL_DATA.union(InodeFlags::ENCRYPT).union(InodeFlags::VERITY);

/// Returns the flags that chattr(1) knows (`EXT4_FL_USER_VISIBLE`) and that this type of inode can
/// have.
fn allowed_flags(inode: &Inode) -> InodeFlags {
    if inode.is_dir() {
        InodeFlags::USER_VISIBLE
    } else if inode.is_regular() {
        InodeFlags::USER_VISIBLE & !InodeFlags::OF_DIRECTORIES
    } else {
        InodeFlags::NODUMP | InodeFlags::NOATIME
    }
}

/// Checks that an inode that was immutable and stays so keeps its other flags, and its project.
fn check_stays_immutable(old: InodeFlags, new: InodeFlags, project: Option<u32>) -> Result<()> {
    let stays = (old & new).contains(InodeFlags::IMMUTABLE);
    let changes = old != new || project.is_some();
    if stays && changes { Err(Error::NotPermitted("the inode is immutable")) } else { Ok(()) }
}

/// Replaces the flags that a user may change.
fn set_flags(inode: &mut Inode, flags: InodeFlags) -> Result<()> {
    let alien = flags & !allowed_flags(inode);
    let fixed = (inode.flags ^ flags) & FIXED;
    // Journalled or encrypted content cannot go past a cache.
    let contradicts = flags.contains(InodeFlags::DAX) && inode.flags.intersects(NO_DAX);
    if !alien.is_empty() || !fixed.is_empty() || contradicts {
        let bits = (alien | fixed).bits();
        let text = format!("inode {}: flags {:#x}: cannot become {bits:#x}", inode.ino, flags.bits());
        return Err(Error::NotSupported(text));
    }
    inode.flags = inode.flags & !CHANGEABLE | flags & CHANGEABLE;
    Ok(())
}

fn drop_capability(txn: &mut Txn<'_>, inode: &mut Inode) -> Result<()> {
    match xattr::get(txn.store(), inode, CAPABILITY) {
        Ok(_) => xattr::remove(txn, inode, CAPABILITY),
        Err(Error::NoData) => Ok(()),
        Err(e) => Err(e),
    }
}
