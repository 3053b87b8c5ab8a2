//! Indexed directories.
//!
//! Block 0 is the root of a tree of hashes whose leaves are plain directory blocks. A name is in
//! the leaf whose range holds its hash. Where more names have a hash than a leaf has room for, they
//! go on in the leaves behind it, whose index entries have bit 0 set.

mod insert;
mod lookup;
mod split;

pub(super) use insert::{growth, insert};
pub(super) use lookup::{IndexPath, find};
pub(super) use split::convert;
