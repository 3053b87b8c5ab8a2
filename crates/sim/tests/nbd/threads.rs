//! Threads that share connections: none may wait for another without end, and a slow server is not
//! a silent one.

use super::{Bench, SIZE, bytes_of, usual, why};
use lanefs_device::{BlockDevice, NbdError, ReadOp, WriteOp};
use lanefs_sim::{Image, NbdFault, NbdKind, NbdSettings};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Batches that are larger than what a socket takes, on two connections: a thread waits to send on
/// one, and its replies on the other stop the server, and so do those of a second thread the other
/// way round.
#[test]
fn batches_on_several_connections_do_not_stop_each_other() {
    let mut image = Image::zeroed(SIZE);
    image.write(0, &bytes_of(SIZE as usize, 1));
    let bench = Bench::over(image, NbdSettings { flags: usual().flags | 1 << 8, ..usual() });
    let device = bench.try_open("&connections=2&timeout=3&reconnect=10").unwrap();
    let end = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                let mut back = vec![0; 3 << 20];
                while Instant::now() < end {
                    let mut ops: Vec<ReadOp<'_>> = (back.chunks_mut(100_000).enumerate())
                        .map(|(i, buf)| ReadOp { offset: (i as u64 + thread) * 100_000, buf })
                        .collect();
                    device.read_batch(&mut ops).unwrap();
                }
            });
            scope.spawn(move || {
                let data = bytes_of(100_000, thread as u8);
                let pieces: [&[u8]; 1] = [&data];
                while Instant::now() < end {
                    let ops: Vec<WriteOp<'_>> = (0..10)
                        .map(|i| WriteOp { offset: (4 + thread) * (1 << 20) + i * 100_000, data: &pieces })
                        .collect();
                    device.write_batch(&ops).unwrap();
                }
            });
        }
    });
    assert_eq!(bench.server.connections(), 2, "requests were late");
}

/// A batch takes longer than `timeout=` because the server is slow, and each answer comes in time.
#[test]
fn a_slow_server_is_waited_for() {
    for kind in [NbdKind::Read, NbdKind::Write] {
        let mut image = Image::zeroed(SIZE);
        image.write(0, &bytes_of(SIZE as usize, 1));
        let bench = Bench::over(image, usual());
        let device = bench.try_open("&timeout=1&reconnect=3").unwrap();
        bench.server.fault_from(Some(kind), 1, NbdFault::Late(100));
        match kind {
            NbdKind::Read => device.read_at(&mut vec![0; 6 << 20], 0).unwrap(),
            _ => device.write_at(&vec![1; 6 << 20], 0).unwrap(),
        }
        assert_eq!(bench.server.connections(), 1, "{kind:?}");
    }
}

/// A large batch does not wait for its first half before it sends the second: one answer is
/// missing, and the client goes on with what follows, as far as its bound allows.
#[test]
fn a_missing_answer_does_not_hold_up_a_batch() {
    const WRITES: usize = 1000;
    let bench = Bench::new(usual());
    let device = bench.try_open("&timeout=20&reconnect=20").unwrap();
    bench.server.fault(Some(NbdKind::Write), 200, NbdFault::Silence);
    let data = bytes_of(WRITES * 4096, 3);
    std::thread::scope(|scope| {
        let written = scope.spawn(|| {
            let pieces: Vec<[&[u8]; 1]> = data.chunks(4096).map(|piece| [piece]).collect();
            let ops = pieces.iter().enumerate();
            let ops: Vec<WriteOp<'_>> =
                ops.map(|(i, piece)| WriteOp { offset: i as u64 * 4096, data: piece }).collect();
            device.write_batch(&ops)
        });
        let began = Instant::now();
        while bench.server.count(NbdKind::Write) < 400 {
            assert!(began.elapsed() < Duration::from_secs(10), "{}", bench.server.count(NbdKind::Write));
            std::thread::sleep(Duration::from_millis(1));
        }
        // More than 256 are never without an answer.
        std::thread::sleep(Duration::from_millis(100));
        assert!(bench.server.count(NbdKind::Write) < 600, "{}", bench.server.count(NbdKind::Write));
        bench.server.disconnect();
        written.join().unwrap().unwrap();
    });
    device.flush().unwrap();
    assert!(bench.server.durable().to_bytes()[..data.len()] == data);
}

