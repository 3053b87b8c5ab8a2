//! Folds a top back into its base.
//!
//! ```text
//!  header: a commit has begun                          flush the top
//!  copy all blocks of the top                          flush the base
//!  header: the base as it is now, the next epoch       flush the top
//!  give the space of the blocks back
//! ```
//!
//! Invariant: until the last header is durable, the top has all of its blocks, so the overlay reads
//! as before. After a cut the overlay can be opened, or the commit be repeated. The last header
//! empties the top by one write.

use super::top::{Top, read_header};
use super::{BLOCK, CowDevice, refused};
use crate::errno::{EINVAL, EROFS};
use crate::identity::BaseIdentity;
use crate::{AlignedBuf, BlockDevice, DeviceError, FileOptions, Op, ReadOp, Result, WriteOp};
use std::iter::Peekable;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The most bytes of one request.
const PIECE: u64 = 1 << 20;
/// The most bytes, and the most requests, that are copied at once.
const BATCH: u64 = 16 << 20;
const REQUESTS: usize = 256;

impl CowDevice {
    /// Returns the name of the base that a top belongs to, as it was when the top was made.
    ///
    /// # Errors
    /// A file that is no top, or whose base had too long a name; those of [`FileOptions::open`].
    pub fn base_of(top: &Path) -> Result<String> {
        let file = FileOptions::new().read_only(true).unlocked(true).open(top)?;
        let header = read_header(&file)?.ok_or_else(|| not_written(&file))?;
        let name = Some(header.name).filter(|name| !name.is_empty());
        name.ok_or_else(|| {
            refused(&file, EINVAL, "does not name its base: name both, overlay:base=URL,top=FILE")
        })
    }

    /// Writes all blocks of a top to its base, and empties the top. Returns the number of bytes
    /// written. `keep` are bytes of the base that stay as they are.
    ///
    /// A cut at any moment leaves a top whose overlay reads as before; the commit can be repeated.
    /// Other tops of the base are refused from then on if its first 4096 bytes have changed, as
    /// every mount of an ext4 volume for writing changes them.
    ///
    /// # Errors
    /// The errors of [`CowDevice::new`]; a top that was never written (EINVAL); a base for reading
    /// (EROFS); those of the two devices. The top then has all that it had.
    pub fn commit(
        base: &dyn BlockDevice,
        top: Arc<dyn BlockDevice>,
        name: &str,
        keep: Option<Range<u64>>,
    ) -> Result<u64> {
        if read_header(&*top)?.is_none() {
            return Err(not_written(&*top));
        }
        if base.read_only() {
            return Err(DeviceError::at_path(Op::Open, Path::new(name), EROFS, "is open for reading"));
        }
        let before = BaseIdentity::read(base)?;
        let top = Top::open(top, before, name)?;
        let after = identity_after(&top, base, keep.as_ref())?;
        let mut was_committing = false;
        top.change_header(|header| {
            was_committing = std::mem::replace(&mut header.is_committing, true);
            // After a cut the base is a mixture: from here on between that and what will be.
            (header.base, header.after) = (before, after);
        })?;
        let mut written = None;
        let mut pieces = pieces(&top, base.size()).peekable();
        while pieces.peek().is_some() {
            let batch = next_batch(&mut pieces);
            if let Err(e) = copy_batch(&top, base, &batch, keep.as_ref(), &mut written) {
                if written.is_none() && !was_committing {
                    // The base is as it was. A failure here leaves the mark, which does no harm.
                    let _ = top.change_header(|header| header.is_committing = false);
                }
                return Err(e);
            }
        }
        let written = written.unwrap_or(0);
        base.flush()?;
        let now = BaseIdentity::read(base)?;
        top.change_header(|header| {
            header.is_committing = false;
            header.base = now;
            header.epoch += 1;
        })?;
        for run in top.map.runs() {
            let len = ((run.end - run.start) * BLOCK).min(base.size() - run.start * BLOCK);
            // The space is not needed for the commit to have succeeded.
            let _ = top.device.discard(top.place(run.start * BLOCK), len);
        }
        Ok(written)
    }
}

fn not_written(top: &dyn BlockDevice) -> DeviceError {
    refused(top, EINVAL, "is no top of an overlay: it holds zeros")
}

