//! The state that the journal's threads share: cache, transactions, log position, errors.
//!
//! Locks, in the order in which they may be taken together: `checkpointing`, `state`, the gate's,
//! the background's, a transaction's, a buffer's. No I/O happens under any but `checkpointing`, the
//! lock of a buffer that is being loaded, and the log superblock's own.
//!
//! The rest of `Core` is in [`commit`](crate::commit).

use crate::background::Background;
use crate::baton::Baton;
use crate::cache::Cache;
use crate::checkpoint::Committed;
use crate::flush::SharedFlush;
use crate::gate::{Gate, Place, Refused};
use crate::log::LogWriter;
use crate::options::OnFreed;
use crate::stats::{Counters, Levels};
use crate::transaction::Transaction;
use crate::{Buffer, Freed, JournalError, Options, Result, Tid};
use lanefs_device::{AlignedBuf, BlockDevice, ReadOp};
use lanefs_sync::Mutex;
use lanefs_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use lanefs_sync::time::Instant;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A committed transaction in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Past {
    pub(crate) tid: Tid,
    pub(crate) start: u32,
    pub(crate) len: u32,
}

#[derive(Debug)]
pub(crate) struct CoreState {
    /// Why the journal has ended.
    pub(crate) error: Option<JournalError>,
    /// The log block where the next transaction starts.
    pub(crate) head: u32,
    /// Blocks of the transactions in `history`.
    pub(crate) used: u32,
    /// Blocks that the committing transaction takes at most.
    pub(crate) committing: u32,
    /// Blocks that were written to the log while the last checkpoint ran.
    pub(crate) during_checkpoint: u32,
    /// The transactions in the log, oldest first.
    pub(crate) history: VecDeque<Past>,
}

/// The division of the blocks in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shares {
    /// Blocks in memory.
    blocks: usize,
    /// Blocks of the running and the committing transaction, and blocks that are committed and not
    /// checkpointed. Handles that would exceed it wait for a checkpoint.
    changed: u32,
    /// Credits of a transaction. Two transactions leave half of `changed` to blocks that are not
    /// checkpointed.
    transaction: u32,
}

impl Shares {
    /// The least number of blocks for which `changed` and `transaction` are counted.
    const LEAST: usize = 4096;

    /// Divides `blocks`. The log has room for transactions of `credits`.
    fn of(blocks: usize, credits: u32) -> Self {
        let changed = u32::try_from(blocks.max(Self::LEAST) / 2).unwrap_or(u32::MAX);
        Self { blocks, changed, transaction: credits.min(changed / 4) }
    }

    /// Returns how many blocks the cache keeps beside so many uncheckpointed ones: all that they
    /// and two transactions leave, at least half.
    fn clean(&self, uncheckpointed: usize) -> usize {
        let changed = uncheckpointed.saturating_add(2 * self.transaction as usize);
        self.blocks.saturating_sub(changed).max(self.blocks / 2)
    }
}

pub(crate) struct Core {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) block_size: u32,
    /// Blocks of the device.
    blocks: AtomicU64,
    cache: Cache,
    shares: Shares,
    pub(crate) gate: Gate,
    /// By slot of the gate.
    pub(crate) transactions: [Mutex<Transaction>; 2],
    pub(crate) log: Option<LogWriter>,
    pub(crate) uncheckpointed: Committed,
    pub(crate) state: Mutex<CoreState>,
    /// The thread that holds it commits the running transaction.
    pub(crate) commits: Baton<Tid>,
    /// The newest transaction that is durable.
    committed: AtomicU32,
    pub(crate) checkpointing: Mutex<()>,
    pub(crate) flush: SharedFlush,
    pub(crate) background: Background,
    pub(crate) counters: Box<Counters>,
    /// `state.error` is set.
    failed: AtomicBool,
    pub(crate) on_freed: Option<OnFreed>,
    on_use: Option<Box<dyn Fn() + Send + Sync>>,
    /// A block was read or a handle started since the last look.
    used: AtomicBool,
    interval: Duration,
    read_only: bool,
    threads: bool,
}

