//! The images that a power cut may leave.
//!
//! A log falls into epochs that end with a flush; the last one ends with the log. After a cut
//! inside an epoch, everything of the epochs before is on the medium. Of the epoch itself, up to
//! the cut, the medium has kept any part. A write is there whole, not at all, or torn at the
//! device's unit (512 bytes, 8 on memory), and overlapping writes may come in any order. A
//! discarded unit reads as what it held, as zeros or as garbage.
//!
//! Invariant: a random state is made of (seed, epoch, number) alone, so that one can be made again.

mod fingerprint;
mod loss;

pub use loss::{Loss, Tear};

use crate::image::PAGE;
use crate::record::{DISCARDED, Log, LogEntry};
use crate::seed::rng;
use crate::{Image, OverlayDevice};
use fingerprint::Fingerprint;
use loss::losses;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::ops::Range;
use std::vec::IntoIter;

/// The origin of an epoch's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Every write, in order.
    Ordered,
    /// The random state of this number.
    Random(usize),
    /// What a small loss leaves.
    Small(Loss),
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
    /// Two states with the same content have the same fingerprint, also those of two logs of which
    /// the first images are clones of one image, before or after changes.
    pub fingerprint: u64,
    /// What the medium holds.
    pub image: Image,
    /// The unit in bytes that the medium writes whole or not at all.
    pub atomic_write: usize,
}

impl CrashState {
    /// Returns a device that holds this state, to run recovery on.
    pub fn device(&self) -> OverlayDevice {
        OverlayDevice::new(self.image.clone()).with_atomic_write(self.atomic_write)
    }

    /// Marks that had been set before the cut, in order, with their sequence numbers.
    pub fn marks<'a>(&self, log: &'a Log) -> impl DoubleEndedIterator<Item = (usize, &'a str)> {
        log.entries[..self.cut].iter().enumerate().filter_map(|(i, entry)| match entry {
            LogEntry::Mark(label) => Some((i, label.as_str())),
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
    /// Returns every epoch's ordered state and `random_per_epoch` random ones, from the first epoch
    /// to the last.
    pub fn crash_states(&self, seed: u64, random_per_epoch: usize) -> CrashStates<'_> {
        CrashStates::new(self, seed, StatePlan::Random(random_per_epoch))
    }

    /// Returns every epoch's prefixes, and up to `limit` states in which a single write of it was
    /// lost, torn or alone, from the first epoch to the last, the simplest of an epoch first. An
    /// epoch with more of them is sampled by `seed`. Of states with the same content and the same
    /// marks only the first comes.
    pub fn small_states(&self, seed: u64, limit: usize) -> CrashStates<'_> {
        CrashStates::new(self, seed, StatePlan::Small(limit))
    }

    /// Returns the one state that [`crash_states`](Self::crash_states) or
    /// [`small_states`](Self::small_states) made of these numbers.
    pub fn crash_state(&self, seed: u64, epoch: usize, shape: Shape) -> Option<CrashState> {
        let mut states = self.crash_states(seed, 0);
        while states.epoch < epoch {
            states.advance()?;
        }
        (states.epoch < states.epochs.len()).then(|| states.make(shape))
    }

    /// Ranges of entries, each up to and with a flush; the last may have none.
    fn epochs(&self) -> Vec<Range<usize>> {
        let mut start = 0;
        let mut epochs = Vec::new();
        for (i, entry) in self.entries.iter().enumerate() {
            if matches!(entry, LogEntry::Flush) {
                epochs.push(start..i + 1);
                start = i + 1;
            }
        }
        epochs.push(start..self.entries.len());
        epochs
    }
}

/// The states of an epoch that are made.
#[derive(Debug, Clone, Copy)]
enum StatePlan {
    /// The ordered state, and this many random states.
    Random(usize),
    /// The prefixes, and this many states of small losses.
    Small(usize),
}

/// The iterator over the states of a [`Log`].
///
/// What is durable is built up once, epoch by epoch; a state costs its own epoch's writes.
#[derive(Debug)]
pub struct CrashStates<'a> {
    log: &'a Log,
    epochs: Vec<Range<usize>>,
    seed: u64,
    plan: StatePlan,
    durable: Image,
    print: Fingerprint,
    epoch: usize,
    /// Pages that the epoch's writes touch.
    touched: BTreeSet<u64>,
    /// States of the epoch that are still to come.
    shapes: IntoIter<Shape>,
    /// Fingerprints and numbers of marks of the small states so far.
    seen: HashSet<(u64, usize)>,
}

impl<'a> CrashStates<'a> {
    fn new(log: &'a Log, seed: u64, plan: StatePlan) -> Self {
        let mut states = Self {
            log,
            epochs: log.epochs(),
            seed,
            plan,
            durable: log.base.clone(),
            print: Fingerprint::new(&log.base),
            epoch: 0,
            touched: BTreeSet::new(),
            shapes: Vec::new().into_iter(),
            seen: HashSet::new(),
        };
        states.begin_epoch();
        states
    }

