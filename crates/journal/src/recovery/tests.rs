mod end;

use super::*;
use crate::log::Ring;
use crate::testing::{BLOCK, LOG_START, config, device_bytes, log_superblock, with_log};
use lanefs_device::{DeviceError, MemDevice, Op};
use lanefs_format::jbd2::{Checksum, Commit, Crc32Be, Descriptor, Incompat, RevokeBlock};
use lanefs_sim::{FailingDevice, Failure, Image, OverlayDevice};
use std::time::Duration;

const BLOCKS: u32 = 1024;

/// Writes log blocks by hand.
struct Writer {
    device: MemDevice,
    map: LogMap,
    layout: Layout,
    at: u32,
    time: u64,
    crc: Crc32Be,
}

impl Writer {
    /// A log that starts at block 1 with transaction 10.
    fn new() -> Self {
        Self::with(log_superblock(BLOCKS), 1)
    }

    fn with(mut sb: Superblock, start: u32) -> Self {
        sb.set_tail(10, start);
        let device = with_log(&sb);
        let map = LogMap::new(&device, BLOCK, &config(BLOCKS)).unwrap();
        Self { device, map, layout: sb.layout(), at: start, time: 1000, crc: Crc32Be::default() }
    }

    fn write(&mut self, block: &[u8]) -> u32 {
        let (at, ring) = (self.at, Ring::new(&log_superblock(BLOCKS)));
        self.device.write_at(block, self.map.locate(at, 1).unwrap().0).unwrap();
        self.at = ring.advance(at, 1);
        at
    }

    /// Copies of blocks: (home, value). Returns the descriptor's place.
    fn copies(&mut self, tid: u32, homes: &[(u64, u8)]) -> u32 {
        let mut block = vec![0; BLOCK as usize];
        let contents: Vec<Vec<u8>> = homes.iter().map(|(_, value)| vec![*value; BLOCK as usize]).collect();
        let mut descriptor = Descriptor::new(&self.layout, &mut block, tid);
        for ((home, _), content) in homes.iter().zip(&contents) {
            descriptor.push(*home, content, false);
        }
        descriptor.finish();
        let at = self.write(&block);
        self.crc.update(&block);
        for content in &contents {
            self.write(content);
            self.crc.update(content);
        }
        at
    }

    fn revoke(&mut self, tid: u32, blocks: &[u64]) -> u32 {
        let mut block = vec![0; BLOCK as usize];
        RevokeBlock::write(&self.layout, &mut block, tid, blocks);
        self.write(&block)
    }

    fn commit(&mut self, tid: u32) -> u32 {
        let mut block = vec![0; BLOCK as usize];
        self.time += 1;
        let crc = std::mem::take(&mut self.crc);
        let commit = Commit { sequence: tid, time: Duration::from_secs(self.time) };
        commit.write(&self.layout, &mut block, crc.value());
        self.write(&block)
    }

    /// Flips a byte of a log block.
    fn damage(&self, at: u32, byte: usize) {
        let offset = self.map.locate(at, 1).unwrap().0 + byte as u64;
        let mut value = [0];
        self.device.read_at(&mut value, offset).unwrap();
        self.device.write_at(&[value[0] ^ 0x40], offset).unwrap();
    }

    fn recover(&self) -> Result<Report> {
        let before = self.device.to_bytes();
        let result = recover(&self.device, BLOCK, &config(BLOCKS));
        assert!(result.is_ok() || before == self.device.to_bytes(), "a refused log changes nothing");
        result
    }

    /// Returns a copy of the volume on a medium that writes `unit` bytes whole.
    fn on_medium(&self, unit: usize) -> OverlayDevice {
        OverlayDevice::new(Image::from_bytes(self.device.to_bytes())).with_atomic_write(unit)
    }

    fn at(&self, block: u64) -> u8 {
        device_bytes(&self.device, block)[0]
    }
}

#[test]
fn the_newest_copy_wins_and_the_sequence_goes_on() {
    let mut log = Writer::with(log_superblock(BLOCKS), 1020);
    log.copies(10, &[(5, 1), (6, 1)]);
    log.commit(10);
    log.copies(11, &[(5, 2)]);
    log.commit(11);
    log.copies(12, &[(5, 3)]);
    let report = log.recover().unwrap();
    assert_eq!((report.transactions, report.blocks), (2, 2));
    assert_eq!((log.at(5), log.at(6)), (2, 1));
    let sb = log.map.read_superblock(&log.device).unwrap();
    // 12 was not committed, so 13: the remains of 12 are never mistaken for a new transaction.
    assert_eq!((sb.sequence(), sb.start()), (13, 0));
}

