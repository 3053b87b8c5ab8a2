//! Schedules: threads of a workload, under the scheduler of `lanefs-sync`, with the volume's own
//! threads.
//!
//! A [`Plan`] says what each of two to four threads does on one volume. [`try_plan`] runs it by a
//! seed: which thread goes on at each lock, wait, atomic operation and I/O, when time passes, which
//! I/O fails, and where the power is cut. Then it asks:
//!
//! - Did every thread end: no deadlock, no panic, no lock out of order?
//! - Is there an order of the operations that explains all that the threads saw and what is on the
//!   volume, and that keeps to the order of those that did not overlap (linearisability)?
//! - Is what each crash leaves one of the states that a crash of one of these orders may leave?
//! - Has the checker nothing to say, of the closed volume and of each that was recovered?

mod history;
mod judge;
mod pairs;
mod plan;
mod session;

pub use judge::{Outcome, try_plan};
pub use pairs::Pairs;
pub use plan::{Act, Plan};
