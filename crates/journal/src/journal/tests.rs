mod data;
mod ends;
mod round;

use super::*;
use crate::testing::{BLOCK, BLOCKS, LOG_START, config, device_bytes, empty_log, options};
use crate::{Freed, Handle, OnFreed, Pending, recovery};
use lanefs_device::{MemDevice, Op};
use lanefs_sim::{FailingDevice, Image, LogEntry, RecordingDevice};
use lanefs_sync::Mutex;
use std::sync::{OnceLock, Weak};
use std::thread;
use std::time::Duration;

fn open(device: &Arc<MemDevice>) -> Journal {
    Journal::open(device.clone(), options(1024)).unwrap()
}

/// Returns a device with an empty log, and its journal.
fn new() -> (Arc<MemDevice>, Journal) {
    let device = Arc::new(empty_log(1024));
    let journal = open(&device);
    (device, journal)
}

fn at(device: &MemDevice, block: u64) -> u8 {
    device_bytes(device, block)[0]
}

/// Writes `value` to the start of a block in a handle of its own.
fn set(journal: &Journal, block: u64, value: u8) -> Tid {
    let buffer = journal.read(block).unwrap();
    let handle = journal.start(1).unwrap();
    handle.write(&buffer).unwrap()[0] = value;
    handle.tid()
}

/// Commits, loses the cache, and returns the start of a block after the recovery.
fn recovered(journal: Journal, device: &MemDevice, block: u64) -> u8 {
    journal.sync().unwrap();
    drop(journal);
    recover(device);
    at(device, block)
}

fn recover(device: &MemDevice) -> recovery::Report {
    recovery::recover(device, BLOCK, &config(1024)).unwrap()
}

#[test]
fn without_a_log_a_commit_brings_changes_home() {
    let device = Arc::new(MemDevice::new(1 << 20));
    let journal = Journal::open(device.clone(), Options::new(BLOCK)).unwrap();
    let buffer = journal.read(7).unwrap();
    let handle = journal.start(2).unwrap();
    handle.write(&buffer).unwrap()[0] = 9;
    let tid = handle.tid();
    assert_eq!(handle.credits(), 1);
    handle.stop();
    assert_eq!(at(&device, 7), 0);
    journal.commit(tid).unwrap();
    assert_eq!(at(&device, 7), 9);
    journal.close().unwrap();
    assert!(matches!(journal.start(1), Err(JournalError::Closed)));
    assert_eq!(journal.read(7).unwrap().read()[0], 9);
}

#[test]
fn committed_changes_survive_and_others_do_not() {
    let (device, journal) = new();
    let tid = set(&journal, 7, 1);
    journal.commit(tid).unwrap();
    set(&journal, 7, 2);
    set(&journal, 8, 3);
    drop(journal);
    assert_eq!((at(&device, 7), at(&device, 8)), (0, 0));
    let report = recover(&device);
    assert_eq!((report.transactions, report.blocks), (1, 1));
    assert_eq!((at(&device, 7), at(&device, 8)), (1, 0));
    assert!(!recover(&device).needed);
}

#[test]
fn a_closed_log_is_empty_and_goes_on() {
    let device = Arc::new(empty_log(1024));
    for round in 1..5 {
        let journal = open(&device);
        set(&journal, 7, round);
        journal.close().unwrap();
        assert_eq!(at(&device, 7), round);
        assert!(!recover(&device).needed);
    }
}

#[test]
fn an_untouched_volume_is_not_written() {
    let device = Arc::new(empty_log(1024));
    let before = device.to_bytes();
    let journal = open(&device);
    journal.read(7).unwrap();
    journal.start(5).unwrap().stop();
    journal.sync().unwrap();
    journal.close().unwrap();
    drop(journal);
    assert!(before == device.to_bytes());
}

#[test]
fn a_checkpoint_only_writes_what_is_committed() {
    let (device, journal) = new();
    let tid = set(&journal, 7, 1);
    journal.commit(tid).unwrap();
    set(&journal, 7, 2);
    journal.core.checkpoint().unwrap();
    assert_eq!(at(&device, 7), 1);
    drop(journal);
    assert_eq!(recover(&device).transactions, 0);
    assert_eq!(at(&device, 7), 1);
}

