//! Opens the volume: superblock, log, and the state that a replay of the log leaves.
//!
//! The replay writes to an overlay in memory. The volume itself is not written. A log that its
//! inode does not lead to, because a crash left the inode or its group's descriptor torn, is found
//! by the copy of the inode's map in the superblock. After the replay the inode has to map the log
//! that was replayed.

use crate::finding::{Findings, Structure};
use crate::io::Io;
use crate::map::{MapWalk, Visit};
use crate::rule::Rule;
use crate::{CheckError, superblock};
use lanefs_device::{BlockDevice, Overlay};
use lanefs_format::extent::Extent;
use lanefs_format::jbd2::{self, BlockType, Jbd2Error};
use lanefs_format::{Compat, GroupDesc, Incompat, Inode, Layout, RoCompat, State, Superblock};
use lanefs_journal::{JournalError, LOG_RUNS_MAX, LogConfig, LogRun, recovery};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of a log's superblock of version 1.
const V1_END: usize = 0x24;
/// `s_errno`.
const ERRNO: usize = 0x20;
/// The least blocks of a log, beside those for fast commits.
const MIN_BLOCKS: u32 = 1024;
/// `s_nr_users` in one of version 2.
const NR_USERS: usize = 0x40;

/// A volume as it is after its log was replayed.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) io: Io,
    pub(crate) sb: Superblock,
    pub(crate) replayed: bool,
    pub(crate) unclean: bool,
}

/// Reads the superblock and replays the log in memory. `None` after a finding that leaves nothing
/// to check.
///
/// # Errors
/// The errors of [`check`](crate::check).
pub(crate) fn open(
    device: Arc<dyn BlockDevice>,
    findings: &mut Findings,
) -> Result<Option<Opened>, CheckError> {
    let Some(sb) = superblock::read(&*device, findings)? else { return Ok(None) };
    let io = Io { device, block_size: sb.block_size() };
    let not_closed = |sb: &Superblock| sb.has_in(Incompat::RECOVER) || !sb.state().contains(State::VALID_FS);
    let unclean = not_closed(&sb);
    if !sb.has(Compat::HAS_JOURNAL) {
        if sb.has_in(Incompat::RECOVER) {
            let (feature, what) = ("has_journal", "needs_recovery");
            findings.add(Structure::Superblock, Rule::NeedsFeature { feature, what });
        }
        return Ok(Some(Opened { io, sb, replayed: false, unclean }));
    }
    if sb.raw().s_journal_inum == 0 {
        if sb.has_in(Incompat::RECOVER) {
            return Err(CheckError::Log("it is on another device".to_owned()));
        }
        match sb.raw().s_journal_uuid {
            uuid if uuid == [0; 16] && sb.raw().s_journal_dev == 0 => {
                findings.add(Structure::Journal, Rule::LogMissing)
            }
            _ => findings.unchecked(Structure::Journal, "it is on another device"),
        }
        return Ok(Some(Opened { io, sb, replayed: false, unclean }));
    }
    let log = match find(&io, &sb)? {
        Ok(log) => log,
        Err((structure, rule)) => match find_by_copy(&io, &sb)? {
            Some(log) => log,
            None => {
                findings.add(structure, rule);
                return Ok(Some(Opened { io, sb, replayed: false, unclean }));
            }
        },
    };
    check_log_superblock(&io, &log, findings)?;
    let opened = replay(io, sb, &log, unclean, findings)?;
    if let Some(opened) = opened.as_ref().filter(|opened| opened.replayed) {
        confirm(opened, &log, findings)?;
    }
    Ok(opened)
}

