//! Multiple mount protection (MMP): keeps two hosts from writing one volume.
//!
//! A volume with the feature `mmp` has a block that its user keeps changing. [`HostClaim::take`]
//! claims the volume by that block before anything else of it is read for writing ([`take`]). The
//! open volume writes through a [`FencedDevice`], which asks the [`Holder`] before each write
//! whether the volume is still this host's. A thread renews the claim ([`Updater`]), and the close
//! gives it back.
//!
//! A host may take the volume of another one when it has seen the same sequence for
//! [`takeover_wait`](lanefs_format::mmp::takeover_wait), has written its own, and has seen that for
//! as long. This gives a holder two times:
//! - for [`Times::trust`] after it last saw its own sequence it writes without a look;
//! - a look that began less than [`Times::wait`] ago proves that no other host has written: that
//!   host still waits behind its own sequence.
//!
//! Invariants:
//! - Nothing is written to the device but through the fence, except the MMP block itself.
//! - A claim that is lost stays lost.
//!
//! Hazards:
//! - A write that was sent before the claim was lost may arrive after it.
//! - A clock that stands still while the host does hides the pause for [`Times::fresh`].

mod block;
mod claim;
mod clear;
mod clock;
mod fence;
mod holder;
mod switch;
mod take;
mod updater;

pub(crate) use block::MmpBlock;
pub(crate) use claim::HostClaim;
pub(crate) use clear::clear;
pub use clock::MmpClock;
pub(crate) use clock::{HostClock, Waiting};
pub(crate) use fence::FencedDevice;
pub(crate) use holder::Holder;
pub use take::MmpWait;

use lanefs_format::mmp;
use std::time::Duration;

/// The times of a claim, by the volume's `s_mmp_update_interval`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// From one update to the next.
    update: Duration,
    /// How long after a look the block is not looked at again.
    fresh: Duration,
    /// How long after a look a thread need not wait for another thread's look.
    trust: Duration,
    /// How long another host waits at least, behind its own sequence.
    wait: Duration,
}

impl Times {
    /// How long a look counts as fresh. It bounds how long a host writes to a lost volume if its
    /// clock stood still meanwhile.
    const FRESH: Duration = Duration::from_millis(200);

    /// Returns the times of a volume with this `s_mmp_update_interval`.
    pub(crate) fn new(interval: u16) -> Self {
        let check = mmp::check_interval(interval);
        Self {
            update: Duration::from_secs(interval.into()),
            fresh: Self::FRESH,
            trust: Duration::from_secs(check.into()),
            wait: mmp::takeover_wait(interval, check),
        }
    }
}

#[cfg(test)]
mod tests;
