//! Assembles a store from a superblock, a log and a survey of the volume.

use super::alloc::{Alloc, discard_freed};
use super::dimensions::{Dimensions, History};
use super::generations::Generations;
use super::inode_table::own_inodes;
use super::orphan::Orphans;
use super::xattr::Sharing;
use super::{Clock, Counters, Store, Survey};
use crate::error::Result;
use lanefs_device::{BlockDevice, Persistence};
use lanefs_format::{Superblock, Timestamp};
use lanefs_journal::{Journal, LogConfig};
use lanefs_sync::atomic::AtomicBool;
use lanefs_sync::time::realtime;
use lanefs_sync::{Mutex, OnceLock};
use std::sync::Arc;
use std::time::Duration;

/// The options of a volume that concern its store.
#[derive(Default)]
pub(crate) struct Config {
    /// The volume is not changed.
    pub(crate) read_only: bool,
    /// Bytes of metadata in memory.
    pub(crate) cache: usize,
    /// The longest time between a change and its commit; zero for none.
    pub(crate) commit_interval: Duration,
    /// The time of all changes, in place of the system's.
    pub(crate) clock: Option<Timestamp>,
    /// All stamps are those of the kernel's tick.
    pub(crate) tick_times: bool,
    /// Every caller may use the reserved blocks.
    pub(crate) use_reserved: bool,
    /// Freed blocks are discarded.
    pub(crate) discard: bool,
    /// Content goes past the page cache where the device is memory.
    pub(crate) dax: bool,
    pub(crate) acl: bool,
    /// Called at the first use of the journal's cache after it was last checked for use.
    pub(crate) on_use: Option<Box<dyn Fn() + Send + Sync>>,
    /// The journal has threads in the background.
    pub(crate) threads: bool,
}

impl Store {
    /// Assembles a store.
    ///
    /// # Errors
    /// The errors of [`Journal::open`].
    pub(crate) fn assemble(
        device: Arc<dyn BlockDevice>,
        sb: Superblock,
        log: Option<&LogConfig>,
        survey: &Survey,
        config: Config,
    ) -> Result<Self> {
        let layout = sb.layout();
        // The superblock's free counts are right only after a clean close. After a crash, a torn
        // write, or a bitmap that could not be read, they would lose space for good.
        let alloc = Arc::new(Alloc::new(&layout, &survey.free, config.read_only));
        let on_freed = Arc::clone(&alloc);
        let (to_discard, block_size) = (config.discard.then(|| Arc::clone(&device)), sb.block_size());
        let journal = Journal::open(
            Arc::clone(&device),
            lanefs_journal::Options {
                // A smaller block occupies a page of memory all the same.
                cache_blocks: config.cache / block_size.max(4096) as usize,
                on_use: config.on_use,
                log: log.filter(|_| !config.read_only).cloned(),
                commit_interval: config.commit_interval,
                on_freed: Some(Box::new(move |freed| {
                    if let Some(device) = &to_discard {
                        discard_freed(&**device, block_size, freed);
                    }
                    on_freed.freed(freed);
                })),
                read_only: config.read_only,
                threads: config.threads,
                clock: config.clock.map(|t| Duration::new(t.sec.max(0).unsigned_abs(), t.nsec)),
                ..lanefs_journal::Options::new(block_size)
            },
        )?;
        let runs = log.map(|l| l.runs.as_slice()).unwrap_or_default();
        let journal_blocks = runs.iter().map(|r| u64::from(r.len)).sum();
        Ok(Self {
            checksummer: sb.checksummer(),
            block_size,
            inode_ctx: sb.inode_context(),
            first_ino: sb.first_ino(),
            own_inodes: own_inodes(&sb),
            features: sb.features(),
            use_reserved: config.use_reserved,
            journal_blocks,
            dimensions: History::new(Dimensions::new(&sb, Arc::clone(&survey.zones), journal_blocks)),
            resizing: Mutex::new(()),
            xattr_sharing: Sharing::default(),
            orphans: Orphans::default(),
            table_ahead: Default::default(),
            generations: Generations::new(first_generation(&sb, config.clock)),
            clock: Clock::new(config.clock, config.tick_times, sb.inode_context().inode_size == 128),
            counters: Counters::new(),
            acl: config.acl,
            dax: config.dax && device.mapped().is_some(),
            writes_last: device.mapped().is_some_and(|memory| memory.persistence() != Persistence::Flush),
            sb: Mutex::new(sb),
            super_buffer: OnceLock::new(),
            closed: AtomicBool::new(false),
            error: Mutex::new(None),
            device,
            journal,
            alloc,
            read_only: config.read_only,
        })
    }
}

/// Returns the first of the numbers that inode generations are made of: different at each open, but
/// always the same under a fixed clock.
fn first_generation(sb: &Superblock, clock: Option<Timestamp>) -> u32 {
    let stamp = match clock {
        Some(clock) => clock.sec as u64,
        None => realtime(),
    };
    lanefs_format::ext4_chksum(u32::from(sb.raw().s_mnt_count.get()), &stamp.to_le_bytes())
}
