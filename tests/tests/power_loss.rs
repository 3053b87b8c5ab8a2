//! Power loss over names and small files: every cut at a flush, and random losses between flushes.
//!
//! A seeded burst of operations runs on a recording device. After each operation the whole tree is
//! taken down as a digest. A state after a crash is recovered, judged by e2fsck, and its tree must
//! be one of those between the last sync that had returned and the operation at the cut: all that
//! was synced is there, operations are whole, and they are in order.

use lanefs::{AtSymlink, NewAttr, OpenOptions, RenameFlags, SetAttr, SetXattr, Volume};
use lanefs_device::errno::{EIO, ENOSPC, EROFS, EUCLEAN};
use lanefs_sim::{CrashState, DumpFile, Image, Log, RecordingDevice, Seed, seed_from_env};
use lanefs_tests::{e2fsck, long, memory_dir, patterned, volume_digest};
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// Arguments of mke2fs for a small volume.
pub(crate) const ARGS: &[&str] = &["-t", "ext4", "-b", "1024", "-J", "size=1"];

const ATTR: NewAttr = NewAttr { permissions: 0o640, uid: 7, gid: 8 };

/// A burst of operations with what the tree was after each.
pub(crate) struct Burst {
    pub(crate) log: Log,
    /// Digest after operation `i`; the first is of the volume before any.
    history: Vec<u64>,
}

fn open(device: Arc<dyn lanefs_device::BlockDevice>) -> Volume {
    OpenOptions::new().write(true).commit_interval(Duration::ZERO).open_device(device).unwrap()
}

/// Runs a burst on `volume_device`, whose writes `device` records.
pub(crate) fn burst(
    volume_device: Arc<dyn lanefs_device::BlockDevice>,
    device: &RecordingDevice,
    rng: &mut StdRng,
    operations: usize,
    syncs: usize,
) -> Burst {
    let volume = open(volume_device);
    let mut history = vec![volume_digest(&volume)];
    device.mark("op 0");
    device.mark("sync 0");
    for i in 1..=operations {
        tried(&volume, rng);
        history.push(volume_digest(&volume));
        device.mark(format!("op {i}"));
        if i % (operations / syncs) == 0 {
            volume.sync().unwrap();
            device.mark(format!("sync {i}"));
        }
    }
    let trees = history.iter().collect::<HashSet<_>>().len();
    assert!(trees > operations / 2, "{operations} operations, and only {trees} trees");
    // No close: the log ends as a crash leaves it.
    let log = device.log();
    drop(volume);
    Burst { log, history }
}

fn path(rng: &mut StdRng) -> String {
    let name = |rng: &mut StdRng| format!("n{}", rng.random_range(0..12));
    match rng.random_range(0..3) {
        0 => format!("/{}", name(rng)),
        1 => format!("/{}/{}", name(rng), name(rng)),
        _ => format!("/{}/{}/a-name-that-is-long-enough-to-fill-blocks-{}", name(rng), name(rng), name(rng)),
    }
}

/// Draws operations until one succeeds, fifty at most. One that fails (no such name, a directory in
/// the way) changes nothing.
///
/// # Panics
/// If the error is one of a device that fails, or of a damaged or full volume.
pub(crate) fn tried(volume: &Volume, rng: &mut StdRng) {
    for _ in 0..50 {
        let Err(e) = step(volume, rng) else { return };
        assert!(![EIO, EROFS, EUCLEAN, ENOSPC].contains(&e.errno()), "errno {}: {e}", e.errno());
    }
}