#[test]
fn a_block_changed_while_its_commit_closes_is_copied_out() {
    let (_, journal) = new();
    let buffer = journal.read(7).unwrap();
    let first = set(&journal, 7, 1);
    // The committer has opened the next transaction but not taken the contents yet.
    let place = journal.core.gate.close();
    let txn = std::mem::take(&mut *journal.core.transactions[place.slot].lock());
    journal.core.gate.open_next(first.next(), 100);
    let second = set(&journal, 7, 2);
    assert_eq!(second, first.next());
    let snapshot = txn.snapshot(first);
    assert_eq!(snapshot.blocks.len(), 1);
    assert_eq!(snapshot.blocks[0].1[0], 1);
    assert_eq!(buffer.read()[0], 2);
}

#[test]
fn freed_metadata_is_revoked_and_reported_after_the_commit() {
    let device = Arc::new(empty_log(1024));
    let freed = Arc::new(Mutex::new(Vec::new()));
    let mut options = options(1024);
    let told = Arc::clone(&freed);
    options.on_freed = Some(Box::new(move |runs| told.lock().extend_from_slice(runs)));
    let journal = Journal::open(device.clone(), options).unwrap();
    for block in [20, 21, 22] {
        set(&journal, block, 5);
    }
    journal.sync().unwrap();
    let handle = journal.start(3).unwrap();
    handle.free(20, 3, true).unwrap();
    // Made metadata again by the same transaction.
    handle.create(21).unwrap();
    handle.stop();
    assert_eq!(*freed.lock(), []);
    journal.sync().unwrap();
    assert_eq!(*freed.lock(), [Freed { start: 20, len: 3 }]);
    assert_eq!(journal.stats().revokes, 2);
    // Block 20 is file data now: an old copy must not come back, neither by checkpoint nor by
    // replay.
    device.write_at(&[0xDD; BLOCK as usize], 20 * u64::from(BLOCK)).unwrap();
    let crashed = MemDevice::from_bytes(device.to_bytes());
    let report = recover(&crashed);
    assert_eq!((at(&crashed, 20), at(&crashed, 21), at(&crashed, 22)), (0xDD, 0, 0));
    assert_eq!(report.revoked, 2);
    journal.checkpoint().unwrap();
    assert_eq!((at(&device, 20), at(&device, 21), at(&device, 22)), (0xDD, 0, 0));
}

