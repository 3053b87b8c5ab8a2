//! Blocks in core, on volumes in memory: no block is allocated twice, lost, or refused while it is
//! free.

use super::*;
use crate::error::Error;
use crate::fs::{Fs, OpenOptions};
use crate::store::space::Claim;
use crate::store::txn::{BlockKind, Txn};
use lanefs_device::{BlockDevice, MemDevice};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Returns a volume of blocks of 1 KiB: groups of 8 MiB.
fn volume(mib: usize) -> Arc<Fs> {
    let device = Arc::new(MemDevice::new(mib << 20));
    let options = lanefs_mkfs::Options { block_size: Some(1024), ..Default::default() };
    lanefs_mkfs::format(&*device, &options).unwrap();
    open(device)
}

/// Without a timer: freed blocks become available when a test commits.
fn open(device: Arc<MemDevice>) -> Arc<Fs> {
    Fs::open(device, OpenOptions::new().write(true).commit_interval(Duration::ZERO)).unwrap()
}

fn reserve(fs: &Fs, goal: u64, want: u32) -> Result<Reserved> {
    super::reserve(fs, goal, want, Reach::Volume)
}

fn reserve_claimed(fs: &Fs, goal: u64, want: u32, promise: &mut Claim) -> Result<Reserved> {
    super::reserve_claimed(fs, goal, want, Reach::Volume, promise)
}

/// Returns the free blocks of all groups in core.
fn free_in_core(fs: &Fs) -> u64 {
    let free = |group| {
        let mut state = fs.alloc.lock_group(group).unwrap();
        state.load(fs, group).unwrap();
        u64::from(state.free())
    };
    (0..fs.layout().group_count()).map(free).sum()
}

/// Returns whether no two runs have a block in common.
fn disjoint(runs: &[Reserved]) -> bool {
    let mut ranges: Vec<(u64, u64)> =
        runs.iter().map(|r| (r.start(), r.start() + u64::from(r.len()))).collect();
    ranges.sort_unstable();
    ranges.windows(2).all(|w| w[0].1 <= w[1].0)
}

fn blocks(runs: &[Reserved]) -> u64 {
    runs.iter().map(|r| u64::from(r.len())).sum()
}

/// Keeps every other block of all that are free.
fn fragment(fs: &Fs) -> Vec<Reserved> {
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    while let Ok(mut run) = reserve(fs, 0, 1 << 15) {
        while run.len() > 0 {
            let rest = run.split_off(1);
            if run.start() % 2 == 0 {
                kept.push(run)
            } else {
                gone.push(run)
            }
            run = rest;
        }
    }
    assert_eq!(fs.alloc.free_blocks(), 0);
    drop(gone);
    kept
}

#[test]
fn sixteen_threads_take_the_last_block_and_claims_are_kept() {
    let fs = volume(64);
    let all = fs.alloc.free_blocks();
    assert_eq!(free_in_core(&fs), all);
    let start = Barrier::new(16);
    let take = |seed| {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut runs = Vec::new();
        start.wait();
        loop {
            let goal = rng.random_range(0..fs.layout().blocks_count());
            let want = rng.random_range(1..200);
            match rng.random_range(0..4) {
                0 => match reserve(&fs, goal, want) {
                    Ok(run) => runs.push(run),
                    Err(Error::NoSpace) => return runs,
                    Err(e) => panic!("{e}"),
                },
                1 if runs.len() > 10 => {
                    runs.swap_remove(rng.random_range(0..runs.len()));
                }
                _ => match claim(&fs, want.into()) {
                    Ok(mut promise) => {
                        while promise.blocks() > 0 {
                            runs.push(reserve_claimed(&fs, goal, want, &mut promise).unwrap());
                        }
                        assert!(matches!(reserve_claimed(&fs, goal, 1, &mut promise), Err(Error::NoSpace)));
                    }
                    Err(Error::NoSpace) => {}
                    Err(e) => panic!("{e}"),
                },
            }
        }
    };
    let runs: Vec<Reserved> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..16).map(|seed| s.spawn(move || take(seed))).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    assert!(disjoint(&runs));
    // Other threads freed blocks that the first to find none could not know of.
    assert_eq!(blocks(&runs) + fs.alloc.free_blocks(), all);
    let mut rest = Vec::new();
    while let Ok(run) = reserve(&fs, 0, 1) {
        rest.push(run);
    }
    assert_eq!(blocks(&runs) + blocks(&rest), all);
    assert_eq!((fs.alloc.free_blocks(), free_in_core(&fs)), (0, 0));
    drop((runs, rest));
    assert_eq!((fs.alloc.free_blocks(), fs.alloc.free_on_disk(), free_in_core(&fs)), (all, all, all));
}

