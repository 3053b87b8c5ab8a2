//! Free space of a volume as zeros, for images that are compressed or copied.

use lanefs::device::{BlockDevice, DeviceError, forward_to};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are looked at at once, and zeroed if one of them is not zero.
const PIECE: u64 = 1 << 20;

/// A device that makes what it is told to discard read as zeros. So [`Volume::trim`] of a volume on
/// it zeroes free blocks: in a file they become holes, and zeros are written where a medium cannot
/// do that. Blocks that are zero already are not written.
///
/// [`Volume::trim`]: lanefs::Volume::trim
///
/// ```
/// use lanefs_archive::Zeroing;
/// use std::sync::Arc;
///
/// # let made = lanefs::device::MemDevice::new(16 << 20);
/// # lanefs::mkfs::format(&made, &Default::default())?;
/// let device = Arc::new(Zeroing::new(Arc::new(made)));
/// let volume = lanefs::OpenOptions::new().write(true).open_device(device.clone())?;
/// volume.write("/secret", &[7; 100_000])?;
/// volume.sync()?;
/// volume.remove_file("/secret")?;
/// volume.sync()?;
/// volume.trim(0..u64::MAX, 0)?;
/// assert!(device.zeroed() >= 100_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Zeroing {
    below: Arc<dyn BlockDevice>,
    zeroed: AtomicU64,
}

impl Zeroing {
    /// Returns such a device on top of another.
    #[must_use]
    pub fn new(below: Arc<dyn BlockDevice>) -> Self {
        Self { below, zeroed: AtomicU64::new(0) }
    }

    /// Returns how many bytes were zeroed, in pieces of up to 1 MiB that had a byte that was not
    /// zero.
    #[must_use]
    pub fn zeroed(&self) -> u64 {
        self.zeroed.load(Ordering::Relaxed)
    }
}

impl BlockDevice for Zeroing {
    forward_to!(below: size read_only alignment sector_size atomic_write owner);
    forward_to!(below: read_at write_at read_batch write_batch flush write_zeroes);

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let mut bytes = vec![0; len.min(PIECE) as usize];
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            let len = (end - at).min(PIECE);
            let piece = &mut bytes[..len as usize];
            self.below.read_at(piece, at)?;
            if piece.iter().any(|byte| *byte != 0) {
                self.below.write_zeroes(at, len)?;
                self.zeroed.fetch_add(len, Ordering::Relaxed);
            }
            at += len;
        }
        Ok(())
    }
}