/// Runs of freed blocks cost no credits: without a commit interval, nothing else would end their
/// transaction.
#[test]
fn a_transaction_that_frees_very_much_is_committed() {
    let (_, journal) = new();
    let mut first = None;
    for round in 0..70_000 {
        let handle = journal.start(1).unwrap();
        if round % 1000 == 0 {
            handle.write(&journal.read(7).unwrap()).unwrap()[0] = round as u8;
        }
        handle.free(100 + round % 1000, 1, false).unwrap();
        first.get_or_insert(handle.tid());
    }
    while !journal.is_durable(first.unwrap()) {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(journal.core.transactions.iter().all(|txn| txn.lock().freed.len() < 70_000));
}

#[test]
fn a_revoked_block_that_is_metadata_again_is_replayed() {
    let (device, journal) = new();
    set(&journal, 20, 1);
    journal.sync().unwrap();
    journal.start(1).unwrap().free(20, 1, true).unwrap();
    journal.sync().unwrap();
    let handle = journal.start(1).unwrap();
    let buffer = handle.create(20).unwrap();
    assert_eq!(buffer.read()[0], 0);
    handle.write(&buffer).unwrap()[0] = 3;
    handle.stop();
    assert_eq!(recovered(journal, &device, 20), 3);
}

/// The newest content of a block counts, not that the same transaction has revoked it before.
#[test]
fn a_block_freed_and_made_again_by_one_transaction_is_replayed() {
    let (device, journal) = new();
    set(&journal, 20, 1);
    journal.sync().unwrap();
    let handle = journal.start(2).unwrap();
    handle.free(20, 1, true).unwrap();
    let buffer = handle.create(20).unwrap();
    handle.write(&buffer).unwrap()[0] = 3;
    handle.stop();
    assert_eq!(recovered(journal, &device, 20), 3);
}

#[test]
fn credits_are_spent_once_for_a_block_and_lent_when_short() {
    let (_, journal) = new();
    let buffers: Vec<Buffer> = (20..30).map(|b| journal.read(b).unwrap()).collect();
    let mut handle = journal.start(2).unwrap();
    drop(handle.write(&buffers[0]).unwrap());
    drop(handle.write(&buffers[0]).unwrap());
    assert_eq!(handle.credits(), 1);
    assert!(handle.extend(2).unwrap());
    assert_eq!(handle.credits(), 3);
    for buffer in &buffers[..5] {
        drop(handle.write(buffer).unwrap());
    }
    assert_eq!(handle.credits(), 0);
    assert_eq!(journal.stats().credits_overdrawn, 1);
    assert!(!handle.extend(journal.max_credits()).unwrap());
    handle.restart(journal.max_credits() - 4).unwrap();
    assert!(matches!(journal.start(journal.max_credits() + 1), Err(JournalError::TooManyCredits { .. })));
    drop(handle);
}

#[test]
fn a_changed_block_is_not_read_again_from_the_device() {
    let device = Arc::new(empty_log(1024));
    let journal = Journal::open(device.clone(), Options { cache_blocks: 1, ..options(1024) }).unwrap();
    set(&journal, 20, 4);
    journal.sync().unwrap();
    for block in 200..2000 {
        journal.read(block).unwrap();
    }
    assert_eq!(at(&device, 20), 0);
    assert_eq!(journal.read(20).unwrap().read()[0], 4);
    assert!(matches!(journal.read(1 << 40), Err(JournalError::BlockOutOfRange { .. })));
}

#[test]
fn verified_lasts_as_long_as_the_content() {
    let (_, journal) = new();
    let buffer = journal.read(30).unwrap();
    assert!(!buffer.verified(3));
    buffer.set_verified(3);
    assert!(journal.read(30).unwrap().verified(3) && !buffer.verified(4));
    let handle = journal.start(1).unwrap();
    assert!(!handle.create(30).unwrap().verified(3));
}

#[test]
fn transaction_numbers_wrap() {
    let device = Arc::new(empty_log(1024));
    testing_tail(&device, u32::MAX - 3);
    let journal = open(&device);
    for value in 1..9 {
        set(&journal, 7, value);
        journal.sync().unwrap();
    }
    assert_eq!(journal.running(), Tid(5));
    drop(journal);
    assert_eq!(recover(&device).transactions, 8);
    assert_eq!(at(&device, 7), 8);
}

fn testing_tail(device: &MemDevice, sequence: u32) {
    device.write_at(&sequence.to_be_bytes(), LOG_START * u64::from(BLOCK) + 0x18).unwrap();
}

#[test]
fn time_commits() {
    let device = Arc::new(empty_log(1024));
    let interval = Duration::from_millis(20);
    let journal = Journal::open(device, Options { commit_interval: interval, ..options(1024) }).unwrap();
    set(&journal, 7, 1);
    let mut naps = 0;
    while journal.stats().commits == 0 {
        assert!(naps < 60_000, "nothing is committed");
        thread::sleep(Duration::from_millis(5));
        naps += 1;
    }
}

#[test]
fn an_abort_is_final() {
    let (device, journal) = new();
    let buffer = journal.read(7).unwrap();
    let mut handle = journal.start(5).unwrap();
    journal.abort("block 7 is bad");
    journal.abort("later");
    // An open handle goes on to its end, so that no thread reads half an operation.
    handle.write(&buffer).unwrap()[0] = 1;
    handle.create(9).unwrap();
    handle.free(9, 1, true).unwrap();
    assert!(handle.restart(1).is_err() && handle.write(&buffer).is_err());
    let tid = handle.tid();
    handle.stop();
    for error in
        [journal.start(1).err(), journal.commit(tid).err(), journal.sync().err(), journal.close().err()]
    {
        assert!(error.unwrap().to_string().contains("block 7 is bad"));
    }
    drop(journal);
    assert_eq!(at(&device, 7), 0);
    assert_eq!(recovery::recover(&*device, BLOCK, &config(1024)).unwrap().errno, -5);
    recovery::clear_errno(&*device, BLOCK, &config(1024)).unwrap();
    assert_eq!(recover(&device).errno, 0);
}

/// After a failed commit, reads still see the last changes, even if the cache was released.
#[test]
fn blocks_of_a_failed_commit_stay_in_memory() {
    let device = Arc::new(FailingDevice::new(empty_log(1024)));
    let journal = Journal::open(device.clone(), options(1024)).unwrap();
    let tid = set(&journal, 7, 1);
    device.fail_from(Op::Write, 1, 5);
    assert!(journal.commit(tid).is_err());
    journal.release();
    assert_eq!(journal.read(7).unwrap().read()[0], 1);
}

/// A power cut behind an abort finds the note of it.
#[test]
fn the_note_of_an_abort_is_flushed() {
    let device = Arc::new(RecordingDevice::new(Image::from_bytes(empty_log(1024).to_bytes())));
    let journal = Journal::open(device.clone(), options(1024)).unwrap();
    set(&journal, 7, 1);
    journal.abort("block 7 is bad");
    let log = device.log();
    let durable = log.entries.iter().rposition(|entry| matches!(entry, LogEntry::Flush)).unwrap_or(0);
    let medium = MemDevice::from_bytes(log.image_of(|at| at < durable).to_bytes());
    assert_eq!(recover(&medium).errno, -5);
}

#[test]
fn a_panic_in_an_operation_commits_nothing() {
    let (device, journal) = new();
    let buffer = journal.read(7).unwrap();
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let handle: Handle<'_> = journal.start(5).unwrap();
        handle.write(&buffer).unwrap()[0] = 1;
        panic!("on purpose");
    }));
    assert!(died.is_err());
    assert!(journal.sync().is_err());
    drop(journal);
    recover(&device);
    assert_eq!(at(&device, 7), 0);
}

