//! Commit and checkpoint.
//!
//! **Commit.** Whoever asks first leads, the others wait for it. The leader closes the running
//! transaction, waits for its last handle, takes what was collected, and opens the next one at
//! once. Then it takes the contents of the blocks: an `Arc` each; who changes such a block
//! meanwhile copies it out. It writes revoke blocks, descriptors and copies to the log in one
//! batch, flushes, which makes durable also the file data that was written before, writes the
//! commit block, and flushes again. Only one commit runs at a time, so commit blocks are in order.
//!
//! **After it,** the contents go to [`Committed`], the revoked blocks leave it, and what was freed
//! is reported; then the threads that waited wake up. Without a log, a commit flushes (file data
//! comes before what maps it), writes the blocks home, and flushes again.
//!
//! **Space.** A transaction has at most a quarter of the log, and is opened with no more credits
//! than would fit next to all that the log holds and what is being committed, with the reserve that
//! its handles may overdraw. So a commit never waits for space; a handle does, before it has
//! anything that another could wait for. A handle that needs more than the reserve aborts the
//! journal, and so does a commit that would not fit.
//!
//! **Close.** The last commit closes the running transaction and opens no other, so that nothing
//! can be committed between the last checkpoint and the note that the log is empty.

use crate::core::{Core, Past};
use crate::gate::Place;
use crate::recovery::write_merged;
use crate::transaction::{Snapshot, Transaction};
use crate::{Freed, JournalError, Result, Ticket, Tid};
use lanefs_sync::time::Instant;
use std::time::Duration;

/// Blocks that a checkpoint writes in one batch.
const BATCH: usize = 1024;

/// Stops the journal if a commit panics: half of it must not be taken for the whole.
struct InCommit<'a>(&'a Core);

impl Drop for InCommit<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(JournalError::Aborted("a thread panicked in the middle of a commit".into()));
        }
    }
}

impl Core {
    /// Returns when `tid` is durable. `false`: it had nothing to write, and nothing was flushed.
    pub(crate) fn commit(&self, tid: Tid) -> Result<bool> {
        self.commit_with(tid, true)
    }

    /// As [`commit`](Self::commit), but it does not wait for others who may want one too.
    pub(crate) fn commit_now(&self, tid: Tid) -> Result<bool> {
        self.commit_with(tid, false)
    }

