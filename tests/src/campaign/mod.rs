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

mod distinct;
mod enumerate;
mod explore;
mod fault;
mod faults;
mod hands;
mod hurt;
mod minimise;
mod model;
mod observed;
mod oracle;
mod progress;
mod recoveries;
mod run;
#[cfg(lanefs_schedule)]
pub mod schedules;
mod seeds;
mod setting;
mod stale;
mod step;
mod story;
mod team;
mod volume;
mod workload;

pub use enumerate::Small;
pub(crate) use explore::check_volume;
pub use explore::{Count, Depth, Explore, Explorer, Finding};
pub use fault::Fault;
pub use faults::{FaultDepth, FaultExplorer};
pub use minimise::minimise;
pub use progress::{Began, Progress};
pub use seeds::{fault_seeds, seeds, seeds_file};
pub use setting::{Setting, setting, settings};
pub use step::{Flag, Slot, Step, Way};
pub use team::{Outcome, explore_all};
pub use workload::{Case, Workload};
