//! One name of a tree.

use lanefs_format::Timestamp;

/// Offsets and lengths.
pub(crate) type Ranges = Vec<(u64, u64)>;

/// Whole names and values of extended attributes.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file of `size` bytes; `data` are the ranges that are no holes, in order and apart.
    File {
        size: u64,
        data: Ranges,
    },
    Dir,
    /// Another name of an earlier member; its path.
    HardLink(Vec<u8>),
    /// Its target.
    Symlink(Vec<u8>),
    /// Major and minor number.
    CharDevice(u32, u32),
    /// Major and minor number.
    BlockDevice(u32, u32),
    Fifo,
    Socket,
}

/// One name of a tree with its attributes. The attributes of a hard link are not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// From the root of the tree, without `/` at either end. Empty: the root itself.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    /// The low 12 bits of the mode.
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Timestamp,
    /// Whole names and values, sorted by name. ACLs as `system.posix_acl_*` in the form of Linux.
    pub(crate) xattrs: Xattrs,
}

impl Member {
    /// Returns about how many bytes of memory it takes: what is allocated, whatever is in it.
    pub(crate) fn memory(&self) -> usize {
        let kind = match &self.kind {
            Kind::File { data, .. } => data.capacity() * size_of::<(u64, u64)>(),
            Kind::HardLink(target) | Kind::Symlink(target) => target.capacity(),
            _ => 0,
        };
        let attributes = self.xattrs.iter().map(|(name, value)| name.capacity() + value.capacity());
        let list = self.xattrs.capacity() * size_of::<(Vec<u8>, Vec<u8>)>();
        size_of::<Self>() + self.path.capacity() + kind + list + attributes.sum::<usize>()
    }
}
