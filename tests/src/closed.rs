//! Volumes that were closed, judged one after the other.

use crate::campaign::check_volume;
use crate::{e2fsck_closed, memory_dir};
use lanefs_device::BlockDevice;
use lanefs_sim::{DumpFile, Image};
use std::sync::Arc;
use tempfile::TempDir;

/// One volume in so many is judged by e2fsck too, which is a process of its own.
const E2FSCK_EVERY: u64 = 8;

/// A judge of closed volumes: `lanefs check` looks at each of them, e2fsck at one in eight.
#[derive(Debug)]
pub struct ClosedVolumes {
    judged: u64,
    dump: DumpFile,
    _dir: TempDir,
}

impl ClosedVolumes {
    /// Returns a judge of volumes that are much like `base`.
    ///
    /// # Panics
    /// If there is no room for a temporary file.
    pub fn like(base: &Image) -> Self {
        let dir = memory_dir();
        let dump = DumpFile::create(dir.path().join("volume"), base).expect("a temporary file");
        Self { judged: 0, dump, _dir: dir }
    }

    /// Judges the volume on `device`. `image` returns the content of the device, and is called for
    /// e2fsck alone.
    ///
    /// # Errors
    /// What is wrong with the volume; a log that the close has left.
    ///
    /// # Panics
    /// If the system has no room for the volume, or no e2fsck.
    pub fn judge(
        &mut self,
        device: Arc<dyn BlockDevice>,
        image: impl FnOnce() -> Image,
    ) -> Result<(), String> {
        check_volume(device)?;
        self.judged += 1;
        if self.judged.is_multiple_of(E2FSCK_EVERY) {
            self.dump.set(&image()).expect("a temporary file");
            e2fsck_closed(self.dump.path())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixed_options, mke2fs};
    use lanefs_sim::OverlayDevice;

    /// A volume whose power was cut is sound behind its log, but was not closed.
    #[test]
    fn a_log_that_was_left_is_told() {
        let dir = memory_dir();
        let path = dir.path().join("volume");
        mke2fs(&path, 8 << 20, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
        let device = Arc::new(OverlayDevice::new(Image::from_bytes(std::fs::read(&path).unwrap())));
        let volume = fixed_options().open_device(Arc::clone(&device) as _).unwrap();
        volume.create_dir("/d").unwrap();
        volume.sync().unwrap();
        let left = Arc::new(OverlayDevice::new(device.image()));
        volume.close().unwrap();
        let mut closed = ClosedVolumes::like(&device.image());
        for _ in 0..E2FSCK_EVERY {
            closed.judge(Arc::clone(&device) as _, || device.image()).unwrap();
        }
        let said = closed.judge(left, || unreachable!()).unwrap_err();
        assert!(said.contains("log"), "{said}");
        // Each rule of the format too: one free block more than there is.
        let mut image = device.image();
        let mut count = [0; 4];
        image.read(1024 + 12, &mut count);
        image.write(1024 + 12, &(u32::from_le_bytes(count) + 1).to_le_bytes());
        assert!(closed.judge(Arc::new(OverlayDevice::new(image)), || unreachable!()).is_err());
    }
}
