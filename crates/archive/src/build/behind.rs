//! Write-behind for the volume that a build fills: a thread of its own writes to the file what the
//! filling thread hands over, and has the system write that back meanwhile.
//!
//! Writes are queued in order, as copies; those that lie one behind the other become one. The
//! queue is bounded. A read waits only for queued writes of its own bytes.
//!
//! Invariants:
//! - Writes reach the device below in the order in which they were made.
//! - A failed write fails each later write and flush.
//! - A flush makes nothing durable: what a power cut leaves of the file has no name anyway.

use lanefs::device::{BlockDevice, DeviceError, Op, ReadOp, WriteOp};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Bytes of a write to the device below, at most.
const CHUNK: usize = 1 << 20;
/// Bytes, and writes, that are queued.
const QUEUED: usize = 8 << 20;
const CHUNKS: usize = 256;
/// Buffers that are kept for the next writes.
const SPARE: usize = 8;
/// Bytes of a write from which on it is content, which does not change again: writeback begins.
const CONTENT: usize = 128 << 10;

/// See the head of the file.
#[derive(Debug)]
pub(super) struct WriteBehind {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    below: Arc<dyn BlockDevice>,
    state: Mutex<WriteQueue>,
    /// Something was queued, or all has ended.
    filled: Condvar,
    /// Something was written.
    written: Condvar,
}

#[derive(Debug, Default)]
struct WriteQueue {
    queue: VecDeque<Chunk>,
    /// The place and length of what is being written.
    writing: Option<(u64, u64)>,
    /// Bytes of the queue.
    bytes: usize,
    spare: Vec<Vec<u8>>,
    /// The first failure: its number, and the place and length of the write.
    failed: Option<(i32, u64, u64)>,
    ended: bool,
}

#[derive(Debug)]
struct Chunk {
    offset: u64,
    bytes: Vec<u8>,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

impl WriteQueue {
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.writing.is_none()
    }

    /// Returns whether queued writes have bytes of a range.
    fn has(&self, offset: u64, len: u64) -> bool {
        let meets = |start: u64, end: u64| start < offset.saturating_add(len) && offset < end;
        self.writing.is_some_and(|(start, len)| meets(start, start + len))
            || self.queue.iter().any(|chunk| meets(chunk.offset, chunk.end()))
    }