/// Returns the identity that the base will have.
fn identity_after(top: &Top, base: &dyn BlockDevice, keep: Option<&Range<u64>>) -> Result<BaseIdentity> {
    let mut head = AlignedBuf::zeroed(base.size().min(BLOCK) as usize);
    base.read_shared(&mut head, 0)?;
    if top.map.has(0) {
        let mut above = AlignedBuf::zeroed(head.len());
        top.device.read_at(&mut above, top.place(0))?;
        for part in without(0..head.len() as u64, keep).into_iter().filter(|part| !part.is_empty()) {
            let part = part.start as usize..part.end as usize;
            head[part.clone()].copy_from_slice(&above[part]);
        }
    }
    Ok(BaseIdentity::of(base.size(), &head))
}

/// Returns the bytes of the blocks that the top has, in pieces of one request each.
fn pieces(top: &Top, size: u64) -> impl Iterator<Item = Range<u64>> + '_ {
    top.map.runs().flat_map(move |run| {
        let end = (run.end * BLOCK).min(size);
        (run.start * BLOCK..end).step_by(PIECE as usize).map(move |at| at..(at + PIECE).min(end))
    })
}

/// Takes the pieces that are copied next, at least one if there are any.
fn next_batch(pieces: &mut Peekable<impl Iterator<Item = Range<u64>>>) -> Vec<Range<u64>> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while batch.len() < REQUESTS
        && let Some(piece) = pieces.next_if(|piece| bytes + piece.end - piece.start <= BATCH)
    {
        bytes += piece.end - piece.start;
        batch.push(piece);
    }
    batch
}

/// Copies pieces. Blocks of zeros take no space in a base that is sparse. `written` counts the
/// bytes; it is `None` until the base is written.
fn copy_batch(
    top: &Top,
    base: &dyn BlockDevice,
    batch: &[Range<u64>],
    keep: Option<&Range<u64>>,
    written: &mut Option<u64>,
) -> Result<()> {
    let len_of = |piece: &Range<u64>| (piece.end - piece.start) as usize;
    let mut buf = AlignedBuf::zeroed(batch.iter().map(len_of).sum());
    let (mut reads, mut rest) = (Vec::with_capacity(batch.len()), &mut buf[..]);
    for piece in batch {
        let own = rest.split_off_mut(..len_of(piece)).unwrap_or_default();
        reads.push(ReadOp { offset: top.place(piece.start), buf: own });
    }
    top.device.read_batch(&mut reads)?;
    let (mut contents, mut zeros, mut rest) = (Vec::new(), Vec::new(), &buf[..]);
    for piece in batch {
        let (own, others) = rest.split_at(len_of(piece));
        rest = others;
        for part in without(piece.clone(), keep).into_iter().filter(|part| !part.is_empty()) {
            let bytes = &own[(part.start - piece.start) as usize..(part.end - piece.start) as usize];
            split_zeros(bytes, part.start, &mut contents, &mut zeros);
        }
    }
    let bytes: usize = contents.iter().chain(&zeros).map(|(_, [bytes])| bytes.len()).sum();
    if bytes == 0 {
        return Ok(());
    }
    let before = *written.get_or_insert(0);
    for (offset, [zeros]) in zeros {
        base.write_zeroes(offset, zeros.len() as u64)?;
    }
    let ops: Vec<WriteOp<'_>> =
        contents.iter().map(|(offset, data)| WriteOp { offset: *offset, data }).collect();
    ops.chunks(REQUESTS).try_for_each(|ops| base.write_batch(ops))?;
    *written = Some(before + bytes as u64);
    Ok(())
}

fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

/// Bytes, and the first byte of the base that they are for.
type Placed<'a> = (u64, [&'a [u8]; 1]);

/// Adds the runs of blocks with content, and those without, of bytes that are for `offset`.
fn split_zeros<'a>(
    mut bytes: &'a [u8],
    mut offset: u64,
    contents: &mut Vec<Placed<'a>>,
    zeros: &mut Vec<Placed<'a>>,
) {
    let blocks: Vec<&[u8]> = bytes.chunks(BLOCK as usize).collect();
    for alike in blocks.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
        let (run, rest) = bytes.split_at(alike.iter().map(|block| block.len()).sum());
        let to = if is_zero(alike[0]) { &mut *zeros } else { &mut *contents };
        to.push((offset, [run]));
        offset += run.len() as u64;
        bytes = rest;
    }
}

/// Returns what is left of a range without the bytes to keep, before and behind them.
fn without(range: Range<u64>, keep: Option<&Range<u64>>) -> [Range<u64>; 2] {
    match keep {
        Some(keep) if keep.start < range.end && range.start < keep.end => {
            [range.start..keep.start.max(range.start), keep.end.min(range.end)..range.end]
        }
        _ => [range, 0..0],
    }
}
