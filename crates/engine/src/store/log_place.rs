//! Finds the log.
//!
//! The journal's inode maps the log, and a group descriptor leads to that inode. A crash may leave
//! either of them torn. The superblock has a copy of the inode's map (`s_jnl_blocks`). If the inode
//! does not lead to a log, and the copy leads to one that waits for a replay, that one is replayed.
//!
//! Invariants:
//! - Recovery needs the superblock and the log. All other metadata is read after the replay.
//! - After a replay the journal's inode maps the blocks that were replayed ([`confirm`]). So the
//!   copy is never trusted: a volume whose copy and inode disagree is refused.

use super::{Config, Store, Survey};
use crate::error::{Corrupt, Error, Result};
use crate::store::map::{self, Mapping};
use lanefs_device::BlockDevice;
use lanefs_format::{Compat, Incompat, Inode, RoCompat, Superblock};
use lanefs_journal::{JournalError, LOG_RUNS_MAX, LogConfig, LogRun, recovery};
use std::sync::Arc;

/// Finds the log before its replay: by the journal's inode, or, if that cannot be read, by the
/// superblock's copy of its map, provided that the log there waits for a replay. Returns `None` for
/// a volume without a journal.
///
/// # Errors
/// The journal's inode cannot be read or is no log, and the copy leads to no log that waits for a
/// replay. The journal is on another device.
pub(crate) fn find(device: &Arc<dyn BlockDevice>, sb: &Superblock) -> Result<Option<LogConfig>> {
    let Some(ino) = journal_ino(sb)? else { return Ok(None) };
    let scout = scout(device, sb)?;
    let config = |runs| LogConfig {
        runs,
        metadata_csum: sb.has_ro(RoCompat::METADATA_CSUM),
        is_64bit: sb.has_in(Incompat::BIT64),
    };
    let by_copy = || {
        let Some(copy) = sb.journal_backup() else { return Ok(None) };
        let log = runs(&scout, &copy).map(config);
        let waits = |log| Ok(recovery::is_needed(&**device, sb.block_size(), &log)?.then_some(log));
        match log.and_then(waits) {
            // After a failed read it is not known whether a log waits there.
            Err(e @ (Error::Device(_) | Error::Journal(JournalError::Device(_)))) => Err(e),
            found => Ok(found.ok().flatten()),
        }
    };
    match scout.read_inode(ino).and_then(|inode| runs(&scout, &inode)) {
        Ok(runs) => Ok(Some(config(runs))),
        Err(e) => by_copy()?.map(Some).ok_or(e),
    }
}

/// Checks that the journal's inode on `device`, where `log` was replayed, maps that log, in blocks
/// of the size that the superblock had before.
///
/// # Errors
/// The inode cannot be read, is no log, or maps other blocks; the size of a block has changed
/// ([`Corrupt::SpecialInode`]).
pub(crate) fn confirm(
    device: &Arc<dyn BlockDevice>,
    before: &Superblock,
    recovered: &Superblock,
    log: &LogConfig,
) -> Result<()> {
    let ino = journal_ino(recovered)?.unwrap_or_default();
    let scout = scout(device, recovered)?;
    let inode = scout.read_inode(ino)?;
    let rule = "maps other blocks than those of the log that was replayed";
    let same_size = recovered.block_size() == before.block_size();
    if !same_size || runs(&scout, &inode)? != log.runs {
        return Err(Corrupt::SpecialInode { ino, role: "journal", rule }.into());
    }
    Ok(())
}

/// Renews the superblock's copy of the log's map. A move of the log that was cut leaves a copy that
/// leads to where the log would have come.
///
/// # Errors
/// The journal's inode cannot be read.
pub(crate) fn renew_copy(device: &Arc<dyn BlockDevice>, sb: &mut Superblock) -> Result<()> {
    let (Some(ino), Some(copy)) = (journal_ino(sb)?, sb.journal_backup()) else { return Ok(()) };
    let inode = scout(device, sb)?.read_inode(ino)?;
    if (copy.i_block, copy.size) != (inode.i_block, inode.size) {
        sb.set_journal_backup(&inode.i_block, inode.size);
    }
    Ok(())
}

/// Returns the number of the journal's inode, `None` without a journal.
fn journal_ino(sb: &Superblock) -> Result<Option<u32>> {
    if !sb.has(Compat::HAS_JOURNAL) {
        if sb.has_in(Incompat::RECOVER) {
            let rule = "needs_recovery is set without has_journal";
            return Err(Corrupt::SpecialInode { ino: 8, role: "journal", rule }.into());
        }
        return Ok(None);
    }
    match sb.raw().s_journal_inum.get() {
        0 => Err(Error::NotSupported("the volume keeps its journal on another device".into())),
        ino => Ok(Some(ino)),
    }
}

/// Returns a store that only reads and knows no zones: before recovery the descriptors may be out
/// of date. The survey checks the log that is found with it against the zones.
fn scout(device: &Arc<dyn BlockDevice>, sb: &Superblock) -> Result<Store> {
    let config = Config { read_only: true, ..Config::default() };
    Store::assemble(Arc::clone(device), sb.clone(), None, &Survey::default(), config)
}

/// Returns the runs of the log that `inode` maps.
fn runs(store: &Store, inode: &Inode) -> Result<Vec<LogRun>> {
    let damaged = |rule| Corrupt::SpecialInode { ino: inode.ino, role: "journal", rule };
    if !inode.is_regular() || inode.links_count == 0 {
        return Err(damaged("is no file in use").into());
    }
    let blocks = inode.size / u64::from(store.block_size);
    let blocks = u32::try_from(blocks).map_err(|_| damaged("has more than 2^32 blocks"))?;
    if u64::from(blocks) > store.layout().blocks_count() {
        return Err(damaged("is larger than the volume").into());
    }
    let mut runs: Vec<LogRun> = Vec::new();
    let mut logical = 0;
    while logical < blocks {
        let Mapping::Mapped { block, len, .. } = map::lookup(store, inode, logical)? else {
            return Err(damaged("has a hole").into());
        };
        if runs.len() == LOG_RUNS_MAX {
            return Err(damaged("is in more than 2^20 pieces").into());
        }
        let len = len.min(blocks - logical);
        runs.push(LogRun { logical, physical: block, len });
        logical += len;
    }
    Ok(runs)
}
