//! The images that a power cut may leave.
//!
//! A log falls into epochs that end with a flush (the last one ends with the log). After a cut inside
//! an epoch, everything of the epochs before is on the medium. Of the epoch itself, up to the cut, the medium
//! has kept any part: a write is there whole, not at all, or torn at 512 bytes, and where writes overlap, either
//! may have come last. A discarded sector reads as what it held, as zeros or as garbage.
//!
//! For each epoch come one ordered state (all of its writes: the cut just before the flush ends) and any number of random
//! ones. Each random state is made of (seed, epoch, number) alone, so that one can be made again.

use crate::record::{Entry, Log};
use crate::seed::rng;
use crate::{Image, OverlayDevice};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::fmt;
use std::ops::Range;

/// What a medium writes whole or not at all.
const SECTOR: u64 = 512;

/// How the state of an epoch came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Every write, in order.
    Ordered,
    /// The random state of this number.
    Random(usize),
}

/// One image that a power cut may leave.
#[derive(Debug, Clone)]
pub struct CrashState {
    /// The number of log entries that had happened. Marks below it had been set.
    pub cut: usize,
    /// Entries below this number are on the medium for certain.
    pub durable: usize,
    /// The epoch, counted from 0.
    pub epoch: usize,
    /// How it was made.
    pub shape: Shape,
    /// The seed that it was made of.
    pub seed: u64,
    /// What the medium holds.
    pub image: Image,
}

impl CrashState {
    /// A device that holds this state, to run recovery on.
    pub fn device(&self) -> OverlayDevice {
        OverlayDevice::new(self.image.clone())
    }

    /// Marks that had been set before the cut, in order, with their sequence numbers.
    pub fn marks<'a>(&self, log: &'a Log) -> impl DoubleEndedIterator<Item = (usize, &'a str)> {
        log.entries[..self.cut].iter().enumerate().filter_map(|(i, entry)| match entry {
            Entry::Mark(label) => Some((i, label.as_str())),
            _ => None,
        })
    }
}

impl fmt::Display for CrashState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cut, durable, epoch, shape, seed, .. } = self;
        write!(f, "power cut after entry {cut} ({durable} durable, epoch {epoch}, {shape:?}, seed {seed:#x})")
    }
}

impl Log {
    /// Every epoch's ordered state and `random_per_epoch` random ones, from the first epoch to the last.
    pub fn crash_states(&self, seed: u64, random_per_epoch: usize) -> CrashStates<'_> {
        CrashStates {
            log: self,
            epochs: self.epochs(),
            seed,
            random_per_epoch,
            durable: self.base.clone(),
            epoch: 0,
            next: 0,
        }
    }

    /// The one state that [`crash_states`](Self::crash_states) made of these numbers.
    pub fn crash_state(&self, seed: u64, epoch: usize, shape: Shape) -> Option<CrashState> {
        let range = self.epochs().get(epoch)?.clone();
        let mut durable = self.base.clone();
        self.entries[..range.start].iter().for_each(|entry| entry.apply(&mut durable));
        Some(self.make(&durable, range, seed, epoch, shape))
    }

    /// Ranges of entries, each up to and with a flush; the last may have none.
    fn epochs(&self) -> Vec<Range<usize>> {
        let mut start = 0;
        let mut epochs = Vec::new();
        for (i, entry) in self.entries.iter().enumerate() {
            if matches!(entry, Entry::Flush) {
                epochs.push(start..i + 1);
                start = i + 1;
            }
        }
        epochs.push(start..self.entries.len());
        epochs
    }

    fn make(
        &self,
        durable: &Image,
        epoch_range: Range<usize>,
        seed: u64,
        epoch: usize,
        shape: Shape,
    ) -> CrashState {
        let Range { start, end } = epoch_range;
        // The flush itself has not returned: no mark after it can be set.
        let last = if end > start && matches!(self.entries[end - 1], Entry::Flush) { end - 1 } else { end };
        let mut image = durable.clone();
        let cut = match shape {
            Shape::Ordered => {
                self.entries[start..last].iter().for_each(|entry| entry.apply(&mut image));
                last
            }
            Shape::Random(number) => {
                let mut rng = rng(&[seed, epoch as u64, number as u64]);
                // Half of the cuts come at the end, where most is at stake.
                let cut = if rng.random() { last } else { rng.random_range(start..=last) };
                scramble(&self.entries[start..cut], &mut image, &mut rng);
                cut
            }
        };
        CrashState { cut, durable: start, epoch, shape, seed, image }
    }
}

