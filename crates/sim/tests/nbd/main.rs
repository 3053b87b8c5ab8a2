//! The NBD client against a server that breaks every rule, goes away, and loses what was not
//! flushed. Each test ends by itself: a request may take `timeout=` seconds, and a reconnection
//! `reconnect=`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panic")]

mod claims;
mod connections;
mod replay;
mod threads;

use lanefs_device::{BlockDevice, DeviceError, FileOptions, NbdDevice, NbdError, NbdExport, ReadOp, WriteOp};
use lanefs_sim::{Image, NbdFault, NbdKind, NbdServer, NbdSettings, seed_from_env};
use rand::{Rng, RngCore};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SIZE: u64 = 8 << 20;
const ERROR_IO: i32 = 5;

struct Bench {
    server: NbdServer,
    _dir: TempDir,
}

impl Bench {
    fn new(settings: NbdSettings) -> Self {
        Self::over(Image::zeroed(SIZE), settings)
    }

    fn over(image: Image, settings: NbdSettings) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = NbdServer::start(dir.path(), image, settings).unwrap();
        Self { server, _dir: dir }
    }

    fn try_open(&self, parameters: &str) -> Result<NbdDevice, DeviceError> {
        NbdDevice::open(&self.server.url(parameters), None, &FileOptions::new())
    }

    /// Opens with times that end a test soon.
    fn open(&self) -> NbdDevice {
        self.try_open("&timeout=5&reconnect=5").unwrap()
    }
}

fn usual() -> NbdSettings {
    NbdSettings::default()
}

fn why(result: Result<(), DeviceError>) -> NbdError {
    let e = result.unwrap_err();
    assert!(!e.to_string().contains('\n'), "{e}");
    e.nbd().cloned().unwrap_or_else(|| panic!("not of NBD: {e}"))
}

fn bytes_of(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(7) ^ (i >> 9) as u8 ^ seed | 1).collect()
}

/// All kinds of servers that a client may meet.
fn kinds_of_servers() -> Vec<NbdSettings> {
    let simple = NbdSettings { structured: false, ..usual() };
    let old = NbdSettings { with_go: false, ..simple.clone() };
    let block = |min| NbdSettings { blocks: Some((min, 4096, 1 << 20)), ..usual() };
    let bare = NbdSettings { flags: 1 | 1 << 2, ..simple.clone() };
    vec![usual(), simple, old, block(512), block(4096), bare]
}

#[test]
fn what_is_written_is_read_on_every_kind_of_server() {
    let seed = seed_from_env("LANEFS_SEED");
    for (number, settings) in kinds_of_servers().into_iter().enumerate() {
        let bench = Bench::new(settings.clone());
        let device = bench.open();
        let mut model = vec![0; SIZE as usize];
        let mut rng = seed.rng(number as u64);
        for round in 0..120 {
            let len = [1, 511, 4096, 70_000, 600_000][rng.random_range(0..5)];
            let at = rng.random_range(0..SIZE as usize - len);
            match rng.random_range(0..6) {
                0 | 1 => {
                    let data = bytes_of(len, round);
                    device.write_at(&data, at as u64).unwrap();
                    model[at..at + len].copy_from_slice(&data);
                }
                2 => {
                    let (data, half) = (bytes_of(len, round), len / 2);
                    let pieces = [&data[..half], &[], &data[half..]];
                    let far = (at + SIZE as usize / 2) % (SIZE as usize - len);
                    let ops = [
                        WriteOp { offset: at as u64, data: &pieces },
                        WriteOp { offset: far as u64, data: &[&data[..9.min(len)]] },
                    ];
                    let apart = at.abs_diff(far) > len;
                    device.write_batch(if apart { &ops } else { &ops[..1] }).unwrap();
                    model[at..at + len].copy_from_slice(&data);
                    if apart {
                        model[far..far + 9.min(len)].copy_from_slice(&data[..9.min(len)]);
                    }
                }
                3 => {
                    device.write_zeroes(at as u64, len as u64).unwrap();
                    model[at..at + len].fill(0);
                }
                4 => device.flush().unwrap(),
                _ => {
                    let (mut a, mut b) = (vec![9; len], vec![9; 100]);
                    let mut ops =
                        [ReadOp { offset: at as u64, buf: &mut a }, ReadOp { offset: 3, buf: &mut b }];
                    device.read_batch(&mut ops).unwrap();
                    assert!(a == model[at..at + len] && b == model[3..103], "{settings:?}, round {round}");
                }
            }
        }
        assert!(bench.server.image().to_bytes() == model, "{settings:?}");
        device.flush().unwrap();
        assert!(bench.server.durable().to_bytes() == model);
        device.discard(4096, 1 << 20).unwrap();
        for (offset, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1)] {
            assert!(device.read_at(&mut vec![0; len], offset).is_err());
            assert!(device.write_at(&vec![0; len], offset).is_err());
        }
    }
}

