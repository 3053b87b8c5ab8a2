//! A device that is memory, and remembers every change in order.

use crate::{Image, RecordingDevice};
use lanefs_device::{BlockDevice, PmemDevice, Result, WriteOp, forward_to};
use std::path::Path;
use std::sync::Arc;

/// A [`PmemDevice`] that logs as a [`RecordingDevice`] does. As on persistent memory, each write is
/// durable when it returns: in the log a flush follows it.
#[derive(Debug)]
pub struct RecordingMemory {
    memory: PmemDevice,
    record: Arc<RecordingDevice>,
}

impl RecordingMemory {
    /// Makes a device that starts with `base`, in a new file at `path`: in memory, if the folder is
    /// (tmpfs). Its crash states are torn at `atomic_write` bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn create(path: impl AsRef<Path>, base: Image, atomic_write: usize) -> Result<Self> {
        let memory = PmemDevice::create(path, base.size())?;
        memory.write_at(&base.to_bytes(), 0)?;
        let record = RecordingDevice::new(base).with_atomic_write(atomic_write);
        Ok(Self { memory, record: Arc::new(record) })
    }

    /// Returns the log, and marks in it.
    pub fn record(&self) -> &Arc<RecordingDevice> {
        &self.record
    }

    fn recorded(&self, change: impl Fn(&dyn BlockDevice) -> Result<()>) -> Result<()> {
        change(&self.memory)?;
        change(&*self.record)?;
        self.record.flush()
    }
}

impl BlockDevice for RecordingMemory {
    forward_to!(memory: size mapped read_at flush discard);

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

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.recorded(|device| device.write_zeroes(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CrashState, Loss, Shape};

    #[test]
    fn a_write_that_has_returned_is_durable() {
        let dir = tempfile::tempdir().unwrap();
        let device = RecordingMemory::create(dir.path().join("memory"), Image::zeroed(8192), 8).unwrap();
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
}
