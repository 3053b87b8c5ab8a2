//! Where a file has data, and where holes.
//!
//! What is dirty is written out first: then the map knows all. Unwritten blocks are holes, as is
//! what follows the end of the file.

use super::writeback::ALL;
use super::{max_size, place, write_back};
use crate::error::{Error, Result};
use crate::inode::Node;
use crate::map::{self, Mapping};

/// The first byte at or behind `offset` that is data.
///
/// # Errors
/// [`Error::NothingThere`] if there is none; what is damaged in the map.
pub(crate) fn seek_data(node: &Node, offset: u64) -> Result<u64> {
    seek(node, offset, true)
}

/// The first byte at or behind `offset` that is in a hole, or the end of the file.
///
/// # Errors
/// [`Error::NothingThere`] if `offset` is not before the end; what is damaged in the map.
pub(crate) fn seek_hole(node: &Node, offset: u64) -> Result<u64> {
    seek(node, offset, false)
}

fn seek(node: &Node, offset: u64, data: bool) -> Result<u64> {
    let (fs, file) = (&*node.fs, node.file());
    write_back(node, ALL)?;
    let _held = file.share(node, offset, u64::MAX);
    let size = file.size();
    // No map goes further, whatever a damaged inode says.
    let mapped = size.min(max_size(fs, &node.state()));
    let nothing = Error::NothingThere { offset, size };
    if offset >= size {
        return Err(nothing);
    }
    let mut at = offset;
    while at < mapped {
        let (lblk, inner) = place(fs, at)?;
        let mapping = map::lookup(fs, node.ino, &node.state(), lblk)?;
        if matches!(mapping, Mapping::Mapped { unwritten: false, .. }) == data {
            return Ok(at);
        }
        at = at.saturating_add(u64::from(mapping.len()) * u64::from(fs.block_size) - inner as u64);
    }
    if data { Err(nothing) } else { Ok(at.min(size)) }
}