/// Threads that wait for each other's replies: small ones, and large ones that the owner reads
/// itself.
#[test]
fn threads_share_a_connection() {
    let multi = NbdSettings { flags: usual().flags | 1 << 8, ..usual() };
    for (settings, parameters, connections) in [(usual(), "&connections=4", 1), (multi, "&connections=4", 4)]
    {
        let bench = Bench::new(settings);
        let device = bench.try_open(parameters).unwrap();
        assert_eq!(bench.server.connections(), connections);
        std::thread::scope(|scope| {
            for thread in 0..16u64 {
                let device = &device;
                scope.spawn(move || {
                    let (start, room) = (thread * (SIZE / 16), (SIZE / 16) as usize);
                    for round in 0..30 {
                        let len = [512, 4096, 40_000, 300_000][(thread as usize + round) % 4];
                        let data = bytes_of(len, thread as u8 ^ round as u8);
                        device.write_at(&data, start).unwrap();
                        let mut back = vec![0; room];
                        device.read_at(&mut back, start).unwrap();
                        assert!(back[..len] == data, "thread {thread}, round {round}");
                        if round % 7 == 0 {
                            device.flush().unwrap();
                        }
                    }
                });
            }
        });
    }
}

/// Wherever the connection is lost, and what the server loses besides: nothing that was
/// acknowledged is missing afterwards, and nothing that was flushed ever.
#[test]
fn a_lost_connection_loses_nothing() {
    let seed = seed_from_env("LANEFS_SEED");
    let ways = [
        NbdFault::Close,
        NbdFault::CloseUnanswered,
        NbdFault::CloseMidway,
        NbdFault::Kill(2 * seed.value()),
        NbdFault::Kill(2 * seed.value() + 1),
    ];
    for (number, fault) in ways.into_iter().enumerate() {
        for nth in 1..14 {
            let bench = Bench::new(usual());
            let device = bench.open();
            bench.server.fault(None, nth, fault);
            bench.server.fault(None, nth + 9, fault);
            let mut rng = seed.rng(number as u64 * 100 + nth);
            let mut model = vec![0; SIZE as usize];
            for round in 0..30 {
                let (at, len) = (rng.random_range(0..64) * 512, rng.random_range(1..5) * 2048);
                if rng.random_bool(0.2) {
                    device.write_zeroes(at as u64, len as u64).unwrap();
                    model[at..at + len].fill(0);
                } else {
                    let data = bytes_of(len, round);
                    device.write_at(&data, at as u64).unwrap();
                    model[at..at + len].copy_from_slice(&data);
                }
                let mut back = vec![0; 80 << 10];
                device.read_at(&mut back, 0).unwrap();
                assert!(back == model[..80 << 10], "{fault:?} at {nth}, round {round}");
                if rng.random_bool(0.1) {
                    device.flush().unwrap();
                    assert!(bench.server.durable().to_bytes() == model, "{fault:?} at {nth}, round {round}");
                }
            }
            assert!(bench.server.connections() > 1);
            device.flush().unwrap();
            assert!(bench.server.durable().to_bytes() == model, "{fault:?} at {nth}");
        }
    }
}

