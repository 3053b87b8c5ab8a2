//! An overlay whose top fails: each write and each flush of it once, and from each on.
//!
//! The caller goes on after a failure. After a cut each sector holds what the last flush that
//! succeeded has made durable, or what was written since.

use super::{BLOCK, top_image};
use lanefs_device::errno::EIO;
use lanefs_device::{BlockDevice, CowDevice, Op};
use lanefs_sim::{
    FailingDevice, Failure, Image, Log, LogEntry, OverlayDevice, RecordingDevice, seed_from_env,
};
use std::ops::Range;
use std::sync::Arc;

type Top = FailingDevice<Arc<RecordingDevice>>;

const SECTOR: usize = 512;
const PER_BLOCK: usize = BLOCK / SECTOR;
/// Sectors of the overlay: the last block is a part of one.
const SECTORS: usize = 40 * PER_BLOCK + 1;

/// The bytes of the base.
const BELOW: u8 = 200;

/// The mark of a call that failed.
const FAILED: &str = "failed";

/// What each sector may hold: the byte of each write that no later flush has made old, in order,
/// and whether the write has succeeded.
#[derive(Debug, Clone)]
struct Sectors(Vec<Vec<(u8, bool)>>);

impl Sectors {
    fn begin(&mut self, written: Range<usize>, byte: u8) {
        self.0[written].iter_mut().for_each(|sector| sector.push((byte, false)));
    }

    fn succeed(&mut self, written: Range<usize>) {
        self.0[written].iter_mut().filter_map(|sector| sector.last_mut()).for_each(|last| last.1 = true);
    }

    /// Forgets what lies before the last write that has succeeded.
    fn flush(&mut self) {
        for sector in &mut self.0 {
            let last = sector.iter().rposition(|(_, succeeded)| *succeeded).unwrap_or(0);
            sector.drain(..last);
        }
    }

    fn check(&self, device: &dyn BlockDevice, case: &str) {
        let mut bytes = vec![0; SECTORS * SECTOR];
        device.read_at(&mut bytes, 0).unwrap_or_else(|e| panic!("{case}: {e}"));
        for (at, (sector, may)) in bytes.chunks(SECTOR).zip(&self.0).enumerate() {
            let is_one = |byte: u8| sector.iter().all(|held| *held == byte);
            assert!(may.iter().any(|(byte, _)| is_one(*byte)), "{case}: sector {at}: {may:?}, {sector:?}");
        }
    }
}

/// Returns an overlay on a base of [`BELOW`] and this top.
fn overlay(top: Arc<dyn BlockDevice>) -> lanefs_device::Result<CowDevice> {
    let base = Image::from_bytes(vec![BELOW; SECTORS * SECTOR]);
    CowDevice::new(Arc::new(OverlayDevice::new(base)), top, "base")
}

/// Returns the sectors that a round writes, before it flushes.
fn writes(round: usize) -> [Range<usize>; 4] {
    let start = round * 9 * PER_BLOCK;
    // The end of a block, a whole one and the start of the next; some of that again; what the
    // round before has flushed; the last block, in part.
    let before = start.saturating_sub(9 * PER_BLOCK);
    [start + 5..start + 18, start + 6..start + 10, before + 7..before + 9, SECTORS - 3..SECTORS]
}

/// Writes round by round, and notes on the medium what may be there. Returns that by the number of
/// the note.
fn write_rounds(top: &Arc<Top>, case: &str) -> Vec<Sectors> {
    let mut sectors = Sectors(vec![vec![(BELOW, true)]; SECTORS]);
    let mut history = Vec::new();
    let mut note = |sectors: &Sectors| {
        top.inner().mark(history.len().to_string());
        history.push(sectors.clone());
    };
    note(&sectors);
    let mut is_told = false;
    let mut cannot_flush = false;
    match overlay(Arc::clone(top) as _) {
        Err(_) => is_told = true,
        Ok(device) => {
            for (byte, written) in (1_u8..).zip((0..4).flat_map(writes)) {
                sectors.begin(written.clone(), byte);
                note(&sectors);
                let bytes = vec![byte; written.len() * SECTOR];
                match device.write_at(&bytes, (written.start * SECTOR) as u64) {
                    Ok(()) => sectors.succeed(written),
                    Err(_) => is_told = true,
                }
                if byte.is_multiple_of(4) {
                    let flushed = device.flush();
                    assert!(flushed.is_err() || !cannot_flush, "{case}: a flush behind one that failed");
                    cannot_flush |= flushed.is_err();
                    if flushed.is_ok() {
                        sectors.flush();
                    }
                    note(&sectors);
                }
            }
            // What is read now has to be the last write, or one behind it that has failed.
            let mut now = sectors.clone();
            now.flush();
            now.check(&device, case);
        }
    }
    assert!(is_told || cannot_flush || top.failures() == 0, "{case}: no call told of it");
    history
}

/// Judges what a cut leaves of a top, and what the failed flush `lost`, if it has lost all that was
/// not flushed.
fn check_left(log: &Log, history: &[Sectors], seed: u64, lost: bool, case: &str) {
    let check = |noted: usize, top: OverlayDevice, case: &str| {
        let device = overlay(Arc::new(top)).unwrap_or_else(|e| panic!("{case}: {e}"));
        history[noted].check(&device, case);
    };
    for state in log.crash_states(seed, 2) {
        let mut notes = state.marks(log).filter_map(|(_, mark)| mark.parse::<usize>().ok());
        check(notes.next_back().unwrap_or(0), state.device(), &format!("{case}: {state}"));
    }
    let is_failure = |entry: &LogEntry| matches!(entry, LogEntry::Mark(mark) if mark == FAILED);
    let Some(failed) = log.entries.iter().position(is_failure).filter(|_| lost) else { return };
    let is_flush = |entry: &LogEntry| matches!(entry, LogEntry::Flush);
    let kept = log.entries[..failed].iter().rposition(is_flush).unwrap_or(0);
    let image = log.image_of(|at| at <= kept || at > failed);
    check(history.len() - 1, OverlayDevice::new(image), &format!("{case}, which has lost what was written"));
}

#[test]
fn a_top_that_fails_keeps_what_was_flushed() {
    let seed = seed_from_env("LANEFS_SEED");
    let base = Image::zeroed((SECTORS * SECTOR) as u64);
    let mut failures = 0;
    let ways =
        [(Op::Write, Failure::Error(EIO)), (Op::Write, Failure::Half(EIO)), (Op::Flush, Failure::Error(EIO))];
    for ((op, failure), for_ever) in ways.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        for nth in 1.. {
            let case = format!("{op:?} {nth}, {failure:?}, for ever: {for_ever}");
            let record = Arc::new(RecordingDevice::new(top_image(&base)));
            let marks = Arc::clone(&record);
            let top = FailingDevice::new(Arc::clone(&record)).with_notify(move || _ = marks.mark(FAILED));
            top.fail(op, nth, for_ever, failure);
            let top = Arc::new(top);
            let history = write_rounds(&top, &case);
            if top.failures() == 0 {
                break;
            }
            failures += 1;
            check_left(&record.log(), &history, seed.value(), op == Op::Flush, &case);
        }
    }
    assert!(failures > 100, "only {failures} calls failed");
    println!("{failures} calls failed");
}
