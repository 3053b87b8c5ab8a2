//! Changes of the tree.
//!
//! One primitive does all changes: [`Tree::put`] takes a path whose leaf has new entries in memory,
//! and writes it. A node with too many entries is split, one without entries is freed, and a new
//! first key is copied to the parent. Each of these changes the parent's entries, and so the parent
//! is treated in the same way.
//!
//! Hazard: blocks for splits are allocated before anything is written ([`Tree::reserve`]), because
//! a change must not stop half way for want of space.

use super::{AHEAD, Owner, node};
use crate::error::{Error, Result};
use crate::store::alloc::Reach;
use crate::store::map::{ChangeBlocks, Progress};
use crate::store::txn::{BlockKind, credits};
use lanefs_format::extent::{
    At, Bounds, Entry, Extent, ExtentError, Index, MAX_BLOCKS, MAX_DEPTH, Node, NodeRef, ROOT_SIZE, find,
};
use std::ops::Range;

/// Returns the credits for one insertion or conversion in a tree of `depth`, without the inode and
/// the bitmaps of the data.
pub(crate) fn insert_credits(depth: u16) -> u32 {
    // Below the root each level is written, and may split: a new node, its bitmap and descriptor.
    // Then the root may grow, or collapse and revoke.
    4 * u32::from(depth) + 6
}

/// Returns the credits with which one step of a removal always makes progress, without the inode.
pub(crate) fn remove_credits(depth: u16) -> u32 {
    // A run of data in one group with its revokes, the leaf, and on each level a node that is
    // written, or freed and revoked; or a leaf that splits.
    credits::FREED_RUN + 4 * u32::from(depth + 1) + insert_credits(depth)
}

/// One node on the way down.
struct Level {
    /// Its block; 0 is the root.
    block: u64,
    node: Node,
    /// The entry that the path follows. Not used in a leaf.
    at: usize,
}

type ExtentPath = Vec<Level>;

/// A tree that is being changed inside one transaction.
pub(crate) struct Tree<'t, B> {
    blocks: &'t mut B,
    owner: Owner,
    /// The kind as which the file's own blocks are freed.
    kind: BlockKind,
    root: &'t mut [u8; ROOT_SIZE],
    /// Blocks of data and nodes that the file has gained, or lost, through this.
    pub(crate) delta: i64,
}

impl<'t, B: ChangeBlocks> Tree<'t, B> {
    pub(crate) fn new(
        blocks: &'t mut B,
        owner: Owner,
        kind: BlockKind,
        root: &'t mut [u8; ROOT_SIZE],
    ) -> Self {
        Self { blocks, owner, kind, root, delta: 0 }
    }

    /// Maps the blocks of `new`, which must be a hole. For want of space it fails with nothing
    /// changed.
    pub(crate) fn insert(&mut self, new: Extent) -> Result<()> {
        let mapped = || ExtentError::Mapped { ino: self.owner.ino, block: new.ee_block, len: new.len };
        if new.end() > u64::from(MAX_BLOCKS) || new.len > new.max_len() {
            return Err(Error::FileTooBig);
        }
        let mut path = self.descend(new.ee_block)?;
        let end = next_key(&path);
        let Some(leaf) = path.last_mut() else { return Ok(()) };
        let entries = &mut leaf.node.entries;
        let n = find(entries, new.ee_block).map_or(0, |n| n + 1);
        let before = n.checked_sub(1).and_then(|n| entries.get(n)).map_or(0, |e| e.extent().end());
        let after = entries.get(n).map(Entry::key).unwrap_or(end);
        if before > u64::from(new.ee_block) || u64::from(after) < new.end() {
            return Err(mapped().into());
        }
        splice(entries, n..n, &[new]);
        let len = entries.len();
        let mut spare = self.reserve(&path, len, new.ee_start)?;
        self.delta += i64::from(new.len);
        self.put(path, n, &mut spare)
    }

