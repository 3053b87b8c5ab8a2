//! Power loss as a mode of the tests: with `LANEFS_POWER=SEED`, a volume that a test opens in an
//! image is tried at cuts of the power while the test used it.
//!
//! When the volume has let go of its device, some of the states that a cut could have left are
//! drawn by the seed. Each has to open, to close, and to keep the rules of the format. What the
//! test promised itself about content is not known here: that is the campaign's
//! ([`crate::campaign`]).

use crate::fixed_options;
use lanefs::{OpenOptions, Volume};
use lanefs_device::{BlockDevice, FileDevice, Result, WriteOp};
use lanefs_format::{Compat, Superblock};
use lanefs_sim::{CrashState, Image, OverlayDevice, RecordingDevice, Seed, seed_from_env};
use parking_lot::Mutex;
use rand::seq::IteratorRandom;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// States that are tried of one volume.
const STATES: usize = 12;

/// Volumes above this are not held in memory.
const LARGEST: u64 = 256 << 20;

/// Returns options to write, as those of [`Volume::open`]. With `LANEFS_POWER` they have no timer,
/// and a fixed clock: a seed draws the same states again.
pub fn writing() -> OpenOptions {
    if std::env::var_os("LANEFS_POWER").is_some() { fixed_options() } else { OpenOptions::new().write(true) }
}

/// Opens the volume in the image `path` as `options.open(path)` does, and tries cuts of the power
/// if `LANEFS_POWER` is set.
///
/// # Errors
/// As [`OpenOptions::open`].
pub fn open(options: OpenOptions, path: impl AsRef<Path>) -> lanefs::Result<Volume> {
    let path = path.as_ref();
    if std::env::var_os("LANEFS_POWER").is_none() {
        return options.open(path);
    }
    let seed = seed_from_env("LANEFS_POWER");
    let file = FileDevice::open(path)?;
    if file.size() > LARGEST {
        eprintln!("LANEFS_POWER: {} MiB are too many to hold in memory", file.size() >> 20);
        return options.open_device(Arc::new(file));
    }
    let mut before = vec![0; file.size() as usize];
    file.read_at(0, &mut before)?;
    let recorded = RecordingDevice::new(Image::from_bytes(before));
    options.open_device(Arc::new(PoweredDevice { file, recorded, turn: Mutex::new(()), seed }))
}

/// A file that is recorded, to be cut off from the power afterwards. One change at a time reaches
/// both.
#[derive(Debug)]
struct PoweredDevice {
    file: FileDevice,
    recorded: RecordingDevice,
    /// Held while a change goes to both.
    turn: Mutex<()>,
    seed: Seed,
}

impl BlockDevice for PoweredDevice {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_only(&self) -> bool {
        self.file.read_only()
    }

    fn alignment(&self) -> usize {
        self.file.alignment()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.recorded.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _turn = self.turn.lock();
        self.file.write_at(offset, data)?;
        self.recorded.write_at(offset, data)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        let _turn = self.turn.lock();
        self.file.write_batch(ops)?;
        self.recorded.write_batch(ops)
    }

    /// What a write has not brought to the file by now is behind the flush in the record: the
    /// strict reading.
    fn flush(&self) -> Result<()> {
        self.recorded.flush()?;
        self.file.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let _turn = self.turn.lock();
        self.file.discard(offset, len)?;
        self.recorded.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let _turn = self.turn.lock();
        self.file.write_zeroes(offset, len)?;
        self.recorded.write_zeroes(offset, len)
    }
}

impl Drop for PoweredDevice {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let log = self.recorded.log();
        // A volume that was damaged before, or has no journal, promises nothing.
        if !has_journal(&log.base) || try_volume(log.base.clone()).is_err() {
            return;
        }
        let mut rng = self.seed.rng(0);
        let states = log.crash_states(self.seed.value(), 1).choose_multiple(&mut rng, STATES);
        for state in states {
            self.try_state(&state);
        }
    }
}

impl PoweredDevice {
    /// Recovers a state; a finding ends the process, since a panic of the thread that lets go of
    /// the device may be heard by nobody.
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