#[test]
fn a_panic_in_a_commit_stops_the_journal_and_nobody_waits_for_it() {
    let device = Arc::new(empty_log(1024));
    let on_freed: OnFreed = Box::new(|_| panic!("on purpose"));
    let journal = Journal::open(device, Options { on_freed: Some(on_freed), ..options(1024) }).unwrap();
    journal.start(1).unwrap().free(20, 1, true).unwrap();
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| journal.sync()));
    assert!(died.is_err());
    assert!(journal.sync().is_err() && journal.start(1).is_err());
}

#[test]
fn a_dirty_log_is_not_opened_for_writing() {
    let (device, journal) = new();
    set(&journal, 7, 1);
    journal.sync().unwrap();
    drop(journal);
    let error = Journal::open(device.clone(), options(1024)).unwrap_err();
    assert!(matches!(error, JournalError::NotRecovered { .. }));
    let before = device.to_bytes();
    let journal = Journal::open(device.clone(), Options { read_only: true, ..options(1024) }).unwrap();
    assert_eq!(journal.read(7).unwrap().read()[0], 0);
    assert!(matches!(journal.start(1), Err(JournalError::ReadOnly)));
    journal.sync().unwrap();
    journal.close().unwrap();
    assert!(before == device.to_bytes());
}

#[test]
fn no_commit_overwrites_what_is_not_home() {
    let (device, journal) = new();
    let blocked = journal.core.checkpointing.lock();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..20u8 {
                let handle = journal.start(100).unwrap();
                for block in 1200..1300 {
                    let buffer = journal.read(block).unwrap();
                    handle.write(&buffer).unwrap()[0] = round;
                }
                let tid = handle.tid();
                handle.stop();
                journal.commit(tid).unwrap();
            }
        });
        // It fills the log and then waits, because nothing comes home.
        while journal.stats().waits == 0 && !writer.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(30));
        assert!(!writer.is_finished());
        let commits = journal.stats().commits;
        let crashed = MemDevice::from_bytes(device.to_bytes());
        assert_eq!(u64::from(recover(&crashed).transactions), commits);
        assert_eq!(u64::from(at(&crashed, 1250)) + 1, commits);
        drop(blocked);
    });
    assert!(journal.stats().checkpoints > 0);
}