    /// Marks `range` as written or unwritten. It must lie inside one extent.
    pub(crate) fn convert(&mut self, range: Range<u32>, unwritten: bool) -> Result<()> {
        let (block, len) = (range.start, range.end.saturating_sub(range.start));
        let not_mapped = ExtentError::NotMapped { ino: self.owner.ino, block, len };
        let mut path = self.descend(block)?;
        let Some(leaf) = path.last_mut() else { return Ok(()) };
        let entries = &mut leaf.node.entries;
        let Some(n) = find(entries, block) else { return Err(not_mapped.into()) };
        let Some(old) = entries.get(n).map(Entry::extent) else { return Err(not_mapped.into()) };
        let Some(part) = old.part(range.clone()).filter(|p| p.len == len) else {
            return Err(not_mapped.into());
        };
        if old.unwritten == unwritten {
            return Ok(());
        }
        let mid = Extent { unwritten, ..part };
        // A written extent may be one block longer than an unwritten one.
        let (mid, last) = match mid.len > mid.max_len() {
            true => (Extent { len: mid.len - 1, ..mid }, mid.part(range.end - 1..range.end)),
            false => (mid, None),
        };
        let pieces = [old.part(0..block), Some(mid), last, old.part(range.end..MAX_BLOCKS)];
        let pieces: Vec<Extent> = pieces.into_iter().flatten().collect();
        splice(entries, n..n + 1, &pieces);
        // Behind the converted blocks: the end of the leaf, if blocks are written in order.
        let pos = if n == 0 { 0 } else { entries.partition_point(|e| e.key() < range.end) };
        let len = entries.len();
        let mut spare = self.reserve(&path, len, old.ee_start)?;
        self.put(path, pos, &mut spare)
    }

    /// Frees the mapped blocks in `range`, from its end on, until all are freed, credits are short,
    /// or a damaged structure stops it.
    pub(crate) fn remove(&mut self, range: Range<u32>) -> Result<Progress> {
        let mut end = range.end;
        while end > range.start {
            let path = match self.descend_to_end(range.start..end) {
                Ok(path) => path,
                Err(e) => return Ok(Progress::Stopped(e)),
            };
            let left = left_end(&path);
            let step = self.remove_from_leaf(path, range.start..end)?;
            if !step.is_done() {
                return Ok(step);
            }
            end = left;
        }
        Ok(Progress::Done)
    }

    /// Moves the extents from `from` on by `by` blocks to the front, over a hole, leaf by leaf
    /// until credits are short or a damaged structure stops it. Extents before `from` have been
    /// moved.
    pub(crate) fn shift_left(&mut self, from: &mut u32, by: u32) -> Result<Progress> {
        while *from < MAX_BLOCKS {
            let mut path = match self.descend(*from) {
                Ok(path) => path,
                Err(e) => return Ok(Progress::Stopped(e)),
            };
            let (cost, next) = (shift_credits(&path), next_key(&path));
            let Some(leaf) = path.last_mut() else { break };
            let entries = &mut leaf.node.entries;
            let n = entries.partition_point(|e| e.key() < *from);
            let moved = entries.iter().skip(n).map(|e| moved(e, e.key().checked_sub(by)));
            let Some(moved) = moved.collect::<Option<Vec<Extent>>>() else {
                return Ok(self.in_the_way(*from, by));
            };
            let before = n.checked_sub(1).and_then(|n| entries.get(n)).map_or(0, |e| e.extent().end());
            if moved.first().is_some_and(|e| before > u64::from(e.ee_block)) {
                return Ok(self.in_the_way(*from, by));
            }
            if !moved.is_empty() {
                if !self.blocks.room(cost)? {
                    return Ok(Progress::More);
                }
                let end = entries.len();
                splice(entries, n..end, &moved);
                self.put(path, n, &mut Vec::new())?;
            }
            *from = next;
        }
        Ok(Progress::Done)
    }

    /// Splits the extent that `at` lies inside of, if any, before a
    /// [`shift_right`](Self::shift_right) by `by` blocks.
    pub(crate) fn part(&mut self, at: u32, by: u32) -> Result<()> {
        let last = self.descend(MAX_BLOCKS - 1)?;
        let last = last.last().and_then(|leaf| leaf.node.entries.last()).map(Entry::extent);
        if last.is_some_and(|e| e.end() > u64::from(at) && e.end() + u64::from(by) > u64::from(MAX_BLOCKS)) {
            return Err(Error::Invalid("blocks would lie behind the last that a file can have"));
        }
        let mut path = self.descend(at)?;
        let Some(leaf) = path.last_mut() else { return Ok(()) };
        let entries = &mut leaf.node.entries;
        let Some(n) = find(entries, at) else { return Ok(()) };
        let Some(old) = entries.get(n).map(Entry::extent) else { return Ok(()) };
        let (Some(left), Some(right)) = (old.part(0..at), old.part(at..MAX_BLOCKS)) else { return Ok(()) };
        entries.splice(n..n + 1, [Entry::from(left), right.into()]);
        let len = entries.len();
        let mut spare = self.reserve(&path, len, old.ee_start)?;
        self.put(path, n, &mut spare)
    }

