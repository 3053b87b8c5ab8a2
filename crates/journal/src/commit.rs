//! Commit, checkpoint, close and abort of a journal.
//!
//! The first thread that asks for a commit becomes the leader. It closes the running transaction,
//! waits for its last handle, and opens the next one. It writes the log blocks in one batch,
//! flushes, writes the commit block and flushes again. Then it reports freed blocks and wakes the
//! followers.
//!
//! Invariants:
//! - One commit runs at a time, so commit blocks are in order.
//! - File data is durable before the metadata that maps it, without a log too.
//! - A commit never waits for space: the credits of a transaction and its reserve fit next to the
//!   log's content and the committing transaction. A handle waits instead, before it holds anything
//!   that another thread could wait for.
//! - The last commit opens no other transaction: none commits between the last checkpoint and the
//!   superblock update that marks the log empty.

use crate::baton::BatonTurn;
use crate::checkpoint::Landing;
use crate::core::{Core, Past};
use crate::gate::Place;
use crate::pending::CommitData;
use crate::recovery::write_merged;
use crate::transaction::{Snapshot, Transaction};
use crate::{Freed, JournalError, Result, Ticket, Tid};
use lanefs_device::WriteOp;
use lanefs_sync::time::Instant;
use std::time::Duration;

/// Blocks that a checkpoint writes in one batch.
const BATCH: usize = 1024;

/// Data that a commit writes.
type Data = Vec<Box<dyn CommitData>>;

/// Runs `f` on the writes of data.
fn with_writes<R>(data: &Data, f: impl FnOnce(&[WriteOp<'_>]) -> Result<R>) -> Result<R> {
    let mut all = data.iter().map(|data| data.writes());
    let mut writes = all.next().unwrap_or_default();
    writes.extend(all.flatten());
    let ops: Vec<_> = writes.iter().map(|(offset, data)| WriteOp { offset: *offset, data }).collect();
    f(&ops)
}

/// Ends the journal if a commit, a checkpoint or a flush panics: a partial one must not be read as
/// a complete one.
pub(crate) struct Unfinished<'a>(pub(crate) &'a Core);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = "a thread panicked in the middle of a commit, a checkpoint or a flush";
            self.0.fail(JournalError::Aborted(why.into()));
        }
    }
}

impl Core {
    /// Waits until `tid` is durable. Returns false if it was empty and nothing was flushed.
    pub(crate) fn commit(&self, tid: Tid) -> Result<bool> {
        self.commit_with(tid, true)
    }

    /// Commits as [`commit`](Self::commit) does, without gathering other threads that may want a
    /// commit too.
    pub(crate) fn commit_now(&self, tid: Tid) -> Result<bool> {
        self.commit_with(tid, false)
    }

    fn commit_with(&self, tid: Tid, gather: bool) -> Result<bool> {
        let over = |tid| self.is_durable(tid) || self.has_ended();
        // What is durable stays so when the journal ends.
        if self.is_durable(tid) {
            return Ok(true);
        }
        self.check()?;
        let _timer = self.counters.commit_wait.start();
        loop {
            if self.is_durable(tid) {
                return Ok(true);
            }
            if self.has_ended() {
                // A close has committed `tid`, unless it was empty.
                return self.check_beside_close().map(|()| self.is_durable(tid));
            }
            if let Some(turn) = self.commits.wait(tid, || over(tid)) {
                // Threads that sleep at the gate cannot arrive: they wait for this commit.
                if gather && !self.gate.is_waited_for() {
                    turn.gather();
                }
                let unfinished = Unfinished(self);
                let result = self.lead().inspect_err(|error| self.abort(error));
                drop(unfinished);
                turn.pass(result.as_ref().ok().copied().flatten(), over);
                // The transaction was the running one, so `tid` is durable or was empty.
                return result.map(|flushed| flushed.is_some());
            }
        }
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.check()?;
        if self.is_read_only() {
            return Ok(());
        }
        let ticket = self.flush.ticket();
        let running = self.gate.running();
        // Checks the handles first: a handle merges its changes before it leaves.
        if self.gate.inside().handles > 0 || self.is_dirty() {
            self.commit(running.tid)?;
        } else {
            // It may be empty because a leader has just taken its changes for a commit.
            self.commits.wait_for_pass();
        }
        self.check_beside_close()?;
        self.flush(ticket)
    }

