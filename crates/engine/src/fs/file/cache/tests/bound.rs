//! The bound on memory, and the memory of a file.

use super::*;
use std::thread;
use std::time::Duration;

/// One pass over `blocks` of a file with reads through the cache, in pieces of `step`.
fn read_all(cache: &PageCache, file: &FileCache, blocks: u32, step: u32, bound: u64) {
    let block = cache.geo.block_size();
    for first in (0..blocks).step_by(step as usize) {
        let mut span = file.span(first..first + step);
        let Ok(()) = span.fill(first..first + step, |segments| {
            for s in segments {
                for (lblk, bytes) in (s.lblk..).zip(s.buf.chunks_mut(block)) {
                    bytes.fill(lblk as u8);
                }
            }
            Ok::<_, Infallible>(())
        });
        drop(span);
        let mut byte = [0];
        assert_eq!(file.read(u64::from(first) * block as u64, &mut byte), 1);
        assert_eq!(byte[0], first as u8);
        let stats = cache.stats();
        assert!(stats.used + stats.free <= bound, "{stats:?}");
    }
}

#[test]
fn a_file_of_a_hundred_times_the_bound_is_read_within_it() {
    let bound = 8 << 20;
    let cache = PageCache::new(4096, bound);
    let file = FileCache::new(&cache, 1);
    let blocks = (100 * bound / 4096) as u32;
    read_all(&cache, &file, blocks, 64, bound);
    let stats = cache.stats();
    assert_eq!(
        stats.evicted + stats.used / 4096,
        u64::from(blocks),
        "each was cached once, and then evicted"
    );
    assert!(stats.used > bound / 2, "{stats:?}");
    check(&cache, &[&file], &[]);
}

#[test]
fn a_file_of_a_hundred_times_the_bound_is_written_within_it_and_what_is_in_flight() {
    let bound = 1 << 20;
    let cache = PageCache::new(4096, bound);
    let file = FileCache::new(&cache, 1);
    let content = [7; 64 << 10];
    let mut written = 0;
    for chunk in 0..100 * bound / content.len() as u64 {
        let offset = chunk * content.len() as u64;
        let mut span = file.span((offset / 4096) as u32..(offset / 4096) as u32 + 16);
        assert_eq!(span.copy_in(&content, offset), content.len());
        drop(span);
        while cache.pressure() >= Pressure::Throttle {
            let out = file.take_dirty(0..u32::MAX, 128 << 10).unwrap();
            assert!(out.items().iter().all(|item| item.bytes().iter().all(|b| *b == 7)));
            written += out.blocks();
            out.done(None);
        }
        let stats = cache.stats();
        assert!(stats.used + stats.free <= bound && stats.dirty <= bound / 5, "{stats:?}");
    }
    assert!(written * 4096 >= 99 * bound);
    check(&cache, &[&file], &[]);
}

#[test]
fn what_is_dirty_is_never_evicted_and_the_rest_comes_back_within_the_bound() {
    let bound = 1 << 20;
    let cache = PageCache::new(4096, bound);
    let file = FileCache::new(&cache, 1);
    for block in (0..2048).step_by(4) {
        file.span(block..block + 1).copy_in(&[block as u8; 4096], u64::from(block) * 4096);
    }
    assert_eq!((cache.stats().used, cache.dirty_bytes()), (512 * 4096, 512 * 4096));
    // Reads find room only among their own pages, and not in the chunk that they have locked.
    let other = FileCache::new(&cache, 2);
    for block in 0..1000 {
        fill(&mut other.span(block..block + 1), block..block + 1, 0, &[0; 4096]);
        assert!(cache.stats().used <= (512 + 16) * 4096, "{:?}", cache.stats());
    }
    let out = file.take_dirty(0..u32::MAX, u64::MAX).unwrap();
    assert_eq!((out.blocks(), out.runs().count()), (512, 512));
    out.done(None);
    assert_eq!((cache.dirty_bytes(), cache.stats().dirty_files), (0, 0));
    fill(&mut other.span(2000..2001), 2000..2001, 0, &[0; 4096]);
    let stats = cache.stats();
    assert!(stats.used + stats.free <= bound, "{stats:?}");
    check(&cache, &[&file, &other], &[]);
}

#[test]
fn pages_in_use_outlive_pages_that_pass() {
    let bound = 1 << 20;
    let cache = PageCache::new(4096, bound);
    let (hot, passing) = (FileCache::new(&cache, 1), FileCache::new(&cache, 2));
    for block in 0..64 {
        fill(&mut hot.span(block..block + 1), block..block + 1, 0, &[0; 4096]);
    }
    let mut byte = [0];
    for block in 0..10_000 {
        let hot_block = u64::from(block) % 64;
        assert_eq!(hot.read(hot_block * 4096, &mut byte), 1, "block {hot_block} after {block} others");
        fill(&mut passing.span(block..block + 1), block..block + 1, 0, &[0; 4096]);
    }
}