#[test]
fn a_revoke_holds_for_its_transaction_and_those_before() {
    let mut log = Writer::new();
    log.copies(10, &[(5, 1), (6, 1), (7, 1)]);
    log.commit(10);
    log.copies(11, &[(6, 2)]);
    log.revoke(11, &[5, 6, 7]);
    log.commit(11);
    log.copies(12, &[(7, 3)]);
    log.commit(12);
    let report = log.recover().unwrap();
    assert_eq!((log.at(5), log.at(6), log.at(7)), (0, 0, 3));
    assert_eq!((report.blocks, report.revoked), (1, 4));
}

#[test]
fn a_revoke_that_was_not_committed_does_not_hold() {
    let mut log = Writer::new();
    log.copies(10, &[(5, 1)]);
    log.commit(10);
    log.revoke(11, &[5]);
    log.recover().unwrap();
    assert_eq!(log.at(5), 1);
}

#[test]
fn a_commit_block_torn_behind_its_fields_counts() {
    let mut log = Writer::new();
    log.copies(10, &[(5, 1)]);
    let commit = log.commit(10);
    log.damage(commit, 700);
    assert_eq!(log.recover().unwrap().transactions, 1);
}

#[test]
fn damage_in_the_middle_is_an_error_with_its_number() {
    let make = || {
        let mut log = Writer::new();
        let descriptor = log.copies(10, &[(5, 1), (6, 1)]);
        let revoke = log.revoke(10, &[9]);
        let commit = log.commit(10);
        log.copies(11, &[(7, 2)]);
        log.commit(11);
        (log, descriptor, revoke, commit)
    };
    let (log, descriptor, ..) = make();
    log.damage(descriptor, 900);
    let error = log.recover().unwrap_err();
    assert!(matches!(error, JournalError::DamagedTransaction { tid: Tid(10), log_block: 1 }), "{error}");

    let (log, _, revoke, _) = make();
    log.damage(revoke, 20);
    let error = log.recover().unwrap_err();
    assert!(matches!(error, JournalError::DamagedTransaction { tid: Tid(10), log_block: 4 }), "{error}");

    let (log, _, _, commit) = make();
    log.damage(commit, 0x37);
    let error = log.recover().unwrap_err();
    assert!(matches!(error, JournalError::DamagedTransaction { tid: Tid(10), log_block: 5 }), "{error}");

    let (log, descriptor, ..) = make();
    log.damage(descriptor + 2, 30);
    let error = log.recover().unwrap_err();
    assert!(matches!(error, JournalError::DamagedCopy { tid: Tid(10), log_block: 3, block: 6 }), "{error}");
}

#[test]
fn what_an_older_life_of_the_log_left_is_the_end() {
    let mut log = Writer::new();
    log.copies(10, &[(5, 1)]);
    log.commit(10);
    // The number fits by accident; the sums do not, and the clock says that it is old.
    let stale = log.copies(11, &[(5, 9)]);
    log.time = 3;
    log.commit(11);
    log.damage(stale, 900);
    assert_eq!(log.recover().unwrap().transactions, 1);
    assert_eq!(log.at(5), 1);
}

