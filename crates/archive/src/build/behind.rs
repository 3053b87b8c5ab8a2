//! Write-behind for the volume that a build fills: a thread of its own writes to the file.
//!
//! The filling thread queues writes: metadata as copies, the data of files as excerpts, which the
//! writing thread reads. That thread writes adjacent ones at once, and has the system write content
//! back meanwhile. The queue is bounded. A read waits only for queued writes of its own bytes.
//!
//! Invariants:
//! - Writes reach the device below in the order in which they were made.
//! - A failed write, or read of an excerpt, fails each later read, write and flush.
//! - A flush makes nothing durable: what a power cut leaves of the file has no name anyway.

use crate::excerpt::Excerpt;
use crate::import::Sink;
use lanefs::device::{AlignedBuf, BlockDevice, DeviceError, Op, ReadOp, WriteOp};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Bytes of a write to the device below, at most.
const CHUNK: usize = 1 << 20;
/// Bytes of memory, bytes to be written, and writes that are queued: what is left when a caller
/// ends the build is written before it ends.
const QUEUED: usize = 8 << 20;
const AHEAD: u64 = 64 << 20;
const CHUNKS: usize = 1024;
/// Buffers that are kept for the next writes.
const SPARE: usize = 8;
/// Bytes of a write from which on it is content, which does not change again: writeback begins.
const CONTENT: usize = 128 << 10;

/// A device that writes behind.
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
    /// The place and end of what is being written.
    writing: Option<(u64, u64)>,
    /// Bytes of memory of the queue.
    bytes: usize,
    /// Bytes that it writes.
    ahead: u64,
    spare: Vec<Vec<u8>>,
    /// The first failure: its number, what failed, the place and the length.
    failed: Option<(i32, Op, u64, u64)>,
    /// Why an excerpt could not be read, if that was the first failure.
    unread: Option<io::Error>,
    ended: bool,
}

#[derive(Debug)]
struct Chunk {
    offset: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Bytes(Vec<u8>),
    /// An excerpt, and so many zeros behind it.
    Excerpt(Excerpt, usize),
}

impl Chunk {
    fn end(&self) -> u64 {
        self.offset
            + match &self.content {
                Content::Bytes(bytes) => bytes.len() as u64,
                Content::Excerpt(excerpt, zeros) => excerpt.len() + *zeros as u64,
            }
    }

    fn memory(&self) -> usize {
        match &self.content {
            Content::Bytes(bytes) => bytes.len(),
            Content::Excerpt(excerpt, _) => excerpt.memory(),
        }
    }

    /// Fills `buf` with its bytes from `from` on.
    fn read(&self, from: usize, buf: &mut [u8]) -> io::Result<()> {
        match &self.content {
            Content::Bytes(bytes) => buf.copy_from_slice(&bytes[from..from + buf.len()]),
            Content::Excerpt(excerpt, _) => {
                let left = excerpt.len().saturating_sub(from as u64);
                let (data, zeros) = buf.split_at_mut(left.min(buf.len() as u64) as usize);
                excerpt.read(from as u64, data)?;
                zeros.fill(0);
            }
        }
        Ok(())
    }
}