#[test]
fn many_small_files_leave_nothing_behind() {
    let cache = PageCache::new(1024, 64 << 20);
    for ino in 0..10_000 {
        let file = FileCache::new(&cache, ino);
        fill(&mut file.span(0..1), 0..1, 0, &[0; 1024]);
        file.span(1..2).copy_in(b"x", 1024);
        assert_eq!(cache.stats().used, 4096);
    }
    check(&cache, &[], &[]);
    assert!(cache.pool.entries() < 10_000, "{} entries of files that are gone", cache.pool.entries());
    // Beside a small file's one page.
    let chunk = size_of_val(&*Box::<chunk::Chunk>::default());
    assert!(size_of::<FileCache>() + chunk < 600, "{} + {chunk}", size_of::<FileCache>());
}

#[test]
fn pressure_by_dirty_bytes() {
    let cache = PageCache::new(4096, 10 << 20);
    let file = FileCache::new(&cache, 1);
    let mut seen = vec![cache.pressure()];
    for block in 0..1280 {
        file.span(block..block + 1).copy_in(&[1; 4096], u64::from(block) * 4096);
        if *seen.last().unwrap() != cache.pressure() {
            seen.push(cache.pressure());
        }
    }
    assert_eq!(seen, [Pressure::Calm, Pressure::Background, Pressure::Throttle, Pressure::Stop]);
    // Pages in writeback still count, until they are on the device.
    let out = file.take_dirty(0..u32::MAX, u64::MAX).unwrap();
    assert_eq!(cache.pressure(), Pressure::Stop);
    out.done(None);
    assert_eq!(cache.pressure(), Pressure::Calm);
}

/// Writes MiB of a file and writes them back.
fn write_out(file: &FileCache, mib: Range<u64>) {
    let content = vec![7; 1 << 20];
    for offset in mib.map(|mib| mib << 20) {
        let mut span = file.span((offset >> 12) as u32..(offset >> 12) as u32 + 256);
        assert_eq!(span.copy_in(&content, offset), content.len());
        drop(span);
        while let Some(out) = file.take_dirty(0..u32::MAX, 1 << 20) {
            out.done(None);
        }
    }
}

/// Blocks of these MiB of a file that are not cached.
fn missing(file: &FileCache, mib: Range<u64>) -> usize {
    file.missing((mib.start << 8) as u32..(mib.end << 8) as u32).iter().map(ExactSizeIterator::len).sum()
}

/// Returns whether all of these MiB of a file are cached.
fn is_cached(file: &FileCache, mib: Range<u64>) -> bool {
    missing(file, mib) == 0
}

fn use_pages(file: &FileCache, mib: Range<u64>) {
    let mut byte = [0];
    for offset in (mib.start << 20..mib.end << 20).step_by(4096) {
        assert_eq!(file.read(offset, &mut byte), 1);
    }
}

/// Written pages stay readable, but do not take all of the memory.
#[test]
fn what_is_only_written_passes_by() {
    let cache = PageCache::new(4096, 512 << 20);
    let file = FileCache::new(&cache, 1);
    write_out(&file, 0..240);
    assert!(is_cached(&file, 0..240) && cache.stats().evicted == 0);
    write_out(&file, 240..640);
    assert!(is_cached(&file, 440..640) && missing(&file, 0..300) == 300 << 8);
    let stats = cache.stats();
    // Beside them are the pages of a write, and what shards and arena have free.
    let most = (256 + 32 * 2) << 20;
    assert!(stats.used + stats.free <= most, "{stats:?}");
    assert_eq!(stats.used + (stats.evicted << 12), 640 << 20);
    check(&cache, &[&file], &[]);
}

#[test]
fn what_was_written_and_used_does_not_pass_by() {
    let cache = PageCache::new(4096, 128 << 20);
    let [read, changed, rewritten, passing] = [1, 2, 3, 4].map(|ino| FileCache::new(&cache, ino));
    for file in [&read, &changed, &rewritten] {
        write_out(file, 0..8);
    }
    use_pages(&read, 0..8);
    // A part of each block: the rest would have to be read.
    for offset in (0..8 << 20).step_by(4096) {
        changed.span((offset >> 12) as u32..(offset >> 12) as u32 + 1).copy_in(&[1; 100], offset);
    }
    // Whole blocks: the old content is not needed.
    write_out(&rewritten, 0..8);
    while let Some(out) = changed.take_dirty(0..u32::MAX, 1 << 20) {
        out.done(None);
    }
    write_out(&passing, 0..256);
    assert!(is_cached(&read, 0..8) && is_cached(&changed, 0..8));
    assert_eq!(missing(&rewritten, 0..8), 8 << 8);
    // More bytes than may be passing. They stay, because they were used.
    write_out(&read, 8..40);
    use_pages(&read, 8..40);
    write_out(&passing, 0..128);
    assert!(is_cached(&read, 0..40) && is_cached(&passing, 112..128));
    check(&cache, &[&read, &changed, &rewritten, &passing], &[]);
}

