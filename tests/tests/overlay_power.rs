//! Power loss over an overlay (`overlay:base=..,top=..`), of two simulated media.
//!
//! Writes go to the top alone. After a cut the volume is recovered on the base and what the top
//! has kept, and holds what was promised. A cut in a commit leaves an overlay that reads as before,
//! and a commit that is repeated makes the base the same. e2fsck judges some flattened copies.
//! `failures` has tops whose calls fail.

mod failures;

use super::power_loss::{ARGS, burst, check_promises};
use lanefs_device::{BlockDevice, CowDevice, Result, WriteOp, forward_to};
use lanefs_sim::{CrashState, DumpFile, Image, Log, OverlayDevice, RecordingDevice, Shape, seed_from_env};
use lanefs_tests::{ClosedVolumes, e2fsck_clean, long, memory_dir, patterned};
use std::sync::Arc;

const BLOCK: usize = 4096;

fn top_image(base: &Image) -> Image {
    Image::zeroed(CowDevice::top_size(base.size()).unwrap())
}

/// Returns the image of what a device reads as, over `base`.
fn flat(device: &dyn BlockDevice, base: &Image) -> Image {
    let mut flat = base.clone();
    let (mut seen, mut below) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for start in (0..device.size()).step_by(seen.len()) {
        let n = (device.size() - start).min(seen.len() as u64) as usize;
        device.read_at(&mut seen[..n], start).unwrap();
        base.read(start, &mut below[..n]);
        let blocks = seen[..n].chunks(BLOCK).zip(below[..n].chunks(BLOCK));
        for (i, (own, _)) in blocks.enumerate().filter(|(_, (own, below))| own != below) {
            flat.write(start + (i * BLOCK) as u64, own);
        }
    }
    flat
}

#[test]
fn what_was_synced_in_an_overlay_is_there_after_a_cut() {
    let seed = seed_from_env("LANEFS_SEED");
    let factor = long();
    let fours: &[&str] = &["-t", "ext4", "-b", "4096", "-J", "size=4"];
    for (args, atomic_write) in [(ARGS, 512), (fours, 512), (ARGS, 8)] {
        let base = patterned(12 << 20, args);
        let below = || Arc::new(OverlayDevice::new(base.clone()));
        let over = |top| Arc::new(CowDevice::new(below(), top, "base").unwrap());
        let top = RecordingDevice::new(top_image(&base)).with_atomic_write(atomic_write);
        let top = Arc::new(top);
        let done = burst(over(top.clone()), &top, &mut seed.rng(3), 60 * factor, 6 * factor);
        let (mut states, mut closed) = (0, ClosedVolumes::like(&base));
        for state in done.log.crash_states(seed.value(), 12) {
            let device = over(Arc::new(state.device()));
            check_promises(&state, &done, device.clone());
            let judged = closed.judge(device.clone(), || flat(&*device, &base));
            judged.unwrap_or_else(|said| panic!("{state}: {said}"));
            states += 1;
        }
        assert!(states > 60, "only {states} states: the burst did not flush");
        println!("{args:?}, {atomic_write}: {states} states");
    }
}

/// The top of an overlay, whose every call is noted in the log of the base.
#[derive(Debug)]
struct NotedTop {
    top: Arc<RecordingDevice>,
    base: Arc<RecordingDevice>,
}

impl NotedTop {
    fn note<T>(&self, done: T) -> T {
        self.base.mark(format!("top {}", self.top.sequence()));
        done
    }
}

impl BlockDevice for NotedTop {
    forward_to!(top: size read_only read_at read_batch);

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.note(self.top.write_at(data, offset))
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        self.note(self.top.write_batch(ops))
    }

    fn flush(&self) -> Result<()> {
        self.note(self.top.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.note(self.top.discard(offset, len))
    }
}

/// Returns what the top may hold at the moment at which the base was cut.
fn tops(state: &CrashState, base: &Log, top: &Log, seed: u64) -> Vec<CrashState> {
    let mut noted =
        state.marks(base).filter_map(|(_, mark)| mark.strip_prefix("top ")?.parse::<usize>().ok());
    let until = noted.next_back().unwrap_or(0);
    let log = Log { entries: top.entries[..until].to_vec(), ..top.clone() };
    let last = log.entries.iter().filter(|entry| matches!(entry, lanefs_sim::LogEntry::Flush)).count();
    let shapes = [Shape::Ordered, Shape::Random(0), Shape::Random(1), Shape::Random(2)];
    shapes.into_iter().filter_map(|shape| log.crash_state(seed ^ state.cut as u64, last, shape)).collect()
}

#[test]
fn a_commit_that_is_cut_loses_nothing_and_can_be_repeated() {
    let seed = seed_from_env("LANEFS_SEED");
    let dir = memory_dir();
    let first = patterned(12 << 20, ARGS);
    let base = Arc::new(RecordingDevice::new(first.clone()));
    let top = Arc::new(RecordingDevice::new(top_image(&first)));
    let over = |base, top| CowDevice::new(base, top, "base").unwrap();
    burst(Arc::new(over(base.clone(), top.clone())), &top, &mut seed.rng(4), 120, 12);
    let device = Arc::new(over(base.clone(), top.clone()));
    // The superblock, its UUID too, is among what the commit changes.
    let volume = lanefs::OpenOptions::new().write(true).open_device(device.clone()).unwrap();
    volume.write("/much", &[0x5a; 128 << 10]).unwrap();
    volume.close().unwrap();
    let dump = DumpFile::create(dir.path().join("state.img"), &flat(&*device, &first)).unwrap();
    e2fsck_clean(dump.path());
    device.write_at(&[0xab; 16], 1024 + 0x68).unwrap();
    device.flush().unwrap();
    let want = flat(&*device, &first).to_bytes();
    let own = device.own_bytes();
    drop(device);
    base.begin();
    top.begin();
    let noted = Arc::new(NotedTop { top: top.clone(), base: base.clone() });
    assert_eq!(CowDevice::commit(&*base, noted, "base", None).unwrap(), own);
    let is_whole = |image: &Image| image.to_bytes() == want;
    assert!(own > 100_000, "{own} bytes");
    assert!(is_whole(&base.image()), "a commit that was not cut");

    let (base, top) = (base.log(), top.log());
    let (mut states, mut emptied) = (0, 0);
    for state in base.crash_states(seed.value(), 40) {
        for above in tops(&state, &base, &top, seed.value()) {
            let case = format!("{state}; top: {above}");
            let (below, above) = (Arc::new(state.device()), Arc::new(above.device()));
            let device = CowDevice::new(below.clone(), above.clone(), "base");
            let device = device.unwrap_or_else(|e| panic!("{case}: {e}"));
            assert!(is_whole(&flat(&device, &first)), "{case}: the overlay has changed");
            emptied += usize::from(device.own_bytes() == 0);
            drop(device);
            CowDevice::commit(&*below, above.clone(), "base", None).unwrap();
            assert!(is_whole(&below.image()), "{case}: the base is another");
            assert_eq!(over(below, above).own_bytes(), 0, "{case}");
            states += 1;
        }
    }
    assert!(states > 100 && emptied > 5 && emptied < states / 2, "{emptied} of {states} states emptied");
    println!("{states} states, {emptied} with an empty top");
}
