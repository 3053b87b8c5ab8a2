//! POSIX access control lists: the form on disk and the form that programs see.
//!
//! ext4 stores version 1, where an entry without an id takes 4 bytes and one with an id 8; the
//! value of `system.posix_acl_access` and `system.posix_acl_default` is version 2, where every
//! entry takes 8.
//!
//! A list from a volume has known tags and permissions. A list from a program is also checked for
//! validity: owner, users, owning group, groups, mask, others, in this order, with a mask if there
//! is a user or group by id.

use crate::le::{u16_at, u32_at};

const DISK_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;
const UNDEFINED_ID: u32 = u32::MAX;

/// The reason why bytes are no ACL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum AclError {
    #[error("an ACL of {len} bytes ends inside an entry")]
    Truncated { len: usize },
    #[error("a_version of the ACL is {found}, must be {expected}")]
    Version { found: u32, expected: u32 },
    #[error("entry {entry} of the ACL has e_tag {tag:#06x}, which does not exist")]
    Tag { entry: usize, tag: u16 },
    #[error("entry {entry} of the ACL has e_perm {perm:#06x}, at most 7")]
    Perm { entry: usize, perm: u16 },
    #[error("entry {entry} of the ACL is out of order or a second one of its kind")]
    Order { entry: usize },
    #[error("entry {entry} of the ACL names the id 4294967295, which stands for no user")]
    Id { entry: usize },
    #[error("the ACL lacks an entry that it must have")]
    Incomplete,
}

/// The user, group or class that an entry applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tag {
    /// The file's owner.
    UserObj,
    /// A user by id.
    User(u32),
    /// The file's group.
    GroupObj,
    /// A group by id.
    Group(u32),
    /// The upper bound for the permissions of named users and of all groups.
    Mask,
    /// All other users.
    Other,
}

impl Tag {
    fn parse(tag: u16, id: u32) -> Option<Self> {
        Some(match tag {
            0x01 => Self::UserObj,
            0x02 => Self::User(id),
            0x04 => Self::GroupObj,
            0x08 => Self::Group(id),
            0x10 => Self::Mask,
            0x20 => Self::Other,
            _ => return None,
        })
    }

    fn number(self) -> (u16, Option<u32>) {
        match self {
            Self::UserObj => (0x01, None),
            Self::User(id) => (0x02, Some(id)),
            Self::GroupObj => (0x04, None),
            Self::Group(id) => (0x08, Some(id)),
            Self::Mask => (0x10, None),
            Self::Other => (0x20, None),
        }
    }
}

/// One entry: the user, group or class it applies to, and the permissions it grants (read 4, write
/// 2, execute 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// The user, group or class that the entry applies to.
    pub tag: Tag,
    /// 0 to 7.
    pub perm: u8,
}

/// Returns the lists, by the names of their attributes, that a new file of `mode` has if it
/// inherits none from its directory: an access list that grants what the mode does, and for a
/// directory an empty default list.
pub fn own(mode: u16, is_dir: bool) -> impl Iterator<Item = (&'static str, Acl)> {
    let default = is_dir.then(|| ("system.posix_acl_default", Acl::default()));
    [("system.posix_acl_access", Acl::from_mode(mode))].into_iter().chain(default)
}

/// An access control list. Empty means none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Acl {
    /// In the order of the list.
    pub entries: Vec<AclEntry>,
}

impl Acl {
    /// Returns the list that is equivalent to `mode`.
    pub fn from_mode(mode: u16) -> Self {
        let entry = |tag, shift: u32| AclEntry { tag, perm: (mode >> shift & 7) as u8 };
        Self { entries: vec![entry(Tag::UserObj, 6), entry(Tag::GroupObj, 3), entry(Tag::Other, 0)] }
    }

    /// Parses the value of an attribute as it is on disk.
    ///
    /// # Errors
    /// Bytes that are no list; its order is not checked.
    pub fn from_disk(bytes: &[u8]) -> Result<Self, AclError> {
        Self::parse(bytes, DISK_VERSION)
    }

    /// Parses the value that a program gives for `system.posix_acl_*`.
    ///
    /// # Errors
    /// Bytes that are no list, or a list that is not valid.
    pub fn from_xattr(bytes: &[u8]) -> Result<Self, AclError> {
        let acl = Self::parse(bytes, XATTR_VERSION)?;
        acl.validate()?;
        Ok(acl)
    }