#[test]
fn a_claim_is_out_of_reach_of_others() {
    let fs = volume(16);
    let all = fs.alloc.free_blocks();
    let mut promise = claim(&fs, all - 10).unwrap();
    assert_eq!(fs.statfs().blocks_free, 10);
    assert!(matches!(claim(&fs, 11), Err(Error::NoSpace)));
    let other = reserve(&fs, 0, 100).unwrap();
    assert_eq!(other.len(), 10, "no more than what is not promised");
    assert!(matches!(reserve(&fs, 0, 1), Err(Error::NoSpace)));
    let half = promise.split(all / 2);
    assert_eq!((half.blocks(), promise.blocks()), (all / 2, all - 10 - all / 2));
    drop(half);
    assert_eq!(fs.alloc.free_blocks(), all / 2);
    let run = reserve_claimed(&fs, 0, 5, &mut promise).unwrap();
    assert_eq!(fs.alloc.free_on_disk(), all, "nothing of it is on disk");
    drop((promise, run, other));
    assert_eq!(fs.alloc.free_blocks(), all);
}

#[test]
fn blocks_reserved_for_root_are_kept_back() {
    let device = Arc::new(MemDevice::new(16 << 20));
    lanefs_mkfs::format(&*device, &lanefs_mkfs::Options { block_size: Some(1024), ..Default::default() })
        .unwrap();
    let fs = Fs::open(device, OpenOptions::new().write(true).use_reserved(false)).unwrap();
    let all = fs.alloc.free_blocks();
    assert!(fs.reserved_blocks() > 100);
    assert!(matches!(claim(&fs, all - fs.reserved_blocks() + 1), Err(Error::NoSpace)));
    let promise = claim(&fs, 1000).unwrap();
    let mut runs = Vec::new();
    while let Ok(run) = reserve(&fs, 0, 1000) {
        runs.push(run);
    }
    assert_eq!(blocks(&runs), all - fs.reserved_blocks() - 1000);
    drop(promise);
    assert_eq!(reserve(&fs, 0, 5000).unwrap().len(), 1000);
}

#[test]
fn a_fragmented_volume_gives_every_block() {
    let fs = volume(32);
    let all = fs.alloc.free_blocks();
    let kept = fragment(&fs);
    let left = all - blocks(&kept);
    assert_eq!(fs.alloc.free_blocks(), left);
    let mut promise = claim(&fs, left).unwrap();
    let mut runs = Vec::new();
    while promise.blocks() > 0 {
        runs.push(reserve_claimed(&fs, 9000, 64, &mut promise).unwrap());
    }
    assert_eq!(runs.len() as u64, left, "one by one");
    assert!(disjoint(&runs) && free_in_core(&fs) == 0);
}

#[test]
fn the_best_run_is_found_wherever_it_is() {
    let fs = volume(128);
    let mut kept = fragment(&fs);
    // 100 blocks in the middle of the last group but one.
    let first = fs.layout().group_first_block(fs.layout().group_count() - 2).unwrap() + 3001;
    kept.retain(|run| !(first..first + 100).contains(&run.start()));
    let run = reserve(&fs, 0, 90).unwrap();
    assert!(run.len() == 90 && (first - 1..first + 100).contains(&run.start()), "{run:?}");
    assert_eq!(reserve(&fs, 0, 2).unwrap().len(), 2, "the rest of it");
    let run = reserve(&fs, kept[7].start() + 1, 9).unwrap();
    assert!(run.len() > 2 && run.start() > first, "more than the one block at the goal: {run:?}");
}

