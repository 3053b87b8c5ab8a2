//! A device that fails on purpose.

use crate::earlier::Earlier;
use lanefs_device::{BlockDevice, DeviceError, Op, ReadOp, Result, WriteOp, forward_to};
use parking_lot::Mutex;
use std::io;

/// The way in which a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// An error; the call does nothing.
    Error(i32),
    /// An error after the first half of the bytes, in whole sectors, was transferred.
    Half(i32),
    /// An error, and the same for every later read of the first sector of it, until that is
    /// written: the sector cannot be read. Only a read has one.
    Bad(i32),
    /// A read that succeeds, and returns what each sector held before it was written last.
    Stale,
    /// A read that succeeds, with one bit wrong: this one, modulo the bits of the read.
    Flip(u64),
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// What it was.
    pub op: Op,
    /// First byte on the device.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// What a [`Failure::Stale`] or [`Failure::Flip`] read should have returned.
    pub content: Vec<u8>,
}

type Notify = Box<dyn Fn() + Send + Sync>;

/// A device that passes calls on to another one, until it is told to fail.
///
/// Every op of a batch counts as one read or write, and a write of zeros as one write, so that the
/// Nth can fall inside a batch, with those before it done.
pub struct FailingDevice<D> {
    inner: D,
    state: Mutex<FaultState>,
    notify: Option<Notify>,
}

#[derive(Debug, Default)]
struct FaultState {
    /// Calls so far by [`index`], failed ones too.
    calls: [u64; KINDS],
    failures: u64,
    first: Option<Hit>,
    rules: Vec<Rule>,
    all: Option<i32>,
    paused: bool,
    earlier: Option<Earlier>,
    /// The sector that cannot be read, by its first byte, and the error.
    bad: Option<(u64, i32)>,
}

#[derive(Debug, Clone, Copy)]
struct Rule {
    kind: usize,
    /// The call, counted from 1 since the device was made.
    nth: u64,
    for_ever: bool,
    failure: Failure,
}

const KINDS: usize = 4;

fn index(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush | Op::Open | Op::Lock => 2,
        Op::Discard => 3,
    }
}

impl<D: BlockDevice> FailingDevice<D> {
    /// Returns a device that does not fail yet.
    pub fn new(inner: D) -> Self {
        Self { inner, state: Mutex::default(), notify: None }
    }

    /// Calls `notify` at each failure, before the call returns.
    #[must_use]
    pub fn with_notify(self, notify: impl Fn() + Send + Sync + 'static) -> Self {
        Self { notify: Some(Box::new(notify)), ..self }
    }

    /// Remembers what each sector held before its last write, from now on: [`Failure::Stale`] needs
    /// it.
    #[must_use]
    pub fn remembering(self) -> Self {
        self.state.lock().earlier = Some(Earlier::default());
        self
    }

    /// Returns the device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Fails the `nth` call of `op` (read, write, flush or discard) from now, 1 being the next, and
    /// no other.
    pub fn fail_once(&self, op: Op, nth: u64, errno: i32) {
        self.fail(op, nth, false, Failure::Error(errno));
    }

    /// Fails the `nth` call of `op` from now, 1 being the next, and all that follow.
    pub fn fail_from(&self, op: Op, nth: u64, errno: i32) {
        self.fail(op, nth, true, Failure::Error(errno));
    }

    /// Fails the `nth` call of `op` from now, 1 being the next, in this way; with `for_ever` all
    /// that follow too.
    pub fn fail(&self, op: Op, nth: u64, for_ever: bool, failure: Failure) {
        let mut state = self.state.lock();
        let kind = index(op);
        let nth = state.calls[kind] + nth;
        state.rules.push(Rule { kind, nth, for_ever, failure });
    }

    /// Lets calls pass without counting them while `paused`. Orders to fail stay.
    pub fn pause(&self, paused: bool) {
        self.state.lock().paused = paused;
    }

    /// Fails every call from now, as a device that was pulled out.
    pub fn fail_all(&self, errno: i32) {
        self.state.lock().all = Some(errno);
    }

