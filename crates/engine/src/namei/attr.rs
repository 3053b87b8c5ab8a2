//! What chmod, chown and utimes change.

use crate::error::Result;
use crate::inode::Node;
use crate::txn::credits;
use crate::volume::Fs;
use crate::xattr;
use lanefs_format::Timestamp;

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the change.
    Now,
    /// This time.
    At(Timestamp),
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
}

const S_ISUID: u16 = 0o4000;
const S_ISGID: u16 = 0o2000;
const S_IXGRP: u16 = 0o010;

impl Fs {
    /// Sets attributes. A new mode goes into the ACL's mask; a new owner of a file takes
    /// set-user-id and set-group-id from it, as the kernel does.
    pub(crate) fn set_attr(&self, node: &Node, set: &SetAttr) -> Result<()> {
        self.check_writable()?;
        node.check_mutable()?;
        let mut txn = self.start(credits::INODE + credits::XATTR)?;
        let now = self.now();
        node.update(&mut txn, |txn, inode| {
            let fine = inode.has_fine_times();
            // In core as it will be read back.
            let time = |t: SetTime| match t {
                SetTime::Now => now,
                SetTime::At(t) => t.clamped(fine),
            };
            if set.uid.is_some() || set.gid.is_some() {
                inode.uid = set.uid.unwrap_or(inode.uid);
                inode.gid = set.gid.unwrap_or(inode.gid);
                if !inode.is_dir() {
                    let sgid = if inode.mode & S_IXGRP != 0 { S_ISGID } else { 0 };
                    inode.mode &= !(S_ISUID | sgid);
                }
            }
            if let Some(permissions) = set.permissions {
                inode.mode = inode.mode & !0o7777 | permissions & 0o7777;
                xattr::chmod_acl(txn, node.ino, inode)?;
            }
            if let Some(t) = set.atime {
                inode.atime = time(t);
            }
            if let Some(t) = set.mtime {
                inode.mtime = time(t);
            }
            inode.ctime = now;
            Ok(())
        })
    }
}
