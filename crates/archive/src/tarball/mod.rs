//! Tar, read and written as a stream: ustar, GNU and pax.
//!
//! - Read: long names and links of GNU and pax, numbers in base 256, pax times to the nanosecond;
//!   extended attributes (`SCHILY.xattr.`, `LIBARCHIVE.xattr.`) and ACLs as text (`SCHILY.acl.`);
//!   sparse files in the old GNU form and in pax forms 0.0, 0.1 and 1.0.
//! - Written: pax, with an extended header only where ustar cannot say it; sparse files in form
//!   1.0.
//!
//! Invariant: the same members give the same bytes.
//!
//! Hazard: an archive is not trusted. Sizes of headers and maps are bounded, and data is passed
//! through, not collected.

mod error;
mod header;
mod pax;
mod read;
mod sparse;
mod write;

pub(crate) use error::TarError;
pub(crate) use header::is_header;
pub(crate) use read::TarReader;
pub(crate) use write::TarWriter;

/// Data ranges that a file of an archive may have. Its map has one more, which ends the file.
pub(crate) const DATA_RANGES_MAX: usize = sparse::RANGES_MAX - 1;

/// Bytes in a record of an archive.
const RECORD: usize = 512;

#[cfg(test)]
mod tests;
