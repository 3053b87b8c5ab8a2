//! Schedules: threads of a workload, under the scheduler of `lanefs-sync`, with the volume's own
//! threads.
//!
//! A [`Plan`] lists the operations of two to four threads on one volume. [`try_plan`] runs it with
//! a seed, which decides which thread continues at each lock, wait, atomic operation and I/O, when
//! time passes, and where the power is cut. No I/O fails. Then it checks:
//!
//! - Did every thread end: no deadlock, no panic, no lock out of order?
//! - Is the history linearisable: does an order of the operations explain all results and the final
//!   volume, and keep the order of operations that did not overlap?
//! - Is each crash state a state that a crash of one of these orders may leave?
//! - Does the checker find no error in the closed volume and in each recovered volume?

mod history;
mod judge;
mod pairs;
mod plan;
mod session;

pub use judge::{Outcome, try_plan};
pub use pairs::Pairs;
pub use plan::{Act, Plan};
