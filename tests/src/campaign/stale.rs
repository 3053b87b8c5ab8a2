//! Judges a volume without a journal after a crash, as the crash left it: nothing recovers it.
//!
//! While a commit writes in place, a cut leaves names and maps that e2fsck mends, and only one
//! promise: a file that can be read shows nothing but zeros and bytes of one file, neither old data
//! of blocks that were free nor data of another file. Between two commits the volume is that of the
//! last one, and keeps every promise.

use super::observed::Observed;
use super::run::Run;
use crate::OLD;
use lanefs::{Dir, OpenOptions};
use lanefs_device::BlockDevice;
use std::sync::Arc;

/// Directories that a walk goes down: damaged ones may lead to each other.
const DEEPEST: usize = 6;

/// Walks a volume as the crash left it.
///
/// # Errors
/// What cannot be read.
pub(super) fn walk_as_left(device: Arc<dyn BlockDevice>) -> Result<Observed, String> {
    let volume = OpenOptions::new().threads(false).open_device(device).map_err(|e| format!("open: {e}"))?;
    Observed::of(&volume)
}

/// Reads every file that can be read, as the crash left it. A file is known by its bytes alone: a
/// name may lead to another file than in the run.
///
/// # Errors
/// The file that shows what no single file of the run ever held.
pub(super) fn shows_no_old_data(run: &Run, device: Arc<dyn BlockDevice>) -> Result<(), String> {
    let Ok(volume) = OpenOptions::new().open_device(device) else { return Ok(()) };
    match volume.open_dir("/") {
        Ok(root) => walk(run, &root, "", DEEPEST),
        Err(_) => Ok(()),
    }
}

fn walk(run: &Run, dir: &Dir, above: &str, deepest: usize) -> Result<(), String> {
    for entry in dir.read_dir().unwrap_or_default() {
        let name = entry.name.to_string_lossy().into_owned();
        let path = format!("{above}/{name}");
        if deepest > 0
            && let Ok(below) = dir.open_dir(&name)
        {
            walk(run, &below, &path, deepest - 1)?;
        } else if let Some(bytes) = read(dir, &name) {
            judge(run, &bytes).map_err(|said| format!("{path}: {said}"))?;
        }
    }
    Ok(())
}

/// Judges the bytes of a file: each is zero, or one that a single file of the run ever had.
fn judge(run: &Run, bytes: &[u8]) -> Result<(), String> {
    if let Some(at) = bytes.iter().position(|byte| *byte == OLD) {
        return Err(format!("byte {at} is old data of a block that was free"));
    }
    let mut is_shown = [false; 256];
    bytes.iter().for_each(|byte| is_shown[usize::from(*byte)] = true);
    let shown: Vec<u8> = (1..=u8::MAX).filter(|byte| is_shown[usize::from(*byte)]).collect();
    match run.contents.values().any(|file| shown.iter().all(|byte| file.had(*byte))) {
        true => Ok(()),
        false => Err(format!("no file of the run ever held all of its bytes {shown:02x?}")),
    }
}

/// Returns the readable content of a regular file.
fn read(dir: &Dir, name: &str) -> Option<Vec<u8>> {
    let file = dir.open_file(name).ok()?;
    let mut bytes = vec![0; file.metadata().len().min(1 << 20) as usize];
    let n = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(n);
    Some(bytes)
}