/// Of a batch some writes were answered when the server is killed, and lost with it.
#[test]
fn a_batch_that_is_half_done_is_whole_afterwards() {
    for nth in 2..9 {
        for seed in 0..20 {
            let bench = Bench::new(usual());
            let device = bench.open();
            bench.server.fault(Some(NbdKind::Write), nth, NbdFault::Kill(seed));
            let data: Vec<Vec<u8>> = (1..=8).map(|i| bytes_of(4096, i)).collect();
            let pieces: Vec<[&[u8]; 1]> = data.iter().map(|data| [&data[..]]).collect();
            let ops: Vec<WriteOp<'_>> =
                (0..).zip(&pieces).map(|(i, data)| WriteOp { offset: i * 8192, data }).collect();
            device.write_batch(&ops).unwrap();
            let image = bench.server.image().to_bytes();
            for (i, data) in data.iter().enumerate() {
                assert!(image[i * 8192..][..4096] == data[..], "write {i} of a batch killed at {nth}");
            }
        }
    }
}

/// The kill comes from outside, while many threads write and flush. A thread that is not woken
/// would wait for `timeout=`, or without end.
#[test]
fn a_server_is_killed_under_load() {
    let seed = seed_from_env("LANEFS_SEED");
    for parameters in ["&timeout=60&reconnect=60", "&timeout=60&reconnect=60&connections=3"] {
        let bench = Bench::new(NbdSettings { flags: usual().flags | 1 << 8, ..usual() });
        let device = bench.try_open(parameters).unwrap();
        let began = Instant::now();
        let end = began + Duration::from_millis(1500);
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (device, mut rng) = (&device, seed.rng(thread));
                scope.spawn(move || {
                    let start = thread * (1 << 20);
                    let mut model = vec![0; 1 << 19];
                    while Instant::now() < end {
                        let (at, len) = (rng.random_range(0..100) * 512, rng.random_range(1..20) * 512);
                        let len = if rng.random_bool(0.05) { 400_000 } else { len };
                        let data = bytes_of(len, rng.next_u32() as u8);
                        device.write_at(&data, start + at as u64).unwrap();
                        model[at..at + len].copy_from_slice(&data);
                        if rng.random_bool(0.05) {
                            device.flush().unwrap();
                        }
                        let mut back = vec![0; if rng.random_bool(0.1) { 1 << 19 } else { 1 << 16 }];
                        device.read_at(&mut back, start).unwrap();
                        assert!(back == model[..back.len()], "thread {thread}");
                    }
                });
            }
            let mut rng = seed.rng(99);
            while Instant::now() < end {
                std::thread::sleep(Duration::from_millis(rng.random_range(5..150)));
                bench.server.kill(rng.next_u64());
            }
        });
        assert!(began.elapsed() < Duration::from_secs(30), "{parameters}: {:?}", began.elapsed());
        device.flush().unwrap();
        assert!(bench.server.connections() > 5);
        assert_eq!(bench.server.durable().to_bytes(), bench.server.image().to_bytes());
    }
}

