//! Opens a volume: claims it, parses it, recovers it, and finishes its orphans.
//!
//! A volume that is refused is not written. So recovery runs in memory first ([`Overlay`]) and the
//! result is checked. Only then is the log replayed on the device. A volume that is opened for
//! reading stays on the overlay.

use super::data::Combiner;
use super::dirty_times::DirtyTimes;
use super::file::cache::PageCache;
use super::flusher::Flusher;
use super::inode::InodeCache;
use super::mmp::HostClaim;
use super::writers::Writers;
use super::{Fs, OpenOptions, Recovery};
use crate::error::{Corrupt, Error, Result};
use crate::store::{Config, ROOT_INO, Store, Survey, log_place, orphan, read_super, resize, write_super};
use lanefs_device::{BlockDevice, Overlay};
use lanefs_format::{Compat, Incompat, State, Superblock};
use lanefs_journal::{LogConfig, recovery};
use lanefs_sync::Mutex;
use lanefs_sync::atomic::{AtomicU64, AtomicUsize};
use lanefs_sync::time::realtime;
use std::sync::Arc;

/// A volume with its log replayed in memory. The device has not been written.
struct Replayed {
    /// The superblock before the replay.
    sb: Superblock,
    /// The superblock after the replay.
    recovered: Superblock,
    log: Option<LogConfig>,
    /// Whether the log has transactions to replay.
    dirty: bool,
    /// The device as it is after the replay.
    scratch: Arc<dyn BlockDevice>,
    survey: Survey,
    recovery: Recovery,
}

impl Replayed {
    /// Reads the superblock, and replays the log over the device.
    fn read(device: &Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Self> {
        let sb = read_super(&**device)?;
        check_features(&sb, options.write)?;
        if options.write && device.read_only() {
            return Err(Error::ReadOnly);
        }
        if options.write && options.noload {
            return Err(Error::Invalid("noload is for reading only: add ro"));
        }
        let log = if options.noload { None } else { log_place::find(device, &sb)? };
        let dirty = match &log {
            Some(log) => recovery::is_needed(&**device, sb.block_size(), log)?,
            None => false,
        };
        let mut recovery = Recovery::default();
        let scratch: Arc<dyn BlockDevice> = match &log {
            Some(log) if dirty => {
                let overlay = Overlay::new(Arc::clone(device));
                recovery.journal = recovery::recover(&overlay, sb.block_size(), log)?;
                Arc::new(overlay)
            }
            _ => Arc::clone(device),
        };
        let recovered = read_super(&*scratch)?;
        check_features(&recovered, options.write)?;
        if let Some(log) = log.as_ref().filter(|_| dirty) {
            log_place::confirm(&scratch, &sb, &recovered, log)?;
        }
        // The same log is replayed in memory and on the device: one survey serves both.
        let survey = Survey::read(&*scratch, &recovered, log.as_ref(), options.write)?;
        Ok(Self { sb, recovered, log, dirty, scratch, survey, recovery })
    }
}

impl Fs {
    /// Opens the volume on `device`. Claims it first, if it has multiple mount protection.
    pub(crate) fn open(device: Arc<dyn BlockDevice>, mut options: OpenOptions) -> Result<Arc<Self>> {
        options.fix_cache();
        let sb = read_super(&*device)?;
        check_features(&sb, options.write)?;
        if options.write && device.read_only() {
            return Err(Error::ReadOnly);
        }
        let (claimed, claim) = Self::claim(&device, &sb, &options)?;
        let replayed = Replayed::read(&claimed, &options)?;
        if sb.has_in(Incompat::MMP) || !replayed.recovered.has_in(Incompat::MMP) {
            return Self::open_replayed(claimed, claim, replayed, options);
        }
        // The log switches multiple mount protection on.
        let (device, claim) = Self::claim(&device, &replayed.recovered, &options)?;
        let replayed = Replayed::read(&device, &options)?;
        Self::open_replayed(device, claim, replayed, options)
    }

    /// Opens the volume on `device`, which is the fenced device of a claim that the caller has.
    pub(crate) fn open_claimed(device: Arc<dyn BlockDevice>, mut options: OpenOptions) -> Result<Arc<Self>> {
        options.fix_cache();
        let replayed = Replayed::read(&device, &options)?;
        Self::open_replayed(device, None, replayed, options)
    }

    /// Claims the volume of `sb`. Returns the device to use from then on.
    fn claim(
        device: &Arc<dyn BlockDevice>,
        sb: &Superblock,
        options: &OpenOptions,
    ) -> Result<(Arc<dyn BlockDevice>, Option<HostClaim>)> {
        Ok(match HostClaim::take(device, sb, options)? {
            Some((fenced, claim)) => (fenced, Some(claim)),
            None => (Arc::clone(device), None),
        })
    }