/// A file that was written from front to back can be read from the cache, if it is not large.
#[test]
fn a_stream_keeps_its_end_and_what_was_used() {
    let cache = PageCache::new(4096, 1 << 30);
    let file = FileCache::new(&cache, 1);
    let write = |mib: Range<u64>| {
        for mib in mib {
            write_out(&file, mib..mib + 1);
            file.give_pages_behind();
        }
    };
    write(0..120);
    assert!(is_cached(&file, 0..120));
    use_pages(&file, 10..20);
    // In writeback until the end.
    file.span(120 << 8..121 << 8).copy_in(&[1; 1 << 20], 120 << 20);
    let out = file.take_dirty(0..u32::MAX, 1 << 20).unwrap();
    write(121..300);
    for cached in [10..20, 120..121, 172..300] {
        assert!(is_cached(&file, cached));
    }
    assert_eq!(missing(&file, 0..300), (300 - 10 - 1 - 128) << 8);
    out.done(None);
    check(&cache, &[&file], &[]);
}

#[test]
fn the_writer_of_a_stream_goes_on_when_its_pages_are_taken() {
    let cache = PageCache::new(4096, 1 << 30);
    let file = FileCache::new(&cache, 1);
    for mib in 0..20 {
        file.span(mib << 8..(mib + 1) << 8).copy_in(&[1; 1 << 20], u64::from(mib) << 20);
    }
    assert!(file.is_ahead() && !file.wait_while_ahead(Duration::from_millis(1)));
    thread::scope(|scope| {
        let writer = scope.spawn(|| file.wait_while_ahead(Duration::from_secs(600)));
        thread::sleep(Duration::from_millis(10));
        // Taken, and not on the device yet.
        let out = file.take_dirty(0..u32::MAX, 8 << 20).unwrap();
        assert!(writer.join().unwrap() && !file.is_ahead());
        out.done(None);
    });
}

#[test]
fn what_passes_by_makes_room_neither_while_it_is_dirty_nor_on_its_way() {
    let cache = PageCache::new(4096, 128 << 20);
    let file = FileCache::new(&cache, 1);
    write_out(&file, 0..60);
    // Dirty again, every other block of them; and others in writeback.
    for block in (0..10 << 8).step_by(2) {
        file.span(block..block + 1).copy_in(&[8; 4096], u64::from(block) << 12);
    }
    let out = file.take_dirty(0..5 << 8, u64::MAX).unwrap();
    write_out(&FileCache::new(&cache, 2), 0..256);
    let even: Vec<_> = (0..10 << 8).step_by(2).map(|block| block..block + 1).collect();
    assert!(even.iter().all(|block| file.missing(block.clone()).is_empty()));
    assert_eq!(file.missing(0..10 << 8).len(), even.len());
    assert!(out.items().iter().all(|item| item.bytes() == [8; 4096]));
    out.done(None);
    assert_eq!(cache.dirty_bytes(), 5 << 19);
    check(&cache, &[&file], &[]);
}

#[test]
fn emptied_it_keeps_what_is_dirty_or_on_its_way_and_no_more() {
    let cache = PageCache::new(4096, 64 << 20);
    let file = FileCache::new(&cache, 1);
    fill(&mut file.span(0..512), 0..512, 4096, &[7; 512 * 4096]);
    file.span(600..616).copy_in(&[1; 16 * 4096], 600 * 4096);
    let out = file.take_dirty(0..u32::MAX, u64::MAX).unwrap();
    file.span(700..701).copy_in(&[2; 4096], 700 * 4096);
    cache.empty();
    let stats = cache.stats();
    assert_eq!((stats.used, stats.free), (17 * 4096, 0), "{stats:?}");
    out.done(None);
    cache.empty();
    assert_eq!((cache.stats().used, cache.stats().free), (4096, 0));
    let mut byte = [0];
    assert_eq!((file.read(700 * 4096, &mut byte), byte), (1, [2]));
    check(&cache, &[&file], &[]);
}
