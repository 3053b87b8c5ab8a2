//! Recovery: replays a log that was not closed, in the three passes of jbd2.
//!
//! **Scan** walks the transactions from `s_start` to the first that has no commit block. **Revoke**
//! finds, for each block with copies in the log, the newest transaction that revoked it. **Replay**
//! verifies every copy that is not revoked, and only then writes the newest ones in place.
//! `docs/journal.md` lists what is damage and what is the end of the log.
//!
//! Invariants:
//! - A damaged log changes nothing on the volume. A recovery that was cut can run again.
//! - No pass reads a block of the ring twice, and memory is bounded by the ring's size.
//!
//! Hazards:
//! - The log is not trusted: a tag of a block outside the volume or inside the log is an error.
//! - The medium may answer a later pass otherwise, so each pass verifies what it uses.

mod fast_commit;
mod scan;
#[cfg(test)]
mod tests;
mod window;

use crate::log::{LogMap, LogWriter};
use crate::{JournalError, LogConfig, Result, Tid};
use lanefs_device::{AlignedBuf, BlockDevice, WriteOp};
use lanefs_format::jbd2::{self, Layout, Superblock, TagFlags};
use scan::{LoggedCopy, Scan};
use std::collections::{BTreeMap, HashMap};

/// Blocks of the log that are in memory at the same time.
const BATCH: usize = 256;

/// The result of a recovery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether the log held anything to replay (`s_start` was not 0).
    pub needed: bool,
    /// Committed transactions found.
    pub transactions: u32,
    /// Blocks written in place.
    pub blocks: u64,
    /// Copies that were not replayed because their block was revoked.
    pub revoked: u64,
    /// `s_errno` of the log: a negative errno if the journal was aborted; the file system then has
    /// errors.
    pub errno: i32,
}

/// Returns whether the log holds transactions that have to be replayed (`s_start` is not 0).
///
/// # Errors
/// The device's failure, or a journal superblock that cannot be used.
pub fn is_needed(device: &dyn BlockDevice, block_size: u32, log: &LogConfig) -> Result<bool> {
    let map = LogMap::new(device, block_size, log)?;
    Ok(map.read_superblock(device)?.start() != 0)
}

/// Checks that a recovered log could be opened for writing, without writing to it. A caller that
/// must refuse a volume before recovery changes it runs this on a copy in memory.
///
/// # Errors
/// The errors that opening the journal would return.
pub fn check_log(device: &dyn BlockDevice, block_size: u32, log: &LogConfig) -> Result<()> {
    LogWriter::open(device, block_size, log).map(drop)
}

/// Replays the log and marks it empty. Idempotent: a cut inside it and another call give the same.
/// `s_errno` stays; see [`clear_errno`].
///
/// # Errors
/// The device's failure; a journal superblock that cannot be used; a damaged log, with the
/// transaction's number, and nothing written; fast commits.
pub fn recover(device: &dyn BlockDevice, block_size: u32, log: &LogConfig) -> Result<Report> {
    let map = LogMap::new(device, block_size, log)?;
    let (mut sb, torn) = map.read_or_mend(device)?;
    let mut report = Report { errno: sb.errno(), ..Report::default() };
    if sb.start() == 0 {
        // An empty log is not written again before its first transaction: a tear would stay.
        if torn {
            map.write_superblock(device, &sb)?;
            device.flush()?;
        }
        return Ok(report);
    }
    let plan = ReplayPlan::make(device, &map, &sb)?;
    report.needed = true;
    report.transactions = plan.transactions;
    report.revoked = plan.revoked;
    report.blocks = plan.newest.len() as u64;
    plan.write_in_place(device, &map, &sb.layout())?;
    device.flush()?;
    // One past the first uncommitted transaction, whose remains must not be read as a new one.
    sb.set_tail(plan.end.next().0, 0);
    sb.set_head(plan.head);
    map.write_superblock(device, &sb)?;
    device.flush()?;
    Ok(report)
}

/// Clears `s_errno`, after the file system's own superblock says that it has errors.
///
/// # Errors
/// The device's failure, or a journal superblock that cannot be used.
pub fn clear_errno(device: &dyn BlockDevice, block_size: u32, log: &LogConfig) -> Result<()> {
    let map = LogMap::new(device, block_size, log)?;
    let mut sb = map.read_superblock(device)?;
    if sb.errno() != 0 {
        sb.set_errno(0);
        map.write_superblock(device, &sb)?;
        device.flush()?;
    }
    Ok(())
}

/// The blocks that a replay writes in place.
struct ReplayPlan {
    /// For each block the newest copy that is not revoked.
    newest: BTreeMap<u64, LoggedCopy>,
    transactions: u32,
    revoked: u64,
    /// The first transaction that is not committed.
    end: Tid,
    /// Where the committed part of the log ends.
    head: u32,
}

