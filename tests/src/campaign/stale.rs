//! Judges a volume without a journal after a crash, as the crash left it: nothing recovers it.
//!
//! While a commit writes in place, a cut leaves names and maps that e2fsck mends, and only one
//! promise: a file that can be read shows no old data of blocks that were free. Between two commits
//! the volume is that of the last one, and keeps every promise.

use super::observed::Observed;
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

/// Reads every file that can be read, as the crash left it.
///
/// # Errors
/// The file that shows what was never written to it, and where.
pub(super) fn shows_no_old_data(device: Arc<dyn BlockDevice>) -> Result<(), String> {
    let Ok(volume) = OpenOptions::new().open_device(device) else { return Ok(()) };
    match volume.open_dir("/") {
        Ok(root) => walk(&root, "", DEEPEST),
        Err(_) => Ok(()),
    }
}

fn walk(dir: &Dir, above: &str, deepest: usize) -> Result<(), String> {
    for entry in dir.read_dir().unwrap_or_default() {
        let name = entry.name.to_string_lossy().into_owned();
        let path = format!("{above}/{name}");
        if deepest > 0
            && let Ok(below) = dir.open_dir(&name)
        {
            walk(&below, &path, deepest - 1)?;
        } else if let Some(at) = read(dir, &name).and_then(|bytes| bytes.iter().position(|byte| *byte == OLD))
        {
            return Err(format!("{path}: byte {at} is old data of a block that was free"));
        }
    }
    Ok(())
}

/// Returns the readable content of a regular file.
fn read(dir: &Dir, name: &str) -> Option<Vec<u8>> {
    let file = dir.open_file(name).ok()?;
    let mut bytes = vec![0; file.metadata().len().min(1 << 20) as usize];
    let n = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(n);
    Some(bytes)
}
