//! Changes of the map.
//!
//! Insertion counts the missing blocks of numbers, allocates them all, and only then writes.
//! Removal runs from the end to the start, depth first, and frees a block of numbers together with
//! its last number.

use super::lookup::{check, lookup};
use super::{DIRECT, MAX_PHYSICAL, ROOT_SIZE, max_blocks, number, numbers, pointers, set_number, slot, span};
use crate::error::{Error, IndirectError, Result};
use crate::store::alloc::Reach;
use crate::store::kind;
use crate::store::map::{ChangeBlocks, Mapping, Progress, ReadBlocks};
use crate::store::txn::{BlockKind, credits};
use std::collections::BTreeSet;
use std::ops::Range;

/// Credits with which a removal always frees something: a run in one group, and three levels of
/// blocks that are written, or freed and revoked.
pub(crate) const REMOVE_CREDITS: u32 = credits::FREED_RUN + 3 * (1 + credits::FREED_RUN);

/// Returns the credits for mapping `len` blocks: every block of numbers may be new.
pub(crate) fn insert_credits(block_size: usize, len: u32) -> u32 {
    let per = pointers(block_size).max(1);
    let tables = len / per + 2;
    // Each with bitmap and descriptor.
    3 * (tables + tables / per + 2 + 1)
}

/// Returns how many blocks of numbers `range` lacks.
pub(crate) fn missing(blocks: &impl ReadBlocks, ino: u32, root: &[u8], range: Range<u32>) -> Result<usize> {
    let size = blocks.block_size();
    // Each by its level and first logical block.
    let mut missing = BTreeSet::new();
    let mut at = range.start;
    while at < range.end {
        let (n, levels, base) = slot(size, at).ok_or(Error::FileTooBig)?;
        let rel = u64::from(at - base);
        let mut block = number(root, n);
        for level in (1..=levels).rev() {
            if block == 0 {
                missing.insert((level, u64::from(base) + rel - rel % span(size, level)));
            } else if level > 1 {
                check(blocks, ino, at, block)?;
                let n = (rel % span(size, level) / span(size, level - 1)) as usize;
                let next = |bytes: &[u8]| Ok(number(bytes, n));
                block = blocks.view(u64::from(block), kind::INDIRECT, |_| Ok(()), next)?;
            }
        }
        at = table_end(size, at)?;
    }
    Ok(missing.len())
}

/// Returns where the numbers in the same block as that of `lblk` end.
fn table_end(block_size: usize, lblk: u32) -> Result<u32> {
    let (_, levels, base) = slot(block_size, lblk).ok_or(Error::FileTooBig)?;
    if levels == 0 {
        return Ok(DIRECT);
    }
    let per = pointers(block_size).max(1);
    Ok((lblk - (lblk - base) % per).saturating_add(per))
}

/// A map that is being changed inside one transaction.
pub(crate) struct Table<'t, B> {
    blocks: &'t mut B,
    ino: u32,
    /// The kind as which the file's own blocks are freed.
    kind: BlockKind,
    root: &'t mut [u8; ROOT_SIZE],
    /// Blocks of data and numbers that the file has gained, or lost, through this.
    pub(crate) delta: i64,
}

impl<'t, B: ChangeBlocks> Table<'t, B> {
    pub(crate) fn new(blocks: &'t mut B, ino: u32, kind: BlockKind, root: &'t mut [u8; ROOT_SIZE]) -> Self {
        Self { blocks, ino, kind, root, delta: 0 }
    }

    /// Maps the hole of `len` blocks at `lblk` to the blocks from `block` on. For want of space it
    /// fails with nothing changed.
    pub(crate) fn insert(&mut self, lblk: u32, block: u64, len: u32) -> Result<()> {
        let size = self.blocks.block_size();
        let end = lblk.checked_add(len).filter(|end| *end <= max_blocks(size)).ok_or(Error::FileTooBig)?;
        if block + u64::from(len) > MAX_PHYSICAL {
            return Err(Error::NoSpace);
        }
        let mut at = lblk;
        while at < end {
            match lookup(self.blocks, self.ino, self.root, at)? {
                Mapping::Hole { len, .. } => at = at.saturating_add(len),
                Mapping::Mapped { .. } => {
                    return Err(IndirectError::Mapped { ino: self.ino, lblk, len }.into());
                }
            }
        }
        let mut spare = self.reserve(lblk..end, block)?;
        let mut at = lblk;
        while at < end {
            let next = table_end(size, at)?.min(end);
            // Fits: `block + len` is at most 2^32.
            let first = (block + u64::from(at - lblk)) as u32;
            self.set(at, first, next - at, &mut spare)?;
            at = next;
        }
        self.delta += i64::from(len);
        Ok(())
    }