/// On a volume that was just opened, a long run is worth a few bitmaps, not all of them.
#[test]
fn a_search_does_not_read_every_bitmap() {
    let device = Arc::new(MemDevice::new(512 << 20));
    let options = lanefs_mkfs::Options { block_size: Some(1024), ..Default::default() };
    lanefs_mkfs::format(&*device, &options).unwrap();
    let open = || Fs::open(Arc::clone(&device) as _, OpenOptions::new().write(true)).unwrap();
    let fs = open();
    let groups = fs.layout().group_count();
    let last = fs.layout().group_first_block(groups - 1).unwrap() + 5000;
    let mut used = BTreeSet::new();
    for block in (1..fs.layout().blocks_count()).step_by(64).filter(|b| !(last..last + 2000).contains(b)) {
        let mut run = reserve(&fs, block, 1).unwrap();
        used.insert(run.start());
        fs.transact(4, |txn| txn.take_reserved(&mut run)).unwrap();
    }
    fs.close().unwrap();
    drop(fs);
    let fs = open();
    let read = || (0..groups).filter(|g| !fs.alloc.lock_group(*g).unwrap().is_unread()).count() as u32;
    assert_eq!(read(), 0);
    let run = reserve(&fs, 0, 1500).unwrap();
    assert!((30..1500).contains(&run.len()), "the best of a few groups: {}", run.len());
    assert!((10..20).contains(&read()), "{}", read());
    // Later searches look further, until the run is found.
    let mut runs = vec![run];
    while runs.last().unwrap().len() < 1500 {
        runs.push(reserve(&fs, 0, 1500).unwrap());
    }
    assert!(read() > groups / 2 && runs.len() <= 8, "{} {}", read(), runs.len());
    // And no single block is missed for it.
    let left = fs.alloc.free_blocks();
    let mut promise = claim(&fs, left).unwrap();
    while promise.blocks() > 0 {
        runs.push(reserve_claimed(&fs, 0, 1 << 15, &mut promise).unwrap());
    }
    let clash = |r: &Reserved| used.range(r.start()..r.start() + u64::from(r.len())).next().is_some();
    assert!(disjoint(&runs) && !runs.iter().any(clash));
}

#[test]
fn a_busy_group_is_passed_by_unless_it_is_the_last() {
    let fs = volume(32);
    let in_group = |group| fs.layout().group_first_block(group).unwrap() + 4000;
    assert_eq!(fs.layout().group_of_block(reserve(&fs, in_group(1), 1).unwrap().start()).unwrap().0, 1);
    let locked = Barrier::new(2);
    std::thread::scope(|s| {
        s.spawn(|| {
            let _one = fs.alloc.lock_group(1).unwrap();
            locked.wait();
            locked.wait();
        });
        locked.wait();
        let run = reserve::take_free(&fs, reserve::Goal::Group(1), 8, Reach::Volume).unwrap();
        locked.wait();
        assert_ne!(fs.layout().group_of_block(run.start()).unwrap().0, 1);
    });
    // All the others are full.
    let mut runs = Vec::new();
    while let Ok(run) = reserve(&fs, in_group(2), 1 << 15) {
        runs.push(run);
    }
    runs.retain(|run| fs.layout().group_of_block(run.start()).unwrap().0 != 1);
    std::thread::scope(|s| {
        s.spawn(|| {
            let _one = fs.alloc.lock_group(1).unwrap();
            locked.wait();
            std::thread::sleep(Duration::from_millis(50));
        });
        locked.wait();
        let run = reserve::take_free(&fs, reserve::Goal::Group(0), 8, Reach::Volume).unwrap();
        assert_eq!(fs.layout().group_of_block(run.start()).unwrap().0, 1);
    });
}

#[test]
fn threads_begin_in_groups_of_their_own() {
    let fs = volume(128);
    let groups: Vec<u32> = (0..4)
        .map(|_| {
            std::thread::scope(|s| {
                s.spawn(|| match reserve::Goal::stream(&fs, 3) {
                    reserve::Goal::Group(group) => group,
                    goal => panic!("{goal:?}"),
                })
                .join()
                .unwrap()
            })
        })
        .collect();
    assert_eq!(groups, [3, 4, 5, 6]);
}

#[test]
fn freed_blocks_come_back_with_the_commit() {
    let fs = volume(16);
    assert!(!await_frees(&fs).unwrap());
    let all = fs.alloc.free_blocks();
    let (start, len) = fs.transact(20, |txn| txn.alloc_run(3000, 500, Reach::Volume)).unwrap();
    fs.journal.sync().unwrap();
    fs.transact(20, |txn| txn.free(start, len, BlockKind::Data)).unwrap();
    assert_eq!(fs.alloc.free_blocks(), all - 500);
    assert!(matches!(claim(&fs, all), Err(Error::NoSpace)));
    assert!(await_frees(&fs).unwrap());
    drop(claim(&fs, all).unwrap());
    assert!(!await_frees(&fs).unwrap());
}

