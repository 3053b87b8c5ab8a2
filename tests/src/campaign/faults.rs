//! The fault campaign: runs a case once for each device call, and makes that call fail.
//!
//! A first run counts the calls. Then each call fails in each of its [ways](Fault::ways), one in
//! each run, and so does each call of a recovery from one crash of the workload. After each run the
//! volume is opened again on a working device, and judged as after a crash: everything synced is
//! there. The state without the unflushed writes is judged too.
//!
//! A stale read, or a flipped bit that no checksum covers, cannot be detected. Then the campaign
//! only checks that no code panics and that no file overlaps fixed metadata. A flipped bit in other
//! metadata must be an error or harmless.

use super::device::{KILLED, over_failing};
use super::explore::{Count, Explore, Finding, PANIC, e2fsck_image, recover, unwinding};
use super::failed_calls::{Device, FailedCalls};
use super::fault::{Fault, Phase};
use super::model::byte;
use super::observed::Observed;
use super::oracle::judge;
use super::run::{Run, Runner};
use super::setting::Setting;
use super::times::KnownTimes;
use super::volume::{F, G};
use super::workload::Case;
use crate::{Tracked, Watchdog, memory_dir};
use lanefs::OpenOptions;
use lanefs_device::Op;
use lanefs_format::{State, Superblock};
use lanefs_sim::{CrashState, FailingDevice, Failure, Image, Log, LogEntry, OverlayDevice, RecordingDevice};
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use std::collections::HashSet;
use std::sync::Arc;

/// Samples of what a failed flush may have left.
const LOST_IN_PART: u64 = 3;

/// The depth to which a case is tried.
#[derive(Debug, Clone, Copy)]
pub struct FaultDepth {
    /// At most so many faults of a case, drawn from all.
    pub per_case: usize,
    /// One state in so many is judged by e2fsck.
    pub e2fsck_every: u64,
    /// The seed of all samples.
    pub seed: u64,
    /// The only fault to try, if there is one.
    pub only: Option<Fault>,
}

const OPS: [Op; 4] = [Op::Read, Op::Write, Op::Flush, Op::Discard];

/// Calls of a device, in the order of [`OPS`].
type Calls = [u64; 4];

fn calls(device: &Device) -> Calls {
    OPS.map(|op| device.count(op))
}

/// An explorer that fails calls of the device in cases, one after the other.
#[derive(Debug)]
pub struct FaultExplorer {
    depth: FaultDepth,
    dir: tempfile::TempDir,
    count: Count,
    /// Settings whose opening was tried: it is the same in every case.
    opened: HashSet<&'static str>,
}

/// A run and the devices that it ran on.
struct Attempt {
    device: Arc<Device>,
    /// Calls up to the first step.
    opening: Calls,
    run: Result<Run, String>,
}

/// A call that no run comes to: nothing fails.
const NEVER: Fault = Fault { phase: Phase::Run, op: Op::Read, nth: 1 << 60, way: super::fault::Way::Eio };

/// Bits of a read that no longer lie in one block.
const BLOCK_BITS: u64 = 1024 * 8;

impl FaultExplorer {
    /// Nothing was tried yet.
    ///
    /// # Panics
    /// If there is no room for a temporary file.
    pub fn new(depth: FaultDepth) -> Self {
        let dir = memory_dir();
        Self { depth, dir, count: Count::default(), opened: HashSet::new() }
    }

    fn try_all(&mut self, case: &Case, sound: &Run, faults: &[Fault]) -> Result<(), Finding> {
        let finding = |fault, state, said| Finding { case: case.clone(), state, said, fault: Some(fault) };
        for &fault in faults.iter().filter(|fault| fault.phase == Phase::Run) {
            let tried = self.try_run(case, fault);
            tried.map_err(|said| finding(fault, None, said))?;
        }
        let recovered: Vec<Fault> =
            faults.iter().copied().filter(|fault| fault.phase == Phase::Recovery).collect();
        let Some(state) = self.crash(case, &sound.log).filter(|_| !recovered.is_empty()) else {
            return Ok(());
        };
        for fault in recovered {
            let tried = self.try_recovery(case.setting, sound, &state, fault);
            tried.map_err(|said| finding(fault, Some(state.to_string()), said))?;
        }
        Ok(())
    }

