//! A device that fails on purpose.

use lanefs_device::{BlockDevice, DeviceError, Op, ReadOp, Result, WriteOp};
use parking_lot::Mutex;
use std::io;

/// Passes calls on to another device, until it is told to fail.
///
/// Every op of a batch counts as one read or write, and a write of zeros as one write, so that the
/// Nth can fall inside a batch, with those before it done.
#[derive(Debug)]
pub struct FailingDevice<D> {
    inner: D,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Calls so far by [`index`], failed ones too.
    calls: [u64; KINDS],
    failures: u64,
    rules: Vec<Rule>,
    all: Option<i32>,
}

#[derive(Debug, Clone, Copy)]
struct Rule {
    kind: usize,
    /// The call, counted from 1 since the device was made.
    nth: u64,
    for_ever: bool,
    errno: i32,
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
    /// A device that does not fail yet.
    pub fn new(inner: D) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Fails the `nth` call of `op` (read, write, flush or discard) from now, 1 being the next, and no other.
    pub fn fail_once(&self, op: Op, nth: u64, errno: i32) {
        self.add(op, nth, false, errno);
    }

    /// Fails the `nth` call of `op` from now, 1 being the next, and all that follow.
    pub fn fail_from(&self, op: Op, nth: u64, errno: i32) {
        self.add(op, nth, true, errno);
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
    }

    /// Calls of `op` so far, failed ones too.
    pub fn count(&self, op: Op) -> u64 {
        self.state.lock().calls[index(op)]
    }

    /// Calls that were made to fail so far.
    pub fn failures(&self) -> u64 {
        self.state.lock().failures
    }

    fn add(&self, op: Op, nth: u64, for_ever: bool, errno: i32) {
        let mut state = self.state.lock();
        let kind = index(op);
        let nth = state.calls[kind] + nth;
        state.rules.push(Rule { kind, nth, for_ever, errno });
    }

    fn pass(&self, op: Op, offset: u64, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        let kind = index(op);
        state.calls[kind] += 1;
        let call = state.calls[kind];
        let hit = |r: &&Rule| r.kind == kind && (r.nth == call || r.for_ever && r.nth <= call);
        let errno = state.all.or_else(|| state.rules.iter().find(hit).map(|r| r.errno));
        match errno {
            None => Ok(()),
            Some(errno) => {
                state.failures += 1;
                Err(DeviceError::new(op, offset, len, io::Error::from_raw_os_error(errno)))
            }
        }
    }
}

impl<D: BlockDevice> BlockDevice for FailingDevice<D> {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.pass(Op::Read, offset, buf.len() as u64)?;
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.pass(Op::Write, offset, data.len() as u64)?;
        self.inner.write_at(offset, data)
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        ops.iter_mut().try_for_each(|op| self.read_at(op.offset, op.buf))
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        ops.iter().try_for_each(|op| self.write_at(op.offset, &op.data.concat()))
    }

    fn flush(&self) -> Result<()> {
        self.pass(Op::Flush, 0, 0)?;
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.pass(Op::Discard, offset, len)?;
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.pass(Op::Write, offset, len)?;
        self.inner.write_zeroes(offset, len)
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
        dev.write_at(0, b"x").err().map(|e| e.errno())
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
        assert!(dev.read_at(0, &mut [0]).is_err() && dev.discard(0, 1).is_err());
        assert!(dev.write_zeroes(0, 1).is_err() && write_fails(&dev) == Some(EIO));
        dev.heal();
        assert!(dev.flush().is_ok() && dev.read_at(0, &mut [0]).is_ok() && write_fails(&dev).is_none());
    }

    /// What failed is not in the log of the device below.
    #[test]
    fn over_a_recording_device() {
        let below = Arc::new(RecordingDevice::new(Image::zeroed(4096)));
        let dev = FailingDevice::new(Arc::clone(&below));
        dev.fail_once(Op::Write, 2, EIO);
        let failed: Vec<u64> = (0..4).filter(|&i| dev.write_at(i, b"x").is_err()).collect();
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
}
