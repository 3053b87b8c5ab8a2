//! Power loss as a mode of the tests: with `LANEFS_POWER=SEED`, every image that a test opens is
//! also recovered from power cuts during the test.
//!
//! When the volume drops its device, the seed draws some of the states that a power cut could have
//! left. Each must open, close, and follow the rules of the format. A volume that writes much is
//! also judged at a flush in between: earlier writes are then durable, and their log can be
//! dropped. This mode does not know the content that the test expects: the campaign judges contents
//! ([`crate::campaign`]).

use crate::fixed_options;
use lanefs::{OpenOptions, Volume};
use lanefs_device::{BlockDevice, FileDevice, Result, WriteOp, forward_to};
use lanefs_format::{Compat, Superblock};
use lanefs_sim::{CrashState, Image, LogEntry, OverlayDevice, RecordingDevice, Seed, Shape, seed_from_env};
use parking_lot::Mutex;
use rand::Rng;
use rand::seq::IteratorRandom;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// States that are tried of one record.
const STATES: usize = 12;

/// States that are tried of its last epochs besides: a close writes home all that the log holds.
const AT_THE_END: usize = 8;

/// Volumes that hold more than this are not held in memory.
const LARGEST: u64 = 256 << 20;

/// Bytes that are recorded before they are judged at the next flush.
const SEGMENT: u64 = 128 << 20;

/// Returns options to write, as those of [`Volume::open`]. With `LANEFS_POWER` they have no timer,
/// and a fixed clock: a seed draws the same states again.
pub fn writing() -> OpenOptions {
    if std::env::var_os("LANEFS_POWER").is_some() { fixed_options() } else { OpenOptions::new().write(true) }
}

/// Opens the volume in the image `path` as `options.open(path)` does, and tries cuts of the power
/// if `LANEFS_POWER` is set.
///
/// # Errors
/// The errors of [`OpenOptions::open`].
pub fn open(options: OpenOptions, path: impl AsRef<Path>) -> lanefs::Result<Volume> {
    let path = path.as_ref();
    if std::env::var_os("LANEFS_POWER").is_none() {
        return options.open(path);
    }
    let seed = seed_from_env("LANEFS_POWER");
    let file = FileDevice::open(path)?;
    let Some(before) = image_of(&file)? else {
        eprintln!("LANEFS_POWER: a volume that holds more than {} MiB is not recorded", LARGEST >> 20);
        return options.open_device(Arc::new(file));
    };
    // A volume that was damaged before, or has no journal, promises nothing.
    if !has_journal(&before) || try_volume(before.clone()).is_err() {
        return options.open_device(Arc::new(file));
    }
    let recorded = RecordingDevice::new(before);
    let changes = Mutex::new(0);
    options.open_device(Arc::new(PoweredDevice { file, recorded, changes, seed }))
}

/// Returns the program that serves a mount: with `LANEFS_POWER` not `lanefs`, but `powered` of this
/// package, which takes the same arguments and opens its volume by [`open`]. It is built first, as
/// this test was.
///
/// # Panics
/// If it cannot be built.
pub(crate) fn server(lanefs: &Path) -> &Path {
    static POWERED: LazyLock<PathBuf> = LazyLock::new(|| {
        let test = std::env::current_exe().expect("this test");
        // As in target/PROFILE/deps/TEST.
        let folders: Vec<&Path> = test.ancestors().collect();
        let (profile, target) = (folders[2], folders[3]);
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--package", "lanefs-tests", "--bin", "powered", "--target-dir"]);
        cargo.arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        let built = cargo.status().expect("cargo");
        assert!(built.success(), "{cargo:?}: {built}");
        profile.join("powered")
    });
    if std::env::var_os("LANEFS_POWER").is_some() { &POWERED } else { lanefs }
}

/// Returns what a file holds, or `None` if that is too much.
fn image_of(file: &FileDevice) -> Result<Option<Image>> {
    const PIECE: usize = 1 << 16;
    let (mut image, mut held) = (Image::zeroed(file.size()), 0);
    let mut piece = vec![0; PIECE];
    for at in (0..file.size()).step_by(PIECE) {
        let piece = &mut piece[..(file.size() - at).min(PIECE as u64) as usize];
        file.read_at(piece, at)?;
        if piece != &[0; PIECE][..piece.len()] {
            image.write(at, piece);
            held += piece.len() as u64;
        }
    }
    Ok((held <= LARGEST).then_some(image))
}