/// A rule that is broken is named, with its numbers, and ends the device for good.
#[test]
fn each_broken_rule_is_an_error_of_its_own() {
    type Is = fn(&NbdError) -> bool;
    let cases: &[(NbdKind, NbdFault, Is)] = &[
        (NbdKind::Read, NbdFault::BadMagic, |e| matches!(e, NbdError::ReplyMagic { magic: 0x4854_5450 })),
        (NbdKind::Write, NbdFault::OtherCookie, |e| matches!(e, NbdError::UnknownCookie { .. })),
        (NbdKind::Read, NbdFault::Simple, |e| matches!(e, NbdError::SimpleRead { .. })),
        (NbdKind::Read, NbdFault::UnknownChunk, |e| {
            matches!(e, NbdError::ChunkKind { kind: 77, command: "read" })
        }),
        (NbdKind::Write, NbdFault::UnknownChunk, |e| {
            matches!(e, NbdError::ChunkKind { kind: 77, command: "write" })
        }),
        (NbdKind::Read, NbdFault::LongChunk, |e| matches!(e, NbdError::ChunkLength { len: u32::MAX, .. })),
        (NbdKind::Read, NbdFault::Outside, |e| {
            matches!(e, NbdError::ChunkOutside { offset: 8192, asked: 4096, .. })
        }),
        (NbdKind::Read, NbdFault::ContentTwice, |e| {
            matches!(e, NbdError::ChunkTwice { offset: 4096, len: 4096 })
        }),
        (NbdKind::Read, NbdFault::HalfContent, |e| {
            matches!(e, NbdError::ChunkMissing { offset: 4096, asked: 4096, got: 2048 })
        }),
        (NbdKind::Read, NbdFault::BytePieces, |e| {
            matches!(e, NbdError::ChunksEndless { command: "read", len: 4096, most: 1032 })
        }),
        (NbdKind::Read, NbdFault::EndlessErrors, |e| {
            matches!(e, NbdError::ChunksEndless { command: "read", len: 4096, most: 1032 })
        }),
        (NbdKind::Write, NbdFault::EndlessErrors, |e| {
            matches!(e, NbdError::ChunksEndless { command: "write", len: 4096, most: 1024 })
        }),
        (NbdKind::Flush, NbdFault::NoErrno, |e| matches!(e, NbdError::NoError)),
    ];
    for (kind, fault, is) in cases {
        let bench = Bench::new(usual());
        let device = bench.open();
        device.write_at(&bytes_of(1 << 16, 1), 0).unwrap();
        bench.server.fault(Some(*kind), 1, *fault);
        let use_it = || match kind {
            NbdKind::Read => device.read_at(&mut [0; 4096], 4096),
            NbdKind::Write => device.write_at(&[1; 4096], 4096),
            _ => device.flush(),
        };
        let first = why(use_it());
        assert!(is(&first), "{fault:?}: {first}");
        let again = device.read_at(&mut [0; 1], 0).unwrap_err();
        assert_eq!((again.nbd(), again.errno()), (Some(&first), ERROR_IO));
        assert_eq!(bench.server.connections(), 1);
    }
}

#[test]
fn a_second_answer_is_noticed_with_the_next_request() {
    for kind in [NbdKind::Write, NbdKind::Read] {
        let bench = Bench::new(usual());
        let device = bench.open();
        bench.server.fault(Some(kind), 1, NbdFault::Twice);
        let mut results =
            vec![device.write_at(&[1; 512], 0), device.read_at(&mut [0; 512], 0), device.flush()];
        let e = why(results.remove(results.iter().position(Result::is_err).unwrap()));
        assert!(matches!(e, NbdError::AnsweredTwice { .. }), "{e}");
    }
}

/// Where a hole is asked for, which only large reads do.
#[test]
fn a_block_status_that_is_none() {
    type Is = fn(&NbdError) -> bool;
    let cases: [(NbdFault, Is); 3] = [
        (NbdFault::OtherContext, |e| matches!(e, NbdError::OtherContext { got: 1, agreed: 42 })),
        (NbdFault::EmptyStatus, |e| matches!(e, NbdError::EmptyStatus { offset: 0 })),
        (NbdFault::Simple, |e| matches!(e, NbdError::EmptyStatus { offset: 0 })),
    ];
    for (fault, is) in cases {
        let bench = Bench::new(usual());
        let device = bench.open();
        bench.server.fault(Some(NbdKind::BlockStatus), 1, fault);
        let e = why(device.read_at(&mut vec![0; 1 << 20], 0));
        assert!(is(&e), "{fault:?}: {e}");
    }
    // One that fails is none, and the read goes on without.
    let bench = Bench::new(usual());
    let device = bench.open();
    bench.server.fault(Some(NbdKind::BlockStatus), 1, NbdFault::Errno(95));
    device.read_at(&mut vec![0; 1 << 20], 0).unwrap();
    assert!(bench.server.count(NbdKind::Read) > 0);
}

