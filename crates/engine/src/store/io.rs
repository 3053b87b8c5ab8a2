//! Reads and writes bytes of files on the device, with any alignment.
//!
//! Hazard: if a device wants whole sectors, a part of a sector is read, changed and written back.
//! No other thread may write that sector meanwhile. So at most the sectors of one block are read
//! for it, and the caller has locked that block's file.

use crate::error::{Error, Result};
use crate::store::Store;
use crate::store::map::{self, Mapping, max_size, place};
use lanefs_device::{AlignedBuf, BlockDevice, ReadOp, WriteOp};
use lanefs_format::Inode;
use std::mem;
use std::ops::Deref;

/// The most bytes that are copied through an aligned buffer at a time.
const BOUNCE: usize = 1 << 20;

static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// A write of bytes, with zeros before and behind: at most 64 KiB of zeros each, a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write<'b> {
    /// First byte on the device, where the zeros before the bytes begin.
    pub(crate) offset: u64,
    /// Zeros before.
    pub(crate) head: usize,
    /// The bytes.
    pub(crate) body: &'b [u8],
    /// Zeros behind.
    pub(crate) tail: usize,
}

impl<'b> Write<'b> {
    fn pieces(&self) -> [&'b [u8]; 3] {
        let zeros = |len: usize| ZEROS.get(..len).unwrap_or(&ZEROS);
        [zeros(self.head), self.body, zeros(self.tail)]
    }
}

/// Plans the reads from the device into `buf`, from `offset` on. Zeroes the parts of `buf` without
/// written blocks.
pub(crate) fn plan_read<'b>(
    store: &Store,
    offset: u64,
    buf: &'b mut [u8],
    lookup: impl Fn(u32) -> Result<Mapping>,
) -> Result<Vec<ReadOp<'b>>> {
    let (mut at, mut rest, mut ops) = (offset, buf, Vec::new());
    while !rest.is_empty() {
        let (lblk, inner) = place(store, at)?;
        let mapping = lookup(lblk)?;
        let run = u64::from(mapping.len()) * u64::from(store.block_size) - inner as u64;
        let n = rest.len().min(usize::try_from(run).unwrap_or(usize::MAX));
        let (piece, later) = mem::take(&mut rest).split_at_mut(n);
        match mapping {
            Mapping::Mapped { block, unwritten: false, .. } => {
                ops.push(ReadOp { offset: store.byte_of(block) + inner as u64, buf: piece });
            }
            _ => piece.fill(0),
        }
        rest = later;
        at += n as u64;
    }
    Ok(ops)
}

/// Reads the content of an inode from byte `offset` on into `buf`. No thread may change its map
/// meanwhile. Returns how many bytes there were before i_size.
pub(crate) fn read_inode(store: &Store, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
    // i_size comes from the volume and may be too large; no map reaches further than this.
    let size = inode.size.min(max_size(store, inode.flags));
    let len = buf.len().min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
    let Some(buf) = buf.get_mut(..len) else { return Ok(0) };
    let ops = plan_read(store, offset, buf, |lblk| map::lookup(store, inode, lblk))?;
    read(store, ops, ReadPath::AsOpened)?;
    Ok(len)
}

/// How content is read from the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadPath {
    /// As the device is opened.
    AsOpened,
    /// Past the page cache of the system, unless all I/O of the device goes through it.
    Direct,
}

