//! Judges atomicity: whether the writes and reads of threads on one file are explained by some
//! order.
//!
//! A write fills its whole range with a stamp that no other write has, word by word. The stamps in
//! a read show which writes came before it. There must be an order of all calls in which every read
//! sees a write completely or not at all, a call that ended before another began precedes it, and
//! no write is lost. A truncation counts as a write of zeros from its offset on.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a stamp. All places and lengths are in these.
pub const WORD: usize = 8;

/// A clock whose ticks are all different: what orders calls of several threads.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// The next tick.
    pub fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// A write, or a truncation: the stamp 0 from a place on.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Change {
    pub stamp: u64,
    pub words: Range<u64>,
    /// Ticks before the call and after it.
    pub call: Range<u64>,
}

/// A read.
#[derive(Debug, Clone)]
pub struct Look {
    /// The words that it asked for.
    pub words: Range<u64>,
    /// Stamps found, with the first word of each run.
    runs: Vec<(u64, u64)>,
    /// Ticks before the call and after it.
    pub call: Range<u64>,
}

impl Look {
    /// What a read of `words` found; words that `bytes` lacks were beyond the end of the file.
    pub fn new(words: Range<u64>, bytes: &[u8], call: Range<u64>) -> Self {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let found = bytes.chunks_exact(WORD).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
        for (word, stamp) in words.clone().zip(found.chain(std::iter::repeat(0))) {
            if runs.last().is_none_or(|(_, last)| *last != stamp) {
                runs.push((word, stamp));
            }
        }
        Self { words, runs, call }
    }

    fn runs(&self) -> impl Iterator<Item = (Range<u64>, u64)> {
        let ends = self.runs.iter().skip(1).map(|(start, _)| *start).chain([self.words.end]);
        self.runs.iter().zip(ends).map(|((start, stamp), end)| (*start..end, *stamp))
    }
}

/// All that happened to one file that was empty at first.
#[derive(Debug)]
pub struct History {
    /// By the tick at which they began.
    changes: Vec<Change>,
    /// Of each stamp but 0, the place in `changes`.
    by_stamp: BTreeMap<u64, usize>,
    /// Places of the truncations in `changes`.
    zeros: Vec<usize>,
}

fn meet(a: &Range<u64>, b: &Range<u64>) -> Option<Range<u64>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (both.start < both.end).then_some(both)
}

/// Returns whether all of `a` was before `b`.
fn before(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.end < b.start
}

impl History {
    /// Takes the changes of all threads, in any order.
    pub fn new(mut changes: Vec<Change>) -> Self {
        changes.push(Change { stamp: 0, words: 0..u64::MAX, call: 0..0 });
        changes.sort_by_key(|c| c.call.start);
        let numbered = || changes.iter().enumerate();
        let by_stamp = numbered().filter(|(_, c)| c.stamp != 0).map(|(i, c)| (c.stamp, i)).collect();
        let zeros = numbered().filter(|(_, c)| c.stamp == 0).map(|(i, _)| i).collect();
        Self { changes, by_stamp, zeros }
    }

    /// Returns whether `look` can have been.
    ///
    /// # Errors
    /// What cannot.
    pub fn check(&self, look: &Look) -> Result<(), String> {
        let mut seen = BTreeMap::new();
        for (run, stamp) in look.runs().filter(|(_, stamp)| *stamp != 0) {
            let index = self
                .by_stamp
                .get(&stamp)
                .ok_or(format!("word {}: {stamp:#x} was never written", run.start))?;
            let change = &self.changes[*index];
            if meet(&run, &change.words) != Some(run.clone()) {
                return Err(format!("words {run:?} show a write to other words: {change:?}"));
            }
            if before(&look.call, &change.call) {
                return Err(format!("words {run:?} show a write of the future: {change:?}"));
            }
            seen.insert(stamp, change);
        }
        look.runs().try_for_each(|(run, stamp)| self.check_lost(look, &run, stamp))?;
        self.check_torn(look, &seen)
    }

    /// The last truncation that `look` can show at `word`.
    fn zeroed(&self, look: &Look, word: u64) -> &Change {
        let zeros = self.zeros.iter().map(|i| &self.changes[*i]);
        let possible = zeros.filter(|z| z.words.start <= word && !before(&look.call, &z.call));
        possible.max_by_key(|z| z.call.end).unwrap_or(&self.changes[0])
    }

    /// What a run shows must not have been replaced before the read began.
    fn check_lost(&self, look: &Look, run: &Range<u64>, stamp: u64) -> Result<(), String> {
        let source = match stamp {
            0 => self.zeroed(look, run.start),
            _ => &self.changes[self.by_stamp[&stamp]],
        };
        let later = self.changes.partition_point(|c| c.call.start <= source.call.end);
        for change in self.changes[later..].iter().take_while(|c| c.call.start < look.call.start) {
            let Some(words) = meet(run, &change.words) else { continue };
            let lost = before(&change.call, &look.call)
                && change.stamp != stamp
                && (stamp != 0 || before(&self.zeroed(look, words.start).call, &change.call));
            if lost {
                return Err(format!(
                    "words {words:?} show {stamp:#x} of {:?}, and a later change is lost: {change:?}",
                    source.call
                ));
            }
        }
        Ok(())
    }

