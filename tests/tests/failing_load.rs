//! A device that begins to fail while threads write and sync: every open handle is told, the volume
//! takes no more changes, and what was synced before is there when the device has healed.
//!
//! Every mode; one write or flush that fails, or all from one on. `LANEFS_SEED` gives the same
//! operations, not the same order between threads. `LANEFS_FAIL_ROUNDS` is how often each way of
//! failing is tried (1).

use lanefs::{Error, File, Volume};
use lanefs_device::{BlockDevice, Op};
use lanefs_sim::{DumpFile, FailingDevice, Image, OverlayDevice, seed_from_env};
use lanefs_tests::{Mode, Tracked, Watchdog, e2fsck_clean, memory_dir, mke2fs, modes};
use rand::Rng;
use rand::rngs::StdRng;
use std::sync::Arc;

const THREADS: usize = 4;

/// Bytes of each file.
const SIZE: usize = 40_000;

/// Operations of a thread that meets no failure.
const OPS: usize = 150;

type Device = FailingDevice<OverlayDevice>;

fn is_told(e: &Error) -> bool {
    [libc::EIO, libc::EROFS].contains(&e.errno())
}

fn path(thread: usize) -> String {
    format!("/file{thread}")
}

/// The operations of a thread on its file, and up to which operation they are promised.
struct Story {
    tracked: Tracked,
    op: usize,
    synced: usize,
    /// The last write that was taken.
    taken: usize,
}

/// A file and two handles of it, which must both be told.
struct Writer<'v> {
    volume: &'v Volume,
    handles: [File; 2],
    /// Whether a sync of the handle has failed.
    told: [bool; 2],
    story: Story,
    rng: StdRng,
}

impl<'v> Writer<'v> {
    fn new(volume: &'v Volume, thread: usize, rng: StdRng) -> Self {
        let open = || volume.open_options().read(true).write(true).open(path(thread)).unwrap();
        let story = Story { tracked: Tracked::new(4096, vec![0; SIZE]), op: 0, synced: 0, taken: 0 };
        Self { volume, handles: [open(), open()], told: [false; 2], story, rng }
    }

    /// `false` once something has failed.
    fn step(&mut self) -> bool {
        let which = self.rng.random_range(0..2);
        self.story.op += 1;
        let (story, rng) = (&mut self.story, &mut self.rng);
        let result = match rng.random_range(0..10) {
            0..7 => {
                let at = rng.random_range(0..SIZE - 1);
                let len = rng.random_range(1..8000).min(SIZE - at);
                let byte = 1 + (story.op % 250) as u8;
                let mut content = story.tracked.content().to_vec();
                content[at..at + len].fill(byte);
                story.tracked.record(story.op, format!("write {len} at {at}"), content);
                let result = self.handles[which].write_at(&vec![byte; len], at as u64);
                story.taken = if result.is_ok() { story.op } else { story.taken };
                result
            }
            sync => {
                let result = match sync {
                    7 => self.handles[which].sync_all(),
                    8 => self.handles[which].sync_data(),
                    _ => self.volume.sync(),
                };
                match result {
                    Ok(()) => story.synced = story.op,
                    Err(_) if sync < 9 => self.told[which] = true,
                    Err(_) => {}
                }
                result
            }
        };
        if let Err(e) = &result {
            assert!(is_told(e), "{e}");
        }
        result.is_ok()
    }