/// A file that is recorded, to be cut off from the power afterwards. One change at a time reaches
/// both.
#[derive(Debug)]
struct PoweredDevice {
    file: FileDevice,
    recorded: RecordingDevice,
    /// Bytes that were written since the last judgement. Locked while a change goes to both.
    changes: Mutex<u64>,
    seed: Seed,
}

impl BlockDevice for PoweredDevice {
    forward_to!(file: size read_only alignment);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.recorded.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let mut changes = self.changes.lock();
        *changes += data.len() as u64;
        self.file.write_at(data, offset)?;
        self.recorded.write_at(data, offset)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        let mut changes = self.changes.lock();
        *changes += ops.iter().map(|op| op.len()).sum::<u64>();
        self.file.write_batch(ops)?;
        self.recorded.write_batch(ops)
    }

    /// What a write has not brought to the file by now is behind the flush in the record: the
    /// strict reading.
    fn flush(&self) -> Result<()> {
        let mut changes = self.changes.lock();
        self.recorded.flush()?;
        if *changes >= SEGMENT {
            // Nothing is written meanwhile, so all that the record holds is durable.
            *changes = 0;
            self.judge();
            self.recorded.begin();
        }
        drop(changes);
        self.file.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let _changes = self.changes.lock();
        self.file.discard(offset, len)?;
        self.recorded.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let _changes = self.changes.lock();
        self.file.write_zeroes(offset, len)?;
        self.recorded.write_zeroes(offset, len)
    }
}

impl Drop for PoweredDevice {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.judge();
        }
    }
}

impl PoweredDevice {
    /// Tries some of the states that a power cut would have left since the record began.
    fn judge(&self) {
        let log = self.recorded.log();
        let mut rng = self.seed.rng(0);
        let epochs = log.entries.iter().filter(|entry| matches!(entry, LogEntry::Flush)).count() + 1;
        let mut drawn = (0..epochs).choose_multiple(&mut rng, STATES);
        drawn.extend(epochs.saturating_sub(AT_THE_END)..epochs);
        for (number, epoch) in drawn.into_iter().enumerate() {
            let shape = if rng.random_range(0..4) == 0 { Shape::Ordered } else { Shape::Random(number) };
            if let Some(state) = log.crash_state(self.seed.value(), epoch, shape) {
                self.try_state(&state);
            }
        }
    }

    /// Recovers a state. A finding ends the process, because a panic in the thread that drops the
    /// device may go unnoticed.
    fn try_state(&self, state: &CrashState) {
        if let Err(found) = try_volume(state.image.clone()) {
            let path = std::env::temp_dir().join(format!("lanefs-power-{:#x}.img", state.fingerprint));
            let kept = std::fs::write(&path, state.image.to_bytes());
            let kept = kept.map_or_else(|e| e.to_string(), |()| path.display().to_string());
            // Not by a macro, whose output the tests' runner holds back until the end that does not
            // come.
            let _ = writeln!(
                std::io::stderr(),
                "LANEFS_POWER={:#x}: {}: {state}\n{found}\nthe state: {kept}",
                self.seed.value(),
                self.file.path().display()
            );
            std::process::abort();
        }
    }
}

fn has_journal(image: &Image) -> bool {
    let mut bytes = [0; 1024];
    image.read(1024, &mut bytes);
    Superblock::parse(&bytes).is_ok_and(|sb| sb.has(Compat::HAS_JOURNAL))
}

/// Opens and closes a volume, and holds it against the rules of the format.
fn try_volume(image: Image) -> std::result::Result<(), String> {
    let device = Arc::new(OverlayDevice::new(image));
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    let volume = options.open_device(Arc::clone(&device) as _).map_err(|e| format!("open: {e}"))?;
    volume.close().map_err(|e| format!("close: {e}"))?;
    crate::campaign::check_volume(device)
}
