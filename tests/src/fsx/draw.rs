//! Random operations on one file, drawn to places where files go wrong: ends, and borders of blocks.

use super::{FileOp, Model};
use rand::Rng;
use rand::rngs::StdRng;

/// The largest file. With blocks of 1 KiB it goes into the second level of indirect blocks.
const MAX: u64 = 700_000;

/// The longest write or read.
const LONG: usize = 70_000;

/// An operation for the file as it is in `model`, on a volume with blocks of `block` bytes.
pub fn draw(rng: &mut StdRng, model: &Model, block: u64) -> FileOp {
    let mut drawer = Drawer { rng, model, block };
    match drawer.rng.random_range(0..100) {
        0..36 => {
            let (at, len) = drawer.range();
            FileOp::Write { at, len, fill: drawer.rng.random() }
        }
        36..66 => {
            let (at, len) = drawer.range();
            FileOp::Read { at, len }
        }
        66..74 if model.is_whole() && model.size() < MAX => {
            FileOp::Append { len: drawer.len(), fill: drawer.rng.random() }
        }
        74..84 if model.is_whole() => FileOp::Truncate { len: drawer.place() },
        84..89 => FileOp::Seek { at: drawer.place() },
        89..92 => FileOp::Fsync,
        92..95 => FileOp::Fdatasync,
        95..97 => FileOp::Reopen,
        _ => {
            let (at, len) = drawer.range();
            FileOp::Write { at, len, fill: drawer.rng.random() }
        }
    }
}

struct Drawer<'d> {
    rng: &'d mut StdRng,
    model: &'d Model,
    block: u64,
}

impl Drawer<'_> {
    /// A place that the model may have: in a file of its own, also somewhat behind the end.
    fn place(&mut self) -> u64 {
        let bounds = self.model.bounds(MAX);
        let end = self.model.size().clamp(bounds.start, bounds.end - 1);
        let at = match self.rng.random_range(0..10) {
            0 => end,
            1 | 2 => end.saturating_sub(self.rng.random_range(0..3 * self.block)),
            3 => end + self.rng.random_range(0..3 * self.block),
            4 | 5 => {
                let border = self.rng.random_range(bounds.start..bounds.end) / self.block * self.block;
                (border + self.rng.random_range(0..3)).saturating_sub(1)
            }
            6 => self.rng.random_range(bounds.start..bounds.end) / self.block * self.block,
            _ => self.rng.random_range(bounds.start..=end),
        };
        at.clamp(bounds.start, bounds.end - 1)
    }

    fn len(&mut self) -> usize {
        let block = self.block as usize;
        match self.rng.random_range(0..10) {
            0..3 => self.rng.random_range(1..64),
            3..5 => self.rng.random_range(1..4) * block,
            5..7 => self.rng.random_range(1..3 * block),
            7 | 8 => self.rng.random_range(1..20_000),
            _ => self.rng.random_range(1..LONG),
        }
    }

    fn range(&mut self) -> (u64, usize) {
        let (at, len) = (self.place(), self.len());
        (at, len.min((self.model.bounds(MAX).end - at) as usize))
    }
}