impl WriteQueue {
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.writing.is_none()
    }

    fn is_full(&self) -> bool {
        self.bytes >= QUEUED || self.ahead >= AHEAD || self.queue.len() >= CHUNKS
    }

    /// Returns whether queued writes have bytes of a range.
    fn has(&self, offset: u64, len: u64) -> bool {
        let meets = |start: u64, end: u64| start < offset.saturating_add(len) && offset < end;
        self.writing.is_some_and(|(start, end)| meets(start, end))
            || self.queue.iter().any(|chunk| meets(chunk.offset, chunk.end()))
    }

    /// Queues the first bytes of `data`. Returns how many.
    fn push(&mut self, offset: u64, data: &[u8]) -> usize {
        let last = self.queue.back_mut().filter(|last| last.end() == offset);
        let n = match last.map(|last| &mut last.content) {
            Some(Content::Bytes(bytes)) if bytes.len() < CHUNK => {
                let n = data.len().min(CHUNK - bytes.len());
                bytes.extend_from_slice(&data[..n]);
                n
            }
            _ => {
                let mut bytes = self.spare.pop().unwrap_or_default();
                let n = data.len().min(CHUNK);
                bytes.extend_from_slice(&data[..n]);
                self.queue.push_back(Chunk { offset, content: Content::Bytes(bytes) });
                n
            }
        };
        self.bytes += n;
        self.ahead += n as u64;
        n
    }

    /// Takes the next chunks that lie one behind the other, as many as are written at once.
    fn take(&mut self, run: &mut Vec<Chunk>) {
        let mut len = 0;
        while let Some(next) = self.queue.pop_front_if(|next| match run.last() {
            Some(last) => last.end() == next.offset && len < CHUNK as u64,
            None => true,
        }) {
            self.bytes -= next.memory();
            self.ahead -= next.end() - next.offset;
            len += next.end() - next.offset;
            run.push(next);
        }
        self.writing = run.first().zip(run.last()).map(|(first, last)| (first.offset, last.end()));
    }

    /// Ends what was being written.
    fn done(&mut self, run: &mut Vec<Chunk>) {
        self.writing = None;
        for chunk in run.drain(..) {
            if let Content::Bytes(mut bytes) = chunk.content
                && self.spare.len() < SPARE
            {
                bytes.clear();
                self.spare.push(bytes);
            }
        }
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

    /// Waits for room, queues by `push`, and wakes the thread.
    fn queue<T>(&self, push: impl FnOnce(&mut WriteQueue) -> T) -> Result<T, DeviceError> {
        let mut state = self.wait(|state| !state.is_full());
        check(&state)?;
        let queued = push(&mut state);
        let begins = state.writing.is_none();
        drop(state);
        if begins {
            self.filled.notify_one();
        }
        Ok(queued)
    }

    /// Writes what is queued until all has ended.
    fn work(&self) {
        let (mut run, mut memory) = (Vec::new(), AlignedBuf::zeroed(CHUNK));
        let mut state = self.lock();
        loop {
            state.take(&mut run);
            if run.is_empty() {
                if state.ended {
                    return;
                }
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let failed = state.failed.is_some();
            drop(state);
            let done = if failed { Ok(()) } else { self.write(&run, &mut memory) };
            state = self.lock();
            state.done(&mut run);
            if let Err(e) = done {
                state.failed.get_or_insert((e.errno(), e.op, e.offset, e.len));
                state.unread = (e.op == Op::Read).then_some(e.source);
            }
            self.written.notify_all();
        }
    }

    /// Writes chunks that lie one behind the other.
    fn write(&self, run: &[Chunk], memory: &mut [u8]) -> Result<(), DeviceError> {
        let Some(first) = run.first() else { return Ok(()) };
        let (mut offset, mut filled) = (first.offset, 0);
        for chunk in run {
            let (mut at, len) = (0, (chunk.end() - chunk.offset) as usize);
            while at < len {
                let n = (len - at).min(memory.len() - filled);
                let read = chunk.read(at, &mut memory[filled..filled + n]);
                read.map_err(|e| DeviceError::new(Op::Read, chunk.offset + at as u64, n as u64, e))?;
                (at, filled) = (at + n, filled + n);
                if filled == memory.len() {
                    self.write_at(memory, offset)?;
                    (offset, filled) = (offset + filled as u64, 0);
                }
            }
        }
        self.write_at(&memory[..filled], offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.below.write_at(bytes, offset)?;
        if bytes.len() >= CONTENT {
            self.below.start_writeback(offset, bytes.len() as u64);
        }
        Ok(())
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
                let n = self.shared.queue(|state| state.push(at, piece))?;
                (at, piece) = (at + n as u64, &piece[n..]);
            }
        }
        Ok(())
    }

    /// Returns why an excerpt could not be read, if that made the writes fail.
    pub(super) fn unread(&self) -> Option<io::Error> {
        self.shared.lock().unread.take()
    }

    /// Waits until nothing is queued.
    fn drained(&self) -> Result<(), DeviceError> {
        check(&self.shared.wait(WriteQueue::is_idle))
    }
}

impl Sink for WriteBehind {
    fn put(&self, excerpt: Excerpt, zeros: usize, offset: u64) -> Result<(), DeviceError> {
        let content = Content::Excerpt(excerpt, zeros);
        self.shared.queue(|state| {
            let chunk = Chunk { offset, content };
            state.bytes += chunk.memory();
            state.ahead += chunk.end() - chunk.offset;
            state.queue.push_back(chunk);
        })
    }
}

