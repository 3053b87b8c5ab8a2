//! One sample of a mount's statistics.

use crate::watch::{Refusal, ask};
use lanefs_stats::hist::Hist;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A sample of a mount's statistics; the names are those of the JSON.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Sample {
    pub(crate) volume: String,
    pub(crate) dir: String,
    pub(crate) read_only: bool,
    pub(crate) pid: u32,
    pub(crate) metrics: Option<String>,
    pub(crate) seconds: f64,
    pub(crate) requests: u64,
    pub(crate) threads: u64,
    pub(crate) threads_busy: u64,
    pub(crate) open_files: u64,
    pub(crate) nodes: u64,
    pub(crate) stats: Stats,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Stats {
    pub(crate) counters: BTreeMap<String, u64>,
    pub(crate) levels: BTreeMap<String, u64>,
    pub(crate) histograms: BTreeMap<String, Times>,
}

/// A histogram, and how many are at it now.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Times {
    #[serde(flatten)]
    pub(crate) hist: Hist,
    pub(crate) running: u64,
}

impl Sample {
    /// Asks the mount behind `socket`; also what it said, word by word.
    pub(crate) fn take(socket: &Path) -> Result<(Self, String), Refusal> {
        let text = ask(socket, "/stats")?;
        let sample = serde_json::from_str(&text)
            .map_err(|e| Refusal::Said(format!("another version of lanefs serves it: {e}")))?;
        Ok((sample, text))
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.stats.counters.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn level(&self, name: &str) -> u64 {
        self.stats.levels.get(name).copied().unwrap_or(0)
    }

    /// Returns whether this is the mount of that volume or directory.
    pub(crate) fn is_of(&self, path: &Path) -> bool {
        let name = path.to_string_lossy();
        self.dir == name || self.volume == name
    }
}
