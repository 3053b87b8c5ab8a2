//! A device that is memory, and remembers every change in order.

use crate::{Image, RecordingDevice};
use lanefs_device::{BlockDevice, Persistence, PmemDevice, Result, WriteOp, forward_to};
use std::path::Path;
use std::sync::Arc;

/// A [`PmemDevice`] that logs as a [`RecordingDevice`] does.
///
/// Its [`Persistence`] decides what a power cut leaves. The writes to a file on a disk are an epoch
/// up to the next flush: a cut leaves any part of them. On other mappings each write is durable
/// when it returns: in the log a flush follows it.
#[derive(Debug)]
pub struct RecordingMemory {
    memory: PmemDevice,
    record: Arc<RecordingDevice>,
    persistence: Persistence,
}

impl RecordingMemory {
    /// Makes a device that starts with `base`, in a new file at `path`. Its crash states are those
    /// of `persistence`, torn at `atomic_write` bytes. A user of the device sees the persistence of
    /// the file itself ([`BlockDevice::mapped`]): the caller chooses a folder where both agree.
    ///
    /// # Errors
    /// The system's.
    pub fn create(
        path: impl AsRef<Path>,
        base: Image,
        atomic_write: usize,
        persistence: Persistence,
    ) -> Result<Self> {
        let memory = PmemDevice::create(path, base.size())?;
        memory.write_at(&base.to_bytes(), 0)?;
        let record = RecordingDevice::new(base).with_atomic_write(atomic_write);
        Ok(Self { memory, record: Arc::new(record), persistence })
    }

    /// Returns the log, and marks in it.
    pub fn record(&self) -> &Arc<RecordingDevice> {
        &self.record
    }

    fn recorded(&self, change: impl Fn(&dyn BlockDevice) -> Result<()>) -> Result<()> {
        change(&self.memory)?;
        change(&*self.record)?;
        match self.persistence {
            Persistence::Flush => Ok(()),
            Persistence::Power | Persistence::Process => self.record.flush(),
        }
    }
}

impl BlockDevice for RecordingMemory {
    forward_to!(memory: size mapped read_at discard);

    fn read_only(&self) -> bool {
        false
    }

    fn atomic_write(&self) -> usize {
        self.record.atomic_write()
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.recorded(|device| device.write_at(data, offset))
    }

    fn write_batch(&self, ops: &[WriteOp<'_>]) -> Result<()> {
        ops.iter().try_for_each(|op| self.write_at(&op.data.concat(), op.offset))
    }

    /// Logs a flush, if it makes anything durable. The file is not flushed: the power cut is one of
    /// the log.
    fn flush(&self) -> Result<()> {
        match self.persistence {
            Persistence::Flush => self.record.flush(),
            Persistence::Power | Persistence::Process => Ok(()),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.recorded(|device| device.write_zeroes(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CrashState, Loss, Shape};

    fn device(persistence: Persistence) -> RecordingMemory {
        // The mapping outlives the name.
        let dir = tempfile::tempdir().unwrap();
        RecordingMemory::create(dir.path().join("memory"), Image::zeroed(8192), 8, persistence).unwrap()
    }

    #[test]
    fn a_write_that_has_returned_is_durable() {
        let device = device(Persistence::Process);
        device.write_at(&[1; 1024], 0).unwrap();
        device.write_batch(&[WriteOp { offset: 4096, data: &[b"a", b"b"] }]).unwrap();
        let mut read = [0; 2];
        device.read_at(&mut read, 4096).unwrap();
        assert_eq!(&read, b"ab");
        let log = device.record().log();
        let states: Vec<CrashState> = log.small_states(1, 100).collect();
        for state in &states {
            let bytes = state.image.to_bytes();
            assert!(bytes[4096] == 0 || bytes[..1024] == [1; 1024], "{state}");
        }
        // Nothing, the first write, that one torn in four ways, and the second write.
        assert_eq!(states.len(), 7);
        assert_eq!(states[0].shape, Shape::Small(Loss::Prefix(0)));
        assert_eq!(device.record().image().to_bytes(), states[6].image.to_bytes());
    }

    #[test]
    fn a_write_to_a_file_on_a_disk_is_durable_after_a_flush() {
        let device = device(Persistence::Flush);
        device.write_at(&[1; 1024], 0).unwrap();
        device.write_zeroes(1024, 8).unwrap();
        device.write_at(&[2; 8], 4096).unwrap();
        device.flush().unwrap();
        device.write_at(&[3; 8], 4096).unwrap();
        let log = device.record().log();
        let states: Vec<Vec<u8>> = log.small_states(1, 100).map(|state| state.image.to_bytes()).collect();
        let is_left = |first: u8, second: u8| {
            states.iter().any(|bytes| bytes[..1024] == [first; 1024] && bytes[4096..4104] == [second; 8])
        };
        // None, one without the other, both; and what was flushed is below what came later.
        assert!(is_left(0, 0) && is_left(1, 0) && is_left(0, 2) && is_left(1, 2) && is_left(1, 3));
        assert!(!is_left(0, 3));
        let is_torn = |bytes: &Vec<u8>| bytes[..8] == [1; 8] && bytes[8..1024] == [0; 1016];
        assert!(states.iter().any(is_torn), "no write is torn behind its first store");
    }
}
