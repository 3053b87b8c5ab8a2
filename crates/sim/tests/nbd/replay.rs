//! What the client writes again after it has lost a connection, and what that may change.

use super::{Bench, SIZE, usual, why};
use lanefs_device::{BlockDevice, NbdError};
use lanefs_sim::{NbdFault, NbdKind, NbdSettings};
use std::time::Duration;

/// Waits until the server has had `count` requests of a kind.
fn wait_for(bench: &Bench, kind: NbdKind, count: usize) {
    while bench.server.count(kind) < count {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A flush has promised the second content of a block. Both contents are still kept, because a
/// write from before them has no answer. The server is killed, killed again while the client
/// repeats writes, and does not come back: the first content must not be on its medium.
#[test]
fn a_kill_amid_repeated_writes_brings_nothing_old_back() {
    // HAS_FLAGS with FLUSH, or with FUA alone.
    let kinds = [usual(), NbdSettings { flags: 1 | 1 << 3, ..usual() }];
    let cases = (0..12u64).flat_map(|seed| [2, 3].map(|nth| (seed, nth)));
    let cases: Vec<_> = cases.flat_map(|(seed, nth)| [0, 1].map(|kind| (seed, nth, kind))).collect();
    let run = |(seed, nth, kind): (u64, u64, usize)| {
        let bench = Bench::new(kinds[kind].clone());
        let device = bench.try_open("&timeout=20&reconnect=1").unwrap();
        bench.server.fault(Some(NbdKind::Write), 1, NbdFault::Silence);
        std::thread::scope(|scope| {
            let unanswered = scope.spawn(|| device.write_at(&[9; 512], 1 << 20));
            wait_for(&bench, NbdKind::Write, 1);
            device.write_at(&[1; 4096], 0).unwrap();
            device.write_at(&[2; 4096], 0).unwrap();
            device.flush().unwrap();
            bench.server.fault(Some(NbdKind::Write), nth, NbdFault::KillForGood(seed));
            bench.server.kill(seed);
            // Where no more than that write is repeated, the server is not killed a second time.
            let _ = unanswered.join().unwrap();
        });
        let left = bench.server.durable().to_bytes();
        assert!(left[..4096] == [2; 4096], "seed {seed}, killed at repeated write {nth}, kind {kind}");
    };
    std::thread::scope(|scope| cases.into_iter().for_each(|case| drop(scope.spawn(move || run(case)))));
}

/// A write with FUA is durable with its answer: nothing is kept of it.
#[test]
fn a_server_without_flush_gets_nothing_twice() {
    let bench = Bench::new(NbdSettings { flags: 1 | 1 << 3, ..usual() });
    let device = bench.open();
    (0..20u8).for_each(|i| device.write_at(&[i; 4096], u64::from(i) * 4096).unwrap());
    bench.server.disconnect();
    device.read_at(&mut [0; 512], 0).unwrap();
    assert_eq!((bench.server.count(NbdKind::Write), bench.server.connections()), (20, 2));
}

/// Of writes to one place the last content alone is written again, whole or where it is not
/// covered.
#[test]
fn what_was_overwritten_is_not_written_again() {
    let bench = Bench::new(usual());
    let device = bench.open();
    for i in 0..50u8 {
        device.write_at(&[i; 8192], 4096).unwrap();
    }
    device.write_at(&[77; 4096], 8192).unwrap();
    device.write_zeroes(0, 6144).unwrap();
    bench.server.kill(4);
    let mut back = vec![1; 16384];
    device.read_at(&mut back, 0).unwrap();
    let want = [vec![0; 6144], vec![49; 2048], vec![77; 4096], vec![0; 4096]].concat();
    assert!(back == want);
    let (writes, zeroes) = (bench.server.count(NbdKind::Write), bench.server.count(NbdKind::WriteZeroes));
    assert_eq!((writes, zeroes), (51 + 2, 1 + 1));
}

/// A server comes back without writes of zeros, TRIM and block status. What was zeroed is written
/// out, and it is sent none of these commands.
#[test]
fn a_server_that_comes_back_with_fewer_commands_gets_those_alone() {
    for seed in 0..8 {
        let bench = Bench::new(usual());
        let device = bench.open();
        let mut want = vec![7; 2 << 20];
        device.write_at(&want, 0).unwrap();
        device.flush().unwrap();
        device.write_zeroes(4096, 1 << 20).unwrap();
        want[4096..][..1 << 20].fill(0);
        // HAS_FLAGS, FLUSH.
        bench.server.change(|s| (s.flags, s.structured) = (1 | 1 << 2, false));
        bench.server.kill(seed);
        let mut back = vec![1; want.len()];
        device.read_at(&mut back, 0).unwrap();
        assert!(back == want, "seed {seed}");
        device.write_zeroes(3 << 19, 8192).unwrap();
        want[3 << 19..][..8192].fill(0);
        device.discard(0, 4096).unwrap();
        device.flush().unwrap();
        assert!(bench.server.durable().to_bytes()[..want.len()] == want, "seed {seed}");
        let kinds = [NbdKind::WriteZeroes, NbdKind::Trim, NbdKind::BlockStatus];
        assert_eq!(kinds.map(|kind| bench.server.count(kind)), [1, 0, 0], "seed {seed}");
    }
}

/// Zeros that the server cannot write as such are repeated as content. No other failure is.
#[test]
fn zeros_are_repeated_as_content_where_there_is_no_other_way() {
    for errno in [95, 28] {
        let bench = Bench::new(usual());
        let device = bench.open();
        let mut want = vec![7; 1 << 20];
        device.write_at(&want, 0).unwrap();
        device.flush().unwrap();
        device.write_zeroes(512, 600_000).unwrap();
        want[512..][..600_000].fill(0);
        bench.server.kill(1);
        bench.server.fault(Some(NbdKind::WriteZeroes), 1, NbdFault::Errno(errno));
        let mut back = vec![1; want.len()];
        let read = device.read_at(&mut back, 0);
        if errno == 95 {
            read.unwrap();
            assert!(back == want);
        } else {
            let e = why(read);
            assert!(matches!(e, NbdError::Replay { offset: 512, len: 600_000, .. }), "{e}");
        }
    }
}

/// An error that a lost connection cut short is not that of the request, which is sent again.
#[test]
fn an_error_before_the_loss_is_not_the_answer() {
    for kind in [NbdKind::Read, NbdKind::Write, NbdKind::Flush] {
        let bench = Bench::new(usual());
        let device = bench.open();
        bench.server.fault(Some(kind), 1, NbdFault::ErrorThenClose);
        let done = match kind {
            NbdKind::Read => device.read_at(&mut [0; 4096], 0),
            NbdKind::Write => device.write_at(&[1; 4096], 0),
            _ => device.flush(),
        };
        done.unwrap_or_else(|e| panic!("{kind:?}: {e}"));
    }
}

/// The reason for which a device has failed is that of every later call, a flush too.
#[test]
fn each_later_call_has_the_first_reason() {
    let bench = Bench::new(usual());
    let device = bench.open();
    bench.server.set_size(SIZE / 2);
    bench.server.disconnect();
    let first = why(device.flush());
    assert!(matches!(first, NbdError::SizeChanged { .. }), "{first}");
    for _ in 0..2 {
        assert_eq!(why(device.flush()), first);
        assert_eq!(why(device.write_at(&[1; 512], 0)), first);
        assert_eq!(why(device.write_zeroes(0, 512)), first);
        assert_eq!(why(device.discard(0, 4096)), first);
        assert_eq!(why(device.read_at(&mut [1; 512], 0)), first);
    }
}

/// A client that only reads needs nothing of what writers need.
#[test]
fn a_reader_goes_on_with_an_export_that_became_read_only() {
    let bench = Bench::new(usual());
    let options = lanefs_device::FileOptions::new().read_only(true);
    let device = lanefs_device::NbdDevice::open(&bench.server.url("&reconnect=5"), None, &options).unwrap();
    bench.server.change(|s| s.flags = 1 | 2);
    bench.server.disconnect();
    device.read_at(&mut [0; 512], 0).unwrap();
    assert_eq!(bench.server.connections(), 2);
}
