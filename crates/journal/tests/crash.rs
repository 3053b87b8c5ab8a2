//! Power cuts: after recovery the volume is as after one operation, which is not older than the
//! last operation that was synced.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is test code")]

use lanefs_device::BlockDevice;
use lanefs_format::jbd2::{Compat, Incompat, Superblock};
use lanefs_journal::{Journal, LogConfig, LogRun, Options, recovery};
use lanefs_sim::{Image, Log, LogEntry, OverlayDevice, RecordingDevice, Seed, seed_from_env};
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u32 = 1024;
const LOG: u64 = 512;
const LOG_BLOCKS: u32 = 1024;
/// The block that every operation changes: it tells which was the last.
const COUNTER: u64 = 10;
const FIRST: u64 = 20;
const BLOCKS: u64 = 60;

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Metadata(u64),
    /// Given back; anything may be in it.
    Free,
    /// File data, written to the device behind the journal's back.
    Data(u64),
}

/// The blocks after each operation.
struct Model {
    now: BTreeMap<u64, Use>,
    after: Vec<BTreeMap<u64, Use>>,
}

fn config() -> LogConfig {
    let runs = vec![LogRun { logical: 0, physical: LOG, len: LOG_BLOCKS }];
    LogConfig { runs, metadata_csum: true, is_64bit: true }
}

fn volume(head: u32) -> Image {
    volume_of([9; 16], head)
}

fn volume_of(uuid: [u8; 16], head: u32) -> Image {
    let mut sb = Superblock::new(BLOCK, LOG_BLOCKS, uuid);
    sb.set_features(Compat::empty(), Incompat::CSUM_V3 | Incompat::BIT64);
    sb.set_head(head);
    let mut image = Image::zeroed((LOG + u64::from(LOG_BLOCKS)) * u64::from(BLOCK));
    image.write(LOG * u64::from(BLOCK), &sb.to_bytes());
    image
}

