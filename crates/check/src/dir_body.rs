//! The directories that were found among the inodes, and the facts by which their entries are
//! checked.

use lanefs_format::extent::Extent;
use lanefs_format::{Inode, InodeFlags};

/// A directory in use, and its place in the tree.
#[derive(Debug)]
pub(crate) struct Dir {
    pub(crate) ino: u32,
    /// The directory with the entry that leads here; 0 if there is none.
    pub(crate) parent: u32,
    /// Where ".." leads; 0 if there is none.
    pub(crate) dotdot: u32,
}

/// The facts by which the entries of a directory are checked.
#[derive(Debug)]
pub(crate) struct DirBody {
    pub(crate) ino: u32,
    pub(crate) indexed: bool,
    /// Names are encrypted.
    pub(crate) encrypted: bool,
    /// Hashes are made of case-folded names.
    pub(crate) folded: bool,
    /// What checksums of the blocks are made with.
    pub(crate) seed: Option<u32>,
    pub(crate) content: Content,
}

/// The place of the entries of a directory.
#[derive(Debug)]
pub(crate) enum Content {
    /// In runs of blocks, sorted by logical block; `blocks` by the size.
    Blocks { runs: Vec<Extent>, blocks: u64 },
    /// In the inode: behind the parent's number in `i_block`, and in an attribute.
    Inline { head: [u8; 60], rest: Vec<u8> },
}

impl DirBody {
    pub(crate) fn new(inode: &Inode, seed: Option<u32>, content: Content) -> Self {
        let has = |flag| inode.flags.contains(flag);
        Self {
            ino: inode.ino,
            indexed: has(InodeFlags::INDEX),
            encrypted: has(InodeFlags::ENCRYPT),
            folded: has(InodeFlags::CASEFOLD),
            seed,
            content,
        }
    }

    pub(crate) fn runs(&self) -> &[Extent] {
        match &self.content {
            Content::Blocks { runs, .. } => runs,
            Content::Inline { .. } => &[],
        }
    }
}
