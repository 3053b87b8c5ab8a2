//! Owners on the way between two worlds: kept, mapped, or set.

use crate::owner;
use lanefs_format::acl::{Acl, Tag};
use std::str::FromStr;

/// Ranges of ids that become others (`--uid-map FROM:TO:COUNT`). An id in no range stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct IdMap(pub(crate) Vec<IdRange>);

/// `count` ids from `from` on become those from `to` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdRange {
    from: u32,
    to: u32,
    count: u32,
}

impl FromStr for IdRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not FROM:TO or FROM:TO:COUNT");
        let parts: Vec<u32> =
            text.split(':').map(|part| part.parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
        let (from, to, count) = match parts[..] {
            [from, to] => (from, to, 1),
            [from, to, count] => (from, to, count),
            _ => return Err(bad()),
        };
        if count == 0 || from.checked_add(count - 1).is_none() || to.checked_add(count - 1).is_none() {
            return Err(format!("'{text}' is a range that is empty or passes 4294967295"));
        }
        if to + (count - 1) == owner::NO_CHANGE {
            owner::check(Some(owner::NO_CHANGE), None)?;
        }
        Ok(Self { from, to, count })
    }
}

impl IdMap {
    fn map(&self, id: u32) -> u32 {
        let range = self.0.iter().find(|r| id >= r.from && id - r.from < r.count);
        range.map_or(id, |r| r.to + (id - r.from))
    }
}

/// How an import or export changes owners.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Ownership {
    /// Everything belongs to this user (`--owner`).
    pub(crate) uid: Option<u32>,
    /// Everything belongs to this group (`--owner`).
    pub(crate) gid: Option<u32>,
    /// How users become others, those of ACLs too.
    pub(crate) uids: IdMap,
    /// How groups become others, those of ACLs too.
    pub(crate) gids: IdMap,
}

impl Ownership {
    /// Returns user and group after the change, or why no file can have them.
    pub(crate) fn apply(&self, uid: u32, gid: u32) -> Result<(u32, u32), String> {
        let uid = self.uid.unwrap_or_else(|| self.uids.map(uid));
        let gid = self.gid.unwrap_or_else(|| self.gids.map(gid));
        owner::check(Some(uid), Some(gid))
            .map_err(|why| format!("{why}; --uid-map, --gid-map or --owner says who gets it"))?;
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
        let ownership = Ownership { uids: IdMap(vec!["5:6".parse().unwrap()]), ..Ownership::default() };
        let acl = crate::archive::acl_text::parse(b"u::rw-,u:5:r--,g::r--,m::r--,o::---").unwrap();
        let mut xattrs = vec![(b"system.posix_acl_access".to_vec(), acl.to_xattr())];
        ownership.apply_to_acls(&mut xattrs);
        assert_eq!(Acl::from_xattr(&xattrs[0].1).unwrap().entries[1].tag, Tag::User(6));
        assert_eq!(ownership.apply(5, 5), Ok((6, 5)));
        assert!(ownership.apply(u32::MAX, 5).is_err() && ownership.apply(5, u32::MAX).is_err());
    }
}