    /// Checks for errors, for a call that began before the journal ended. A close is none: it has
    /// committed all changes, or else has aborted the journal.
    fn check_beside_close(&self) -> Result<()> {
        match self.check() {
            Err(JournalError::Closed) => Ok(()),
            checked => checked,
        }
    }

    /// Waits until a flush that began after `ticket` was taken is complete. A commit's flush
    /// counts.
    pub(crate) fn flush(&self, ticket: Ticket) -> Result<()> {
        if self.is_read_only() || self.flush.is_done(ticket) {
            return Ok(());
        }
        if let Err(error) = self.check() {
            // The last flush of a close may have covered it since.
            return if self.flush.is_done(ticket) { Ok(()) } else { Err(error) };
        }
        let unfinished = Unfinished(self);
        let flushed = self.flush.wait_together(&*self.device, ticket);
        // Not dropped: a thread that flushes while it panics for another reason ends no journal.
        std::mem::forget(unfinished);
        flushed.inspect_err(|error| self.abort(error))
    }

    /// Commits the running transaction. Only the leader calls it. Returns the time spent on
    /// flushes, or `None` if the transaction was empty.
    fn lead(&self) -> Result<Option<Duration>> {
        let began = Instant::now();
        let (place, txn) = self.close_running();
        if !txn.is_dirty() {
            self.help(self.gate.reopen());
            self.report_freed(&txn.freed);
            return Ok(None);
        }
        let size = self.log.as_ref().map_or(0, |log| log.size_of(txn.buffers.len(), txn.revokes.len()));
        {
            let mut state = self.state.lock();
            state.committing = size;
            let limit = self.limit(&state);
            if limit < self.max_credits() {
                self.background.want_checkpoint();
            }
            self.help(self.gate.open_next(place.tid.next(), limit));
        }
        self.counters.lock_down.record_time(began.elapsed());
        self.write_out(place, txn, began).map(Some)
    }

    /// Commits the running transaction and opens no other: the last commit of a journal. Only the
    /// leader calls it, and it must call [`fail`](Core::fail) afterwards to wake the waiting
    /// threads.
    fn lead_last(&self) -> Result<()> {
        let began = Instant::now();
        let (place, txn) = self.close_running();
        if txn.is_dirty() {
            return self.write_out(place, txn, began).map(drop);
        }
        self.report_freed(&txn.freed);
        Ok(())
    }

    /// Closes the running transaction, waits for its handles, and takes their changes.
    pub(crate) fn close_running(&self) -> (Place, Transaction) {
        let place = self.gate.close();
        let txn = std::mem::take(&mut *self.transactions[place.slot].lock());
        (place, txn)
    }

    /// Makes a closed transaction durable. Returns the time spent on flushes. If that fails, its
    /// buffers stay in memory, so that threads that still read see the last changes.
    pub(crate) fn write_out(&self, place: Place, mut txn: Transaction, began: Instant) -> Result<Duration> {
        let written = self.try_write_out(place.tid, &mut txn, began);
        if written.is_err() {
            self.transactions[place.slot].lock().buffers.append(&mut txn.buffers);
        }
        written
    }

    fn try_write_out(&self, tid: Tid, txn: &mut Transaction, began: Instant) -> Result<Duration> {
        // A handle that was open when the journal ended may have left half an operation.
        self.check()?;
        let logging = Instant::now();
        let snapshot = txn.snapshot(tid);
        self.counters.commits.add(1);
        self.counters.blocks_logged.add(snapshot.blocks.len() as u64);
        self.counters.revokes.add(snapshot.revokes.len() as u64);
        // Dropped as soon as it is written.
        let data = std::mem::take(&mut txn.data);
        let flushing = match &self.log {
            None => self.write_through(&snapshot, txn, data)?,
            Some(_) => self.write_to_log(snapshot, txn, data, logging)?,
        };
        self.finish(tid, txn);
        self.counters.commit.record_time(began.elapsed());
        Ok(flushing)
    }

    /// Waits for the ordered data of the transaction.
    fn wait_for_data(&self, txn: &Transaction) -> Result<()> {
        if txn.ordered.is_empty() {
            return Ok(());
        }
        let _timer = self.counters.ordered_data.start();
        txn.ordered.iter().try_for_each(|data| data.wait())
    }