    /// Moves the extents from `start` to `end` by `by` blocks to the back, leaf by leaf from the
    /// last one on, until credits are short or a damaged structure stops it. Extents behind `end`
    /// have been moved. `end` begins as [`MAX_BLOCKS`].
    pub(crate) fn shift_right(&mut self, start: u32, end: &mut u32, by: u32) -> Result<Progress> {
        while *end > start {
            let mut path = match self.descend(*end - 1) {
                Ok(path) => path,
                Err(e) => return Ok(Progress::Stopped(e)),
            };
            let (cost, left) = (shift_credits(&path), left_end(&path));
            let Some(leaf) = path.last_mut() else { break };
            let entries = &mut leaf.node.entries;
            let first = entries.partition_point(|e| e.key() < start);
            let last = entries.partition_point(|e| e.key() < *end);
            let Some(low) = entries.get(first..last).and_then(<[Entry]>::first).map(Entry::key) else {
                // A leaf may be empty, or begin behind its key.
                *end = left;
                continue;
            };
            if !self.blocks.room(cost)? {
                return Ok(Progress::More);
            }
            for entry in entries.iter_mut().take(last).skip(first) {
                let to = entry.key().checked_add(by);
                let Some(moved) = moved(entry, to) else { return Ok(self.in_the_way(start, by)) };
                *entry = moved.into();
            }
            self.put(path, first, &mut Vec::new())?;
            *end = low;
        }
        *end = start;
        Ok(Progress::Done)
    }

    fn in_the_way(&self, block: u32, len: u32) -> Progress {
        Progress::Stopped(ExtentError::Mapped { ino: self.owner.ino, block, len }.into())
    }

    /// Frees the part of `range` that the leaf of `path` maps, from the end on.
    fn remove_from_leaf(&mut self, mut path: ExtentPath, range: Range<u32>) -> Result<Progress> {
        let cost = remove_credits(path.len().saturating_sub(1) as u16);
        let Some(leaf) = path.last_mut() else { return Ok(Progress::Done) };
        let old = std::mem::take(&mut leaf.node.entries);
        let parts: Vec<Extent> = old.iter().filter_map(|e| e.extent().part(range.clone())).collect();
        if parts.is_empty() {
            return Ok(Progress::Done);
        }
        // The block would be freed twice, if the node becomes empty.
        let maps =
            |part: &Extent, block| (part.ee_start..part.ee_start + u64::from(part.len)).contains(&block);
        let is_mapped = |block: u64| parts.iter().any(|part| maps(part, block));
        if let Some(level) = path.iter().skip(1).find(|level| is_mapped(level.block)) {
            let error = ExtentError::OwnNode { ino: self.owner.ino, block: level.block };
            return Ok(Progress::Stopped(error.into()));
        }
        if !self.blocks.room(cost)? {
            return Ok(Progress::More);
        }
        // A node that becomes empty but cannot be freed keeps its data too.
        let empty = old.iter().all(|e| e.key() >= range.start && e.extent().end() <= u64::from(range.end));
        let _held = match self.hold_empty(&path, empty) {
            Ok(held) => held,
            Err(e) => return Ok(Progress::Stopped(e)),
        };
        // An extent that continues behind the range is split in two, maybe only until the next
        // call.
        let goes_on = old.iter().any(|e| e.key() < range.end && e.extent().end() > u64::from(range.end));
        let mut spare = Vec::new();
        if goes_on {
            let start = self.blocks.mark();
            spare = match self.reserve(&path, old.len() + 1, parts.first().map_or(0, |p| p.ee_start)) {
                Ok(spare) => spare,
                Err(e) if self.blocks.mark() == start => return Ok(Progress::Stopped(e)),
                Err(e) => return Err(e),
            };
        }
        // Even if this stops early, the tree then records what was freed.
        let mut low = range.end;
        let outcome = self.free_parts(parts, cost, &mut low)?;
        let mut pos = 0;
        if let Some(leaf) = path.last_mut() {
            leaf.node.entries = without(&old, low..range.end);
            // The entries behind the hole are where the leaf has grown, if it has.
            pos = leaf.node.entries.partition_point(|e| e.key() < range.end);
        }
        self.put(path, pos, &mut spare)?;
        self.give_back(spare)?;
        Ok(outcome)
    }

