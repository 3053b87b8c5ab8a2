//! A range of a device as a device of its own: a partition, or bytes that a caller names.

use crate::block_device::check_range;
use crate::{BlockDevice, DeviceError, Op, ReadOp, RepeatGuard, Result, WriteOp};
use std::ops::Range;

/// A range of another device, as a device.
///
/// Offsets count from the first byte of the range, also those in errors. No call reads or writes a
/// byte outside of it. A flush is one of the whole device below.
///
/// [`open_url`](crate::open_url) returns one for a partition or a range in a name, and locks these
/// bytes of the file alone.
///
/// # Examples
/// ```
/// use lanefs_device::{BlockDevice, MemDevice, Window};
/// use std::sync::Arc;
///
/// let disk = Arc::new(MemDevice::new(4 << 20));
/// let partition = Window::new(Arc::clone(&disk), 1 << 20..3 << 20)?;
/// partition.write_at(b"first", 0)?;
/// assert_eq!(partition.size(), 2 << 20);
/// assert!(partition.write_at(b"behind", 2 << 20).is_err());
/// assert_eq!(&disk.to_bytes()[1 << 20..][..5], b"first");
/// # Ok::<(), lanefs_device::DeviceError>(())
/// ```
#[derive(Debug)]
pub struct Window<D> {
    below: D,
    start: u64,
    size: u64,
}

impl<D: BlockDevice> Window<D> {
    /// Returns the bytes `range` of `below` as a device.
    ///
    /// # Errors
    /// [`Op::Open`] for a range that is not inside of `below`.
    pub fn new(below: D, range: Range<u64>) -> Result<Self> {
        let size = range.end.saturating_sub(range.start);
        check_range(Op::Open, below.size(), range.start, size)?;
        Ok(Self { below, start: range.start, size })
    }

    /// Returns the place of a range on the device below.
    fn place(&self, op: Op, offset: u64, len: u64) -> Result<u64> {
        check_range(op, self.size, offset, len)?;
        Ok(self.start + offset)
    }

    /// Returns the same reads of the device below.
    fn moved<'o>(&self, ops: &'o mut [ReadOp<'_>]) -> Result<Vec<ReadOp<'o>>> {
        let mut moved = Vec::with_capacity(ops.len());
        for op in ops {
            let offset = self.place(Op::Read, op.offset, op.buf.len() as u64)?;
            moved.push(ReadOp { offset, buf: &mut *op.buf });
        }
        Ok(moved)
    }

    fn told<T>(&self, done: Result<T>) -> Result<T> {
        done.map_err(|e| match e.op {
            Op::Read | Op::Write | Op::Discard => {
                DeviceError { offset: e.offset.saturating_sub(self.start), ..e }
            }
            _ => e,
        })
    }
}

impl<D: BlockDevice> BlockDevice for Window<D> {
    crate::forward_to!(below: read_only alignment sector_size owner name cached is_private is_remote flush);

    fn size(&self) -> u64 {
        self.size
    }

    /// Returns the unit of the device below, if the window begins with one.
    fn atomic_write(&self) -> usize {
        let unit = self.below.atomic_write();
        let shift = self.start.trailing_zeros().min(usize::BITS - 1);
        unit.min(1 << shift)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let at = self.place(Op::Read, offset, buf.len() as u64)?;
        self.told(self.below.read_at(buf, at))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let at = self.place(Op::Write, offset, data.len() as u64)?;
        self.told(self.below.write_at(data, at))
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        self.told(self.below.read_batch(&mut self.moved(ops)?))
    }

    fn read_batch_direct(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        self.told(self.below.read_batch_direct(&mut self.moved(ops)?))
    }