    /// Writes the blocks of a transaction to their home locations, without a log. Flushes earlier
    /// writes first: an inode on the medium must not map blocks whose data is not durable.
    fn write_through(&self, txn: &Snapshot, closed: &Transaction, data: Data) -> Result<Duration> {
        if !data.is_empty() {
            with_writes(&data, |writes| Ok(self.device.write_batch(writes)?))?;
        }
        drop(data);
        self.wait_for_data(closed)?;
        self.flush.flush(&*self.device)?;
        let blocks: Vec<(u64, &[u8])> =
            txn.blocks.iter().map(|(block, content)| (*block, &content[..])).collect();
        for batch in blocks.chunks(BATCH) {
            write_merged(&*self.device, u64::from(self.block_size), batch)?;
        }
        let flushing = Instant::now();
        self.flush.flush(&*self.device)?;
        Ok(flushing.elapsed())
    }

    fn write_to_log(
        &self,
        txn: Snapshot,
        closed: &Transaction,
        data: Data,
        began: Instant,
    ) -> Result<Duration> {
        let Some(log) = &self.log else { return Ok(Duration::ZERO) };
        let len = log.size_of(txn.blocks.len(), txn.revokes.len());
        let (tid, start, free) = {
            let state = self.state.lock();
            (txn.tid, state.head, log.len().saturating_sub(state.used))
        };
        // The credit limits rule this out. Without the check, a violation would overwrite older
        // transactions.
        if len > free {
            return Err(JournalError::LogOverrun { tid, need: len, free, blocks: log.len() });
        }
        let (commit_at, crc) = with_writes(&data, |data| log.write(&*self.device, &txn, data, start))?;
        drop(data);
        self.counters.log_write.record_time(began.elapsed());
        self.wait_for_data(closed)?;
        let flushing = Instant::now();
        self.counters.flush.time(|| self.flush.flush(&*self.device))?;
        self.counters.commit_block.time(|| {
            log.write_commit(&*self.device, tid, commit_at, crc)?;
            self.flush.flush(&*self.device)
        })?;
        let flushing = flushing.elapsed();
        // Contents before history: a checkpoint that sees the transaction finds all its blocks.
        self.uncheckpointed.insert(tid, txn.blocks);
        let mut state = self.state.lock();
        state.head = log.advance(commit_at, 1);
        state.used += len;
        state.history.push_back(Past { tid, start, len });
        Ok(flushing)
    }

    /// Publishes that transaction `tid` is durable, and updates revokes, freed blocks and the
    /// division of log and memory.
    fn finish(&self, tid: Tid, txn: &mut Transaction) {
        let mut revoked: Vec<u64> = txn.revokes.drain().collect();
        revoked.sort_unstable();
        self.uncheckpointed.forget(&revoked);
        // Until now these references have kept the buffers in the cache.
        txn.buffers.clear();
        self.report_freed(&txn.freed);
        self.set_committed(tid);
        let mut state = self.state.lock();
        state.committing = 0;
        self.divide(&state);
    }

    pub(crate) fn report_freed(&self, freed: &[Freed]) {
        if let (Some(on_freed), false) = (&self.on_freed, freed.is_empty()) {
            on_freed(freed);
        }
    }

