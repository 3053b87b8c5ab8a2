//! Options of a journal.

use std::time::Duration;

/// Called after a commit with all block runs that it freed. Must not call the journal.
pub type OnFreed = Box<dyn Fn(&[Freed]) + Send + Sync>;

/// Options to open a [`Journal`](crate::Journal).
pub struct Options {
    /// Bytes of a block: 1024 to 65536.
    pub block_size: u32,
    /// The most blocks in memory. Half, computed from at least 4096 blocks, is for blocks that
    /// transactions have changed and blocks that are committed and not checkpointed; one
    /// transaction gets a quarter of it. The cache has the other half, and what changed blocks and
    /// two transactions leave of this one.
    pub cache_blocks: usize,
    /// Where the log is. `None`: no journal, and a commit overwrites the blocks in place.
    pub log: Option<LogConfig>,
    /// How long a change stays uncommitted if no thread requests a commit. Zero: no time limit.
    pub commit_interval: Duration,
    /// Called with the blocks that a committed transaction freed.
    pub on_freed: Option<OnFreed>,
    /// Called at the first use after [`Journal::take_used`](crate::Journal::take_used), by any
    /// thread and under any lock: it must not call the journal, nor wait.
    pub on_use: Option<Box<dyn Fn() + Send + Sync>>,
    /// Refuse every handle.
    pub read_only: bool,
    /// Whether threads commit and checkpoint in the background. Without them a handle that finds no
    /// room makes room itself, and no timer commits: for a caller with one thread.
    pub threads: bool,
    /// The time since 1970 that commit blocks carry, for reproducible logs. `None`: the system's
    /// time.
    pub clock: Option<Duration>,
}

impl Options {
    /// Returns options with 64 MiB of memory, no log, a commit every five seconds.
    pub fn new(block_size: u32) -> Self {
        Self {
            block_size,
            cache_blocks: (64 << 20) / block_size.max(1) as usize,
            log: None,
            commit_interval: Duration::from_secs(5),
            on_freed: None,
            on_use: None,
            read_only: false,
            threads: true,
            clock: None,
        }
    }
}

/// A run of blocks that a transaction gave back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freed {
    /// First block.
    pub start: u64,
    /// Number of blocks.
    pub len: u64,
}

/// The most runs that a log may have: those of a log of the largest size that mke2fs makes, in
/// pieces of ten blocks.
pub const LOG_RUNS_MAX: usize = 1 << 20;

/// One contiguous piece of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRun {
    /// First block within the log (the journal inode's logical block).
    pub logical: u32,
    /// The same block on the volume.
    pub physical: u64,
    /// Number of blocks.
    pub len: u32,
}

/// The location of the log, and the features that the file system requires of it.
#[derive(Debug, Clone, Default)]
pub struct LogConfig {
    /// The journal inode's blocks by logical block, without holes.
    pub runs: Vec<LogRun>,
    /// The file system has metadata_csum: a log without checksums gets v3.
    pub metadata_csum: bool,
    /// The file system has 64bit: tags carry 64-bit block numbers.
    pub is_64bit: bool,
}
