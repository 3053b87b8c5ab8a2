//! Inodes with numbers that a smaller volume has not get others.
//!
//! Directory entries have the number of an inode, `.` and the `..` of its subdirectories too. So do
//! the checksums of the inode, of its extent blocks and of the blocks of its directory. All of
//! these change in one transaction, together with the two bitmaps: a crash leaves the inode with
//! its old number or its new one. A transaction takes as many inodes as it has room for, and
//! rewrites each block once.

use super::Resizing;
use super::maps::{MapWalk, WholeMap};
use super::step::check_credits;
use super::usage::each_inode;
use crate::error::{DirError, Error, ResizeError, Result};
use crate::store::alloc::Slots;
use lanefs_format::dirent::{self, DirLayout};
use lanefs_format::extent::{At, set_checksum};
use lanefs_format::htree::{self, DxKind};
use lanefs_format::{GroupFlags, Incompat, Inode, InodeFlags, InodeSlot, InodeUse, Layout, RoCompat, bitmap};
use lanefs_journal::Journal;
use std::collections::{BTreeMap, BTreeSet};

/// New numbers of inodes, by the old ones.
pub(super) type Numbers = BTreeMap<u32, u32>;

/// A block that contains numbers of inodes or depends on one, and the file that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct NumberedBlock {
    block: u64,
    kind: NumberedKind,
    ino: u32,
    generation: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NumberedKind {
    /// A node of an extent tree.
    Extents,
    /// A directory block that holds entries.
    Entries,
    DxRoot,
    DxNode,
}

/// A planned change of numbers.
#[derive(Debug, Default)]
pub(super) struct Renumber {
    pub(super) numbers: Numbers,
    /// The blocks that change with each inode, by its old number.
    places: BTreeMap<u32, BTreeSet<NumberedBlock>>,
}

impl Renumber {
    /// Plans to empty the inode tables of all groups from `kept` on. Reads all directories if there
    /// is an inode in use.
    ///
    /// # Errors
    /// [`ResizeError::TooFewInodes`] with `blocks` as the size that is wanted; a damaged volume;
    /// the device's.
    pub(super) fn plan(volume: &Resizing, blocks: u64, kept: u32) -> Result<Self> {
        let mut plan = Self { numbers: numbers(volume, blocks, kept)?, places: BTreeMap::new() };
        if plan.numbers.is_empty() {
            return Ok(plan);
        }
        let (sb, device) = (&volume.superblock, &volume.device);
        let (ctx, sums) = (sb.inode_context(), sb.has_ro(RoCompat::METADATA_CSUM));
        each_inode(volume, |mut inode| {
            let moves = plan.numbers.contains_key(&inode.ino);
            if !(inode.is_dir() || moves && sums) {
                return Ok(());
            }
            let (mut whole, ino, blocks) = (WholeMap::default(), inode.ino, sb.blocks_count());
            let mut left = blocks;
            MapWalk { device, ctx: &ctx, ino, blocks, left: &mut left, visitor: &mut whole }
                .file(&mut inode)?;
            let generation = inode.generation;
            if moves && sums && inode.flags.contains(InodeFlags::EXTENTS) {
                let node = |&block| NumberedBlock { block, kind: NumberedKind::Extents, ino, generation };
                plan.places.entry(ino).or_default().extend(whole.nodes.iter().map(node));
            }
            if inode.is_dir() { plan.directory(volume, &inode, &whole) } else { Ok(()) }
        })?;
        Ok(plan)
    }

    /// Notes the blocks of a directory that have numbers which change.
    fn directory(&mut self, volume: &Resizing, dir: &Inode, whole: &WholeMap) -> Result<()> {
        let (layout, seed) = (dir_layout(volume), dir.seed(&volume.superblock.checksummer()));
        let all = layout.checksums && self.numbers.contains_key(&dir.ino);
        let blocks = whole.runs.iter().flat_map(|&(start, len)| start..start + u64::from(len));
        for (n, block) in blocks.enumerate() {
            let bytes = volume.device.read(block)?;
            let kind = kind_of(dir, n, &bytes, &layout);
            let place = NumberedBlock { block, kind, ino: dir.ino, generation: dir.generation };
            verify(&place, n, &bytes, &layout, seed)?;
            each_name(&bytes, kind, &layout, |_, ino| {
                if self.numbers.contains_key(&ino) {
                    self.places.entry(ino).or_default().insert(place);
                }
            });
            if all {
                self.places.entry(dir.ino).or_default().insert(place);
            }
        }
        Ok(())
    }