impl ReadPath {
    fn run(self, device: &dyn BlockDevice, ops: &mut [ReadOp<'_>]) -> Result<()> {
        match self {
            Self::AsOpened => device.read_batch(ops)?,
            Self::Direct => device.read_batch_direct(ops)?,
        }
        Ok(())
    }
}

/// Runs all reads, as a batch if all are aligned.
pub(crate) fn read(store: &Store, mut ops: Vec<ReadOp<'_>>, path: ReadPath) -> Result<()> {
    let device = &*store.device;
    let align = alignment(store);
    let fits = |op: &ReadOp<'_>| is_aligned(align, op.offset, op.buf);
    if align <= 1 || ops.iter().all(fits) {
        return path.run(device, &mut ops);
    }
    ops.into_iter().try_for_each(|op| match fits(&op) {
        true => path.run(device, &mut [op]),
        false => read_bounced(device, align, op, path),
    })
}

/// Runs all writes, which do not overlap.
pub(crate) fn write(store: &Store, writes: &[Write<'_>]) -> Result<()> {
    let device = &*store.device;
    let align = alignment(store);
    let pieces: Vec<[&[u8]; 3]> = writes.iter().map(Write::pieces).collect();
    let aligned = writes.iter().all(|w| w.head == 0 && w.tail == 0 && is_aligned(align, w.offset, w.body));
    if align <= 1 || aligned {
        let op = |(w, data): (&Write<'_>, _)| WriteOp { offset: w.offset, data };
        let ops: Vec<WriteOp<'_>> = writes.iter().zip(pieces.iter().map(|p| &p[..])).map(op).collect();
        return latch(store, device.write_batch(&ops).map_err(Error::from));
    }
    latch(store, writes.iter().zip(&pieces).try_for_each(|(w, p)| write_bounced(device, align, w.offset, p)))
}

/// Runs all writes of gathered pieces, whole blocks that do not overlap.
pub(crate) fn write_pieces<'b, B: Deref<Target = [u8]> + 'b>(
    store: &Store,
    writes: impl Iterator<Item = &'b (u64, Vec<B>)> + Clone,
) -> Result<()> {
    let (device, align) = (&*store.device, alignment(store));
    // One list for the pieces of all writes, not one for each of them.
    let pieces: Vec<&[u8]> = writes.clone().flat_map(|(_, data)| data).map(|piece| &**piece).collect();
    if pieces.is_empty() {
        return Ok(());
    }
    let (mut ops, mut rest) = (Vec::new(), &pieces[..]);
    for (offset, data) in writes {
        let (now, later) = rest.split_at(data.len());
        ops.push(WriteOp { offset: *offset, data: now });
        rest = later;
    }
    let aligned = |op: &WriteOp<'_>| op.data.iter().all(|piece| is_aligned(align, op.offset, piece));
    if align <= 1 || ops.iter().all(aligned) {
        return latch(store, device.write_batch(&ops).map_err(Error::from));
    }
    latch(store, ops.iter().try_for_each(|op| write_bounced(device, align, op.offset, op.data)))
}

/// Writes `bytes` at the device's byte `offset`.
pub(crate) fn write_one(store: &Store, offset: u64, bytes: &[u8]) -> Result<()> {
    if is_straight(store, offset, bytes) {
        return latch(store, store.device.write_at(bytes, offset).map_err(Error::from));
    }
    write(store, &[Write { offset, head: 0, body: bytes, tail: 0 }])
}

/// Returns whether the device takes this memory as it is, for this offset of a file or of the
/// device.
pub(crate) fn is_straight(store: &Store, offset: u64, memory: &[u8]) -> bool {
    is_aligned(alignment(store), offset, memory)
}

/// Returns whether `len` bytes of a file at `offset` are whole sectors.
pub(crate) fn is_whole(store: &Store, offset: u64, len: usize) -> bool {
    let align = alignment(store);
    offset.is_multiple_of(align as u64) && len.is_multiple_of(align)
}

/// Latches a failed write of content, which ends all writing: each later sync reports it, and
/// nothing is lost silently.
pub(crate) fn latch(store: &Store, written: Result<()>) -> Result<()> {
    written.inspect_err(|e| {
        if !is_lent(store, e) {
            store.journal.abort(&format!("content could not be written: {e}"));
        }
    })
}

/// Returns whether a write was refused because a slice of its bytes is lent.
pub(crate) fn is_lent(store: &Store, error: &Error) -> bool {
    store.dax && matches!(error, Error::Device(e) if e.errno() == lanefs_device::errno::EBUSY)
}

/// Returns the alignment that I/O of content needs. A device whose sectors are larger than a block
/// changes parts of sectors under a lock of its own: here no byte beyond the block may be touched.
fn alignment(store: &Store) -> usize {
    store.device.alignment().min(store.block_size as usize)
}

fn is_aligned(align: usize, offset: u64, buf: &[u8]) -> bool {
    offset.is_multiple_of(align as u64)
        && buf.len().is_multiple_of(align)
        && buf.as_ptr().addr().is_multiple_of(align)
}

/// Returns the aligned range around `len` bytes at `offset`, or around as many of them as fit in
/// the buffer: its start, how many of its bytes lie before `offset`, its length, and how many of
/// the `len` bytes it covers.
fn around(align: usize, offset: u64, len: usize) -> (u64, usize, usize, usize) {
    let before = (offset % align as u64) as usize;
    let covered = len.min(BOUNCE - before);
    (offset - before as u64, before, (before + covered).next_multiple_of(align), covered)
}

fn read_bounced(device: &dyn BlockDevice, align: usize, op: ReadOp<'_>, path: ReadPath) -> Result<()> {
    let ReadOp { mut offset, mut buf } = op;
    while !buf.is_empty() {
        let (start, before, len, covered) = around(align, offset, buf.len());
        let mut own = AlignedBuf::zeroed(len);
        path.run(device, &mut [ReadOp { offset: start, buf: &mut own }])?;
        let (now, rest) = buf.split_at_mut(covered);
        now.copy_from_slice(&own[before..before + covered]);
        (offset, buf) = (offset + covered as u64, rest);
    }
    Ok(())
}

fn write_bounced(device: &dyn BlockDevice, align: usize, mut offset: u64, pieces: &[&[u8]]) -> Result<()> {
    let mut left: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut pieces = pieces.iter().copied();
    let mut piece: &[u8] = &[];
    while left > 0 {
        let (start, before, len, covered) = around(align, offset, left);
        let mut own = AlignedBuf::zeroed(len);
        if before != 0 {
            device.read_at(&mut own[..align], start)?;
        }
        if before + covered != len && (before == 0 || len > align) {
            device.read_at(&mut own[len - align..], start + (len - align) as u64)?;
        }
        let (mut filled, end) = (before, before + covered);
        while filled < end {
            if piece.is_empty() {
                let Some(next) = pieces.next() else { break };
                piece = next;
            }
            let (now, later) = piece.split_at(piece.len().min(end - filled));
            own[filled..filled + now.len()].copy_from_slice(now);
            (filled, piece) = (filled + now.len(), later);
        }
        device.write_at(&own, start)?;
        (offset, left) = (offset + covered as u64, left - covered);
    }
    Ok(())
}
