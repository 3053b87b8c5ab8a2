//! How a journal is opened.

use std::time::Duration;

/// Called after a commit with all that it freed. Must not call the journal.
pub type OnFreed = Box<dyn Fn(&[Freed]) + Send + Sync>;

/// How to open a [`Journal`](crate::Journal).
pub struct Options {
    /// Bytes of a block: 1024 to 65536.
    pub block_size: u32,
    /// Blocks in memory at most: those that the cache keeps, those that transactions have changed,
    /// and those that are committed and not checkpointed. At least 4096 count for the latter two,
    /// of which a transaction has a quarter.
    pub cache_blocks: usize,
    /// Where the log is. `None`: no journal, a commit writes the blocks home.
    pub log: Option<LogConfig>,
    /// How long a change stays uncommitted when nobody asks. Zero: until somebody asks.
    pub commit_interval: Duration,
    /// Who wants to know what a committed transaction freed.
    pub on_freed: Option<OnFreed>,
    /// Called at the first use after [`Journal::take_used`](crate::Journal::take_used), by any
    /// thread and under any lock: it must not call the journal, nor wait.
    pub on_use: Option<Box<dyn Fn() + Send + Sync>>,
    /// Refuse every handle.
    pub read_only: bool,
    /// The time since 1970 that commits carry, for logs that come out the same twice. `None`: the
    /// system's.
    pub clock: Option<Duration>,
}

impl Options {
    /// Options with 64 MiB of memory, no log, a commit every five seconds.
    pub fn new(block_size: u32) -> Self {
        Self {
            block_size,
            cache_blocks: (64 << 20) / block_size.max(1) as usize,
            log: None,
            commit_interval: Duration::from_secs(5),
            on_freed: None,
            on_use: None,
            read_only: false,
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

/// Where the log lies, and what the file system wants of it.
#[derive(Debug, Clone, Default)]
pub struct LogConfig {
    /// The journal inode's blocks by logical block, without holes.
    pub runs: Vec<LogRun>,
    /// The file system has metadata_csum: a log without checksums gets v3.
    pub metadata_csum: bool,
    /// The file system has 64bit: tags carry 64-bit block numbers.
    pub is_64bit: bool,
}
