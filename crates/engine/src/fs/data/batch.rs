//! Direct I/O in batches: several reads and writes that go to the device together.
//!
//! A batch takes requests that need no plan: overwrites in place as in [`direct`](super::direct),
//! and reads of blocks that are not newer in the cache. The caller runs all others one by one
//! afterwards, when this batch holds no locks.
//!
//! Hazard: a batch locks the bytes of many requests, in no order. So it never waits for a lock: it
//! skips a request whose bytes another thread has locked.

use super::content::Content;
use super::io;
use crate::error::Error;
use crate::fs::Fs;
use crate::fs::file::lock::Kept;
use crate::fs::file::times::Stamp;
use lanefs_device::WriteOp;
use std::ops::Range;

/// The memory of a request, and its direction.
#[derive(Debug)]
pub(crate) enum Bytes<'b> {
    /// From a file.
    Read(&'b mut [u8]),
    /// To a file.
    Write(&'b [u8]),
}

/// A request that may join a batch. `done` gets the number of bytes once they have moved.
#[derive(Debug)]
pub(crate) struct Request<'b> {
    pub(crate) content: Content<'b>,
    pub(crate) offset: u64,
    pub(crate) bytes: Bytes<'b>,
    pub(crate) done: &'b mut Option<usize>,
}

/// A request of the batch, with its bytes locked.
struct LockedRequest<'b> {
    content: Content<'b>,
    blocks: Range<u32>,
    len: usize,
    done: &'b mut Option<usize>,
    _kept: Kept<'b>,
}

/// Runs the requests that can go in one batch. The others stay untouched, and so do all requests of
/// a batch that failed: run one by one, each reports its own error. Writes that failed have aborted
/// the journal by then, and each reports that.
pub(crate) fn run<'a>(fs: &Fs, requests: impl Iterator<Item = Request<'a>>) {
    let (mut reads, mut ops) = (Vec::new(), Vec::new());
    let (mut writes, mut pieces) = (Vec::new(), Vec::new());
    for Request { content, offset, bytes, done } in requests {
        match bytes {
            Bytes::Read(buf) => {
                let held = content.hold(offset, buf.len(), done);
                let Some(held) = held.filter(|held| io::is_straight(fs, offset, &buf[..held.len])) else {
                    continue;
                };
                let lookup = |lblk| content.mapping(lblk);
                let Ok(planned) = io::plan_read(fs, offset, &mut buf[..held.len], lookup) else { continue };
                ops.extend(planned);
                reads.push(held);
            }
            Bytes::Write(bytes) => {
                if !io::is_straight(fs, offset, bytes) || !content.is_plain(offset, bytes.len()) {
                    continue;
                }
                let end = offset.saturating_add(bytes.len() as u64);
                let held =
                    content.hold(offset, bytes.len(), done).filter(|_| end <= content.file.disk_size());
                let Some(held) = held else { continue };
                let before = pieces.len();
                if content.plan_overwrite(bytes, offset, &mut pieces).is_ok_and(|all| all) {
                    writes.push(held);
                } else {
                    pieces.truncate(before);
                }
            }
        }
    }
    let time = &fs.counters.write_direct;
    let timers: Vec<_> = writes.iter().map(|_| time.start()).collect();
    let pieces: Vec<(u64, [&[u8]; 1])> =
        pieces.into_iter().map(|(offset, bytes)| (offset, [bytes])).collect();
    let out: Vec<WriteOp<'_>> =
        pieces.iter().map(|(offset, data)| WriteOp { offset: *offset, data }).collect();
    let writer = fs.enter();
    if writer.is_ok() && io::latch(fs, fs.device.write_batch(&out).map_err(Error::from)).is_ok() {
        for held in writes {
            held.content.overwritten(held.blocks, Stamp::Now);
            *held.done = Some(held.len);
        }
    }
    drop((timers, writer));
    let time = &fs.counters.read_direct;
    let _timers: Vec<_> = reads.iter().map(|_| time.start()).collect();
    if fs.device.read_batch_direct(&mut ops).is_ok() {
        reads.into_iter().for_each(|held| *held.done = Some(held.len));
    }
}

impl<'b> Content<'b> {
    /// Locks the bytes of a request, up to the end of the file, shared. `None` if that would have
    /// to wait, or if the cache holds newer bytes or has to verify them.
    fn hold(self, offset: u64, len: usize, done: &'b mut Option<usize>) -> Option<LockedRequest<'b>> {
        let end = offset.checked_add(len as u64).filter(|_| len > 0)?;
        let kept = self.try_share_unverified(offset, end)?.kept();
        let len = self.before_end(offset, len);
        let blocks = self.blocks(offset, offset + len as u64).ok().filter(|_| len > 0)?;
        let busy = self.is_busy(blocks.clone());
        (!busy).then_some(LockedRequest { content: self, blocks, len, done, _kept: kept })
    }
}