/// Returns the failure of an earlier write.
fn check(state: &WriteQueue) -> Result<(), DeviceError> {
    let Some((errno, op, offset, len)) = state.failed else { return Ok(()) };
    Err(DeviceError::new(op, offset, len, io::Error::from_raw_os_error(errno)))
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.filled.notify_all();
        if let Some(thread) = self.thread.take() {
            // It does not panic, and the flush has reported its failures.
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
    use std::io::Write;

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

    /// The bytes, and zeros behind them up to the end of the block, over what was there before.
    #[test]
    fn excerpts_are_written_in_order() {
        let below = Arc::new(MemDevice::new(4 << 20));
        let behind = WriteBehind::new(below.clone()).unwrap();
        behind.write_at(&vec![9; 4 << 20], 0).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..3 << 20).map(|n: u32| (n % 251) as u8).collect();
        file.write_all(&content).unwrap();
        let file = Excerpt::File(Arc::new(file), 0..3 << 20);
        let mut want = vec![9; 4 << 20];
        // Some one behind the other, some over what is still queued, one larger than a write.
        for (from, len, at) in
            [(7_usize, 5000_usize, 0_usize), (5007, 8192, 8192), (0, 2 << 20, 4096), (1, 1, 1 << 20)]
        {
            let zeros = len.next_multiple_of(4096) - len;
            behind.put(file.part(from as u64..(from + len) as u64), zeros, at as u64).unwrap();
            want[at..at + len].copy_from_slice(&content[from..from + len]);
            want[at + len..at + len + zeros].fill(0);
        }
        behind.put(Excerpt::from(vec![5; 100]), 28, 3 << 20).unwrap();
        behind.write_at(&[6; 10], (3 << 20) + 95).unwrap();
        want[3 << 20..(3 << 20) + 128].fill(0);
        want[3 << 20..(3 << 20) + 100].fill(5);
        want[(3 << 20) + 95..(3 << 20) + 105].fill(6);
        let mut seen = vec![0; 4 << 20];
        behind.read_at(&mut seen, 0).unwrap();
        assert!(seen == want);
        behind.flush().unwrap();
        assert!(below.to_bytes() == want);
    }

    /// A write of the thread ends in the zeros behind an excerpt, and the next one begins there.
    #[test]
    fn zeros_behind_an_excerpt_may_be_cut() {
        let below = Arc::new(MemDevice::new(4 << 20));
        let behind = WriteBehind::new(below.clone()).unwrap();
        // All is queued before the thread takes any of it.
        let state = behind.shared.lock();
        let later = std::thread::scope(|scope| {
            let later = scope.spawn(|| {
                behind.write_at(&vec![7; CHUNK - 1024], 1024)?;
                behind.put(Excerpt::from(vec![5; 50]), 4046, CHUNK as u64)
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(state);
            later.join().unwrap()
        });
        later.unwrap();
        behind.flush().unwrap();
        let seen = below.to_bytes();
        assert!(seen[1024..CHUNK].iter().all(|byte| *byte == 7));
        assert_eq!(seen[CHUNK..CHUNK + 50], [5; 50]);
        assert_eq!(seen[CHUNK + 50..CHUNK + 4096], [0; 4046]);
        let chunk = Chunk { offset: 0, content: Content::Excerpt(Excerpt::from(vec![5; 50]), 4046) };
        let mut zeros = [1; 8];
        chunk.read(1024, &mut zeros).unwrap();
        assert_eq!(zeros, [0; 8]);
    }

    /// What follows an excerpt that cannot be read does not reach the device: a map of its blocks.
    #[test]
    fn nothing_is_written_behind_what_cannot_be_read() {
        let below = Arc::new(MemDevice::new(1 << 20));
        let behind = WriteBehind::new(below.clone()).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 6000]).unwrap();
        behind.put(Excerpt::File(Arc::new(file), 0..8192), 0, 0).unwrap();
        // The queue may have failed before this.
        let _ = behind.write_at(&[2; 4096], 65536);
        assert!(behind.flush().is_err());
        assert_eq!(behind.unread().unwrap().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(below.to_bytes()[65536..][..4096], [0; 4096]);
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
