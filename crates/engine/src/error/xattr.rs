//! Damage found in extended attributes.

use lanefs_format::acl::AclError;
use lanefs_format::xattr as codec;

/// Extended attributes that break a rule: where they are, and which rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum XattrError {
    /// In the inode's own room.
    #[error("inode {ino}: extended attributes in the inode: {source}")]
    Inode {
        /// The inode.
        ino: u32,
        /// The rule.
        source: codec::XattrFormatError,
    },
    /// In an attribute block.
    #[error("inode {ino}: extended attribute block {block}: {source}")]
    Block {
        /// The inode.
        ino: u32,
        /// `i_file_acl`.
        block: u64,
        /// The rule.
        source: codec::XattrFormatError,
    },
    /// In the inode that holds a value.
    #[error("inode {ino}: inode {value_ino}, which holds the value of an attribute, {rule}")]
    ValueInode {
        /// The inode.
        ino: u32,
        /// `e_value_inum`.
        value_ino: u32,
        /// The rule.
        rule: &'static str,
    },
    /// In a stored access control list.
    #[error("inode {ino}: {source}")]
    Acl {
        /// The inode.
        ino: u32,
        /// The rule.
        source: AclError,
    },
}
