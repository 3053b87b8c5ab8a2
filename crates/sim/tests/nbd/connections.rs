//! How many connections a client makes, which of them a flush covers, and what it says of a server
//! that admits fewer.

use super::{Bench, SIZE, bytes_of, usual};
use lanefs_device::{BlockDevice, NbdError};
use lanefs_sim::NbdSettings;
use std::time::{Duration, Instant};

/// Returns the settings of a server that lets a flush cover all connections.
fn multi() -> NbdSettings {
    NbdSettings { flags: usual().flags | 1 << 8, ..usual() }
}

/// A server has a cache for each connection, or one for all and says so. If server and client died
/// behind a flush, nothing that was written before it would be missing.
#[test]
fn a_flush_covers_what_was_written_on_any_connection() {
    for (settings, connections) in [(usual(), 1), (multi(), 3)] {
        let bench = Bench::new(settings);
        let device = bench.try_open("&connections=3&timeout=20&reconnect=20").unwrap();
        let data = bytes_of(SIZE as usize, 3);
        let (half, quarter) = (data.len() / 2, data.len() / 8);
        device.write_at(&data[..half], 0).unwrap();
        std::thread::scope(|scope| {
            for (number, piece) in data[half..].chunks(quarter).enumerate() {
                let (device, at) = (&device, (half + number * quarter) as u64);
                scope.spawn(move || {
                    let pieces = piece.chunks(100_000).enumerate();
                    pieces.for_each(|(i, piece)| device.write_at(piece, at + i as u64 * 100_000).unwrap());
                });
            }
        });
        device.flush().unwrap();
        // What a kill leaves at least.
        let left = bench.server.durable().to_bytes();
        assert!(left == data, "{connections} connections");
        assert_eq!(bench.server.connections(), connections);
    }
}

/// A server serves other clients and takes this one's connection all the same, as qemu-nbd does: an
/// open ends after `timeout=`, and says which connection was not greeted.
#[test]
fn a_server_that_admits_no_more_clients_is_told_of() {
    let refused = |clients, parameters| {
        let bench = Bench::new(NbdSettings { clients, ..multi() });
        let began = Instant::now();
        let e = bench.try_open(parameters).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        assert!(!e.to_string().contains('\n'), "{e}");
        e
    };
    let ungreeted = NbdError::NotGreeted { seconds: 1 };
    let e = refused(0, "&timeout=1");
    assert_eq!(e.nbd(), Some(&ungreeted));
    let text = "has not greeted for 1 s: it may serve all the clients that it admits (qemu-nbd: --shared=N)";
    assert!(e.to_string().ends_with(text), "{e}");
    let e = refused(2, "&connections=4&timeout=1");
    let third = NbdError::Further { number: 3, wanted: 4, why: Box::new(ungreeted) };
    assert_eq!(e.nbd(), Some(&third));
    assert!(e.to_string().contains("connection 3 of connections=4: the NBD server has not greeted"), "{e}");
}

/// A server that comes back, and admits fewer clients than before, fails the device in the end. One
/// that admits them again in time does not.
#[test]
fn fewer_clients_than_before_are_waited_for() {
    for comes_back in [false, true] {
        let bench = Bench::new(multi());
        let device = bench.try_open("&connections=2&timeout=1&reconnect=2").unwrap();
        device.write_at(&[1; 4096], 0).unwrap();
        bench.server.change(|s| s.clients = 1);
        bench.server.kill(3);
        std::thread::scope(|scope| {
            let read = scope.spawn(|| device.read_at(&mut [0; 512], 0));
            if comes_back {
                std::thread::sleep(Duration::from_millis(300));
                bench.server.change(|s| s.clients = 2);
            }
            match read.join().unwrap() {
                Ok(()) => assert!(comes_back),
                Err(e) => {
                    let Some(NbdError::GaveUp { seconds: 2, last }) = e.nbd() else { panic!("{e}") };
                    // The server may still count the connection of an earlier try.
                    let known = matches!(**last, NbdError::Further { .. } | NbdError::NotGreeted { .. });
                    assert!(known && !comes_back, "{e}");
                }
            }
        });
    }
}