impl ReplayPlan {
    /// Runs scan, revoke, and the verifying half of replay.
    fn make(device: &dyn BlockDevice, map: &LogMap, sb: &Superblock) -> Result<Self> {
        let layout = sb.layout();
        let scan = Scan::run(device, map, sb)?;
        fast_commit::refuse(device, map, sb, scan.end)?;
        let blocks = device.size() / map.block_size() as u64;
        for copy in &scan.copies {
            if copy.tag.block >= blocks || map.contains(copy.tag.block) {
                return Err(JournalError::TagTarget { tid: copy.tid, block: copy.tag.block, blocks });
            }
        }
        let revokes = collect_revokes(device, map, &layout, &scan)?;
        let valid = |copy: &&LoggedCopy| {
            revokes.get(&copy.tag.block).copied().flatten().is_none_or(|tid| copy.tid.after(tid))
        };
        let copies: Vec<LoggedCopy> = scan.copies.iter().filter(valid).copied().collect();
        verify(device, map, &layout, &copies)?;
        let revoked = (scan.copies.len() - copies.len()) as u64;
        // Copies are in the order of the log, so that the last of a block is its newest.
        let newest = copies.into_iter().map(|copy| (copy.tag.block, copy)).collect();
        Ok(Self { newest, transactions: scan.transactions, revoked, end: scan.end, head: scan.head })
    }

    /// Writes the newest copies in place, in order of their blocks.
    fn write_in_place(&self, device: &dyn BlockDevice, map: &LogMap, layout: &Layout) -> Result<()> {
        let copies: Vec<LoggedCopy> = self.newest.values().copied().collect();
        let mut buf = batch_buffer(map, &copies);
        for batch in copies.chunks(BATCH) {
            read_copies(device, map, layout, batch, &mut buf)?;
            for (copy, content) in batch.iter().zip(buf.chunks_exact_mut(map.block_size())) {
                if copy.tag.flags.contains(TagFlags::ESCAPE) {
                    jbd2::unescape(content);
                }
            }
            let places = batch.iter().map(|copy| copy.tag.block);
            let blocks: Vec<(u64, &[u8])> = places.zip(buf.chunks_exact(map.block_size())).collect();
            write_merged(device, map.block_size() as u64, &blocks)?;
        }
        Ok(())
    }
}

fn collect_revokes(
    device: &dyn BlockDevice,
    map: &LogMap,
    layout: &Layout,
    scan: &Scan,
) -> Result<HashMap<u64, Option<Tid>>> {
    // Only blocks that have copies are kept, so that hostile revokes cannot fill the memory.
    let mut newest: HashMap<u64, Option<Tid>> =
        scan.copies.iter().map(|copy| (copy.tag.block, None)).collect();
    let mut buf = AlignedBuf::zeroed(scan.revokes.len().min(BATCH) * map.block_size());
    for batch in scan.revokes.chunks(BATCH) {
        let at: Vec<u32> = batch.iter().map(|(at, _)| *at).collect();
        map.read_many(device, &at, &mut buf)?;
        for (&(at, tid), block) in batch.iter().zip(buf.chunks_exact(map.block_size())) {
            if !layout.verify_tail(block) {
                return Err(JournalError::DamagedTransaction { tid, log_block: at });
            }
            for revoked in jbd2::parse_revokes(layout, block)? {
                if let Some(newest) = newest.get_mut(&revoked) {
                    // Revoke blocks come in the order of the log.
                    *newest = Some(tid);
                }
            }
        }
    }
    Ok(newest)
}

/// Returns a buffer for the copies of each batch in turn.
fn batch_buffer(map: &LogMap, copies: &[LoggedCopy]) -> AlignedBuf {
    AlignedBuf::zeroed(copies.len().min(BATCH) * map.block_size())
}

fn verify(device: &dyn BlockDevice, map: &LogMap, layout: &Layout, copies: &[LoggedCopy]) -> Result<()> {
    if !layout.has_tails() {
        return Ok(());
    }
    let mut buf = batch_buffer(map, copies);
    copies.chunks(BATCH).try_for_each(|batch| read_copies(device, map, layout, batch, &mut buf))
}

/// Reads copies one behind the other into `buf`, and verifies those that have checksums.
fn read_copies(
    device: &dyn BlockDevice,
    map: &LogMap,
    layout: &Layout,
    copies: &[LoggedCopy],
    buf: &mut [u8],
) -> Result<()> {
    let at: Vec<u32> = copies.iter().map(|copy| copy.at).collect();
    map.read_many(device, &at, buf)?;
    for (copy, content) in copies.iter().zip(buf.chunks_exact(map.block_size())) {
        if layout.has_tails() && !copy.tag.verify(layout, copy.tid.0, content) {
            return Err(JournalError::DamagedCopy {
                tid: copy.tid,
                log_block: copy.at,
                block: copy.tag.block,
            });
        }
    }
    Ok(())
}

/// Writes blocks that are sorted by number, neighbours in one piece.
pub(crate) fn write_merged(device: &dyn BlockDevice, block_size: u64, blocks: &[(u64, &[u8])]) -> Result<()> {
    let contents: Vec<&[u8]> = blocks.iter().map(|(_, content)| *content).collect();
    let mut ops = Vec::new();
    let mut from = 0;
    for to in 1..=blocks.len() {
        let ends = to == blocks.len() || blocks[to].0 != blocks[to - 1].0 + 1;
        if ends {
            ops.push(WriteOp { offset: blocks[from].0 * block_size, data: &contents[from..to] });
            from = to;
        }
    }
    Ok(device.write_batch(&ops)?)
}
