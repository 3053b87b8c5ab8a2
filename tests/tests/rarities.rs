//! Operations that no workload of the campaigns has: special files, whiteouts, exchanges of
//! directories, shared attribute blocks, hash trees, changes of the superblock, writes of a handle
//! that syncs them. After a cut of the power, a failed call of the device, or for want of space,
//! each is there whole or not at all. A run tries a quarter of the cases, by the day; with
//! `LANEFS_LONG=4` all of them.

mod operations;

use super::half_way::{difference, with_free};
use lanefs::{Error, Result};
use lanefs_check::{Options, check};
use lanefs_device::Op;
use lanefs_device::errno::{EIO, ENOSPC, EROFS};
use lanefs_sim::{DumpFile, FailingDevice, Image, Log, LogEntry, OverlayDevice, RecordingDevice};
use lanefs_tests::{day, e2fsck_clean, memory_dir, slice, volume_lines};
use operations::{
    Base, KINDS, OPERATIONS, Operation, Outcome, options, plain_line, super_lines, verity_line,
};
use std::sync::Arc;

/// States of an epoch beside its prefixes.
const SMALL: usize = 16;

/// One case in so many is tried.
const EVERY: usize = 4;

/// One volume in so many is judged by e2fsck too.
const E2FSCK_EVERY: u64 = 50;

/// Says what was tried, if that panics.
struct Tried(String);

impl Drop for Tried {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// Judges volumes.
struct Judge {
    dump: DumpFile,
    judged: u64,
    _dir: tempfile::TempDir,
}

impl Judge {
    fn new() -> Self {
        let dir = memory_dir();
        let dump = DumpFile::create(dir.path().join("volume"), &Image::zeroed(operations::SIZE)).unwrap();
        Self { dump, judged: 0, _dir: dir }
    }

    /// Recovers a volume, closes it, and checks it. Returns lines for all that operations change.
    fn lines(&mut self, device: OverlayDevice) -> Vec<String> {
        let device = Arc::new(device);
        let volume = options().open_device(Arc::clone(&device) as _).unwrap();
        let mut lines = volume_lines(&volume);
        lines.extend([verity_line(&volume), plain_line(&volume)]);
        volume.close().unwrap();
        let report = check(Arc::clone(&device) as _, &Options::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        let image = device.image();
        lines.extend(super_lines(&image));
        self.judged += 1;
        if self.judged.is_multiple_of(E2FSCK_EVERY) {
            self.dump.set(&image).unwrap();
            e2fsck_clean(self.dump.path());
        }
        lines
    }
}

/// An operation that was carried out on a working device.
struct Recorded {
    log: Log,
    outcome: Outcome,
    /// Lines before and after it.
    before: Vec<String>,
    after: Vec<String>,
}

impl Recorded {
    fn new(image: &Image, operation: &Operation, judge: &mut Judge) -> Self {
        let _tried = Tried(format!("{}, without a failure", operation.name));
        let record = Arc::new(RecordingDevice::new(image.clone()));
        let synced = || _ = record.mark(SYNCED);
        let outcome = operation.carry_out(Arc::clone(&record) as _, || record.begin(), synced);
        let log = record.log();
        let before = judge.lines(OverlayDevice::new(log.base.clone()));
        let after = judge.lines(OverlayDevice::new(record.image()));
        Self { log, outcome, before, after }
    }

    /// Records an operation that has to succeed.
    fn done(image: &Image, operation: &Operation, judge: &mut Judge) -> Self {
        let recorded = Self::new(image, operation, judge);
        let Outcome { done, synced, closed, aborted } = &recorded.outcome;
        assert!(done.is_ok() && synced.is_ok() && closed.is_ok() && !aborted, "{}: {done:?}", operation.name);
        assert_ne!(recorded.before, recorded.after, "{}: nothing was changed", operation.name);
        recorded
    }