    /// Checks that each inode's change fits into a transaction of `max` blocks.
    ///
    /// # Errors
    /// [`ResizeError::LogTooSmall`].
    pub(super) fn check_credits(&self, max: u32) -> Result<()> {
        let most = self.places.values().map(BTreeSet::len).max();
        check_credits(most.map_or(0, |most| most as u32 + OF_AN_INODE), max)
    }

    /// Gives all inodes their new numbers.
    ///
    /// # Errors
    /// The errors of the journal and the device. Each inode has its old number or its new one.
    pub(super) fn run(&self, volume: &mut Resizing, journal: &Journal) -> Result<()> {
        let max = journal.max_credits();
        let (mut batch, mut places) = (Numbers::new(), BTreeSet::new());
        let mut done = Numbers::new();
        for (&old, &new) in &self.numbers {
            let own = self.places.get(&old);
            let more = own.map_or(0, |own| own.difference(&places).count());
            if places.len() + more + (batch.len() + 1) * OF_AN_INODE as usize > max as usize {
                done.append(&mut batch.clone());
                volume.renumber(journal, &std::mem::take(&mut batch), &std::mem::take(&mut places), &done)?;
            }
            batch.insert(old, new);
            places.extend(own.into_iter().flatten());
        }
        done.append(&mut batch.clone());
        volume.renumber(journal, &batch, &places, &done)
    }
}

/// Blocks that change with an inode besides those with its number: two slots, two bitmaps and two
/// blocks of descriptors.
const OF_AN_INODE: u32 = 6;

/// Returns new numbers for the inodes of all groups from `kept` on: the lowest free ones.
///
/// # Errors
/// [`ResizeError::TooFewInodes`]; [`Corrupt::InodeInUse`](crate::error::Corrupt::InodeInUse), where
/// a bitmap has an inode as free that would be overwritten or cut off; the device's.
fn numbers(volume: &Resizing, blocks: u64, kept: u32) -> Result<Numbers> {
    let layout = volume.superblock.layout();
    let per_group = layout.inodes_per_group();
    let reserved = volume.superblock.first_ino() - 1;
    let mut old = Vec::new();
    for group in kept..layout.group_count() {
        let map = volume.inode_bitmap_of(group)?.unwrap_or_default();
        let (used, free): (Vec<u32>, Vec<u32>) =
            (0..per_group).partition(|&n| bitmap::test(&map, n as usize));
        old.extend(used.into_iter().map(|n| group * per_group + n + 1));
        volume.check_free(group, &free)?;
    }
    let mut numbers = Numbers::new();
    let mut left = old.into_iter().peekable();
    for group in 0..kept {
        if left.peek().is_none() {
            break;
        }
        let map = volume.inode_bitmap_of(group)?.unwrap_or_else(|| vec![0; layout.block_size() as usize]);
        let mut taken = Vec::new();
        for n in (0..per_group).filter(|&n| !bitmap::test(&map, n as usize)) {
            let ino = group * per_group + n + 1;
            if ino > reserved {
                let Some(old) = left.next() else { break };
                numbers.insert(old, ino);
                taken.push(n);
            }
        }
        volume.check_free(group, &taken)?;
    }
    match left.count() {
        0 => Ok(numbers),
        more => Err(ResizeError::TooFewInodes { blocks, max: kept * per_group, more: more as u32 }.into()),
    }
}

fn dir_layout(volume: &Resizing) -> DirLayout {
    let sb = &volume.superblock;
    DirLayout {
        block_size: sb.block_size() as usize,
        inodes_count: sb.inodes_count(),
        checksums: sb.has_ro(RoCompat::METADATA_CSUM),
        file_types: sb.has_in(Incompat::FILETYPE),
    }
}

/// Returns what the `n`th block of a directory holds.
fn kind_of(dir: &Inode, n: usize, bytes: &[u8], layout: &DirLayout) -> NumberedKind {
    let head = bytes.first_chunk::<6>().copied().unwrap_or_default();
    let [i0, i1, i2, i3, l0, l1] = head;
    let spans = layout.decode_rec_len(u16::from_le_bytes([l0, l1])) == layout.block_size;
    match (dir.flags.contains(InodeFlags::INDEX), n) {
        (true, 0) => NumberedKind::DxRoot,
        (true, _) if [i0, i1, i2, i3] == [0; 4] && spans && layout.checksums => NumberedKind::DxNode,
        _ => NumberedKind::Entries,
    }
}