/// The iterator over the states of a [`Log`].
///
/// What is durable is built up once, epoch by epoch; a state costs its own epoch's writes.
#[derive(Debug)]
pub struct CrashStates<'a> {
    log: &'a Log,
    epochs: Vec<Range<usize>>,
    seed: u64,
    random_per_epoch: usize,
    durable: Image,
    epoch: usize,
    /// The next state of the epoch: 0 is the ordered one.
    next: usize,
}

impl Iterator for CrashStates<'_> {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        let range = self.epochs.get(self.epoch)?.clone();
        let shape = match self.next.checked_sub(1) {
            None => Shape::Ordered,
            Some(number) => Shape::Random(number),
        };
        let state = self.log.make(&self.durable, range.clone(), self.seed, self.epoch, shape);
        if self.next == self.random_per_epoch {
            self.log.entries[range].iter().for_each(|entry| entry.apply(&mut self.durable));
            self.epoch += 1;
            self.next = 0;
        } else {
            self.next += 1;
        }
        Some(state)
    }
}

/// What became of a write.
#[derive(Clone, Copy)]
enum Fate {
    Whole,
    Lost,
    Torn,
}

/// Applies a random part of `entries` in random order.
fn scramble(entries: &[Entry], image: &mut Image, rng: &mut StdRng) {
    let mut changes: Vec<&Entry> =
        entries.iter().filter(|e| !matches!(e, Entry::Flush | Entry::Mark(_))).collect();
    if changes.is_empty() {
        return;
    }
    // Independent fates alone would rarely make the states that break ordering rules in a long
    // epoch: one write too late, or one too early.
    let one = rng.random_range(0..changes.len());
    let oddity = if rng.random() { Fate::Lost } else { Fate::Torn };
    let fates: Vec<Fate> = match rng.random_range(0..4) {
        0 => (0..changes.len()).map(|i| if i == one { oddity } else { Fate::Whole }).collect(),
        1 => (0..changes.len()).map(|i| if i == one { Fate::Whole } else { Fate::Lost }).collect(),
        2 => (0..changes.len())
            .map(|i| match i.cmp(&one) {
                std::cmp::Ordering::Less => Fate::Whole,
                std::cmp::Ordering::Equal => oddity,
                std::cmp::Ordering::Greater => Fate::Lost,
            })
            .collect(),
        _ => (0..changes.len())
            .map(|_| match rng.random_range(0..5) {
                0 | 1 => Fate::Whole,
                2 | 3 => Fate::Lost,
                _ => Fate::Torn,
            })
            .collect(),
    };
    let mut order: Vec<(&Entry, Fate)> = changes.drain(..).zip(fates).collect();
    order.shuffle(rng);
    for (entry, fate) in order {
        match fate {
            Fate::Lost => {}
            Fate::Whole if !matches!(entry, Entry::Discard { .. }) => entry.apply(image),
            Fate::Whole | Fate::Torn => apply_sectors(entry, fate, image, rng),
        }
    }
}

/// Applies sectors of one entry, those that a coin (or, half of the time, a torn front or back) picks.
fn apply_sectors(entry: &Entry, fate: Fate, image: &mut Image, rng: &mut StdRng) {
    let (offset, len) = match entry {
        Entry::Write { offset, data } => (*offset, data.len() as u64),
        Entry::Zeroes { offset, len } | Entry::Discard { offset, len } => (*offset, *len),
        Entry::Flush | Entry::Mark(_) => return,
    };
    let end = offset + len;
    let tear = rng.random_range(offset / SECTOR..=end / SECTOR) * SECTOR;
    let style = rng.random_range(0..4);
    let mut at = offset;
    while at < end {
        let next = (at / SECTOR * SECTOR + SECTOR).min(end);
        let kept = match (fate, style) {
            (Fate::Whole, _) => true,
            (_, 0) => at < tear,
            (_, 1) => at >= tear,
            _ => rng.random(),
        };
        if kept {
            match entry {
                Entry::Write { data, .. } => {
                    image.write(at, &data[(at - offset) as usize..(next - offset) as usize]);
                }
                Entry::Discard { .. } => match rng.random_range(0..3) {
                    0 => {}
                    1 => image.zero(at, next - at),
                    _ => image.fill(at, next - at, 0xdb),
                },
                _ => image.zero(at, next - at),
            }
        }
        at = next;
    }
}

#[cfg(test)]
mod tests;