#[test]
fn a_journal_without_threads_makes_room_itself() {
    let device = Arc::new(empty_log(1024));
    let journal =
        Journal::open(Arc::clone(&device) as _, Options { threads: false, ..options(1024) }).unwrap();
    for first in (0..2400).step_by(100) {
        let handle = journal.start(100).unwrap();
        for block in first..first + 100 {
            handle.write(&journal.read(block).unwrap()).unwrap()[0] = 7;
        }
    }
    assert!(journal.threads.is_empty());
    let stats = journal.stats();
    assert!(stats.commits > 0 && stats.checkpoints > 0, "{stats:?}");
    journal.close().unwrap();
    assert!((0..2400).all(|block| at(&device, block) == 7));
}

/// A thread that waits at the gate for a handle of another one runs the commit that makes room,
/// once that handle has ended.
#[test]
fn threads_share_a_journal_without_threads() {
    let device = Arc::new(empty_log(1024));
    let journal = Journal::open(device as _, Options { threads: false, ..options(1024) }).unwrap();
    let journal = Arc::new(journal);
    let all = journal.core.max_credits();
    let handle = journal.start(all).unwrap();
    for block in 0..u64::from(all) {
        handle.write(&journal.read(block).unwrap()).unwrap()[0] = 7;
    }
    let (other, (has_entered, entered)) = (Arc::clone(&journal), std::sync::mpsc::channel());
    thread::spawn(move || {
        other.start(1).unwrap().stop();
        has_entered.send(()).unwrap();
    });
    while !journal.core.gate.is_waited_for() {
        thread::yield_now();
    }
    handle.stop();
    entered.recv_timeout(Duration::from_secs(60)).expect("the other thread waits for ever");
    assert_eq!(journal.stats().commits, 1);
}

/// A thread that waits at the gate commits two transactions, of which the second could admit it: a
/// commit waits for all that are inside.
#[test]
fn a_thread_that_commits_at_the_gate_is_not_inside() {
    let device = Arc::new(empty_log(1024));
    let core: Arc<OnceLock<Weak<Core>>> = Arc::default();
    let known = Arc::clone(&core);
    // As another thread does whose transaction is long: a request while the first commit runs.
    let on_freed: OnFreed = Box::new(move |_| {
        let core = known.get().unwrap().upgrade().unwrap();
        core.background.want_commit(core.gate.running().tid);
    });
    let options = Options { threads: false, on_freed: Some(on_freed), ..options(1024) };
    let journal = Journal::open(device as _, options).unwrap();
    core.set(Arc::downgrade(&journal.core)).unwrap();
    set(&journal, 7, 1);
    journal.start(3).unwrap().free(20, 1, true).unwrap();
    let (has_entered, entered) = std::sync::mpsc::channel();
    thread::spawn(move || {
        journal.start(journal.core.max_credits()).unwrap().stop();
        has_entered.send(journal.stats().commits).unwrap();
    });
    let commits = entered.recv_timeout(Duration::from_secs(60)).expect("the thread waits for itself");
    assert_eq!(commits, 1);
}

#[test]
fn a_copy_that_looks_like_the_log_is_escaped() {
    let (device, journal) = new();
    let buffer = journal.read(7).unwrap();
    let magic = [0xC0, 0x3B, 0x39, 0x98];
    journal.start(1).unwrap().write(&buffer).unwrap()[..4].copy_from_slice(&magic);
    journal.sync().unwrap();
    let is_magic = |block: &u64| device_bytes(&device, *block)[..4] == magic;
    // Superblock, descriptor, commit.
    assert_eq!((0..BLOCKS as u64).filter(is_magic).count(), 3);
    drop(journal);
    recover(&device);
    assert_eq!(device_bytes(&device, 7)[..4], magic);
}

#[test]
fn a_failing_device_latches() {
    for op in [Op::Write, Op::Flush] {
        for nth in 1.. {
            let device = Arc::new(FailingDevice::new(empty_log(1024)));
            let journal = Journal::open(device.clone(), options(1024)).unwrap();
            device.fail_once(op, nth, 5);
            let mut promised = 0;
            let mut failed = None;
            for round in 1..6 {
                let done = journal.read(7).and_then(|buffer| {
                    let handle = journal.start(1)?;
                    handle.write(&buffer)?[0] = round;
                    handle.stop();
                    journal.sync()?;
                    promised = round;
                    if round % 2 == 0 { journal.checkpoint() } else { Ok(()) }
                });
                match (&failed, done) {
                    (None, Err(error)) => failed = Some(error),
                    (None, Ok(())) => {}
                    (Some(_), done) => assert!(matches!(done, Err(JournalError::Aborted(_))), "{done:?}"),
                }
            }
            drop(journal);
            if failed.is_none() {
                assert_eq!((device.failures(), promised), (0, 5));
                assert!(nth > 10, "{op} {nth}");
                break;
            }
            device.heal();
            recovery::recover(&*device, BLOCK, &config(1024)).unwrap();
            let shown = device_bytes(&*device, 7)[0];
            assert!((promised..=promised + 1).contains(&shown), "{op} {nth}: {shown}, promised {promised}");
        }
    }
}

