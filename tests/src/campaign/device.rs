//! The devices that a run of the crash campaign writes to.

use super::setting::Setting;
use lanefs_device::{BlockDevice, Mapped, Persistence};
use lanefs_sim::{Image, RecordingDevice, RecordingMemory};
use std::io;
use std::sync::Arc;
use tempfile::TempDir;

/// The unit in which a crash tears writes to memory, in bytes.
const TEAR: usize = 8;

/// Returns a device for the volume, and what records it.
///
/// # Errors
/// The system's; no folder has files that are mapped as the setting wants.
pub(super) fn device(
    setting: &Setting,
    image: &Image,
) -> Result<(Arc<dyn BlockDevice>, Arc<RecordingDevice>), String> {
    let Some(persistence) = setting.memory else {
        let device = Arc::new(RecordingDevice::new(image.clone()).with_alignment(setting.alignment));
        return Ok((Arc::clone(&device) as _, device));
    };
    // The mapping outlives the name.
    let dir = folder_of(persistence).map_err(|e| format!("a folder for a mapping: {e}"))?;
    let device = RecordingMemory::create(dir.path().join("memory"), image.clone(), TEAR, persistence);
    let device = device.map_err(|e| e.to_string())?;
    // What the engine is told of the mapping has to be what the states are made by.
    let told = device.mapped().map(Mapped::persistence);
    if told != Some(persistence) {
        let at = dir.path().display();
        return Err(format!("a mapping of {persistence:?} is wanted, and one in {at} is of {told:?}"));
    }
    let record = Arc::clone(device.record());
    Ok((Arc::new(device), record))
}

/// Returns a folder whose files are mapped with this persistence: in memory, or on the disk that
/// has the program itself.
fn folder_of(persistence: Persistence) -> io::Result<TempDir> {
    match persistence {
        Persistence::Process => tempfile::tempdir_in("/dev/shm"),
        _ => {
            let program = std::env::current_exe()?;
            tempfile::tempdir_in(program.parent().ok_or(io::ErrorKind::NotFound)?)
        }
    }
}