/// Checks the `n`th block of a directory.
fn verify(
    place: &NumberedBlock,
    n: usize,
    bytes: &[u8],
    layout: &DirLayout,
    seed: Option<u32>,
) -> Result<()> {
    let NumberedBlock { block, kind, ino, .. } = *place;
    let lblk = n as u32;
    let index = |rule| Error::from(DirError::Index { ino, lblk, block, rule });
    match kind {
        NumberedKind::DxRoot => htree::verify_root(bytes, layout, 2, seed).map(drop).map_err(index),
        NumberedKind::DxNode => htree::verify_node(bytes, layout, seed).map_err(index),
        _ => dirent::verify_block(bytes, layout, seed)
            .map_err(|rule| DirError::Leaf { ino, lblk, block, rule }.into()),
    }
}

/// Calls `f` with place and inode of each name in a block that was verified.
fn each_name(bytes: &[u8], kind: NumberedKind, layout: &DirLayout, mut f: impl FnMut(usize, u32)) {
    match kind {
        NumberedKind::Entries => {
            for entry in dirent::entries(bytes, layout).flatten().filter(|entry| entry.inode != 0) {
                f(entry.offset, entry.inode);
            }
        }
        // A tree's root has "." and "..", and index entries behind them.
        NumberedKind::DxRoot => {
            if let Some(info) = htree::root_info(bytes) {
                f(0, info.own);
                f(htree::DOTDOT, info.parent);
            }
        }
        NumberedKind::DxNode | NumberedKind::Extents => {}
    }
}