/// Checks that a log's superblock of version 1, which ends early, has zeros behind its end,
/// that no other volume uses the log, that it was not aborted, and that fast commits leave room.
fn check_log_superblock(io: &Io, log: &LogConfig, findings: &mut Findings) -> Result<(), CheckError> {
    let Some(first) = log.runs.first() else { return Ok(()) };
    let block = io.block(first.physical)?;
    let is_v1 = jbd2::Header::parse(&block).is_some_and(|h| h.block_type == Some(BlockType::SuperblockV1));
    let used = |byte: &usize| block.get(*byte).is_some_and(|b| *b != 0);
    if let Some(at) = (V1_END..jbd2::Superblock::LEN).find(used).filter(|_| is_v1) {
        findings.add(Structure::Journal, Rule::LogVersion { at });
    }
    let word =
        |at: usize| block.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b));
    if word(ERRNO) != 0 {
        findings.add(Structure::Journal, Rule::LogErrno { errno: word(ERRNO).cast_signed() });
    }
    let users = word(NR_USERS);
    if !is_v1 && users > 1 {
        findings.add(Structure::Journal, Rule::LogUsers { users });
    }
    let blocks = log.runs.last().map_or(0, |run| u64::from(run.logical) + u64::from(run.len));
    if let Ok(sb) = jbd2::Superblock::parse(&block, io.block_size, blocks) {
        let left = sb.maxlen() - sb.fast_commit_blocks();
        if sb.fast_commit_blocks() > 0 && left < MIN_BLOCKS {
            findings.add(Structure::Journal, Rule::LogRoom { left, min: MIN_BLOCKS });
        }
    }
    Ok(())
}

/// Replays `log`, if it holds anything.
fn replay(
    io: Io,
    sb: Superblock,
    log: &LogConfig,
    unclean: bool,
    findings: &mut Findings,
) -> Result<Option<Opened>, CheckError> {
    let mut damaged = |error: JournalError| match unreplayable(&error) {
        Some(reason) => Err(reason),
        None => {
            findings.add(Structure::Journal, Rule::Log { text: error.to_string() });
            Ok(())
        }
    };
    let needed = match recovery::is_needed(&*io.device, io.block_size, log) {
        Ok(needed) => needed,
        Err(e) => {
            damaged(e)?;
            false
        }
    };
    if !needed {
        return Ok(Some(Opened { io, sb, replayed: false, unclean }));
    }
    let overlay = Overlay::new(Arc::clone(&io.device));
    if let Err(e) = recovery::recover(&overlay, io.block_size, log) {
        damaged(e)?;
        return Ok(Some(Opened { io, sb, replayed: false, unclean }));
    }
    let device: Arc<dyn BlockDevice> = Arc::new(overlay);
    let Some(sb) = superblock::read(&*device, findings)? else { return Ok(None) };
    let io = Io { device, block_size: sb.block_size() };
    Ok(Some(Opened { io, sb, replayed: true, unclean: true }))
}

/// Returns the error of a log that no damage keeps from being replayed: the device fails, or the
/// log has features that this replay does not know. The state of the volume is then not known.
fn unreplayable(error: &JournalError) -> Option<CheckError> {
    let is_sound = matches!(
        error,
        JournalError::Device(_)
            | JournalError::FastCommit { .. }
            | JournalError::Format(Jbd2Error::UnknownFeatures { .. })
    );
    is_sound.then(|| CheckError::Log(error.to_string()))
}

/// Checks that the journal's inode, as it is after the replay, maps `log`.
fn confirm(opened: &Opened, log: &LogConfig, findings: &mut Findings) -> Result<(), CheckError> {
    match find(&opened.io, &opened.sb)? {
        Ok(found) if found.runs == log.runs => {}
        Ok(_) => {
            let what = "its inode maps other blocks than those of the log that was replayed";
            findings.add(Structure::Journal, Rule::SpecialInode { what });
        }
        Err((structure, rule)) => findings.add(structure, rule),
    }
    Ok(())
}

/// A rule, and the structure that breaks it.
type Broken = (Structure, Rule);

/// Finds the log by the journal's inode.
fn find(io: &Io, sb: &Superblock) -> Result<Result<LogConfig, Broken>, CheckError> {
    match read_inode(io, sb, &sb.layout(), sb.raw().s_journal_inum.get())? {
        Ok(inode) => log_of(io, sb, &inode),
        Err(rule) => Ok(Err((Structure::Journal, rule))),
    }
}

/// Finds a log that waits for its replay by the copy of the inode's map in the superblock.
fn find_by_copy(io: &Io, sb: &Superblock) -> Result<Option<LogConfig>, CheckError> {
    let Some(inode) = sb.journal_backup() else { return Ok(None) };
    let Ok(log) = log_of(io, sb, &inode)? else { return Ok(None) };
    match recovery::is_needed(&*io.device, io.block_size, &log) {
        Ok(needed) => Ok(needed.then_some(log)),
        Err(error) => unreplayable(&error).map_or(Ok(None), Err),
    }
}

