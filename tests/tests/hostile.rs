//! Writing to hostile volumes: each operation that lanefs carries out on a volume damaged past its
//! checksums, or refuses half way, changes nothing but what its inodes own.
//!
//! `LANEFS_SEED` replays a run, `LANEFS_DAMAGED` is the number of damaged volumes of each shape
//! (120), `LANEFS_IMAGE` keeps those whose name contains it.
//!
//! A binary of its own: its allocator counts the memory of the whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

use lanefs_sim::{Image, OverlayDevice, seed_from_env};
use lanefs_tests::{
    Meddled, Mode, RegionKind, Victim, Watchdog, corpus_images, meddle, modes, small_victim, unpacked,
};
use peak_alloc::PeakAlloc;
use rand::Rng;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Beyond what copies of the image take: the cache, the volume's own tables, what is judged.
const BYTES: usize = 16 << 20;

/// Copies of the image: what is written over it, the bytes before and after an operation, and those
/// between which they are compared.
const COPIES: usize = 4;

/// Memory is counted for the process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Operations on one volume.
const OPS: usize = 24;

/// The largest image of the folder that is written to: each operation compares all of it.
const LARGEST: usize = 16 << 20;

#[derive(Debug, Default)]
struct Tally {
    volumes: usize,
    refused: usize,
    done: usize,
    failed: usize,
    /// The most memory that one took.
    most: usize,
    wrong: Vec<String>,
}

impl Tally {
    fn run(&mut self, name: &str, bytes: Vec<u8>, mode: &Mode, script: &[u8]) {
        let _watchdog = Watchdog::new(name);
        self.volumes += 1;
        // One that tears like memory is mended in other ways.
        let unit = if self.volumes.is_multiple_of(2) { 8 } else { 512 };
        let bound = BYTES + COPIES * bytes.len();
        let device = Arc::new(OverlayDevice::new(Image::from_bytes(bytes)).with_atomic_write(unit));
        let memory = MEMORY.current_usage();
        MEMORY.reset_peak_usage();
        let meddled = meddle(&device, mode, script);
        let peak = MEMORY.peak_usage().saturating_sub(memory);
        let meddled = match peak > bound {
            true => Err(format!("it took {} MiB", peak >> 20)),
            false => meddled,
        };
        self.most = self.most.max(peak);
        match meddled {
            Ok(Meddled::Refused(_)) => self.refused += 1,
            Ok(Meddled::Done(done, failed)) => {
                self.done += done;
                self.failed += failed;
            }
            Err(said) => {
                println!("WRONG {name}: {said}");
                self.wrong.push(format!("{name}: {said}"));
            }
        }
    }

    fn judge(self) {
        let Self { volumes, refused, done, failed, most, wrong } = self;
        println!("{volumes} volumes, {refused} refused; {done} operations, {failed} that failed");
        println!("at most {} MiB for one", most >> 20);
        assert!(wrong.is_empty(), "{} of {volumes} volumes:\n{}", wrong.len(), wrong.join("\n"));
        assert!(done > volumes, "nearly nothing was written");
    }
}

/// Damage and operations are drawn from a seed.
#[test]
fn an_operation_changes_what_it_owns() {
    let _alone = alone();
    let seed = seed_from_env("LANEFS_SEED");
    let count = std::env::var("LANEFS_DAMAGED").map_or(120, |n| n.parse().expect("a number"));
    let only = std::env::var("LANEFS_IMAGE").unwrap_or_default();
    let (mut tally, modes) = (Tally::default(), modes());
    for (shape, (size, args, dirty)) in SHAPES.iter().enumerate() {
        let victim: Victim = small_victim(*size, args, *dirty);
        let mut kinds: Vec<RegionKind> = victim.regions().iter().map(|r| r.kind).collect();
        kinds.sort();
        kinds.dedup();
        for i in 0..count {
            let mut rng = seed.rng(shape as u64 * 1_000_000 + i);
            let kind = kinds[i as usize % kinds.len()];
            let changes = i as usize % 4;
            let damage = victim.draw(&mut rng, &[kind], changes);
            let mut script = [0; OPS * 5];
            rng.fill(&mut script[..]);
            let mode = &modes[rng.random_range(0..modes.len())];
            let name = format!("shape {shape}, number {i}, {kind:?}, {mode}");
            if name.contains(&only) {
                tally.run(&name, victim.damaged(&damage, i % 8 != 7), mode, &script);
            }
        }
    }
    tally.judge();
}

#[test]
fn operations_on_images_of_the_folder() {
    let _alone = alone();
    let Some(paths) = corpus_images() else { return };
    let seed = seed_from_env("LANEFS_SEED");
    let (mut tally, modes) = (Tally::default(), modes());
    for (path, i) in paths.iter().zip(0..) {
        if let Some(bytes) = unpacked(path).filter(|bytes| bytes.len() <= LARGEST) {
            let mut script = [0; OPS * 5];
            seed.rng(i).fill(&mut script[..]);
            let mode = &modes[i as usize % modes.len()];
            tally.run(&path.file_name().unwrap().to_string_lossy(), bytes, mode, &script);
        }
    }
    tally.judge();
}

const SHAPES: &[(u64, &[&str], bool)] = &[
    (1 << 20, &["-b", "1024", "-O", "^has_journal,metadata_csum"], false),
    (1 << 20, &["-b", "1024", "-O", "^has_journal,^metadata_csum,^extents,^64bit"], false),
    (3 << 20, &["-b", "1024", "-J", "size=1", "-O", "orphan_file,metadata_csum_seed"], true),
    (3 << 20, &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum,^64bit"], true),
    (3 << 20, &["-b", "1024", "-g", "512", "-J", "size=1", "-O", "^resize_inode,^flex_bg"], false),
];
