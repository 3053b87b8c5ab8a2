//! Runs a workload on a recording device and on its model, and records each promise of durability
//! with its time.

use super::calls::{Files, carry_out, check_slices};
use super::device::device;
use super::explore::check_no_orphans;
use super::failed_calls::FailedCalls;
use super::model::{Change, Id, Model, Names};
use super::model_run::ModelRun;
use super::observed::Observed;
use super::setting::{RUN_AT, Setting};
use super::step::{Slot, Step};
use super::times::{KnownTimes, Times};
use super::volume::POKED;
use super::workload::{Case, Workload};
use crate::{Poker, PokingDevice, Tracked};
use lanefs::{AtSymlink, Error, File, OpenOptions, SetAttr, Upkeep, Volume};
use lanefs_device::BlockDevice;
use lanefs_sim::{Image, Log, LogEntry, OverlayDevice, RecordingDevice};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A promise that holds from some moment on.
#[derive(Debug, Clone, Copy)]
pub(super) enum Promise {
    /// Step `n` has begun.
    Begun(usize),
    /// Names and inodes are those after step `n`, or later.
    Names(usize),
    /// A file's content is that after step `n`, or later.
    Content(Id, usize),
    /// The times and the version of an inode are those after step `n`, or later.
    Times(Id, usize),
    /// A file has as many sectors as after step `n`, unless a later one changes it.
    Space(Id, usize, u64),
}

/// The record of a workload's run.
#[derive(Debug)]
pub(super) struct Run {
    /// What reached the device.
    pub(super) log: Log,
    /// Names after each step; the first are those before any.
    pub(super) names: Vec<Names>,
    /// Contents over the steps.
    pub(super) contents: BTreeMap<Id, Tracked>,
    /// Times and versions over the steps.
    pub(super) times: KnownTimes,
    /// Entries of the log, and what holds behind them.
    pub(super) promises: Vec<(usize, Promise)>,
    /// The closed volume at the end.
    pub(super) closed: Image,
    /// The journal was aborted.
    pub(super) aborted: bool,
}

impl Run {
    /// Returns whether no write was issued between the last sync and a cut: a volume without a
    /// journal then keeps its promises.
    pub(super) fn is_synced(&self, cut: usize) -> bool {
        let is_sync = |(at, promise): &&(usize, Promise)| *at < cut && !matches!(promise, Promise::Begun(_));
        let Some((synced, _)) = self.promises.iter().rfind(is_sync) else { return false };
        let is_write = |entry: &LogEntry| !matches!(entry, LogEntry::Flush | LogEntry::Mark(_));
        !self.log.entries[*synced..cut].iter().any(is_write)
    }
}

/// A workload under way.
pub(super) struct Runner<'c> {
    pub(super) setting: &'c Setting,
    pub(super) device: Arc<RecordingDevice>,
    pub(super) volume: Volume,
    pub(super) run_model: ModelRun,
    pub(super) files: Files,
    pub(super) promises: Vec<(usize, Promise)>,
    /// Commits before writes, for as long as it is there.
    poker: Option<Poker>,
    /// The device above `device`, where calls are made to fail.
    pub(super) failures: Option<FailedCalls>,
}

/// Runs a case from its first step to its last, closes the volume, and holds it against the model.
///
/// # Errors
/// What went wrong without a crash.
pub(super) fn run(case: &Case) -> Result<Run, String> {
    let (shared, device) = device(case.setting, &case.setting.start().image)?;
    let poking = case.setting.pressure.poke.then(|| Arc::new(PokingDevice::new(Arc::clone(&device))));
    let shared = poking.as_ref().map_or(shared, |poking| Arc::clone(poking) as _);
    let options = case.setting.options();
    let mut runner = Runner::open(case.setting, options, shared, device).map_err(|e| format!("open: {e}"))?;
    if let Some(poking) = poking {
        let poked = runner.volume.open_options().write(true).open(POKED);
        runner.poker = Some(poking.start(poked.map_err(|e| format!("{POKED}: {e}"))?));
    }
    runner.steps(&case.workload)?;
    runner.end()
}

/// Commits until the log is so full that a little more makes a checkpoint due.
pub(super) fn fill_log(volume: &Volume) -> lanefs::Result<()> {
    let levels = || volume.info().journal.levels;
    let mut permissions = 0o700;
    // A checkpoint is due at the half.
    while levels().log_blocks_used + 8 < levels().log_blocks / 2 {
        permissions ^= 0o100;
        commit_apart(volume, permissions)?;
    }
    Ok(())
}

