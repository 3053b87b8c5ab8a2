//! Maps owners of a source to owners of a target: kept, mapped, or set.

use lanefs_format::acl::{Acl, Tag};
use std::str::FromStr;

/// The number that chown(2) takes for "leave it as it is". No file can be given to it: a call that
/// asks for that would leave the file to the caller, with its set-user-id bit.
const NO_CHANGE: u32 = u32::MAX;

/// An owner that no file can be given to: user or group 4294967295.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no file can be given to {0} {NO_CHANGE}, which chown takes for no change")]
pub struct OwnerError(&'static str);

/// Checks that files can be given to a user and to a group.
///
/// # Errors
/// [`OwnerError`]: one of them is 4294967295, which chown(2) takes for "no change".
pub fn check_owner(uid: Option<u32>, gid: Option<u32>) -> Result<(), OwnerError> {
    match (uid, gid) {
        (Some(NO_CHANGE), _) => Err(OwnerError("user")),
        (_, Some(NO_CHANGE)) => Err(OwnerError("group")),
        _ => Ok(()),
    }
}

/// Ranges of ids that become others. An id in no range stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct IdMap(Vec<IdRange>);

/// A range of users or groups that become others: `COUNT` numbers from `FROM` on become those from
/// `TO` on.
///
/// ```
/// # use lanefs_archive::IdRange;
/// let range: IdRange = "100000:0:65536".parse()?;
/// assert!("100000:0:0".parse::<IdRange>().is_err());
/// # Ok::<(), lanefs_archive::IdRangeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    from: u32,
    to: u32,
    count: u32,
}

/// A text that is no [`IdRange`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdRangeError {
    /// Not two or three numbers with colons between.
    #[error("'{0}' is not FROM:TO or FROM:TO:COUNT")]
    Form(String),
    /// No number at all, or more than there are.
    #[error("'{0}' is a range that is empty or passes 4294967295")]
    Bounds(String),
    /// It ends in a number that no file can be given to.
    #[error(transparent)]
    Owner(#[from] OwnerError),
}

/// Parses `FROM:TO` (one number) or `FROM:TO:COUNT`.
impl FromStr for IdRange {
    type Err = IdRangeError;

    fn from_str(text: &str) -> Result<Self, IdRangeError> {
        let bad = || IdRangeError::Form(text.to_owned());
        let parts: Vec<u32> =
            text.split(':').map(|part| part.parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
        let (from, to, count) = match parts[..] {
            [from, to] => (from, to, 1),
            [from, to, count] => (from, to, count),
            _ => return Err(bad()),
        };
        if count == 0 || from.checked_add(count - 1).is_none() || to.checked_add(count - 1).is_none() {
            return Err(IdRangeError::Bounds(text.to_owned()));
        }
        check_owner(Some(to + (count - 1)), None)?;
        Ok(Self { from, to, count })
    }
}

impl IdMap {
    fn map(&self, id: u32) -> u32 {
        let range = self.0.iter().find(|r| id >= r.from && id - r.from < r.count);
        range.map_or(id, |r| r.to + (id - r.from))
    }
}

/// How an import or an export changes owners. By default it keeps them.
///
/// ```
/// # use lanefs_archive::Ownership;
/// // All files belong to root: the owners in the source do not count.
/// let to_root = Ownership::new().user(0).group(0);
/// // A rootless container's numbers become those inside of it.
/// let range = "100000:0:65536".parse()?;
/// let mapped = Ownership::new().map_users(range).map_groups(range);
/// # Ok::<(), lanefs_archive::IdRangeError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ownership {
    uid: Option<u32>,
    gid: Option<u32>,
    uids: IdMap,
    gids: IdMap,
}

impl Ownership {
    /// Keeps users and groups.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives everything to this user.
    #[must_use]
    pub fn user(mut self, uid: u32) -> Self {
        self.uid = Some(uid);
        self
    }

    /// Gives everything to this group.
    #[must_use]
    pub fn group(mut self, gid: u32) -> Self {
        self.gid = Some(gid);
        self
    }

    /// Turns a range of users into another, those that ACLs name too. Of several ranges with a
    /// number the first counts; [`user`](Self::user) goes before all.
    #[must_use]
    pub fn map_users(mut self, range: IdRange) -> Self {
        self.uids.0.push(range);
        self
    }

    /// Turns a range of groups into another, those that ACLs name too. Of several ranges with a
    /// number the first counts; [`group`](Self::group) goes before all.
    #[must_use]
    pub fn map_groups(mut self, range: IdRange) -> Self {
        self.gids.0.push(range);
        self
    }

    /// Returns user and group after the change.
    pub(crate) fn apply(&self, uid: u32, gid: u32) -> Result<(u32, u32), OwnerError> {
        let uid = self.uid.unwrap_or_else(|| self.uids.map(uid));
        let gid = self.gid.unwrap_or_else(|| self.gids.map(gid));
        check_owner(Some(uid), Some(gid))?;
        Ok((uid, gid))
    }

    /// Maps the users and groups that ACLs among `xattrs` name. A value that is no ACL stays.
    pub(crate) fn apply_to_acls(&self, xattrs: &mut [(Vec<u8>, Vec<u8>)]) {
        if self.uids.0.is_empty() && self.gids.0.is_empty() {
            return;
        }
        for (_, value) in xattrs.iter_mut().filter(|(name, _)| name.starts_with(b"system.posix_acl_")) {
            let Ok(mut acl) = Acl::from_xattr(value) else { continue };
            for entry in &mut acl.entries {
                match &mut entry.tag {
                    Tag::User(id) => *id = self.uids.map(*id),
                    Tag::Group(id) => *id = self.gids.map(*id),
                    _ => {}
                }
            }
            *value = acl.to_xattr();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let map = IdMap(vec!["1000:0".parse().unwrap(), "100000:1:65536".parse().unwrap()]);
        assert_eq!(
            [1000, 1001, 100_000, 165_535, 165_536].map(|id| map.map(id)),
            [0, 1001, 1, 65_536, 165_536]
        );
        for bad in ["", "1", "1:2:0", "1:2:3:4", "4294967295:0:2", "0:4294967295:2", "a:b", "0:4294967295"] {
            assert!(bad.parse::<IdRange>().is_err(), "{bad}");
        }
        assert!("4294967295:0:1".parse::<IdRange>().is_ok());
    }

    #[test]
    fn acls_follow() {
        let ownership = Ownership::new().map_users("5:6".parse().unwrap());
        let acl = crate::acl_text::parse(b"u::rw-,u:5:r--,g::r--,m::r--,o::---").unwrap();
        let mut xattrs = vec![(b"system.posix_acl_access".to_vec(), acl.to_xattr())];
        ownership.apply_to_acls(&mut xattrs);
        assert_eq!(Acl::from_xattr(&xattrs[0].1).unwrap().entries[1].tag, Tag::User(6));
        assert_eq!(ownership.apply(5, 5), Ok((6, 5)));
        assert!(ownership.apply(u32::MAX, 5).is_err() && ownership.apply(5, u32::MAX).is_err());
    }
}