/// Blocks that another thread gives back while an operation runs come too late for it, and leave
/// nothing to wait for.
#[test]
fn what_comes_back_meanwhile_is_tried_again() {
    let fs = volume(16);
    let mut given_back = Some(claim(&fs, 500).unwrap());
    fs.with_room(|| given_back.take().map_or(Ok(()), |_| Err(Error::NoSpace))).unwrap();

    let (start, len) = fs.transact(20, |txn| txn.alloc_run(3000, 500, Reach::Volume)).unwrap();
    fs.transact(20, |txn| txn.free(start, len, BlockKind::Data)).unwrap();
    let mut freed = Some(());
    let commit = |()| fs.journal.sync().map_err(Error::from).and(Err(Error::NoSpace));
    fs.with_room(|| freed.take().map_or(Ok(()), commit)).unwrap();
}

/// The counts of hostile descriptors are wrong: the blocks do not exist.
#[test]
fn a_volume_that_lies_about_its_free_blocks() {
    let fs = volume(16);
    let all = fs.alloc.free_blocks();
    fs.alloc.set_free_blocks(all + 1000);
    let mut promise = claim(&fs, all + 900).unwrap();
    let mut runs = Vec::new();
    let e = loop {
        match reserve_claimed(&fs, 0, 1 << 15, &mut promise) {
            Ok(run) => runs.push(run),
            Err(e) => break e,
        }
    };
    assert!(matches!(e, Error::NoSpace) && blocks(&runs) == all);
}

/// A map without extents has numbers of 32 bits. The bound is lowered here, to the start of the
/// fourth of eight groups.
#[test]
fn low_blocks_are_those_below_the_bound() {
    let fs = volume(64);
    let end = fs.layout().group_first_block(3).unwrap();
    fs.alloc.set_low_blocks(end + 100);
    let goal = fs.layout().group_first_block(6).unwrap() + 4000;
    let mut promise = claim(&fs, 100).unwrap();
    let mut runs = vec![super::reserve_claimed(&fs, goal, 100, Reach::Low, &mut promise).unwrap()];
    let (file, hole, reach) = (FileAlloc::new(), 0..u32::MAX, Reach::Low);
    let spot = Spot { ino: 12, lblk: 0, want: 8, hole, goal: Some(goal), size: 2000, reach };
    runs.push(reserve_at(&fs, &file, &spot, None).unwrap());
    assert!(file.blocks() > 0);
    while let Ok(run) = super::reserve(&fs, goal, 1 << 15, Reach::Low) {
        runs.push(run);
    }
    assert!(runs.iter().all(|run| run.start() + u64::from(run.len()) <= end));
    let left = |group| {
        let mut state = fs.alloc.lock_group(group).unwrap();
        state.load(&fs, group).unwrap();
        u64::from(state.free())
    };
    assert_eq!((0..3).map(left).sum::<u64>(), 0);
    // Those above are promised, but not to be had; the promise stays.
    let mut promise = claim(&fs, 10).unwrap();
    let none = super::reserve_claimed(&fs, goal, 10, Reach::Low, &mut promise);
    assert!(matches!(none, Err(Error::NoSpace)), "{none:?}");
    assert_eq!(promise.blocks(), 10);
    assert!(reserve(&fs, 0, 10).unwrap().start() >= end);
}

/// Returns the 16 KiB pieces of a file, in a random order.
fn scattered(rng: &mut StdRng, file: u32) -> Vec<u32> {
    let mut places: Vec<u32> = (0..file / 16).map(|i| i * 16).collect();
    places.shuffle(rng);
    places
}

/// Holes of a file that is filled piece by piece.
struct Holes(Vec<bool>);

impl Holes {
    fn spot(&self, ino: u32, lblk: u32, want: u32) -> Spot {
        let at = lblk as usize;
        let start = self.0[..at].iter().rposition(|m| *m).map_or(0, |i| i + 1) as u32;
        let end = self.0[at..].iter().position(|m| *m).map_or(self.0.len(), |i| at + i) as u32;
        let size = self.0.len() as u32;
        Spot { ino, lblk, want, hole: start..end, goal: None, size, reach: Reach::Volume }
    }

    fn fill(&mut self, range: Range<u32>) {
        self.0[range.start as usize..range.end as usize].fill(true);
    }
}