    /// Checkpoints all committed transactions, and frees their log space.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.checkpoint_oldest(u32::MAX)
    }

    /// Makes room in log and memory: checkpoints a quarter of the log, or half of the used part if
    /// that is less. Handles that wait for space wait for less I/O, and a block that changes often
    /// is checkpointed less often.
    pub(crate) fn make_room(&self) -> Result<()> {
        let used = self.state.lock().used;
        self.checkpoint_oldest(self.log.as_ref().map_or(0, |log| (log.len() / 4).min(used.div_ceil(2))))
    }

    /// Checkpoints the oldest transactions: as many as occupy `blocks` of the log, or all.
    pub(crate) fn checkpoint_oldest(&self, blocks: u32) -> Result<()> {
        self.check()?;
        self.checkpoint_alone(|| self.try_checkpoint(blocks))
    }

    /// Runs `checkpoint` while no other thread checkpoints. A failure aborts the journal before
    /// another thread has the lock: that thread would report success.
    pub(crate) fn checkpoint_alone(&self, checkpoint: impl FnOnce() -> Result<()>) -> Result<()> {
        let _one = self.checkpointing.lock();
        let _unfinished = Unfinished(self);
        self.check()?;
        checkpoint().inspect_err(|error| self.abort(error))
    }

    pub(crate) fn try_checkpoint(&self, blocks: u32) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let (last, used_before) = {
            let state = self.state.lock();
            let mut sum = 0u32;
            let enough = state.history.iter().find(|past| {
                sum = sum.saturating_add(past.len);
                sum >= blocks
            });
            (enough.or(state.history.back()).copied(), state.used)
        };
        let Some(last) = last else { return Ok(()) };
        let began = Instant::now();
        let home = self.uncheckpointed.take_off(last.tid);
        for batch in home.chunks(BATCH) {
            let writes = self.uncheckpointed.depart(batch);
            let landing = Landing(&self.uncheckpointed);
            let written = write_merged(&*self.device, u64::from(self.block_size), &writes);
            drop(landing);
            written?;
            self.counters.blocks_checkpointed.add(writes.len() as u64);
        }
        self.flush.flush(&*self.device)?;
        self.uncheckpointed.settle(&home);
        log.write_tail(&*self.device, last.tid.next(), log.advance(last.start, last.len))?;
        self.flush.flush(&*self.device)?;
        let mut state = self.state.lock();
        let mut freed = 0;
        while let Some(past) = state.history.pop_front_if(|past| last.tid.at_or_after(past.tid)) {
            freed += past.len;
        }
        state.during_checkpoint = state.used.saturating_sub(used_before);
        state.used -= freed;
        self.divide(&state);
        drop(state);
        self.counters.checkpoint.record_time(began.elapsed());
        Ok(())
    }

    /// Waits for the turn to commit, in order of arrival: no other thread commits until the caller
    /// passes it.
    pub(crate) fn take_turn(&self) -> Result<BatonTurn<'_, Tid>> {
        loop {
            self.check()?;
            if let Some(turn) = self.commits.take(|| self.has_ended()) {
                return Ok(turn);
            }
        }
    }

    /// Commits and checkpoints everything, marks the log empty, and admits no more handles.
    pub(crate) fn close(&self) -> Result<()> {
        self.check()?;
        if self.is_read_only() {
            self.fail(JournalError::Closed);
            return Ok(());
        }
        // Does most of the work while other threads still change the volume.
        self.sync()?;
        self.checkpoint()?;
        let turn = self.take_turn()?;
        // Commits the changes made since, and admits no more. No waiting thread sees the end of the
        // journal before the log is empty.
        let unfinished = Unfinished(self);
        let emptied = || self.checkpoint_alone(|| self.empty_log());
        let closed = self.lead_last().inspect_err(|error| self.abort(error)).and_then(|()| emptied());
        drop(unfinished);
        let was_whole = self.fail(JournalError::Closed);
        turn.pass(None, |_| true);
        // Another thread may have aborted the journal meanwhile, for a write of content.
        closed.and_then(|()| if was_whole { Ok(()) } else { self.check() })
    }

    /// Checkpoints all of the log and marks it empty. No handle is open, and none can start.
    pub(crate) fn empty_log(&self) -> Result<()> {
        self.try_checkpoint(u32::MAX)?;
        let Some(log) = &self.log else { return Ok(()) };
        let head = self.state.lock().head;
        log.write_empty(&*self.device, self.committed().next(), head)?;
        self.flush.flush(&*self.device)
    }

    /// Latches a failure, and notes it in the log's superblock (`s_errno`) if that can still be
    /// written. Flushes the note, so that a later power cut does not lose it.
    pub(crate) fn abort(&self, error: &JournalError) {
        const EIO: i32 = 5;
        let latched = match error {
            JournalError::Aborted(_) | JournalError::Closed => error.clone(),
            other => JournalError::Aborted(other.to_string().into()),
        };
        if self.fail(latched)
            && let Some(log) = &self.log
        {
            // If the device itself has failed, the note is lost.
            let _ = log.write_errno(&*self.device, -EIO).and_then(|()| self.flush.flush_note(&*self.device));
        }
    }
}