/// Commits a transaction that changes what no step touches.
pub(super) fn commit_apart(volume: &Volume, permissions: u16) -> lanefs::Result<()> {
    let set = SetAttr { permissions: Some(permissions), ..SetAttr::default() };
    volume.set_attr("/lost+found", &set, AtSymlink::NoFollow)?;
    volume.upkeep(Upkeep::Commit)
}

/// Makes the open files what files in use are: written before, and durable. Of an inode that was
/// just read nothing is known, so that a sync of it does more than it has to, and hides what
/// another sync leaves out.
pub(super) fn settle(volume: &Volume, files: &Files) -> lanefs::Result<()> {
    for file in files.values() {
        let mut first = [0];
        file.read_at(&mut first, 0)?;
        file.write_late(&first, 0)?;
    }
    commit_apart(volume, 0o711)?;
    volume.sync()
}

/// The upkeep that drops all metadata from memory except metadata in use or not committed.
const COOLING: [Upkeep; 2] = [Upkeep::Checkpoint, Upkeep::Release];

impl<'c> Runner<'c> {
    /// Opens the volume of a setting on `shared`, which is `device` or lies above it.
    ///
    /// # Errors
    /// The errors of opening, and of what the setting has done before the first step.
    pub(super) fn open(
        setting: &'c Setting,
        options: OpenOptions,
        shared: Arc<dyn BlockDevice>,
        device: Arc<RecordingDevice>,
    ) -> lanefs::Result<Self> {
        let volume = options.open_device(shared)?;
        if setting.pressure.full_log {
            fill_log(&volume)?;
        }
        let mut runner = Runner {
            setting,
            device,
            volume,
            run_model: ModelRun::new(setting.start()),
            files: Files::new(),
            promises: Vec::new(),
            poker: None,
            failures: None,
        };
        runner.open_named()?;
        settle(&runner.volume, &runner.files)?;
        if setting.pressure.cold {
            COOLING.iter().try_for_each(|task| runner.volume.upkeep(*task))?;
        }
        if setting.pressure.dirty {
            runner.files.values().try_for_each(|file| file.write_late(&read(file)?, 0))?;
        }
        if setting.pressure.looked {
            runner.look()?;
        }
        runner.device.begin();
        Ok(runner)
    }

    /// Reads the times and versions of all inodes with a name.
    ///
    /// # Errors
    /// Those of the volume.
    fn look(&mut self) -> lanefs::Result<()> {
        let mut seen = BTreeMap::new();
        for (path, id) in &self.run_model.model.names.paths {
            seen.insert(*id, Times::of(&self.volume.symlink_metadata(path)?));
        }
        self.run_model.times.look(seen);
        Ok(())
    }

    /// Takes all steps of a workload.
    ///
    /// # Errors
    /// What is wrong without a crash.
    pub(super) fn steps(&mut self, workload: &Workload) -> Result<(), String> {
        for (i, step) in (1..).zip(&workload.0) {
            self.step(i, step).map_err(|said| format!("step {i}, {step}: {said}"))?;
        }
        Ok(())
    }

    fn promise(&mut self, promise: Promise) {
        self.promises.push((self.device.mark(""), promise));
    }

    fn step(&mut self, i: usize, step: &Step) -> Result<(), String> {
        self.promise(Promise::Begun(i));
        if *step == Step::Sweep {
            self.close_named();
        }
        let mut after = self.run_model.model.clone();
        let expected = after.apply(i, step);
        let done = carry_out(&self.volume, &self.files, i, step).map(|made| self.files.extend(made));
        if *step == Step::Sweep {
            self.open_named().or_else(|e| self.bear("open", &e))?;
        }
        match (done, expected) {
            (Ok(()), Some(effect)) => {
                self.check_may_change(step)?;
                self.run_model.model = after;
                self.run_model.record(i, step, effect);
                for promise in self.run_model.promises(self.last_known(i), step) {
                    self.promise(promise);
                }
                self.promise_space(i, step);
            }
            (Ok(()), None) => self.bear_success(step)?,
            (Err(_), None) => {}
            (Err(e), Some(effect)) if self.may_refuse(step, &e) => {
                if let Some(change) = effect.change {
                    self.set_well(true);
                    let recorded = self.record_failed(i, step, &change, &e);
                    self.set_well(false);
                    recorded?;
                }
            }
            (Err(e), Some(effect)) => self.bear_failure(i, step, after, &effect, &e)?,
        }
        self.run_model.end_step();
        if *step == Step::Sync {
            self.check_committed()?;
        }
        if self.setting.pressure.commit {
            self.upkeep(Upkeep::Commit)?;
        }
        if self.setting.pressure.cold {
            COOLING.iter().try_for_each(|task| self.upkeep(*task))?;
        }
        if self.setting.pressure.looked {
            self.look().map_err(|e| format!("attributes: {e}"))?;
        }
        self.sweep_if_pressed()
    }