#[test]
fn sixteen_threads_in_the_smallest_log() {
    let (device, journal) = new();
    let most = journal.max_credits();
    assert!((150..256).contains(&most), "{most}");
    thread::scope(|scope| {
        for worker in 0..16u64 {
            let journal = &journal;
            scope.spawn(move || {
                for round in 0..60u64 {
                    let mut handle = journal.start(if round % 7 == 0 { most } else { 40 }).unwrap();
                    for i in 0..30 {
                        // Some blocks are everybody's.
                        let block = if i < 5 { 1200 + i } else { 1300 + worker * 30 + i };
                        let buffer = journal.read(block).unwrap();
                        handle.write(&buffer).unwrap()[8..16].copy_from_slice(&round.to_le_bytes());
                        if i == 15 && !handle.extend(most / 2).unwrap() {
                            handle.restart(40).unwrap();
                        }
                    }
                    let tid = handle.tid();
                    handle.stop();
                    if (round + worker) % 5 == 0 {
                        journal.commit(tid).unwrap();
                    }
                }
            });
        }
    });
    let stats = journal.stats();
    assert!(stats.checkpoints > 0 && stats.commits > 10, "{stats:?}");
    journal.sync().unwrap();
    drop(journal);
    recover(&device);
    for worker in 0..16 {
        for i in 5..30 {
            let bytes = device_bytes(&device, 1300 + worker * 30 + i);
            assert_eq!(bytes[8..16], 59u64.to_le_bytes(), "worker {worker} block {i}");
        }
    }
}

#[test]
fn a_commit_waits_for_ordered_data() {
    let (device, journal) = new();
    let buffer = journal.read(7).unwrap();
    let (early, late) = (Pending::new(), Pending::new());
    let handle = journal.start(1).unwrap();
    handle.write(&buffer).unwrap()[0] = 1;
    handle.order_after(&early).unwrap();
    handle.order_after(&late).unwrap();
    let tid = handle.tid();
    handle.stop();
    early.done(Ok::<(), JournalError>(()));
    thread::scope(|scope| {
        let committer = scope.spawn(|| journal.commit(tid));
        // The next transaction runs meanwhile.
        while journal.running() == tid {
            thread::yield_now();
        }
        set(&journal, 8, 2);
        thread::sleep(Duration::from_millis(30));
        assert!(!committer.is_finished() && !journal.is_durable(tid));
        assert_eq!(recover(&MemDevice::from_bytes(device.to_bytes())).transactions, 0);
        late.done(Ok::<(), JournalError>(()));
        committer.join().unwrap().unwrap();
    });
    assert!(journal.is_durable(tid) && !journal.is_durable(tid.next()));
    assert_eq!(recover(&device).transactions, 1);
}

#[test]
fn ordered_data_that_failed_aborts_the_commit() {
    for give_up in [false, true] {
        let device = Arc::new(empty_log(1024));
        let journal = open(&device);
        let buffer = journal.read(7).unwrap();
        let data = Pending::new();
        let handle = journal.start(1).unwrap();
        handle.write(&buffer).unwrap()[0] = 1;
        handle.order_after(&data).unwrap();
        handle.stop();
        if give_up {
            drop(data);
        } else {
            data.done(Err(JournalError::Aborted("the data's block is bad".into())));
        }
        let error = journal.sync().unwrap_err().to_string();
        assert!(error.contains(if give_up { "given up" } else { "the data's block is bad" }), "{error}");
        assert!(journal.start(1).is_err());
        drop(journal);
        assert_eq!(recover(&device).transactions, 0);
    }
}

