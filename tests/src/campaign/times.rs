//! The times and versions of inodes over the steps of a run, and those that a crash may leave.
//!
//! A sync and an fsync promise the times of all steps before. The clock of a run stands still: only
//! `touch` sets another time. In the setting `looked` all attributes are read behind each step, and
//! therefore each step that changes an inode makes a new version of it.

use super::model::Id;
use super::setting::RUN_AT;
use crate::promises::Known;
use lanefs::{Metadata, Timestamp};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The times of an inode, and its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Times {
    mtime: Timestamp,
    ctime: Timestamp,
    crtime: Option<Timestamp>,
    version: u64,
}

impl Times {
    /// Returns those of an inode's attributes.
    pub(super) fn of(meta: &Metadata) -> Self {
        let (mtime, ctime, crtime) = (meta.mtime(), meta.ctime(), meta.crtime());
        Self { mtime, ctime, crtime, version: meta.version() }
    }
}

/// The time of a file's content that a step set.
#[derive(Debug, Clone, Copy)]
struct Stamp {
    step: usize,
    mtime: Timestamp,
    /// Whether the step has set it for certain: it has not failed, and was not without effect.
    is_certain: bool,
}

/// What is known of the times of inodes over the steps of a run.
#[derive(Debug, Default)]
pub(super) struct KnownTimes {
    /// The steps that changed an inode under a handle of their own, in order.
    changed: BTreeMap<Id, Vec<usize>>,
    /// The times of the content of files, in the order of the steps.
    stamps: BTreeMap<Id, Vec<Stamp>>,
    /// The times and versions after each step, first those before all steps. Empty where nothing
    /// looks at them.
    looks: Vec<BTreeMap<Id, Times>>,
}

impl KnownTimes {
    /// Notes that a step changed an inode under a handle of its own.
    pub(super) fn change(&mut self, id: Id, step: usize) {
        self.changed.entry(id).or_default().push(step);
    }

    /// Returns the first step that changed an inode under a handle of its own: the step that made
    /// it, if it is new.
    pub(super) fn first_change(&self, id: Id) -> Option<usize> {
        self.changed.get(&id).and_then(|steps| steps.first().copied())
    }

    /// Returns whether one of `steps` changed an inode under a handle of its own.
    pub(super) fn has_changed(&self, id: Id, steps: &RangeInclusive<usize>) -> bool {
        self.changed.get(&id).is_some_and(|changed| changed.iter().any(|step| steps.contains(step)))
    }

    /// Returns the last step that changed an inode under a handle of its own.
    pub(super) fn last_change(&self, id: Id) -> Option<usize> {
        self.changed.get(&id).and_then(|steps| steps.last().copied())
    }

    /// Notes the time that a step gave the content of a file.
    pub(super) fn stamp(&mut self, step: usize, stamp: Option<(Id, Timestamp)>, is_certain: bool) {
        if let Some((id, mtime)) = stamp {
            self.stamps.entry(id).or_default().push(Stamp { step, mtime, is_certain });
        }
    }

    /// Notes the times and versions behind a step.
    pub(super) fn look(&mut self, seen: BTreeMap<Id, Times>) {
        self.looks.push(seen);
    }

    /// Judges what was `found` of an inode after a crash.
    ///
    /// # Errors
    /// Times or a version that no crash leaves.
    pub(super) fn judge(&self, id: Id, found: &Times, known: Known) -> Result<(), String> {
        self.judge_stamps(id, found, known)?;
        self.judge_looks(id, found, known)
    }

    /// Judges the time of a file's content: the last that was synced, or that was there before a
    /// change under a handle that is there, or one of a later step.
    fn judge_stamps(&self, id: Id, found: &Times, known: Known) -> Result<(), String> {
        let Some(stamps) = self.stamps.get(&id) else { return Ok(()) };
        let there = self.changed.get(&id).and_then(|steps| steps.iter().rfind(|step| **step <= known.named));
        let known_to = known.synced.max(there.copied().unwrap_or(0));
        let is_synced = |stamp: &Stamp| stamp.is_certain && stamp.step <= known_to;
        let Some(first) = stamps.iter().rposition(is_synced) else { return Ok(()) };
        let begun = stamps[first..].iter().take_while(|stamp| stamp.step <= known.begun);
        let allowed: Vec<Timestamp> = begun.map(|stamp| stamp.mtime).collect();
        let Times { mtime, ctime, .. } = *found;
        match allowed.contains(&mtime) && ctime == RUN_AT {
            true => Ok(()),
            false => Err(format!(
                "mtime is {mtime:?} and ctime {ctime:?}, and one of {allowed:?} was synced at {RUN_AT:?}"
            )),
        }
    }

