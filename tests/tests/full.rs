//! Filled to the last block by many threads at once: a write that was taken is kept, whatever is full by the time that
//! its blocks are chosen, and what is free can be used.
//!
//! `LANEFS_SEED` gives each thread the same operations again, not the same order between them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

use lanefs::{Error, Volume};
use lanefs_sim::seed_from_env;
use lanefs_tests::{Mode, Watchdog, e2fsck_clean, mke2fs, modes};
use rand::Rng;
use rand::rngs::StdRng;
use std::path::Path;

const THREADS: u64 = 16;

/// The longest file. All together need more than there is.
const MAX: usize = 2 << 20;

/// A file's bytes, and those of which nothing is known: a write that failed may have been done in part.
struct Model {
    bytes: Vec<u8>,
    unknown: Vec<bool>,
}

impl Model {
    fn put(&mut self, at: usize, bytes: &[u8], taken: bool) {
        let end = at + bytes.len();
        if taken {
            let size = self.bytes.len().max(end);
            self.bytes.resize(size, 0);
            self.unknown.resize(size, false);
            self.bytes[at..end].copy_from_slice(bytes);
            self.unknown[at..end].fill(false);
        } else {
            // It may have been done in part behind the end, which then is somewhere there.
            let size = self.bytes.len().max(end);
            self.bytes.resize(size, 0);
            self.unknown.resize(size, true);
            self.unknown[at..end].fill(true);
        }
    }

    /// The first byte that is not as it was taken.
    fn wrong(&self, found: &[u8]) -> Option<usize> {
        (0..self.bytes.len()).find(|&i| !self.unknown[i] && found.get(i) != Some(&self.bytes[i]))
    }
}

fn path(thread: u64) -> String {
    format!("/file{thread}")
}

/// Writes until the volume has been full several times.
fn fill(volume: &Volume, thread: u64, mut rng: StdRng) -> Model {
    let file = volume.open_options().read(true).write(true).create(true).open(path(thread)).unwrap();
    let mut model = Model { bytes: Vec::new(), unknown: Vec::new() };
    let mut full = 0;
    while full < 12 {
        // Smaller and smaller, for the last blocks.
        let longest = [40_000, 9000, 1500][full / 4];
        let len = rng.random_range(1..longest);
        let at = match rng.random_range(0..3) {
            0 => rng.random_range(0..MAX - len),
            _ => model.bytes.len().min(MAX - len),
        };
        let bytes = vec![rng.random_range(1..=255); len];
        match file.write_at(at as u64, &bytes) {
            Ok(()) => model.put(at, &bytes, true),
            Err(Error::NoSpace) => {
                model.put(at, &bytes, false);
                full += 1;
            }
            Err(e) => panic!("{}: {e}", path(thread)),
        }
        if rng.random_range(0..100) == 0 {
            file.sync_data().unwrap_or_else(|e| panic!("{}: a write was taken, and now: {e}", path(thread)));
        }
        // All of its file is written, and it is not full yet.
        if full == 0 && rng.random_range(0..3000) == 0 {
            break;
        }
    }
    file.sync_all().unwrap_or_else(|e| panic!("{}: a write was taken, and now: {e}", path(thread)));
    model
}

fn run(image: &Path, mode: &Mode, stream: u64) {
    let seed = seed_from_env("LANEFS_SEED");
    let volume = mode.options().open(image).unwrap();
    let models: Vec<Model> = std::thread::scope(|scope| {
        let worker = |t| {
            let (volume, rng) = (&volume, seed.rng(stream * 100 + t));
            scope.spawn(move || fill(volume, t, rng))
        };
        let workers: Vec<_> = (0..THREADS).map(worker).collect();
        workers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    let check = |volume: &Volume, when: &str| {
        for (t, model) in models.iter().enumerate() {
            let found = volume.read(path(t as u64)).unwrap();
            let wrong = model.wrong(&found);
            assert!(
                wrong.is_none(),
                "{mode}: {}: byte {wrong:?} of {} {when}",
                path(t as u64),
                model.bytes.len()
            );
        }
    };
    check(&volume, "at the end");
    // What is still free is not much.
    let last = volume.create_file("/last").unwrap();
    let mut at = 0;
    while last.write_at(at, &[7; 1000]).is_ok() {
        at += 1000;
    }
    last.sync_all().unwrap();
    let (free, all) = (volume.statfs().blocks_free, volume.statfs().blocks);
    assert!(free * 50 < all, "{mode}: {free} of {all} blocks are free, and cannot be used");
    drop(last);
    volume.close().unwrap();
    e2fsck_clean(image);
    let volume = Volume::open(image).unwrap();
    check(&volume, "as opened");
    // All of it comes back.
    (0..THREADS).for_each(|t| volume.remove_file(path(t)).unwrap());
    volume.close().unwrap();
    e2fsck_clean(image);
}

fn every_mode(args: &[&str], stream: u64) {
    for mode in modes() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("volume");
        mke2fs(&image, 10 << 20, args);
        let _watchdog = Watchdog::new(format!("{args:?} {mode}"));
        run(&image, &mode, stream);
    }
}

#[test]
fn extents() {
    every_mode(&["-t", "ext4", "-b", "1024", "-J", "size=1"], 1);
}

#[test]
fn large_blocks() {
    every_mode(&["-t", "ext4", "-b", "4096", "-O", "^has_journal"], 2);
}

#[test]
fn indirect_blocks() {
    every_mode(&["-t", "ext3", "-b", "1024", "-J", "size=1"], 3);
}