    /// The faults of a case, in order.
    fn faults(&mut self, case: &Case, sound: &Attempt, log: &Log) -> Vec<Fault> {
        if let Some(only) = self.depth.only {
            return vec![only];
        }
        let first = if self.opened.insert(case.setting.name) { [0; 4] } else { sound.opening };
        let mut all = every(Phase::Run, first, calls(&sound.device));
        if let Some(state) = self.crash(case, log) {
            let device = device(case.setting, state.image.clone(), NEVER);
            let recovery = unwinding(|| run_recovery(case.setting, &device, NEVER, |_| Ok(())));
            // What is wrong without a fault is for the crash campaign to find.
            if recovery.is_ok() {
                all.extend(every(Phase::Recovery, [0; 4], calls(&device)));
            }
        }
        let mut rng = StdRng::seed_from_u64(self.depth.seed ^ number(&case.to_string()));
        let most = self.depth.per_case.min(all.len());
        let mut drawn: Vec<(usize, Fault)> = all.into_iter().enumerate().choose_multiple(&mut rng, most);
        drawn.sort_unstable_by_key(|(at, _)| *at);
        drawn.into_iter().map(|(_, fault)| fault).collect()
    }

    /// A crash of the workload, drawn by its text.
    fn crash(&self, case: &Case, log: &Log) -> Option<CrashState> {
        let mut rng = StdRng::seed_from_u64(self.depth.seed ^ number(&case.to_string()));
        let states = case.setting.crashes.then(|| log.small_states(self.depth.seed, 8))?;
        states.choose(&mut rng)
    }

    /// Runs a case with one fault, and judges what is left.
    fn try_run(&mut self, case: &Case, fault: Fault) -> Result<(), String> {
        let Attempt { device, run, .. } = attempt(case, fault);
        self.count.faults += u64::from(device.failures() > 0);
        let run = match run {
            Err(said) if is_noticed(fault, &said) || is_hidden(case.setting, fault, &device) => {
                return self.check_harmless(case, Err(said), &device);
            }
            Ok(_) if is_hidden(case.setting, fault, &device) => {
                return self.check_harmless(case, Ok(()), &device);
            }
            run => run?,
        };
        if !case.setting.crashes && (fault.is_loud() || run.aborted) {
            return self.check_unsafe(case, &run, &device);
        }
        for (what, image) in media(fault, &run.log, device.inner().image()) {
            let left = |said| format!("{what}: {said}");
            self.judge(case.setting, &run, usize::MAX, &image, fault).map_err(left)?;
        }
        Ok(())
    }

    /// Recovers a crash with one fault, and judges what is left.
    fn try_recovery(
        &mut self,
        setting: &Setting,
        run: &Run,
        state: &CrashState,
        fault: Fault,
    ) -> Result<(), String> {
        let device = device(setting, state.image.clone(), fault);
        let look = |observed: Observed| judge(run, state.cut, &observed);
        let recovered = unwinding(|| run_recovery(setting, &device, fault, look));
        self.count.faults += u64::from(device.failures() > 0);
        if is_hidden(setting, fault, &device) {
            return no_panic(recovered);
        }
        match recovered {
            Err(said) if is_noticed(fault, &said) => return Ok(()),
            recovered => recovered?,
        }
        for (what, image) in media(fault, &device.inner().log(), device.inner().image()) {
            let left = |said| format!("{what}: {said}");
            self.judge(setting, run, state.cut, &image, fault).map_err(left)?;
        }
        Ok(())
    }

    /// Opens what is left on a device that is well, and judges it.
    fn judge(
        &mut self,
        setting: &Setting,
        run: &Run,
        cut: usize,
        image: &Image,
        fault: Fault,
    ) -> Result<(), String> {
        self.count.states += 1;
        let recovered = recover(setting, setting.to_recover(OverlayDevice::new(image.clone())));
        let (observed, closed) = match recovered {
            // The bit was written back with its block, of which another part was wanted: it is
            // found where it is wrong.
            Err(said) if is_noticed(fault, &said) => return Ok(()),
            // What leads to blocks could not be read: the volume says that it has errors.
            Err(said) if !fault.is_told() && has_errors(image) => return no_panic(Err(said)),
            other => other?,
        };
        let judged = judge(run, cut, &observed).and_then(|()| check_noted(setting, run, &closed, fault));
        if judged.is_ok() && !self.count.states.is_multiple_of(self.depth.e2fsck_every) {
            return Ok(());
        }
        self.count.e2fsck += 1;
        match (judged, e2fsck_image(self.dir.path(), &closed)) {
            (Ok(()), checked) => checked,
            (Err(said), Ok(())) => Err(said),
            (Err(said), Err(e2fsck)) => Err(format!("{said}\n{e2fsck}")),
        }
    }

