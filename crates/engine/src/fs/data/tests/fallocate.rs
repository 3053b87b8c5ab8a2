//! fallocate on files of many extents and volumes with small journals, where handles are short of
//! credits.

use super::*;
use crate::fs::data::FallocMode;

const BLOCK: usize = 1024;

fn apply(node: &InodeRef, model: &mut Vec<u8>, mode: FallocMode, range: std::ops::Range<usize>) {
    node.content().fallocate(mode, range.start as u64, range.len() as u64).unwrap();
    let there = range.start.min(model.len())..range.end.min(model.len());
    match mode {
        FallocMode::PunchHole | FallocMode::ZeroRangeKeepSize => model[there].fill(0),
        FallocMode::CollapseRange => drop(model.drain(range)),
        FallocMode::InsertRange => drop(model.splice(range.start..range.start, vec![0; range.len()])),
        _ => {}
    }
}

#[test]
fn a_file_of_many_extents_is_changed_in_many_handles() {
    let image = Image::new("64M", &[KINDS[1], &["-J", "size=1"]].concat());
    let ino = image.file("a");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    const N: usize = 12_000;
    let mut model = vec![0; N * 2 * BLOCK];
    for i in 0..N {
        let at = i * 4001 % N * 2 * BLOCK;
        let fill = 1 + (i % 250) as u8;
        write(&node, at as u64, &[fill; BLOCK]).unwrap();
        model[at..at + BLOCK].fill(fill);
    }
    model.truncate((N * 2 - 1) * BLOCK);
    let blocks = |range: std::ops::Range<usize>| range.start * BLOCK..range.end * BLOCK;
    let before = fs.journal.stats().handles;
    apply(&node, &mut model, FallocMode::CollapseRange, blocks(3..5));
    assert!(all(&node) == model);
    apply(&node, &mut model, FallocMode::InsertRange, blocks(100..2000));
    assert!(all(&node) == model);
    apply(&node, &mut model, FallocMode::PunchHole, 3_000_100..9_000_001);
    assert!(all(&node) == model);
    apply(&node, &mut model, FallocMode::ZeroRangeKeepSize, 11_000_100..19_000_001);
    assert!(all(&node) == model);
    apply(&node, &mut model, FallocMode::CollapseRange, blocks(50..10_000));
    assert!(all(&node) == model);
    let handles = fs.journal.stats().handles - before;
    assert!(handles > 10, "{handles} handles");
    drop(node);
    image.close(fs);
    assert!(image.dump("a") == model);
}

/// No lock is held between two pieces of a call, and each piece is bounded: threads that read the
/// file wait for one piece at most.
#[test]
fn a_call_on_many_holes_is_done_in_pieces() {
    const N: usize = 6000;
    let image = Image::new("64M", KINDS[1]);
    let ino = image.file("a");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    let mut model = vec![0; N * 2 * BLOCK];
    for (i, pair) in model.chunks_exact_mut(2 * BLOCK).enumerate() {
        pair[..BLOCK].fill(1 + (i % 250) as u8);
        write(&node, (i * 2 * BLOCK) as u64, &pair[..BLOCK]).unwrap();
    }
    // It ends with a hole, and then grows.
    let end = model.len() + 1000;
    let in_pieces = |mode, range: std::ops::Range<usize>| {
        let (size, mut at, mut pieces) = (node.file().size(), range.start as u64, 0);
        loop {
            let next = node.content().fallocate_piece(mode, at, range.end as u64).unwrap();
            assert!(node.content().try_lock_to_write(0, 1).is_ok(), "{mode:?}: it is still locked");
            pieces += 1;
            let Some(next) = next else { return pieces };
            assert!(at < next && next < range.end as u64 && next.is_multiple_of(BLOCK as u64));
            assert_eq!(node.file().size(), size, "{mode:?}: the file has grown before the end");
            at = next;
        }
    };
    let blocks = || node.state().blocks as usize / 2;
    assert!(in_pieces(FallocMode::PunchHole, 100..2 * BLOCK * N / 2) >= 3);
    assert!(blocks() < N / 2 + 200);
    assert!(in_pieces(FallocMode::Allocate, 10..end) >= 3);
    assert!(blocks() > 2 * N);
    assert!(in_pieces(FallocMode::ZeroRange, N / 2 * 3 * BLOCK..end) >= 2);
    model[100..N * BLOCK].fill(0);
    model[N / 2 * 3 * BLOCK..].fill(0);
    model.resize(end, 0);
    assert!(all(&node) == model);
    drop(node);
    image.close(fs);
    assert!(image.dump("a") == model);
}

/// Every call on a file under writes; what was used beyond the credits is told when the volume is
/// closed.
#[test]
fn random_ranges_keep_to_their_credits() {
    let image = Image::new("24M", KINDS[1]);
    let ino = image.file("a");
    let mut rng = StdRng::seed_from_u64(4);
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    let mut model = Vec::new();
    for _ in 0..20 {
        churn(&node, &mut model, &mut rng, 10, 1_000_000);
        for _ in 0..10 {
            let modes = [
                FallocMode::KeepSize,
                FallocMode::PunchHole,
                FallocMode::ZeroRangeKeepSize,
                FallocMode::CollapseRange,
                FallocMode::InsertRange,
            ];
            let mode = modes[rng.random_range(0..modes.len())];
            let mut at: usize = rng.random_range(0..900_000);
            let mut len: usize = rng.random_range(1..50_000);
            if matches!(mode, FallocMode::CollapseRange | FallocMode::InsertRange) {
                (at, len) = (at / BLOCK * BLOCK, len.next_multiple_of(BLOCK));
                let end = if mode == FallocMode::CollapseRange { at + len } else { at };
                if end >= model.len() {
                    continue;
                }
            }
            apply(&node, &mut model, mode, at..at + len);
            assert!(all(&node) == model, "{mode:?} {at} {len}");
        }
        node.content().truncate(800_000).unwrap();
        model.resize(800_000, 0);
    }
    drop(node);
    image.close(fs);
    assert!(image.dump("a") == model);
}