    /// Forgets all orders to fail.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.rules.clear();
        state.all = None;
        state.bad = None;
    }

    /// Calls of `op` so far, failed ones too.
    pub fn count(&self, op: Op) -> u64 {
        self.state.lock().calls[index(op)]
    }

    /// Calls that were made to fail so far.
    pub fn failures(&self) -> u64 {
        self.state.lock().failures
    }

    /// Returns the first call that was made to fail.
    pub fn first_failure(&self) -> Option<Hit> {
        self.state.lock().first.clone()
    }

    /// Counts a call. Returns how it has to fail.
    fn call(&self, op: Op, offset: u64, len: u64) -> Option<Failure> {
        let mut state = self.state.lock();
        let is_read = matches!(op, Op::Read);
        let touched = state.bad.filter(|(sector, _)| *sector < offset + len && offset < sector + SECTOR);
        if touched.is_some() && !is_read {
            state.bad = None;
        }
        if state.paused {
            return None;
        }
        let kind = index(op);
        state.calls[kind] += 1;
        let call = state.calls[kind];
        let hit = |r: &&Rule| r.kind == kind && (r.nth == call || r.for_ever && r.nth <= call);
        let ordered = state.rules.iter().find(hit).map(|r| r.failure);
        let bad = touched.filter(|_| is_read).map(|(_, errno)| Failure::Bad(errno));
        let failure = state.all.map(Failure::Error).or(ordered).or(bad)?;
        if let Failure::Bad(errno) = failure {
            state.bad.get_or_insert((offset / SECTOR * SECTOR, errno));
        }
        state.failures += 1;
        state.first.get_or_insert_with(|| Hit { op, offset, len, content: Vec::new() });
        drop(state);
        if let Some(notify) = &self.notify {
            notify();
        }
        Some(failure)
    }

    /// Passes on a call that changes `len` bytes at `offset`, unless it has to fail.
    fn change(&self, op: Op, offset: u64, len: u64, change: impl Fn(u64) -> Result<()>) -> Result<()> {
        let failure = self.call(op, offset, len);
        if let Some(earlier) = &mut self.state.lock().earlier {
            earlier.note(&self.inner, offset, len)?;
        }
        match failure {
            Some(Failure::Error(errno) | Failure::Bad(errno)) => Err(failed(op, offset, len, errno)),
            Some(Failure::Half(errno)) => {
                change(len / 2 / SECTOR * SECTOR)?;
                Err(failed(op, offset, len, errno))
            }
            _ => change(len),
        }
    }
}

const SECTOR: u64 = 512;

fn failed(op: Op, offset: u64, len: u64, errno: i32) -> DeviceError {
    DeviceError::new(op, offset, len, io::Error::from_raw_os_error(errno))
}