    /// Holds the bits of the leaf of `path`, if it becomes `empty`, and of the nodes above it that
    /// then have no entry.
    fn hold_empty(&self, path: &ExtentPath, empty: bool) -> Result<Vec<B::Held>> {
        let only = |level: &&Level| level.node.eh_depth == 0 || level.node.entries.len() == 1;
        let nodes = path.iter().skip(1).rev().take_while(only).filter(|_| empty);
        nodes.map(|level| self.blocks.hold_for_free(level.block)).collect()
    }

    /// Frees `parts` from the end of the last one on, in runs of one group whose revokes cost one
    /// credit, and lowers `low` to the start of the freed blocks. There is room for the first run.
    fn free_parts(&mut self, parts: Vec<Extent>, cost: u32, low: &mut u32) -> Result<Progress> {
        let top = *low;
        for mut part in parts.into_iter().rev() {
            while part.len > 0 {
                if *low < top && !self.blocks.room(cost)? {
                    return Ok(Progress::More);
                }
                let last = part.ee_start + u64::from(part.len) - 1;
                let start = self.blocks.group_start(last).max(part.ee_start);
                // Not longer than the part, so it fits.
                let len = ((last + 1 - start) as u32).min(self.blocks.run_of(self.kind));
                let mark = self.blocks.mark();
                match self.blocks.free(last + 1 - u64::from(len), len, self.kind) {
                    Ok(()) => {}
                    Err(e) if self.blocks.mark() == mark => return Ok(Progress::Stopped(e)),
                    Err(e) => return Err(e),
                }
                self.delta -= i64::from(len);
                part.len -= len;
                *low = part.ee_block + part.len;
            }
        }
        Ok(Progress::Done)
    }

    /// Returns the nodes from the root to the leaf for `lblk`.
    fn descend(&self, lblk: u32) -> Result<ExtentPath> {
        self.descend_among(lblk, |_, _| Vec::new())
    }

    /// Returns the nodes from the root to the leaf for the last block of `range`. The caller goes
    /// on to the front: a node that has to be read is read with those before it.
    fn descend_to_end(&self, range: Range<u32>) -> Result<ExtentPath> {
        let most = AHEAD / self.blocks.block_size().max(1);
        self.descend_among(range.end - 1, |entries, at| {
            let first = find(entries, range.start).unwrap_or(0).max((at + 1).saturating_sub(most));
            entries.get(first..=at).unwrap_or_default().iter().map(|e| e.index().ei_leaf).collect()
        })
    }

    /// Descends as [`descend`](Self::descend) does. A node that is not in memory is read with those
    /// that `among` returns of the entries of its parent and its own place there.
    fn descend_among(&self, lblk: u32, among: impl Fn(&[Entry], usize) -> Vec<u64>) -> Result<ExtentPath> {
        let mut bounds = Bounds::root(self.blocks.limits());
        let root = NodeRef::new(&self.root[..], At { ino: self.owner.ino, block: 0 })?;
        root.check(&bounds)?;
        let mut path = ExtentPath::new();
        let (mut block, mut node) = (0, root.to_node());
        while node.eh_depth > 0 {
            let at = find(&node.entries, lblk).unwrap_or(0);
            let Some(child) = node.entries.get(at).map(|e| e.index().ei_leaf) else { break };
            bounds = bounds.child(node.eh_depth, &node.entries, at);
            let among = || among(&node.entries, at);
            let below =
                node::view_among(self.blocks, self.owner, child, &bounds, among, |node| node.to_node())?;
            path.push(Level { block, node, at });
            (block, node) = (child, below);
        }
        path.push(Level { block, node, at: 0 });
        Ok(path)
    }

