//! Shared parts of the benchmarks.

pub mod cases;
pub mod linked_list;
pub mod report;
pub mod write_path;
