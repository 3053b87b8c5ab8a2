//! The run of a workload by the model alone: names and contents after each step, and promises.

use super::model::{Change, Effect, Id, Model, Names};
use super::run::Promise;
use super::step::{Slot, Step, Way};
use super::times::KnownTimes;
use super::volume::Start;
use crate::Tracked;
use crate::promises::Settles;
use std::collections::{BTreeMap, BTreeSet};

/// The steps so far.
#[derive(Debug)]
pub(super) struct ModelRun {
    /// The model after the last step.
    pub(super) model: Model,
    /// The times of inodes, and the steps that changed one under a handle of their own.
    pub(super) times: KnownTimes,
    /// Names after each step; the first entry is before all steps.
    pub(super) names: Vec<Names>,
    /// Contents over the steps.
    pub(super) contents: BTreeMap<Id, Tracked>,
    /// Files of which a step has allocated or freed a range.
    pub(super) fallocated: BTreeSet<Id>,
}

impl ModelRun {
    /// Begins with a volume before any step.
    pub(super) fn new(start: &Start) -> Self {
        let track = |(id, content): (&Id, &Vec<u8>)| (*id, Tracked::new(start.model.block, content.clone()));
        Self {
            model: start.model.clone(),
            times: KnownTimes::default(),
            names: vec![start.model.names.clone()],
            contents: start.model.contents.iter().map(track).collect(),
            fallocated: BTreeSet::new(),
        }
    }

    /// Notes the names behind a step.
    pub(super) fn end_step(&mut self) {
        self.names.push(self.model.names.clone());
    }

    /// Records the effect of step `i`.
    pub(super) fn record(&mut self, i: usize, step: &Step, effect: Effect) {
        effect.inodes.iter().for_each(|id| self.times.change(*id, i));
        // A copy may be empty, and leaves the time then.
        self.times.stamp(i, effect.stamp, !matches!(step, Step::Copy { .. }));
        let ranged = effect.change.as_ref().filter(|_| matches!(step, Step::Falloc { .. }));
        self.fallocated.extend(ranged.map(|change| change.file));
        self.track(i, step, effect.change);
        if let Step::Rename { from, to } = step {
            self.settle_renamed(i, step, (from, to));
        }
    }

    /// Notes that a file that has replaced another name is whole as soon as it has that name.
    fn settle_renamed(&mut self, i: usize, step: &Step, (from, to): (&str, &str)) {
        let Some(before) = self.names.last() else { return };
        let (moved, over) = (before.get(from), before.get(to));
        let Some(id) = moved.filter(|_| over.is_some() && over != moved) else { return };
        if let (Some(file), Some(content)) = (self.contents.get_mut(&id), self.model.contents.get(&id)) {
            let settles = Settles { size: true, bytes: 0..usize::MAX, moved: None };
            file.record_settled(i, step.to_string(), content.clone(), settles);
        }
    }

    /// Notes a content that a crash may show of step `i`.
    pub(super) fn track(&mut self, i: usize, step: &Step, change: Option<Change>) {
        for id in self.model.contents.keys() {
            self.contents.entry(*id).or_insert_with(|| Tracked::new(self.model.block, Vec::new()));
        }
        let Some(change) = change else { return };
        if let Some(file) = self.contents.get_mut(&change.file) {
            file.record_settled(i, step.to_string(), change.content, change.settles);
        }
    }

    /// Returns the promises that hold once step `i` has returned.
    pub(super) fn promises(&self, i: usize, step: &Step) -> Vec<Promise> {
        let slot = |slot: &Slot| self.model.slots.get(slot).copied();
        let changed = |id: Id| self.times.last_change(id);
        let mut new = Vec::new();
        match step {
            Step::Sync => {
                new.push(Promise::Names(i));
                new.extend(self.contents.keys().map(|&id| Promise::Content(id, i)));
                new.extend((0..self.model.names.inodes.len()).map(|id| Promise::Times(id, i)));
            }
            Step::Fsync(file) => {
                let id = slot(file);
                new.extend(id.map(|id| Promise::Content(id, i)));
                new.extend(id.and_then(changed).map(Promise::Names));
                new.extend(id.map(|id| Promise::Times(id, i)));
            }
            Step::Fdatasync(file) | Step::Write { way: Way::Dsync, file, .. } => {
                let id = slot(file);
                new.extend(id.map(|id| Promise::Content(id, i)));
                // A file that a step has made is there with its content, and its name with it.
                let is_new = |id: &Id| self.names.first().is_some_and(|names| *id >= names.inodes.len());
                let made = id.filter(is_new).and_then(|id| self.times.first_change(id));
                new.extend(made.map(Promise::Names));
            }
            Step::FsyncDir(path) => {
                let id = self.model.names.get(path);
                new.extend(id.and_then(changed).map(Promise::Names));
                new.extend(id.map(|id| Promise::Times(id, i)));
            }
            _ => {}
        }
        new
    }
}
