//! Shared parts of the benchmarks.

pub mod report;
