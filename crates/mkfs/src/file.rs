//! Blocks for a file of known length: extents, or the old map of indirect blocks.

use crate::MkfsError;
use crate::plan::Plan;
use lanefs_format::extent::{At, Entry, Extent, Index, MAX_LEN, Node, ROOT_SIZE, max_entries, set_checksum};
use lanefs_format::{Incompat, Inode, InodeFlags};
use std::ops::Range;

const NO_ROOM: MkfsError = MkfsError::NoSpace("files");
/// Direct blocks in `i_block`.
const NDIR: usize = 12;

impl Plan {
    /// Gives `inode` its `count` first blocks, from `goal` on, and sets size and block count.
    /// The result is where they lie, in order.
    pub(crate) fn map_file(
        &mut self,
        inode: &mut Inode,
        count: u32,
        goal: u64,
    ) -> Result<Vec<Range<u64>>, MkfsError> {
        let (runs, tree) = if self.superblock.has_in(Incompat::EXTENTS) {
            inode.flags |= InodeFlags::EXTENTS;
            self.map_extents(inode, count, goal)?
        } else {
            self.map_indirect(inode, count)?
        };
        let block_size = u64::from(self.layout.block_size());
        inode.size = u64::from(count) * block_size;
        inode.blocks = (u64::from(count) + tree) * (block_size / 512);
        Ok(runs)
    }

    /// Takes free runs as they come; the first block of the tree is taken when a fifth extent
    /// no longer fits in the inode.
    fn map_extents(
        &mut self,
        inode: &mut Inode,
        count: u32,
        goal: u64,
    ) -> Result<(Vec<Range<u64>>, u64), MkfsError> {
        let root_room = usize::from(max_entries(ROOT_SIZE));
        let mut extents: Vec<Extent> = Vec::new();
        let mut tree = Vec::new();
        let (mut done, mut at) = (0, goal);
        while done < count {
            let run = self.space.next_run_wrapped(at).ok_or(NO_ROOM)?;
            let len = (run.end - run.start).min(u64::from(MAX_LEN.min(count - done))) as u32;
            self.take(run.start..run.start + u64::from(len))?;
            let next = Extent { ee_block: done, len, unwritten: false, ee_start: run.start };
            match extents.last().and_then(|last| last.join(&next)) {
                Some(joined) => {
                    extents.pop();
                    extents.push(joined);
                }
                None => extents.push(next),
            }
            if extents.len() > root_room && tree.is_empty() {
                let first = extents.first().map_or(goal, |e| e.ee_start);
                tree.push(self.take_block(first.saturating_sub(1), "an extent tree")?);
            }
            done += len;
            at = run.start + u64::from(len);
        }
        let runs = extents.iter().map(|e| e.ee_start..e.ee_start + u64::from(e.len)).collect();
        let mut entries: Vec<Entry> = extents.into_iter().map(Entry::from).collect();
        let (mut depth, mut taken) = (0, tree.len() as u64);
        while entries.len() > root_room {
            entries = self.tree_level(inode, depth, &entries, &mut tree, &mut taken)?;
            depth += 1;
        }
        let root = Node { eh_depth: depth, eh_max: root_room as u16, entries };
        root.encode(&mut inode.i_block, At { ino: inode.ino, block: 0 })?;
        Ok((runs, taken))
    }

    /// Stores one level of the tree in blocks, and gives the entries of the level above. Uses up
    /// the blocks in `spare` first.
    fn tree_level(
        &mut self,
        inode: &Inode,
        depth: u16,
        entries: &[Entry],
        spare: &mut Vec<u64>,
        taken: &mut u64,
    ) -> Result<Vec<Entry>, MkfsError> {
        let room = max_entries(self.layout.block_size() as usize);
        let mut above = Vec::new();
        for part in entries.chunks(room.into()) {
            let block = match spare.pop() {
                Some(block) => block,
                None => {
                    *taken += 1;
                    self.take_block(self.goal(inode.ino)?, "an extent tree")?
                }
            };
            let at = At { ino: inode.ino, block };
            let mut bytes = self.zero_block();
            Node { eh_depth: depth, eh_max: room, entries: part.to_vec() }.encode(&mut bytes, at)?;
            if let Some(seed) = inode.seed(&self.csum) {
                set_checksum(&mut bytes, seed, at)?;
            }
            self.content.insert(block, bytes);
            let ei_block = part.first().map_or(0, Entry::key);
            above.push(Index { ei_block, ei_leaf: block }.into());
        }
        Ok(above)
    }

    /// Takes blocks one behind the other, each indirect block just before the first that it names.
    fn map_indirect(&mut self, inode: &mut Inode, count: u32) -> Result<(Vec<Range<u64>>, u64), MkfsError> {
        let mut map = IndirectMap {
            at: self.goal(inode.ino)?,
            left: count,
            tree: 0,
            runs: Vec::new(),
            per_block: self.layout.block_size() as usize / 4,
            plan: self,
        };
        let mut words = [0u32; 15];
        for word in words.iter_mut().take(NDIR) {
            *word = map.data()?;
        }
        for (level, word) in (1..).zip(words.iter_mut().skip(NDIR)) {
            *word = map.branch(level)?;
        }
        if map.left > 0 {
            return Err(NO_ROOM);
        }
        let (runs, tree) = (map.runs, map.tree);
        for (bytes, word) in inode.i_block.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        Ok((runs, tree))
    }
}

struct IndirectMap<'a> {
    plan: &'a mut Plan,
    at: u64,
    left: u32,
    tree: u64,
    runs: Vec<Range<u64>>,
    per_block: usize,
}

impl IndirectMap<'_> {
    fn take(&mut self) -> Result<u32, MkfsError> {
        let block = self.plan.take_block(self.at, "files")?;
        self.at = block + 1;
        u32::try_from(block).map_err(|_| NO_ROOM)
    }

    /// Takes the next block of data, 0 behind the last.
    fn data(&mut self) -> Result<u32, MkfsError> {
        if self.left == 0 {
            return Ok(0);
        }
        self.left -= 1;
        let block = self.take()?;
        match self.runs.last_mut() {
            Some(run) if run.end == u64::from(block) => run.end += 1,
            _ => self.runs.push(block.into()..u64::from(block) + 1),
        }
        Ok(block)
    }

    /// Takes an indirect block with all below it, 0 behind the last block of data.
    fn branch(&mut self, level: u32) -> Result<u32, MkfsError> {
        if self.left == 0 {
            return Ok(0);
        }
        let block = self.take()?;
        self.tree += 1;
        let mut bytes = Vec::with_capacity(self.per_block * 4);
        for _ in 0..self.per_block {
            let child = if level == 1 { self.data()? } else { self.branch(level - 1)? };
            bytes.extend(child.to_le_bytes());
        }
        self.plan.content.insert(block.into(), bytes);
        Ok(block)
    }
}