fn content(value: u64) -> Vec<u8> {
    // Every seventh starts with the magic of the log.
    let mut bytes = vec![value as u8; BLOCK as usize];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    if value % 7 == 3 {
        bytes[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
        bytes[8..16].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

fn read(device: &dyn BlockDevice, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    device.read_at(&mut bytes, block * u64::from(BLOCK)).unwrap();
    bytes
}

/// One operation in one handle: a few blocks change, one may be freed or made.
fn operate(journal: &Journal, rng: &mut StdRng, model: &mut Model) {
    let op = model.after.len() as u64;
    let mut handle = journal.start(12).unwrap();
    let tid = handle.tid();
    let put = |block: u64, used: Use, value: u64| {
        let buffer = match used {
            Use::Metadata(_) => journal.read(block).unwrap(),
            _ => handle.create(block).unwrap(),
        };
        handle.write(&buffer).unwrap().copy_from_slice(&content(value));
    };
    put(COUNTER, Use::Metadata(0), op * 7);
    model.now.insert(COUNTER, Use::Metadata(op * 7));
    for _ in 0..rng.random_range(1..6) {
        let block = FIRST + rng.random_range(0..BLOCKS);
        let used = model.now[&block];
        // What this very transaction has freed may not be used again before it is committed.
        if used == Use::Free {
            continue;
        }
        put(block, used, op);
        model.now.insert(block, Use::Metadata(op));
    }
    if rng.random_ratio(1, 3) {
        let block = FIRST + rng.random_range(0..BLOCKS);
        if matches!(model.now[&block], Use::Metadata(_)) {
            handle.free(block, 1, true).unwrap();
            model.now.insert(block, Use::Free);
        }
    }
    if rng.random_ratio(1, 8) {
        let _ = handle.extend(1).unwrap();
        assert_eq!(handle.tid(), tid);
    }
    model.after.push(model.now.clone());
    if rng.random_ratio(1, 10) {
        handle.restart(3).unwrap();
    }
    handle.stop();
}

/// Freed blocks whose freeing is committed become file data; durable when this returns.
fn write_data(device: &RecordingDevice, rng: &mut StdRng, model: &mut Model) -> Option<u64> {
    let free: Vec<u64> = model.now.iter().filter(|(_, used)| **used == Use::Free).map(|(b, _)| *b).collect();
    let block = *free.get(rng.random_range(0..free.len().max(1)))?;
    let value = 1_000_000 + model.after.len() as u64 * 7;
    device.write_at(&content(value), block * u64::from(BLOCK)).unwrap();
    device.flush().unwrap();
    model.now.insert(block, Use::Data(value));
    // It was free before, so that it may look like this after the last operation.
    model.after.last_mut().unwrap().insert(block, Use::Data(value));
    Some(block)
}

struct Promise {
    /// The operation that was committed.
    op: usize,
    /// File data that was flushed.
    data: Option<(u64, u64)>,
}

/// Holds a recovered volume against the model; the number of the operation that it shows.
fn check(device: &dyn BlockDevice, model: &Model, promises: &[Promise]) -> usize {
    let shown = u64::from_le_bytes(counter_bytes(device)) / 7;
    let least = promises.iter().map(|p| p.op).max().unwrap_or(0);
    assert!(shown as usize >= least, "operation {least} was promised, {shown} is the last");
    let state = &model.after[shown as usize];
    for (&block, &used) in state {
        match used {
            Use::Metadata(value) => {
                let expected = if value == 0 { vec![0; BLOCK as usize] } else { content(value) };
                assert!(read(device, block) == expected, "block {block} is not as after operation {shown}");
            }
            // Data written in this state may or may not be on the medium, but flushed data is.
            Use::Data(value) if promises.iter().any(|p| p.data == Some((block, value))) => {
                assert!(read(device, block) == content(value), "data block {block} after operation {shown}");
            }
            _ => {}
        }
    }
    shown as usize
}

fn counter_bytes(device: &dyn BlockDevice) -> [u8; 8] {
    // The counter's values are multiples of 7, so that it never starts with the magic.
    read(device, COUNTER)[..8].try_into().unwrap()
}

/// The writes of operations to a device, and the promises of durability made meanwhile.
struct Run {
    log: Log,
    model: Model,
    promises: Vec<Promise>,
}

impl Run {
    /// The promises that had been made at a place of the log.
    fn promised<'a>(&self, marks: impl Iterator<Item = &'a str>) -> &[Promise] {
        let last = marks.map(|mark| mark.parse::<usize>().unwrap()).max();
        &self.promises[..last.map_or(0, |last| last + 1)]
    }
}

/// Runs `operations`, with a checkpoint after every `checkpoints` of them or so, on a device that
/// writes `atomic_write` bytes whole.
fn record(image: Image, seed: &Seed, operations: usize, checkpoints: u32, atomic_write: usize) -> Run {
    let mut rng = seed.rng(operations as u64 + u64::from(checkpoints));
    let device = Arc::new(RecordingDevice::new(image).with_atomic_write(atomic_write));
    let now: BTreeMap<u64, Use> =
        (FIRST..FIRST + BLOCKS).chain([COUNTER]).map(|block| (block, Use::Metadata(0))).collect();
    let mut model = Model { after: vec![now.clone()], now };
    let mut promises = Vec::new();
    let options = Options {
        log: Some(config()),
        commit_interval: Duration::ZERO,
        cache_blocks: 64,
        ..Options::new(BLOCK)
    };
    let journal = Journal::open(device.clone(), options).unwrap();
    for _ in 0..operations {
        operate(&journal, &mut rng, &mut model);
        if rng.random_ratio(1, 2) {
            journal.sync().unwrap();
            promises.push(Promise { op: model.after.len() - 1, data: None });
            device.mark((promises.len() - 1).to_string());
            if rng.random_ratio(1, 2)
                && let Some(block) = write_data(&device, &mut rng, &mut model)
            {
                let Use::Data(value) = model.now[&block] else { unreachable!() };
                promises.push(Promise { op: model.after.len() - 1, data: Some((block, value)) });
                device.mark((promises.len() - 1).to_string());
            }
        }
        if rng.random_ratio(1, checkpoints) {
            journal.checkpoint().unwrap();
        } else if rng.random_ratio(1, checkpoints) {
            // Only the oldest transactions: the newer ones stay in the log, with some of the same
            // blocks.
            journal.checkpoint_oldest(rng.random_range(1..60)).unwrap();
        }
    }
    drop(journal);
    Run { log: device.log(), model, promises }
}

fn run(operations: usize, head: u32, checkpoints: u32, atomic_write: usize) {
    let seed = seed_from_env("LANEFS_SEED");
    let run = record(volume(head), &seed, operations, checkpoints, atomic_write);
    let mut shown = Vec::new();
    for (i, state) in run.log.crash_states(seed.value(), 4).enumerate() {
        let promised = run.promised(state.marks(&run.log).map(|(_, mark)| mark));
        let device = RecordingDevice::new(state.image.clone()).with_atomic_write(atomic_write);
        recovery::recover(&device, BLOCK, &config()).unwrap_or_else(|e| panic!("{state}: {e}"));
        shown.push(check(&device, &run.model, promised));
        if i % 40 == 0 {
            cut_recovery(&device, seed.value(), &run.model, promised);
        }
    }
    // What came after the last sync may not have been written.
    let (last, synced) = (shown.last().copied(), run.promises.iter().map(|p| p.op).max());
    assert!(synced > Some(operations / 2) && last >= synced, "the last state shows {last:?} of {synced:?}");
}

/// Cuts inside a recovery, and recovers again: the same.
fn cut_recovery(recovered: &RecordingDevice, seed: u64, model: &Model, promised: &[Promise]) {
    let expected = recovered.image().to_bytes();
    let log = recovered.log();
    for state in log.crash_states(seed, 3) {
        let device = state.device();
        recovery::recover(&device, BLOCK, &config()).unwrap();
        check(&device, model, promised);
        assert!(device.image().to_bytes() == expected, "{state}");
    }
}

#[test]
fn cuts_with_a_log_that_wraps() {
    run(250, 900, 60, 512);
}

#[test]
fn cuts_with_many_checkpoints() {
    run(120, 1, 4, 512);
}

#[test]
fn cuts_on_memory() {
    run(120, 700, 8, 8);
}

/// The images that are left where the write of `new` over `old` is torn: each subset of the words
/// that differ.
fn torn(old: &[u8], new: &[u8]) -> Vec<Vec<u8>> {
    let differing: Vec<usize> =
        (0..new.len()).step_by(8).filter(|&at| old[at..at + 8] != new[at..at + 8]).collect();
    let mix = |subset: u32| {
        let mut mixed = old.to_vec();
        for (_, &at) in (0..).zip(&differing).filter(|(bit, _)| subset & 1 << bit != 0) {
            mixed[at..at + 8].copy_from_slice(&new[at..at + 8]);
        }
        mixed
    };
    (0..1 << differing.len()).map(mix).collect()
}

/// Wherever a store to the journal superblock is cut, the log is recovered. The first transaction
/// gives it its features.
#[test]
fn the_journal_superblock_is_torn_at_words() {
    let seed = seed_from_env("LANEFS_SEED");
    let place = LOG * u64::from(BLOCK);
    for features in [true, false] {
        let mut image = volume(900);
        if !features {
            image.write(place, &Superblock::new(BLOCK, LOG_BLOCKS, [9; 16]).to_bytes());
        }
        let run = record(image, &seed, 150, 10, 8);
        let (mut image, mut marks, mut states, mut mended) = (run.log.base.clone(), Vec::new(), 0, 0);
        for entry in &run.log.entries {
            match entry {
                LogEntry::Mark(mark) => marks.push(mark.as_str()),
                LogEntry::Write { offset, data } if *offset == place => {
                    let mut old = vec![0; data.len()];
                    image.read(place, &mut old);
                    for mixed in torn(&old, data) {
                        image.write(place, &mixed);
                        judge_torn(&image, &run, run.promised(marks.iter().copied()));
                        states += 1;
                        mended += u32::from(Superblock::parse(&mixed, BLOCK, LOG_BLOCKS.into()).is_err());
                    }
                    image.write(place, data);
                }
                LogEntry::Write { offset, data } => image.write(*offset, data),
                _ => {}
            }
        }
        assert!(states > 50 && mended > states / 3, "{mended} of {states} were torn");
    }
}

/// Wherever the stores to the head of a commit block are cut, a reader that knows of no tears
/// recovers the log.
#[test]
fn a_commit_block_is_not_torn_at_words() {
    const HEAD: [u8; 8] = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 2];
    let seed = seed_from_env("LANEFS_SEED");
    let run = record(volume(1), &seed, 60, 1000, 8);
    let (mut image, mut marks, mut states) = (run.log.base.clone(), Vec::new(), 0);
    for entry in &run.log.entries {
        match entry {
            LogEntry::Mark(mark) => marks.push(mark.as_str()),
            LogEntry::Write { offset, data } => {
                let mut old = vec![0; data.len()];
                image.read(*offset, &mut old);
                let mixes = if data.starts_with(&HEAD) { torn(&old, data) } else { Vec::new() };
                for mixed in mixes {
                    image.write(*offset, &mixed);
                    let device = OverlayDevice::new(image.clone());
                    recovery::recover(&device, BLOCK, &config()).unwrap();
                    check(&device, &run.model, run.promised(marks.iter().copied()));
                    states += 1;
                }
                image.write(*offset, data);
            }
            _ => {}
        }
    }
    assert!(states > 50, "{states} states");
}

/// Commits one transaction of some blocks on memory. Returns the writes.
fn commit_once(image: Image, blocks: u64) -> Log {
    let device = Arc::new(RecordingDevice::new(image).with_atomic_write(8));
    let options = Options { log: Some(config()), commit_interval: Duration::ZERO, ..Options::new(BLOCK) };
    let journal = Journal::open(device.clone(), options).unwrap();
    let handle = journal.start(blocks as u32).unwrap();
    for block in FIRST..FIRST + blocks {
        handle.write(&journal.read(block).unwrap()).unwrap().fill(7);
    }
    handle.stop();
    journal.sync().unwrap();
    drop(journal);
    device.log()
}

/// A log that was not zeroed has the same transaction of an earlier volume. A cut that leaves all
/// of the new commit block but its head, and nothing else of the batch, makes no commit block: a
/// reader that knows of no tears finds an empty log.
#[test]
fn a_commit_block_is_not_completed_by_the_head_of_an_earlier_one() {
    let recover = |image: Image| {
        let report = recovery::recover(&OverlayDevice::new(image), BLOCK, &config());
        report.unwrap().transactions
    };
    let first = (LOG + 1) * u64::from(BLOCK);
    for blocks in 1..8 {
        let mut left = vec![0; ((LOG_BLOCKS - 1) * BLOCK) as usize];
        commit_once(volume_of([3; 16], 1), blocks).image_of(|_| true).read(first, &mut left);
        let mut image = volume(1);
        image.write(first, &left);
        let log = commit_once(image, blocks);
        let (mut image, mut batches) = (log.base.clone(), 0);
        for entry in &log.entries {
            let LogEntry::Write { offset, data } = entry else { continue };
            if data.len() > BLOCK as usize {
                assert_eq!(*offset, first);
                let behind_head = data.len() - BLOCK as usize + 16;
                let mut cut = image.clone();
                cut.write(offset + behind_head as u64, &data[behind_head..]);
                assert_eq!(recover(cut), 0, "{blocks} blocks");
                batches += 1;
            }
            image.write(*offset, data);
        }
        assert_eq!((batches, recover(image)), (1, 1));
    }
}

fn judge_torn(image: &Image, run: &Run, promised: &[Promise]) {
    let device = OverlayDevice::new(image.clone()).with_atomic_write(8);
    recovery::recover(&device, BLOCK, &config()).unwrap();
    check(&device, &run.model, promised);
    // As for a reader that knows of no tears: none is left.
    let whole = OverlayDevice::new(device.image());
    recovery::check_log(&whole, BLOCK, &config()).unwrap();
}

/// A wrong checksum is no tear where the medium cannot tear it, and where committed transactions
/// would be lost.
#[test]
fn a_damaged_journal_superblock_is_refused() {
    let seed = seed_from_env("LANEFS_SEED");
    let run = record(volume(1), &seed, 60, 1000, 8);
    let image = run.log.crash_states(0, 0).last().unwrap().image;
    let place = LOG * u64::from(BLOCK);
    let mut sb = vec![0; Superblock::LEN];
    image.read(place, &mut sb);
    let recover = |at: usize, word: u32, atomic_write: usize| {
        let (mut image, mut sb) = (image.clone(), sb.clone());
        sb[at..at + 4].copy_from_slice(&word.to_be_bytes());
        image.write(place, &sb);
        let device = OverlayDevice::new(image).with_atomic_write(atomic_write);
        recovery::recover(&device, BLOCK, &config()).map(|report| report.transactions)
    };
    let get = |at: usize| u32::from_be_bytes(sb[at..at + 4].try_into().unwrap());
    let (sequence, start, sum) = (get(0x18), get(0x1C), get(0xFC));
    let whole = recover(0xFC, sum, 512).unwrap();
    assert!(start != 0 && whole > 10, "{whole} transactions from {start} on");
    assert_eq!(recover(0xFC, !sum, 8).unwrap(), whole);
    for (at, word, atomic_write) in [
        (0xFC, !sum, 512),
        (0xFC, !sum, 256),
        (0x1C, 0, 8),
        (0x1C, start + 1, 8),
        (0x18, sequence + 1, 8),
        (0x18, sequence - 1, 8),
        (0x0C, 4096, 8),
        (0x30, 1, 8),
        (0x50, 1 << 24, 8),
    ] {
        let refused = recover(at, word, atomic_write);
        assert!(refused.is_err(), "{word:#x} at {at:#x}, unit {atomic_write}: {refused:?}");
    }
}

/// Each thread's handles change three blocks of its own to the same value, and one that is
/// everybody's.
fn operate_many(journal: &Journal, device: &RecordingDevice, thread: u64, operations: u64) {
    for value in 1..=operations {
        let handle = journal.start(4).unwrap();
        for block in [COUNTER].into_iter().chain((0..3).map(|i| FIRST + thread * 3 + i)) {
            let buffer = journal.read(block).unwrap();
            handle.write(&buffer).unwrap()[8..16].copy_from_slice(&value.to_le_bytes());
        }
        let tid = handle.tid();
        handle.stop();
        if value % 3 == thread % 3 {
            journal.commit(tid).unwrap();
            device.mark(format!("{thread} {value}"));
        }
        if value % 40 == 0 {
            journal.checkpoint().unwrap();
        } else if value % 7 == thread % 7 {
            journal.checkpoint_oldest(1).unwrap();
        }
    }
}

#[test]
fn cuts_under_many_threads() {
    const THREADS: u64 = 4;
    let seed = seed_from_env("LANEFS_SEED");
    let device = Arc::new(RecordingDevice::new(volume(800)));
    let options =
        Options { log: Some(config()), commit_interval: Duration::from_millis(1), ..Options::new(BLOCK) };
    let journal = Journal::open(device.clone(), options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (journal, device) = (&journal, &device);
            scope.spawn(move || operate_many(journal, device, thread, 80));
        }
    });
    drop(journal);
    let log = device.log();
    for state in log.crash_states(seed.value(), 3) {
        let device = state.device();
        recovery::recover(&device, BLOCK, &config()).unwrap_or_else(|e| panic!("{state}: {e}"));
        let value = |block| u64::from_le_bytes(read(&device, block)[8..16].try_into().unwrap());
        for thread in 0..THREADS {
            let prefix = format!("{thread} ");
            let promised =
                state.marks(&log).filter_map(|(_, mark)| mark.strip_prefix(&prefix)?.parse().ok()).max();
            let first = FIRST + thread * 3;
            let shown = value(first);
            assert!(shown >= promised.unwrap_or(0), "{state}: thread {thread} shows {shown} of {promised:?}");
            assert_eq!((value(first + 1), value(first + 2)), (shown, shown), "{state}: thread {thread}");
        }
    }
}
