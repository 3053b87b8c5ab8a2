//! An image as a device.

use crate::Image;
use lanefs_device::{BlockDevice, Op, Result, check_range};
use parking_lot::RwLock;

/// A device over an [`Image`]: reads fall through to the base, writes stay in the overlay.
#[derive(Debug)]
pub struct OverlayDevice {
    size: u64,
    atomic_write: usize,
    alignment: usize,
    image: RwLock<Image>,
}

impl OverlayDevice {
    /// Returns a device that starts with `image`.
    pub fn new(image: Image) -> Self {
        Self { size: image.size(), atomic_write: 512, alignment: 1, image: RwLock::new(image) }
    }

    /// Sets what [`BlockDevice::atomic_write`] returns, 512 otherwise.
    #[must_use]
    pub fn with_atomic_write(self, atomic_write: usize) -> Self {
        Self { atomic_write, ..self }
    }

    /// Sets what [`BlockDevice::alignment`] returns, 1 otherwise. Calls that are not aligned are
    /// carried out all the same, as a file that is open for O_DIRECT does.
    #[must_use]
    pub fn with_alignment(self, alignment: usize) -> Self {
        Self { alignment, ..self }
    }

    /// Returns what it holds now.
    pub fn image(&self) -> Image {
        self.image.read().clone()
    }
}

impl BlockDevice for OverlayDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_only(&self) -> bool {
        false
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn atomic_write(&self) -> usize {
        self.atomic_write
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        check_range(Op::Read, self.size, offset, buf.len() as u64)?;
        self.image.read().read(offset, buf);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        check_range(Op::Write, self.size, offset, data.len() as u64)?;
        self.image.write().write(offset, data);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(Op::Discard, self.size, offset, len)?;
        self.image.write().zero(offset, len);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        check_range(Op::Write, self.size, offset, len)?;
        self.image.write().zero(offset, len);
        Ok(())
    }
}