    /// Lists the states of the epoch, and the pages that they differ in.
    fn begin_epoch(&mut self) {
        let Some(range) = self.epochs.get(self.epoch).cloned() else { return };
        let (log, seed, epoch) = (self.log, self.seed, self.epoch as u64);
        let writes = log.entries[range].iter().filter_map(|entry| Some((entry, entry.range()?)));
        let (writes, ranges): (Vec<&LogEntry>, Vec<Range<u64>>) = writes.unzip();
        let pages = |range: &Range<u64>| range.start / PAGE as u64..range.end.div_ceil(PAGE as u64);
        self.touched = ranges.iter().flat_map(pages).collect();
        let shapes: Vec<Shape> = match self.plan {
            StatePlan::Random(n) => [Shape::Ordered].into_iter().chain((0..n).map(Shape::Random)).collect(),
            StatePlan::Small(limit) => losses(&writes, log.atomic_write as u64, limit, &[seed, epoch])
                .into_iter()
                .map(Shape::Small)
                .collect(),
        };
        self.shapes = shapes.into_iter();
    }

    /// Goes on to the next epoch; `None` behind the last.
    fn advance(&mut self) -> Option<()> {
        let range = self.epochs.get(self.epoch)?.clone();
        self.log.entries[range].iter().for_each(|entry| entry.apply(&mut self.durable));
        self.print.advance(&self.durable, &self.touched);
        self.epoch += 1;
        self.begin_epoch();
        Some(())
    }

    fn make(&self, shape: Shape) -> CrashState {
        let Range { start, end } = self.epochs[self.epoch].clone();
        let entries = &self.log.entries;
        // The flush itself has not returned: no mark after it can be set.
        let last = if end > start && matches!(entries[end - 1], LogEntry::Flush) { end - 1 } else { end };
        let mut image = self.durable.clone();
        let cut = match shape {
            Shape::Ordered => {
                entries[start..last].iter().for_each(|entry| entry.apply(&mut image));
                last
            }
            Shape::Random(number) => {
                let mut rng = rng(&[self.seed, self.epoch as u64, number as u64]);
                // Half of the cuts come at the end, where most is at stake.
                let cut = if rng.random() { last } else { rng.random_range(start..=last) };
                scramble(&entries[start..cut], self.log.atomic_write as u64, &mut image, &mut rng);
                cut
            }
            Shape::Small(loss) => {
                let (at, writes): (Vec<usize>, Vec<&LogEntry>) =
                    (start..last).map(|i| (i, &entries[i])).filter(|(_, e)| e.range().is_some()).unzip();
                loss.apply(&writes, self.log.atomic_write as u64, &mut image);
                // As late as can be, before the first write that had not been issued: most has been
                // promised then.
                at.get(loss.issued(writes.len())).copied().unwrap_or(last)
            }
        };
        let fingerprint = self.print.of(&image, &self.touched);
        let (epoch, seed, atomic_write) = (self.epoch, self.seed, self.log.atomic_write);
        CrashState { cut, durable: start, epoch, shape, seed, fingerprint, image, atomic_write }
    }

    /// Returns whether a small state is another than all before: in content, or in what had been
    /// promised.
    fn is_new(&mut self, state: &CrashState) -> bool {
        matches!(self.plan, StatePlan::Random(_))
            || self.seen.insert((state.fingerprint, state.marks(self.log).count()))
    }
}

impl Iterator for CrashStates<'_> {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        loop {
            match self.shapes.next() {
                Some(shape) => {
                    let state = self.make(shape);
                    if self.is_new(&state) {
                        return Some(state);
                    }
                }
                None => self.advance().filter(|()| self.epoch < self.epochs.len())?,
            }
        }
    }
}

/// The fate of a write.
#[derive(Clone, Copy)]
enum Fate {
    Whole,
    Lost,
    Torn,
}

/// Applies a random part of `entries` in random order, torn at multiples of `unit`.
fn scramble(entries: &[LogEntry], unit: u64, image: &mut Image, rng: &mut StdRng) {
    let mut changes: Vec<&LogEntry> =
        entries.iter().filter(|e| !matches!(e, LogEntry::Flush | LogEntry::Mark(_))).collect();
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
    let mut order: Vec<(&LogEntry, Fate)> = changes.drain(..).zip(fates).collect();
    order.shuffle(rng);
    for (entry, fate) in order {
        match fate {
            Fate::Lost => {}
            Fate::Whole if !matches!(entry, LogEntry::Discard { .. }) => entry.apply(image),
            Fate::Whole | Fate::Torn => apply_units(entry, fate, unit, image, rng),
        }
    }
}

/// Applies units of one entry, those that a coin (or, half of the time, a torn front or back)
/// picks.
fn apply_units(entry: &LogEntry, fate: Fate, unit: u64, image: &mut Image, rng: &mut StdRng) {
    let (offset, len) = match entry {
        LogEntry::Write { offset, data } => (*offset, data.len() as u64),
        LogEntry::Zeroes { offset, len } | LogEntry::Discard { offset, len } => (*offset, *len),
        LogEntry::Flush | LogEntry::Mark(_) => return,
    };
    let end = offset + len;
    let tear = rng.random_range(offset / unit..=end / unit) * unit;
    let style = rng.random_range(0..4);
    let mut at = offset;
    while at < end {
        let next = (at / unit * unit + unit).min(end);
        let kept = match (fate, style) {
            (Fate::Whole, _) => true,
            (_, 0) => at < tear,
            (_, 1) => at >= tear,
            _ => rng.random(),
        };
        if kept {
            match entry {
                LogEntry::Write { data, .. } => {
                    image.write(at, &data[(at - offset) as usize..(next - offset) as usize]);
                }
                LogEntry::Discard { .. } => match rng.random_range(0..3) {
                    0 => {}
                    1 => image.zero(at, next - at),
                    _ => image.fill(at, next - at, DISCARDED),
                },
                _ => image.zero(at, next - at),
            }
        }
        at = next;
    }
}

#[cfg(test)]
mod tests;