/// A server whose answers do not fit its blocks is asked for whole blocks all the same.
#[test]
fn a_hole_that_ends_in_a_block() {
    let bench = Bench::new(NbdSettings { blocks: Some((4096, 4096, 1 << 20)), ..usual() });
    let device = bench.open();
    device.write_at(&[1; 4096], 8192).unwrap();
    bench.server.fault(Some(NbdKind::BlockStatus), 1, NbdFault::OddStatus);
    let mut back = vec![9; 1 << 20];
    device.read_at(&mut back, 0).unwrap();
    assert!(back[..8192] == [0; 8192] && back[8192..12288] == [1; 4096]);
}

#[test]
fn zeros_are_written_where_the_server_has_no_way() {
    let bench = Bench::new(usual());
    let device = bench.open();
    device.write_at(&[1; 8192], 0).unwrap();
    bench.server.fault(Some(NbdKind::WriteZeroes), 1, NbdFault::Errno(95));
    device.write_zeroes(1024, 4096).unwrap();
    let image = bench.server.image().to_bytes();
    assert!(image[..1024] == [1; 1024] && image[1024..5120] == [0; 4096] && image[5120..8192] == [1; 3072]);
}

#[test]
fn holes_are_not_read() {
    let mut image = Image::zeroed(SIZE);
    image.write(3 << 20, &bytes_of(1 << 20, 1));
    let bench = Bench::over(image.clone(), usual());
    let device = bench.open();
    let mut back = vec![9; SIZE as usize];
    device.read_at(&mut back, 0).unwrap();
    assert!(back == image.to_bytes());
    assert_eq!((bench.server.count(NbdKind::BlockStatus), bench.server.count(NbdKind::Read)), (1, 4));
    // What is written in a hole is no hole any more.
    device.write_at(b"here", 100_000).unwrap();
    device.read_at(&mut back, 0).unwrap();
    assert_eq!(&back[99_999..100_005], b"\0here\0");
}

#[test]
fn nonsense_neither_hangs_nor_panics() {
    for seed in 0..150 {
        let bench = Bench::new(usual());
        let device = bench.try_open("&timeout=1&reconnect=0").unwrap();
        let kind = [NbdKind::Read, NbdKind::Write, NbdKind::BlockStatus][seed as usize % 3];
        bench.server.fault_from(Some(kind), 1, NbdFault::Nonsense(seed));
        let done = match kind {
            NbdKind::Write => device.write_at(&[1; 4096], 0),
            NbdKind::Read => device.read_at(&mut [1; 4096], 0),
            _ => device.read_at(&mut vec![1; 1 << 20], 0),
        };
        let _ = why(done);
    }
    for seed in 0..100u64 {
        let mut greeting = vec![0; 200];
        seed_from_env("LANEFS_SEED").rng(seed).fill_bytes(&mut greeting);
        let known: &[u8] = match seed % 3 {
            0 => b"NBDMAGIC",
            1 => b"NBDMAGICIHAVEOPT\0\x03\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x08",
            _ => b"",
        };
        greeting[..known.len()].copy_from_slice(known);
        let bench = Bench::new(NbdSettings { greeting: Some(greeting), ..usual() });
        let e = bench.try_open("&timeout=1").unwrap_err();
        assert!(e.nbd().is_some(), "{e}");
    }
}

#[test]
fn a_request_is_sent_again_after_its_time() {
    for fault in [NbdFault::Silence, NbdFault::Trickle] {
        let bench = Bench::new(usual());
        let device = bench.try_open("&timeout=1&reconnect=20").unwrap();
        device.write_at(b"here", 0).unwrap();
        bench.server.fault(Some(NbdKind::Read), 1, fault);
        let mut back = [0; 4096];
        device.read_at(&mut back, 0).unwrap();
        assert_eq!((&back[..4], bench.server.connections()), (&b"here"[..], 2));
    }
}

/// A server that takes every connection, and never a certain request, is not tried without end.
#[test]
fn a_server_that_never_answers_fails_the_device() {
    let bench = Bench::new(usual());
    let device = bench.try_open("&timeout=1&reconnect=2").unwrap();
    bench.server.fault_from(Some(NbdKind::Flush), 1, NbdFault::Silence);
    let began = Instant::now();
    let e = why(device.flush());
    let last = Box::new(NbdError::Timeout { what: "flush", seconds: 1 });
    assert_eq!(e, NbdError::GaveUp { seconds: 2, last });
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(why(device.write_at(&[1], 0)), e);
}

