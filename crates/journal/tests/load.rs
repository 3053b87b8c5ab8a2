//! Very many threads: what was synced is there after a crash, and no thread starves.
//!
//! Each test has a watchdog, because the failures here are hangs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is test code")]

use lanefs_device::{BlockDevice, FileDevice, MemDevice};
use lanefs_format::jbd2::{Compat, Incompat, Superblock};
use lanefs_journal::{Journal, LogConfig, LogRun, Options, Tid, recovery};
use lanefs_sim::{Image, RecordingDevice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Blocks in front of the log.
const BLOCKS: u64 = 4096;

/// Seconds, as naps: a machine or a process that is stopped for a while sleeps through one of them.
const PATIENCE: u32 = 300;

fn config(log_blocks: u32) -> LogConfig {
    let runs = vec![LogRun { logical: 0, physical: BLOCKS, len: log_blocks }];
    LogConfig { runs, metadata_csum: true, is_64bit: true }
}

fn options(block_size: u32, log_blocks: u32) -> Options {
    Options { log: Some(config(log_blocks)), commit_interval: Duration::ZERO, ..Options::new(block_size) }
}

fn log_superblock(block_size: u32, log_blocks: u32) -> Superblock {
    let mut sb = Superblock::new(block_size, log_blocks, [4; 16]);
    sb.set_features(Compat::empty(), Incompat::CSUM_V3 | Incompat::BIT64);
    sb
}

fn prepare(device: &dyn BlockDevice, block_size: u32, log_blocks: u32) {
    let sb = log_superblock(block_size, log_blocks).to_bytes();
    device.write_at(&sb, BLOCKS * u64::from(block_size)).unwrap();
}

fn size(block_size: u32, log_blocks: u32) -> u64 {
    (BLOCKS + u64::from(log_blocks)) * u64::from(block_size)
}

/// Runs `work`; aborts the process if it does not end, for a thread that waits for ever cannot be
/// joined.
fn in_time(name: &'static str, work: impl FnOnce()) {
    let done = Arc::new(AtomicBool::new(false));
    let watched = Arc::clone(&done);
    thread::spawn(move || {
        for _ in 0..PATIENCE * 10 {
            thread::sleep(Duration::from_millis(100));
            if watched.load(Ordering::Relaxed) {
                return;
            }
        }
        eprintln!("{name}: somebody waits for ever");
        std::process::abort();
    });
    work();
    done.store(true, Ordering::Relaxed);
}

/// Runs `work` in `threads` threads with little stacks.
fn spread(threads: u64, work: impl Fn(u64) + Sync) {
    thread::scope(|scope| {
        for n in 0..threads {
            let work = &work;
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, move || work(n)).unwrap();
        }
    });
}

/// Adds one to a block's counter, in a handle of `credits`, and to a counter that all threads
/// share.
fn count(journal: &Journal, credits: u32, block: u64, shared: u64) -> Tid {
    let buffers = [shared, block].map(|block| journal.read(block).unwrap());
    let handle = journal.start(credits).unwrap();
    for buffer in &buffers {
        let mut bytes = handle.write(buffer).unwrap();
        let value = counter(&bytes) + 1;
        bytes[..8].copy_from_slice(&value.to_le_bytes());
    }
    // Others get to the gate while we are inside.
    thread::yield_now();
    let tid = handle.tid();
    handle.stop();
    tid
}

