//! Slices of a file's content, without a copy, where the device is memory.
//!
//! Two things keep a slice as it is. Its bytes are locked shared: who would move its blocks, or
//! write them so that readers see all or nothing, waits. Direct overwrites share that lock: the
//! device refuses those that overlap what is lent, and they then wait for the lock too.

use super::lock::Kept;
use super::{mapping, place};
use crate::error::Result;
use crate::fs::inode::Node;
use crate::store::map::Mapping;
use lanefs_device::Lent;

/// `len` bytes at `offset` and what is held for them; `None` where they are to be copied. The slice
/// goes first.
pub(crate) fn lend(node: &Node, offset: u64, len: usize) -> Result<Option<(Lent, Kept<'_>)>> {
    let Some(memory) = node.fs.device.mapped().filter(|_| node.fs.dax && len > 0) else { return Ok(None) };
    let Some(end) = offset.checked_add(len as u64) else { return Ok(None) };
    let file = node.file();
    let held = file.share(node, offset, end);
    if end > file.size() {
        return Ok(None);
    }
    let (mut at, mut first, mut next) = (offset, None, None);
    while at < end {
        let (lblk, inner) = place(&node.fs, at)?;
        let Mapping::Mapped { block, len, unwritten: false } = mapping(node, file, lblk)? else {
            return Ok(None);
        };
        let byte = node.fs.byte_of(block) + inner as u64;
        if next.is_some_and(|next| next != byte) {
            return Ok(None);
        }
        first.get_or_insert(byte);
        let run = u64::from(len) * u64::from(node.fs.block_size) - inner as u64;
        (at, next) = (at.saturating_add(run), Some(byte.saturating_add(run)));
    }
    Ok(first.and_then(|first| memory.lend(first, len)).map(|lent| (lent, held.kept())))
}