#[test]
fn without_reconnect_there_is_one_connection() {
    let bench = Bench::new(usual());
    let device = bench.try_open("&reconnect=0").unwrap();
    bench.server.disconnect();
    let e = why(device.read_at(&mut [0; 512], 0));
    assert_eq!(e, NbdError::GaveUp { seconds: 0, last: Box::new(NbdError::Closed) });
    assert_eq!(bench.server.connections(), 1);
}

/// A server that closes each connection at a certain request is not connected to all the time.
#[test]
fn a_request_that_ends_connections_is_sent_ever_less_often() {
    let bench = Bench::new(usual());
    let device = bench.try_open("&timeout=5&reconnect=2").unwrap();
    bench.server.fault_from(Some(NbdKind::Flush), 1, NbdFault::Close);
    let e = why(device.flush());
    assert_eq!(e, NbdError::GaveUp { seconds: 2, last: Box::new(NbdError::Closed) });
    assert!((4..15).contains(&bench.server.connections()), "{} connections", bench.server.connections());
}

#[test]
fn a_server_that_stays_away_fails_the_device_for_all_threads() {
    let bench = Bench::new(usual());
    let device = bench.try_open("&timeout=1&reconnect=1").unwrap();
    bench.server.set_down(true);
    bench.server.disconnect();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let e = why(device.read_at(&mut [0; 512], 0));
                assert!(matches!(e, NbdError::GaveUp { seconds: 1, .. }), "{e}");
            });
        }
    });
    assert_eq!(bench.server.connections(), 1);
    // It stays so: what was acknowledged may be lost.
    bench.server.set_down(false);
    let e = device.read_at(&mut [0; 512], 0).unwrap_err();
    assert_eq!(e.errno(), ERROR_IO);
}

#[test]
fn an_export_that_has_changed_is_not_gone_on_with() {
    type Change = fn(&NbdServer);
    let smaller = NbdError::SizeChanged { was: SIZE, is: SIZE - 4096 };
    let changed = |what| NbdError::Changed { what };
    let cases: [(Change, NbdError); 4] = [
        (|server| server.set_size(SIZE - 4096), smaller),
        (|server| server.change(|s| s.flags |= 2), changed("it can be read only")),
        (|server| server.change(|s| s.flags &= !4), changed("it has no flush")),
        (|server| server.change(|s| s.blocks = Some((512, 4096, 1 << 25))), changed("its block is larger")),
    ];
    for (change, want) in cases {
        let bench = Bench::new(usual());
        let device = bench.open();
        change(&bench.server);
        bench.server.disconnect();
        assert_eq!(why(device.read_at(&mut [0; 512], 0)), want);
        assert_eq!(why(device.flush()), want);
    }
    let bench = Bench::new(usual());
    let device = bench.open();
    bench.server.set_size(SIZE * 2);
    bench.server.disconnect();
    device.read_at(&mut [0; 512], 0).unwrap();
    assert_eq!(device.size(), SIZE);
}

#[test]
fn what_cannot_be_written_again_fails_the_device() {
    let bench = Bench::new(usual());
    let device = bench.open();
    device.write_at(&[1; 4096], 8192).unwrap();
    bench.server.kill(1);
    bench.server.fault(Some(NbdKind::Write), 1, NbdFault::Errno(28));
    let e = why(device.read_at(&mut [0; 512], 0));
    let NbdError::Replay { offset: 8192, len: 4096, why } = e else { panic!("{e}") };
    assert!(why.to_string().contains("no space left (on purpose)"), "{why}");
}

