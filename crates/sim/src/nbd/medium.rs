//! What a server holds: an image with a cache that a kill loses in part, or a device.
//!
//! The cache knows on which connection each change came. A flush covers one connection, or all.

use crate::Image;
use crate::seed::rng;
use lanefs_device::{BlockDevice, DeviceError};
use rand::Rng;
use rand::seq::SliceRandom;
use std::fmt;
use std::sync::Arc;

const SECTOR: usize = 512;
/// In place of the number of a connection that has ended.
const ENDED: u64 = 0;

/// A change since the last flush.
#[derive(Debug, Clone)]
enum Change {
    Write { offset: u64, data: Vec<u8> },
    Zeroes { offset: u64, len: u64 },
}

impl Change {
    fn place(&self) -> (u64, u64) {
        match self {
            Self::Write { offset, data } => (*offset, data.len() as u64),
            Self::Zeroes { offset, len } => (*offset, *len),
        }
    }
}

/// The medium of a server. Its calls fail with the number that the server answers.
#[derive(Debug)]
pub(super) enum Medium {
    Image(CachedImage),
    Device(ServedDevice),
}

/// A device that a server serves, and what a kill with a seed does to it.
pub(super) struct ServedDevice {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) lose: Box<dyn Fn(u64) + Send>,
}

impl fmt::Debug for ServedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedDevice").field("device", &self.device).finish_non_exhaustive()
    }
}

/// Returns the number that tells a client of an error of the device.
fn number(e: &DeviceError) -> u32 {
    e.errno().unsigned_abs()
}

impl Medium {
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Image(image) => image.now.size(),
            Self::Device(served) => served.device.size(),
        }
    }

    /// Returns the image; that of a device is empty.
    pub(super) fn image(&self) -> Image {
        match self {
            Self::Image(image) => image.now.clone(),
            Self::Device(_) => Image::zeroed(0),
        }
    }

    /// Returns what a kill leaves at least; of a device nothing.
    pub(super) fn durable(&self) -> Image {
        match self {
            Self::Image(image) => image.durable.clone(),
            Self::Device(_) => Image::zeroed(0),
        }
    }

    pub(super) fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, u32> {
        match self {
            Self::Image(image) => Ok(image.read(offset, len)),
            Self::Device(served) => {
                let mut bytes = vec![0; len];
                served.device.read_at(&mut bytes, offset).map_err(|e| number(&e))?;
                Ok(bytes)
            }
        }
    }

    /// Writes for a connection.
    pub(super) fn write(&mut self, connection: u64, offset: u64, data: Vec<u8>) -> Result<(), u32> {
        match self {
            Self::Image(image) => image.write(connection, offset, data),
            Self::Device(served) => served.device.write_at(&data, offset).map_err(|e| number(&e))?,
        }
        Ok(())
    }

    /// Writes zeros for a connection.
    pub(super) fn zero(&mut self, connection: u64, offset: u64, len: u64) -> Result<(), u32> {
        match self {
            Self::Image(image) => image.zero(connection, offset, len),
            Self::Device(served) => served.device.write_zeroes(offset, len).map_err(|e| number(&e))?,
        }
        Ok(())
    }

    /// Discards a range for a connection; that of an image reads as zeros then.
    pub(super) fn trim(&mut self, connection: u64, offset: u64, len: u64) -> Result<(), u32> {
        match self {
            Self::Image(image) => image.zero(connection, offset, len),
            Self::Device(served) => served.device.discard(offset, len).map_err(|e| number(&e))?,
        }
        Ok(())
    }

    /// Makes durable what came on a connection, and on those that have ended. Makes all durable
    /// without a connection; on a device always.
    pub(super) fn flush(&mut self, connection: Option<u64>) -> Result<(), u32> {
        match self {
            Self::Image(image) => image.flush(connection),
            Self::Device(served) => served.device.flush().map_err(|e| number(&e))?,
        }
        Ok(())
    }

    /// Notes that a connection has ended; all, without one. Any flush covers what came on it.
    pub(super) fn end(&mut self, connection: Option<u64>) {
        if let Self::Image(image) = self {
            image.end(connection);
        }
    }

    /// Makes a range durable, as FUA does; of a device all.
    pub(super) fn flush_range(&mut self, offset: u64, len: u64) -> Result<(), u32> {
        match self {
            Self::Image(image) => image.flush_range(offset, len),
            Self::Device(_) => self.flush(None)?,
        }
        Ok(())
    }

    /// Loses a part of what was not flushed.
    pub(super) fn lose(&mut self, seed: u64) {
        match self {
            Self::Image(image) => image.lose(seed),
            Self::Device(served) => (served.lose)(seed),
        }
    }
}