    /// Returns whether `lines` show the whole operation.
    ///
    /// # Panics
    /// If they show a part of it.
    fn is_whole(&self, lines: &[String]) -> bool {
        let (not_before, not_after) = (difference(lines, &self.before), difference(lines, &self.after));
        let whole = not_after.is_empty();
        assert!(whole || not_before.is_empty(), "half done\nbefore:\n{not_before}after:\n{not_after}");
        whole
    }
}

/// The mark of a sync that has returned.
const SYNCED: &str = "synced";

/// Returns the operations of the day on all kinds of volumes.
fn cases(bases: &[Base]) -> impl Iterator<Item = (&Base, &'static Operation)> {
    let all = bases.iter().flat_map(|base| OPERATIONS.iter().map(move |operation| (base, operation)));
    slice(all, EVERY)
}

#[test]
fn a_cut_of_the_power_leaves_no_half() {
    let (bases, mut judge) = (KINDS.map(Base::new), Judge::new());
    let mut states = 0;
    for (base, operation) in cases(&bases) {
        let recorded = Recorded::done(operation.image(base), operation, &mut judge);
        let mut seen = [false; 2];
        for state in recorded.log.small_states(day(), SMALL) {
            let _tried = Tried(format!("{}, {}: {state}", base.kind, operation.name));
            let whole = recorded.is_whole(&judge.lines(state.device()));
            let synced = state.marks(&recorded.log).any(|(_, mark)| mark == SYNCED);
            assert!(whole || !synced, "it was synced, and is not there");
            seen[usize::from(whole)] = true;
            states += 1;
        }
        assert_eq!(seen, [true; 2], "{}: no cut before it, or none behind it", operation.name);
    }
    assert!(states > 500, "only {states} states: nothing reached the device");
    println!("{states} states");
}

/// A call of the device that fails once: its kind, its number from the beginning of the operation
/// on, and the error.
type Failed = (Op, u64, i32);

/// Carries an operation out while a call fails, and judges what was told, and what is left on the
/// medium, and would be without all that was not flushed. Returns `false` if there is no such call.
fn fails(image: &Image, operation: &Operation, failed: Failed, sound: &Recorded, judge: &mut Judge) -> bool {
    let (op, nth, errno) = failed;
    let record = Arc::new(RecordingDevice::new(image.clone()));
    let device = Arc::new(FailingDevice::new(Arc::clone(&record)));
    let begun = || device.fail_once(op, nth, errno);
    let Outcome { done, synced, closed, aborted } =
        operation.carry_out(Arc::clone(&device) as _, begun, || ());
    if device.failures() == 0 {
        return false;
    }
    check_told(op, &[&done, &synced, &closed]);
    assert!(op != Op::Read || !aborted, "a read that failed aborts the journal: {done:?}");
    let (log, mut left) = (record.log(), vec![record.image()]);
    if !matches!(log.entries.last(), Some(LogEntry::Flush)) {
        let flushed = log.entries.iter().rposition(|entry| matches!(entry, LogEntry::Flush)).unwrap_or(0);
        left.push(log.image_of(|entry| entry < flushed));
    }
    for image in left {
        let whole = sound.is_whole(&judge.lines(OverlayDevice::new(image)));
        assert!(whole || done.is_err() || synced.is_err(), "it was said to be durable");
    }
    true
}

/// Checks that a write or flush that failed was told of, and that each error tells of a device.
fn check_told(op: Op, results: &[&Result<()>]) {
    let errors: Vec<&Error> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(op == Op::Read || !errors.is_empty(), "no call told of it");
    let wrong = errors.iter().find(|e| ![EIO, EROFS].contains(&e.errno()));
    assert!(wrong.is_none(), "errno {:?}: {wrong:?}", wrong.map(|e| e.errno()));
}

#[test]
fn a_call_that_fails_leaves_no_half() {
    let (bases, mut judge) = (KINDS.map(Base::new), Judge::new());
    let mut failures = 0;
    for (base, operation) in cases(&bases) {
        let image = operation.image(base);
        let sound = Recorded::done(image, operation, &mut judge);
        for (op, errno) in [(Op::Read, EIO), (Op::Write, EIO), (Op::Write, ENOSPC), (Op::Flush, EIO)] {
            for nth in 1.. {
                let _tried = Tried(format!("{}, {}: {op:?} {nth} fails, {errno}", base.kind, operation.name));
                if !fails(image, operation, (op, nth, errno), &sound, &mut judge) {
                    break;
                }
                failures += 1;
            }
        }
    }
    assert!(failures > 300, "only {failures} calls failed");
    println!("{failures} calls failed");
}

/// On a volume with as many free blocks, from none on.
#[test]
fn a_full_volume_leaves_no_half() {
    let (bases, mut judge) = (KINDS.map(Base::new), Judge::new());
    let mut refused = 0;
    for base in &bases {
        let full: Vec<Image> = (0..4).map(|blocks| with_free(&base.plain, blocks)).collect();
        for operation in slice(OPERATIONS.iter(), EVERY).filter(|operation| !operation.needs_protection()) {
            let sound = Recorded::done(&base.plain, operation, &mut judge);
            let whole = difference(&sound.after, &sound.before);
            for (blocks, image) in full.iter().enumerate() {
                let _tried = Tried(format!("{}, {}, {blocks} free blocks", base.kind, operation.name));
                let Recorded { outcome, before, after, .. } = Recorded::new(image, operation, &mut judge);
                assert!(!outcome.aborted && outcome.closed.is_ok(), "{:?}", outcome.closed);
                let change = difference(&after, &before);
                match outcome.done.map_err(Error::into_kind) {
                    Ok(()) => assert_eq!(change, whole, "not the whole"),
                    Err(Error::NoSpace) => {
                        assert!(change.is_empty(), "half done\n{change}");
                        refused += 1;
                    }
                    Err(e) => panic!("{e}"),
                }
            }
        }
    }
    assert!(refused > 0, "no volume was full");
}