#[test]
fn what_the_server_fails_is_told_and_not_more() {
    let bench = Bench::new(usual());
    let device = bench.open();
    bench.server.fault(Some(NbdKind::Write), 1, NbdFault::Errno(28));
    assert_eq!(device.write_at(&[1; 512], 0).unwrap_err().errno(), 28);
    device.write_at(&[2; 512], 0).unwrap();
    bench.server.fault(Some(NbdKind::Read), 1, NbdFault::Errno(5));
    let e = device.read_at(&mut [0; 512], 512).unwrap_err();
    let text = "read of 512 bytes at byte 512: the NBD server failed a read: I/O error (on purpose)";
    assert_eq!((e.to_string().as_str(), e.errno()), (text, ERROR_IO));
    // A failed flush is for ever, as that of a file.
    bench.server.fault(Some(NbdKind::Flush), 1, NbdFault::Errno(5));
    assert!(device.flush().is_err());
    assert_eq!(why(device.flush()), NbdError::FlushFailed);
}

/// The memory for what was not flushed is bounded: the client flushes before it takes more.
#[test]
fn the_client_flushes_before_it_keeps_too_much() {
    let bench = Bench::new(usual());
    let device = bench.try_open("&unflushed=4M").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                (0..20u8).for_each(|i| device.write_at(&vec![i; 400_000], thread * (2 << 20)).unwrap());
            });
        }
    });
    let flushes = bench.server.count(NbdKind::Flush);
    assert!((7..=80).contains(&flushes), "{flushes} flushes of 32 MB with 4 MiB kept");
}

#[test]
fn durability_is_not_pretended() {
    let bench = Bench::new(NbdSettings { flags: 1, ..usual() });
    let e = bench.try_open("").unwrap_err();
    assert!(matches!(e.nbd(), Some(NbdError::NoFlush)), "{e}");
    let read_only = FileOptions::new().read_only(true);
    NbdDevice::open(&bench.server.url(""), None, &read_only).unwrap();
    // Without flush, each write has FUA.
    let bench = Bench::new(NbdSettings { flags: 1 | 1 << 3, ..usual() });
    let device = bench.open();
    device.write_at(&[7; 4096], 0).unwrap();
    device.flush().unwrap();
    assert_eq!(bench.server.count(NbdKind::Flush), 0);
    assert_eq!(bench.server.durable().to_bytes()[..4096], [7; 4096]);
}

#[test]
fn what_cannot_be_opened_is_one_line() {
    let bench = Bench::new(usual());
    let open = |url: &str, options: &FileOptions| {
        let e = NbdDevice::open(url, None, options).unwrap_err();
        assert!(!e.to_string().contains('\n') && e.to_string().starts_with(url), "{e}");
        e
    };
    let write = FileOptions::new();
    let other = bench.server.url("").replace("///x", "///y");
    let e = open(&other, &write);
    assert!(e.to_string().ends_with(r#"the NBD server has no export "y"; there are "x""#), "{e}");
    let missing = open("nbd+unix:///x?socket=/nowhere/s", &write);
    assert!(
        missing.to_string().ends_with("no NBD server answers: /nowhere/s: No such file or directory"),
        "{missing}"
    );
    open("nbd://127.0.0.1:1/x", &write);
    let held = bench.open();
    let e = NbdDevice::open(&bench.server.url("&timeout=7"), None, &write).unwrap_err();
    assert!(matches!(e.nbd(), Some(NbdError::InUse { by: Some(_) })), "{e}");
    drop(held);
    bench.server.change(|s| s.flags |= 2);
    let e = open(&bench.server.url(""), &write);
    assert!(matches!(e.nbd(), Some(NbdError::ReadOnly)), "{e}");
    bench.server.change(|s| s.blocks = Some((4096, 4096, 1 << 20)));
    bench.server.set_size(SIZE + 512);
    let e = open(&bench.server.url(""), &FileOptions::new().read_only(true));
    let text = format!("the export has {} bytes, which is no multiple of its block of 4096", SIZE + 512);
    assert!(e.to_string().ends_with(&text), "{e}");
    let listed = NbdDevice::list(&bench.server.url("")).unwrap().unwrap();
    let [NbdExport { name, size, read_only, .. }] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((name.as_str(), *size, *read_only), ("x", Some(SIZE + 512), Some(true)));
}
