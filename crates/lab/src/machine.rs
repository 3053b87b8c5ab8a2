//! The machine on which the figures were measured.

use serde::{Deserialize, Serialize};
use std::fs;

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// As the processor calls itself.
    pub cpu: String,
    /// That this process may use.
    pub cores: usize,
    /// Bytes.
    pub memory: u64,
    /// Its release.
    pub kernel: String,
    /// Versions of the programs that made the peers, where there are any.
    pub tools: Vec<String>,
}

impl Machine {
    /// Returns the description of this machine.
    pub fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpus = read("/proc/cpuinfo");
        let cpu = cpus.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
        let system = rustix::system::sysinfo();
        let tools = [("mke2fs", "-V"), ("mkfs.xfs", "-V")];
        Self {
            cpu: cpu.map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: system.totalram as u64 * u64::from(system.mem_unit),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            tools: tools.iter().filter_map(|(tool, arg)| crate::store::tool_version(tool, arg)).collect(),
        }
    }

    /// Returns the description in one line.
    pub fn line(&self) -> String {
        let memory = self.memory as f64 / (1_u64 << 30) as f64;
        format!("{}, {} cores, {memory:.0} GiB, Linux {}", self.cpu, self.cores, self.kernel)
    }
}
