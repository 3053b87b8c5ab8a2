//! Readahead locks no bytes: the pages that it loads must never be older than what another thread
//! has written past the cache.

use crate::fs::data::FallocMode;
use crate::{File, OpenOptions, Volume};
use lanefs_device::MemDevice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const BLOCK: u64 = 4096;

/// Readers request bytes before it; their readahead loads bytes behind it.
const BASE: u64 = 52 * BLOCK;

fn volume() -> Volume {
    let device = MemDevice::new(32 << 20);
    lanefs_mkfs::format(&device, &lanefs_mkfs::Options { block_size: Some(4096), ..Default::default() })
        .unwrap();
    OpenOptions::new().write(true).commit_interval(Duration::ZERO).open_device(Arc::new(device)).unwrap()
}

fn open(volume: &Volume, direct: bool) -> File {
    volume.open_options().read(true).write(true).create(true).direct(direct).open("/f").unwrap()
}

/// Runs `work` while two other threads read ahead behind `BASE`, again and again.
fn among_readers(volume: &Volume, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let file = open(volume, false);
                let mut byte = [0];
                while !stop.load(Ordering::Relaxed) {
                    // The first read ends the last sequence, the others begin a new one.
                    for at in [0, BASE - 2, BASE - 1] {
                        file.read_at(&mut byte, at).unwrap();
                    }
                }
            });
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|e| std::panic::resume_unwind(e));
    });
}

#[test]
fn what_is_appended_past_the_cache_is_read() {
    let volume = volume();
    let (direct, cached) = (open(&volume, true), open(&volume, false));
    let start = BASE + 100;
    direct.write_at(&vec![1; start as usize], 0).unwrap();
    among_readers(&volume, || {
        let mut end = start;
        for round in 0..5000_u64 {
            let bytes = [1 + (round % 255) as u8; 37];
            direct.write_at(&bytes, end).unwrap();
            let mut seen = [0; 37];
            assert_eq!(cached.read_at(&mut seen, end).unwrap(), 37);
            assert!(seen == bytes, "round {round}, at {end}: {seen:?}");
            end += 37;
            if end > start + 8 * BLOCK {
                direct.set_len(start).unwrap();
                end = start;
            }
        }
    });
}

#[test]
fn what_is_changed_past_the_cache_is_read() {
    let volume = volume();
    let (direct, cached) = (open(&volume, true), open(&volume, false));
    const LEN: u64 = BASE + 16 * BLOCK;
    let mut model = vec![9; LEN as usize];
    direct.write_at(&model, 0).unwrap();
    among_readers(&volume, || {
        let mut seen = vec![0; LEN as usize];
        for round in 0..500_u64 {
            let (at, len) = (BASE + round * 1237 % (13 * BLOCK), 1 + round * 61 % (2 * BLOCK));
            let (first, n) = (at as usize, len as usize);
            match round % 5 {
                0 | 1 => {
                    let mode = if round % 5 == 0 { FallocMode::PunchHole } else { FallocMode::ZeroRange };
                    direct.fallocate(mode, at, len).unwrap();
                    model[first..first + n].fill(0);
                }
                2 => {
                    direct.set_len(at).unwrap();
                    direct.set_len(LEN).unwrap();
                    model[first..].fill(0);
                }
                3 => {
                    let (first, base, n) = (first & !4095, BASE as usize, BLOCK as usize);
                    direct.fallocate(FallocMode::CollapseRange, first as u64, BLOCK).unwrap();
                    model.drain(first..first + n);
                    direct.fallocate(FallocMode::InsertRange, BASE, BLOCK).unwrap();
                    model.splice(base..base, vec![0; n]);
                }
                _ => {}
            }
            let (at, byte) = (LEN - (at - BASE) - len, 1 + (round % 255) as u8);
            direct.write_at(&vec![byte; n], at).unwrap();
            model[at as usize..][..n].fill(byte);
            assert_eq!(cached.read_at(&mut seen, 0).unwrap(), LEN as usize);
            let wrong = seen.iter().zip(&model).position(|(a, b)| a != b);
            assert!(wrong.is_none(), "round {round}: byte {wrong:?}");
        }
    });
}
