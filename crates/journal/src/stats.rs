//! The journal's counters.

use crate::Stats;
use std::sync::atomic::{AtomicU64, Ordering};

/// [`Stats`] in the making. Each is only ever added to.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) handles: AtomicU64,
    pub(crate) credits_asked: AtomicU64,
    pub(crate) credits_used: AtomicU64,
    pub(crate) credits_overdrawn: AtomicU64,
    pub(crate) waits: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) blocks_logged: AtomicU64,
    pub(crate) revokes: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) blocks_checkpointed: AtomicU64,
    pub(crate) blocks_read: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn read(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            handles: get(&self.handles),
            credits_asked: get(&self.credits_asked),
            credits_used: get(&self.credits_used),
            credits_overdrawn: get(&self.credits_overdrawn),
            waits: get(&self.waits),
            commits: get(&self.commits),
            blocks_logged: get(&self.blocks_logged),
            revokes: get(&self.revokes),
            checkpoints: get(&self.checkpoints),
            blocks_checkpointed: get(&self.blocks_checkpointed),
            blocks_read: get(&self.blocks_read),
        }
    }
}