fn counter(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

fn on_device(device: &dyn BlockDevice, block_size: u32, block: u64) -> u64 {
    let mut bytes = [0; 8];
    device.read_at(&mut bytes, block * u64::from(block_size)).unwrap();
    counter(&bytes)
}

/// `threads` count and commit, `rounds` times each; then the power fails, and everything counted is
/// there.
fn storm(device: &Arc<dyn BlockDevice>, log_mib: u32, threads: u64, rounds: u64) {
    const BLOCK: u32 = 4096;
    const SHARED: u64 = 16;
    let log_blocks = (log_mib << 20) / BLOCK;
    prepare(device, BLOCK, log_blocks);
    let journal = Journal::open(Arc::clone(device), options(BLOCK, log_blocks)).unwrap();
    spread(threads, |n| {
        for _ in 0..rounds {
            let tid = count(&journal, 12, SHARED + n, n % SHARED);
            journal.commit(tid).unwrap();
            assert!(journal.is_durable(tid));
        }
    });
    let stats = journal.stats();
    assert_eq!(stats.handles, threads * rounds);
    assert!(stats.commits < stats.handles, "commits are shared: {stats:?}");
    assert_eq!(stats.credits_overdrawn, 0);
    drop(journal);
    recovery::recover(device, BLOCK, &config(log_blocks)).unwrap();
    for n in 0..threads {
        assert_eq!(on_device(device, BLOCK, SHARED + n), rounds, "thread {n}");
    }
    let shared: u64 = (0..SHARED).map(|block| on_device(device, BLOCK, block)).sum();
    assert_eq!(shared, threads * rounds);
}

#[test]
fn two_thousand_threads_commit_in_a_small_log() {
    in_time("small log", || {
        storm(&(Arc::new(MemDevice::new(size(4096, 4096) as usize)) as Arc<dyn BlockDevice>), 16, 2048, 6);
    });
}

#[test]
fn two_thousand_threads_commit_in_a_large_log_in_a_file() {
    in_time("large log", || {
        let dir = tempfile::tempdir().unwrap();
        let device = FileDevice::create(dir.path().join("volume"), size(4096, 32_768)).unwrap();
        storm(&(Arc::new(device) as Arc<dyn BlockDevice>), 128, 2048, 3);
    });
}

#[test]
fn unused_credits_come_back_without_a_commit() {
    in_time("credits", || {
        let device = MemDevice::new(size(1024, 1024) as usize);
        prepare(&device, 1024, 1024);
        let journal = Journal::open(Arc::new(device), options(1024, 1024)).unwrap();
        let credits = journal.max_credits() / 3;
        spread(64, |_| {
            for _ in 0..100 {
                count(&journal, credits, 1, 0);
            }
        });
        let stats = journal.stats();
        assert_eq!((stats.handles, stats.credits_used, stats.commits), (6400, 2, 0));
        assert_eq!(counter(&journal.read(0).unwrap().read()), 6400);
    });
}

#[test]
fn a_large_request_is_not_overtaken_for_ever() {
    in_time("overtaken", || {
        let device = MemDevice::new(size(1024, 1024) as usize);
        prepare(&device, 1024, 1024);
        let journal = Journal::open(Arc::new(device), options(1024, 1024)).unwrap();
        let (all, done) = (journal.max_credits(), AtomicBool::new(false));
        spread(17, |n| {
            if n == 0 {
                for _ in 0..200 {
                    count(&journal, all, 100, 0);
                }
                done.store(true, Ordering::Relaxed);
            }
            while !done.load(Ordering::Relaxed) {
                count(&journal, 3, 100 + n, 0);
            }
        });
    });
}

/// Some threads do nothing but sync until the others have come far enough, and those go on until
/// all syncs have returned: neither may keep the other away.
#[test]
fn syncs_without_a_pause_and_handles_do_not_keep_each_other_away() {
    in_time("sync", || {
        for round in 0..6 {
            let mut image = Image::zeroed(size(1024, 1024));
            image.write(BLOCKS * 1024, &log_superblock(1024, 1024).to_bytes());
            let device = Arc::new(RecordingDevice::new(image));
            // With and without the commits of the journal's own thread.
            let interval = Duration::from_millis(round % 3);
            let options = Options { commit_interval: interval, ..options(1024, 1024) };
            let journal = Journal::open(device, options).unwrap();
            let syncers = 1 + round % 2 * 7;
            let (syncing, counted) = (AtomicU64::new(syncers), AtomicU64::new(0));
            spread(syncers + 8, |n| {
                if n < syncers {
                    while counted.load(Ordering::Relaxed) < 500 {
                        journal.sync().unwrap();
                    }
                    syncing.fetch_sub(1, Ordering::Relaxed);
                    return;
                }
                while syncing.load(Ordering::Relaxed) > 0 {
                    let tid =
                        count(&journal, if n % 5 == 4 { journal.max_credits() } else { 12 }, 100 + n, 0);
                    counted.fetch_add(1, Ordering::Relaxed);
                    match n % 4 {
                        0 => journal.commit(tid).unwrap(),
                        1 => journal.flush(journal.ticket()).unwrap(),
                        2 => journal.checkpoint().unwrap(),
                        _ => {}
                    }
                }
            });
            assert_eq!(counter(&journal.read(0).unwrap().read()), counted.into_inner());
        }
    });
}

/// Clean blocks have the memory that changed blocks and two transactions leave, as much as that is
/// after each commit and checkpoint.
#[test]
fn the_cache_has_what_changed_blocks_leave() {
    const BLOCK: u32 = 1024;
    const LOG: u32 = 32 << 10;
    const MEMORY: usize = 4096;
    /// Around three quarters, which two transactions leave: shards may exceed their capacity.
    const UNCHANGED: std::ops::Range<usize> = MEMORY * 11 / 16..MEMORY * 13 / 16;
    let device = Arc::new(MemDevice::new(size(BLOCK, LOG) as usize));
    prepare(&*device, BLOCK, LOG);
    // Without threads nothing is checkpointed by itself.
    let options = Options { cache_blocks: MEMORY, threads: false, ..options(BLOCK, LOG) };
    let journal = Journal::open(device, options).unwrap();
    assert_eq!(journal.max_credits() as usize, MEMORY / 8);
    let after_reads = || {
        (0..BLOCKS).for_each(|block| drop(journal.read(block).unwrap()));
        let levels = journal.stats().levels;
        (levels.blocks_in_memory as usize, levels.blocks_to_checkpoint)
    };
    let (all, _) = after_reads();
    assert!(UNCHANGED.contains(&all), "{all} blocks");

    for first in [0, 500, 1000] {
        let handle = journal.start(500).unwrap();
        for block in first..first + 500 {
            handle.write(&journal.read(block).unwrap()).unwrap()[0] = 1;
        }
        let tid = handle.tid();
        handle.stop();
        journal.commit(tid).unwrap();
    }
    let (all, changed) = after_reads();
    assert_eq!(changed, 1500);
    assert!(all <= MEMORY, "{all} blocks");

    journal.checkpoint().unwrap();
    let (all, changed) = after_reads();
    assert!(changed == 0 && UNCHANGED.contains(&all), "{all} blocks");
    journal.close().unwrap();
}

/// For any size of the log, changed and uncheckpointed blocks stay within their half of the memory,
/// and handles wait for that.
#[test]
fn a_large_log_does_not_fill_the_memory() {
    const BLOCK: u32 = 1024;
    const LOG: u32 = 32 << 10;
    const MEMORY: usize = 4096;
    in_time("a_large_log_does_not_fill_the_memory", || {
        let device = Arc::new(MemDevice::new(size(BLOCK, LOG) as usize));
        prepare(&*device, BLOCK, LOG);
        let options = Options { cache_blocks: MEMORY, ..options(BLOCK, LOG) };
        let journal = Journal::open(device.clone(), options).unwrap();
        assert_eq!(journal.max_credits() as usize, MEMORY / 8);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let levels = journal.stats().levels;
                    assert!(levels.blocks_to_checkpoint as usize <= MEMORY / 2, "{levels:?}");
                    // Blocks in use come on top: those of the running and of the committing
                    // transaction.
                    assert!(levels.blocks_in_memory as usize <= MEMORY + MEMORY / 4, "{levels:?}");
                }
            });
            // 500 blocks at a time, each time others.
            for round in 0..200 {
                let handle = journal.start(500).unwrap();
                for i in 0..500 {
                    let block = 1 + (round * 500 + i) * 11 % (BLOCKS - 1);
                    handle.write(&journal.read(block).unwrap()).unwrap()[0] = round as u8;
                }
                let tid = handle.tid();
                handle.stop();
                journal.commit(tid).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(journal.stats().checkpoints > 0);
        assert!(journal.take_used() && !journal.take_used());
        journal.checkpoint().unwrap();
        journal.release();
        assert!(!journal.has_uncommitted() && journal.stats().levels.blocks_to_checkpoint == 0);
        assert_eq!(journal.memory(), 0);
        journal.close().unwrap();
    });
}
