//! One level of a tree: the digests of all blocks below it, by all processors.
//!
//! A piece of work is a few blocks of the level with the blocks below them. Threads take pieces in
//! ascending order from a counter, and meet nowhere else.

use crate::error::{Result, VerityError};
use crate::hash::Salted;
use lanefs_device::{AlignedBuf, BlockDevice};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// The bytes below that a piece of work is about.
const PIECE: u64 = 2 << 20;

/// A level, or the data below all of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level {
    /// First byte on its device.
    pub(crate) start: u64,
    pub(crate) blocks: u64,
}

/// Blocks on a device.
pub(crate) struct Below<'a> {
    pub(crate) device: &'a dyn BlockDevice,
    pub(crate) level: Level,
    pub(crate) block_size: usize,
}

/// A level to make or to compare, above the blocks that it has the digests of.
pub(crate) struct Work<'a> {
    pub(crate) below: Below<'a>,
    pub(crate) above: Below<'a>,
    pub(crate) salted: &'a Salted,
    /// Digests of a block above.
    pub(crate) per_block: u64,
    pub(crate) digest_size: usize,
    /// Hears how many bytes below were read, from any thread; false cancels.
    pub(crate) progress: &'a (dyn Fn(u64) -> bool + Sync),
}

/// The pieces, taken one by one.
struct Queue {
    next: AtomicU64,
    /// The first block below that is wrong; no piece behind it has to be done.
    wrong: AtomicU64,
    cancelled: AtomicBool,
}

impl Work<'_> {
    /// Writes the level.
    pub(crate) fn make(&self) -> Result<()> {
        self.run(|queue| {
            self.each(queue, |at, digests, _, _| Ok(self.above.device.write_at(digests, at)?))
        })?;
        Ok(())
    }

    /// Compares the level with what is below it. Returns the first block below that is wrong; one
    /// behind the last if the level has a digest where there is no block.
    pub(crate) fn compare(&self) -> Result<Option<u64>> {
        let wrong = self.run(|queue| {
            self.each(queue, |at, digests, stored, first| {
                let stored = &mut stored[..digests.len()];
                self.above.device.read_at(stored, at)?;
                let pairs = digests.chunks_exact(self.digest_size).zip(stored.chunks_exact(self.digest_size));
                if let Some(place) = pairs.into_iter().position(|(made, stored)| made != stored) {
                    queue.wrong.fetch_min(first + place as u64, Ordering::Relaxed);
                }
                Ok(())
            })
        })?;
        Ok((wrong != u64::MAX).then_some(wrong))
    }

    /// Runs `part` on all processors. Returns the first wrong block that they found.
    fn run(&self, part: impl Fn(&Queue) -> Result<()> + Sync) -> Result<u64> {
        let queue = Queue {
            next: AtomicU64::new(0),
            wrong: AtomicU64::new(u64::MAX),
            cancelled: AtomicBool::new(false),
        };
        let pieces = self.above.level.blocks.div_ceil(self.piece());
        let threads = thread::available_parallelism().map_or(1, usize::from).min(pieces as usize).max(1);
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(|| part(&queue))).collect();
            let own = part(&queue);
            let others = others.into_iter().map(|other| match other.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            others.fold(own, |sum, done| sum.and(done))
        })?;
        match queue.cancelled.into_inner() {
            true => Err(VerityError::Cancelled),
            false => Ok(queue.wrong.into_inner()),
        }
    }

    /// Returns how many blocks of this level a piece is.
    fn piece(&self) -> u64 {
        (PIECE / (self.per_block * self.below.block_size as u64)).max(1)
    }

    /// Takes pieces until there are none. Calls `use_digests` with the place of a piece's blocks,
    /// those blocks as they have to be, room for as many, and the number of the first block below.
    fn each(
        &self,
        queue: &Queue,
        use_digests: impl Fn(u64, &[u8], &mut [u8], u64) -> Result<()>,
    ) -> Result<()> {
        let (below, above, piece) = (&self.below, &self.above, self.piece());
        let mut blocks = AlignedBuf::zeroed((piece * self.per_block) as usize * below.block_size);
        let mut digests = AlignedBuf::zeroed(piece as usize * above.block_size);
        let mut room = AlignedBuf::zeroed(digests.len());
        loop {
            let first = queue.next.fetch_add(1, Ordering::Relaxed) * piece;
            let first_below = first * self.per_block;
            let done = first >= above.level.blocks || first_below > queue.wrong.load(Ordering::Relaxed);
            if done || queue.cancelled.load(Ordering::Relaxed) {
                return Ok(());
            }
            let count = piece.min(above.level.blocks - first);
            let count_below = (count * self.per_block).min(below.level.blocks - first_below);
            let data = &mut blocks[..count_below as usize * below.block_size];
            below.device.read_at(data, below.level.start + first_below * below.block_size as u64)?;
            let out = &mut digests[..count as usize * above.block_size];
            let filled = count_below as usize * self.digest_size;
            self.salted.digest_each(data, below.block_size, &mut out[..filled]);
            out[filled..].fill(0);
            use_digests(above.level.start + first * above.block_size as u64, out, &mut room, first_below)?;
            if !(self.progress)(data.len() as u64) {
                queue.cancelled.store(true, Ordering::Relaxed);
            }
        }
    }
}
