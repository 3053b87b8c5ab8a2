//! The settings that workloads run in: a volume, a writeback mode, and pressure.

use super::volume::{SHAPES, Shape, Start};
use crate::{VirtualClock, modes};
use lanefs::{OpenOptions, Timestamp};
use lanefs_device::Persistence;
use lanefs_sim::OverlayDevice;
use std::sync::Arc;
use std::time::Duration;

/// Pressure: events that are usually rare happen at every step of a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Files with a name are closed, and all unreferenced inodes are evicted.
    pub sweep: bool,
    /// The running transaction is committed.
    pub commit: bool,
    /// Committed transactions are checkpointed, and every cached metadata block is dropped, while
    /// the files stay open.
    pub cold: bool,
    /// Bytes of the page cache, if there are to be few.
    pub cache: Option<usize>,
    /// Late writes of whole blocks go past the page cache, as those of many blocks do.
    pub past: bool,
    /// All pages of the open files are dirty when the first step begins.
    pub dirty: bool,
    /// The log is nearly full when the first step begins.
    pub full_log: bool,
    /// The attributes of all inodes are read behind each step, so that the next change of an inode
    /// makes a new version.
    pub looked: bool,
    /// Another thread commits before writes to the device, so also between the data of a file and
    /// what maps it.
    pub poke: bool,
}

/// The setting of workloads.
#[derive(Debug)]
pub struct Setting {
    /// Its name, as a case begins with it.
    pub name: &'static str,
    shape: &'static str,
    mode: &'static str,
    /// What happens at each step.
    pub pressure: Pressure,
    /// Whether the volume survives a crash: whether it has a journal. One without is judged as it
    /// was at each flush and sync; of other states only old data that a file shows is looked for.
    pub crashes: bool,
    /// What a completed write survives, if the device is memory (DAX): memory that stands for
    /// persistent memory, or the mapping of a file on a disk.
    pub memory: Option<Persistence>,
    /// The alignment that the device asks for: more than 1 if it is open for direct I/O.
    pub alignment: usize,
    /// The device is an export of an NBD server, which is killed or loses its connection at each
    /// flush.
    pub nbd: bool,
}

const CALM: Pressure = Pressure {
    sweep: false,
    commit: false,
    cold: false,
    cache: None,
    past: false,
    dirty: false,
    full_log: false,
    looked: false,
    poke: false,
};
const SWEEP: Pressure = Pressure { sweep: true, ..CALM };
const COMMIT: Pressure = Pressure { commit: true, ..CALM };
const COLD: Pressure = Pressure { cold: true, ..CALM };
const FULL_LOG: Pressure = Pressure { full_log: true, ..CALM };
const LOOKED: Pressure = Pressure { looked: true, ..CALM };
const POKE: Pressure = Pressure { poke: true, ..CALM };
const DIRTY: Pressure = Pressure { dirty: true, commit: true, ..CALM };
const PAST: Pressure = Pressure { past: true, ..CALM };
const TINY: Pressure = Pressure { cache: Some(16 << 10), ..CALM };

const fn setting_of(
    name: &'static str,
    shape: &'static str,
    mode: &'static str,
    pressure: Pressure,
) -> Setting {
    Setting { name, shape, mode, pressure, crashes: true, memory: None, alignment: 1, nbd: false }
}