/// Fills a file of `size` blocks in random order. Returns its runs by logical block.
fn fill(fs: &Fs, file: &FileAlloc, size: u32, rng: &mut StdRng, claimed: bool) -> Vec<(u32, Reserved)> {
    let mut holes = Holes(vec![false; size as usize]);
    let mut runs = Vec::new();
    for place in scattered(rng, size) {
        let mut promise = claimed.then(|| claim(fs, 16).unwrap());
        let mut at = place;
        while at < place + 16 {
            let run = reserve_at(fs, file, &holes.spot(12, at, place + 16 - at), promise.as_mut()).unwrap();
            holes.fill(at..at + run.len());
            let len = run.len();
            runs.push((at, run));
            at += len;
        }
        assert_eq!(promise.map_or(0, |p| p.blocks()), 0, "each block spends one of the claim");
    }
    runs.sort_by_key(|r| r.0);
    runs
}

/// Returns how many extents the runs make.
fn extents(runs: &[(u32, Reserved)]) -> usize {
    let follows = |w: &&[(u32, Reserved)]| w[0].1.start() + u64::from(w[0].1.len()) == w[1].1.start();
    runs.len() - runs.windows(2).filter(follows).count()
}

#[test]
fn holes_filled_out_of_order_lie_in_order() {
    let fs = volume(128);
    let all = fs.alloc.free_blocks();
    for (claimed, seed) in [(false, 1), (true, 2)] {
        let file = FileAlloc::new();
        let runs = fill(&fs, &file, 4096, &mut StdRng::seed_from_u64(seed), claimed);
        assert_eq!(runs.len(), 256);
        assert_eq!(extents(&runs), 1);
        assert_eq!((file.blocks(), fs.alloc.free_blocks()), (0, all - 4096), "all of it is used");
        drop(runs);
        assert_eq!(fs.alloc.free_blocks(), all);
    }
}

#[test]
fn many_threads_fill_a_file_each() {
    let fs = volume(256);
    let all = fs.alloc.free_blocks();
    let start = Barrier::new(32);
    let one = |seed| {
        start.wait();
        fill(&fs, &FileAlloc::new(), 4096, &mut StdRng::seed_from_u64(seed), seed % 2 == 0)
    };
    let files: Vec<Vec<(u32, Reserved)>> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..32).map(|seed| s.spawn(move || one(seed))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let count: Vec<usize> = files.iter().map(|f| extents(f)).collect();
    assert!(count.iter().sum::<usize>() <= 3 * 32, "{count:?}");
    let runs: Vec<Reserved> = files.into_iter().flatten().map(|(_, run)| run).collect();
    assert!(disjoint(&runs) && blocks(&runs) == 32 * 4096);
    assert_eq!(free_in_core(&fs), all - blocks(&runs));
}

#[test]
fn a_window_goes_back() {
    let fs = volume(128);
    let all = fs.alloc.free_blocks();
    let holes = Holes(vec![false; 4096]);
    let files: Vec<FileAlloc> = (0..8).map(|_| FileAlloc::new()).collect();
    let take = |file: &FileAlloc, lblk| reserve_at(&fs, file, &holes.spot(12, lblk, 4), None).unwrap();
    let runs: Vec<Reserved> = files.iter().map(|file| take(file, 1000)).collect();
    assert!(files.iter().all(|f| f.blocks() == 4092));
    assert_eq!(fs.alloc.free_blocks(), all - 8 * 4096);
    assert_eq!(fs.statfs().blocks_free, all - 8 * 4, "what is preallocated is still free to others");
    files[0].discard();
    assert_eq!((files[0].blocks(), fs.alloc.free_blocks()), (0, all - 7 * 4096 - 4));
    // An allocation that needs them all gets them.
    let promise = claim(&fs, all - 8 * 4).unwrap();
    assert!(files.iter().all(|f| f.blocks() == 0));
    assert_eq!((fs.alloc.free_blocks(), fs.statfs().blocks_free), (0, 0));
    drop(promise);
    // And a file has a window again as soon as there is space.
    assert_eq!(take(&files[3], 1000).len(), 4);
    assert_eq!(files[3].blocks(), 4092);
    drop((files, runs));
    assert_eq!((fs.alloc.free_blocks(), fs.statfs().blocks_free, free_in_core(&fs)), (all, all, all));
}

#[test]
fn little_space_is_not_preallocated() {
    let fs = volume(16);
    let promise = claim(&fs, fs.alloc.free_blocks() - 4096).unwrap();
    let (file, holes) = (FileAlloc::new(), Holes(vec![false; 4096]));
    let run = reserve_at(&fs, &file, &holes.spot(12, 64, 16), None).unwrap();
    assert_eq!((run.len(), file.blocks()), (16, 0));
    drop(promise);
}

