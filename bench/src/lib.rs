//! Shared parts of the benchmarks.

pub mod cases;
pub mod fsync;
pub mod linked_list;
pub mod process;
pub mod report;
pub mod scale;
pub mod setup;
pub mod tree;
pub mod turns;
pub mod write_path;
