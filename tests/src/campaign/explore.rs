//! Explores one case: runs it, and judges every state that a crash may leave of it.

use super::fault::Fault;
use super::observed::Observed;
use super::oracle::judge;
use super::recoveries::Recoveries;
use super::run::{Run, commit_apart, run};
use super::setting::Setting;
use super::stale::{shows_no_old_data, walk_as_left};
use super::workload::Case;
use crate::{Watchdog, e2fsck, e2fsck_closed, memory_dir};
use lanefs_device::BlockDevice;
use lanefs_format::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use lanefs_sim::{CrashState, DumpFile, Image, Log, Loss, OverlayDevice, RecordingDevice, Shape};
use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// The depth to which a case is tried.
#[derive(Debug, Clone, Copy)]
pub struct Depth {
    /// States of an epoch beside its prefixes.
    pub small: usize,
    /// Random states of an epoch.
    pub random: usize,
    /// One state in so many is judged by e2fsck.
    pub e2fsck_every: u64,
    /// The recovery of one state in so many is cut too.
    pub again_every: u64,
    /// The seed of all samples.
    pub seed: u64,
}

/// A rule that does not hold.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The case that led to it.
    pub case: Case,
    /// The state in which it was found, if a crash was part of it.
    pub state: Option<String>,
    /// The call of the device that failed, if one did.
    pub fault: Option<Fault>,
    /// A description of the defect.
    pub said: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.said)?;
        if let Some(state) = &self.state {
            writeln!(f, "state: {state}")?;
        }
        let replay = "replay: cargo run --release -p lanefs-tests --bin torture --";
        match &self.fault {
            None => write!(f, "{replay} --case '{}'", self.case),
            Some(fault) => write!(f, "{replay} --faults --case '{}' --fault '{fault}'", self.case),
        }
    }
}

/// The counts of many cases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Cases.
    pub cases: u64,
    /// States that were judged.
    pub states: u64,
    /// Recoveries, each of a state of one or more cases.
    pub recoveries: u64,
    /// Calls of the device that were made to fail.
    pub faults: u64,
    /// The states that e2fsck judged too.
    pub e2fsck: u64,
}

/// An explorer, which tries cases one after the other.
pub trait Explore {
    /// Tries one case, up to the first thing that is wrong.
    ///
    /// # Errors
    /// The finding.
    fn explore(&mut self, case: &Case) -> Result<(), Finding>;

    /// Returns the counters so far.
    fn count(&self) -> Count;

    /// Returns the fingerprints of all states since the last call; two volumes share none.
    fn take_prints(&mut self) -> Vec<u64> {
        Vec::new()
    }
}

impl Count {
    /// Adds the counts of others.
    pub fn add(&mut self, other: Self) {
        self.cases += other.cases;
        self.states += other.states;
        self.recoveries += other.recoveries;
        self.faults += other.faults;
        self.e2fsck += other.e2fsck;
    }
}

/// An explorer that cuts the power in cases, one after the other.
#[derive(Debug)]
pub struct Explorer {
    depth: Depth,
    dir: tempfile::TempDir,
    count: Count,
    /// Fingerprints of the states of the case, with the number of promises.
    seen: HashSet<(u64, usize)>,
    /// Fingerprints of the states of all cases.
    prints: Vec<u64>,
    recoveries: Recoveries,
}

impl Explorer {
    /// Nothing was tried yet.
    ///
    /// # Panics
    /// If there is no room for a temporary file.
    pub fn new(depth: Depth) -> Self {
        let dir = memory_dir();
        let (count, recoveries) = (Count::default(), Recoveries::default());
        Self { depth, dir, count, seen: HashSet::new(), prints: Vec::new(), recoveries }
    }
}

impl Explore for Explorer {
    /// Runs a case, and judges the states that a crash may leave of it.
    fn explore(&mut self, case: &Case) -> Result<(), Finding> {
        let _watchdog = Watchdog::new(case.to_string());
        let finding = |state, said| Finding { case: case.clone(), state, said, fault: None };
        self.count.cases += 1;
        let run = unwinding(|| run(case)).map_err(|said| finding(None, said))?;
        if self.count.cases.is_multiple_of(self.depth.e2fsck_every) {
            self.e2fsck(&run.closed).map_err(|said| finding(None, said))?;
        }
        self.seen.clear();
        let Depth { small, random, seed, .. } = self.depth;
        let small = run.log.small_states(seed, small);
        let random = run.log.crash_states(seed, random);
        for state in small.chain(random) {
            self.try_state(case.setting, &run, &state)
                .map_err(|said| finding(Some(state.to_string()), said))?;
        }
        match case.setting.crashes {
            true => Ok(()),
            false => self.try_flushes(&run).map_err(|(state, said)| finding(Some(state), said)),
        }
    }

