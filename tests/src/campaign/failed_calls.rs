//! Judges a workload on a device with failing calls: the effects that a failed step may leave, and
//! the steps that must be refused afterwards.
//!
//! If a step fails and the journal is not aborted, the step is done completely or not at all; a
//! read of the open volume without faults shows which. A write of content may be done in part. If
//! the journal is aborted, the failed step may or may not be there after the next open, and every
//! later change must be refused.

use super::fault::Fault;
use super::model::{Effect, Model};
use super::model_run::ModelRun;
use super::observed::Observed;
use super::run::{Run, Runner, read};
use super::step::Step;
use lanefs::Error;
use lanefs_format::RoCompat;
use lanefs_sim::{FailingDevice, RecordingDevice};
use std::sync::Arc;
use std::time::Duration;

/// How often an abort is waited for, 10 ms each.
const NAPS: usize = 1000;

/// The device of a run that fails.
pub(super) type Device = FailingDevice<Arc<RecordingDevice>>;

/// The state of a run with failing calls.
#[derive(Debug)]
pub(super) struct FailedCalls {
    /// The device.
    pub(super) device: Arc<Device>,
    /// The fault to inject.
    pub(super) fault: Fault,
    /// The journal is aborted: the effect of the failed step is not known.
    pub(super) aborted: bool,
    /// The step that failed then.
    pub(super) failed: Option<usize>,
}

impl FailedCalls {
    /// Returns whether a call has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.device.failures() > 0
    }

    /// Checks that a call may fail so.
    ///
    /// # Errors
    /// Before a call of the device has failed; another errno than one that tells of it.
    pub(super) fn check_error(&self, what: &str, e: &Error) -> Result<(), String> {
        if !self.has_failed() {
            return Err(format!("{what}: {e}, and no call of the device has failed"));
        }
        match self.fault.allows(e.errno()) {
            true => Ok(()),
            false => Err(format!("{what}: errno {}, which does not tell of it: {e}", e.errno())),
        }
    }

    /// Runs `f` on a device that is well.
    fn well<T>(&self, f: impl FnOnce() -> T) -> T {
        self.device.pause(true);
        let done = f();
        self.device.pause(false);
        done
    }
}

