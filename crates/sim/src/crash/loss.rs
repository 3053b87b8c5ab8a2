//! The small losses of an epoch: one write lost, alone or torn, and every prefix.
//!
//! They are listed in order of simplicity, so that the first state that fails is the simplest one.
//! A long epoch has many: [`losses`] keeps all prefixes and a seeded sample of the rest.

use crate::Image;
use crate::record::LogEntry;
use crate::seed::rng;
use rand::seq::index::sample;
use std::fmt;
use std::ops::Range;

/// The part of a torn write that is left on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tear {
    /// The sectors of its first half.
    FrontHalf,
    /// The sectors of its second half.
    BackHalf,
    /// Its first sector.
    FirstSector,
    /// Its last sector.
    LastSector,
}

/// The writes of an epoch that a power cut has left on the medium. Writes count from 0 within the
/// epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The first `n` writes are there, in order, and no other.
    Prefix(usize),
    /// The first `of` writes are there but for `lost`.
    Without {
        /// The write that is not there.
        lost: usize,
        /// The number of writes that had been issued.
        of: usize,
    },
    /// One write of the epoch is there, and no other.
    Only(usize),
    /// The first `of` writes are there, one of them in part.
    Torn {
        /// The write that is there in part.
        torn: usize,
        /// What is there of it.
        left: Tear,
        /// The number of writes that had been issued.
        of: usize,
    },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(n) => write!(f, "the first {n} writes of the epoch"),
            Self::Without { lost, of } => {
                write!(f, "the first {of} writes of the epoch without number {lost}")
            }
            Self::Only(n) => write!(f, "only write number {n} of the epoch"),
            Self::Torn { torn, left, of } => {
                write!(f, "the first {of} writes of the epoch, {left:?} of number {torn}")
            }
        }
    }
}

impl Loss {
    /// Returns how many writes had been issued, out of `writes`.
    pub(super) fn issued(self, writes: usize) -> usize {
        match self {
            Self::Prefix(n) => n,
            Self::Without { of, .. } | Self::Torn { of, .. } => of,
            Self::Only(_) => writes,
        }
    }

    /// Applies what is left of `writes`, in their order, of a medium that writes `unit` bytes
    /// whole.
    pub(super) fn apply(self, writes: &[&LogEntry], unit: u64, image: &mut Image) {
        let issued = writes.iter().take(self.issued(writes.len())).enumerate();
        for (i, entry) in issued {
            match self {
                Self::Without { lost, .. } if lost == i => {}
                Self::Only(n) if n != i => {}
                Self::Torn { torn, left, .. } if torn == i => {
                    if let Some(part) = entry.range().and_then(|range| left.part(range, unit)) {
                        entry.apply_part(part, image);
                    }
                }
                _ => entry.apply(image),
            }
        }
    }
}

impl Tear {
    const ALL: [Self; 4] = [Self::FrontHalf, Self::BackHalf, Self::FirstSector, Self::LastSector];

    /// Returns the bytes of the device that a write to `range` has reached; `None` for a range of
    /// one unit of the medium, which does not tear.
    fn part(self, range: Range<u64>, unit: u64) -> Option<Range<u64>> {
        let first = range.start / unit;
        let last = range.end.div_ceil(unit);
        let sectors = last - first;
        if sectors < 2 {
            return None;
        }
        let tear = match self {
            Self::FrontHalf | Self::BackHalf => first + sectors / 2,
            Self::FirstSector => first + 1,
            Self::LastSector => last - 1,
        } * unit;
        Some(match self {
            Self::FrontHalf | Self::FirstSector => range.start..tear,
            Self::BackHalf | Self::LastSector => tear..range.end,
        })
    }
}

/// Lists the losses of an epoch of these writes: all prefixes, and at most `limit` others, a sample
/// by `keys` if there are more.
pub(super) fn losses(writes: &[&LogEntry], unit: u64, limit: usize, keys: &[u64]) -> Vec<Loss> {
    let n = writes.len();
    let mut all: Vec<Loss> = (0..=n).map(Loss::Prefix).collect();
    let mut others: Vec<Loss> = (0..n).map(|lost| Loss::Without { lost, of: n }).collect();
    others.extend((0..n).map(Loss::Only));
    // All others are there, or none that came later.
    for of in [Some(n), None] {
        for (torn, entry) in writes.iter().enumerate() {
            let tears =
                Tear::ALL.iter().filter(|tear| entry.range().is_some_and(|r| tear.part(r, unit).is_some()));
            others.extend(tears.map(|&left| Loss::Torn { torn, left, of: of.unwrap_or(torn + 1) }));
        }
    }
    for of in 2..n {
        others.extend((0..of - 1).map(|lost| Loss::Without { lost, of }));
    }
    if others.len() > limit {
        let mut kept = sample(&mut rng(keys), others.len(), limit).into_vec();
        kept.sort_unstable();
        others = kept.into_iter().map(|i| others[i]).collect();
    }
    all.append(&mut others);
    all
}
