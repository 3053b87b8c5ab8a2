//! Small cases that the model does not reach.

use super::*;

fn one_block() -> (Arc<PageCache>, Arc<FileCache>) {
    let cache = PageCache::new(1024, 1 << 20);
    let file = FileCache::new(&cache, 1);
    (cache, file)
}

fn only(list: &[Range<u32>]) -> Range<u32> {
    assert_eq!(list.len(), 1, "{list:?}");
    list[0].clone()
}

#[test]
fn a_block_that_is_being_written_out_is_not_taken_again_but_stays_dirty() {
    let (cache, file) = one_block();
    file.span(3..4).copy_in(&[1; 1024], 3072);
    let first = file.take_dirty(0..10, 4096).unwrap();
    assert!(!file.is_dirty() && file.take_dirty(0..10, 4096).is_none());
    file.span(3..4).copy_in(&[2; 1024], 3072);
    assert!(file.is_dirty() && file.take_dirty(0..10, 4096).is_none());
    assert_eq!(first.items()[0].bytes(), [1; 1024]);
    assert_eq!(cache.dirty_bytes(), 1024);
    check(&cache, &[&file], &[&first]);
    first.done(None);
    assert!(file.is_dirty());
    let second = file.take_dirty(0..10, 4096).unwrap();
    assert_eq!(second.items()[0].bytes(), [2; 1024]);
    second.done(None);
    assert!(!file.is_dirty() && cache.dirty_bytes() == 0);
}

#[test]
fn a_file_is_in_the_list_until_its_writeback_ends() {
    let (cache, file) = one_block();
    let listed = || cache.dirty_files().len();
    let write = || file.span(3..4).copy_in(&[1; 1024], 3072);
    assert!(file.take_dirty(0..10, 4096).is_none() && listed() == 0);
    write();
    let out = file.take_dirty(0..10, 4096).unwrap();
    assert!(!file.is_dirty() && listed() == 1);
    out.done(None);
    assert_eq!(listed(), 0);
    write();
    file.take_dirty(0..10, 4096).unwrap().failed();
    assert!(file.is_dirty() && listed() == 1);
    // Written again meanwhile, or dropped.
    let out = file.take_dirty(0..10, 4096).unwrap();
    write();
    assert!(file.take_dirty(0..10, 4096).is_none() && listed() == 1);
    out.done(None);
    assert_eq!(listed(), 1);
    let out = file.take_dirty(0..10, 4096).unwrap();
    file.invalidate(0..10);
    assert_eq!(listed(), 1);
    out.done(None);
    assert_eq!(listed(), 0);
}

#[test]
fn what_was_never_filled_is_zeros_around_a_write() {
    let (cache, file) = one_block();
    // Pages with old content of another file.
    let before = FileCache::new(&cache, 2);
    before.span(0..64).copy_in(&[0xee; 65536], 0);
    drop(before);
    assert!(cache.stats().free >= 65536);
    let mut span = file.span(0..64);
    assert_eq!(span.partial(100, 2000).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(span.copy_in(&[1; 2000], 100), 2000);
    assert!(span.partial(100, 2000).next().is_none());
    assert_eq!(only(&span.missing(0..64)), 3..64);
    drop(span);
    let mut bytes = [9; 4096];
    assert_eq!(file.read(0, &mut bytes), 3072);
    let want = [&[0; 100][..], &[1; 2000], &[0; 972], &[9; 1024]].concat();
    assert!(bytes[..] == want);
}

#[test]
fn partial_blocks() {
    let (_, file) = one_block();
    let partial = |offset, len| file.span(0..64).partial(offset, len).collect::<Vec<_>>();
    assert_eq!(partial(0, 1024), []);
    assert_eq!(partial(0, 1023), [0]);
    assert_eq!(partial(1, 1023), [0]);
    assert_eq!(partial(5, 10), [0]);
    assert_eq!(partial(5, 2048), [0, 2]);
    assert_eq!(partial(1023, 2), [0, 1]);
    assert_eq!(partial(1024, 0), []);
    assert_eq!(partial(1030, 0), []);
}

#[test]
fn reads_count_as_hits_or_misses() {
    let (cache, file) = one_block();
    let mut bytes = [0; 3000];
    assert_eq!(file.read(0, &mut bytes), 0);
    fill(&mut file.span(0..2), 0..2, 1024, &[5; 2048]);
    assert_eq!(file.read(0, &mut bytes), 2048);
    assert_eq!(file.read(1, &mut bytes[..2047]), 2047);
    // Far beyond the end of any file.
    assert_eq!(file.read(u64::MAX - 5, &mut bytes), 0);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (1, 3));
}

#[test]
fn the_last_block_that_a_file_can_have() {
    for block_size in [1024, 4096, 65536] {
        let cache = PageCache::new(block_size, 1);
        let file = FileCache::new(&cache, 1);
        let block = u32::MAX - 1;
        let offset = u64::from(block) * u64::from(block_size);
        let mut span = file.span(block..block + 1);
        assert_eq!(span.copy_in(b"end", offset + 7), 3);
        assert_eq!(only(&span.clean(block - 1..u32::MAX).collect::<Vec<_>>()), block - 1..block);
        drop(span);
        let mut bytes = [0; 4];
        assert_eq!(file.read(offset + 6, &mut bytes), 4);
        assert_eq!(&bytes, b"\0end");
        assert_eq!(file.take_dirty(5..u32::MAX, 1).unwrap().items()[0].lblk, block);
        let cut = file.cut(offset + 8..u64::MAX);
        assert_eq!((cut.head, cut.tail), (Edge::Dirty, Edge::Whole));
        assert_eq!(only(&file.cut(0..u64::MAX).dropped), block..u32::MAX);
        check(&cache, &[&file], &[]);
    }
}