/// Returns the log that `inode` maps.
fn log_of(io: &Io, sb: &Superblock, inode: &Inode) -> Result<Result<LogConfig, Broken>, CheckError> {
    let damaged = |what| Ok(Err((Structure::Journal, Rule::SpecialInode { what })));
    let layout = sb.layout();
    if !inode.is_regular() || inode.links_count == 0 {
        return damaged("its inode is no file in use");
    }
    let seed = inode.seed(&sb.checksummer());
    let mut runs = Runs { wanted: inode.size / u64::from(io.block_size), ..Runs::default() };
    MapWalk { io, layout: &layout, inode, seed }.walk(&mut runs)?;
    if let Some(broken) = runs.broken {
        return Ok(Err(broken));
    }
    if runs.next < runs.wanted || runs.wanted == 0 {
        return damaged("its inode has a hole, or is empty");
    }
    Ok(Ok(LogConfig {
        runs: runs.runs,
        metadata_csum: sb.has_ro(RoCompat::METADATA_CSUM),
        is_64bit: sb.has_in(Incompat::BIT64),
    }))
}

/// Reads one inode before the descriptors have been looked at.
fn read_inode(
    io: &Io,
    sb: &Superblock,
    layout: &Layout,
    ino: u32,
) -> Result<Result<Inode, Rule>, CheckError> {
    let place = || -> lanefs_format::Result<_> {
        let slot = layout.inode_slot(ino)?;
        Ok((slot, layout.desc_location(slot.group)?))
    };
    let (slot, (block, offset)) = match place() {
        Ok(place) => place,
        Err(e) => return Ok(Err(e.into())),
    };
    let bytes = io.block(block)?;
    let desc = bytes.get(offset as usize..).unwrap_or_default();
    let desc = match GroupDesc::parse(desc, slot.group, layout, &sb.checksummer()) {
        Ok(desc) => desc,
        Err(e) => return Ok(Err(e.into())),
    };
    let bytes = io.block(desc.inode_table + u64::from(slot.table_block))?;
    let bytes = bytes.get(slot.offset as usize..).unwrap_or_default();
    Ok(Inode::parse(bytes, ino, &sb.inode_context()).map_err(Rule::from))
}

/// The runs of the log, without a hole.
#[derive(Debug, Default)]
struct Runs {
    runs: Vec<LogRun>,
    /// Blocks of the log.
    wanted: u64,
    next: u64,
    nodes: BTreeSet<u64>,
    broken: Option<(Structure, Rule)>,
}

impl Visit for Runs {
    fn node(&mut self, block: u64) -> bool {
        self.nodes.insert(block)
    }

    fn data(&mut self, run: Extent) {
        let (at, len) = (u64::from(run.ee_block), u64::from(run.len));
        if at != self.next || self.next >= self.wanted {
            return;
        }
        if self.runs.len() == LOG_RUNS_MAX {
            let what = "its inode maps the log in more than 2^20 pieces";
            return self.broken(Structure::Journal, Rule::SpecialInode { what });
        }
        let len = len.min(self.wanted - at) as u32;
        self.runs.push(LogRun { logical: run.ee_block, physical: run.ee_start, len });
        self.next = at + u64::from(len);
    }

    fn broken(&mut self, structure: Structure, rule: Rule) {
        self.broken.get_or_insert((structure, rule));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_in_too_many_pieces_is_damage() {
        let mut runs = Runs { wanted: u64::MAX, ..Runs::default() };
        let run = |ee_block| Extent { ee_block, len: 1, unwritten: false, ee_start: 9 };
        (0..LOG_RUNS_MAX as u32).for_each(|at| runs.data(run(at)));
        assert!(runs.broken.is_none());
        runs.data(run(LOG_RUNS_MAX as u32));
        assert!(matches!(runs.broken, Some((Structure::Journal, Rule::SpecialInode { .. }))));
        assert_eq!(runs.runs.len(), LOG_RUNS_MAX);
    }
}