    /// Promises the space of files that an fsync or a sync has made durable, of which a step has
    /// allocated or freed a range. Other files are not asked for it: reading the attributes marks a
    /// version as seen, and then the next write changes the inode.
    fn promise_space(&mut self, i: usize, step: &Step) {
        let ModelRun { model, fallocated, .. } = &self.run_model;
        let space = |(slot, file): (&Slot, &File)| {
            let is_synced = matches!(step, Step::Sync) || *step == Step::Fsync(*slot);
            let id = *model.slots.get(slot).filter(|id| is_synced && fallocated.contains(*id))?;
            Some(Promise::Space(id, i, file.metadata().sectors()))
        };
        let synced: Vec<Promise> = self.files.iter().filter_map(space).collect();
        synced.into_iter().for_each(|promise| self.promise(promise));
    }

    /// Checks that a sync has committed all that there was, also one that failed: a file that
    /// cannot be written out keeps no other change from being durable.
    fn check_committed(&self) -> Result<(), String> {
        let pending = self.volume.info().journal.levels.credits_taken;
        match pending == 0 || self.is_aborted() || self.poker.is_some() {
            true => Ok(()),
            false => Err(format!("a sync has returned, and {pending} changed blocks wait for a commit")),
        }
    }

    /// Returns whether a step may be refused so: for want of space on a volume that is nearly full,
    /// or whose bitmap was read wrong, by a flag of an inode, or for want of extents. A sync of
    /// what was accepted finds its space.
    fn may_refuse(&self, step: &Step, e: &Error) -> bool {
        match e.kind() {
            Error::NoSpace => {
                let is_trim = matches!(step, Step::Trim);
                let is_full = self.setting.shape().free.is_some() && !step.is_persistence() && !is_trim;
                // A group whose bitmap was read wrong has no space.
                let lied = |failures: &FailedCalls| failures.has_failed() && !failures.fault.is_told();
                is_full || self.failures.as_ref().is_some_and(lied)
            }
            Error::NotPermitted(_) => self.run_model.model.names.may_forbid(step),
            Error::NotSupported(_) => !self.setting.shape().has_extents(),
            _ => false,
        }
    }

    /// Evicts all inodes that have a name, with their pages, in a setting that does so.
    ///
    /// # Errors
    /// What may not fail, or not so.
    pub(super) fn sweep_if_pressed(&mut self) -> Result<(), String> {
        if self.setting.pressure.sweep {
            self.close_named();
            self.upkeep(Upkeep::Sweep)?;
            self.open_named().or_else(|e| self.bear("open", &e))?;
        }
        Ok(())
    }

    fn upkeep(&mut self, task: Upkeep) -> Result<(), String> {
        self.volume.upkeep(task).or_else(|e| self.bear(&format!("{task:?}"), &e))
    }

    /// A write that found no space may have been done in part: what the file is now, it may be
    /// after a crash.
    ///
    /// # Errors
    /// Bytes that are neither old nor new.
    pub(super) fn record_failed(
        &mut self,
        i: usize,
        step: &Step,
        change: &Change,
        e: &Error,
    ) -> Result<(), String> {
        let id = change.file;
        self.run_model.times.stamp(i, Some((id, RUN_AT)), false);
        let slot = self.run_model.model.slots.iter().find(|(_, at)| **at == id).map(|(slot, _)| *slot);
        let file = slot.and_then(|slot| self.files.get(&slot)).ok_or("no file")?;
        let now = read(file).map_err(|e| e.to_string())?;
        let old = self.run_model.model.contents.get(&id).cloned().unwrap_or_default();
        let shown = |now: &[u8], other: &[u8], at: usize| now.get(at) == other.get(at);
        let part = (0..now.len()).all(|at| {
            shown(&now, &old, at) || shown(&now, &change.content, at) || at >= old.len() && now[at] == 0
        });
        if !part || now.len() > change.content.len().max(old.len()) {
            let errno = e.errno();
            return Err(format!(
                "errno {errno}, and the file holds neither what it held nor what was written"
            ));
        }
        self.run_model.model.contents.insert(id, now.clone());
        if let Some(file) = self.run_model.contents.get_mut(&id) {
            file.record(i, format!("{step}: {e}"), now);
        }
        Ok(())
    }