#[test]
fn files_that_grow_keep_apart_and_small_ones_lie_together() {
    let fs = volume(128);
    // Two files grow by a block in turns.
    let files = [FileAlloc::new(), FileAlloc::new()];
    let mut runs = [Vec::new(), Vec::new()];
    for lblk in 0..2000 {
        for (file, runs) in files.iter().zip(&mut runs) {
            let goal = runs.last().map(|(_, r): &(u32, Reserved)| r.start() + 1);
            let (hole, size, reach) = (lblk..u32::MAX, lblk + 1, Reach::Volume);
            let spot = Spot { ino: 12, lblk, want: 1, hole, goal, size, reach };
            runs.push((lblk, reserve_at(&fs, file, &spot, None).unwrap()));
        }
    }
    for runs in &runs {
        // Of its first 64 KiB each block may be one.
        assert!(extents(&runs[64..]) <= 8, "{}", extents(&runs[64..]));
    }
    assert!(files.iter().all(|f| f.blocks() > 0));
    let small: Vec<Reserved> = (0..50)
        .map(|_| {
            let (hole, reach) = (0..u32::MAX, Reach::Volume);
            let spot = Spot { ino: 12, lblk: 0, want: 7, hole, goal: None, size: 7, reach };
            reserve_at(&fs, &FileAlloc::new(), &spot, None).unwrap()
        })
        .collect();
    let apart = small.windows(2).filter(|w| w[0].start() + 7 != w[1].start()).count();
    assert!(apart <= 1, "{small:?}");
}

#[test]
fn a_piece_in_the_way_and_the_ends_of_the_file() {
    let fs = volume(128);
    let file = FileAlloc::new();
    let spot = |lblk, want, hole: Range<u32>, size| {
        let reach = Reach::Volume;
        Spot { ino: 12, lblk, want, hole, goal: None, size, reach }
    };
    // A window in the middle, then one before it that may not reach into it.
    let spot_mid = Spot { goal: Some(13_000), ..spot(5000, 8, 4900..5100, 6000) };
    let mid = reserve_at(&fs, &file, &spot_mid, None).unwrap();
    assert_eq!((mid.start(), mid.len(), file.blocks()), (13_100, 8, 192));
    let low = reserve_at(&fs, &file, &spot(4890, 100, 4096..5100, 6000), None).unwrap();
    assert_eq!(low.len(), 10, "up to the first window");
    assert_eq!(low.start() + 10, mid.start() - 100, "as they lie in the file");
    let next = reserve_at(&fs, &file, &spot(4900, 300, 4900..5000, 6000), None).unwrap();
    assert_eq!((next.len(), next.start()), (100, mid.start() - 100));
    file.discard();
    let last = u32::MAX - 1;
    let run = reserve_at(&fs, &file, &spot(last, 1, 0..u32::MAX, u32::MAX), None).unwrap();
    assert_eq!(run.len(), 1);
    let run = reserve_at(&fs, &file, &spot(5, u32::MAX, 0..u32::MAX, u32::MAX), None).unwrap();
    assert!(run.len() > 1000);
}

/// Returns how many blocks of the device begin with bytes of this value.
fn blocks_of(device: &MemDevice, byte: u8) -> usize {
    device.to_bytes().chunks(1024).filter(|block| block[..64] == [byte; 64]).count()
}

