//! Many threads on one file under a small bound: writers of stamps, readers, writeback, and a file
//! that passes by.

use super::*;
use lanefs_sync::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const BLOCK: usize = 1024;
/// A record is a stamp, eight times. It does not cross a page's border, nor does it end at a
/// block's.
const RECORD: usize = 64;
const RECORDS: usize = 16 * 1024;
const WRITERS: usize = 3;

fn write(file: &FileCache, device: &Mutex<Vec<u8>>, record: usize, stamp: u64) {
    let at = record * RECORD;
    let block = (at / BLOCK) as u32;
    let mut span = file.span(block..block + 1);
    for block in span.partial(at as u64, RECORD) {
        fill(&mut span, block..block + 1, BLOCK, &device.lock());
    }
    assert_eq!(span.copy_in(&stamp.to_le_bytes().repeat(RECORD / 8), at as u64), RECORD);
}

/// Returns the stamp of a record, which is whole.
fn read(file: &FileCache, device: &Mutex<Vec<u8>>, record: usize) -> u64 {
    let mut bytes = [0; RECORD];
    let at = (record * RECORD) as u64;
    if file.read(at, &mut bytes) != RECORD {
        let block = (at / BLOCK as u64) as u32;
        let mut span = file.span(block..block + 1);
        fill(&mut span, block..block + 1, BLOCK, &device.lock());
        assert_eq!(span.copy_out(&mut bytes, at), RECORD);
    }
    let stamps = bytes.as_chunks::<8>().0;
    assert!(stamps.iter().all(|s| s == &stamps[0]), "torn: {stamps:?}");
    u64::from_le_bytes(stamps[0])
}

fn write_out(file: &FileCache, device: &Mutex<Vec<u8>>, rng: &mut SmallRng) {
    let Some(out) = file.take_dirty(0..u32::MAX, rng.random_range(1..256 << 10)) else { return };
    for item in out.items() {
        let before = item.bytes().to_vec();
        thread::yield_now();
        assert!(before == item.bytes(), "bytes that are written out move");
        let at = item.lblk as usize * BLOCK;
        device.lock()[at..at + before.len()].copy_from_slice(&before);
    }
    match rng.random_bool(0.8) {
        true => out.done(None),
        false => out.failed(),
    }
}

#[test]
fn stamps_are_whole_and_never_go_back() {
    let cache = PageCache::new(BLOCK as u32, 256 << 10);
    let file = FileCache::new(&cache, 1);
    let other = FileCache::new(&cache, 2);
    let device = Mutex::new(vec![0; RECORDS * RECORD]);
    let last: Vec<AtomicU64> = (0..RECORDS).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut writers = Vec::new();
        for w in 0..WRITERS {
            let (cache, file, device, last) = (&cache, &file, &device, &last);
            writers.push(scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(w as u64);
                // Some page is evicted sooner or later, however the threads are scheduled.
                let enough = |stamp: &u64| *stamp < 20_000 || cache.stats().evicted == 0;
                for stamp in (1..).take_while(enough) {
                    // Neighbours in a block belong to different writers.
                    let record = rng.random_range(0..RECORDS / WRITERS) * WRITERS + w;
                    let was = last[record].load(Ordering::Relaxed);
                    assert_eq!(read(file, device, record), was, "record {record}");
                    write(file, device, record, stamp);
                    last[record].store(stamp, Ordering::Relaxed);
                }
            }));
        }
        scope.spawn(|| {
            let mut rng = SmallRng::seed_from_u64(99);
            while !stop.load(Ordering::Relaxed) {
                write_out(&file, &device, &mut rng);
                thread::yield_now();
            }
        });
        scope.spawn(|| {
            let mut rng = SmallRng::seed_from_u64(100);
            while !stop.load(Ordering::Relaxed) {
                let record = rng.random_range(0..RECORDS);
                let least = last[record].load(Ordering::Relaxed);
                assert!(read(&file, &device, record) >= least, "record {record}");
                let block = rng.random_range(0..10_000);
                let Ok(()) = other.span(block..block + 1).fill(block..block + 1, |_| Ok::<_, Infallible>(()));
                file.drop_clean(0..u32::MAX);
            }
        });
        let results: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
        stop.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    check(&cache, &[&file, &other], &[]);
    assert!(cache.stats().evicted > 0);
    let mut rng = SmallRng::seed_from_u64(1);
    while file.is_dirty() {
        write_out(&file, &device, &mut rng);
    }
    let device = device.into_inner();
    for (record, last) in last.iter().enumerate() {
        let stamp = device[record * RECORD..].first_chunk::<8>().map(|s| u64::from_le_bytes(*s));
        assert_eq!(stamp, Some(last.load(Ordering::Relaxed)), "record {record} on the device");
    }
    drop((file, other));
    check(&cache, &[], &[]);
}

#[test]
fn files_come_and_go_while_others_evict_them() {
    let cache = PageCache::new(4096, 256 << 10);
    thread::scope(|scope| {
        for t in 0..4_u32 {
            let cache = &cache;
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(t.into());
                for ino in 0..500 {
                    let file = FileCache::new(cache, t * 1000 + ino);
                    for _ in 0..20 {
                        let block = rng.random_range(0..100);
                        match rng.random_bool(0.2) {
                            true => {
                                _ = file.span(block..block + 1).copy_in(b"dirty", u64::from(block) * 4096)
                            }
                            false => fill(&mut file.span(block..block + 1), block..block + 1, 0, &[3; 4096]),
                        }
                    }
                    let out = file.take_dirty(0..u32::MAX, 32 << 10);
                    drop(file);
                    drop(out);
                }
            });
        }
    });
    check(&cache, &[], &[]);
}
