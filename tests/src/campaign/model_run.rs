//! The run of a workload by the model alone: names and contents after each step, and promises.

use super::model::{Change, Effect, Id, Model, Names};
use super::run::Promise;
use super::step::{Slot, Step, Way};
use super::volume::Start;
use crate::Tracked;
use crate::promises::Settles;
use std::collections::{BTreeMap, BTreeSet};

/// The steps so far.
#[derive(Debug)]
pub(super) struct ModelRun {
    /// The model after the last step.
    pub(super) model: Model,
    /// The last step that changed an inode under a handle of its own.
    changed: BTreeMap<Id, usize>,
    /// Files whose content was changed by a call that gives them a new time.
    stamped: BTreeSet<Id>,
    /// Names after each step; the first entry is before all steps.
    pub(super) names: Vec<Names>,
    /// Contents over the steps.
    pub(super) contents: BTreeMap<Id, Tracked>,
}

impl ModelRun {
    /// Begins with a volume before any step.
    pub(super) fn new(start: &Start) -> Self {
        let track = |(id, content): (&Id, &Vec<u8>)| (*id, Tracked::new(start.model.block, content.clone()));
        Self {
            model: start.model.clone(),
            changed: BTreeMap::new(),
            stamped: BTreeSet::new(),
            names: vec![start.model.names.clone()],
            contents: start.model.contents.iter().map(track).collect(),
        }
    }

    /// Notes the names behind a step.
    pub(super) fn end_step(&mut self) {
        self.names.push(self.model.names.clone());
    }

    /// Records the effect of step `i`.
    pub(super) fn record(&mut self, i: usize, step: &Step, effect: Effect) {
        self.changed.extend(effect.inodes.iter().map(|id| (*id, i)));
        // A late write keeps its time. An empty write does not count.
        let late = matches!(step, Step::Write { way: Way::Late, .. } | Step::Copy { .. });
        self.stamped.extend(effect.change.iter().filter(|_| !late).map(|change| change.file));
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
        let changed = |id: &Id| self.changed.get(id).copied();
        let mut new = Vec::new();
        match step {
            Step::Sync => {
                new.push(Promise::Names(i));
                new.extend(self.contents.keys().map(|&id| Promise::Content(id, i)));
                new.extend(self.stamped.iter().map(|&id| Promise::Stamped(id)));
            }
            Step::Fsync(file) => {
                let id = slot(file);
                new.extend(id.map(|id| Promise::Content(id, i)));
                new.extend(id.as_ref().and_then(changed).map(Promise::Names));
                new.extend(id.filter(|id| self.stamped.contains(id)).map(Promise::Stamped));
            }
            Step::Fdatasync(file) | Step::Write { way: Way::Dsync, file, .. } => {
                new.extend(slot(file).map(|id| Promise::Content(id, i)));
            }
            Step::FsyncDir(path) => {
                let id = self.model.names.get(path);
                new.extend(id.as_ref().and_then(changed).map(Promise::Names));
            }
            _ => {}
        }
        new
    }
}
