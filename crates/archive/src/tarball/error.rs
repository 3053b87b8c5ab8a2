//! The errors of an archive.

use std::io;

/// A broken archive, or a stream that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TarError {
    /// A rule of the format is broken.
    #[error("byte {at} of the archive: {rule}")]
    Broken {
        /// Where in the stream.
        at: u64,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// The stream failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}
