//! Shared parts of the benchmarks.

pub mod rangelock;
pub mod report;
pub mod write_path;