    /// After a failure: a handle is told, or its success is a promise like any other. What failed
    /// is told once through each handle; then a sync says that the volume is read-only.
    fn check_told(&mut self) -> Result<(), String> {
        for (i, (file, mut told)) in self.handles.iter().zip(self.told).enumerate() {
            for again in 0..3 {
                match if self.rng.random() { file.sync_all() } else { file.sync_data() } {
                    Ok(()) if !told => self.story.synced = self.story.synced.max(self.story.taken),
                    Ok(()) => {}
                    Err(e) => {
                        let wanted = if told { libc::EROFS } else { libc::EIO };
                        if e.errno() != wanted {
                            return Err(format!("handle {i}, sync {again}, told before: {told}: {e}"));
                        }
                        told = true;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The call that fails, counted from its calls when the threads begin.
#[derive(Debug, Clone, Copy)]
struct Fault {
    op: Op,
    nth: u64,
    for_ever: bool,
}

fn run(good: &Image, mode: &Mode, fault: Fault, stream: u64, dump: &mut DumpFile) {
    let seed = seed_from_env("LANEFS_SEED");
    let fail = |said: String| -> ! { panic!("{mode}, {fault:?}: {said}") };
    let device = Arc::new(FailingDevice::new(OverlayDevice::new(good.clone())));
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    let volume = mode.options().open_device(shared).unwrap();
    for thread in 0..THREADS {
        volume.create_file(path(thread)).unwrap().set_len(SIZE as u64).unwrap();
    }
    volume.sync().unwrap();
    let rng = |thread| seed.rng(stream * 10 + thread as u64);
    let writers: Vec<_> = (0..THREADS).map(|t| Writer::new(&volume, t, rng(t))).collect();
    match fault.for_ever {
        true => device.fail_from(fault.op, fault.nth, libc::EIO),
        false => device.fail_once(fault.op, fault.nth, libc::EIO),
    }
    let stories: Vec<Result<Story, String>> = std::thread::scope(|scope| {
        let worker = |mut writer: Writer<'_>, device: &Device| {
            if (0..OPS).any(|_| !writer.step()) {
                assert!(device.failures() > 0, "an error, and the device did not fail");
                writer.check_told()?;
            }
            // The handles go with the writer, before the volume is closed.
            Ok(writer.story)
        };
        let device = &*device;
        let workers: Vec<_> =
            writers.into_iter().map(|writer| scope.spawn(move || worker(writer, device))).collect();
        workers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    let failed = device.failures() > 0;
    if failed {
        check_read_only(&volume).unwrap_or_else(|said| fail(said));
    }
    // What is left to write may be what fails.
    match volume.close() {
        Err(e) if device.failures() == 0 || !is_told(&e) => fail(format!("close: {e}")),
        Ok(()) if failed => fail("close after the failure: Ok".into()),
        _ => {}
    }
    device.heal();
    judge(&device, stories, dump).unwrap_or_else(|said| fail(said));
}

/// A sync fails, and nothing can be changed.
fn check_read_only(volume: &Volume) -> Result<(), String> {
    let refused = |what: &str, result: lanefs::Result<()>| match result {
        Err(e) if is_told(&e) => Ok(()),
        other => Err(format!("{what} after the failure: {other:?}")),
    };
    refused("sync", volume.sync())?;
    refused("mkdir", volume.create_dir("/later"))?;
    refused("unlink", volume.remove_file(path(0)))?;
    let file = volume.open_file(path(1)).map_err(|e| format!("open for reading: {e}"))?;
    drop(file);
    let write = || volume.open_options().write(true).open(path(1))?.write_at(b"later", 0);
    refused("write", write())
}

/// All that was synced is there, and the volume is sound.
fn judge(device: &Device, stories: Vec<Result<Story, String>>, dump: &mut DumpFile) -> Result<(), String> {
    let healed = Arc::new(OverlayDevice::new(device.inner().image()));
    let volume = Volume::open_device(Arc::clone(&healed) as _).map_err(|e| format!("open again: {e}"))?;
    for (thread, story) in stories.into_iter().enumerate() {
        let story = story?;
        let found = volume.read(path(thread)).map_err(|e| format!("{}: {e}", path(thread)))?;
        let judged = story.tracked.judge(&found, story.synced, story.op);
        judged.map_err(|said| format!("{}, synced at {}: {said}", path(thread), story.synced))?;
    }
    volume.close().map_err(|e| format!("close again: {e}"))?;
    dump.set(&healed.image()).unwrap();
    e2fsck_clean(dump.path());
    Ok(())
}

fn every_mode(args: &[&str], op: Op, stream: u64) {
    let rounds = std::env::var("LANEFS_FAIL_ROUNDS").map_or(1, |n| n.parse().expect("a number"));
    let seed = seed_from_env("LANEFS_SEED");
    let dir = memory_dir();
    let image = dir.path().join("volume");
    mke2fs(&image, 16 << 20, args);
    let good = Image::from_bytes(std::fs::read(&image).unwrap());
    let mut dump = DumpFile::create(dir.path().join("healed"), &good).unwrap();
    let mut rng = seed.rng(stream);
    for mode in modes() {
        for round in 0..rounds * 6 {
            let most = if op == Op::Flush { 60 } else { 300 };
            let fault = Fault { op, nth: rng.random_range(1..most), for_ever: round % 3 == 2 };
            let _watchdog = Watchdog::new(format!("{args:?} {mode}, {fault:?}"));
            run(&good, &mode, fault, stream * 1000 + round, &mut dump);
        }
    }
}

#[test]
fn writes() {
    every_mode(&["-t", "ext4", "-b", "4096", "-J", "size=4"], Op::Write, 1);
}

#[test]
fn writes_with_small_blocks() {
    every_mode(&["-t", "ext4", "-b", "1024", "-J", "size=1"], Op::Write, 2);
}

#[test]
fn writes_with_indirect_blocks() {
    every_mode(&["-t", "ext3", "-b", "1024", "-J", "size=1"], Op::Write, 3);
}

#[test]
fn flushes() {
    every_mode(&["-t", "ext4", "-b", "1024", "-J", "size=1"], Op::Flush, 4);
}
