//! Multiple mount protection (MMP): keeps two hosts from writing one volume. [`HostClaim::take`]
//! claims a volume before it is opened, and a thread renews the claim ([`updater`]). The volume
//! writes through a [`FencedDevice`], which asks the [`Holder`] before each write. Another host
//! sees its own sequence for [`Times::wait`] before it writes, so a look that began less long ago
//! proves that no other host has written. docs/remote.md says what remains possible.

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
