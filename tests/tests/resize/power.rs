//! Power loss at every write of a resize. A run judges a slice of the states, chosen by the day;
//! with `LANEFS_LONG=24` all of them.

use super::{make, make_far, open};
use crate::moves::{fill_groups, make_spread, make_with_far_log};
use lanefs::{Resize, Volume};
use lanefs_check::check;
use lanefs_device::BlockDevice;
use lanefs_sim::{CrashState, DumpFile, Image, Log, Loss, RecordingDevice, Seed, Shape, seed_from_env};
use lanefs_tests::{copy_file, debugfs, e2fsck, memory_dir, mke2fs, slice, volume_digest};
use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;

/// A volume of `before` MiB on a medium of `after` MiB, with what it holds.
fn image(options: &[&str], before: u64, after: u64) -> (Image, u64) {
    let dir = memory_dir();
    let path = dir.path().join("v");
    let digest = make(&path, before << 20, options);
    File::options().write(true).open(&path).unwrap().set_len(after << 20).unwrap();
    (Image::from_bytes(std::fs::read(&path).unwrap()), digest)
}

/// Recovers a state: it must have one of the sizes, and all its files.
fn judge_state(state: &CrashState, sizes: &BTreeSet<u64>, digest: u64, dump: &mut DumpFile) -> u64 {
    let device = Arc::new(state.device());
    let volume = Volume::open_device(device.clone()).unwrap_or_else(|e| panic!("{state}: {e}"));
    assert_eq!(volume_digest(&volume), digest, "{state}");
    volume.close().unwrap_or_else(|e| panic!("{state}: close: {e}"));
    let report = check(device.clone(), &lanefs_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{state}: {:?}", report.findings);
    let size = open(device.clone()).size();
    assert!(sizes.contains(&size), "{state}: {size} bytes");
    if state.fingerprint.is_multiple_of(8) {
        dump.set(&device.image()).unwrap();
        let (code, said) = e2fsck(dump.path(), &["-fn"]);
        assert!(code == 0, "{state}: e2fsck -fn after recovery: {code}\n{said}");
    }
    size
}

/// Whether e2fsck gets the state before lanefs has recovered it. It gives no promise for a block
/// that is torn.
fn judges_raw(state: &CrashState) -> bool {
    match state.shape {
        Shape::Ordered => true,
        Shape::Random(_) | Shape::Small(Loss::Torn { .. }) => false,
        Shape::Small(_) => state.fingerprint.is_multiple_of(16),
    }
}

/// Has e2fsck recover a state: it may have to correct counts, and no file has changed.
fn judge_raw(state: &CrashState, digest: u64, dump: &mut DumpFile) {
    dump.set(&state.device().image()).unwrap();
    // The dump knows of no change but its own.
    let path = dump.path().with_extension("raw");
    copy_file(dump.path(), &path);
    let (code, said) = e2fsck(&path, &["-fy"]);
    assert!(code < 2, "{state}: e2fsck -fy: {code}\n{said}");
    let (code, said) = e2fsck(&path, &["-fn"]);
    assert!(code == 0, "{state}: e2fsck -fn behind e2fsck -fy: {code}\n{said}");
    let volume = Volume::open(&path).unwrap();
    assert_eq!(volume_digest(&volume), digest, "{state}: behind e2fsck -fy");
    volume.close().unwrap();
}

/// The states of a campaign that are judged.
#[derive(Clone, Copy)]
struct Depth {
    /// States of an epoch beside its prefixes, and random ones.
    small: usize,
    random: usize,
    /// One in so many is judged.
    every: usize,
    /// The recovery of each ordered state is cut too, not only that of one state in fifty: that of
    /// a resize writes more than the log's blocks.
    recoveries: bool,
}

const GROWTH: Depth = Depth { small: 60, random: 8, every: 4, recoveries: true };

/// Files move in many epochs.
const SHRINK: Depth = Depth { small: 10, random: 1, every: 24, recoveries: false };

/// Cuts the power at every write of a growth.
fn campaign(options: &[&str], before: u64, after: u64, atomic_write: usize) {
    campaign_of(image(options, before, after), atomic_write, GROWTH, &|resize: &mut Resize| {
        resize.grow(after << 20, Some(before << 20)).unwrap();
    });
}

/// Cuts the power at every write of `change`, and in some of the recoveries.
fn campaign_of(
    (base, digest): (Image, u64),
    atomic_write: usize,
    depth: Depth,
    change: &dyn Fn(&mut Resize),
) {
    let seed: Seed = seed_from_env("LANEFS_SEED");
    let dir = memory_dir();
    let mut dump = DumpFile::create(dir.path().join("state.img"), &base).unwrap();
    let (log, sizes) = recorded(base, atomic_write, |device| {
        let mut resize = open(device);
        let mut sizes = BTreeSet::from([resize.size()]);
        change(&mut resize);
        sizes.insert(resize.size());
        sizes
    });
    assert_eq!(sizes.len(), 2);
    let mut seen = BTreeSet::new();
    let mut states = 0;
    let small = log.small_states(seed.value(), depth.small);
    for state in slice(small.chain(log.crash_states(seed.value(), depth.random)), depth.every) {
        if judges_raw(&state) {
            judge_raw(&state, digest, &mut dump);
        }
        seen.insert(judge_state(&state, &sizes, digest, &mut dump));
        states += 1;
        if depth.recoveries && state.shape == Shape::Ordered || states % 50 == 0 {
            let (log, ()) = recorded(state.device().image(), atomic_write, |device| {
                Volume::open_device(device).unwrap().close().unwrap();
            });
            for again in log.small_states(seed.value(), 5) {
                judge_state(&again, &sizes, digest, &mut dump);
            }
        }
    }
    assert_eq!(seen, sizes, "no cut came before, or none behind the growth");
    println!("{sizes:?}: {states} states");
}

fn recorded<T>(base: Image, atomic_write: usize, f: impl FnOnce(Arc<dyn BlockDevice>) -> T) -> (Log, T) {
    let device = Arc::new(RecordingDevice::new(base).with_atomic_write(atomic_write));
    let told = f(device.clone());
    (device.log(), told)
}

#[test]
fn power_loss_into_the_reserve() {
    campaign(&["-t", "ext4", "-b", "1024", "-J", "size=1"], 6, 160, 512);
}

#[test]
fn power_loss_on_the_way_to_meta_bg() {
    campaign(&["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^resize_inode", "-g", "1024"], 6, 40, 512);
}

#[test]
fn power_loss_with_sparse_super2() {
    campaign(&["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "sparse_super2"], 18, 60, 512);
}

#[test]
fn power_loss_of_one_group() {
    campaign(&["-t", "ext4", "-b", "4096", "-J", "size=4"], 12, 40, 512);
}

/// Cuts the power while a volume shrinks to its minimum.
fn shrinking(options: &[&str]) {
    let dir = memory_dir();
    let path = dir.path().join("v");
    let digest = make_far(&path, 32, &[options, &["-b", "1024", "-J", "size=1", "-N", "1000"]].concat());
    let base = Image::from_bytes(std::fs::read(&path).unwrap());
    campaign_of((base, digest), 512, SHRINK, &|resize| {
        let least = resize.minimum().unwrap();
        resize.shrink(least).unwrap();
    });
}

#[test]
fn power_loss_while_extents_move() {
    shrinking(&["-t", "ext4"]);
}

#[test]
fn power_loss_while_indirect_blocks_move() {
    shrinking(&["-t", "ext3"]);
}

#[test]
fn power_loss_on_memory() {
    campaign(&["-t", "ext4", "-b", "1024", "-J", "size=1"], 12, 60, 8);
}

/// Cuts the power while the log, which mke2fs puts into the middle, moves before a new end.
fn moving_the_log(options: &[&str], atomic_write: usize) {
    let dir = memory_dir();
    let path = dir.path().join("v");
    let options = [options, &["-b", "1024", "-J", "size=1"]].concat();
    let digest = match options.contains(&"ext3") {
        true => make_with_far_log(&path, 24, &options),
        false => make(&path, 24 << 20, &options),
    };
    let before = debugfs(&path, "bmap <8> 0").trim().parse::<u64>().unwrap() << 10;
    let base = Image::from_bytes(std::fs::read(&path).unwrap());
    campaign_of((base, digest), atomic_write, GROWTH, &|resize| {
        let least = resize.minimum().unwrap();
        assert!(least < before, "{least} bytes, the log is at {before}");
        resize.shrink(least).unwrap();
    });
}

#[test]
fn power_loss_while_the_log_moves() {
    moving_the_log(&["-t", "ext4"], 512);
}

#[test]
fn power_loss_while_a_log_of_indirect_blocks_moves() {
    moving_the_log(&["-t", "ext3"], 512);
}

/// Memory tears the journal's inode too: the superblock's copy of its map leads to the new log.
#[test]
fn power_loss_on_memory_while_the_log_moves() {
    moving_the_log(&["-t", "ext4"], 8);
}

#[test]
fn power_loss_while_inodes_move() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    mke2fs(&path, 16 << 20, &["-t", "ext4", "-b", "1024", "-g", "1024", "-N", "1024", "-J", "size=1"]);
    let volume = Volume::open(&path).unwrap();
    fill_groups(&volume, 600, 24);
    let digest = volume_digest(&volume);
    volume.close().unwrap();
    let base = Image::from_bytes(std::fs::read(&path).unwrap());
    campaign_of((base, digest), 512, SHRINK, &|resize| {
        let least = resize.minimum().unwrap();
        resize.shrink(least).unwrap();
    });
}

#[test]
fn power_loss_while_extents_are_split() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    let digest = make_spread(&path, &["-t", "ext4", "-J", "size=1"]);
    let base = Image::from_bytes(std::fs::read(&path).unwrap());
    campaign_of((base, digest), 512, SHRINK, &|resize| {
        let least = resize.minimum().unwrap();
        resize.shrink(least).unwrap();
    });
}
