//! The lab: each decision of the write path, the old way beside the new and beside the kernel's, in
//! one run.
//!
//! [`experiments`] are made of [`experiment::Case`]s, which [`runner`] runs as a [`plan::Plan`]
//! says; [`results`] is what comes of it. [`store`] has files of one kind or another behind one
//! face: lanefs in any of its modes, the kernel's file systems, a bare file. [`load`] has the loops
//! that run on them, [`rangelock`] the range locks of others and the loops that compare them.
#![forbid(unsafe_code)]

mod cause;
pub mod compare;
mod counted;
pub mod experiment;
pub mod experiments;
pub mod hist;
pub mod load;
mod machine;
pub mod model;
pub mod plan;
pub mod published;
mod random;
pub mod rangelock;
pub mod report;
pub mod results;
pub mod runner;
mod simulated;
pub mod stop;
pub mod store;
pub mod table;

pub use machine::Machine;
pub use random::Random;
pub use simulated::Simulated;

/// What a step gives or fails with. Whoever runs an experiment can do nothing about a failure but
/// read it.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
