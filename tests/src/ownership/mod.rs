//! What an operation may change: the bytes of a volume before and after it, held against each
//! other.
//!
//! On a damaged volume whose checksums fit, a structure may claim blocks of others. Whatever it
//! claims, an operation that lanefs carries out, or refuses half way, changes nothing outside of
//! what its inodes own: no copy of the superblock, no log, no descriptor, bitmap or table of which
//! it takes nothing, no inode and no block of others.

mod bytes;
mod judge;
mod meddle;
mod op;

pub use meddle::{Meddled, meddle};
