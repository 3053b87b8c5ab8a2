//! Preallocation by position.
//!
//! Blocks for a hole are reserved for a whole window of the file at once, as large as the file will
//! be (up to [`MAX_WINDOW`]), and handed out by logical block. So holes that are filled out of
//! order still get blocks in order. Windows exist in core only. A window is given back when its
//! file discards it ([`FileAlloc::discard`], or dropped), and when an allocation finds no space.
//!
//! Locks: the registry, then one file's pieces, then groups. A thread that holds a file's pieces
//! never discards the windows of all files.

use super::Reserved;
use super::reserve::{Goal, Reach, available, or_discard, take_claimed, take_free};
use crate::error::{Error, Result};
use crate::store::Store;
use crate::store::space::Claim;
use lanefs_sync::order::{Level, Ordered};
use lanefs_sync::{Mutex, MutexGuard, OnceLock};
use std::ops::Range;
use std::sync::{Arc, Weak};

/// The largest window in bytes.
const MAX_WINDOW: u32 = 8 << 20;

/// Files of up to so many bytes have windows inside of their size only: so small files lie close
/// together.
const SMALL: u32 = 64 << 10;

/// The preallocation of a file in core. Costs two words until blocks are preallocated.
#[derive(Debug, Default)]
pub(crate) struct FileAlloc {
    pieces: OnceLock<Arc<Mutex<Pieces>>>,
}

#[derive(Debug, Default)]
struct Pieces {
    /// Sorted by logical block, not overlapping.
    list: Vec<PreallocRun>,
    /// Whether the registry has a reference to it. Cleared by a discard.
    registered: bool,
}

/// Reserved blocks for the logical ones from `lblk` on.
#[derive(Debug)]
struct PreallocRun {
    lblk: u32,
    run: Reserved,
}

impl PreallocRun {
    fn new(lblk: u32, run: Reserved) -> Self {
        run.space().add_spare(run.len());
        Self { lblk, run }
    }

    /// Keeps the first `blocks`; the rest is no longer spare.
    fn cut(&mut self, blocks: u32) -> Reserved {
        let rest = self.run.split_off(blocks);
        rest.space().sub_spare(rest.len());
        rest
    }

    fn end(&self) -> u32 {
        self.lblk.saturating_add(self.run.len())
    }
}

impl Drop for PreallocRun {
    fn drop(&mut self) {
        self.run.space().sub_spare(self.run.len());
    }
}

/// The logical blocks that a file needs blocks for.
#[derive(Debug, Clone)]
pub(crate) struct Spot {
    /// The inode: decides where the file begins, if there is no other goal.
    pub(crate) ino: u32,
    /// The first logical block.
    pub(crate) lblk: u32,
    /// How many blocks, at least 1.
    pub(crate) want: u32,
    /// The hole around them: logical blocks that are not mapped, with all that are wanted.
    pub(crate) hole: Range<u32>,
    /// The block behind the one that is mapped before the hole, if there is one.
    pub(crate) goal: Option<u64>,
    /// Logical blocks that the file has or will have.
    pub(crate) size: u32,
    /// The blocks that the file's map can number.
    pub(crate) reach: Reach,
}

impl FileAlloc {
    /// Returns the state of a file that has no blocks preallocated.
    pub(crate) const fn new() -> Self {
        Self { pieces: OnceLock::new() }
    }

    /// Gives all preallocated blocks back: the file is not written any more, or was cut.
    pub(crate) fn discard(&self) {
        if let Some(pieces) = self.pieces.get() {
            lock(pieces).list.clear();
        }
    }

    /// Returns the blocks that are preallocated.
    #[cfg(test)]
    pub(crate) fn blocks(&self) -> u64 {
        self.pieces.get().map_or(0, |p| lock(p).list.iter().map(|p| u64::from(p.run.len())).sum())
    }
}

