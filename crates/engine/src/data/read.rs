//! Reading: mapped and written blocks from the device in one batch, the rest is zeros.

use super::{io, max_size, place};
use crate::error::Result;
use crate::inode::Node;
use crate::map::{self, Mapping};
use crate::volume::Fs;
use lanefs_device::ReadOp;
use lanefs_format::Inode;
use std::mem;

/// Reads from byte `offset` on into `buf`; how many bytes there were before i_size.
pub(crate) fn read(node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let file = node.file();
    let end = offset.saturating_add(buf.len() as u64);
    let _held = file.share(node, offset, end);
    let len = end.min(file.size()).saturating_sub(offset) as usize;
    let Some(buf) = buf.get_mut(..len) else { return Ok(0) };
    let ops = plan(&node.fs, offset, buf, |lblk| match file.snapshot.find(lblk) {
        Some((block, len)) => Ok(Mapping::Mapped { block, len, unwritten: false }),
        None => {
            file.snapshot.miss(node)?;
            map::lookup(&node.fs, node.ino, &node.state(), lblk)
        }
    })?;
    io::read(&node.fs, ops)?;
    Ok(len)
}

/// The first range at or behind `offset` and before i_size that is mapped and written: its start
/// and end, in bytes.
pub(crate) fn next_data(node: &Node, offset: u64) -> Result<Option<(u64, u64)>> {
    let (fs, file) = (&*node.fs, node.file());
    let _held = file.share(node, offset, u64::MAX);
    let size = file.size().min(max_size(fs, &node.state()));
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

/// As [`read`], of an inode whose map nobody changes meanwhile.
pub(crate) fn read_inode(fs: &Fs, ino: u32, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
    // i_size is the volume's word; no map goes further than this.
    let size = inode.size.min(max_size(fs, inode));
    let len = buf.len().min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
    let Some(buf) = buf.get_mut(..len) else { return Ok(0) };
    let ops = plan(fs, offset, buf, |lblk| map::lookup(fs, ino, inode, lblk))?;
    io::read(fs, ops)?;
    Ok(len)
}

/// What to read from the device for `buf` from `offset` on; where nothing is written it is zeroed.
fn plan<'b>(
    fs: &Fs,
    offset: u64,
    buf: &'b mut [u8],
    lookup: impl Fn(u32) -> Result<Mapping>,
) -> Result<Vec<ReadOp<'b>>> {
    let (mut at, mut rest, mut ops) = (offset, buf, Vec::new());
    while !rest.is_empty() {
        let (lblk, inner) = place(fs, at)?;
        let mapping = lookup(lblk)?;
        let run = u64::from(mapping.len()) * u64::from(fs.block_size) - inner as u64;
        let n = rest.len().min(usize::try_from(run).unwrap_or(usize::MAX));
        let (piece, later) = mem::take(&mut rest).split_at_mut(n);
        match mapping {
            Mapping::Mapped { block, unwritten: false, .. } => {
                ops.push(ReadOp { offset: fs.byte_of(block) + inner as u64, buf: piece });
            }
            _ => piece.fill(0),
        }
        rest = later;
        at += n as u64;
    }
    Ok(ops)
}