    fn count(&self) -> Count {
        self.count
    }

    fn take_prints(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.prints)
    }
}

impl Explorer {
    /// Judges a volume without a journal as it was at each flush: a cut between two commits leaves
    /// what the last one has written in place.
    ///
    /// # Errors
    /// The state, and what does not hold.
    fn try_flushes(&mut self, run: &Run) -> Result<(), (String, String)> {
        let seed = self.depth.seed;
        let flushed = |epoch| run.log.crash_state(seed, epoch, Shape::Small(Loss::Prefix(0)));
        for state in (0..).map_while(flushed) {
            self.count.states += 1;
            judge_as_left(run, &state).map_err(|said| (state.to_string(), said))?;
        }
        Ok(())
    }

    fn try_state(&mut self, setting: &Setting, run: &Run, state: &CrashState) -> Result<(), String> {
        let promises = run.promises.partition_point(|(at, _)| *at < state.cut);
        if !self.seen.insert((state.fingerprint, promises)) {
            return Ok(());
        }
        self.count.states += 1;
        let number = self.count.states;
        self.prints.push(state.fingerprint ^ setting.shape().key());
        if !setting.crashes {
            let is_synced = run.is_synced(state.cut);
            let judged = unwinding(|| shows_no_old_data(run, Arc::new(state.device())));
            let judged = judged.and_then(|()| if is_synced { judge_as_left(run, state) } else { Ok(()) });
            judged?;
            let mends = number.is_multiple_of(self.depth.e2fsck_every) && has_superblock(state)?;
            return if mends { self.e2fsck_mends(&state.image) } else { Ok(()) };
        }
        let key = (setting.shape().name, state.fingerprint, state.atomic_write, setting.alignment);
        let observed = self.recoveries.find(key, || {
            self.count.recoveries += 1;
            recover(setting, setting.to_recover(state.device())).map(|(observed, _)| observed)
        })?;
        let mut judged = judge(run, state.cut, &observed);
        if judged.is_ok() && number.is_multiple_of(self.depth.again_every) {
            judged = self.cut_recovery(setting, run, state);
        }
        if judged.is_ok() && !number.is_multiple_of(self.depth.e2fsck_every) {
            return Ok(());
        }
        let (_, image) = recover(setting, setting.to_recover(state.device()))?;
        match (judged, self.e2fsck(&image)) {
            (Ok(()), checked) => checked,
            (Err(said), Ok(())) => Err(said),
            (Err(said), Err(e2fsck)) => Err(format!("{said}\n{e2fsck}")),
        }
    }

    /// Cuts the recovery of a state, or the commit behind it, and judges the result of the next
    /// recovery.
    fn cut_recovery(&mut self, setting: &Setting, run: &Run, state: &CrashState) -> Result<(), String> {
        let device = RecordingDevice::new(state.image.clone()).with_atomic_write(state.atomic_write);
        let device = Arc::new(device.with_alignment(setting.alignment));
        // Every second time.
        let log = match state.fingerprint.is_multiple_of(2) {
            true => recover(setting, Arc::clone(&device)).map(|_| device.log())?,
            false => recover_and_commit(setting, &device)?,
        };
        let Depth { small, seed, .. } = self.depth;
        for again in log.small_states(seed, small) {
            self.count.states += 1;
            self.count.recoveries += 1;
            let told = |said: String| format!("recovery, cut: {again}: {said}");
            let (observed, _) = recover(setting, setting.to_recover(again.device())).map_err(told)?;
            judge(run, state.cut, &observed).map_err(told)?;
            let is_committed = again.marks(&log).any(|(_, mark)| mark == COMMITTED);
            if is_committed && observed.lost_found != BEHIND_RECOVERY {
                return Err(told("what was committed behind the recovery is not there".into()));
            }
        }
        Ok(())
    }

    fn e2fsck(&mut self, image: &Image) -> Result<(), String> {
        self.count.e2fsck += 1;
        e2fsck_image(self.dir.path(), image)
    }

    /// Has e2fsck mend a volume without a journal.
    fn e2fsck_mends(&mut self, image: &Image) -> Result<(), String> {
        self.count.e2fsck += 1;
        let dump = DumpFile::create(self.dir.path().join("state.img"), image).map_err(|e| e.to_string())?;
        match (e2fsck(dump.path(), &["-fy"]), e2fsck(dump.path(), &["-fn"])) {
            ((0 | 1, _), (0, _)) => Ok(()),
            ((code, said), (then, again)) => {
                Err(format!("e2fsck -fy: {code}, then e2fsck -fn: {then}\n{said}\n{again}"))
            }
        }
    }
}

