//! Choosing blocks in core.
//!
//! A [`Reserved`] run is marked in the busy map of its group and nowhere on disk.

use super::{Alloc, Claim};
use crate::error::{Error, Result};
use crate::volume::Fs;
use std::sync::Arc;

/// A run of blocks taken in core and not on disk. Dropped, they are free again.
#[derive(Debug)]
pub(crate) struct Reserved {
    alloc: Arc<Alloc>,
    start: u64,
    len: u32,
}

impl Reserved {
    /// First block.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Number of blocks, at least 1 but for what a split left.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Keeps the first `blocks` (at most all) and gives the rest, which may be nothing.
    pub(crate) fn split_off(&mut self, blocks: u32) -> Reserved {
        let keep = blocks.min(self.len);
        let (start, len) = (self.start + u64::from(keep), self.len - keep);
        self.len = keep;
        Reserved { alloc: Arc::clone(&self.alloc), start, len }
    }

    /// The first `blocks` are marked on disk now.
    pub(super) fn used(&mut self, blocks: u32) {
        let used = blocks.min(self.len);
        self.start += u64::from(used);
        self.len -= used;
        self.alloc.space.used(used.into());
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.len != 0 {
            self.alloc.release(self.start, u64::from(self.len));
            self.alloc.space.unhold(self.len.into());
        }
    }
}

/// Claims `blocks` for data that has no place yet.
///
/// # Errors
/// [`Error::NoSpace`] if there are not as many.
pub(crate) fn claim(fs: &Fs, blocks: u64) -> Result<Claim> {
    Claim::new(&fs.alloc, blocks, keep(fs)).ok_or(Error::NoSpace)
}

/// Takes 1..=`want` contiguous blocks in core, near `goal`.
///
/// First a run of `want` (or of a whole group's worth) at the goal or behind it, then anywhere;
/// when no group has one, halves are good enough, down to single blocks.
///
/// # Errors
/// [`Error::NoSpace`]; the error of a damaged group that could have served.
pub(crate) fn reserve(fs: &Fs, goal: u64, want: u32) -> Result<Reserved> {
    let available = fs.available_blocks();
    let want = u64::from(want.max(1)).min(available) as u32;
    search(fs, goal, want, &mut |n| fs.alloc.space.hold(n, keep(fs)))
}

/// As [`reserve`], of blocks that were claimed: there are always some while the claim has any.
///
/// # Errors
/// [`Error::NoSpace`] if nothing is left of the claim, or the volume lied about its free blocks.
pub(crate) fn reserve_claimed(fs: &Fs, goal: u64, want: u32, claim: &mut Claim) -> Result<Reserved> {
    let want = u64::from(want.max(1)).min(claim.blocks()) as u32;
    search(fs, goal, want, &mut |n| claim.hold(n))
}

/// Blocks that this volume's user may not have.
fn keep(fs: &Fs) -> u64 {
    if fs.options.use_reserved { 0 } else { fs.reserved_blocks }
}

/// Finds a run and takes as much of it as `hold` grants.
fn search(fs: &Fs, goal: u64, want: u32, hold: &mut dyn FnMut(u64) -> u64) -> Result<Reserved> {
    if want == 0 {
        return Err(Error::NoSpace);
    }
    let want = want.min(fs.layout.blocks_per_group().min(32768));
    let groups = fs.layout.group_count();
    let (home, bit) = fs.layout.group_of_block(goal).map_or((0, None), |(group, bit)| (group, Some(bit)));
    let mut least = want;
    loop {
        for i in 0..groups {
            // home, home + 1, ... around the end.
            let group = ((u64::from(home) + u64::from(i)) % u64::from(groups)) as u32;
            if i > 0 && super::read_desc(fs, group)?.free_blocks_count < least {
                continue;
            }
            let from = bit.filter(|_| i == 0);
            if let Some(run) = take_in(fs, group, from, want, least, hold)? {
                return Ok(run);
            }
        }
        if least == 1 {
            return Err(Error::NoSpace);
        }
        least = (least / 4).max(1);
    }
}

fn take_in(
    fs: &Fs,
    group: u32,
    from: Option<u32>,
    want: u32,
    least: u32,
    hold: &mut dyn FnMut(u64) -> u64,
) -> Result<Option<Reserved>> {
    let Some(mut state) = fs.alloc.lock_group(group) else { return Ok(None) };
    state.load(fs, group)?;
    let from = from.unwrap_or(state.next());
    let Some(run) = state.find(from, want, least) else { return Ok(None) };
    let len = hold(run.len() as u64) as u32;
    if len == 0 {
        return Err(Error::NoSpace);
    }
    state.mark(run.start..run.start + len);
    drop(state);
    let start = fs.layout.group_first_block(group)? + u64::from(run.start);
    Ok(Some(Reserved { alloc: Arc::clone(&fs.alloc), start, len }))
}