impl<D: std::fmt::Debug> std::fmt::Debug for FailingDevice<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FailingDevice").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<D: BlockDevice> BlockDevice for FailingDevice<D> {
    forward_to!(inner: size measure read_only alignment atomic_write);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len() as u64;
        let failure = self.call(Op::Read, offset, len);
        match failure {
            Some(Failure::Error(errno) | Failure::Bad(errno)) => {
                return Err(failed(Op::Read, offset, len, errno));
            }
            Some(Failure::Half(errno)) => {
                self.inner.read_at(&mut buf[..(len / 2) as usize], offset)?;
                return Err(failed(Op::Read, offset, len, errno));
            }
            _ => self.inner.read_at(buf, offset)?,
        }
        let Some(failure) = failure else { return Ok(()) };
        let mut state = self.state.lock();
        if let Some(hit) = &mut state.first {
            hit.content = buf.to_vec();
        }
        match failure {
            Failure::Flip(bit) if !buf.is_empty() => {
                let bit = (bit % (len * 8)) as usize;
                buf[bit / 8] ^= 1 << (bit % 8);
            }
            Failure::Stale => state.earlier.iter().for_each(|earlier| earlier.put(offset, buf)),
            _ => {}
        }
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let write = |len: u64| self.inner.write_at(&data[..len as usize], offset);
        self.change(Op::Write, offset, data.len() as u64, write)
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        ops.iter_mut().try_for_each(|op| self.read_at(op.buf, op.offset))
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        ops.iter().try_for_each(|op| self.write_at(&op.data.concat(), op.offset))
    }

    fn flush(&self) -> Result<()> {
        match self.call(Op::Flush, 0, 0) {
            Some(Failure::Error(errno) | Failure::Half(errno) | Failure::Bad(errno)) => {
                Err(failed(Op::Flush, 0, 0, errno))
            }
            _ => self.inner.flush(),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.change(Op::Discard, offset, len, |len| self.inner.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.change(Op::Write, offset, len, |len| self.inner.write_zeroes(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Image, RecordingDevice};
    use lanefs_device::MemDevice;
    use std::sync::Arc;

    const EIO: i32 = 5;
    const ENOSPC: i32 = 28;

    fn write_fails(dev: &FailingDevice<MemDevice>) -> Option<i32> {
        dev.write_at(b"x", 0).err().map(|e| e.errno())
    }

    #[test]
    fn once_is_once() {
        let dev = FailingDevice::new(MemDevice::new(100));
        assert_eq!(write_fails(&dev), None);
        dev.fail_once(Op::Write, 2, ENOSPC);
        assert_eq!([0; 4].map(|_| write_fails(&dev)), [None, Some(ENOSPC), None, None]);
        assert_eq!((dev.count(Op::Write), dev.failures(), dev.count(Op::Read)), (5, 1, 0));
        dev.flush().unwrap();
    }

    #[test]
    fn from_then_on_until_healed() {
        let dev = FailingDevice::new(MemDevice::new(100));
        dev.fail_from(Op::Flush, 2, EIO);
        assert_eq!([0; 4].map(|_| dev.flush().is_err()), [false, true, true, true]);
        assert_eq!(write_fails(&dev), None);
        dev.fail_all(EIO);
        assert!(dev.read_at(&mut [0], 0).is_err() && dev.discard(0, 1).is_err());
        assert!(dev.write_zeroes(0, 1).is_err() && write_fails(&dev) == Some(EIO));
        dev.heal();
        assert!(dev.flush().is_ok() && dev.read_at(&mut [0], 0).is_ok() && write_fails(&dev).is_none());
    }

    /// What failed is not in the log of the device below.
    #[test]
    fn over_a_recording_device() {
        let below = Arc::new(RecordingDevice::new(Image::zeroed(4096)));
        let dev = FailingDevice::new(Arc::clone(&below));
        dev.fail_once(Op::Write, 2, EIO);
        let failed: Vec<u64> = (0..4).filter(|&i| dev.write_at(b"x", i).is_err()).collect();
        assert_eq!((failed, below.sequence()), (vec![1], 3));
    }

    #[test]
    fn in_the_middle_of_a_batch() {
        let dev = FailingDevice::new(MemDevice::new(100));
        dev.fail_once(Op::Write, 2, EIO);
        let ops = [0, 10, 20].map(|offset| WriteOp { offset, data: &[b"a", b"b"] });
        let error = dev.write_batch(&ops).unwrap_err();
        assert_eq!((error.offset, error.len), (10, 2));
        let bytes = dev.inner().to_bytes();
        assert_eq!((&bytes[..2], bytes[10], bytes[20]), (&b"ab"[..], 0, 0));
        dev.fail_once(Op::Read, 3, EIO);
        let mut bufs = [[0; 4]; 4];
        let mut ops: Vec<ReadOp<'_>> = bufs.iter_mut().map(|buf| ReadOp { offset: 0, buf }).collect();
        assert!(dev.read_batch(&mut ops).is_err());
        assert_eq!(dev.count(Op::Read), 3);
    }

    #[test]
    fn half_of_a_call() {
        let dev = FailingDevice::new(MemDevice::new(2048));
        dev.fail(Op::Write, 1, false, Failure::Half(EIO));
        assert!(dev.write_at(&[1; 1536], 0).is_err());
        dev.write_at(&[2; 512], 1024).unwrap();
        assert_eq!([0, 511, 512, 1024].map(|at| dev.inner().to_bytes()[at]), [1, 1, 0, 2]);
        dev.fail(Op::Read, 1, false, Failure::Half(EIO));
        let mut buf = [9; 1024];
        assert!(dev.read_at(&mut buf, 0).is_err());
        assert_eq!((buf[0], buf[512]), (1, 9));
    }

    #[test]
    fn a_sector_that_cannot_be_read_until_it_is_written() {
        let dev = FailingDevice::new(MemDevice::new(2048));
        let fails = |offset, len| dev.read_at(&mut vec![0; len], offset).is_err();
        dev.fail(Op::Read, 2, false, Failure::Bad(EIO));
        assert!(!fails(512, 1024) && fails(512, 1024) && fails(0, 2048) && fails(1000, 1));
        assert!(!fails(0, 512) && !fails(1024, 1024));
        dev.write_at(&[1; 512], 1024).unwrap();
        assert!(fails(512, 512));
        dev.write_at(&[1; 512], 512).unwrap();
        assert!(!fails(0, 2048));
        assert_eq!(dev.failures(), 4);
    }

    #[test]
    fn reads_that_lie() {
        let dev = FailingDevice::new(MemDevice::new(2048)).remembering();
        [1, 2, 3].into_iter().for_each(|byte| dev.write_at(&[byte; 512], 512).unwrap());
        let read = || {
            let mut buf = [0; 1536];
            dev.read_at(&mut buf, 0).unwrap();
            [buf[0], buf[512], buf[1023], buf[1024]]
        };
        dev.fail(Op::Read, 1, false, Failure::Stale);
        dev.fail(Op::Read, 2, false, Failure::Flip(512 * 8 + 2));
        assert_eq!([read(), read(), read()], [[0, 2, 2, 0], [0, 7, 3, 0], [0, 3, 3, 0]]);
        let hit = dev.first_failure().unwrap();
        assert_eq!((hit.offset, hit.len, hit.content[512], dev.failures()), (0, 1536, 3, 2));
    }

    #[test]
    fn a_pause_counts_nothing() {
        let told = Arc::new(Mutex::new(0));
        let notify = Arc::clone(&told);
        let dev = FailingDevice::new(MemDevice::new(100)).with_notify(move || *notify.lock() += 1);
        dev.fail_from(Op::Write, 2, EIO);
        dev.pause(true);
        assert_eq!([0; 3].map(|_| write_fails(&dev)), [None; 3]);
        dev.pause(false);
        assert_eq!([0; 3].map(|_| write_fails(&dev)), [None, Some(EIO), Some(EIO)]);
        assert_eq!((*told.lock(), dev.count(Op::Write)), (2, 3));
    }
}
