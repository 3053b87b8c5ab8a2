//! Data that a commit writes together with its log blocks.

use super::*;
use crate::CommitData;

#[derive(Debug)]
struct Bytes(Vec<u8>);

const PLACE: u64 = 50 * BLOCK as u64;

impl CommitData for Bytes {
    fn writes(&self) -> Vec<(u64, Vec<&[u8]>)> {
        let (first, second) = self.0.split_at(BLOCK as usize);
        vec![(PLACE, vec![first, second])]
    }
}

fn data() -> Box<Bytes> {
    Box::new(Bytes(vec![9; 2 * BLOCK as usize]))
}

/// Changes block 7 under a handle that leaves data to its commit.
fn change(journal: &Journal) -> Tid {
    let buffer = journal.read(7).unwrap();
    let handle = journal.start(1).unwrap();
    handle.write(&buffer).unwrap()[0] = 1;
    handle.write_with_commit(data()).unwrap();
    handle.tid()
}

/// Returns what was written and flushed, in order.
fn shape(device: &RecordingDevice) -> Vec<&'static str> {
    let name = |entry: &LogEntry| match entry {
        LogEntry::Flush => "flush",
        LogEntry::Write { offset, .. } if *offset == 7 * u64::from(BLOCK) => "metadata",
        LogEntry::Write { offset, .. } if (PLACE..PLACE + 2 * u64::from(BLOCK)).contains(offset) => "data",
        _ => "log",
    };
    let mut shape: Vec<&str> = device.log().entries.iter().map(name).collect();
    shape.dedup();
    shape
}

#[test]
fn data_is_durable_before_the_commit_block() {
    let device = Arc::new(RecordingDevice::new(Image::from_bytes(empty_log(1024).to_bytes())));
    let journal = Journal::open(device.clone(), options(1024)).unwrap();
    let tid = change(&journal);
    assert!(shape(&device).is_empty());
    // Any thread's commit has it.
    journal.sync().unwrap();
    assert!(journal.is_durable(tid));
    let log = shape(&device);
    let at = |name| log.iter().position(|entry| *entry == name).unwrap();
    assert!(at("data") < at("flush") && at("flush") < log.len() - 2, "{log:?}");
    assert_eq!(log[at("flush")..], ["flush", "log", "flush"]);
}

#[test]
fn without_a_log_it_is_durable_before_the_metadata() {
    let device = Arc::new(RecordingDevice::new(Image::zeroed(1 << 20)));
    let journal = Journal::open(device.clone(), Options::new(BLOCK)).unwrap();
    change(&journal);
    journal.sync().unwrap();
    assert_eq!(shape(&device), ["data", "flush", "metadata", "flush"]);
}

#[test]
fn data_without_a_changed_block_is_written() {
    let (device, journal) = new();
    let handle = journal.start(1).unwrap();
    handle.write_with_commit(data()).unwrap();
    let tid = handle.tid();
    handle.stop();
    journal.commit(tid).unwrap();
    assert_eq!((at(&device, 50), at(&device, 51)), (9, 9));
    set(&journal, 8, 3);
    assert_eq!(recovered(journal, &device, 8), 3);
}

/// A write that fails ends the journal, and leaves no part of the transaction.
#[test]
fn data_that_cannot_be_written_aborts_the_commit() {
    let device = Arc::new(FailingDevice::new(empty_log(1024)));
    let journal = Journal::open(device.clone(), options(1024)).unwrap();
    journal.commit(set(&journal, 8, 3)).unwrap();
    change(&journal);
    device.fail_from(Op::Write, 1, 5);
    assert!(journal.sync().is_err() && journal.start(1).is_err());
}
