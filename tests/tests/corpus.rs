//! Damaged volumes: every image of a folder, and good volumes damaged here, past their checksums.
//!
//! Each is opened, walked, changed and closed. Every operation must be right or fail with an error:
//! never a panic, a hang, memory out of proportion, or a write to a volume that was refused.
//!
//! `LANEFS_CORPUS` is the folder of images (`.gz`, `.bz2` or plain); unless set, `shared/corpus`
//! beside the checkout. Without it only the volumes damaged here are run, and the test says so.
//! `LANEFS_SEED` replays a run, `LANEFS_DAMAGED` is the number of damaged volumes of each shape
//! (60). The test is a binary of its own: its allocator counts the memory of the whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

use lanefs_device::BlockDevice;
use lanefs_sim::{Image, OverlayDevice, seed_from_env};
use lanefs_tests::{
    RegionKind, Verdict, change_all, corpus_images, large_victim, patiently, read_all, unpacked, with_mmp,
};
use peak_alloc::PeakAlloc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Beyond what the image itself takes: the cache, and the volume's own tables.
const BYTES: usize = 64 << 20;

/// Panics of any thread: those of a commit in the background have no caller to reach.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Memory is counted for the process: one image at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let guard = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            before(info);
        }));
    });
    guard
}

/// The number of volumes that met each end.
#[derive(Debug, Default)]
struct Tally {
    volumes: usize,
    refused: usize,
    with_errors: usize,
    wrong: Vec<String>,
}

impl Tally {
    fn run(&mut self, name: &str, bytes: Vec<u8>) {
        self.volumes += 1;
        let image = Image::from_bytes(bytes);
        for write in [false, true] {
            match guarded(image.clone(), write) {
                Ok(Verdict::Refused(said)) => {
                    self.refused += usize::from(write);
                    println!("{name}: {}refused: {said}", if write { "writing " } else { "" });
                }
                Ok(Verdict::Opened(met)) => {
                    self.with_errors += usize::from(write && !met.errors.is_empty());
                    if let Some(first) = met.errors.first() {
                        println!("{name}: {} errors, first: {first}", met.errors.len());
                    }
                }
                Err(what) => {
                    println!("{name}: WRONG, write={write}: {what}");
                    self.wrong.push(format!("{name}, write={write}: {what}"));
                }
            }
        }
    }

    fn judge(self) {
        let Self { volumes, refused, with_errors, wrong } = self;
        println!("{volumes} volumes: {refused} refused for writing, {with_errors} opened and damaged");
        assert!(wrong.is_empty(), "{} of {volumes} volumes:\n{}", wrong.len(), wrong.join("\n"));
    }
}

/// Opens and uses a volume under the bounds.
fn guarded(image: Image, write: bool) -> Result<Verdict, String> {
    let device = Arc::new(OverlayDevice::new(image.clone()));
    let (panics, memory) = (PANICS.load(Ordering::SeqCst), MEMORY.current_usage());
    MEMORY.reset_peak_usage();
    let (done, wait) = channel();
    let work = {
        let device: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
        move || {
            let _ = done.send(if write { change_all(device) } else { read_all(device) });
        }
    };
    std::thread::spawn(work);
    let verdict = match patiently(&wait) {
        Ok(verdict) => verdict,
        Err(RecvTimeoutError::Disconnected) => return Err("it panicked".into()),
        Err(RecvTimeoutError::Timeout) => return Err("it does not end".into()),
    };
    let peak = MEMORY.peak_usage().saturating_sub(memory);
    if PANICS.load(Ordering::SeqCst) != panics {
        return Err("a thread of it panicked".into());
    }
    if peak > BYTES {
        return Err(format!("it took {} MiB", peak >> 20));
    }
    if (matches!(verdict, Verdict::Refused(_)) || !write) && differs(&device.image(), &image) {
        return Err(format!("it was written: {verdict:?}"));
    }
    Ok(verdict)
}

fn differs(one: &Image, two: &Image) -> bool {
    let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    (0..one.size()).step_by(1 << 20).any(|at| {
        one.read(at, &mut a);
        two.read(at, &mut b);
        a != b
    })
}

#[test]
fn images_of_the_folder() {
    let _alone = alone();
    let Some(paths) = corpus_images() else { return };
    let mut tally = Tally::default();
    for path in paths {
        if let Some(bytes) = unpacked(&path) {
            tally.run(&path.file_name().unwrap().to_string_lossy(), bytes);
        }
    }
    assert!(tally.volumes > 0, "no images in the folder");
    tally.judge();
}

/// Damage is drawn from a seed: structures of one kind, then of all kinds.
#[test]
fn volumes_damaged_here() {
    let _alone = alone();
    let seed = seed_from_env("LANEFS_SEED");
    let count = std::env::var("LANEFS_DAMAGED").map_or(60, |n| n.parse().expect("a number"));
    let only = std::env::var("LANEFS_IMAGE").unwrap_or_default();
    let mut tally = Tally::default();
    for (shape, args) in SHAPES.iter().enumerate() {
        for (dirty, victim) in [(false, large_victim(args, false)), (true, large_victim(args, true))] {
            let mut kinds: Vec<RegionKind> = victim.regions().iter().map(|r| r.kind).collect();
            kinds.sort();
            kinds.dedup();
            for i in 0..count {
                let mut rng = seed.rng((shape * 2 + usize::from(dirty)) as u64 * 1_000_000 + i);
                let kind = kinds[i as usize % kinds.len()];
                let changes = 1 + i as usize % 3;
                let script = if i % 4 == 3 {
                    victim.draw(&mut rng, &[], changes)
                } else {
                    victim.draw(&mut rng, &[kind], changes)
                };
                let name = format!("shape {shape}, dirty {dirty}, number {i}");
                if name.contains(&only) {
                    tally.run(&name, victim.damaged(&script, i % 8 != 7));
                }
            }
        }
    }
    tally.judge();
}

/// Another host that uses the volume may write anything into the block of multiple-mount
/// protection.
#[test]
fn the_block_of_multiple_mount_protection() {
    let _alone = alone();
    let seed = seed_from_env("LANEFS_SEED");
    let mut tally = Tally::default();
    for (shape, args) in SHAPES.iter().enumerate() {
        let victim = with_mmp(&large_victim(args, false));
        for i in 0..10 {
            let script = victim.draw(&mut seed.rng(shape as u64 * 1_000_000 + i), &[RegionKind::Mmp], 3);
            tally.run(&format!("shape {shape}, MMP, number {i}"), victim.damaged(&script, i % 4 != 3));
        }
    }
    assert!(tally.refused > 0 && tally.refused < tally.volumes, "{tally:?}");
    tally.judge();
}

const SHAPES: &[&[&str]] = &[
    &["-t", "ext4", "-b", "1024", "-O", "orphan_file,metadata_csum_seed", "-J", "size=1"],
    &["-t", "ext4", "-b", "4096", "-J", "size=4", "-O", "^metadata_csum,^64bit"],
    &["-t", "ext3", "-b", "1024", "-I", "128", "-J", "size=1"],
];