    /// Judges all times and the version. They are not older than the last sync, nor than the last
    /// change under a handle of its own that is there. They are older than the first such change
    /// that is not there. Of writes between, any may be there.
    fn judge_looks(&self, id: Id, found: &Times, known: Known) -> Result<(), String> {
        let changed = self.changed.get(&id).map(Vec::as_slice).unwrap_or_default();
        let (there, missing) = changed.split_at(changed.partition_point(|step| *step <= known.named));
        let first = known.synced.max(there.last().copied().unwrap_or(0));
        let last = missing.first().map_or(known.begun, |missing| known.begun.min(missing - 1));
        let after = |step: usize| self.looks.get(step)?.get(&id);
        let seen: Vec<&Times> = (first..=last).filter_map(after).collect();
        let (Some(oldest), Some(newest)) = (seen.first(), seen.last()) else { return Ok(()) };
        let is_right = (oldest.version..=newest.version).contains(&found.version)
            && seen.iter().any(|times| times.mtime == found.mtime)
            && seen.iter().any(|times| times.ctime == found.ctime)
            && newest.crtime == found.crtime;
        match is_right {
            true => Ok(()),
            false => Err(format!("{found:?}, and after steps {first} to {last} it was one of {seen:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: Timestamp = Timestamp { sec: 7, nsec: 0 };

    fn times(version: u64, mtime: Timestamp) -> Times {
        Times { mtime, ctime: RUN_AT, crtime: None, version }
    }

    #[test]
    fn a_time_that_was_synced_is_there() {
        let mut known = KnownTimes::default();
        known.stamp(1, Some((5, RUN_AT)), true);
        known.stamp(3, Some((5, SET)), true);
        known.stamp(4, Some((5, RUN_AT)), false);
        let ok = |mtime, synced, begun| {
            known.judge(5, &times(1, mtime), Known { synced, named: begun, begun }).is_ok()
        };
        let earlier = Timestamp::default();
        assert!(ok(earlier, 0, 4), "nothing was synced");
        assert!(ok(RUN_AT, 1, 2) && ok(SET, 1, 3) && !ok(SET, 1, 2) && !ok(earlier, 2, 4));
        assert!(ok(SET, 3, 3) && !ok(RUN_AT, 3, 3) && ok(RUN_AT, 3, 4) && ok(SET, 4, 4));
    }

    /// Step 1 writes, step 2 changes the inode itself, and step 3 writes again.
    #[test]
    fn a_version_comes_with_its_step_or_with_a_sync() {
        let mut known = KnownTimes::default();
        (1..=4).for_each(|version| known.look(BTreeMap::from([(5, times(version, RUN_AT))])));
        known.change(5, 2);
        let ok = |version, synced, named, begun| {
            known.judge(5, &times(version, RUN_AT), Known { synced, named, begun }).is_ok()
        };
        assert!(ok(1, 0, 0, 1) && ok(2, 0, 0, 1) && ok(2, 0, 1, 3));
        assert!(!ok(2, 0, 0, 0) && !ok(3, 0, 1, 3) && !ok(4, 0, 1, 3), "step 2 is not there");
        assert!(ok(3, 0, 2, 3) && ok(4, 0, 2, 3) && !ok(2, 0, 2, 3), "step 2 is there");
        assert!(!ok(3, 3, 3, 3) && ok(4, 3, 3, 3) && !ok(1, 1, 1, 1));
        let mut other = times(4, SET);
        assert!(known.judge(5, &other, Known { synced: 3, named: 3, begun: 3 }).is_err());
        (other.mtime, other.ctime) = (RUN_AT, SET);
        assert!(known.judge(5, &other, Known { synced: 3, named: 3, begun: 3 }).is_err());
    }
}
