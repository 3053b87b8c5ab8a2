//! What a run of the lab does: how much, where, and beside which peers.

use crate::Simulated;
use crate::peer::Peer;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The plan of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How often each contender gets its turn.
    pub rounds: usize,
    /// How long it runs at each point.
    pub time: Duration,
    /// How many times as long it runs where operations last long, as in the storm.
    pub patience: u32,
    /// How long it runs before the measurement.
    pub warm_up: Duration,
    /// Counts of threads for the experiments that have them on their axis.
    pub threads: Vec<u64>,
    /// Counts of threads of the storm.
    pub storm: Vec<u64>,
    /// Bytes of file content that an experiment lays out, more or less.
    pub content: u64,
    /// Whether logs are a sixteenth of what the experiments want.
    pub small_logs: bool,
    /// Where the backing file is made.
    pub dir: PathBuf,
    /// A block device to use instead, whose content is lost.
    pub device: Option<PathBuf>,
    /// A folder in memory.
    pub memory: PathBuf,
    /// Devices that are simulated: by the storm.
    pub simulated: Vec<Simulated>,
    /// Whether every other experiment that has a device runs on those too.
    pub simulate_each: bool,
    /// The peers that run beside lanefs.
    pub peers: Vec<Peer>,
    /// The peers that do not run, and why.
    pub left_out: Vec<String>,
}

const THREADS: [u64; 6] = [1, 2, 4, 8, 12, 16];

impl Plan {
    /// Returns the plan of all experiments in five minutes: short, but long enough that most pairs
    /// are told apart.
    pub fn quick(dir: &Path) -> Self {
        Self {
            rounds: 5,
            time: Duration::from_millis(200),
            patience: 5,
            warm_up: Duration::from_millis(20),
            threads: vec![1, 2, 4, 16],
            storm: vec![256],
            content: 64 << 20,
            ..Self::standard(dir)
        }
    }

    /// Returns the plan of all experiments in some minutes.
    pub fn standard(dir: &Path) -> Self {
        Self {
            rounds: 5,
            time: Duration::from_millis(250),
            patience: 8,
            warm_up: Duration::from_millis(100),
            threads: THREADS.to_vec(),
            storm: vec![256, 2048],
            content: 512 << 20,
            small_logs: false,
            dir: dir.to_owned(),
            device: None,
            memory: memory(dir),
            simulated: vec![Simulated::CLOUD],
            simulate_each: false,
            peers: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Returns the plan at the sizes of the sources, as far as a machine of today has time for
    /// them.
    pub fn full(dir: &Path) -> Self {
        Self {
            rounds: 7,
            time: Duration::from_secs(1),
            warm_up: Duration::from_millis(500),
            content: 2 << 30,
            ..Self::standard(dir)
        }
    }

    /// Returns the size of a log, in MiB, for an experiment that wants `mib`. None is smaller than
    /// the format allows.
    pub fn log(&self, mib: u32) -> u32 {
        if self.small_logs { (mib / 16).max(4) } else { mib }
    }

    /// Returns the bytes of a volume for logs and everything else that is not file content.
    pub(crate) fn room(&self) -> u64 {
        if self.small_logs { 96 << 20 } else { 512 << 20 }
    }

    /// Adds the peers that this machine can have; says of the others why not.
    pub fn with_peers(mut self, wanted: &[Peer]) -> Self {
        for peer in wanted {
            match peer.missing() {
                None => self.peers.push(*peer),
                Some(why) => self.left_out.push(format!("{}: {why}", peer.name())),
            }
        }
        self
    }
}

/// Returns a folder in memory, if there is one: mapped files should not wait for a disk.
fn memory(dir: &Path) -> PathBuf {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared.to_owned() } else { dir.to_owned() }
}