/// Returns whether the superblock is whole. These volumes have no copy of it.
fn has_superblock(state: &CrashState) -> Result<bool, String> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    state.device().read_at(&mut bytes, SUPERBLOCK_OFFSET).map_err(|e| e.to_string())?;
    Ok(Superblock::parse(&bytes).is_ok())
}

/// Judges a volume without a journal that no commit was writing when the power was cut.
fn judge_as_left(run: &Run, state: &CrashState) -> Result<(), String> {
    let observed = unwinding(|| walk_as_left(Arc::new(state.device())))?;
    judge(run, state.cut, &observed)
}

/// Has e2fsck judge a closed volume, in a file in `dir`.
pub(super) fn e2fsck_image(dir: &Path, image: &Image) -> Result<(), String> {
    let dump = DumpFile::create(dir.join("state.img"), image).map_err(|e| e.to_string())?;
    e2fsck_closed(dump.path())
}

/// A device that gives out its content.
pub(super) trait Holds: BlockDevice {
    /// Returns its content.
    fn holds(&self) -> Image;
}

impl Holds for OverlayDevice {
    fn holds(&self) -> Image {
        self.image()
    }
}

impl Holds for RecordingDevice {
    fn holds(&self) -> Image {
        self.image()
    }
}

/// Recovers a volume, walks it, and closes it. Returns the observed content, and the closed volume.
///
/// # Errors
/// What does not hold; a panic.
pub(super) fn recover(
    setting: &Setting,
    device: Arc<impl Holds + 'static>,
) -> Result<(Observed, Image), String> {
    unwinding(|| {
        let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
        let volume = setting.recovery().open_device(shared).map_err(|e| format!("open: {e}"))?;
        let observed = Observed::of(&volume)?;
        observed.check_accounts(&setting.start().observed)?;
        volume.close().map_err(|e| format!("close: {e}"))?;
        check_volume(Arc::clone(&device) as _)?;
        Ok((observed, device.holds()))
    })
}

/// The mark of a commit that has returned.
const COMMITTED: &str = "committed";

/// The permissions that a commit behind a recovery gives `/lost+found`: no run does.
const BEHIND_RECOVERY: u16 = 0o755;

/// Recovers a volume, and commits one transaction more. Returns the log up to there: the host
/// crashes, and does not close the volume.
///
/// # Errors
/// That of the volume; a panic.
fn recover_and_commit(setting: &Setting, device: &Arc<RecordingDevice>) -> Result<Log, String> {
    unwinding(|| {
        let shared = Arc::clone(device) as Arc<dyn BlockDevice>;
        let volume = setting.recovery().open_device(shared).map_err(|e| format!("open: {e}"))?;
        commit_apart(&volume, BEHIND_RECOVERY).map_err(|e| format!("a commit behind the recovery: {e}"))?;
        device.mark(COMMITTED);
        let log = device.log();
        // The end of a volume closes it.
        drop(volume);
        Ok(log)
    })
}

/// Checks that a volume which was closed with no file open left nothing for the next opening to
/// finish.
///
/// # Errors
/// How many orphans it left; it cannot be opened.
pub(super) fn check_no_orphans(setting: &Setting, closed: &Image) -> Result<(), String> {
    let device = setting.to_recover(OverlayDevice::new(closed.clone()));
    let volume = setting.recovery().open_device(device).map_err(|e| format!("open again: {e}"))?;
    match volume.info().recovery.orphans {
        0 => Ok(()),
        orphans => Err(format!("closed with no file open, and {orphans} inodes are orphans")),
    }
}

/// Holds a closed volume against the rules of the format.
///
/// # Errors
/// Up to five rules that it breaks; a log that was left to be replayed; it cannot be checked.
pub fn check_volume(device: Arc<dyn BlockDevice>) -> Result<(), String> {
    let options = lanefs_check::Options::default().max_findings(5);
    let report = lanefs_check::check(device, &options).map_err(|e| format!("check: {e}"))?;
    if report.replayed {
        return Err("check: the close has left a log to be replayed".into());
    }
    let findings: Vec<String> = report.findings.iter().map(|finding| format!("check: {finding}")).collect();
    if report.is_clean() { Ok(()) } else { Err(findings.join("\n")) }
}

/// The beginning of a panic's error.
pub(super) const PANIC: &str = "panic";

/// Runs `f`; a panic is an error like others.
///
/// # Errors
/// That of `f`; [`PANIC`] and what the panic said.
pub(super) fn unwinding<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("{PANIC}: {}", text.unwrap_or("without a word")))
    })
}
