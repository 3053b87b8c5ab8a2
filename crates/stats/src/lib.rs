//! Counters and histograms that are cheap enough to leave on.
//!
//! A [`Counter`] or a [`Histogram`] is split into [`LANES`] lanes, each on cache lines of its own.
//! A thread is given a lane when it first counts anything and keeps it, so that threads do not pull
//! one line back and forth. To count is one relaxed add, to record a value two; nothing waits and
//! nothing can fail. Reading sums over the lanes: it is exact once the counting threads are quiet,
//! and meanwhile of no single moment.
//!
//! They are large: a counter has 2 KiB, a histogram up to 32 KiB (2 KiB for each lane that was
//! used). Meant for one a volume, not for one a file.
#![forbid(unsafe_code)]

mod counter;
mod figure;
pub mod hist;
mod histogram;
mod lane;
mod snapshot;

pub use counter::Counter;
pub use figure::figure;
pub use histogram::{Histogram, Timer};
pub use lane::{LANES, lane};
pub use snapshot::{Bucket, Snapshot};
