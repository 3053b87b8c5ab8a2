//! Operations of every kind on a volume, each held against what it may change.

use super::judge::judge;
use super::op::{Op, STEP};
use crate::{Mode, explained};
use lanefs::{Upkeep, Volume};
use lanefs_device::BlockDevice;
use lanefs_sim::OverlayDevice;
use std::path::PathBuf;
use std::sync::Arc;

/// Paths that an operation chooses from.
const PATHS: usize = 64;

/// The result of a script.
#[derive(Debug)]
pub enum Meddled {
    /// The volume was not opened.
    Refused(String),
    /// Operations that were carried out, and those that were refused.
    Done(usize, usize),
}

/// Opens the volume for writing in one of the [modes](crate::modes), and carries out a script of
/// operations, each of five bytes; any bytes are one.
///
/// # Errors
/// What an operation changed, and is not its own.
pub fn meddle(device: &Arc<OverlayDevice>, mode: &Mode, script: &[u8]) -> Result<Meddled, String> {
    let options = mode.options().metadata_cache_bytes(4 << 20);
    let volume = match options.open_device(Arc::clone(device) as Arc<dyn BlockDevice>) {
        Ok(volume) => volume,
        Err(e) => return Ok(Meddled::Refused(explained(&e))),
    };
    let paths = paths(&volume);
    let (mut done, mut refused) = (0, 0);
    let Some(mut before) = settled(&volume, device) else { return Ok(Meddled::Done(0, 0)) };
    for (step, script) in script.chunks_exact(STEP).enumerate() {
        let op = Op::of(script, step, &paths);
        let mut owners = op.owners(&volume);
        let result = op.carry_out(&volume);
        match &result {
            Ok(()) => done += 1,
            Err(e) => {
                explained(e);
                refused += 1;
            }
        }
        // Without a journal that works nothing more is written.
        let Some(after) = settled(&volume, device) else { break };
        owners.extend(op.owners(&volume));
        judge(&before, &after, &owners).map_err(|said| format!("{op:?} ({result:?}): {said}"))?;
        before = after;
    }
    if let Err(e) = volume.close() {
        explained(&e);
    }
    Ok(Meddled::Done(done, refused))
}

/// The bytes of the volume with all changes home. `None` where it cannot be written any more.
fn settled(volume: &Volume, device: &OverlayDevice) -> Option<Vec<u8>> {
    volume.sync().and_then(|()| volume.upkeep(Upkeep::Sweep)).ok()?;
    // The sweep may have changed inodes that it let go.
    volume.sync().and_then(|()| volume.upkeep(Upkeep::Checkpoint)).ok()?;
    Some(device.image().to_bytes())
}

/// Paths of the volume, breadth first, those of the root first.
fn paths(volume: &Volume) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    let mut next = 0;
    while let Some(dir) = found.get(next).cloned().filter(|_| found.len() < PATHS) {
        next += 1;
        let is_dir = volume.symlink_metadata(&dir).is_ok_and(|meta| meta.is_dir());
        let names = if is_dir { volume.read_dir(&dir).unwrap_or_default() } else { Vec::new() };
        found.extend(names.into_iter().take(12).map(|entry| dir.join(entry.name)));
    }
    found
}