static SETTINGS: [Setting; 28] = [
    setting_of("small", "small", "default", CALM),
    setting_of("full", "full", "default", CALM),
    setting_of("sweep", "small", "default", SWEEP),
    setting_of("ext3", "ext3", "default", CALM),
    setting_of("orphan-file", "orphan-file", "default", CALM),
    setting_of("mmp", "mmp", "default", CALM),
    setting_of("old", "small", "old", CALM),
    setting_of("nolock", "small", "nolock", CALM),
    setting_of("lock", "small", "lock", CALM),
    setting_of("pressed", "ext3", "pressed", CALM),
    setting_of("unwritten", "full", "unwritten", CALM),
    setting_of("tiny-cache", "small", "default", TINY),
    setting_of("past", "small", "default", PAST),
    setting_of("dirty", "small", "default", DIRTY),
    setting_of("aged", "aged", "default", CALM),
    setting_of("commit", "full", "default", COMMIT),
    setting_of("cold", "small", "default", COLD),
    setting_of("full-log", "small", "default", FULL_LOG),
    setting_of("looked", "small", "default", LOOKED),
    setting_of("poke", "small", "default", POKE),
    setting_of("poke-lock", "small", "lock", POKE),
    setting_of("poke-unwritten", "small", "unwritten", POKE),
    Setting { alignment: 512, ..setting_of("sectors", "small", "default", CALM) },
    Setting { nbd: true, ..setting_of("nbd", "small", "default", CALM) },
    Setting { memory: Some(Persistence::Process), ..setting_of("dax", "small", "default", CALM) },
    Setting { memory: Some(Persistence::Process), ..setting_of("dax-full", "full", "nolock", SWEEP) },
    Setting { memory: Some(Persistence::Flush), ..setting_of("dax-disk", "small", "default", CALM) },
    Setting { crashes: false, ..setting_of("no-journal", "no-journal", "default", CALM) },
];

/// All settings.
pub fn settings() -> &'static [Setting] {
    &SETTINGS
}

/// The setting of this name.
///
/// # Errors
/// The names that there are.
pub fn setting(name: &str) -> Result<&'static Setting, String> {
    let names = || SETTINGS.iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
    let found = SETTINGS.iter().find(|setting| setting.name == name);
    found.ok_or_else(|| format!("there is no setting '{name}': {}", names()))
}

/// Returns the clock of multiple mount protection: a recovery waits for the host of the run, in no
/// time.
fn clock() -> Arc<VirtualClock> {
    Arc::new(VirtualClock::of_one_host())
}

/// The time of all that a workload does: a run is the same twice.
pub(super) const RUN_AT: Timestamp = Timestamp { sec: 1_500_000_000, nsec: 0 };

impl Setting {
    /// The volume before the first step; made once in a process.
    ///
    /// # Panics
    /// If it cannot be made.
    pub(super) fn start(&self) -> &Start {
        self.shape().start()
    }

    /// The volume's shape.
    ///
    /// # Panics
    /// If the table names none.
    pub(super) fn shape(&self) -> &'static Shape {
        SHAPES.iter().find(|shape| shape.name == self.shape).expect("a shape of the table")
    }

    /// Options to open the volume with.
    ///
    /// # Panics
    /// If the table names no mode.
    pub fn options(&self) -> OpenOptions {
        let mode = modes::mode(self.mode).expect("a mode of the table");
        let options = mode.options().clock(Some(RUN_AT)).mmp_clock(clock());
        let options = if self.pressure.past { options.past_cache(self.start().model.block) } else { options };
        self.pressure.cache.map_or(options.clone(), |bytes| options.cache_bytes(bytes))
    }

    /// Returns whether every call of the device is the same each time, and may fail: the device is
    /// no memory, and no other thread commits. Nor does the campaign itself read between the steps.
    pub fn can_fail(&self) -> bool {
        self.memory.is_none() && !self.pressure.poke && !self.pressure.looked
    }

    /// Returns whether a case takes several times as long as another, for what the volume holds or
    /// for its device: workloads of two operations are too many for it.
    pub fn is_slow(&self) -> bool {
        self.shape().names > 0 || self.nbd
    }

    /// Returns whether metadata has checksums.
    pub(super) fn has_checksums(&self) -> bool {
        self.shape().has_checksums()
    }

    /// Makes a device for a recovery, which asks for the alignment that the device of the run did.
    pub(super) fn to_recover(&self, device: OverlayDevice) -> Arc<OverlayDevice> {
        Arc::new(device.with_alignment(self.alignment))
    }

    /// Options to recover a state with: all is as small as can be, for states are many.
    pub fn recovery(&self) -> OpenOptions {
        let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
        options.clock(Some(RUN_AT)).mmp_clock(clock()).cache_bytes(1 << 20).threads(false)
    }
}