    /// Closes the files that have a name: a sweep evicts their inodes.
    fn close_named(&mut self) {
        let Model { slots, names, .. } = &self.run_model.model;
        self.files.retain(|slot, _| slots.get(slot).is_none_or(|id| names.path_of(*id).is_none()));
    }

    /// Opens the files that have a name and are closed.
    ///
    /// # Errors
    /// The errors of opening.
    pub(super) fn open_named(&mut self) -> lanefs::Result<()> {
        for (slot, id) in self.run_model.model.slots.clone() {
            if let Some(path) = self.run_model.model.names.path_of(id)
                && !self.files.contains_key(&slot)
            {
                let file = match self.volume.open_options().read(true).write(true).open(path) {
                    // A flag of chattr(1) forbids to open the path, and not the inode.
                    Err(e) if matches!(e.kind(), Error::NotPermitted(_)) => {
                        let ino = self.volume.symlink_metadata(path)?.ino();
                        self.volume.node_at(ino)?.open_to_write()?
                    }
                    opened => opened?,
                };
                self.files.insert(slot, file);
            }
        }
        Ok(())
    }

    /// Closes the volume, and holds it against the model: while it is open, and when it was opened
    /// again.
    fn end(mut self) -> Result<Run, String> {
        self.poker = None;
        self.check_open()?;
        match self.volume.stats().journal.credits_overdrawn {
            0 => {}
            n => return Err(format!("handles have taken {n} credits more than they had asked for")),
        }
        self.files.clear();
        self.volume.close().map_err(|e| format!("close: {e}"))?;
        let last = self.run_model.names.len() - 1;
        for promise in self.run_model.promises(last, &Step::Sync) {
            self.promises.push((self.device.mark(""), promise));
        }
        let log = self.device.log();
        let closed = self.device.image();
        check_no_orphans(self.setting, &closed)?;
        let device = self.setting.to_recover(OverlayDevice::new(closed.clone()));
        let again = self.setting.recovery().open_device(device).map_err(|e| format!("open again: {e}"))?;
        let observed = Observed::of(&again)?;
        let accounted = observed.check_accounts(&self.setting.start().observed);
        let same = compare(&observed, &self.run_model.model).and(accounted);
        same.map_err(|said| format!("opened again: {said}"))?;
        let Self { run_model: ModelRun { names, contents, times, .. }, promises, .. } = self;
        Ok(Run { log, names, contents, times, promises, closed, aborted: false })
    }

    /// Holds the open volume against the model, and open files without a name too.
    ///
    /// # Errors
    /// The first difference.
    pub(super) fn check_open(&self) -> Result<(), String> {
        compare(&Observed::of(&self.volume)?, &self.run_model.model)
            .map_err(|said| format!("open: {said}"))?;
        for (slot, id) in &self.run_model.model.slots {
            let Some(file) = self.files.get(slot) else {
                // It was closed by a sweep, its open has failed, and then its name went.
                match self.run_model.model.names.path_of(*id) {
                    Some(_) => return Err(format!("{slot}: it is not open")),
                    None => continue,
                }
            };
            let found = read(file).map_err(|e| format!("{slot}: {e}"))?;
            if Some(&found) != self.run_model.model.contents.get(id) {
                return Err(format!("the open file {slot} holds {} other bytes", found.len()));
            }
            check_slices(file, &found, self.run_model.model.block)
                .map_err(|said| format!("{slot}: {said}"))?;
        }
        Ok(())
    }
}

/// Reads a whole file.
pub(super) fn read(file: &File) -> lanefs::Result<Vec<u8>> {
    let mut bytes = vec![0; file.metadata().len() as usize];
    let n = file.read_at(&mut bytes, 0)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// Holds all of a volume against all of a model.
pub(super) fn compare(observed: &Observed, model: &Model) -> Result<(), String> {
    for (id, found) in observed.compare(&model.names)? {
        if let Some(content) = model.contents.get(&id)
            && *content != found.content
        {
            let path = model.names.path_of(id).unwrap_or("?");
            let at = found.content.iter().zip(content).position(|(a, b)| a != b);
            let (len, expected) = (found.content.len(), content.len());
            return Err(format!("{path}: {len} bytes, not {expected}; the first other byte is {at:?}"));
        }
    }
    Ok(())
}