#[test]
fn without_a_log_ordered_data_is_durable_first() {
    let device = Arc::new(RecordingDevice::new(Image::zeroed(1 << 20)));
    let journal = Journal::open(device.clone(), Options::new(BLOCK)).unwrap();
    let buffer = journal.read(7).unwrap();
    let data = Pending::new();
    let handle = journal.start(1).unwrap();
    handle.write(&buffer).unwrap()[0] = 1;
    handle.order_after(&data).unwrap();
    handle.stop();
    thread::scope(|scope| {
        let syncer = scope.spawn(|| journal.sync());
        thread::sleep(Duration::from_millis(20));
        device.write_at(&[9], 50 * u64::from(BLOCK)).unwrap();
        data.done(Ok::<(), JournalError>(()));
        syncer.join().unwrap().unwrap();
    });
    let shape: Vec<&str> = device
        .log()
        .entries
        .iter()
        .map(|entry| match entry {
            LogEntry::Flush => "flush",
            LogEntry::Write { offset, .. } if *offset == 7 * u64::from(BLOCK) => "metadata",
            _ => "data",
        })
        .collect();
    assert_eq!(shape, ["data", "flush", "metadata", "flush"]);
}

#[test]
fn a_commit_pays_for_tickets_and_nobody_flushes_twice() {
    let device = Arc::new(RecordingDevice::new(Image::from_bytes(empty_log(1024).to_bytes())));
    let flushes = || device.log().entries.iter().filter(|e| matches!(e, LogEntry::Flush)).count();
    let journal = Journal::open(device.clone(), options(1024)).unwrap();
    device.write_at(&[9], 50 * u64::from(BLOCK)).unwrap();
    let ticket = journal.ticket();
    assert!(!journal.core.flush.is_done(ticket) && journal.core.flush.is_done(Ticket::NOTHING));
    let tid = set(&journal, 7, 1);
    journal.commit(tid).unwrap();
    assert!(journal.core.flush.is_done(ticket));
    let before = flushes();
    journal.flush(ticket).unwrap();
    journal.flush(Ticket::from_u64(ticket.to_u64())).unwrap();
    assert_eq!(flushes(), before);
    journal.flush(journal.ticket()).unwrap();
    assert_eq!(flushes(), before + 1);
    assert_eq!(journal.stats().commits, 1);
}

#[test]
fn a_failed_flush_stops_the_journal() {
    let device = Arc::new(FailingDevice::new(empty_log(1024)));
    let journal = Journal::open(device.clone(), options(1024)).unwrap();
    let covered = journal.ticket();
    journal.flush(covered).unwrap();
    device.fail_once(Op::Flush, 1, 5);
    let ticket = journal.ticket();
    assert!(matches!(journal.flush(ticket), Err(JournalError::Device(_))));
    // The device works again, but earlier writes may be lost.
    assert!(matches!(journal.flush(ticket), Err(JournalError::Aborted(_))));
    assert!(journal.start(1).is_err() && journal.flush(covered).is_ok());
}

#[test]
fn it_says_what_it_did_and_how_long_that_took() {
    let (_, journal) = new();
    let data = Pending::new();
    let mut handle = journal.start(5).unwrap();
    handle.order_after(&data).unwrap();
    drop(handle.write(&journal.read(7).unwrap()).unwrap());
    handle.restart(2).unwrap();
    handle.stop();
    data.done(Ok::<(), JournalError>(()));
    journal.checkpoint().unwrap();
    let stats = journal.stats();
    assert_eq!((stats.handles, stats.restarts, stats.waits), (2, 1, 0));
    assert_eq!((stats.credits_asked, stats.credits_used), (7, 1));
    assert_eq!((stats.commits, stats.blocks_logged, stats.checkpoints), (1, 1, 1));
    // Two of the commit, two of the checkpoint.
    assert_eq!(stats.flushes, 4);
    let times = &stats.times;
    let phases = [&times.lock_down, &times.log_write, &times.ordered_data, &times.flush, &times.commit_block];
    assert!(phases.iter().all(|phase| phase.count == 1), "{times:?}");
    let sum: u64 = phases.iter().map(|phase| phase.sum).sum();
    assert!(sum > 0 && sum <= times.commit.sum && times.commit.sum <= times.commit_wait.sum, "{times:?}");
    assert_eq!((times.checkpoint.count, times.start.timed), (1, 1));
}