impl Resizing {
    /// Returns the slots of a group.
    pub(super) fn slots<'a>(&self, layout: &'a Layout, group: u32) -> Slots<'a> {
        let desc = self.groups.get(group as usize).copied().unwrap_or_default();
        Slots { layout, desc, checksums: self.has_group_checksums() }
    }

    /// Checks that the slots at `indices` of a group, which are free in its bitmap, are free in its
    /// table too.
    ///
    /// # Errors
    /// [`Corrupt::InodeInUse`](crate::error::Corrupt::InodeInUse); the device's.
    fn check_free(&self, group: u32, indices: &[u32]) -> Result<()> {
        let layout = self.superblock.layout();
        let slots = self.slots(&layout, group);
        let mut held: (u64, Vec<u8>) = (0, Vec::new());
        for &index in indices {
            let ino = layout.ino(group, index)?;
            let (block, at) = self.slot_of(ino)?;
            slots.check_free(ino, || {
                if held.0 != block {
                    held = (block, self.device.read(block)?);
                }
                Ok(InodeUse::of(held.1.get(at).unwrap_or_default())?)
            })?;
        }
        Ok(())
    }

    /// Commits the new numbers of some inodes. `done` has these and those committed before.
    fn renumber(
        &mut self,
        journal: &Journal,
        batch: &Numbers,
        places: &BTreeSet<NumberedBlock>,
        done: &Numbers,
    ) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.unfinished = true;
        let (mut logged, mut groups) = (BTreeMap::new(), BTreeSet::new());
        let layout = dir_layout(self);
        for place in places {
            let mut bytes = self.device.read(place.block)?;
            let mut changes = Vec::new();
            each_name(&bytes, place.kind, &layout, |at, ino| {
                changes.extend(batch.get(&ino).map(|new| (at, *new)));
            });
            for (at, new) in changes {
                if let Some(word) = bytes.get_mut(at..at + 4) {
                    word.copy_from_slice(&new.to_le_bytes());
                }
            }
            place.seal(self, &mut bytes, done, &layout)?;
            logged.insert(place.block, bytes);
        }
        for (&old, &new) in batch {
            self.move_inode(&mut logged, old, new)?;
            let per_group = self.superblock.layout().inodes_per_group();
            groups.extend([old, new].map(|ino| (ino - 1) / per_group));
        }
        self.describe(&mut logged, &groups)?;
        self.commit(journal, &logged)?;
        journal.checkpoint()?;
        self.unfinished = false;
        Ok(())
    }

    /// Moves an inode from its slot to another, with all bytes that have no field, and marks both
    /// in the bitmaps.
    fn move_inode(&mut self, logged: &mut BTreeMap<u64, Vec<u8>>, old: u32, new: u32) -> Result<()> {
        let ctx = self.superblock.inode_context();
        let (from, at) = self.slot_of(old)?;
        let mut bytes = logged.remove(&from).map_or_else(|| self.device.read(from), Ok)?;
        let slot = bytes.get_mut(at).unwrap_or_default();
        let mut inode = Inode::parse(slot, old, &ctx)?;
        let mut content = slot.to_vec();
        slot.fill(0);
        logged.insert(from, bytes);

        inode.ino = new;
        inode.encode(&mut content, &ctx)?;
        let (to, at) = self.slot_of(new)?;
        let layout = self.superblock.layout();
        let InodeSlot { group, index, .. } = layout.inode_slot(new)?;
        let mut bytes = match logged.remove(&to) {
            Some(bytes) => bytes,
            None if self.slots(&layout, group).is_fresh(index) => vec![0; layout.block_size() as usize],
            None => self.device.read(to)?,
        };
        bytes.get_mut(at).unwrap_or_default().copy_from_slice(&content);
        logged.insert(to, bytes);
        self.mark_inode(logged, old, false, inode.is_dir())?;
        self.mark_inode(logged, new, true, inode.is_dir())
    }

    /// Marks an inode as used or free, in the bitmap and the descriptor of its group.
    fn mark_inode(
        &mut self,
        logged: &mut BTreeMap<u64, Vec<u8>>,
        ino: u32,
        used: bool,
        is_dir: bool,
    ) -> Result<()> {
        let (layout, csum) = (self.superblock.layout(), self.superblock.checksummer());
        let slot = layout.inode_slot(ino)?;
        let per_group = layout.inodes_per_group();
        let was_unwritten = self.is_unwritten(slot.group, GroupFlags::INODE_UNINIT);
        let held = self.groups.get(slot.group as usize).and_then(|desc| logged.remove(&desc.inode_bitmap));
        let mut map = match held.map_or_else(|| self.inode_bitmap_of(slot.group), |map| Ok(Some(map)))? {
            Some(map) => map,
            None => {
                let mut map = vec![0; layout.block_size() as usize];
                bitmap::set(&mut map, per_group as usize..layout.block_size() as usize * 8)?;
                map
            }
        };
        let Some(desc) = self.groups.get_mut(slot.group as usize) else { return Ok(()) };
        if was_unwritten {
            desc.flags -= GroupFlags::INODE_UNINIT;
            desc.itable_unused = per_group;
        }
        let bit = slot.index as usize..slot.index as usize + 1;
        let sum = |count: u32, more: bool| if more { count + 1 } else { count.saturating_sub(1) };
        desc.free_inodes_count = sum(desc.free_inodes_count, !used);
        if is_dir {
            desc.used_dirs_count = sum(desc.used_dirs_count, used);
        }
        if used {
            bitmap::set(&mut map, bit)?;
            desc.itable_unused = desc.itable_unused.min(per_group - slot.index - 1);
        } else {
            bitmap::clear(&mut map, bit)?;
        }
        desc.sum_inode_bitmap(&map, &layout, &csum)?;
        logged.insert(desc.inode_bitmap, map);
        Ok(())
    }
}

impl NumberedBlock {
    /// Makes the checksum of the block's content with the number that its file has in `done`.
    fn seal(&self, volume: &Resizing, bytes: &mut [u8], done: &Numbers, layout: &DirLayout) -> Result<()> {
        let ino = done.get(&self.ino).copied().unwrap_or(self.ino);
        let seed = volume.superblock.checksummer().inode_seed(ino, self.generation);
        match (self.kind, seed) {
            (NumberedKind::Extents, Some(seed)) => set_checksum(bytes, seed, At { ino, block: self.block })?,
            (NumberedKind::Extents, None) => {}
            (NumberedKind::Entries, seed) => dirent::seal(bytes, layout, seed),
            (NumberedKind::DxRoot, seed) => htree::seal(bytes, layout, DxKind::Root, seed),
            (NumberedKind::DxNode, seed) => htree::seal(bytes, layout, DxKind::Node, seed),
        }
        Ok(())
    }
}