    /// Allocates the blocks of numbers that `range` lacks: all or none.
    fn reserve(&mut self, range: Range<u32>, goal: u64) -> Result<Vec<u64>> {
        let missing = missing(self.blocks, self.ino, self.root, range)?;
        let start = self.blocks.mark();
        let mut spare = Vec::with_capacity(missing);
        for _ in 0..missing {
            let taken = match self.blocks.alloc(goal, Reach::Low) {
                Ok(block) if block >= MAX_PHYSICAL => {
                    spare.push(block);
                    Err(Error::NoSpace)
                }
                taken => taken.map(|block| spare.push(block)),
            };
            if let Err(e) = taken {
                for block in spare {
                    self.blocks.put_back(block)?;
                }
                self.blocks.undone(start);
                return Err(e);
            }
        }
        Ok(spare)
    }

    /// Writes the numbers of `len` blocks from `first` on for the logical blocks from `lblk` on.
    /// All lie in one block of numbers, or in `i_block`.
    fn set(&mut self, lblk: u32, first: u32, len: u32, spare: &mut Vec<u64>) -> Result<()> {
        let size = self.blocks.block_size();
        let (slot, levels, base) = slot(size, lblk).ok_or(Error::FileTooBig)?;
        if levels == 0 {
            (0..len).for_each(|i| set_number(&mut self.root[..], slot + i as usize, first + i));
            return Ok(());
        }
        let mut rel = u64::from(lblk - base);
        let mut block = number(&self.root[..], slot);
        let mut fresh = block == 0;
        if fresh {
            block = self.take(spare)?;
            set_number(&mut self.root[..], slot, block);
        }
        for level in (1..=levels).rev() {
            check(self.blocks, self.ino, lblk, block)?;
            let n = (rel / span(size, level - 1)) as usize;
            rel %= span(size, level - 1);
            let this = u64::from(block);
            if level == 1 {
                return self.blocks.change(this, kind::INDIRECT, fresh, |bytes| {
                    (0..len).for_each(|i| set_number(bytes, n + i as usize, first + i));
                    Ok(())
                });
            }
            block = match fresh {
                true => 0,
                false => self.blocks.view(this, kind::INDIRECT, |_| Ok(()), |bytes| Ok(number(bytes, n)))?,
            };
            let child_fresh = block == 0;
            if child_fresh {
                block = self.take(spare)?;
                self.blocks.change(this, kind::INDIRECT, fresh, |bytes| {
                    set_number(bytes, n, block);
                    Ok(())
                })?;
            }
            fresh = child_fresh;
        }
        Ok(())
    }

    fn take(&mut self, spare: &mut Vec<u64>) -> Result<u32> {
        self.delta += 1;
        // `reserve` has counted the same blocks, and kept them below 2^32.
        Ok(spare.pop().ok_or(Error::NoSpace)? as u32)
    }

    /// Frees the mapped blocks in `range`, from its end on, until all are freed, credits are short,
    /// or a damaged structure stops it.
    pub(crate) fn remove(&mut self, range: Range<u32>) -> Result<Progress> {
        let size = self.blocks.block_size();
        let mut base = u64::from(DIRECT) + (1..=3).map(|level| span(size, level)).sum::<u64>();
        for level in (1..=3).rev() {
            base -= span(size, level);
            let slot = (DIRECT + level - 1) as usize;
            let block = number(&self.root[..], slot);
            let inside = clip(&range, base, span(size, level));
            if block == 0 || inside.is_empty() {
                continue;
            }
            let (empty, progress) = self.clear(&[block], level, base, inside)?;
            if empty {
                set_number(&mut self.root[..], slot, 0);
            }
            if !progress.is_done() {
                return Ok(progress);
            }
        }
        let mut direct = numbers(&self.root[..DIRECT as usize * 4]);
        let inside = clip(&range, 0, u64::from(DIRECT));
        let progress = self.clear_run(&mut direct, inside.start as usize..inside.end as usize, &[]);
        direct.iter().enumerate().for_each(|(n, block)| set_number(&mut self.root[..], n, *block));
        progress
    }