    /// Allocates the blocks that `put` will need for `path` with `len` entries in its leaf: all or
    /// none.
    fn reserve(&mut self, path: &ExtentPath, len: usize, goal: u64) -> Result<Vec<u64>> {
        let mut need = 0;
        for (n, level) in path.iter().enumerate().rev() {
            // A node that splits adds an entry to its parent.
            let len = if n + 1 == path.len() { len } else { level.node.entries.len() + 1 };
            if len <= usize::from(level.node.eh_max) {
                break;
            }
            if n == 0 && level.node.eh_depth >= MAX_DEPTH {
                return Err(Error::FileTooBig);
            }
            // Only in a damaged node: a split makes two of it.
            if n > 0 && len > 2 * usize::from(level.node.eh_max) {
                let (at, bound) = (At { ino: self.owner.ino, block: level.block }, 2 * level.node.eh_max);
                return Err(ExtentError::Entries { at, value: len as u16, bound }.into());
            }
            need += 1;
        }
        let goal = path.last().map(|l| l.block).filter(|b| *b != 0).unwrap_or(goal);
        let start = self.blocks.mark();
        let mut spare = Vec::new();
        for _ in 0..need {
            match self.blocks.alloc(goal, Reach::Volume) {
                Ok(block) => spare.push(block),
                Err(e) => {
                    self.give_back(spare)?;
                    self.blocks.undone(start);
                    return Err(e);
                }
            }
        }
        Ok(spare)
    }

    fn give_back(&mut self, spare: Vec<u64>) -> Result<()> {
        spare.into_iter().try_for_each(|block| self.blocks.put_back(block))
    }

    /// Writes the changed leaf of `path` and updates the nodes above it. `pos` is the place of the
    /// change in the leaf: a leaf that grows at one end is split there, so that files written in
    /// order have full leaves. `spare` comes from `reserve`.
    fn put(&mut self, mut path: ExtentPath, mut pos: usize, spare: &mut Vec<u64>) -> Result<()> {
        while let Some(mut level) = path.pop() {
            let Some(parent) = path.last_mut() else {
                self.put_root(level.node, spare)?;
                break;
            };
            let (n, entries) = (parent.at, &mut parent.node.entries);
            let old_key = entries.get(n).map(Entry::key);
            let Some(first) = level.node.entries.first().map(Entry::key) else {
                self.drop_node(level.block)?;
                if n < entries.len() {
                    entries.remove(n);
                }
                pos = n;
                continue;
            };
            let own = Entry::from(Index { ei_block: first, ei_leaf: level.block });
            if level.node.entries.len() <= usize::from(level.node.eh_max) {
                self.store(level.block, &level.node, false)?;
                if old_key == Some(first) {
                    break;
                }
                entries.splice(n..n + 1, [own]);
            } else {
                let right = split(&mut level.node, pos);
                let key = right.entries.first().map_or(first, Entry::key);
                let block = self.take(spare)?;
                self.store(block, &right, true)?;
                self.store(level.block, &level.node, false)?;
                entries.splice(n..n + 1, [own, Index { ei_block: key, ei_leaf: block }.into()]);
            }
            // A leaf that grew at its front makes the parent grow there too.
            pos = if pos == 0 { n } else { n + 1 };
        }
        self.collapse()
    }

    /// Writes the root into the inode. A root with too many entries moves to a block of its own
    /// first.
    fn put_root(&mut self, mut root: Node, spare: &mut Vec<u64>) -> Result<()> {
        if root.entries.is_empty() {
            root.eh_depth = 0;
        }
        if root.entries.len() > usize::from(root.eh_max) {
            let block = self.take(spare)?;
            let mut child = Node::new(root.eh_depth, self.blocks.block_size());
            child.entries = std::mem::take(&mut root.entries);
            self.store(block, &child, true)?;
            let ei_block = child.entries.first().map_or(0, Entry::key);
            root.eh_depth += 1;
            root.entries.push(Index { ei_block, ei_leaf: block }.into());
        }
        Ok(root.encode(&mut self.root[..], At { ino: self.owner.ino, block: 0 })?)
    }

