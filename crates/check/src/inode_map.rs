//! The facts that the check keeps of each inode: its type, its links, and how many entries lead to
//! it.

use lanefs_format::{FileType, Layout};
use std::collections::BTreeMap;

/// The facts that the check keeps of one inode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InodeNote {
    /// The type of an inode in use.
    pub(crate) file_type: Option<FileType>,
    /// In use, whatever its type.
    pub(crate) in_use: bool,
    /// Holds the value of an attribute (`ea_inode`).
    pub(crate) holds_value: bool,
    /// A directory with an index.
    pub(crate) indexed: bool,
    /// `i_links_count`.
    pub(crate) links: u16,
    /// Directory entries that lead to it; of an inode that holds an xattr, attributes.
    pub(crate) entries: u32,
}

// The size that the documents name.
const _: () = assert!(size_of::<InodeNote>() == 12);

/// The notes of all inodes. A group without an inode in use takes no memory.
#[derive(Debug)]
pub(crate) struct InodeMap {
    per_group: u32,
    group_count: u32,
    groups: BTreeMap<u32, Box<[InodeNote]>>,
}

impl InodeMap {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self {
            per_group: layout.inodes_per_group(),
            group_count: layout.group_count(),
            groups: BTreeMap::new(),
        }
    }

    /// Returns the note of an inode; an empty note for a number without an inode.
    pub(crate) fn get(&self, ino: u32) -> InodeNote {
        let Some(at) = ino.checked_sub(1) else { return InodeNote::default() };
        let group = self.groups.get(&(at / self.per_group));
        group.and_then(|notes| notes.get((at % self.per_group) as usize)).copied().unwrap_or_default()
    }

    /// Returns the note of an inode, to be changed.
    pub(crate) fn get_mut(&mut self, ino: u32) -> Option<&mut InodeNote> {
        let at = ino.checked_sub(1)?;
        let (group, len) = (at / self.per_group, self.per_group as usize);
        if group >= self.group_count {
            return None;
        }
        let notes = self.groups.entry(group).or_insert_with(|| vec![InodeNote::default(); len].into());
        notes.get_mut((at % self.per_group) as usize)
    }

    /// Returns the notes of a group, `None` if none of its inodes is known.
    pub(crate) fn group(&self, group: u32) -> Option<&[InodeNote]> {
        self.groups.get(&group).map(|notes| &**notes)
    }
}