#[test]
fn one_sum_for_a_transaction() {
    let make = |incompat| {
        let mut sb = Superblock::new(BLOCK, BLOCKS, [3; 16]);
        sb.set_features(jbd2::Compat::CHECKSUM, incompat);
        assert_eq!(sb.layout().checksum, Checksum::V1);
        let mut log = Writer::with(sb, 1);
        log.copies(10, &[(5, 1)]);
        log.commit(10);
        log.copies(11, &[(5, 2)]);
        log.commit(11);
        log
    };
    let log = make(Incompat::empty());
    assert_eq!(log.recover().unwrap().transactions, 2);
    // A commit block comes after the flush of its copies, so a wrong one is damage. On memory the
    // sum itself may be torn.
    let log = make(Incompat::empty());
    log.damage(5, 100);
    assert!(matches!(log.recover(), Err(JournalError::DamagedLastCommit { tid: Tid(11), log_block: 6 })));
    assert_eq!(recover(&log.on_medium(8), BLOCK, &config(BLOCKS)).unwrap().transactions, 1);
    // It may have come before them.
    let log = make(Incompat::ASYNC_COMMIT);
    log.damage(5, 100);
    assert_eq!(log.recover().unwrap().transactions, 1);
    // So may the start of the next one: only that one's commit block makes it damage.
    let mut log = make(Incompat::ASYNC_COMMIT);
    log.damage(6, 0x12);
    log.copies(12, &[(6, 3), (7, 3)]);
    assert_eq!(recover(&log.on_medium(512), BLOCK, &config(BLOCKS)).unwrap().transactions, 1);
    log.commit(12);
    let error = log.recover().unwrap_err();
    assert!(matches!(error, JournalError::DamagedTransaction { tid: Tid(11), log_block: 6 }), "{error}");
    // A log that is not asynchronous needs no more than its first block.
    let mut log = make(Incompat::empty());
    log.damage(6, 0x12);
    log.copies(12, &[(6, 3)]);
    assert!(matches!(log.recover(), Err(JournalError::DamagedTransaction { tid: Tid(11), log_block: 6 })));
    let log = make(Incompat::empty());
    log.damage(2, 100);
    assert!(matches!(log.recover(), Err(JournalError::DamagedTransaction { tid: Tid(10), .. })));
}

/// A commit block may be durable before its descriptor and its revokes.
#[test]
fn an_asynchronous_commit_may_be_the_first_of_its_blocks() {
    let make = |incompat| {
        let mut sb = log_superblock(BLOCKS);
        sb.set_features(jbd2::Compat::empty(), Incompat::CSUM_V3 | incompat);
        assert_eq!(sb.layout().checksum, Checksum::V3);
        let mut log = Writer::with(sb, 1);
        log.copies(10, &[(5, 1)]);
        log.commit(10);
        let blocks = [log.copies(11, &[(5, 2)]), log.revoke(11, &[9])];
        log.commit(11);
        (log, blocks)
    };
    for torn in [0, 1] {
        let (mut log, blocks) = make(Incompat::ASYNC_COMMIT);
        log.damage(blocks[torn], 900);
        log.copies(12, &[(6, 3)]);
        assert_eq!(recover(&log.on_medium(512), BLOCK, &config(BLOCKS)).unwrap().transactions, 1);
        // Another commit waits for the flush of this one.
        log.commit(12);
        let (error, at) = (log.recover().unwrap_err(), blocks[torn]);
        assert!(
            matches!(error, JournalError::DamagedTransaction { tid: Tid(11), log_block } if log_block == at),
            "{error}"
        );
        let (log, blocks) = make(Incompat::empty());
        log.damage(blocks[torn], 900);
        assert!(matches!(log.recover(), Err(JournalError::DamagedTransaction { tid: Tid(11), .. })));
    }
}

#[test]
fn homes_outside_of_the_volume_or_inside_the_log_are_errors() {
    for home in [5000, u64::MAX, 1 << 40, LOG_START, LOG_START + 511] {
        let mut log = Writer::new();
        log.copies(10, &[(5, 1), (home, 2)]);
        log.commit(10);
        let error = log.recover().unwrap_err();
        assert!(
            matches!(error, JournalError::TagTarget { tid: Tid(10), block, .. } if block == home),
            "{error}"
        );
    }
}

#[test]
fn a_log_of_descriptors_ends() {
    // Every block of the ring claims to describe the most copies, round and round.
    let mut sb = Superblock::new(BLOCK, BLOCKS, [3; 16]);
    sb.set_tail(10, 1);
    let device = with_log(&sb);
    let map = LogMap::new(&device, BLOCK, &config(BLOCKS)).unwrap();
    let mut block = vec![0; BLOCK as usize];
    let copy = vec![0; BLOCK as usize];
    let mut descriptor = Descriptor::new(&sb.layout(), &mut block, 10);
    for home in 0..sb.layout().tags_per_block(BLOCK as usize) as u64 {
        descriptor.push(home, &copy, false);
    }
    descriptor.finish();
    for at in 1..BLOCKS {
        device.write_at(&block, map.locate(at, 1).unwrap().0).unwrap();
    }
    assert_eq!(recover(&device, BLOCK, &config(BLOCKS)).unwrap().transactions, 0);
}

#[test]
fn a_log_of_commits_ends() {
    let mut log = Writer::new();
    for i in 0..BLOCKS - 1 {
        log.commit(10 + i);
    }
    assert_eq!(log.recover().unwrap().transactions, BLOCKS - 1);
}

