//! The cache against plain vectors of bytes.

mod bound;
mod model;
mod threads;
mod unit;

use super::geometry::PAGES;
use super::span::Span;
use super::*;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::Range;

/// Checks the invariants that hold while no thread uses the cache. `files` are all files of it.
fn check(cache: &PageCache, files: &[&Arc<FileCache>], in_flight: &[&WritebackBatch]) {
    let (mut pages, mut busy) = (Vec::new(), 0);
    for file in files {
        let mut any_dirty = false;
        file.each_locked(&(0..u32::MAX), |locked, _| {
            let Some(chunk) = locked.get() else { return };
            assert!(chunk.listed || !chunk.is_empty(), "a chunk of nothing");
            assert_eq!(chunk.dirty & !chunk.uptodate, 0);
            assert_eq!(chunk.cancelled & !chunk.writeback, 0);
            for p in 0..PAGES {
                let some = chunk.uptodate & cache.geo.page_mask(p) != 0;
                assert_eq!(chunk.pages.get(p).is_some_and(Option::is_some), some, "page {p}");
            }
            assert!(chunk.listed || chunk.evictable(cache.geo) == 0, "never to be evicted");
            assert_eq!(file.next_dirty(locked.no) == Some(locked.no), chunk.dirty != 0);
            any_dirty |= chunk.dirty != 0;
            busy += u64::from(chunk.busy().count_ones());
            pages.extend(chunk.pages.iter().flatten().map(|page| page.as_ptr()));
        });
        assert_eq!(any_dirty, file.is_dirty());
    }
    assert_eq!(cache.dirty_bytes(), busy * cache.geo.block_size() as u64);
    let dirty = files.iter().filter(|file| file.is_dirty()).map(|file| Arc::as_ptr(file));
    let listed: BTreeSet<_> = dirty.chain(in_flight.iter().map(|out| Arc::as_ptr(out.file()))).collect();
    assert_eq!(cache.stats().dirty_files, listed.len() as u64);
    assert!(!files.is_empty() || cache.stats().index == 0, "{:?}", cache.stats());
    // A page that was copied meanwhile is in flight only.
    pages.extend(in_flight.iter().flat_map(|w| w.items()).map(|item| item.page.as_ptr()));
    pages.sort_unstable();
    pages.dedup();
    assert_eq!(cache.stats().used, (pages.len() * cache.geo.page_size()) as u64);
}

/// Fills `blocks` from the bytes of a device on which the file lies from byte 0 on.
fn fill(span: &mut Span<'_>, blocks: Range<u32>, block_size: usize, device: &[u8]) {
    let Ok(()) = span.fill(blocks, |segments| {
        for s in segments {
            s.buf.copy_from_slice(&device[s.lblk as usize * block_size..][..s.buf.len()]);
        }
        Ok::<_, Infallible>(())
    });
}