    /// Moves the entries of a single child into the root, while the root has room for them. A child
    /// that is damaged, or free already, stays a child: it is none of the blocks that were changed.
    fn collapse(&mut self) -> Result<()> {
        loop {
            let bounds = Bounds::root(self.blocks.limits());
            let root = NodeRef::new(&self.root[..], At { ino: self.owner.ino, block: 0 })?;
            let (1.., [only]) = (root.eh_depth, root.entries) else { return Ok(()) };
            let block = only.index().ei_leaf;
            let bounds = bounds.child(root.eh_depth, root.entries, 0);
            let eh_max = root.eh_max;
            let fits = |child: &NodeRef<'_>| child.entries.len() <= usize::from(eh_max);
            // Copies no child that stays where it is.
            let child = node::view(self.blocks, self.owner, block, &bounds, |child| {
                fits(child).then(|| child.to_node())
            });
            let Ok(Some(child)) = child else { return Ok(()) };
            let Ok(_held) = self.blocks.hold_for_free(block) else { return Ok(()) };
            self.drop_node(block)?;
            Node { eh_max, ..child }.encode(&mut self.root[..], At { ino: self.owner.ino, block: 0 })?;
        }
    }

    fn store(&mut self, block: u64, node: &Node, fresh: bool) -> Result<()> {
        node::store(self.blocks, self.owner, block, node, fresh)
    }

    fn take(&mut self, spare: &mut Vec<u64>) -> Result<u64> {
        self.delta += 1;
        // `reserve` has counted the same nodes that `put` splits.
        spare.pop().ok_or(Error::NoSpace)
    }

    fn drop_node(&mut self, block: u64) -> Result<()> {
        self.delta -= 1;
        self.blocks.free(block, 1, BlockKind::Metadata)
    }
}

/// Returns the credits to move the entries of a leaf, and one for the inode.
fn shift_credits(path: &ExtentPath) -> u32 {
    insert_credits(path.len().saturating_sub(1) as u16) + 1
}

/// Returns the extent of an entry at another logical block, if it fits there.
fn moved(entry: &Entry, to: Option<u32>) -> Option<Extent> {
    to.map(|ee_block| Extent { ee_block, ..entry.extent() }).filter(|e| e.end() <= u64::from(MAX_BLOCKS))
}

/// Returns the end of the subtree to the left of the leaf of `path`, 0 without one. An entry that
/// is not its node's first starts at or before the block that was sought, so the end lies before
/// that block or at it.
fn left_end(path: &ExtentPath) -> u32 {
    let left = path.iter().rev().skip(1).find(|l| l.at > 0);
    left.and_then(|l| l.node.entries.get(l.at)).map_or(0, Entry::key)
}

/// Returns the end of the logical range of the path's leaf: the next key to the right.
fn next_key(path: &ExtentPath) -> u32 {
    let right = path.iter().rev().skip(1).find_map(|l| l.node.entries.get(l.at + 1));
    right.map_or(MAX_BLOCKS, Entry::key)
}

/// Replaces the entries `at` of a leaf by `new`, and joins them with each other and with their
/// neighbours where possible.
fn splice(entries: &mut Vec<Entry>, at: Range<usize>, new: &[Extent]) {
    // From the neighbour before to that behind, if there are any.
    let (mut n, mut last) = (at.start.saturating_sub(1), at.start + new.len());
    entries.splice(at, new.iter().map(|e| Entry::from(*e)));
    while n < last {
        let pair = entries.get(n).zip(entries.get(n + 1));
        match pair.and_then(|(e, next)| e.extent().join(&next.extent())) {
            Some(joined) => {
                entries.splice(n..n + 2, [Entry::from(joined)]);
                last -= 1;
            }
            None => n += 1,
        }
    }
}

/// Returns the entries of a leaf without the logical blocks of `range`.
fn without(entries: &[Entry], range: Range<u32>) -> Vec<Entry> {
    let sides = |e: &Entry| [e.extent().part(0..range.start), e.extent().part(range.end..MAX_BLOCKS)];
    entries.iter().flat_map(sides).flatten().map(Entry::from).collect()
}

/// Removes the right part of an overfull node: a single entry if the node grows at an end, else a
/// half.
fn split(node: &mut Node, pos: usize) -> Node {
    let (len, max) = (node.entries.len(), usize::from(node.eh_max));
    let at = match pos {
        0 => 1,
        _ if pos + 1 >= len => len.saturating_sub(1),
        _ => len / 2,
    };
    // A conversion may leave two entries too many.
    let entries = node.entries.split_off(at.max(len.saturating_sub(max)).min(max).min(len));
    Node { eh_depth: node.eh_depth, eh_max: node.eh_max, entries }
}
