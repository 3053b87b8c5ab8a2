//! Power loss at every write of a growth of an open volume, beside a thread that writes and syncs.

use super::make;
use lanefs::{OpenOptions, Volume};
use lanefs_check::check;
use lanefs_device::BlockDevice;
use lanefs_sim::{CrashState, DumpFile, Image, Log, RecordingDevice, Seed, Shape, seed_from_env};
use lanefs_tests::{Ending, copy_file, e2fsck, memory_dir, slice, volume_digest};
use std::collections::BTreeSet;
use std::fs::File;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// One state in so many is judged.
const EVERY: usize = 3;

/// Files of the writer that are held at once.
const HELD: u64 = 12;

fn content(n: u64) -> Vec<u8> {
    vec![(n % 250) as u8 + 1; (n * 3571 % 40_000) as usize]
}

/// Writes files one after the other until `ended`, each synced and then marked in the log; removes
/// older ones. Counts them.
fn write_files(volume: &Volume, device: &RecordingDevice, ended: &AtomicBool, count: &AtomicU64) {
    for n in 0.. {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        let file = volume.create_file(format!("/w/{n}")).unwrap();
        file.write_at(&content(n), 0).unwrap();
        file.sync_all().unwrap();
        device.mark(format!("file {n}"));
        if n >= HELD {
            device.mark(format!("gone {}", n - HELD));
            volume.remove_file(format!("/w/{}", n - HELD)).unwrap();
        }
        count.store(n + 1, Ordering::Relaxed);
    }
}

/// Grows an open volume of `before` MiB to `after` MiB beside the writer.
fn recorded(options: &[&str], (before, after): (u64, u64), atomic_write: usize) -> (Log, Image, u64) {
    let dir = memory_dir();
    let path = dir.path().join("v");
    make(&path, before * MIB, options);
    let volume = Volume::open(&path).unwrap();
    volume.create_dir("/w").unwrap();
    volume.close().unwrap();
    File::options().write(true).open(&path).unwrap().set_len(after * MIB).unwrap();
    let base = Image::from_bytes(std::fs::read(&path).unwrap());
    let digest = base_digest(&Volume::open(&path).unwrap());
    let device = Arc::new(RecordingDevice::new(base.clone()).with_atomic_write(atomic_write));
    let open = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    let volume = open.open_device(device.clone() as Arc<dyn BlockDevice>).unwrap();
    let (ended, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_files(&volume, &device, &ended, &count));
        let _ending = Ending(&ended);
        let wait = |more: u64| {
            let until = count.load(Ordering::Relaxed) + more;
            while count.load(Ordering::Relaxed) < until {
                assert!(!writer.is_finished(), "the writer failed");
                std::thread::yield_now();
            }
        };
        wait(2);
        assert_eq!(volume.grow(after * MIB).unwrap(), after * MIB);
        device.mark("grown");
        wait(6);
    });
    // No close: the log ends as a crash leaves it.
    (device.log(), base, digest)
}

/// The digest of what the volume had before: all but the directory of the writer.
fn base_digest(volume: &Volume) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    let mut dirs = vec![String::new()];
    while let Some(dir) = dirs.pop() {
        for entry in volume.read_dir(if dir.is_empty() { "/" } else { &dir }).unwrap() {
            let path = format!("{dir}/{}", entry.name.to_string_lossy());
            path.hash(&mut hasher);
            let meta = volume.metadata(&path).unwrap();
            match meta.is_dir() {
                true if path != "/w" => dirs.push(path),
                true => {}
                false => volume.read(&path).unwrap().hash(&mut hasher),
            }
        }
    }
    hasher.finish()
}

