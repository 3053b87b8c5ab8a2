//! The owners that files of a mount seem to have: the options `uid`, `gid` and `fakeroot`.
//!
//! The kernel checks permissions by the owners that it is told. With `fakeroot` it checks none, and
//! each caller counts as root: the kernel lets no process of another user in.

use crate::fault::{Answer, Fault};
use lanefs::format::{S_ISGID, S_ISUID};
use lanefs::{Metadata, NewAttr, SetAttr};
use rustix::io::Errno;

/// A map from owners on disk to the owners that programs see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Owners {
    /// The user that all files seem to belong to.
    pub(crate) uid: Option<u32>,
    /// The group that all files seem to belong to.
    pub(crate) gid: Option<u32>,
    /// The caller of each request may do what root may.
    pub(crate) fakeroot: bool,
}

impl Owners {
    /// Returns the owner and the group that the kernel is told.
    pub(crate) fn shown(self, meta: &Metadata) -> (u32, u32) {
        (self.uid.unwrap_or(meta.uid()), self.gid.unwrap_or(meta.gid()))
    }

    /// Returns what a new file in `dir` gets on disk: where all owners look the same, those of the
    /// directory. The caller's user is that of `attr`.
    pub(crate) fn of_new(self, attr: NewAttr, dir: &Metadata) -> NewAttr {
        let uid = self.uid.map_or(attr.uid, |_| dir.uid());
        let gid = self.gid.map_or(attr.gid, |_| dir.gid());
        let permissions = attr.permissions & !self.foreign_ids(attr.uid, uid, gid);
        NewAttr { permissions, uid, gid }
    }

    /// Returns the set-id bits that user `caller` may not set, on a file of `uid`, `gid` on disk.
    /// The caller is checked as the owner that is shown, and a later mount takes the bits for
    /// rights of the owner on disk. User 0 may set all, as may the only user of a mount with
    /// `fakeroot`.
    pub(crate) fn foreign_ids(self, caller: u32, uid: u32, gid: u32) -> u16 {
        let bit =
            |shown: Option<u32>, stored, bit| if shown.is_some_and(|id| id != stored) { bit } else { 0 };
        match caller == 0 || self.fakeroot {
            true => 0,
            false => bit(self.uid, uid, S_ISUID) | bit(self.gid, gid, S_ISGID),
        }
    }

    /// Takes the owners that are shown out of a chown.
    ///
    /// # Errors
    /// EPERM for any other owner where all look the same.
    pub(crate) fn check_chown(self, set: &mut SetAttr) -> Answer {
        for (wanted, shown) in [(&mut set.uid, self.uid), (&mut set.gid, self.gid)] {
            match (*wanted, shown) {
                (Some(id), Some(all)) if id == all => *wanted = None,
                (Some(_), Some(_)) => return Err(Fault(Errno::PERM)),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gives_rights_of_the_owner_on_disk() {
        let both = Owners { uid: Some(7), gid: Some(8), fakeroot: false };
        assert_eq!(both.foreign_ids(7, 0, 0), 0o6000);
        assert_eq!((both.foreign_ids(7, 7, 0), both.foreign_ids(7, 0, 8)), (0o2000, 0o4000));
        assert_eq!(Owners { gid: None, ..both }.foreign_ids(7, 0, 0), 0o4000);
        assert_eq!((both.foreign_ids(0, 0, 0), Owners::default().foreign_ids(7, 0, 0)), (0, 0));
        assert_eq!(Owners { fakeroot: true, ..both }.foreign_ids(7, 0, 0), 0);
    }

    #[test]
    fn a_chown_to_what_is_shown_changes_nothing() {
        let owners = Owners { uid: Some(7), ..Owners::default() };
        let mut set = SetAttr { uid: Some(7), gid: Some(9), ..SetAttr::default() };
        owners.check_chown(&mut set).unwrap();
        assert_eq!((set.uid, set.gid), (None, Some(9)));
        set.uid = Some(8);
        assert_eq!(owners.check_chown(&mut set), Err(Fault(Errno::PERM)));
        Owners::default().check_chown(&mut set).unwrap();
        assert_eq!((set.uid, set.gid), (Some(8), Some(9)));
    }
}