#[test]
fn numbers_wrap() {
    let mut sb = log_superblock(BLOCKS);
    sb.set_head(1);
    let mut log = Writer::with(sb.clone(), 1);
    sb.set_tail(u32::MAX, 1);
    log.map.write_superblock(&log.device, &sb).unwrap();
    log.copies(u32::MAX, &[(5, 1), (6, 1)]);
    log.commit(u32::MAX);
    log.revoke(0, &[5]);
    log.copies(0, &[(7, 2)]);
    log.commit(0);
    assert_eq!(log.recover().unwrap().transactions, 2);
    assert_eq!((log.at(5), log.at(6), log.at(7)), (0, 1, 2));
}

#[test]
fn runs_with_holes_or_outside_are_errors() {
    let device = with_log(&log_superblock(BLOCKS));
    let good = config(BLOCKS);
    let broken = |change: fn(&mut LogConfig)| {
        let mut log = good.clone();
        change(&mut log);
        assert!(recover(&device, BLOCK, &log).is_err(), "{log:?}");
    };
    broken(|log| log.runs[1].logical += 1);
    broken(|log| log.runs[0].physical = u64::MAX - 5);
    broken(|log| log.runs[1].len = u32::MAX);
    broken(|log| log.runs[0].physical = 0);
    broken(|log| log.runs.clear());
    broken(|log| log.runs.truncate(1));
}

/// A medium that once answers a read with a flipped bit, in whichever pass, brings no bit home that
/// nobody wrote, no revoked block back, and loses no committed transaction.
#[test]
fn a_bit_flipped_in_any_read_goes_nowhere() {
    let made = || {
        let mut log = Writer::new();
        log.copies(10, &[(5, 1), (6, 1)]);
        log.commit(10);
        log.revoke(11, &[5]);
        log.copies(11, &[(6, 2), (7, 2)]);
        log.commit(11);
        log
    };
    let homes = |device: &MemDevice| [5, 6, 7].map(|block| device_bytes(device, block));
    let plain = |values: [u8; 3]| values.map(|value| vec![value; BLOCK as usize]);
    for byte in [20, 600] {
        // All blocks of both transactions.
        for block in 0..9 {
            for nth in 1.. {
                let device = FailingDevice::new(made().device);
                let bit = (block * u64::from(BLOCK) + byte) * 8;
                device.fail(Op::Read, nth, false, Failure::Flip(bit));
                let recovered = recover(&device, BLOCK, &config(BLOCKS));
                if device.first_failure().is_none() {
                    break;
                }
                let allowed = match recovered {
                    Ok(_) => plain([0, 2, 2]),
                    Err(_) => plain([0; 3]),
                };
                assert!(
                    homes(device.inner()) == allowed,
                    "read {nth}, byte {byte} of its block {block}: {recovered:?}"
                );
            }
        }
    }
}

/// A device with a byte that cannot be read.
#[derive(Debug)]
struct Scarred {
    below: MemDevice,
    bad: u64,
}

impl BlockDevice for Scarred {
    lanefs_device::forward_to!(below: size read_only write_at flush discard);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> lanefs_device::Result<()> {
        let len = buf.len() as u64;
        if (offset..offset + len).contains(&self.bad) {
            return Err(DeviceError::new(Op::Read, offset, len, std::io::Error::from_raw_os_error(5)));
        }
        self.below.read_at(buf, offset)
    }
}

#[test]
fn only_what_is_needed_of_the_log_has_to_be_readable() {
    let mut log = Writer::new();
    log.copies(10, &[(5, 1), (6, 1)]);
    let commit = log.commit(10);
    // The block behind the last transaction is read too, to see that there is none.
    for (at, is_needed) in [(commit, true), (commit + 1, true), (commit + 2, false), (BLOCKS - 1, false)] {
        let bad = log.map.locate(at, 1).unwrap().0 + 7;
        let device = Scarred { below: MemDevice::from_bytes(log.device.to_bytes()), bad };
        let recovered = recover(&device, BLOCK, &config(BLOCKS));
        assert_eq!(recovered.is_err(), is_needed, "block {at}: {recovered:?}");
        let home = if is_needed { 0 } else { 1 };
        assert_eq!(device_bytes(&device.below, 5)[0], home, "block {at}");
    }
}