    /// Checks a volume after an undetectable device fault: no thread panicked, recovery does not
    /// panic, and no file overlaps fixed metadata.
    fn check_harmless(
        &mut self,
        case: &Case,
        run: Result<(), String>,
        device: &Device,
    ) -> Result<(), String> {
        no_panic(run)?;
        let image = device.inner().image();
        self.count.states += 1;
        no_panic(
            recover(case.setting, case.setting.to_recover(OverlayDevice::new(image.clone()))).map(drop),
        )?;
        check_zones(case, &image)
    }

    /// Checks a volume without a journal after a failed write: it is not marked sound if it is
    /// damaged, and its recovery does not panic.
    fn check_unsafe(&mut self, case: &Case, run: &Run, device: &Device) -> Result<(), String> {
        let image = device.inner().image();
        self.count.states += 1;
        let again = recover(case.setting, case.setting.to_recover(OverlayDevice::new(image.clone())));
        let judged = again.and_then(|(observed, _)| judge(run, usize::MAX, &observed));
        let state = state(&image);
        match judged {
            Err(said) if said.starts_with(PANIC) => Err(said),
            Err(said) if state.contains(State::VALID_FS) && !has_errors(&image) => {
                Err(format!("the volume says that it is sound ({state:?}): {said}"))
            }
            _ => Ok(()),
        }
    }
}

impl Explore for FaultExplorer {
    /// Runs a case once for each fault, and judges what is left.
    fn explore(&mut self, case: &Case) -> Result<(), Finding> {
        if !case.setting.can_fail() {
            return Ok(());
        }
        let _watchdog = Watchdog::new(case.to_string());
        self.count.cases += 1;
        let sound = attempt(case, NEVER);
        let run = match &sound.run {
            Ok(run) => run,
            Err(said) => {
                let (said, case) = (format!("without a fault: {said}"), case.clone());
                return Err(Finding { case, state: None, said, fault: None });
            }
        };
        let faults = self.faults(case, &sound, &run.log);
        self.try_all(case, run, &faults)
    }

    fn count(&self) -> Count {
        self.count
    }
}

/// Every fault of the calls behind `first`, up to `last`.
fn every(phase: Phase, first: Calls, last: Calls) -> Vec<Fault> {
    let of = |at: usize| {
        let ways = move |nth| {
            Fault::ways(OPS[at]).iter().map(move |way| Fault { phase, op: OPS[at], nth, way: *way })
        };
        (first[at] + 1..=last[at]).flat_map(ways)
    };
    (0..OPS.len()).flat_map(of).collect()
}