/// An image: durable, and in a cache that a kill loses in part.
#[derive(Debug)]
pub(super) struct CachedImage {
    durable: Image,
    now: Image,
    /// With the connection that each came on, in the order in which they came.
    unflushed: Vec<(u64, Change)>,
}

impl CachedImage {
    pub(super) fn new(image: Image) -> Self {
        Self { durable: image.clone(), now: image, unflushed: Vec::new() }
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.now.read(offset, &mut bytes);
        bytes
    }

    fn write(&mut self, connection: u64, offset: u64, data: Vec<u8>) {
        self.now.write(offset, &data);
        self.unflushed.push((connection, Change::Write { offset, data }));
    }

    fn zero(&mut self, connection: u64, offset: u64, len: u64) {
        self.now.zero(offset, len);
        self.unflushed.push((connection, Change::Zeroes { offset, len }));
    }

    fn flush(&mut self, connection: Option<u64>) {
        let is_covered = |of: u64| connection.is_none_or(|own| of == own || of == ENDED);
        let changes = std::mem::take(&mut self.unflushed);
        let (covered, rest): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(of, _)| is_covered(*of));
        self.unflushed = rest;
        if self.unflushed.is_empty() {
            self.durable = self.now.clone();
            return;
        }
        for (_, change) in covered {
            let (offset, len) = change.place();
            self.flush_range(offset, len);
        }
    }

    fn end(&mut self, connection: Option<u64>) {
        for (of, _) in &mut self.unflushed {
            if connection.is_none_or(|ended| ended == *of) {
                *of = ENDED;
            }
        }
    }

    /// Makes one change durable, as FUA does: nothing that was in the cache before comes back over
    /// it.
    fn flush_range(&mut self, offset: u64, len: u64) {
        let bytes = self.read(offset, len as usize);
        self.durable.write(offset, &bytes);
        let end = offset + len;
        for (_, change) in &mut self.unflushed {
            if let Change::Zeroes { offset, len } = *change {
                *change = Change::Write { offset, data: vec![0; len as usize] };
            }
            let Change::Write { offset: at, data } = change else { continue };
            let (from, to) = (offset.max(*at), end.min(*at + data.len() as u64));
            if from < to {
                let now = &bytes[(from - offset) as usize..(to - offset) as usize];
                data[(from - *at) as usize..(to - *at) as usize].copy_from_slice(now);
            }
        }
    }

    /// Loses some sectors of what was not flushed. Those that stay were written in any order.
    fn lose(&mut self, seed: u64) {
        let mut rng = rng(&[seed, self.unflushed.len() as u64]);
        let mut changes = std::mem::take(&mut self.unflushed);
        changes.shuffle(&mut rng);
        let keep = rng.random_range(0.0..1.0);
        for (_, change) in changes {
            // Whole, or each sector for itself.
            let (torn, whole) = (rng.random_bool(0.3), rng.random_bool(keep));
            let mut stays = || if torn { rng.random_bool(0.5) } else { whole };
            match change {
                Change::Write { offset, data } => {
                    for (i, sector) in data.chunks(SECTOR).enumerate().filter(|_| stays()) {
                        self.durable.write(offset + (i * SECTOR) as u64, sector);
                    }
                }
                Change::Zeroes { offset, len } => {
                    let step = if torn { SECTOR } else { len.max(1) as usize };
                    for at in (0..len).step_by(step).filter(|_| stays()) {
                        self.durable.zero(offset + at, (len - at).min(step as u64));
                    }
                }
            }
        }
        self.now = self.durable.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FailingDevice;
    use lanefs_device::{MemDevice, Op};

    #[test]
    fn a_device_has_errors_of_its_own() {
        let device = Arc::new(FailingDevice::new(MemDevice::new(4096)));
        let lose = Box::new(|_: u64| {});
        let mut medium = Medium::Device(ServedDevice { device: Arc::clone(&device) as _, lose });
        assert_eq!((medium.size(), medium.write(1, 0, vec![7; 512])), (4096, Ok(())));
        device.fail_once(Op::Write, 1, 28);
        assert_eq!(medium.write(1, 0, vec![8; 512]), Err(28));
        device.fail_once(Op::Flush, 1, 5);
        assert_eq!([medium.flush(Some(1)), medium.flush(Some(1))], [Err(5), Ok(())]);
        assert_eq!(medium.read(0, 512), Ok(vec![7; 512]));
    }

    #[test]
    fn a_kill_loses_what_was_not_flushed_and_nothing_else() {
        let mut lost = 0;
        for seed in 0..50 {
            let mut medium = CachedImage::new(Image::zeroed(64 << 10));
            medium.write(1, 0, vec![1; 8192]);
            medium.flush(None);
            medium.write(1, 4096, vec![2; 8192]);
            medium.zero(1, 0, 1024);
            medium.lose(seed);
            let bytes = medium.read(0, 16384);
            assert!(bytes[1024..4096].iter().all(|b| *b == 1) && bytes[12288..].iter().all(|b| *b == 0));
            assert!(bytes[4096..12288].iter().all(|b| [0, 1, 2].contains(b)));
            assert!(bytes[4096..].chunks(512).all(|sector| sector.iter().all(|b| *b == sector[0])));
            lost += u32::from(bytes[4096] == 1);
            assert_eq!(medium.durable.to_bytes(), medium.now.to_bytes());
        }
        assert!((5..45).contains(&lost), "{lost} of 50");
    }

    #[test]
    fn what_was_made_durable_stays_over_what_was_before() {
        for seed in 0..50 {
            let mut medium = CachedImage::new(Image::zeroed(64 << 10));
            medium.write(1, 0, vec![1; 8192]);
            medium.zero(1, 4096, 8192);
            medium.write(1, 2048, vec![2; 4096]);
            medium.flush_range(2048, 4096);
            medium.lose(seed);
            let bytes = medium.read(0, 16384);
            assert!(bytes[2048..6144].iter().all(|b| *b == 2), "seed {seed}");
            assert!(bytes[..2048].iter().all(|b| [0, 1].contains(b)));
        }
    }

    #[test]
    fn a_flush_covers_its_connection_and_those_that_have_ended() {
        for seed in 0..20 {
            let mut medium = CachedImage::new(Image::zeroed(64 << 10));
            let durable = |medium: &CachedImage| {
                let bytes = medium.durable.to_bytes();
                [0, 4096, 8192, 12288].map(|place: usize| bytes[place])
            };
            for connection in 1..=3 {
                medium.write(connection, (connection - 1) * 4096, vec![connection as u8; 4096]);
            }
            medium.write(2, 12288, vec![1; 512]);
            medium.write(1, 12288, vec![4; 512]);
            medium.flush(Some(1));
            assert_eq!(durable(&medium), [1, 0, 0, 4]);
            // The older content of the second connection does not come back over it.
            medium.end(Some(2));
            medium.flush(Some(1));
            assert_eq!(durable(&medium), [1, 2, 0, 4]);
            medium.lose(seed);
            let [first, second, third, fourth] = durable(&medium);
            assert!((first, second, fourth) == (1, 2, 4) && [0, 3].contains(&third), "seed {seed}");
        }
    }
}
