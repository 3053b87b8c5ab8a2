//! Names and links: whether every directory is reached from the root, and every count of links is
//! right.

use crate::Check;
use crate::dir_body::Dir;
use crate::finding::Structure;
use crate::rule::Rule;
use lanefs_format::{EXT4_LINK_MAX, EXT4_ROOT_INO, FileType, RoCompat};

/// The result of a walk from a directory to the root by its parents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Unknown,
    /// On the way that is being followed.
    OnTheWay,
    Root,
    Nowhere,
}

impl Check {
    /// Checks all links, after all entries were counted.
    pub(crate) fn check_links(&mut self) {
        self.check_tree();
        for group in 0..self.layout.group_count() {
            let Some(count) = self.inodes.group(group).map(<[_]>::len) else { continue };
            let first = group * self.layout.inodes_per_group() + 1;
            for ino in first..first.saturating_add(count as u32) {
                self.check_link_count(ino);
            }
        }
    }

    fn find_dir(&self, ino: u32) -> Option<usize> {
        self.dirs.binary_search_by_key(&ino, |dir| dir.ino).ok()
    }

    /// Checks that the parents of each directory lead to the root, and that ".." names the parent.
    fn check_tree(&mut self) {
        let mut reach = vec![Reach::Unknown; self.dirs.len()];
        match self.find_dir(EXT4_ROOT_INO) {
            Some(root) => {
                reach[root] = Reach::Root;
                self.dirs[root].parent = EXT4_ROOT_INO;
            }
            None => self.findings.add(Structure::Inode { ino: EXT4_ROOT_INO }, Rule::NoRoot),
        }
        for at in 0..self.dirs.len() {
            let Dir { ino, parent, dotdot } = self.dirs[at];
            if self.orphans.contains(&ino) && parent == 0 {
                continue;
            }
            self.follow(&mut reach, at);
            let structure = Structure::Directory { ino };
            if reach[at] == Reach::Nowhere {
                self.findings.add(structure, Rule::Unconnected);
            } else if dotdot != parent {
                self.findings.add(structure, Rule::DotDot { found: dotdot, parent });
            }
        }
    }

    /// Follows the parents of a directory to one of which it is known whether the root is reached.
    fn follow(&self, reach: &mut [Reach], from: usize) {
        let mut way = Vec::new();
        let mut at = Some(from);
        let end = loop {
            match at.map(|at| reach[at]) {
                None | Some(Reach::OnTheWay) => break Reach::Nowhere,
                Some(Reach::Unknown) => {}
                Some(known) => break known,
            }
            let Some(here) = at else { break Reach::Nowhere };
            reach[here] = Reach::OnTheWay;
            way.push(here);
            at = self.find_dir(self.dirs[here].parent);
        };
        way.into_iter().for_each(|at| reach[at] = end);
    }

    fn check_link_count(&mut self, ino: u32) {
        let note = self.inodes.get(ino);
        if !note.in_use || ino < self.sb.first_ino() && ino != EXT4_ROOT_INO || self.has_use(ino) {
            return;
        }
        let structure = Structure::Inode { ino };
        let (found, counted) = (note.links, note.entries);
        if self.orphans.contains(&ino) && found == 0 {
            return;
        }
        let is_dir = note.file_type == Some(FileType::Directory);
        if counted == 0 && !is_dir {
            return self.findings.add(structure, Rule::Lost { links: found });
        }
        // A directory that once had too many to count keeps its 1 when it has fewer again.
        let has_had_many = counted >= EXT4_LINK_MAX.into() || note.indexed && counted > 1;
        let many = is_dir && found == 1 && has_had_many && self.sb.has_ro(RoCompat::DIR_NLINK);
        // A value's count of users is kept elsewhere in its inode.
        if u32::from(found) != counted && !many && !note.holds_value {
            self.findings.add(structure, Rule::Links { found, counted });
        }
    }
}