#[test]
fn trim_discards_what_is_free_and_nothing_else() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let options = lanefs_mkfs::Options { block_size: Some(1024), ..Default::default() };
    lanefs_mkfs::format(&*device, &options).unwrap();
    // Without a timer: the test decides when commits happen.
    let open = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    let fs = Fs::open(Arc::clone(&device) as _, open).unwrap();
    let volume = crate::Volume::new(Arc::clone(&fs));
    volume.write("/kept", &[7; 3_000_000]).unwrap();
    volume.write("/gone", &[9; 3_000_000]).unwrap();
    volume.sync().unwrap();
    let count = |byte| blocks_of(&device, byte);
    assert_eq!((count(7), count(9)), (2930, 2930));
    let free = volume.statfs().blocks_free * 1024;
    assert_eq!(volume.trim(0..u64::MAX, 0).unwrap(), free);
    volume.remove_file("/gone").unwrap();
    assert_eq!(volume.trim(0..u64::MAX, 0).unwrap(), free, "not before the commit");
    assert_eq!(count(9), 2930);
    volume.sync().unwrap();
    // In core they are taken.
    let held = reserve(&fs, 1, 1 << 15).unwrap();
    let free = volume.statfs().blocks_free * 1024;
    let half = 32 << 20;
    let low = volume.trim(0..half, 0).unwrap();
    assert!(low > 0 && low < free);
    assert_eq!(low + volume.trim(half..64 << 20, 0).unwrap(), free);
    assert_eq!(volume.trim(0..u64::MAX, 1 << 40).unwrap(), 0, "no run is as long");
    drop(held);
    volume.trim(0..u64::MAX, 5000).unwrap();
    assert_eq!((count(7), count(9)), (2930, 0));
    assert_eq!(volume.read("/kept").unwrap(), vec![7; 3_000_000]);
    volume.close().unwrap();
    drop(fs);
    let volume = crate::Volume::open_device(Arc::clone(&device) as _).unwrap();
    assert_eq!(volume.read("/kept").unwrap(), vec![7; 3_000_000]);
    let all = volume.statfs().blocks_free * 1024;
    assert_eq!(volume.trim(0..u64::MAX, 0).unwrap(), all, "of bitmaps that were never read");
    volume.close().unwrap();
    let read_only = OpenOptions::new().open_device(device).unwrap();
    assert!(matches!(read_only.trim(0..u64::MAX, 0), Err(Error::ReadOnly)));
}

#[test]
fn with_discard_a_commit_discards_what_it_freed() {
    for discard in [false, true] {
        let device = Arc::new(MemDevice::new(32 << 20));
        let options = lanefs_mkfs::Options { block_size: Some(1024), ..Default::default() };
        lanefs_mkfs::format(&*device, &options).unwrap();
        let open = OpenOptions::new().write(true).commit_interval(Duration::ZERO).discard(discard);
        let volume = open.open_device(Arc::clone(&device) as _).unwrap();
        volume.write("/kept", &[7; 1_000_000]).unwrap();
        volume.write("/gone", &[9; 1_000_000]).unwrap();
        volume.sync().unwrap();
        volume.remove_file("/gone").unwrap();
        let count = |byte| blocks_of(&device, byte);
        assert_eq!((count(7), count(9)), (977, 977), "a crash now brings it back");
        volume.sync().unwrap();
        assert_eq!((count(7), count(9)), (977, if discard { 0 } else { 977 }));
        volume.close().unwrap();
    }
}

/// Makes a volume whose group 2 has a damaged bitmap, of blocks or of inodes. Returns how many
/// blocks or inodes were free there.
fn damaged(blocks: bool) -> (Arc<MemDevice>, u32) {
    let device = Arc::new(MemDevice::new(32 << 20));
    let options = lanefs_mkfs::Options { block_size: Some(1024), ..Default::default() };
    lanefs_mkfs::format(&*device, &options).unwrap();
    let fs = open(Arc::clone(&device));
    // So that none of its bitmaps is one that was never written.
    let in_group = fs.layout().group_first_block(2).unwrap() + 5000;
    fs.transact(20, |txn| txn.alloc_run(in_group, 1, Reach::Volume)).unwrap();
    let alloc = |txn: &mut Txn<'_>| Ok(alloc_inode(txn, InodeHint::TopDir { spread: 2 })?.0);
    while fs.layout().inode_slot(fs.transact(20, alloc).unwrap()).unwrap().group != 2 {}
    fs.close().unwrap();
    let desc = read_desc(&fs, 2).unwrap();
    let at = 1024 * if blocks { desc.block_bitmap } else { desc.inode_bitmap } + 40;
    let mut byte = [0];
    device.read_at(&mut byte, at).unwrap();
    device.write_at(&[byte[0] ^ 16], at).unwrap();
    (device, if blocks { desc.free_blocks_count } else { desc.free_inodes_count })
}

