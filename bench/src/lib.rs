//! Shared parts of the benchmarks.

pub mod rangelock;
pub mod report;
