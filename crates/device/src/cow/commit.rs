//! Folds a top back into its base.
//!
//! ```text
//!  header: a commit has begun                          flush the top
//!  copy all blocks of the top                          flush the base
//!  header: the base as it is now, the next epoch       flush the top
//!  give the space of the blocks back
//! ```
//!
//! Until the last header is durable, the top has all of its blocks, so the overlay reads as before
//! however much of them the base has. After a cut the overlay can be opened, or the commit be
//! repeated: it does the same again. The last header empties the top by one write.

use super::top::{Top, read_header};
use super::{BLOCK, CowDevice, refused};
use crate::errno::EINVAL;
use crate::identity::BaseIdentity;
use crate::{AlignedBuf, BlockDevice, FileOptions, Result, WriteOp};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;

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
    /// Other tops of the base are refused from then on.
    ///
    /// # Errors
    /// The errors of [`CowDevice::new`]; a top that was never written (EINVAL); those of the two
    /// devices. The top is then as it was.
    pub fn commit(
        base: &dyn BlockDevice,
        top: Arc<dyn BlockDevice>,
        name: &str,
        keep: Option<Range<u64>>,
    ) -> Result<u64> {
        if read_header(&*top)?.is_none() {
            return Err(not_written(&*top));
        }
        let top = Top::open(top, BaseIdentity::read(base)?, name)?;
        let mut after = BaseIdentity::read(base)?;
        if top.map.has(0) {
            // As the base will be.
            let size = base.size().min(BLOCK) as usize;
            let mut head = AlignedBuf::zeroed(size);
            top.device.read_at(&mut head, top.place(0))?;
            after = BaseIdentity::of(base.size(), &head);
        }
        top.change_header(|header| {
            header.is_committing = true;
            header.after = after.uuid;
        })?;
        let mut written = 0;
        for run in top.map.runs() {
            written += copy_run(&top, base, run, keep.as_ref())?;
        }
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

fn not_written(top: &dyn BlockDevice) -> crate::DeviceError {
    refused(top, EINVAL, "is no top of an overlay: it holds zeros")
}

/// Copies a run of blocks. Blocks of zeros take no space in a base that is sparse.
fn copy_run(top: &Top, base: &dyn BlockDevice, run: Range<u64>, keep: Option<&Range<u64>>) -> Result<u64> {
    let (mut at, end) = (run.start * BLOCK, (run.end * BLOCK).min(base.size()));
    let mut buf = AlignedBuf::zeroed((end - at).min(PIECE) as usize);
    let mut written = 0;
    while at < end {
        let piece = &mut buf[..(end - at).min(PIECE) as usize];
        top.device.read_at(piece, top.place(at))?;
        for part in without(at..at + piece.len() as u64, keep).into_iter().filter(|part| !part.is_empty()) {
            let bytes = &piece[(part.start - at) as usize..(part.end - at) as usize];
            write(base, bytes, part.start)?;
            written += part.end - part.start;
        }
        at += piece.len() as u64;
    }
    Ok(written)
}

/// Writes bytes to the base, runs of blocks with and without content each at once.
fn write(base: &dyn BlockDevice, bytes: &[u8], mut offset: u64) -> Result<()> {
    let is_zero = |block: &&[u8]| block.iter().all(|byte| *byte == 0);
    let blocks: Vec<&[u8]> = bytes.chunks(BLOCK as usize).collect();
    for alike in blocks.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
        let len = alike.iter().map(|block| block.len() as u64).sum();
        match is_zero(&alike[0]) {
            true => base.write_zeroes(offset, len)?,
            false => base.write_batch(&[WriteOp { offset, data: alike }])?,
        }
        offset += len;
    }
    Ok(())
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