/// One request is never answered, and others are all the time: it is late nevertheless.
#[test]
fn a_request_is_late_while_others_are_answered() {
    let bench = Bench::new(usual());
    let device = bench.try_open("&timeout=1&reconnect=10").unwrap();
    bench.server.fault(Some(NbdKind::Flush), 1, NbdFault::Silence);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    device.read_at(&mut [0; 512], 0).unwrap();
                }
            });
        }
        let began = Instant::now();
        device.flush().unwrap();
        ended.store(true, Ordering::Relaxed);
        assert!((1..5).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    });
    assert_eq!(bench.server.connections(), 2);
}

/// While one thread reads a reply that breaks a rule, others send. All are told of the rule.
#[test]
fn a_broken_rule_is_not_taken_for_a_loss() {
    for round in 0..60 {
        let bench = Bench::new(usual());
        let device = bench.open();
        bench.server.fault(None, 20 + round % 13, NbdFault::BadMagic);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let device = &device;
                scope.spawn(move || {
                    let e = loop {
                        if let Err(e) = device.write_at(&[1; 512], thread * 4096) {
                            break e;
                        }
                    };
                    assert!(matches!(e.nbd(), Some(NbdError::ReplyMagic { .. })), "round {round}: {e}");
                });
            }
        });
        assert_eq!(bench.server.connections(), 1, "round {round}");
    }
}

/// Threads that find no room for what is kept until a flush share a flush.
#[test]
fn threads_without_room_share_a_flush() {
    let bench = Bench::new(usual());
    let device = bench.try_open("&unflushed=4M").unwrap();
    bench.server.fault_from(Some(NbdKind::Flush), 1, NbdFault::Late(5));
    std::thread::scope(|scope| {
        for thread in 0..16u64 {
            let device = &device;
            scope.spawn(move || {
                let place = thread * (SIZE / 16);
                (0..125u8).for_each(|i| device.write_at(&vec![i; 16 << 10], place).unwrap());
            });
        }
    });
    let flushes = bench.server.count(NbdKind::Flush);
    assert!((7..=16).contains(&flushes), "{flushes} flushes of 32 MB with 4 MiB kept");
}

/// A write that is never answered holds back what is kept: the client does not flush all the time
/// meanwhile, and goes on when the answer comes.
#[test]
fn a_full_store_waits_for_answers() {
    let bench = Bench::new(usual());
    let device = bench.try_open("&unflushed=4M&timeout=1&reconnect=10").unwrap();
    bench.server.fault(Some(NbdKind::Write), 1, NbdFault::Silence);
    std::thread::scope(|scope| {
        scope.spawn(|| device.write_at(&[1; 4096], 0).unwrap());
        while bench.server.count(NbdKind::Write) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        for i in 1..6u64 {
            device.write_at(&vec![i as u8; 1 << 20], i << 20).unwrap();
        }
    });
    let flushes = bench.server.count(NbdKind::Flush);
    assert!(flushes < 10, "{flushes} flushes");
    assert_eq!(bench.server.connections(), 2);
}

/// A device that fails wakes every thread, those too that wait for room.
#[test]
fn a_failed_flush_ends_the_wait_for_room() {
    let bench = Bench::new(usual());
    let device = bench.try_open("&unflushed=4M").unwrap();
    bench.server.fault_from(Some(NbdKind::Flush), 1, NbdFault::Errno(5));
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let device = &device;
            scope.spawn(move || {
                let place = thread << 20;
                let e = loop {
                    if let Err(e) = device.write_at(&vec![1; 256 << 10], place) {
                        break why(Err(e));
                    }
                };
                assert!(matches!(e, NbdError::Failed { .. } | NbdError::FlushFailed), "{e}");
            });
        }
    });
}

/// All requests of all threads are late at the same time: one thread connects again.
#[test]
fn threads_whose_requests_are_late_together() {
    let bench = Bench::new(usual());
    let device = bench.try_open("&timeout=1&reconnect=20").unwrap();
    device.write_at(&[9; 4096], 0).unwrap();
    bench.server.fault_from(None, 1, NbdFault::Silence);
    std::thread::scope(|scope| {
        for thread in 0..12u64 {
            let device = &device;
            scope.spawn(move || match thread % 3 {
                0 => device.read_at(&mut [0; 4096], thread * 4096).unwrap(),
                1 => device.write_at(&[thread as u8; 4096], thread * 4096).unwrap(),
                _ => device.flush().unwrap(),
            });
        }
        while bench.server.connections() == 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
        bench.server.heal();
    });
    assert!((2..4).contains(&bench.server.connections()), "{} connections", bench.server.connections());
    let image = bench.server.image().to_bytes();
    assert!((1..12).step_by(3).all(|thread| image[thread * 4096..][..4096] == [thread as u8; 4096]));
}
