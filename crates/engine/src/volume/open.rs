//! Opening a volume: parse, recover, finish the orphans.
//!
//! Nothing is written to a volume that is refused. So recovery runs in memory first
//! ([`Overlay`]), the result is looked at, and only then is the log replayed on the device. A
//! volume opened for reading stays on the overlay.

use super::dirty_times::DirtyTimes;
use super::flusher::Flusher;
use super::inode_table::own_inodes;
use super::zones::Survey;
use super::{Clock, Fs, OpenOptions, Recovery, log_place, torn};
use crate::alloc::{Alloc, discard_freed};
use crate::data::{Combiner, PageCache};
use crate::dir::DirParams;
use crate::error::{Corrupt, Error, Result};
use crate::inode::{NodeTable, ROOT_INO};
use crate::orphan::{self, Orphans};
use crate::stats::Counters;
use crate::xattr::Sharing;
use lanefs_device::{AlignedBuf, BlockDevice, Overlay, Persistence};
use lanefs_format::{Compat, FormatError, State, Superblock};
use lanefs_journal::{Journal, LogConfig, recovery};
use lanefs_sync::Mutex;
use lanefs_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use lanefs_sync::time::realtime;
use std::sync::Arc;
use std::time::Duration;

impl Fs {
    /// Opens the volume on `device`.
    pub(crate) fn open(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Arc<Self>> {
        let sb = read_super(&*device)?;
        check_features(&sb, options.write)?;
        if options.write && device.read_only() {
            return Err(Error::ReadOnly);
        }
        if options.write && options.noload {
            return Err(Error::Invalid("noload is for reading only: add ro"));
        }
        let log = if options.noload { None } else { log_place::find(&device, &sb, &options)? };
        let dirty = match &log {
            Some(log) => recovery::is_needed(&*device, sb.block_size(), log)?,
            None => false,
        };
        let mut recovery = Recovery::default();
        let scratch: Arc<dyn BlockDevice> = match &log {
            Some(log) if dirty => {
                let overlay = Overlay::new(Arc::clone(&device));
                recovery.journal = recovery::recover(&overlay, sb.block_size(), log)?;
                Arc::new(overlay)
            }
            _ => Arc::clone(&device),
        };
        let recovered = read_super(&*scratch)?;
        check_features(&recovered, options.write)?;
        if let Some(log) = log.as_ref().filter(|_| dirty) {
            log_place::confirm(&scratch, &sb, &recovered, &options, log)?;
        }
        // The log replayed in memory is the one replayed on the device: one look serves both.
        let survey = Survey::read(&*scratch, &recovered, log.as_ref(), options.write)?;
        let mut trial =
            Self::assemble(Arc::clone(&scratch), recovered, log.as_ref(), &survey, options.clone(), true)?;
        trial.look()?;
        if let Some(trial) = Arc::get_mut(&mut trial) {
            trial.recovery = recovery;
        }
        if !options.write {
            if options.release_memory {
                trial.flusher.start(&trial)?;
            }
            return Ok(trial);
        }
        recovery.orphans = orphan::check(&trial)?;
        if let Some(log) = &log {
            recovery::check_log(&*scratch, sb.block_size(), log)?;
        }
        drop(trial);
        let errno = match &log {
            Some(log) => recovery::recover(&*device, sb.block_size(), log)?.errno,
            None => 0,
        };
        let mut sb = read_super(&*device)?;
        if errno != 0 {
            sb.set_state(sb.state() | State::ERROR_FS);
        }
        let state = sb.state();
        mark_open(&mut sb, &options, log.is_some());
        write_super(&*device, &sb)?;
        device.flush()?;
        // That the journal was aborted is the volume's to tell from now on.
        if let Some(log) = log.as_ref().filter(|_| errno != 0) {
            recovery::clear_errno(&*device, sb.block_size(), log)?;
        }
        let mut fs = Self::assemble(device, sb, log.as_ref(), &survey, options, false)?;
        if let Some(fs) = Arc::get_mut(&mut fs) {
            fs.state_at_open = state;
            fs.recovery = recovery;
        }
        let _ = fs.super_buffer.set(fs.read_super_buffer()?);
        orphan::recover(&fs)?;
        fs.flusher.start(&fs)?;
        Ok(fs)
    }

    /// Puts the parts together.
    pub(super) fn assemble(
        device: Arc<dyn BlockDevice>,
        sb: Superblock,
        log: Option<&LogConfig>,
        survey: &Survey,
        options: OpenOptions,
        read_only: bool,
    ) -> Result<Arc<Self>> {
        let layout = sb.layout();
        // The superblock's free counts are only as right as the last close: a crash, a tear, or a
        // bitmap that could not be read then would cost space for good.
        let (free_blocks, free_inodes) = survey.free;
        let alloc = Arc::new(Alloc::new(&layout, free_blocks, free_inodes));
        let on_freed = Arc::clone(&alloc);
        let flusher = Flusher::default();
        let (to_discard, block_size) = (options.modes.discard.then(|| Arc::clone(&device)), sb.block_size());
        let journal = Journal::open(
            Arc::clone(&device),
            lanefs_journal::Options {
                // A smaller block takes a page of memory all the same.
                cache_blocks: options.metadata_cache() / sb.block_size().max(4096) as usize,
                on_use: Some(Box::new(flusher.stirrer())),
                log: log.filter(|_| !read_only).cloned(),
                commit_interval: options.commit_interval,
                on_freed: Some(Box::new(move |freed| {
                    if let Some(device) = &to_discard {
                        discard_freed(&**device, block_size, freed);
                    }
                    on_freed.freed(freed);
                })),
                read_only,
                clock: options.clock.map(|t| Duration::new(t.sec.max(0).unsigned_abs(), t.nsec)),
                ..lanefs_journal::Options::new(sb.block_size())
            },
        )?;
        let runs = log.map(|l| l.runs.as_slice()).unwrap_or_default();
        let fs = Arc::new(Self {
            checksummer: sb.checksummer(),
            block_size: sb.block_size(),
            inode_ctx: sb.inode_context(),
            first_ino: sb.first_ino(),
            own_inodes: own_inodes(&sb),
            features: sb.features(),
            reserved_blocks: sb.reserved_blocks_count(),
            overhead: lanefs_sync::OnceLock::new(),
            journal_blocks: runs.iter().map(|r| u64::from(r.len)).sum(),
            dirs: DirParams::new(&sb),
            xattr_sharing: Sharing::default(),
            zones: Arc::clone(&survey.zones),
            nodes: NodeTable::new(),
            orphans: Orphans::default(),
            state_at_open: sb.state(),
            recovery: Recovery::default(),
            generation: AtomicU32::new(first_generation(&sb, &options)),
            topology: Mutex::new(()),
            error: Mutex::new(None),
            clock: Clock::new(options.clock, options.tick_times, sb.inode_context().inode_size == 128),
            pages: PageCache::new(sb.block_size(), options.cache()),
            flusher,
            combiner: Combiner::default(),
            counters: Counters::new(),
            dax: options.modes.dax && device.mapped().is_some(),
            writes_last: device.mapped().is_some_and(|memory| memory.persistence() != Persistence::Flush),
            dirty_times: DirtyTimes::default(),
            unflushed: AtomicU64::new(0),
            users: AtomicUsize::new(1),
            sb: Mutex::new(sb),
            super_buffer: lanefs_sync::OnceLock::new(),
            closed: AtomicBool::new(false),
            device,
            layout,
            journal,
            alloc,
            options,
            read_only,
        });
        Ok(fs)
    }

    /// Looks at what every use of the volume needs.
    fn look(&self) -> Result<()> {
        let root = self.read_inode(ROOT_INO)?;
        if !root.is_dir() {
            return Err(Corrupt::SpecialInode { ino: ROOT_INO, role: "root", rule: "is no directory" }.into());
        }
        if root.links_count == 0 {
            return Err(Corrupt::DeadInode { ino: ROOT_INO }.into());
        }
        Ok(())
    }
}

/// Reads and checks the superblock. One that was torn is [mended](torn::mend).
pub(crate) fn read_super(device: &dyn BlockDevice) -> Result<Superblock> {
    // Whole and aligned, as a direct device wants it.
    let mut bytes = AlignedBuf::zeroed(4096);
    if device.size() < 4096 {
        let (size, magic) = (device.size(), "too small to hold a superblock");
        return Err(Error::NotVolume { size, rule: magic });
    }
    device.read_at(0, &mut bytes)?;
    let bytes = &bytes[1024..2048];
    let sb = match Superblock::parse(bytes) {
        Err(e @ FormatError::SuperblockChecksum { .. }) => torn::mend(device, bytes)?.ok_or(e)?,
        sb => sb?,
    };
    sb.check_device(device.size())?;
    Ok(sb)
}

/// Writes the superblock as it stands, past the journal: only while that holds nothing.
pub(super) fn write_super(device: &dyn BlockDevice, sb: &Superblock) -> Result<()> {
    // An alignment is never larger than a block, so nobody else's bytes are in between.
    let size = device.alignment().max(1024);
    let start = 1024 / size * size;
    let mut bytes = AlignedBuf::zeroed(size);
    if size > 1024 {
        device.read_at(start as u64, &mut bytes)?;
    }
    bytes[1024 - start..2048 - start].copy_from_slice(&sb.encode());
    Ok(device.write_at(start as u64, &bytes)?)
}

fn check_features(sb: &Superblock, write: bool) -> Result<()> {
    let unsupported = sb.unsupported();
    if !unsupported.unreadable.is_empty() {
        let names = unsupported.unreadable.join(", ");
        return Err(Error::NotSupported(format!(
            "the volume has features that lanefs does not read: {names}"
        )));
    }
    if write && !unsupported.unwritable.is_empty() {
        let names = unsupported.unwritable.join(", ");
        return Err(Error::NotSupported(format!(
            "the volume has features that lanefs does not write: {names}; open it read-only"
        )));
    }
    Ok(())
}

/// The first of the numbers that inode generations are made of: another at each open, or the
/// same twice under a fixed clock.
fn first_generation(sb: &Superblock, options: &OpenOptions) -> u32 {
    let stamp = match options.clock {
        Some(clock) => clock.sec as u64,
        None => realtime(),
    };
    lanefs_format::ext4_chksum(u32::from(sb.raw().s_mnt_count.get()), &stamp.to_le_bytes())
}

/// What a mount for writing changes in the superblock.
fn mark_open(sb: &mut Superblock, options: &OpenOptions, journal: bool) {
    let now = options.clock.map_or_else(|| realtime() / 1_000_000_000, |clock| clock.sec.max(0) as u64);
    sb.set_mtime(now);
    sb.set_wtime(now);
    sb.set_mnt_count(sb.raw().s_mnt_count.get().saturating_add(1));
    if journal {
        sb.set_recover(true);
    } else {
        sb.set_state(sb.state() - State::VALID_FS);
    }
    if sb.has(Compat::ORPHAN_FILE) {
        sb.set_orphan_present(true);
    }
}
