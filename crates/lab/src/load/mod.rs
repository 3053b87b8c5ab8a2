//! The loads: the operations of threads on the files of a [`Store`](crate::store::Store).

mod beside;
mod latencies;
mod mixed;
mod observed;
mod overwrite;
mod small;
mod storm;
mod work;

pub use beside::{Beside, beside};
pub use latencies::Latencies;
pub use mixed::mixed;
pub use observed::{Observed, observed};
pub use overwrite::random_overwrites;
pub use small::small_writes;
pub use storm::{Storm, bare_storm, more_open_files, sparse_files, storm};
pub use work::{Worker, run};

/// The size of most reads and writes in bytes.
const PAGE: u64 = 4096;