impl Pieces {
    /// Takes up to `want` of the blocks for `lblk` and those behind it.
    fn take(&mut self, lblk: u32, want: u32) -> Option<Reserved> {
        let at = self.list.partition_point(|p| p.end() <= lblk);
        let piece = self.list.get_mut(at)?;
        let before = lblk.checked_sub(piece.lblk)?;
        let mut run = piece.cut(before);
        let behind = run.split_off(want);
        let rest = (behind.len() > 0).then(|| PreallocRun::new(lblk.saturating_add(want), behind));
        match (before > 0, rest) {
            (true, Some(rest)) => self.list.insert(at + 1, rest),
            (true, None) => {}
            (false, Some(rest)) => *piece = rest,
            (false, None) => drop(self.list.remove(at)),
        }
        Some(run)
    }

    /// Cuts `window` at the pieces around `lblk`. No piece has `lblk` itself.
    fn clip(&self, window: Range<u32>, lblk: u32) -> Range<u32> {
        let at = self.list.partition_point(|p| p.end() <= lblk);
        let start = at.checked_sub(1).and_then(|at| self.list.get(at)).map_or(0, PreallocRun::end);
        let end = self.list.get(at).map_or(u32::MAX, |p| p.lblk);
        window.start.max(start)..window.end.min(end)
    }

    /// Returns a logical block and its block, of a piece next to `lblk` that lies in the same hole.
    fn near(&self, lblk: u32, hole: &Range<u32>) -> Option<(u32, u64)> {
        let at = self.list.partition_point(|p| p.end() <= lblk);
        let pieces = [at.checked_sub(1).and_then(|at| self.list.get(at)), self.list.get(at)];
        let piece = pieces.into_iter().flatten().find(|p| hole.contains(&p.lblk))?;
        Some((piece.lblk, piece.run.start()))
    }

    fn insert(&mut self, piece: PreallocRun) {
        let at = self.list.partition_point(|p| p.lblk < piece.lblk);
        self.list.insert(at, piece);
    }
}

fn lock(pieces: &Mutex<Pieces>) -> Ordered<MutexGuard<'_, Pieces>> {
    Ordered::take(Level::Prealloc, 1, || pieces.lock())
}

/// All files that have blocks preallocated.
#[derive(Debug, Default)]
pub(super) struct Registry {
    files: Mutex<Vec<Weak<Mutex<Pieces>>>>,
}

impl Registry {
    fn add(&self, file: &Arc<Mutex<Pieces>>) {
        let mut files = Ordered::take(Level::Prealloc, 0, || self.files.lock());
        if files.len() == files.capacity() {
            // Drops files that are gone, to make room before the list grows.
            files.retain(|file| file.strong_count() > 0);
        }
        files.push(Arc::downgrade(file));
        lock(file).registered = true;
    }

    /// Gives all preallocated blocks of all files back. Also waits for a discard of another thread:
    /// its blocks are back on return too.
    pub(super) fn discard(&self) {
        let mut files = Ordered::take(Level::Prealloc, 0, || self.files.lock());
        for file in files.drain(..).filter_map(|file| file.upgrade()) {
            let mut pieces = lock(&file);
            pieces.registered = false;
            pieces.list.clear();
        }
    }
}

/// Takes 1..=`want` contiguous blocks in core for the logical blocks from `spot.lblk` on: from the
/// file's preallocation, or else new ones, with a window around them.
///
/// With a `claim`, which has at least one block, as many blocks of it are spent.
///
/// # Errors
/// The errors of [`reserve`](super::reserve); with a claim, those of
/// [`reserve_claimed`](super::reserve_claimed).
pub(crate) fn reserve_at(
    store: &Store,
    file: &FileAlloc,
    spot: &Spot,
    mut promised: Option<&mut Claim>,
) -> Result<Reserved> {
    let mut want = spot.want.clamp(1, spot.hole.end.saturating_sub(spot.lblk).max(1));
    if let Some(claim) = &promised {
        want = u64::from(want).min(claim.blocks()) as u32;
        if want == 0 {
            return Err(Error::NoSpace);
        }
    }
    if let Some(run) = from_window(store, file, spot, want)? {
        // The window was taken from the available blocks: as many claimed ones are given back.
        if let Some(claim) = &mut promised {
            drop(claim.split(run.len().into()));
        }
        return Ok(run);
    }
    let goal = goal_for(store, spot, spot.lblk, None)?;
    match promised {
        Some(claim) => or_discard(store, || take_claimed(store, goal, want, spot.reach, claim)),
        None => or_discard(store, || take_free(store, goal, want, spot.reach)),
    }
}