    fn commit_with(&self, tid: Tid, gather: bool) -> Result<bool> {
        let over = |tid| self.is_durable(tid) || self.has_ended();
        self.check()?;
        if self.is_durable(tid) {
            return Ok(true);
        }
        let _timer = self.counters.commit_wait.start();
        loop {
            // First: the journal may have been closed after that.
            if self.is_durable(tid) {
                return Ok(true);
            }
            self.check()?;
            if let Some(turn) = self.commits.wait(tid, || over(tid)) {
                // Who sleeps at the gate cannot come.
                if gather && !self.gate.is_waited_for() {
                    turn.gather();
                }
                let in_commit = InCommit(self);
                let result = self.lead().inspect_err(|error| self.abort(error));
                drop(in_commit);
                turn.pass(result.as_ref().ok().copied().flatten(), over);
                // It was the running transaction: nothing else is behind the committed ones.
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
        // Handles first: a handle hands its changes over before it leaves.
        if self.gate.inside().handles > 0 || self.is_dirty() {
            self.commit(running.tid)?;
        } else {
            // It may be empty because it has just been taken for a commit.
            self.commits.wait_for_pass();
        }
        self.check()?;
        self.flush(ticket)
    }

    /// Returns when a flush that began after `ticket` was taken is complete; a commit's counts.
    pub(crate) fn flush(&self, ticket: Ticket) -> Result<()> {
        if self.is_read_only() || self.flush.is_done(ticket) {
            return Ok(());
        }
        self.check()?;
        self.flush.wait_together(&*self.device, ticket).inspect_err(|error| self.abort(error))
    }

    /// Commits the running transaction; only one thread at a time. Returns how long that took for
    /// flushes, or `None` if there was nothing in it.
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

    /// Commits what the running transaction has and opens no other: the last commit of a journal.
    /// Only one thread at a time, and then [`fail`](Core::fail) has to tell whoever waits.
    fn lead_last(&self) -> Result<()> {
        let began = Instant::now();
        let (place, txn) = self.close_running();
        if txn.is_dirty() {
            return self.write_out(place, txn, began).map(drop);
        }
        self.report_freed(&txn.freed);
        Ok(())
    }

    /// Closes the running transaction, waits for its handles, and takes what they have collected.
    fn close_running(&self) -> (Place, Transaction) {
        let place = self.gate.close();
        let txn = std::mem::take(&mut *self.transactions[place.slot].lock());
        (place, txn)
    }

    /// Makes a closed transaction durable. Returns how long that took for flushes. Where that fails
    /// its buffers stay in memory: threads that still read see what was changed last.
    fn write_out(&self, place: Place, mut txn: Transaction, began: Instant) -> Result<Duration> {
        let written = self.try_write_out(place.tid, &mut txn, began);
        if written.is_err() {
            self.transactions[place.slot].lock().buffers.append(&mut txn.buffers);
        }
        written
    }

    fn try_write_out(&self, tid: Tid, txn: &mut Transaction, began: Instant) -> Result<Duration> {
        // A handle that met the end of the journal half way has left half an operation.
        self.check()?;
        let logging = Instant::now();
        let snapshot = txn.snapshot(tid);
        self.counters.commits.add(1);
        self.counters.blocks_logged.add(snapshot.blocks.len() as u64);
        self.counters.revokes.add(snapshot.revokes.len() as u64);
        let flushing = match &self.log {
            None => self.write_through(&snapshot, txn)?,
            Some(_) => self.write_to_log(snapshot, txn, logging)?,
        };
        self.finish(tid, txn);
        self.counters.commit.record_time(began.elapsed());
        Ok(flushing)
    }

    /// Waits for the data that the transaction is ordered after.
    fn wait_for_data(&self, txn: &Transaction) -> Result<()> {
        if txn.ordered.is_empty() {
            return Ok(());
        }
        let _timer = self.counters.ordered_data.start();
        txn.ordered.iter().try_for_each(|data| data.wait())
    }

    /// Writes the blocks of a transaction home, without a log. What was written to the device
    /// before is durable first: an inode that is home must not map blocks whose data is not.
    fn write_through(&self, txn: &Snapshot, closed: &Transaction) -> Result<Duration> {
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

    fn write_to_log(&self, txn: Snapshot, closed: &Transaction, began: Instant) -> Result<Duration> {
        let Some(log) = &self.log else { return Ok(Duration::ZERO) };
        let len = log.size_of(txn.blocks.len(), txn.revokes.len());
        let (tid, start, free) = {
            let state = self.state.lock();
            (txn.tid, state.head, log.len().saturating_sub(state.used))
        };
        // By the limits of the transactions this cannot be; if it were, others would be written
        // over.
        if len > free {
            return Err(JournalError::LogOverrun { tid, need: len, free, blocks: log.len() });
        }
        let (commit_at, crc) = log.write(&*self.device, &txn, start)?;
        self.counters.log_write.record_time(began.elapsed());
        self.wait_for_data(closed)?;
        let flushing = Instant::now();
        self.counters.flush.time(|| self.flush.flush(&*self.device))?;
        self.counters.commit_block.time(|| {
            log.write_commit(&*self.device, tid, commit_at, crc)?;
            self.flush.flush(&*self.device)
        })?;
        let flushing = flushing.elapsed();
        // First the contents, then the history: a checkpoint that knows the transaction has all of
        // it.
        self.uncheckpointed.insert(tid, txn.blocks);
        let mut state = self.state.lock();
        state.head = log.advance(commit_at, 1);
        state.used += len;
        state.history.push_back(Past { tid, start, len });
        Ok(flushing)
    }

    /// Transaction `tid` is durable: tells everybody.
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
        self.help(self.gate.raise_limit(self.limit(&state)));
        if self.wants_checkpoint(&state) {
            self.background.want_checkpoint();
        }
    }

    fn report_freed(&self, freed: &[Freed]) {
        if let (Some(on_freed), false) = (&self.on_freed, freed.is_empty()) {
            on_freed(freed);
        }
    }

    /// Writes all that is committed home, and gives its space in the log back.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.checkpoint_oldest(u32::MAX)
    }

    /// Makes room in log and memory: checkpoints a quarter of the log, or half of what it holds
    /// where that is less. Handles that wait for space need not wait for the rest, and what is
    /// changed again and again is written home less often.
    pub(crate) fn make_room(&self) -> Result<()> {
        let used = self.state.lock().used;
        self.checkpoint_oldest(self.log.as_ref().map_or(0, |log| (log.len() / 4).min(used.div_ceil(2))))
    }

    /// Checkpoints the oldest transactions, as many as take `blocks` of the log, or all.
    pub(crate) fn checkpoint_oldest(&self, blocks: u32) -> Result<()> {
        self.check()?;
        self.try_checkpoint(blocks).inspect_err(|error| self.abort(error))
    }

    fn try_checkpoint(&self, blocks: u32) -> Result<()> {
        let _one = self.checkpointing.lock();
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
            let written = write_merged(&*self.device, u64::from(self.block_size), &writes);
            self.uncheckpointed.landed();
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
        self.help(self.gate.raise_limit(self.limit(&state)));
        if self.wants_checkpoint(&state) {
            self.background.want_checkpoint();
        }
        drop(state);
        self.counters.checkpoint.record_time(began.elapsed());
        Ok(())
    }

    /// Commits and checkpoints everything, marks the log empty, and lets no handle in any more.
    pub(crate) fn close(&self) -> Result<()> {
        self.check()?;
        if self.is_read_only() {
            self.fail(JournalError::Closed);
            return Ok(());
        }
        // Most of the work, while other threads still change the volume.
        self.sync()?;
        self.checkpoint()?;
        let tid = self.gate.running().tid;
        let turn = loop {
            self.check()?;
            if let Some(turn) = self.commits.wait(tid, || self.has_ended()) {
                break turn;
            }
        };
        // What they have changed since, and an end to it. Of what follows nobody is told before.
        let in_commit = InCommit(self);
        let closed = self.lead_last().and_then(|()| self.empty_log()).inspect_err(|error| self.abort(error));
        drop(in_commit);
        self.fail(JournalError::Closed);
        turn.pass(None, |_| true);
        closed
    }

    /// Checkpoints all of the log and marks it empty. No handle is open, and none can start.
    fn empty_log(&self) -> Result<()> {
        self.try_checkpoint(u32::MAX)?;
        let Some(log) = &self.log else { return Ok(()) };
        let head = self.state.lock().head;
        log.write_empty(&*self.device, self.committed().next(), head)?;
        self.flush.flush(&*self.device)
    }

    /// Latches a failure, and leaves a note of it in the log if that still can be written. The note
    /// is flushed: a power cut that follows does not lose it.
    pub(crate) fn abort(&self, error: &JournalError) {
        const EIO: i32 = 5;
        let latched = match error {
            JournalError::Aborted(_) | JournalError::Closed => error.clone(),
            other => JournalError::Aborted(other.to_string().into()),
        };
        if self.fail(latched)
            && let Some(log) = &self.log
        {
            // The device may be what failed: then the note cannot be left.
            let _ = log.write_errno(&*self.device, -EIO).and_then(|()| self.flush.flush_note(&*self.device));
        }
    }
}