    /// Of each write that is seen, all must be seen, but for what came later; and later must be an
    /// order.
    fn check_torn(&self, look: &Look, seen: &BTreeMap<u64, &Change>) -> Result<(), String> {
        let mut after: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (&stamp, change) in seen {
            for (run, other) in look.runs().filter(|(_, other)| *other != stamp) {
                let Some(words) = meet(&run, &change.words) else { continue };
                if other == 0 {
                    if before(&self.zeroed(look, words.start).call, &change.call) {
                        return Err(format!("torn: words {words:?} are zeros, and others show {change:?}"));
                    }
                } else {
                    after.entry(stamp).or_default().push(other);
                }
            }
            let later = seen.iter().filter(|(_, other)| before(&change.call, &other.call)).map(|(s, _)| *s);
            after.entry(stamp).or_default().extend(later);
        }
        // Takes away the writes that nothing comes before, until none is left.
        let mut firsts: BTreeMap<u64, usize> = seen.keys().map(|s| (*s, 0)).collect();
        after.values().flatten().for_each(|s| *firsts.entry(*s).or_default() += 1);
        let mut ready: Vec<u64> = firsts.iter().filter(|(_, n)| **n == 0).map(|(s, _)| *s).collect();
        while let Some(stamp) = ready.pop() {
            firsts.remove(&stamp);
            for next in after.remove(&stamp).unwrap_or_default() {
                let Some(n) = firsts.get_mut(&next) else { continue };
                *n -= 1;
                if *n == 0 {
                    ready.push(next);
                }
            }
        }
        let circle: Vec<&Change> = firsts.keys().map(|s| seen[s]).take(6).collect();
        match circle.is_empty() {
            true => Ok(()),
            false => Err(format!("torn: each of these writes is seen over another of them: {circle:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(stamp: u64, words: Range<u64>, call: Range<u64>) -> Change {
        Change { stamp, words, call }
    }

    fn look(start: u64, stamps: &[u64], call: Range<u64>) -> Look {
        let bytes: Vec<u8> = stamps.iter().flat_map(|s| s.to_le_bytes()).collect();
        Look::new(start..start + stamps.len() as u64, &bytes, call)
    }

    #[test]
    fn what_can_be() {
        let history = History::new(vec![
            change(1, 0..4, 1..10),
            change(2, 2..6, 5..12),
            change(0, 5..u64::MAX, 20..21),
            change(3, 8..9, 22..23),
        ]);
        for (stamps, call) in [
            (vec![0, 0, 0, 0, 0, 0], 2..6),
            (vec![1, 1, 1, 1, 0, 0], 2..6),
            (vec![1, 1, 2, 2, 2, 2], 13..14),
            (vec![1, 1, 1, 1, 2, 2], 13..14),
            (vec![1, 1, 2, 2, 2, 0], 19..21),
            (vec![1, 1, 2, 2, 2, 0, 0, 0, 3], 24..25),
            (vec![1, 1, 2, 2, 2, 0, 0, 0, 0], 21..22),
        ] {
            history.check(&look(0, &stamps, call)).unwrap();
        }
        history.check(&Look::new(0..9, &[], 2..6)).unwrap();
    }

    #[test]
    fn what_cannot_be() {
        let history = History::new(vec![
            change(1, 0..4, 1..10),
            change(2, 2..6, 5..12),
            change(4, 0..2, 13..14),
            change(0, 5..u64::MAX, 20..21),
            change(3, 8..9, 22..23),
        ]);
        for (stamps, call, said) in [
            (vec![1, 1, 0, 0], 2..6, "torn"),
            (vec![1, 1, 2, 1, 2, 2], 6..7, "torn"),
            (vec![1, 1, 2, 2, 0, 0], 6..7, "torn"),
            (vec![9, 0], 2..6, "never"),
            (vec![0, 2], 6..7, "other words"),
            (vec![4, 4], 2..6, "future"),
            (vec![1, 1], 15..16, "lost"),
            (vec![4, 0], 15..16, "lost"),
            (vec![4, 4, 2, 2, 2, 2], 23..25, "lost"),
            (vec![4, 4, 2, 2, 2, 0, 0, 0, 0], 24..25, "lost"),
        ] {
            let error = history.check(&look(0, &stamps, call.clone())).unwrap_err();
            assert!(error.contains(said), "{stamps:?} in {call:?}: {error}");
        }
    }
}