    /// Frees the blocks that the last block of `path`, on `level`, maps in `range`, and that block
    /// itself if nothing is left: then the first value returned is true. `path` begins at
    /// `i_block`, and `base` is the first logical block below its last block.
    fn clear(&mut self, path: &[u32], level: u32, base: u64, range: Range<u64>) -> Result<(bool, Progress)> {
        let size = self.blocks.block_size();
        let block = path.last().copied().unwrap_or(0);
        let this = u64::from(block);
        // A block that is free already may be another file's when it is written.
        let held = self.blocks.hold_for_free(this);
        let (_held, old) = match held.and_then(|held| Ok((held, self.numbers_of(block, base)?))) {
            Ok(read) => read,
            Err(e) => return Ok((false, Progress::Stopped(e))),
        };
        let mut now = old.clone();
        let below = span(size, level - 1);
        let first = ((range.start - base) / below) as usize;
        let last = (range.end - base).div_ceil(below) as usize;
        // Even if this stops early, the numbers then record what was freed.
        let mut outcome = match level {
            1 => self.clear_run(&mut now, first..last, path)?,
            _ => self.clear_children(&mut now, path, level, base, range)?,
        };
        if now.iter().all(|n| *n == 0) && !matches!(outcome, Progress::Stopped(_)) {
            if self.blocks.room(REMOVE_CREDITS)? {
                let mark = self.blocks.mark();
                match self.blocks.free(this, 1, BlockKind::Metadata) {
                    Ok(()) => {
                        self.delta -= 1;
                        return Ok((true, outcome));
                    }
                    Err(e) if self.blocks.mark() == mark => outcome = Progress::Stopped(e),
                    Err(e) => return Err(e),
                }
            } else {
                outcome = Progress::More;
            }
        }
        if now != old {
            self.blocks.change(this, kind::INDIRECT, false, |bytes| {
                now.iter().enumerate().for_each(|(n, block)| set_number(bytes, n, *block));
                Ok(())
            })?;
        }
        Ok((false, outcome))
    }

    /// Returns the numbers in `block`. The first logical block below it is `base`.
    fn numbers_of(&self, block: u32, base: u64) -> Result<Vec<u32>> {
        check(self.blocks, self.ino, u32::try_from(base).unwrap_or(u32::MAX), block)?;
        self.blocks.view(u64::from(block), kind::INDIRECT, |_| Ok(()), |bytes| Ok(numbers(bytes)))
    }

    /// Frees the blocks in `range` below the numbers of a block on `level`.
    fn clear_children(
        &mut self,
        numbers: &mut [u32],
        path: &[u32],
        level: u32,
        base: u64,
        range: Range<u64>,
    ) -> Result<Progress> {
        let below = span(self.blocks.block_size(), level - 1);
        for (n, child) in numbers.iter_mut().enumerate().rev().filter(|(_, child)| **child != 0) {
            let from = base + n as u64 * below;
            let inside = range.start.max(from)..range.end.min(from + below);
            if inside.is_empty() {
                continue;
            }
            let path = [path, &[*child]].concat();
            let (empty, progress) = self.clear(&path, level - 1, from, inside)?;
            if empty {
                *child = 0;
            }
            if !progress.is_done() {
                return Ok(progress);
            }
        }
        Ok(Progress::Done)
    }

    /// Frees the data blocks in `range` of `numbers`, as runs of adjacent blocks of one group whose
    /// revokes cost one credit, and sets the numbers to 0. Stops at a block of `path`, which is
    /// written later.
    fn clear_run(&mut self, numbers: &mut [u32], range: Range<usize>, path: &[u32]) -> Result<Progress> {
        let Some(numbers) = numbers.get_mut(range) else { return Ok(Progress::Done) };
        let mut end = numbers.len();
        while let Some(last) = end.checked_sub(1).and_then(|n| numbers.get(n).copied()) {
            if last == 0 {
                end -= 1;
                continue;
            }
            let group = self.blocks.group_start(u64::from(last));
            // Downwards from the last number: each one less, inside of the group.
            let run = numbers[..end].iter().rev().zip((group..=u64::from(last)).rev());
            let len = run.take_while(|(b, want)| u64::from(**b) == *want).count();
            let len = len.min(self.blocks.run_of(self.kind) as usize);
            if let Some(block) = path.iter().find(|block| numbers[end - len..end].contains(block)) {
                let error = IndirectError::OwnTable { ino: self.ino, block: *block };
                return Ok(Progress::Stopped(error.into()));
            }
            if !self.blocks.room(REMOVE_CREDITS)? {
                return Ok(Progress::More);
            }
            let mark = self.blocks.mark();
            match self.blocks.free(u64::from(last) + 1 - len as u64, len as u32, self.kind) {
                Ok(()) => {}
                Err(e) if self.blocks.mark() == mark => return Ok(Progress::Stopped(e)),
                Err(e) => return Err(e),
            }
            self.delta -= len as i64;
            numbers[end - len..end].fill(0);
            end -= len;
        }
        Ok(Progress::Done)
    }
}

/// Returns the part of `range` that lies in the `len` logical blocks from `base` on.
fn clip(range: &Range<u32>, base: u64, len: u64) -> Range<u64> {
    u64::from(range.start).max(base)..u64::from(range.end).min(base + len)
}
