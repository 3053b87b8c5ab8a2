//! Where the log ends: a torn commit block, a damaged one, and what another volume has left.

use super::*;

#[test]
fn a_torn_last_transaction_is_dropped() {
    // The commit block is torn in its fields, and nothing follows.
    let mut log = Writer::new();
    log.copies(10, &[(5, 1)]);
    log.commit(10);
    log.copies(11, &[(5, 2)]);
    let commit = log.commit(11);
    log.damage(commit, 0x12);
    let memory = log.on_medium(8);
    assert_eq!(recover(&memory, BLOCK, &config(BLOCKS)).unwrap().transactions, 1);
    assert_eq!(device_bytes(&memory, 5)[0], 1);
}

/// A medium that writes all fields of a commit block at once leaves the old block or the new one.
#[test]
fn a_damaged_last_commit_block_is_an_error() {
    for last in [10, 11] {
        let mut log = Writer::new();
        let mut commit = 0;
        for tid in 10..=last {
            log.copies(tid, &[(5, 1)]);
            commit = log.commit(tid);
        }
        log.damage(commit, 0x12);
        for unit in [64, 512, 4096] {
            let recovered = recover(&log.on_medium(unit), BLOCK, &config(BLOCKS));
            let Err(JournalError::DamagedLastCommit { tid, log_block }) = recovered else {
                panic!("unit {unit}: {recovered:?}");
            };
            assert_eq!((tid, log_block), (Tid(last), commit), "unit {unit}");
        }
        let refused = log.recover().unwrap_err().to_string();
        assert!(refused.contains("open it as pmem:"), "{refused}");
    }
}

/// Returns a log that was made without zeroing it, over that of another volume.
fn over_another_volume() -> Writer {
    let mut log = Writer::new();
    let ours = log.layout;
    log.layout = Layout::new(Checksum::V3, true, [4; 16]);
    for (tid, home) in [(10, 5), (11, 6)] {
        log.copies(tid, &[(home, 9)]);
        log.commit(tid);
    }
    (log.layout, log.at) = (ours, 1);
    log
}

/// The numbers of its transactions fit, and no clock tells that they are old.
#[test]
fn what_another_volume_left_is_the_end() {
    // The first transaction was about to be written.
    let log = over_another_volume();
    assert_eq!(log.recover().unwrap().transactions, 0);
    // Its commit block was: there is that of the other volume in its place.
    let mut log = over_another_volume();
    log.copies(10, &[(5, 1)]);
    assert_eq!(log.recover().unwrap().transactions, 0);
    assert_eq!((log.at(5), log.at(6)), (0, 0));
    // It is committed, by a clock that is slow.
    let mut log = over_another_volume();
    log.copies(10, &[(5, 1)]);
    log.time = 3;
    log.commit(10);
    assert_eq!(log.recover().unwrap().transactions, 1);
    assert_eq!((log.at(5), log.at(6)), (1, 0));
}

/// The UUID in the first tag tells nothing: the kernel writes zeros, and damage changes it too.
#[test]
fn two_damaged_blocks_are_of_no_other_volume() {
    let mut log = Writer::new();
    let descriptor = log.copies(10, &[(5, 1)]);
    let commit = log.commit(10);
    log.damage(descriptor, 30);
    log.damage(commit, 0x12);
    let error = log.recover().unwrap_err();
    let JournalError::DamagedTransaction { tid, log_block } = error else { panic!("{error}") };
    assert_eq!((tid, log_block), (Tid(10), descriptor));
}
