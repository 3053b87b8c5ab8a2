//! Raw writes to the blocks of a volume's files, while the volume is open: the limit of the same
//! disk blocks.
//!
//! Two equal files on one disk differed by a third in the speed of random writes. So measurements
//! that a goal compares to the percent use the same blocks. This is only for files whose block map
//! does not change: the raw writes overwrite their content.

use super::Outcome;
use lanefs::{FiemapExtent, Volume};
use lanefs_lab::store::{Handle, name};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

struct Ground {
    backing: Arc<File>,
    extents: Vec<FiemapExtent>,
}

/// The blocks of the first `count` files of a volume, in `raw`: the file that the volume is in, or
/// a loop device on it.
///
/// # Errors
/// The errors of the maps.
pub fn ground(raw: File, volume: &Volume, count: usize, size: u64) -> Outcome<Vec<Box<dyn Handle>>> {
    let raw = Arc::new(raw);
    (0..count)
        .map(|number| {
            let file = volume.open_options().read(true).open(format!("/{}", name(number)))?;
            let extents = file.fiemap(0..size, usize::MAX)?;
            Ok(Box::new(Ground { backing: Arc::clone(&raw), extents }) as Box<dyn Handle>)
        })
        .collect()
}

impl Ground {
    /// The bytes from `at` on that lie in one extent: where in the backing file, and how many of
    /// `len`.
    fn place(&self, at: u64, len: usize) -> io::Result<(u64, usize)> {
        let behind = self.extents.partition_point(|extent| extent.logical <= at);
        let extent = behind
            .checked_sub(1)
            .map(|i| &self.extents[i])
            .filter(|e| at < e.logical + e.len && !e.unwritten);
        let extent = extent.ok_or_else(|| io::Error::other(format!("byte {at} has no block")))?;
        let rest = extent.logical + extent.len - at;
        Ok((extent.physical + (at - extent.logical), len.min(usize::try_from(rest).unwrap_or(len))))
    }
}

impl Handle for Ground {
    fn write(&self, mut at: u64, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let (place, len) = self.place(at, data.len())?;
            self.backing.write_all_at(&data[..len], place)?;
            (at, data) = (at + len as u64, &data[len..]);
        }
        Ok(())
    }

    fn read(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.backing.sync_data()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.backing.sync_data()
    }
}
