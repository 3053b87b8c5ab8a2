//! A throttled device: latency, operations and bytes a second, and the cost of a flush are
//! configurable.
//!
//! It shows the effect of a cloud volume or a disk on a program, on a machine that has neither. It
//! stores the content on the device below, which must be faster than the simulated one. The calling
//! thread sleeps for the duration of an operation, so durations below 0.1 ms are coarse.

use crate::{BlockDevice, Mapped, ReadOp, Result, WriteOp};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The speed of a [`PacedDevice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The duration of a read or write, or of a batch of them, whose requests run side by side.
    pub latency: Duration,
    /// The most reads and writes a second, of up to 256 KiB each.
    pub iops: u32,
    /// The most bytes a second.
    pub bytes: u64,
    /// The duration of a flush. Flushes wait for one another.
    pub flush: Duration,
}

impl Pace {
    /// A flash drive that keeps its cache when power fails.
    pub const NVME: Self = Self {
        latency: Duration::from_micros(80),
        iops: 400_000,
        bytes: 2 << 30,
        flush: Duration::from_micros(100),
    };
    /// A volume over a network, of 64,000 operations and 1000 MiB a second.
    pub const CLOUD: Self = Self {
        latency: Duration::from_micros(600),
        iops: 64_000,
        bytes: 1000 << 20,
        flush: Duration::from_millis(1),
    };
    /// An image of a Ceph cluster, with 64 requests in flight.
    pub const RBD: Self = Self {
        latency: Duration::from_millis(1),
        iops: 64_000,
        bytes: 1 << 30,
        flush: Duration::from_millis(2),
    };
    /// A hard disk.
    pub const DISK: Self = Self {
        latency: Duration::from_millis(4),
        iops: 120,
        bytes: 180 << 20,
        flush: Duration::from_millis(12),
    };

    /// Returns how long a request keeps the device from the next one.
    fn service(&self, len: u64) -> Duration {
        let operations = len.div_ceil(256 << 10).max(1) as f64;
        let seconds = (operations / f64::from(self.iops.max(1))).max(len as f64 / self.bytes.max(1) as f64);
        Duration::from_secs_f64(seconds)
    }
}

/// A device that is as slow as a [`Pace`].
///
/// The calling thread sleeps until the simulated medium would have finished.
///
/// # Examples
/// ```
/// use lanefs_device::{BlockDevice, MemDevice, Pace, PacedDevice};
///
/// let disk = PacedDevice::new(MemDevice::new(1 << 20), Pace::DISK);
/// let began = std::time::Instant::now();
/// disk.write_at(&[1; 512], 0)?;
/// assert!(began.elapsed() >= Pace::DISK.latency);
/// # Ok::<(), lanefs_device::DeviceError>(())
/// ```
#[derive(Debug)]
pub struct PacedDevice<D> {
    below: D,
    pace: Pace,
    /// When it is free for a further request, and for a further flush.
    free: Mutex<(Instant, Instant)>,
}

impl<D: BlockDevice> PacedDevice<D> {
    /// Returns the device `below`, slowed down to `pace`.
    pub fn new(below: D, pace: Pace) -> Self {
        let now = Instant::now();
        Self { below, pace, free: Mutex::new((now, now)) }
    }

    fn free(&self) -> MutexGuard<'_, (Instant, Instant)> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as these requests, side by side, would take.
    fn take(&self, lengths: impl Iterator<Item = u64>) {
        let service: Duration = lengths.map(|len| self.pace.service(len)).sum();
        let end = {
            let mut free = self.free();
            free.0 = free.0.max(Instant::now()) + service;
            free.0
        };
        wait_until(end + self.pace.latency);
    }
}

fn wait_until(end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        sleep(left);
    }
}

impl<D: BlockDevice> BlockDevice for PacedDevice<D> {
    crate::forward_to!(below: size measure read_only alignment sector_size atomic_write cached);

    /// Returns `None`: it is no memory, whatever is below.
    fn mapped(&self) -> Option<&Mapped> {
        None
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.take([buf.len() as u64].into_iter());
        self.below.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.take([data.len() as u64].into_iter());
        self.below.write_at(data, offset)
    }

    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<()> {
        self.take(ops.iter().map(|op| op.buf.len() as u64));
        self.below.read_batch(ops)
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        self.take(ops.iter().map(WriteOp::len));
        self.below.write_batch(ops)
    }

    fn flush(&self) -> Result<()> {
        let end = {
            let mut free = self.free();
            free.1 = free.1.max(Instant::now()) + self.pace.flush;
            free.1
        };
        wait_until(end);
        self.below.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.take([0].into_iter());
        self.below.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.take([0].into_iter());
        self.below.write_zeroes(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    fn device(pace: Pace) -> PacedDevice<MemDevice> {
        PacedDevice::new(MemDevice::new(1 << 20), pace)
    }

    /// Never quicker than its pace; the machine decides how much slower.
    #[test]
    fn it_takes_its_time() {
        let pace = Pace {
            latency: Duration::from_millis(5),
            iops: 1000,
            bytes: 1 << 30,
            flush: Duration::from_millis(7),
        };
        let device = device(pace);
        let began = Instant::now();
        device.write_at(&[1; 100], 0).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(6));
        let began = Instant::now();
        device.flush().unwrap();
        device.flush().unwrap();
        assert!(began.elapsed() >= Duration::from_millis(14));
        let mut read = [0; 100];
        device.read_at(&mut read, 0).unwrap();
        assert_eq!(read, [1; 100]);
    }

    #[test]
    fn operations_wait_for_their_turn() {
        let pace = Pace { latency: Duration::ZERO, iops: 1000, bytes: u64::MAX, flush: Duration::ZERO };
        let device = device(pace);
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10).for_each(|_| device.write_at(&[0], 0).unwrap()));
            }
        });
        assert!(began.elapsed() >= Duration::from_millis(40));
        let piece: &[&[u8]] = &[&[0]];
        let began = Instant::now();
        device.write_batch(&[WriteOp { offset: 0, data: piece }; 20]).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(20), "a batch counts for each of its requests");
    }

    #[test]
    fn bytes_count_too() {
        let one_second = Pace { bytes: 1 << 20, ..Pace::CLOUD }.service(1 << 20);
        assert_eq!(one_second, Duration::from_secs(1));
        assert_eq!(Pace { iops: 2, ..Pace::CLOUD }.service(512 << 10), Duration::from_secs(1));
    }
}
