//! Power cuts while the log goes round: transactions of any size, in the smallest log there is.
//!
//! Transactions overwrite the space of older ones all the time, as soon as the journal frees it.
//! After a cut and recovery, all blocks are as after one transaction: one that had begun, and not
//! older than the last durable one.

use super::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Blocks that transactions change, from `FIRST` on. Each transaction changes the first of them.
const FIRST: u64 = 100;
const CHANGED: usize = 400;

/// Blocks of the log.
const LOG: usize = 1024;

/// Runs `rounds` transactions, with or without background threads. Returns the log of their writes
/// to the device, and the blocks after each.
fn run(seed: u64, rounds: u32, threads: bool) -> (lanefs_sim::Log, Vec<Vec<u32>>) {
    let base = Image::from_bytes(empty_log(LOG as u32).to_bytes());
    let device = Arc::new(RecordingDevice::new(base));
    let journal = Journal::open(device.clone(), Options { threads, ..options(LOG as u32) }).unwrap();
    let most = journal.max_credits() as usize;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut history = vec![vec![0; CHANGED]];
    let mut logged = 0;
    for round in 1..=rounds {
        let mut blocks = history.last().unwrap().clone();
        device.mark(format!("begun {round}"));
        // The largest that there can be, or a few.
        let len = if rng.random() { most } else { rng.random_range(1..60) };
        logged += len;
        let first = rng.random_range(1..CHANGED - len);
        let handle = journal.start(most as u32).unwrap();
        for n in std::iter::once(0).chain(first..first + len - 1) {
            let buffer = journal.read(FIRST + n as u64).unwrap();
            handle.write(&buffer).unwrap()[..4].copy_from_slice(&round.to_le_bytes());
            blocks[n] = round;
        }
        history.push(blocks);
        let tid = handle.tid();
        handle.stop();
        journal.commit(tid).unwrap();
        device.mark(format!("durable {round}"));
    }
    // Whether a handle waited, or the checkpoints were ahead, is a matter of the threads.
    assert!(logged > 2 * LOG, "{logged} blocks do not go round");
    (device.log(), history)
}

#[test]
fn the_log_is_not_written_over_before_its_tail_is_durable() {
    // Without threads, committed transactions lie behind the tail whenever it moves.
    for (seed, threads) in [(0, true), (1, true), (2, true), (0, false), (1, false)] {
        let (log, history) = run(seed, 24, threads);
        for state in log.small_states(seed, 8) {
            let number = |key: &str| {
                let last = state.marks(&log).rev().find_map(|(_, mark)| mark.strip_prefix(key)?.parse().ok());
                last.unwrap_or(0)
            };
            let (durable, begun): (usize, usize) = (number("durable "), number("begun "));
            let case = format!("seed {seed}, threads {threads}, {state}");
            let device = state.device();
            recovery::recover(&device, BLOCK, &config(LOG as u32)).unwrap_or_else(|e| panic!("{case}: {e}"));
            let word = |n| u32::from_le_bytes(device_bytes(&device, FIRST + n)[..4].try_into().unwrap());
            let at = word(0) as usize;
            assert!((durable..=begun).contains(&at), "{case}: {at} is not in {durable}..={begun}");
            let wrong = (0..CHANGED).find(|&n| word(n as u64) != history[at][n]);
            assert_eq!(wrong, None, "{case}: a block is not that of transaction {at}");
        }
    }
}