/// Recovers a state: it has a size of the growth, what it had, and each file that was synced.
fn judge_state(state: &CrashState, log: &Log, sizes: &RangeInclusive<u64>, digest: u64) -> u64 {
    let device = Arc::new(state.device());
    let volume = Volume::open_device(device.clone()).unwrap_or_else(|e| panic!("{state}: {e}"));
    assert_eq!(base_digest(&volume), digest, "{state}");
    let marks: Vec<&str> = state.marks(log).map(|(_, mark)| mark).collect();
    let numbers = |what: &str| -> BTreeSet<u64> {
        marks.iter().filter_map(|mark| mark.strip_prefix(what)?.parse().ok()).collect()
    };
    for n in numbers("file ").difference(&numbers("gone ")) {
        let found = volume.read(format!("/w/{n}")).unwrap_or_else(|e| panic!("{state}: file {n}: {e}"));
        assert!(found == content(*n), "{state}: file {n}");
    }
    let _ = volume_digest(&volume);
    volume.close().unwrap_or_else(|e| panic!("{state}: close: {e}"));
    let report = check(device.clone(), &lanefs_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{state}: {:?}", report.findings);
    let size = super::open(device).size();
    assert!(sizes.contains(&size), "{state}: {size} bytes");
    assert!(size == *sizes.end() || !marks.contains(&"grown"), "{state}: {size} bytes behind the growth");
    size
}

/// Has e2fsck recover a state, or judge what lanefs has recovered.
fn judge_by_e2fsck(state: &CrashState, dump: &mut DumpFile, recovers: bool) {
    let device = Arc::new(state.device());
    if !recovers {
        Volume::open_device(device.clone()).unwrap().close().unwrap();
    }
    dump.set(&device.image()).unwrap();
    let path = dump.path().with_extension("judged");
    copy_file(dump.path(), &path);
    if recovers {
        let (code, said) = e2fsck(&path, &["-fy"]);
        assert!(code < 2, "{state}: e2fsck -fy: {code}\n{said}");
    }
    let (code, said) = e2fsck(&path, &["-fn"]);
    assert!(code == 0, "{state}: e2fsck -fn: {code}\n{said}");
}

fn campaign(options: &[&str], (before, after): (u64, u64), atomic_write: usize) {
    let seed: Seed = seed_from_env("LANEFS_SEED");
    let (log, base, digest) = recorded(options, (before, after), atomic_write);
    let dir = memory_dir();
    let mut dump = DumpFile::create(dir.path().join("state.img"), &base).unwrap();
    let sizes = before * MIB..=after * MIB;
    let mut seen = BTreeSet::new();
    let mut states = 0;
    let states_of_log = log.small_states(seed.value(), 12).chain(log.crash_states(seed.value(), 3));
    for state in slice(states_of_log, EVERY) {
        seen.insert(judge_state(&state, &log, &sizes, digest));
        states += 1;
        if state.fingerprint.is_multiple_of(16) {
            judge_by_e2fsck(&state, &mut dump, false);
        }
        if state.shape == Shape::Ordered && state.fingerprint.is_multiple_of(4) {
            judge_by_e2fsck(&state, &mut dump, true);
        }
    }
    assert!(seen.contains(sizes.start()) && seen.contains(sizes.end()), "{seen:?}");
    println!("{seen:?}: {states} states");
}

#[test]
fn online_power_loss_into_the_reserve() {
    campaign(&["-t", "ext4", "-b", "1024", "-J", "size=1"], (6, 100), 512);
}

#[test]
fn online_power_loss_on_the_way_to_meta_bg() {
    let options = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^resize_inode", "-g", "1024"];
    campaign(&options, (6, 40), 512);
}

#[test]
fn online_power_loss_with_sparse_super2() {
    campaign(&["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "sparse_super2"], (18, 60), 512);
}

#[test]
fn online_power_loss_of_one_group() {
    campaign(&["-t", "ext4", "-b", "4096", "-J", "size=4"], (12, 40), 512);
}

#[test]
fn online_power_loss_on_memory() {
    campaign(&["-t", "ext4", "-b", "1024", "-J", "size=1"], (12, 60), 8);
}
