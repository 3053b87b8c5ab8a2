//! The journal's counters and timings.

use lanefs_stats::{Counter, Histogram, Snapshot};

/// Counters and times since the journal was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Handles started; a restart counts again.
    pub handles: u64,
    /// Handles restarted.
    pub restarts: u64,
    /// Credits that handles asked for.
    pub credits_asked: u64,
    /// Credits that handles used: distinct blocks of a transaction.
    pub credits_used: u64,
    /// Credits used beyond those asked for.
    pub credits_overdrawn: u64,
    /// Handles that had to wait at start or restart.
    pub waits: u64,
    /// Transactions committed.
    pub commits: u64,
    /// Copies of metadata blocks written to the log.
    pub blocks_logged: u64,
    /// Revoke records written.
    pub revokes: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Blocks that checkpoints wrote in place.
    pub blocks_checkpointed: u64,
    /// Metadata blocks read from the device.
    pub blocks_read: u64,
    /// Flushes of the device, for whatever reason.
    pub flushes: u64,
    /// Current levels.
    pub levels: Levels,
    /// Durations.
    pub times: Times,
}

/// Levels at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Levels {
    /// Blocks of the log; 0 without one.
    pub log_blocks: u64,
    /// Log blocks that hold transactions, including the committing one.
    pub log_blocks_used: u64,
    /// Metadata blocks in memory. A block that is both cached and waiting for a checkpoint counts
    /// twice.
    pub blocks_in_memory: u64,
    /// Metadata blocks that are committed and not checkpointed.
    pub blocks_to_checkpoint: u64,
    /// Handles in the running transaction.
    pub handles_open: u64,
    /// Credits that open handles hold or that the transaction has used.
    pub credits_taken: u64,
    /// Credits of the running transaction.
    pub credits_limit: u64,
    /// Handles that wait for the next transaction or for credits.
    pub handles_waiting: u64,
}

/// Times in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    /// Starting a handle, waits included; counted each time, timed one in 64.
    pub start: Snapshot,
    /// Waits of handles for the next transaction or for credits. Handles that did not wait are not
    /// counted.
    pub credit_wait: Snapshot,
    /// Commits, from the request until durable. Counts every thread that waited or led.
    pub commit_wait: Snapshot,
    /// A whole commit: the sum of its phases.
    pub commit: Snapshot,
    /// First phase: until the last handle has left and the next transaction is open.
    pub lock_down: Snapshot,
    /// Second: taking the contents and writing them to the log, all but the commit block.
    pub log_write: Snapshot,
    /// Third: waiting for ordered data. Commits without ordered data are not counted.
    pub ordered_data: Snapshot,
    /// Fourth: the flush before the commit block.
    pub flush: Snapshot,
    /// Fifth: the commit block and the flush that makes it durable.
    pub commit_block: Snapshot,
    /// A checkpoint, from the first write in place to the new tail.
    pub checkpoint: Snapshot,
}

/// [`Stats`] in the making.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) restarts: Counter,
    pub(crate) waits: Counter,
    pub(crate) credits_asked: Counter,
    pub(crate) credits_used: Counter,
    pub(crate) credits_overdrawn: Counter,
    pub(crate) commits: Counter,
    pub(crate) blocks_logged: Counter,
    pub(crate) revokes: Counter,
    pub(crate) blocks_checkpointed: Counter,
    pub(crate) blocks_read: Counter,
    pub(crate) start: Histogram,
    pub(crate) credit_wait: Histogram,
    pub(crate) commit_wait: Histogram,
    pub(crate) commit: Histogram,
    pub(crate) lock_down: Histogram,
    pub(crate) log_write: Histogram,
    pub(crate) ordered_data: Histogram,
    pub(crate) flush: Histogram,
    pub(crate) commit_block: Histogram,
    pub(crate) checkpoint: Histogram,
}

impl Counters {
    pub(crate) const fn new() -> Self {
        Self {
            restarts: Counter::new(),
            waits: Counter::new(),
            credits_asked: Counter::new(),
            credits_used: Counter::new(),
            credits_overdrawn: Counter::new(),
            commits: Counter::new(),
            blocks_logged: Counter::new(),
            revokes: Counter::new(),
            blocks_checkpointed: Counter::new(),
            blocks_read: Counter::new(),
            // Mostly one atomic add: a clock would cost as much.
            start: Histogram::sampled(64),
            credit_wait: Histogram::new(),
            commit_wait: Histogram::new(),
            commit: Histogram::new(),
            lock_down: Histogram::new(),
            log_write: Histogram::new(),
            ordered_data: Histogram::new(),
            flush: Histogram::new(),
            commit_block: Histogram::new(),
            checkpoint: Histogram::new(),
        }
    }

    pub(crate) fn read(&self, flushes: u64, levels: Levels) -> Stats {
        let times = Times {
            start: self.start.snapshot(),
            credit_wait: self.credit_wait.snapshot(),
            commit_wait: self.commit_wait.snapshot(),
            commit: self.commit.snapshot(),
            lock_down: self.lock_down.snapshot(),
            log_write: self.log_write.snapshot(),
            ordered_data: self.ordered_data.snapshot(),
            flush: self.flush.snapshot(),
            commit_block: self.commit_block.snapshot(),
            checkpoint: self.checkpoint.snapshot(),
        };
        Stats {
            handles: times.start.count,
            restarts: self.restarts.get(),
            credits_asked: self.credits_asked.get(),
            credits_used: self.credits_used.get(),
            credits_overdrawn: self.credits_overdrawn.get(),
            waits: self.waits.get(),
            commits: self.commits.get(),
            blocks_logged: self.blocks_logged.get(),
            revokes: self.revokes.get(),
            checkpoints: times.checkpoint.count,
            blocks_checkpointed: self.blocks_checkpointed.get(),
            blocks_read: self.blocks_read.get(),
            flushes,
            levels,
            times,
        }
    }
}