/// A number made of a text.
fn number(text: &str) -> u64 {
    text.bytes().fold(0, |number: u64, byte| (number ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A device of the setting that holds `image`, and is told to fail.
fn device(setting: &Setting, image: Image, fault: Fault) -> Arc<Device> {
    let record = Arc::new(RecordingDevice::new(image).with_alignment(setting.alignment));
    let marks = Arc::clone(&record);
    let device = FailingDevice::new(record).with_notify(move || _ = marks.mark(FAILED));
    let device = if fault.failure() == Failure::Stale { device.remembering() } else { device };
    device.fail(fault.op, fault.nth, fault.is_for_ever(), fault.failure());
    Arc::new(device)
}

/// The mark of a failure in the log.
const FAILED: &str = "failed";

/// Options of a run: blocks of metadata are read again all the time.
fn options(setting: &Setting) -> OpenOptions {
    setting.options().metadata_cache_bytes(16 << 10)
}

/// Runs a case with one fault.
fn attempt(case: &Case, fault: Fault) -> Attempt {
    let device = device(case.setting, case.setting.start().image.clone(), fault);
    let mut opening = [0; 4];
    let run = unwinding(|| {
        let failures = FailedCalls { device: Arc::clone(&device), fault, aborted: false, failed: None };
        let below = Arc::clone(device.inner());
        let shared = over_failing(case.setting, Arc::clone(&device) as _, &below)?;
        let opened = Runner::open(case.setting, options(case.setting), shared, below);
        opening = calls(&device);
        match opened {
            Ok(mut runner) => {
                runner.failures = Some(failures);
                runner.sweep_if_pressed()?;
                runner.steps(&case.workload)?;
                runner.end_hurt()
            }
            Err(e) => {
                failures.check_error("open", &e)?;
                drop(failures);
                check_released(&device)?;
                Ok(nothing_done(case.setting, &device))
            }
        }
    });
    Attempt { device, opening, run }
}

/// Checks that the caller holds the only reference to the device.
fn check_released(device: &Arc<Device>) -> Result<(), String> {
    match Arc::strong_count(device) {
        1 => Ok(()),
        users => {
            Err(format!("{} users of the device after the volume was closed: something leaked", users - 1))
        }
    }
}

/// A run that ended before its first step.
fn nothing_done(setting: &Setting, device: &Device) -> Run {
    let start = setting.start();
    let tracked = |(id, content): (&usize, &Vec<u8>)| (*id, Tracked::new(start.model.block, content.clone()));
    Run {
        log: device.inner().log(),
        names: vec![start.model.names.clone()],
        contents: start.model.contents.iter().map(tracked).collect(),
        times: KnownTimes::default(),
        promises: Vec::new(),
        closed: device.inner().image(),
        aborted: false,
    }
}

/// Recovers a volume on a device that fails, has `look` judge it while it is open and the device is
/// well, and closes it.
fn run_recovery(
    setting: &Setting,
    device: &Arc<Device>,
    fault: Fault,
    look: impl FnOnce(Observed) -> Result<(), String>,
) -> Result<(), String> {
    let failures = FailedCalls { device: Arc::clone(device), fault, aborted: false, failed: None };
    let loud = || failures.has_failed() && fault.is_loud();
    let shared = over_failing(setting, Arc::clone(device) as _, device.inner())?;
    let ended = match setting.recovery().open_device(shared) {
        Err(e) => failures.check_error("open", &e),
        Ok(_) if loud() => Err("open: Ok, and a write or flush has failed".into()),
        Ok(volume) => {
            if failures.has_failed() {
                device.pause(true);
                let looked = Observed::of(&volume).and_then(look);
                device.pause(false);
                looked.map_err(|said| format!("open: {said}"))?;
            }
            match volume.close() {
                Ok(()) if loud() => Err("close: Ok, and a write or flush has failed".into()),
                Ok(()) => Ok(()),
                Err(e) => failures.check_error("close", &e),
            }
        }
    };
    drop(failures);
    ended.and_then(|()| check_released(device))
}

/// What the medium may hold behind a fault, with what led to it.
fn media(fault: Fault, log: &Log, all: Image) -> Vec<(&'static str, Image)> {
    let mut media = vec![("all that was written", all)];
    let flushed = |before: usize| {
        log.entries[..before]
            .iter()
            .rposition(|entry| matches!(entry, LogEntry::Flush))
            .map_or(0, |at| at + 1)
    };
    if fault.is_loud() {
        let durable = flushed(log.entries.len());
        media.push(("all that was flushed", log.image_of(|at| at < durable)));
    }
    if let Some(failed) = failed_at(log).filter(|_| fault.way == super::fault::Way::Lost) {
        let kept = flushed(failed);
        media.push(("all but what the flush lost", log.image_of(|at| at < kept || at > failed)));
        for seed in 0..LOST_IN_PART {
            let mut rng = StdRng::seed_from_u64(seed ^ number(&fault.to_string()));
            let lost: Vec<bool> = (kept..=failed).map(|_| rng.random()).collect();
            let is_kept = |at: usize| at < kept || lost.get(at - kept).is_none_or(|lost| !lost);
            media.push(("all but a part of what the flush lost", log.image_of(is_kept)));
        }
    }
    media
}

/// Returns the entry of a log that marks the first failure.
fn failed_at(log: &Log) -> Option<usize> {
    log.entries.iter().position(|entry| matches!(entry, LogEntry::Mark(mark) if mark == FAILED))
}

/// Returns whether a fault ends an NBD device: after a flush that failed it flushes no more, and
/// after a write that failed when it was repeated it does nothing more.
fn ends_export(setting: &Setting, log: &Log, fault: Fault) -> bool {
    let repeats = |failed: usize| {
        let last = log.entries[..failed].iter().rev().find_map(|entry| match entry {
            LogEntry::Flush => Some(false),
            LogEntry::Mark(mark) if mark == KILLED => Some(true),
            _ => None,
        });
        last.unwrap_or(false)
    };
    match fault.op {
        Op::Flush => setting.nbd,
        Op::Write => setting.nbd && failed_at(log).is_some_and(repeats),
        _ => false,
    }
}

/// Returns whether a read lied about what no checksum covers.
fn is_hidden(setting: &Setting, fault: Fault, device: &Device) -> bool {
    if fault.is_told() {
        return false;
    }
    let Some(hit) = device.first_failure() else { return false };
    match fault.failure() {
        Failure::Flip(bit) => {
            let bit = bit % (hit.len * 8).max(1);
            let at = (bit / BLOCK_BITS * BLOCK_BITS / 8) as usize;
            let bytes = &hit.content[at.min(hit.content.len())..];
            let block = &bytes[..bytes.len().min(1024)];
            let byte = (bit % BLOCK_BITS / 8) as usize;
            !setting.has_checksums() || is_content(block) || may_end_log(block, byte)
        }
        _ => true,
    }
}

/// Returns whether a block has content of a workload's file, or nothing: a few runs of equal bytes.
fn is_content(block: &[u8]) -> bool {
    block.windows(2).filter(|pair| pair[0] != pair[1]).count() < 8
}

/// Returns whether the log ends at a block of it whose `byte` is not right: nothing tells it from
/// what was never written. A commit block is damage if another byte than those of its header and
/// its time is not right.
fn may_end_log(block: &[u8], byte: usize) -> bool {
    let word =
        |at: usize| block.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes);
    // Descriptor, commit block, revoke block.
    let ends = match word(4) {
        1 | 5 => true,
        2 => byte < 12 || (48..60).contains(&byte),
        _ => false,
    };
    word(0) == 0xC03B_3998 && ends
}

/// Returns whether a flipped bit was found by a checksum.
fn is_noticed(fault: Fault, said: &str) -> bool {
    matches!(fault.failure(), Failure::Flip(_)) && said.contains("checksum") && !said.starts_with(PANIC)
}

fn no_panic(done: Result<(), String>) -> Result<(), String> {
    done.or_else(|said| if said.starts_with(PANIC) { Err(said) } else { Ok(()) })
}

/// Returns s_state, of a superblock that may be torn.
fn state(image: &Image) -> State {
    let mut bytes = [0; 2];
    image.read(1024 + 0x3A, &mut bytes);
    State::from_bits_retain(u16::from_le_bytes(bytes))
}

fn has_errors(image: &Image) -> bool {
    state(image).contains(State::ERROR_FS)
}

/// Checks that the superblock tells of an abort of which the log could take note.
fn check_noted(setting: &Setting, run: &Run, closed: &Image, fault: Fault) -> Result<(), String> {
    let could = !(fault.is_loud() && fault.is_for_ever() || ends_export(setting, &run.log, fault));
    let state = state(closed);
    match run.aborted && could && fault.is_told() && !has_errors(closed) {
        true => Err(format!("the journal was aborted, and s_state says nothing of it: {state:?}")),
        false => Ok(()),
    }
}

/// Checks that no sector of the fixed metadata is full of a file's bytes.
fn check_zones(case: &Case, image: &Image) -> Result<(), String> {
    let start = &case.setting.start().image;
    let mut bytes = [0; 1024];
    start.read(1024, &mut bytes);
    let sb = Superblock::parse(&bytes).map_err(|e| e.to_string())?;
    let blocks = u64::from(sb.raw().s_first_data_block.get()) + sb.layout().overhead();
    let mut written: Vec<u8> = (1..=case.workload.0.len()).map(byte).collect();
    written.extend([F, G]);
    let mut sector = [0; 512];
    for at in (0..blocks * u64::from(sb.block_size())).step_by(sector.len()) {
        image.read(at, &mut sector);
        if written.contains(&sector[0]) && sector.iter().all(|byte| *byte == sector[0]) {
            return Err(format!("a file's bytes ({:#04x}) lie at byte {at}, in fixed metadata", sector[0]));
        }
    }
    Ok(())
}
