//! Which thread takes a request, and on which processor.
//!
//! Hazard: nothing here changes what a request does. A mistake shows as a mount that is slow, or as
//! threads that keep a policy or a processor that is not theirs.

mod follow;
mod shares;
mod workers;

pub(crate) use follow::{Follow, Following, Preference, release};
pub(crate) use shares::{Shares, User, Work};
pub(crate) use workers::{BUFFERS, Cost, First, WaitTurn, Workers};