fn step(volume: &Volume, rng: &mut StdRng) -> lanefs::Result<()> {
    let (a, b) = (path(rng), path(rng));
    match rng.random_range(0..16) {
        0..=2 => volume.create_dir_with(&a, ATTR),
        3..=4 => volume.open_options().write(true).create_new(true).attr(ATTR).open(&a).map(|_| ()),
        5..=7 => {
            let file = volume.open_options().write(true).append(true).open(&a)?;
            let bytes = vec![rng.random_range(1..200); rng.random_range(1..9000)];
            file.write_at(&bytes, 0)
        }
        8 => volume.remove_file(&a),
        9 => volume.remove_dir(&a),
        10 => volume.rename(&a, &b),
        11 => volume.rename_with(&a, &b, RenameFlags::Exchange),
        12 => volume.hard_link(&a, &b),
        13 => volume.symlink("t".repeat(rng.random_range(1..300)), &a),
        14 => {
            let long = rng.random_range(0..3) == 0;
            volume.set_xattr(&a, "user.note", &vec![b'x'; if long { 700 } else { 20 }], SetXattr::Any)
        }
        _ => volume.set_attr(
            &a,
            &SetAttr { permissions: Some(rng.random_range(0..0o1000)), ..SetAttr::default() },
            AtSymlink::NoFollow,
        ),
    }
}

/// Recovers a state and holds it against what was promised.
fn judge(state: &CrashState, burst: &Burst, dump: &mut DumpFile) {
    let device = Arc::new(state.device());
    check_promises(state, burst, device.clone());
    check_image(state, &device.image(), dump);
}

/// Has e2fsck judge a recovered volume.
pub(crate) fn check_image(state: &CrashState, image: &Image, dump: &mut DumpFile) {
    dump.set(image).unwrap();
    let (code, said) = e2fsck(dump.path(), &["-fn"]);
    assert!(code == 0, "{state}: e2fsck -fn after recovery: {code}\n{said}");
}

/// Recovers the volume of a state on `device`, and closes it: its tree is one that was promised.
pub(crate) fn check_promises(state: &CrashState, burst: &Burst, device: Arc<dyn lanefs_device::BlockDevice>) {
    let last = |what: &str| {
        let mark = state
            .marks(&burst.log)
            .rev()
            .find_map(|(_, m)| m.strip_prefix(what)?.trim().parse::<usize>().ok());
        mark.unwrap_or(0)
    };
    let (synced, done) = (last("sync"), last("op"));
    let volume = Volume::open_device(device).unwrap_or_else(|e| panic!("{state}: {e}"));
    let digest = volume_digest(&volume);
    volume.close().unwrap_or_else(|e| panic!("{state}: close: {e}"));
    let allowed = &burst.history[synced..=(done + 1).min(burst.history.len() - 1)];
    assert!(
        allowed.contains(&digest),
        "{state}: the tree is none of those after operations {synced}..={}",
        done + 1
    );
}

/// Runs a burst on a volume that `mke2fs` makes with `args`, on a medium that writes `atomic_write`
/// bytes whole.
fn campaign(args: &[&str], atomic_write: usize) {
    let dir = memory_dir();
    let seed: Seed = seed_from_env("LANEFS_SEED");
    let factor = long();
    let mut rng = seed.rng(1);
    let base = patterned(12 << 20, args);
    let device = Arc::new(RecordingDevice::new(base.clone()).with_atomic_write(atomic_write));
    let burst = burst(device.clone(), &device, &mut rng, 60 * factor, 6 * factor);
    let mut dump = DumpFile::create(dir.path().join("state.img"), &base).unwrap();
    let mut states = 0;
    for state in burst.log.crash_states(seed.value(), 20) {
        judge(&state, &burst, &mut dump);
        states += 1;
    }
    assert!(states > 100, "only {states} states: the burst did not flush");
    println!("{args:?}: {states} states");
}

#[test]
fn defaults_of_today() {
    campaign(ARGS, 512);
}

#[test]
fn orphan_file_and_4k_blocks() {
    campaign(&["-t", "ext4", "-b", "4096", "-O", "orphan_file,metadata_csum_seed", "-J", "size=4"], 512);
}

#[test]
fn ext3_with_indirect_blocks() {
    campaign(&["-t", "ext3", "-b", "1024", "-J", "size=1"], 512);
}

/// A mapped file: every write is torn at words, the superblocks of the volume and of the log too.
#[test]
fn memory() {
    campaign(&["-t", "ext4", "-b", "1024", "-O", "orphan_file", "-J", "size=1"], 8);
}
