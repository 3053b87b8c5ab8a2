//! The lab: measures each decision of the write path, the old way beside the new and beside the
//! kernel's, in one run.
//!
//! [`experiments`] are made of [`experiment::Case`]s. [`runner`] runs them as a [`plan::Plan`]
//! says, and puts the figures into [`results`]. [`store`] has one interface to different files: of
//! lanefs in any of its modes, of the kernel's file systems, and a bare file. [`load`] has the
//! loops that run on them. [`rangelock`] has other range locks, and the loops that compare them.
//! [`model`] predicts from the results, and from the bounds of [`shared_writes`].
#![forbid(unsafe_code)]

mod answer;
mod cause;
pub mod compare;
mod counted;
pub mod experiment;
pub mod experiments;
pub mod load;
mod machine;
pub mod model;
pub mod peer;
pub mod plan;
pub mod published;
mod random;
pub mod rangelock;
pub mod report;
pub mod results;
pub mod runner;
pub mod shared_writes;
mod simulated;
pub mod stop;
pub mod store;
pub mod table;

pub use lanefs_stats::hist;
pub use machine::Machine;
pub use random::Random;
pub use simulated::Simulated;

/// The result of a step. The caller of an experiment can only print the error.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