#[test]
fn a_group_with_a_damaged_block_bitmap_is_passed_by() {
    let (device, lost) = damaged(true);
    let fs = open(Arc::clone(&device));
    let all = fs.alloc.free_blocks();
    let in_group = fs.layout().group_first_block(2).unwrap() + 100;
    let mut runs = vec![reserve(&fs, in_group, 8).unwrap()];
    assert_eq!(fs.alloc.free_blocks(), all - u64::from(lost) - 8);
    while let Ok(run) = reserve(&fs, in_group, 1 << 15) {
        runs.push(run);
    }
    assert_eq!((blocks(&runs), fs.alloc.free_blocks()), (all - u64::from(lost), 0));
    assert!(
        !runs.iter().any(|run| fs.layout().group_of_block(run.start()).unwrap().0 == 2) && disjoint(&runs)
    );
    assert!(matches!(claim(&fs, 1), Err(Error::NoSpace)));
    // Blocks freed there are not allocated again, and the operation that frees them goes on.
    fs.transact(20, |txn| txn.free(in_group + 4900, 1, BlockKind::Data)).unwrap();
    fs.journal.sync().unwrap();
    assert_eq!(fs.alloc.free_blocks(), 0);
    drop(runs);
    assert_eq!(fs.alloc.free_blocks(), all - u64::from(lost));
    fs.close().unwrap();
    // s_state says that there were errors.
    let mut state = [0; 2];
    device.read_at(&mut state, 1024 + 0x3A).unwrap();
    assert_eq!(u16::from_le_bytes(state) & 2, 2);
}

/// A bitmap that was read wrong once costs space only until the volume is opened again.
#[test]
fn space_of_a_damaged_bitmap_comes_back_when_it_is_right_again() {
    let (device, lost) = damaged(true);
    let fs = open(Arc::clone(&device));
    let all = fs.alloc.free_on_disk();
    drop(reserve(&fs, fs.layout().group_first_block(2).unwrap() + 100, 8).unwrap());
    assert_eq!(fs.alloc.free_on_disk(), all - u64::from(lost));
    let at = 1024 * read_desc(&fs, 2).unwrap().block_bitmap + 40;
    fs.close().unwrap();
    let mut byte = [0];
    device.read_at(&mut byte, at).unwrap();
    device.write_at(&[byte[0] ^ 16], at).unwrap();
    let fs = open(device);
    assert_eq!(fs.alloc.free_on_disk(), all);
}

#[test]
fn a_group_with_a_damaged_inode_bitmap_is_passed_by() {
    let (device, lost) = damaged(false);
    let fs = open(device);
    let (all, mut taken) = (fs.alloc.free_inodes(), 0);
    let e = loop {
        let hint =
            if taken % 2 == 0 { InodeHint::TopDir { spread: 2 } } else { InodeHint::File { parent: 2 } };
        match fs.transact(20, |txn| Ok(alloc_inode(txn, hint)?.0)) {
            Ok(ino) => assert_ne!(fs.layout().inode_slot(ino).unwrap().group, 2),
            Err(e) => break e,
        }
        taken += 1;
    };
    assert!(matches!(e, Error::NoInodes), "{e}");
    assert_eq!(taken, all - u64::from(lost));
}

/// A directory with more files than many groups have inodes: a search reads no full group twice.
#[test]
fn a_group_without_inodes_is_passed_by_until_one_is_free() {
    let fs = volume(32);
    let take = || fs.transact(20, |txn| Ok(alloc_inode(txn, InodeHint::File { parent: 2 })?.0)).unwrap();
    let group = |ino| fs.layout().inode_slot(ino).unwrap().group;
    let first = take();
    while group(take()) < 2 {}
    assert_eq!(fs.alloc.inodes.next(0, 0, u32::MAX), Some(2));
    fs.transact(20, |txn| free_inode(txn, first, false)).unwrap();
    assert_eq!((fs.alloc.inodes.next(0, 0, u32::MAX), take()), (Some(0), first));
    assert_eq!(group(take()), 2);
    assert_eq!(fs.alloc.inodes.next(0, 0, u32::MAX), Some(2));
}

/// On a volume that was full when it was opened, a search reads no descriptor of a full group, and
/// finds what is freed.
#[test]
fn groups_that_were_full_at_the_open_are_passed_by_until_a_block_is_free() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let options = lanefs_mkfs::Options { block_size: Some(1024), ..Default::default() };
    lanefs_mkfs::format(&*device, &options).unwrap();
    let fs = open(Arc::clone(&device));
    let mut taken = Vec::new();
    while let Ok(run) = fs.transact(20, |txn| txn.alloc_run(0, 1 << 12, Reach::Volume)) {
        taken.push(run);
    }
    fs.close().unwrap();
    let fs = open(device);
    assert_eq!((fs.alloc.orders.next(0, 0, u32::MAX), fs.alloc.free_blocks()), (None, 0));
    let (start, _) = taken[taken.len() / 2];
    fs.transact(20, |txn| txn.free(start, 3, BlockKind::Data)).unwrap();
    fs.journal.sync().unwrap();
    let run = reserve(&fs, 0, 8).unwrap();
    assert_eq!((run.start(), run.len()), (start, 3));
}
