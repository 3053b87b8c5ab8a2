//! Random operations on one file, drawn to places where files go wrong: ends, and borders of
//! blocks.

use super::{FALLOCATES, FileOp, Model, Way};
use rand::Rng;
use rand::rngs::StdRng;

/// The largest file. With blocks of 1 KiB it goes into the second level of indirect blocks.
const MAX: u64 = 700_000;

/// The longest write or read.
const LONG: usize = 70_000;

/// An operation for the file as it is in `model`, on a volume with blocks of `block` bytes.
pub fn draw(rng: &mut StdRng, model: &Model, block: u64) -> FileOp {
    let mut drawer = Drawer { rng, model, block };
    match drawer.rng.random_range(0..112) {
        0..36 => {
            let (at, len, way) = drawer.range();
            FileOp::Write { at, len, fill: drawer.rng.random(), way }
        }
        36..66 => {
            let (at, len, way) = drawer.range();
            FileOp::Read { at, len, way }
        }
        66..74 if model.is_whole() && model.size() < MAX => {
            FileOp::Append { len: drawer.len(), fill: drawer.rng.random(), way: drawer.way() }
        }
        74..84 if model.is_whole() => FileOp::Truncate { len: drawer.place() },
        84..87 => FileOp::Seek { at: drawer.place() },
        87..90 => FileOp::Fsync,
        90..92 => FileOp::Fdatasync,
        92..94 => FileOp::Reopen,
        94..100 => drawer.fallocate(),
        100..104 => drawer.copy(),
        104..108 => {
            let (at, len, way) = drawer.range();
            FileOp::TryRead { at, len, way }
        }
        108..112 => {
            let (at, len, way) = drawer.range();
            FileOp::TryWrite { at, len, fill: drawer.rng.random(), way }
        }
        _ => {
            let (at, len, way) = drawer.range();
            FileOp::Write { at, len, fill: drawer.rng.random(), way }
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

    /// From one place to another, or a read where they meet.
    fn copy(&mut self) -> FileOp {
        let (from, at, len) = (self.place(), self.place(), self.len() as u64);
        let len = len.min(self.model.bounds(MAX).end - from.max(at));
        match from + len <= at || at + len <= from {
            true => FileOp::Copy { from, at, len },
            false => FileOp::Read { at, len: len as usize, way: self.way() },
        }
    }

    fn fallocate(&mut self) -> FileOp {
        let most = if self.model.is_whole() { FALLOCATES.len() } else { 5 };
        let mode = self.rng.random_range(0..most);
        let (mut at, len, _) = self.range();
        let mut len = len as u64;
        if mode >= 5 || self.rng.random_range(0..3) == 0 {
            let start = self.model.bounds(MAX).start;
            at = if at / self.block * self.block >= start { at / self.block * self.block } else { at };
            len = len.next_multiple_of(self.block).min(self.model.bounds(MAX).end - at);
        }
        FileOp::Fallocate { mode, at, len }
    }

    fn way(&mut self) -> Way {
        match self.rng.random_range(0..20) {
            0 => Way::Dsync,
            1..6 => Way::Direct,
            _ => Way::Buffered,
        }
    }

    /// A range, and how it is used: directly, half of the time whole blocks.
    fn range(&mut self) -> (u64, usize, Way) {
        let (mut at, mut len, way) = (self.place(), self.len(), self.way());
        let bounds = self.model.bounds(MAX);
        if way == Way::Direct && self.rng.random() {
            let whole = at / self.block * self.block;
            at = if whole >= bounds.start { whole } else { at };
            len = len.next_multiple_of(self.block as usize);
        }
        (at, len.min((bounds.end - at) as usize), way)
    }
}
