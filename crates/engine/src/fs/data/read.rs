//! Direct reads: mapped and written blocks come from the device in one batch, the rest is zeros.

use super::buffered::blocks;
use super::writeback::ALL;
use super::{FileData, io, mapping, max_size, place, write_back};
use crate::error::Result;
use crate::fs::inode::Node;
use crate::store::map::{self, Mapping};

/// Reads from byte `offset` on into `buf`, past the page cache. Returns how many bytes there were
/// before i_size.
pub(crate) fn read(node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let _timer = node.fs.counters.read_direct.start();
    let file = node.file();
    let end = offset.saturating_add(buf.len() as u64);
    let _held = file.share(node, offset, end);
    let len = end.min(file.size()).saturating_sub(offset) as usize;
    let Some(buf) = buf.get_mut(..len).filter(|_| len > 0) else { return Ok(0) };
    if file.pages_if_used().is_some() {
        // Dirty pages are newer than the device.
        write_back(node, blocks(node, offset, offset + len as u64)?)?;
    }
    read_held(node, file, offset, buf)
}

/// Reads all of `buf` from the device. The caller has locked the bytes. Returns how many.
pub(super) fn read_held(node: &Node, file: &FileData, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let len = buf.len();
    let ops = io::plan_read(&node.fs, offset, buf, |lblk| mapping(node, file, lblk))?;
    io::read(&node.fs, ops)?;
    Ok(len)
}

/// Returns the first range at or behind `offset` and before i_size that is mapped and written: its
/// start and end, in bytes.
pub(crate) fn next_data(node: &Node, offset: u64) -> Result<Option<(u64, u64)>> {
    let (fs, file) = (&*node.fs, node.file());
    // Dirty pages are allocated by this.
    write_back(node, ALL)?;
    let _held = file.share(node, offset, u64::MAX);
    let size = file.size().min(max_size(fs, node.flags()));
    let mut at = offset;
    while at < size {
        let (lblk, inner) = place(fs, at)?;
        let mapping = map::lookup(fs, node.ino, &node.state(), lblk)?;
        let run = u64::from(mapping.len()) * u64::from(fs.block_size) - inner as u64;
        let end = at.saturating_add(run).min(size);
        if matches!(mapping, Mapping::Mapped { unwritten: false, .. }) {
            return Ok(Some((at, end)));
        }
        at = end;
    }
    Ok(None)
}