    fn open_replayed(
        device: Arc<dyn BlockDevice>,
        claim: Option<HostClaim>,
        replayed: Replayed,
        options: OpenOptions,
    ) -> Result<Arc<Self>> {
        let Replayed { sb, recovered, log, dirty, scratch, survey, mut recovery } = replayed;
        let reading = OpenOptions { write: false, ..options.clone() };
        let mut trial = Self::new(Arc::clone(&scratch), recovered.clone(), log.as_ref(), &survey, reading)?;
        look(&trial)?;
        trial.recovery = recovery;
        if !options.write {
            let trial = Arc::new(trial);
            if options.release_memory && options.threads {
                trial.flusher.start(&trial)?;
            }
            return Ok(trial);
        }
        recovery.orphans = orphan::check(&trial)?;
        if let Some(log) = &log {
            recovery::check_log(&*scratch, sb.block_size(), log)?;
        }
        drop(trial);
        if dirty {
            resize::renew_copies(&device, &sb, &scratch, &recovered)?;
        }
        let errno = match &log {
            Some(log) => recovery::recover(&*device, sb.block_size(), log)?.errno,
            None => 0,
        };
        // Not read again: a device that now returns other bytes must not bypass the checks above.
        let mut sb = recovered;
        if errno != 0 {
            sb.set_state(sb.state() | State::ERROR_FS);
        }
        if log.is_some() && sb.has_in(Incompat::RECOVER) {
            log_place::renew_copy(&device, &mut sb)?;
        }
        let state = sb.state();
        mark_open(&mut sb, &options, log.is_some());
        write_super(&*device, &sb)?;
        device.flush()?;
        // The superblock now records that the journal was aborted.
        if let Some(log) = log.as_ref().filter(|_| errno != 0) {
            recovery::clear_errno(&*device, sb.block_size(), log)?;
        }
        if let Some(claim) = claim.as_ref().filter(|_| !sb.has_in(Incompat::MMP)) {
            // The log has switched multiple mount protection off.
            claim.dissolve();
        }
        let mut fs = Self::new(device, sb, log.as_ref(), &survey, options)?;
        (fs.state_at_open, fs.recovery, fs.claim) = (state, recovery, claim);
        fs.hold_super()?;
        let fs = Arc::new(fs);
        let begun = fs.finish_orphans().and_then(|()| match fs.options.threads {
            true => fs.flusher.start(&fs),
            false => Ok(()),
        });
        // Cached inodes and the volume keep each other, and nothing else has them yet.
        begun.inspect_err(|_| fs.release())?;
        Ok(fs)
    }

    /// Assembles a volume above a store; read-only unless `options` ask for writing.
    fn new(
        device: Arc<dyn BlockDevice>,
        sb: Superblock,
        log: Option<&LogConfig>,
        survey: &Survey,
        options: OpenOptions,
    ) -> Result<Self> {
        let (flusher, state) = (Flusher::default(), sb.state());
        let config = Config {
            read_only: !options.write,
            cache: options.metadata_cache(),
            commit_interval: options.commit_interval,
            clock: options.clock,
            tick_times: options.tick_times,
            use_reserved: options.use_reserved,
            discard: options.modes.discard,
            dax: options.modes.dax,
            acl: options.modes.acl,
            on_use: Some(Box::new(flusher.stirrer())),
            threads: options.threads,
        };
        let store = Store::assemble(device, sb, log, survey, config)?;
        Ok(Self {
            inodes: InodeCache::new(),
            topology: Mutex::new(()),
            state_at_open: state,
            recovery: Recovery::default(),
            pages: PageCache::new(store.block_size, options.cache()),
            flusher,
            combiner: Combiner::default(),
            dirty_times: DirtyTimes::default(),
            writers: Writers::default(),
            closing: Mutex::default(),
            clearing: Mutex::default(),
            unflushed: AtomicU64::new(0),
            users: AtomicUsize::new(1),
            claim: None,
            store,
            options,
        })
    }
}

/// Checks the root directory, which every use of the volume needs.
fn look(store: &Store) -> Result<()> {
    let root = store.read_inode(ROOT_INO)?;
    if !root.is_dir() {
        return Err(Corrupt::SpecialInode { ino: ROOT_INO, role: "root", rule: "is no directory" }.into());
    }
    if root.links_count == 0 {
        return Err(Corrupt::DeadInode { ino: ROOT_INO }.into());
    }
    Ok(())
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

/// Marks the superblock of a volume that is opened for writing.
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