    fn parse(bytes: &[u8], version: u32) -> Result<Self, AclError> {
        let truncated = AclError::Truncated { len: bytes.len() };
        let mut rest = bytes.get(4..).ok_or(truncated.clone())?;
        let found = u32_at(bytes, 0);
        if found != version {
            return Err(AclError::Version { found, expected: version });
        }
        let mut entries = Vec::with_capacity(rest.len() / 4);
        while !rest.is_empty() {
            let entry = entries.len();
            let (tag, perm) = (u16_at(rest, 0), u16_at(rest, 2));
            let named = matches!(tag, 0x02 | 0x08);
            let len = if named || version == XATTR_VERSION { 8 } else { 4 };
            let id = u32_at(rest, 4);
            rest = rest.get(len..).ok_or(truncated.clone())?;
            let tag = Tag::parse(tag, id).ok_or(AclError::Tag { entry, tag })?;
            if perm > 7 {
                return Err(AclError::Perm { entry, perm });
            }
            entries.push(AclEntry { tag, perm: perm as u8 });
        }
        Ok(Self { entries })
    }

    /// Checks order and completeness; the empty list is valid.
    ///
    /// # Errors
    /// The first rule that the list breaks.
    pub fn validate(&self) -> Result<(), AclError> {
        if self.entries.is_empty() {
            return Ok(());
        }
        // Stages: 0 owner, 1 users and owning group, 2 groups and mask, 3 only others, 4 complete.
        let (mut stage, mut needs_mask) = (0, false);
        for (entry, AclEntry { tag, .. }) in self.entries.iter().enumerate() {
            if let Tag::User(id) | Tag::Group(id) = tag {
                needs_mask = true;
                if *id == UNDEFINED_ID {
                    return Err(AclError::Id { entry });
                }
            }
            stage = match (tag, stage) {
                (Tag::UserObj, 0) | (Tag::User(_), 1) => 1,
                (Tag::GroupObj, 1) | (Tag::Group(_), 2) => 2,
                (Tag::Mask, 2) => 3,
                (Tag::Other, 3) => 4,
                (Tag::Other, 2) if !needs_mask => 4,
                _ => return Err(AclError::Order { entry }),
            };
        }
        if stage == 4 { Ok(()) } else { Err(AclError::Incomplete) }
    }

    /// Returns the value of the attribute on disk.
    pub fn to_disk(&self) -> Vec<u8> {
        let mut bytes = DISK_VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            let (tag, id) = entry.tag.number();
            bytes.extend(tag.to_le_bytes());
            bytes.extend(u16::from(entry.perm).to_le_bytes());
            bytes.extend(id.map(u32::to_le_bytes).iter().flatten());
        }
        bytes
    }

    /// Returns the value of `system.posix_acl_*` that a program sees.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut bytes = XATTR_VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            let (tag, id) = entry.tag.number();
            bytes.extend(tag.to_le_bytes());
            bytes.extend(u16::from(entry.perm).to_le_bytes());
            bytes.extend(id.unwrap_or(UNDEFINED_ID).to_le_bytes());
        }
        bytes
    }

    fn perm(&self, tag: Tag) -> Option<u8> {
        self.entries.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    /// Returns whether the list says more than nine mode bits can.
    pub fn is_extended(&self) -> bool {
        self.entries.iter().any(|e| matches!(e.tag, Tag::User(_) | Tag::Group(_) | Tag::Mask))
    }

    /// Returns the nine mode bits of a file with this access list. The mask, if there is one,
    /// stands for the group.
    pub fn mode_bits(&self) -> u16 {
        let bits = |perm: Option<u8>, shift: u32| u16::from(perm.unwrap_or(0)) << shift;
        let group = self.perm(Tag::Mask).or(self.perm(Tag::GroupObj));
        bits(self.perm(Tag::UserObj), 6) | bits(group, 3) | bits(self.perm(Tag::Other), 0)
    }

    /// Returns the entry that holds the mode's group bits.
    fn group_class(&self) -> Tag {
        if self.perm(Tag::Mask).is_some() { Tag::Mask } else { Tag::GroupObj }
    }

    fn for_each_class(&mut self, mut change: impl FnMut(&mut u8, u32)) {
        let group = self.group_class();
        for entry in &mut self.entries {
            match entry.tag {
                Tag::UserObj => change(&mut entry.perm, 6),
                Tag::Other => change(&mut entry.perm, 0),
                tag if tag == group => change(&mut entry.perm, 3),
                _ => {}
            }
        }
    }

    /// Makes the list agree with a new mode of its file.
    pub fn chmod(&mut self, mode: u16) {
        self.for_each_class(|perm, shift| *perm = (mode >> shift & 7) as u8);
    }

    /// Turns a directory's default list into the access list of a file created with `mode`, and
    /// returns the mode that the file gets: neither grants what the other does not.
    #[must_use]
    pub fn inherit(&mut self, mode: u16) -> u16 {
        let mut result = mode;
        self.for_each_class(|perm, shift| {
            *perm &= (mode >> shift & 7) as u8;
            result &= u16::from(*perm) << shift | !(7 << shift);
        });
        result
    }
}

#[cfg(test)]
mod tests;
