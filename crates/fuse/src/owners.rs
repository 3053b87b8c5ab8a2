//! Whose the files of a mount are to its users: the options `uid`, `gid` and `fakeroot`.
//!
//! The kernel checks permissions by the owners that it is told. With `fakeroot` it checks none, and
//! each caller counts as root: only the user who mounted has such a mount.

use crate::fault::{Answer, Fault};
use lanefs::{Metadata, NewAttr, SetAttr};
use rustix::io::Errno;

/// What the owners on disk become.
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
    /// directory.
    pub(crate) fn of_new(self, attr: NewAttr, dir: &Metadata) -> NewAttr {
        NewAttr {
            uid: self.uid.map_or(attr.uid, |_| dir.uid()),
            gid: self.gid.map_or(attr.gid, |_| dir.gid()),
            ..attr
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