/// Takes blocks of the file's window for the spot, and makes the window if there is none. Returns
/// `None` where there should be no window.
fn from_window(store: &Store, file: &FileAlloc, spot: &Spot, want: u32) -> Result<Option<Reserved>> {
    let lblk = spot.lblk;
    if let Some(run) = file.pieces.get().and_then(|pieces| lock(pieces).take(lblk, want)) {
        return Ok(Some(run));
    }
    let window = window_of(spot, want, store.block_size);
    // A window no larger than the request is useless, and one larger than a small part of the free
    // space is too large.
    if window.len() as u32 <= want || window.len() as u64 > available(store) / 16 {
        return Ok(None);
    }
    let pieces = file.pieces.get_or_init(Default::default);
    let registered = lock(pieces).registered;
    if !registered {
        store.alloc.registry.add(pieces);
    }
    let mut pieces = lock(pieces);
    // Meanwhile another thread may have made a window, or discarded all windows.
    let there = pieces.take(lblk, want);
    if there.is_some() || !pieces.registered {
        return Ok(there);
    }
    let window = pieces.clip(window, lblk);
    let want = want.min(window.end - lblk);
    let goal = goal_for(store, spot, window.start, pieces.near(lblk, &spot.hole))?;
    let mut run = match take_free(store, goal, window.len() as u32, spot.reach) {
        Err(Error::NoSpace) => return Ok(None),
        run => run?,
    };
    // A run that does not reach from the window's start to the request serves the request alone.
    let whole = lblk.saturating_add(want) - window.start <= run.len();
    let start = if whole { window.start } else { lblk };
    drop(run.split_off(window.end - start));
    pieces.insert(PreallocRun::new(start, run));
    Ok(pieces.take(lblk, want))
}

/// Returns the logical blocks to preallocate when `want` blocks are asked for at the spot: an
/// aligned part of the file. Its size grows with the file's.
fn window_of(spot: &Spot, want: u32, block_size: u32) -> Range<u32> {
    let end = spot.lblk.saturating_add(want);
    let size = spot.size.max(end);
    let window = if size <= SMALL / block_size {
        0..size
    } else {
        let max = MAX_WINDOW / block_size;
        let len = size.min(max).next_power_of_two();
        spot.lblk / len * len..end.checked_next_multiple_of(len).unwrap_or(u32::MAX)
    };
    window.start.max(spot.hole.start.min(spot.lblk))..window.end.min(spot.hole.end.max(end))
}

/// Returns where the block of logical block `lblk` should lie: as far from its neighbour's block as
/// in the file. `near` is the neighbour's logical block and its block.
fn goal_for(store: &Store, spot: &Spot, lblk: u32, near: Option<(u32, u64)>) -> Result<Goal> {
    let near = near.or(spot.goal.map(|goal| (spot.hole.start, goal)));
    if let Some((at, block)) = near
        && let Ok((group, _)) = store.layout().group_of_block(block)
    {
        let goal = match lblk.checked_sub(at) {
            Some(behind) => block.checked_add(behind.into()),
            None => block.checked_sub((at - lblk).into()),
        };
        // A large hole is no reason to allocate far away.
        let close = at.abs_diff(lblk) < store.layout().blocks_per_group();
        let goal = goal.filter(|_| close).and_then(|goal| store.layout().group_of_block(goal).ok());
        return Ok(goal.map_or(Goal::Group(group), |(group, bit)| Goal::At(group, bit)));
    }
    Ok(Goal::stream(store, store.layout().inode_slot(spot.ino)?.group))
}