impl Core {
    pub(crate) fn open(device: Arc<dyn BlockDevice>, options: Options) -> Result<Self> {
        let Options { block_size, cache_blocks, log, commit_interval, .. } = options;
        let Options { on_freed, on_use, read_only, threads, clock, .. } = options;
        let blocks = device.size().checked_div(u64::from(block_size)).unwrap_or(0);
        let (mut writer, mut first, mut head) = (None, Tid(1), 0);
        if let Some(config) = log.as_ref().filter(|_| !read_only) {
            let mut opened = LogWriter::open(&*device, block_size, config)?;
            opened.0.clock = clock;
            (writer, first, head) = (Some(opened.0), opened.1, opened.2);
        }
        let shares = Shares::of(cache_blocks, writer.as_ref().map_or(u32::MAX, LogWriter::max_credits));
        Ok(Self {
            device,
            block_size,
            blocks: AtomicU64::new(blocks),
            cache: Cache::new(shares.clean(0)),
            shares,
            gate: Gate::new(first, shares.transaction),
            transactions: Default::default(),
            log: writer,
            uncheckpointed: Committed::default(),
            state: Mutex::new(CoreState {
                error: None,
                head,
                used: 0,
                committing: 0,
                during_checkpoint: 0,
                history: VecDeque::new(),
            }),
            commits: Baton::default(),
            committed: AtomicU32::new(first.0.wrapping_sub(1)),
            checkpointing: Mutex::new(()),
            flush: SharedFlush::default(),
            background: Background::default(),
            counters: Box::new(Counters::new()),
            failed: AtomicBool::new(false),
            on_freed,
            on_use,
            used: AtomicBool::new(false),
            interval: commit_interval,
            read_only,
            threads,
        })
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns whether threads commit and checkpoint in the background.
    pub(crate) fn has_threads(&self) -> bool {
        self.threads && !self.read_only
    }

    pub(crate) fn max_credits(&self) -> u32 {
        self.shares.transaction
    }

    /// Credits that handles may take beyond the limit of a transaction.
    pub(crate) fn slack(&self) -> u32 {
        self.log.as_ref().map_or(u32::MAX, |log| log.slack)
    }

    fn offset(&self, block: u64) -> Result<u64> {
        let blocks = self.blocks.load(Ordering::Relaxed);
        if block >= blocks {
            return Err(JournalError::BlockOutOfRange { block, blocks });
        }
        Ok(block * u64::from(self.block_size))
    }

    /// Learns that the device has become larger.
    pub(crate) fn measure_device(&self) {
        let blocks = self.device.size().checked_div(u64::from(self.block_size)).unwrap_or(0);
        self.blocks.store(blocks, Ordering::Relaxed);
    }

    // ---- buffers

    #[cfg_attr(lanefs_schedule, track_caller)]
    pub(crate) fn read(&self, block: u64) -> Result<Buffer> {
        self.read_among(block, Vec::new)
    }

    /// Reads a block. If it is not in the cache, the blocks that `among` returns are read in the
    /// same batch: that one, and others that the caller will soon read.
    pub(crate) fn read_among(&self, block: u64, among: impl FnOnce() -> Vec<u64>) -> Result<Buffer> {
        let offset = self.offset(block)?;
        self.note_use();
        let buffer = self.cache.get_or_insert(block);
        if !buffer.is_ready() {
            self.read_ahead(&among());
        }
        buffer.load(|| {
            if let Some(content) = self.uncheckpointed.get(block) {
                return Ok(content);
            }
            let mut content = AlignedBuf::zeroed(self.block_size as usize);
            self.device.read_at(&mut content, offset)?;
            self.counters.blocks_read.add(1);
            Ok::<_, JournalError>(Arc::new(content))
        })?;
        Ok(buffer)
    }

    /// Reads those of `blocks` that are not in the cache, in one batch. Waits for no other thread
    /// that loads one of them. A failure leaves them to be read one by one.
    fn read_ahead(&self, blocks: &[u64]) {
        let in_range = blocks.iter().filter(|block| self.offset(**block).is_ok());
        let buffers: Vec<Buffer> = in_range.map(|block| self.cache.get_or_insert(*block)).collect();
        let mut loading = Vec::with_capacity(buffers.len());
        for buffer in &buffers {
            let Some(one) = buffer.begin_load() else { continue };
            match self.uncheckpointed.get(buffer.block()) {
                Some(content) => buffer.set_content(content),
                None => loading.push((buffer, one, AlignedBuf::zeroed(self.block_size as usize))),
            }
        }
        let size = u64::from(self.block_size);
        let mut reads = Vec::with_capacity(loading.len());
        for (buffer, _, content) in &mut loading {
            reads.push(ReadOp { offset: buffer.block() * size, buf: content });
        }
        if reads.is_empty() || self.device.read_batch(&mut reads).is_err() {
            return;
        }
        drop(reads);
        self.counters.blocks_read.add(loading.len() as u64);
        for (buffer, _one, content) in loading {
            buffer.set_content(Arc::new(content));
        }
    }

    /// Returns a buffer that is about to be filled with zeros.
    pub(crate) fn blank(&self, block: u64) -> Result<Buffer> {
        self.offset(block)?;
        self.note_use();
        let buffer = self.cache.get_or_insert(block);
        buffer.load(|| Ok::<_, JournalError>(Arc::new(AlignedBuf::zeroed(self.block_size as usize))))?;
        Ok(buffer)
    }

    /// Drops the buffers of blocks that transaction `tid` frees.
    pub(crate) fn forget_freed(&self, start: u64, len: u64, tid: Tid) {
        for block in self.cache.blocks_in(start, len) {
            if let Some(buffer) = self.cache.remove(block) {
                buffer.disown(tid);
            }
        }
    }

    /// Drops the cached content of a block that no transaction has, because it was written past the
    /// journal.
    pub(crate) fn forget(&self, block: u64) {
        drop(self.cache.remove(block));
    }

    // ---- rest

    /// Marks the journal as used. Calls `on_use` if it was not.
    fn note_use(&self) {
        if !self.used.load(Ordering::Relaxed)
            && !self.used.swap(true, Ordering::SeqCst)
            && let Some(on_use) = &self.on_use
        {
            on_use();
        }
    }

    /// Returns whether the journal was used since the last call.
    pub(crate) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::SeqCst)
    }

    /// Returns whether the running transaction has something to commit.
    pub(crate) fn is_dirty(&self) -> bool {
        self.transactions[self.gate.running().slot].lock().since.is_some()
    }

    /// Returns whether something is not committed yet.
    pub(crate) fn has_uncommitted(&self) -> bool {
        self.is_dirty() || self.committed().next() != self.gate.running().tid
    }

    /// Drops every buffer without another reference.
    pub(crate) fn release(&self) {
        self.cache.clear_unused();
        self.uncheckpointed.shrink();
    }

    /// Returns the number of blocks in memory. A content that the cache shares with an
    /// uncheckpointed block counts twice.
    pub(crate) fn blocks_in_memory(&self) -> usize {
        self.cache.len() + self.uncheckpointed.len()
    }

    // ---- handles

    /// Enters the running transaction with `credits`, which must be at least 1: a transaction that
    /// has no credit to give has no space for the reserve either.
    pub(crate) fn enter(&self, credits: u32) -> Result<Place> {
        self.check()?;
        if self.read_only {
            return Err(JournalError::ReadOnly);
        }
        if credits > self.max_credits() {
            return Err(JournalError::TooManyCredits { asked: credits, max: self.max_credits() });
        }
        self.note_use();
        let _timer = self.counters.start.start();
        self.counters.credits_asked.add(u64::from(credits));
        let mut waiting = None;
        loop {
            let entered = self.gate.enter(credits, |why| {
                if waiting.is_none() {
                    self.counters.waits.add(1);
                    waiting = Some(self.counters.credit_wait.start());
                }
                self.request(Some(why));
                let is_idle = self.threads || !self.background.has_requests();
                if is_idle && !self.has_ended() { Ok(()) } else { Err(()) }
            });
            if let Ok(place) = entered {
                return Ok(place);
            }
            self.check()?;
            // Outside of the queue: no thread admits this one, whose commit would wait for itself.
            self.background.run_requests(|tid| drop(self.commit_now(tid)), || drop(self.make_room()));
        }
    }

    /// Requests the commit or checkpoint that makes room for the first thread in the gate's queue.
    /// Without threads, wakes the queue, whose threads run it. The caller does not: a commit waits
    /// for handles, which may wait for a lock that the caller holds.
    pub(crate) fn help(&self, why: Option<Refused>) {
        if self.request(why) && !self.threads {
            self.gate.wake();
        }
    }

    /// Requests as [`help`](Self::help) does. Returns whether there is anything to request.
    fn request(&self, why: Option<Refused>) -> bool {
        match why {
            // The committer opens the next transaction, or the last open handle admits the queue.
            None | Some(Refused::Closed | Refused::Full { inside: true, .. }) => return false,
            // Only a checkpoint of older transactions makes room.
            Some(Refused::Full { unused: true, .. }) => self.background.want_checkpoint(),
            Some(Refused::Full { tid, .. }) => self.background.want_commit(tid),
        }
        true
    }

    /// Ends a handle's part in a transaction.
    pub(crate) fn leave(&self, place: Place, unused: u32, buffers: &mut Vec<Buffer>, freed: &mut Vec<Freed>) {
        if !buffers.is_empty() || !freed.is_empty() {
            self.counters.credits_used.add(buffers.len() as u64);
            let mut txn = self.transactions[place.slot].lock();
            let (first, long) = (txn.merge(buffers, freed), txn.is_long());
            drop(txn);
            if long {
                self.background.want_commit(place.tid);
            } else if first && !self.interval.is_zero() {
                self.background.has_become_dirty();
            }
        }
        self.help(self.gate.leave(place.slot, unused));
    }

    // ---- what is durable

    pub(crate) fn committed(&self) -> Tid {
        Tid(self.committed.load(Ordering::Acquire))
    }

    /// Marks `tid` as committed. Only the leader of the commit calls it.
    pub(crate) fn set_committed(&self, tid: Tid) {
        self.committed.store(tid.0, Ordering::Release);
    }

    pub(crate) fn is_durable(&self, tid: Tid) -> bool {
        self.committed().at_or_after(tid)
    }

    // ---- background

    /// Returns when the running transaction must be committed, if it has changes.
    pub(crate) fn commit_deadline(&self) -> Option<Instant> {
        if self.interval.is_zero() || self.has_ended() {
            return None;
        }
        let since = self.transactions[self.gate.running().slot].lock().since?;
        since.checked_add(self.interval)
    }

    // ---- errors

    /// Returns whether the journal has come to an end, so that nothing more becomes durable.
    pub(crate) fn has_ended(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !self.has_ended() {
            return Ok(());
        }
        self.error().map_or(Ok(()), Err)
    }

    pub(crate) fn error(&self) -> Option<JournalError> {
        self.state.lock().error.clone()
    }

    /// Latches an error; the first one stays. Returns whether this was the first.
    pub(crate) fn fail(&self, error: JournalError) -> bool {
        let mut state = self.state.lock();
        let first = state.error.is_none();
        state.error.get_or_insert(error);
        drop(state);
        self.failed.store(true, Ordering::Release);
        self.commits.wake_all();
        self.gate.wake();
        first
    }

    /// Divides log and memory anew, after a commit or a checkpoint: raises the credit limit, leaves
    /// to the cache what changed blocks do not need, and requests a checkpoint if it is time.
    pub(crate) fn divide(&self, state: &CoreState) {
        let uncheckpointed = self.uncheckpointed.len();
        self.cache.set_capacity(self.shares.clean(uncheckpointed));
        self.help(self.gate.raise_limit(self.limit_beside(uncheckpointed, state)));
        if self.wants_checkpoint(uncheckpointed, state) {
            self.background.want_checkpoint();
        }
    }

    /// Returns the credit limit of the running transaction for the current use of log and memory.
    pub(crate) fn limit(&self, state: &CoreState) -> u32 {
        self.limit_beside(self.uncheckpointed.len(), state)
    }

    /// Returns the [`limit`](Self::limit) beside so many uncheckpointed blocks.
    fn limit_beside(&self, uncheckpointed: usize, state: &CoreState) -> u32 {
        let Some(log) = &self.log else { return self.max_credits() };
        let free = log.len().saturating_sub(state.used).saturating_sub(state.committing);
        let in_memory = uncheckpointed as u64 + u64::from(state.committing);
        let memory = u64::from(self.shares.changed).saturating_sub(in_memory);
        let credits = log.credits_for(free.saturating_sub(1)).min(self.max_credits());
        u32::try_from(memory).map_or(credits, |memory| credits.min(memory))
    }

    /// Returns the current levels.
    pub(crate) fn levels(&self) -> Levels {
        let used = {
            let state = self.state.lock();
            u64::from(state.used) + u64::from(state.committing)
        };
        let inside = self.gate.inside();
        Levels {
            log_blocks: self.log.as_ref().map_or(0, |log| log.len().into()),
            log_blocks_used: used,
            blocks_in_memory: self.blocks_in_memory() as u64,
            blocks_to_checkpoint: self.uncheckpointed.len() as u64,
            handles_open: inside.handles,
            credits_taken: inside.credits,
            credits_limit: inside.limit,
            handles_waiting: inside.waiting,
        }
    }

    /// Returns whether it is time for a checkpoint: half of the log or half of the memory for
    /// changed blocks is in use, or commits during a checkpoint write so much that handles would
    /// have to wait for it.
    fn wants_checkpoint(&self, uncheckpointed: usize, state: &CoreState) -> bool {
        let Some(log) = &self.log else { return false };
        let ahead =
            u64::from(state.used) + u64::from(state.committing) + 2 * u64::from(state.during_checkpoint);
        state.used > log.len() / 2
            || ahead > u64::from(log.len() - log.len() / 4)
            || uncheckpointed > self.shares.changed as usize / 2
    }
}
