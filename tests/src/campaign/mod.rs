//! The crash campaign: every small workload, every small crash, and an oracle that knows the
//! allowed states.
//!
//! A [`Case`] is a [`Workload`] (steps) in a [`Setting`] (a volume, a way of writing, pressure).
//! `run` carries it out on a recording device beside a `Model`, and notes what was promised when.
//! [`Explorer`] makes the states that a power cut may leave of the log, recovers each, walks it
//! (`Observed`) and asks the `oracle`. A finding is [`minimise`]d to one line of text that replays
//! it. [`Small`] lists the workloads.
//!
//! The fault campaign beside it ([`FaultExplorer`]) runs the same cases, and fails one call of the
//! device in each run.

mod calls;
mod device;
mod distinct;
mod enumerate;
mod explore;
mod failed_calls;
mod fault;
mod faults;
mod minimise;
mod model;
mod model_run;
mod observed;
mod oracle;
mod parallel;
mod progress;
mod recoveries;
mod run;
#[cfg(lanefs_schedule)]
pub mod schedules;
mod seeds;
mod setting;
mod stale;
mod step;
mod times;
mod volume;
mod workload;

pub use enumerate::Small;
pub use explore::{Count, Depth, Explore, Explorer, Finding, check_volume};
pub use fault::Fault;
pub use faults::{FaultDepth, FaultExplorer};
pub use minimise::minimise;
pub use parallel::{Outcome, explore_all};
pub use progress::{Began, Progress};
pub use seeds::{fault_seeds, seeds, seeds_file};
pub use setting::{Setting, setting, settings};
pub use step::{Flag, Slot, Step, Way};
pub use workload::{Case, Workload};
