//! The devices that a run of the crash campaign writes to.

use super::setting::Setting;
use crate::memory_dir;
use lanefs_device::{BlockDevice, FileOptions, Mapped, NbdDevice, Persistence, forward_to};
use lanefs_sim::{Image, NbdFault, NbdKind, NbdServer, NbdSettings, RecordingDevice, RecordingMemory};
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
        let shared: Arc<dyn BlockDevice> = match setting.nbd {
            true => Arc::new(Export::of(Arc::clone(&device) as _, &device, &BREAKDOWNS)?),
            false => Arc::clone(&device) as _,
        };
        return Ok((shared, device));
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

/// What an NBD server does to the connection at a flush, by the seed of a loss.
type Breakdown = fn(u64) -> NbdFault;

/// The flush is not carried out, or carried out and not answered; or the server is killed before
/// it (an odd seed), loses a part of what was not flushed, and comes back.
const BREAKDOWNS: [Breakdown; 3] = [|_| NbdFault::Close, |_| NbdFault::CloseUnanswered, NbdFault::Kill];

/// Kills alone, for a device that fails: a flush that fails unheard is no failure, because the
/// client writes again and flushes again.
const KILLS: [Breakdown; 1] = [NbdFault::Kill];

/// The mark of a kill in the log. The writes up to the next flush repeat earlier ones.
pub(super) const KILLED: &str = "killed";

/// Flushes of a run at which the connection is lost.
const MOST_LOSSES: u64 = 100;

/// Returns the device that the engine has over `below`, which may fail and which `record` records:
/// itself, or an export of it where the setting has a server.
///
/// # Errors
/// The server does not start.
pub(super) fn over_failing(
    setting: &Setting,
    below: Arc<dyn BlockDevice>,
    record: &Arc<RecordingDevice>,
) -> Result<Arc<dyn BlockDevice>, String> {
    match setting.nbd {
        true => Ok(Arc::new(Export::of(below, record, &KILLS)?)),
        false => Ok(below),
    }
}

/// A device as the export of an NBD server in this process.
///
/// The same calls reach the device below in each run. One thread at a time sends, on one
/// connection, and it is lost only at a flush, beside which no request is in flight: elsewhere time
/// would decide which answers had come. `is_remote` is not passed on, because the engine then
/// writes back in several threads.
#[derive(Debug)]
struct Export {
    // Dropped in this order.
    client: NbdDevice,
    _server: NbdServer,
    _dir: TempDir,
}

impl Export {
    /// Starts a server of `below`, whose kills lose what `record` below it has not flushed.
    fn of(
        below: Arc<dyn BlockDevice>,
        record: &Arc<RecordingDevice>,
        breakdowns: &[Breakdown],
    ) -> Result<Self, String> {
        let dir = memory_dir();
        let lost = Arc::clone(record);
        let lose = move |seed| {
            lost.mark(KILLED);
            lost.lose(seed);
        };
        let server = NbdServer::start_on(dir.path(), below, lose, NbdSettings::default());
        let server = server.map_err(|e| format!("an NBD server: {e}"))?;
        for (number, breakdown) in (1..=MOST_LOSSES).zip(breakdowns.iter().cycle()) {
            // The one after it is the same flush, sent again.
            server.fault(Some(NbdKind::Flush), 2 * number, breakdown(2 * number + 1));
        }
        let client = NbdDevice::open(&server.url("&timeout=30&reconnect=60"), None, &FileOptions::new());
        let client = client.map_err(|e| format!("an NBD client: {e}"))?;
        Ok(Self { client, _server: server, _dir: dir })
    }
}

impl BlockDevice for Export {
    forward_to!(client: size read_only alignment sector_size owner name read_at read_batch write_at);
    forward_to!(client: write_batch guard_repeats flush discard write_zeroes);
}