impl Runner<'_> {
    fn has_failed(&self) -> bool {
        self.failures.as_ref().is_some_and(FailedCalls::has_failed)
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.failures.as_ref().is_some_and(|failures| failures.aborted)
    }

    /// Accepts an error of an operation that is not a step.
    ///
    /// # Errors
    /// It may not fail, or not so.
    pub(super) fn bear(&mut self, what: &str, e: &Error) -> Result<(), String> {
        let failures = self.failures.as_ref().ok_or_else(|| format!("{what}: {e}"))?;
        failures.check_error(what, e)?;
        self.note_abort();
        Ok(())
    }

    /// Accepts the success of a step that the names do not allow.
    ///
    /// # Errors
    /// It is known what the names are.
    pub(super) fn bear_success(&self, step: &Step) -> Result<(), String> {
        match self.is_aborted() && step.is_persistence() {
            true => Ok(()),
            false => Err("it was not refused".into()),
        }
    }

    /// Checks that a step that was taken may be.
    ///
    /// # Errors
    /// A change after an abort.
    pub(super) fn check_may_change(&self, step: &Step) -> Result<(), String> {
        let changes = !step.is_persistence();
        match self.is_aborted() && changes {
            true => Err("a change was taken after the journal was aborted".into()),
            false => Ok(()),
        }
    }

    /// Returns the last step up to `i` that is known to be done: the step that a successful sync
    /// promises.
    pub(super) fn last_known(&self, i: usize) -> usize {
        let failed = self.failures.as_ref().and_then(|failures| failures.failed);
        failed.map_or(i, |failed| i.min(failed - 1))
    }

    /// Takes the error of step `i`, which would have made `after` of the volume.
    ///
    /// # Errors
    /// It may not fail, or not so; it is half done.
    pub(super) fn bear_failure(
        &mut self,
        i: usize,
        step: &Step,
        after: Model,
        effect: &Effect,
        e: &Error,
    ) -> Result<(), String> {
        let failures = self.failures.as_ref().ok_or_else(|| e.to_string())?;
        // A file that could not be opened again behind a sweep.
        let is_closed = self.run_model.model.slots.keys().any(|slot| !self.files.contains_key(slot));
        if is_closed && matches!(e.kind(), Error::NotFound) {
            return Ok(());
        }
        // A file that an earlier step should have created may be missing.
        if !self.is_aborted() {
            failures.check_error("it failed", e)?;
        }
        let was_aborted = self.is_aborted();
        self.note_abort();
        if was_aborted {
            return Ok(());
        }
        self.run_model.times.stamp(i, effect.stamp, false);
        if self.is_aborted() {
            // It may be there or not.
            self.run_model.model = after;
            self.run_model.track(i, step, effect.change.clone());
            if let Some(failures) = &mut self.failures {
                failures.failed = Some(i);
            }
            return Ok(());
        }
        self.set_well(true);
        let found = self.find_done(i, step, after, effect, e);
        self.set_well(false);
        found
    }

    /// Makes the device pass on all calls, uncounted, while the campaign itself reads.
    pub(super) fn set_well(&self, well: bool) {
        if let Some(failures) = &self.failures {
            failures.device.pause(well);
        }
    }

    /// Finds out whether a step that failed was done.
    fn find_done(
        &mut self,
        i: usize,
        step: &Step,
        after: Model,
        effect: &Effect,
        e: &Error,
    ) -> Result<(), String> {
        if let Some(change) = &effect.change {
            return self.record_failed(i, step, change, e);
        }
        if after.names == self.run_model.model.names || matches!(step, Step::Nameless) {
            return Ok(());
        }
        // Not what the error says: only a checksum that is found wrong now explains what is wrong.
        let errno = e.errno();
        let observed =
            Observed::of(&self.volume).map_err(|said| format!("errno {errno}, and then {said}"))?;
        let Err(not_before) = observed.compare(&self.run_model.model.names) else { return Ok(()) };
        if let Err(not_after) = observed.compare(&after.names) {
            return Err(format!("errno {errno}, and it is half done: {not_before}; {not_after}"));
        }
        self.run_model.model = after;
        self.run_model.record(i, step, effect.clone());
        self.open_named().map_err(|e| format!("reopen: {e}"))
    }

    /// Asks the volume whether it takes no more changes.
    fn note_abort(&mut self) {
        let Some(failures) = &mut self.failures else { return };
        // Nothing is trimmed: what is asked is whether it could be.
        failures.aborted |= failures.well(|| self.volume.trim(0..0, 1).is_err());
    }

    /// Asks until the volume takes no more changes, if that is to come: a thread of the journal's
    /// own may have met the failure, and aborts a moment later.
    fn await_abort(&mut self) {
        let coming =
            self.failures.as_ref().is_some_and(|failures| failures.has_failed() && failures.fault.is_loud());
        self.note_abort();
        for _ in 0..NAPS {
            if self.is_aborted() || !coming {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
            self.note_abort();
        }
    }

    /// Looks at the volume after a failure, and closes it on a device that goes on as it was told.
    ///
    /// # Errors
    /// What does not hold while the volume is open; an error that was swallowed.
    pub(super) fn end_hurt(mut self) -> Result<Run, String> {
        self.await_abort();
        if self.has_failed() {
            self.set_well(true);
            let looked = if self.is_aborted() { self.check_refused() } else { self.check_goes_on() };
            self.set_well(false);
            looked?;
        }
        self.files.clear();
        let last = self.run_model.names.len() - 1;
        let failures = self.failures.take().ok_or("a device that cannot fail")?;
        match self.volume.close() {
            Ok(()) if failures.aborted => return Err("close: Ok, and the journal was aborted".into()),
            Ok(()) if failures.has_failed() && failures.fault.is_loud() => {
                return Err("close: Ok, and a write or flush has failed".into());
            }
            Ok(()) => {
                let at = self.device.mark("");
                let all = self.run_model.promises(last, &Step::Sync);
                self.promises.extend(all.into_iter().map(|promise| (at, promise)));
            }
            Err(e) => failures.check_error("close", &e)?,
        }
        // All that the volume had is gone: this and the caller have the device.
        let users = Arc::strong_count(&failures.device);
        if users > 2 {
            return Err(format!("{users} users of the device after the volume was closed: something leaked"));
        }
        let (log, closed) = (self.device.log(), self.device.image());
        let Self { run_model: ModelRun { names, contents, times, .. }, promises, .. } = self;
        Ok(Run { log, names, contents, times, promises, closed, aborted: failures.aborted })
    }

    /// Checks a volume after an abort: every change and sync is refused, and reads still work.
    fn check_refused(&self) -> Result<(), String> {
        let failures = self.failures.as_ref().ok_or("a device that cannot fail")?;
        let refused = |what: &str, done: lanefs::Result<()>| match done {
            Ok(()) => Err(format!("{what} after the journal was aborted: Ok")),
            Err(e) => failures.check_error(what, &e),
        };
        refused("sync", self.volume.sync())?;
        refused("mkdir", self.volume.create_dir("/later"))?;
        for (slot, file) in &self.files {
            refused(&format!("write to {slot}"), file.write_at(b"later", 0))?;
            refused(&format!("truncate {slot}"), file.set_len(1))?;
        }
        // The state that the failed step left in memory is not judged, but a walk of it must not
        // panic.
        let _ = Observed::of(&self.volume);
        self.files.values().for_each(|file| drop(read(file)));
        Ok(())
    }

    /// Checks a volume without an abort: it equals the model, accepts changes, and has lost no
    /// inode or block.
    fn check_goes_on(&mut self) -> Result<(), String> {
        let failures = self.failures.as_ref().ok_or("a device that cannot fail")?;
        if failures.fault.is_loud() {
            return Err("a write or flush has failed, and the volume goes on".into());
        }
        let fault = failures.fault;
        self.open_named().map_err(|e| format!("reopen: {e}"))?;
        self.check_open()?;
        // A group whose bitmap was read wrong gives nothing more.
        if !fault.is_told() {
            return Ok(());
        }
        self.volume.sync().map_err(|e| format!("sync on a device that is well: {e}"))?;
        // Files without a name go; the second sync commits that.
        self.files.clear();
        self.volume.sync().map_err(|e| format!("sync on a device that is well: {e}"))?;
        let observed = Observed::of(&self.volume)?;
        // A deletion that failed half way is finished at the next opening.
        let sb = self.volume.info().superblock;
        if sb.last_orphan() != 0 || sb.has_ro(RoCompat::ORPHAN_PRESENT) {
            return Ok(());
        }
        observed.check_accounts(&self.setting.start().observed).map_err(|said| format!("open: {said}"))
    }
}