    fn read_if_cached(&self, buf: &mut [u8], offset: u64) -> bool {
        let place = self.place(Op::Read, offset, buf.len() as u64);
        place.is_ok_and(|at| self.below.read_if_cached(buf, at))
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        let place = |op: &WriteOp<'_>| self.place(Op::Write, op.offset, op.len());
        // The most frequent batch, without an allocation.
        if let [op] = ops {
            return self.told(self.below.write_batch(&[WriteOp { offset: place(op)?, data: op.data }]));
        }
        let moved = ops.iter().map(|op| Ok(WriteOp { offset: place(op)?, data: op.data }));
        let moved = moved.collect::<Result<Vec<_>>>()?;
        self.told(self.below.write_batch(&moved))
    }

    fn read_shared(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let at = self.place(Op::Read, offset, buf.len() as u64)?;
        self.told(self.below.read_shared(buf, at))
    }

    fn write_shared(&self, data: &[u8], offset: u64) -> Result<()> {
        let at = self.place(Op::Write, offset, data.len() as u64)?;
        self.told(self.below.write_shared(data, at))
    }

    fn guard_repeats(&self, guard: RepeatGuard) {
        self.below.guard_repeats(RepeatGuard { offset: self.start.saturating_add(guard.offset), ..guard });
    }

    fn start_writeback(&self, offset: u64, len: u64) {
        if let Ok(at) = self.place(Op::Write, offset, len) {
            self.below.start_writeback(at, len);
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let at = self.place(Op::Discard, offset, len)?;
        self.told(self.below.discard(at, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let at = self.place(Op::Write, offset, len)?;
        self.told(self.below.write_zeroes(at, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;
    use std::sync::Arc;

    #[test]
    fn nothing_outside_is_read_or_written() {
        let below = Arc::new(MemDevice::from_bytes(vec![7; 4096]));
        let window = Window::new(below.clone(), 512..1536).unwrap();
        assert_eq!((window.size(), window.atomic_write()), (1024, 512));
        window.write_at(&[1; 4], 0).unwrap();
        let pieces: [&[u8]; 2] = [&[2; 3], &[3; 1]];
        window.write_batch(&[WriteOp { offset: 1020, data: &pieces }]).unwrap();
        window
            .write_batch(&[WriteOp { offset: 8, data: &[&[4]] }, WriteOp { offset: 10, data: &[&[5]] }])
            .unwrap();
        window.write_zeroes(100, 100).unwrap();
        let mut want = vec![7; 4096];
        want[512..516].fill(1);
        want[1532..1535].fill(2);
        want[1535] = 3;
        (want[520], want[522]) = (4, 5);
        want[612..712].fill(0);
        assert_eq!(below.to_bytes(), want);

        let mut seen = [0; 1024];
        window.read_at(&mut seen, 0).unwrap();
        assert_eq!(seen, want[512..1536]);
        let (mut a, mut b) = ([0; 2], [0; 2]);
        let mut ops = [ReadOp { offset: 0, buf: &mut a }, ReadOp { offset: 1022, buf: &mut b }];
        window.read_batch(&mut ops).unwrap();
        assert_eq!((ops[0].offset, a, b), (0, [1, 1], [2, 3]));

        let past = |done: Result<()>| {
            let e = done.unwrap_err();
            assert!(e.to_string().contains("beyond the end of the device (1024 bytes)"), "{e}");
        };
        past(window.write_at(&[9; 5], 1020));
        past(window.write_at(&[9], u64::MAX));
        past(window.read_at(&mut [0; 2], 1023));
        past(window.write_batch(&[WriteOp { offset: 1024, data: &[&[9]] }]));
        past(window.read_batch(&mut [ReadOp { offset: 1024, buf: &mut [0] }]));
        past(window.discard(1000, 25));
        past(window.write_zeroes(1, 1024));
        assert_eq!(below.to_bytes(), want);
        assert!(Window::new(below, 4000..4097).is_err());
    }

    #[test]
    fn errors_count_from_the_start_of_the_window() {
        let below = MemDevice::from_bytes(vec![0; 4096]);
        let window = Window::new(Window { below, start: 0, size: 1024 }, 512..1024).unwrap();
        let short = Window { below: window, start: 0, size: 2048 };
        assert_eq!(short.read_at(&mut [0; 8], 600).unwrap_err().offset, 600);
    }
}