    /// Queues the first bytes of `data`. Returns how many.
    fn push(&mut self, offset: u64, data: &[u8]) -> usize {
        let joins = |last: &&mut Chunk| last.end() == offset && last.bytes.len() < CHUNK;
        if self.queue.back_mut().filter(joins).is_none() {
            let bytes = self.spare.pop().unwrap_or_default();
            self.queue.push_back(Chunk { offset, bytes });
        }
        let Some(last) = self.queue.back_mut() else { return 0 };
        let n = data.len().min(CHUNK - last.bytes.len());
        last.bytes.extend_from_slice(&data[..n]);
        self.bytes += n;
        n
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, WriteQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` says so of the state, or all has failed.
    fn wait(&self, ready: impl Fn(&WriteQueue) -> bool) -> MutexGuard<'_, WriteQueue> {
        let mut state = self.lock();
        while !ready(&state) && state.failed.is_none() {
            state = self.written.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Writes what is queued until all has ended.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            let Some(mut chunk) = state.queue.pop_front() else {
                if state.ended {
                    return;
                }
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.bytes -= chunk.bytes.len();
            state.writing = Some((chunk.offset, chunk.bytes.len() as u64));
            let failed = state.failed.is_some();
            drop(state);
            let done = if failed { Ok(()) } else { self.below.write_at(&chunk.bytes, chunk.offset) };
            if done.is_ok() && chunk.bytes.len() >= CONTENT {
                self.below.start_writeback(chunk.offset, chunk.bytes.len() as u64);
            }
            state = self.lock();
            state.writing = None;
            if let Err(e) = done {
                state.failed.get_or_insert((e.errno(), e.offset, e.len));
            }
            if state.spare.len() < SPARE {
                chunk.bytes.clear();
                state.spare.push(chunk.bytes);
            }
            self.written.notify_all();
        }
    }
}

impl WriteBehind {
    /// Returns such a device on top of another.
    pub(super) fn new(below: Arc<dyn BlockDevice>) -> io::Result<Self> {
        let state = Mutex::default();
        let shared = Arc::new(Shared { below, state, filled: Condvar::new(), written: Condvar::new() });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("write".into()).spawn(move || own.work())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    fn queue<'a>(&self, offset: u64, pieces: impl Iterator<Item = &'a [u8]>) -> Result<(), DeviceError> {
        let mut at = offset;
        for mut piece in pieces {
            while !piece.is_empty() {
                let mut state = self.shared.wait(|state| state.bytes < QUEUED && state.queue.len() < CHUNKS);
                check(&state)?;
                let n = state.push(at, piece);
                let begins = state.writing.is_none();
                drop(state);
                if begins {
                    self.shared.filled.notify_one();
                }
                (at, piece) = (at + n as u64, &piece[n..]);
            }
        }
        Ok(())
    }

    /// Waits until nothing is queued.
    fn drained(&self) -> Result<(), DeviceError> {
        check(&self.shared.wait(WriteQueue::is_idle))
    }
}

/// Returns the failure of an earlier write.
fn check(state: &WriteQueue) -> Result<(), DeviceError> {
    let Some((errno, offset, len)) = state.failed else { return Ok(()) };
    Err(DeviceError::new(Op::Write, offset, len, io::Error::from_raw_os_error(errno)))
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.filled.notify_all();
        if let Some(thread) = self.thread.take() {
            // It does not panic, and its failures were told by the flush.
            let _ = thread.join();
        }
    }
}

impl BlockDevice for WriteBehind {
    fn size(&self) -> u64 {
        self.shared.below.size()
    }

    fn read_only(&self) -> bool {
        self.shared.below.read_only()
    }

    fn sector_size(&self) -> u64 {
        self.shared.below.sector_size()
    }

    fn owner(&self) -> Option<u32> {
        self.shared.below.owner()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), DeviceError> {
        let len = buf.len() as u64;
        check(&self.shared.wait(|state| !state.has(offset, len)))?;
        self.shared.below.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.queue(offset, std::iter::once(data))
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<(), DeviceError> {
        ops.iter_mut().try_for_each(|op| self.read_at(op.buf, op.offset))
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<(), DeviceError> {
        ops.iter().try_for_each(|op| self.queue(op.offset, op.data.iter().copied()))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.drained()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.drained()?;
        self.shared.below.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.drained()?;
        self.shared.below.write_zeroes(offset, len)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panic")]
mod tests {
    use super::*;
    use lanefs::device::MemDevice;

    #[test]
    fn what_was_written_is_read() {
        let below = Arc::new(MemDevice::new(4 << 20));
        let behind = WriteBehind::new(below.clone()).unwrap();
        let mut want = vec![0; 4 << 20];
        // Overlapping writes of all lengths, read back at once.
        for n in 0..2000_usize {
            let (at, len) = (n * 7919 % (3 << 20), 1 + n * 31 % 9000);
            let bytes = vec![n as u8 | 1; len];
            behind.write_at(&bytes, at as u64).unwrap();
            want[at..at + len].copy_from_slice(&bytes);
            let mut seen = vec![0; len];
            let from = at.saturating_sub(len / 2);
            behind.read_at(&mut seen, from as u64).unwrap();
            assert_eq!(seen, want[from..from + len], "{n}");
        }
        let pieces: [&[u8]; 2] = [&vec![3; 2 << 20], &[4; 5]];
        behind.write_batch(&[WriteOp { offset: 100, data: &pieces }]).unwrap();
        want[100..100 + (2 << 20)].fill(3);
        want[100 + (2 << 20)..105 + (2 << 20)].fill(4);
        behind.write_zeroes(50, 100).unwrap();
        want[50..150].fill(0);
        behind.flush().unwrap();
        assert!(below.to_bytes() == want);
    }

    #[test]
    fn a_failure_is_told() {
        let behind = WriteBehind::new(Arc::new(MemDevice::new(1 << 20))).unwrap();
        behind.write_at(&[1; 10], (1 << 20) - 5).unwrap();
        assert!(behind.flush().is_err());
        assert!(behind.write_at(&[1; 10], 0).is_err());
        assert!(behind.flush().is_err());
    }
}
