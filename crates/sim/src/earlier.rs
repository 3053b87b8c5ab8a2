//! The earlier content of sectors: what they held before their last write.

use lanefs_device::{BlockDevice, Result};
use std::collections::HashMap;

const SECTOR: u64 = 512;

/// The content of each sector before its last write.
#[derive(Debug, Default)]
pub(crate) struct Earlier(HashMap<u64, [u8; SECTOR as usize]>);

impl Earlier {
    /// Notes what `device` holds in each sector that begins in `len` bytes at `offset`, which are
    /// about to be written.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn note(&mut self, device: &impl BlockDevice, offset: u64, len: u64) -> Result<()> {
        let end = (offset + len).min(device.size());
        for number in offset / SECTOR..end.div_ceil(SECTOR) {
            let mut sector = [0; SECTOR as usize];
            let there = SECTOR.min(device.size() - number * SECTOR) as usize;
            device.read_at(&mut sector[..there], number * SECTOR)?;
            self.0.insert(number, sector);
        }
        Ok(())
    }

    /// Puts the earlier content of whole sectors into `buf`, which was read at `offset`.
    pub(crate) fn put(&self, offset: u64, buf: &mut [u8]) {
        let end = offset + buf.len() as u64;
        for number in offset.div_ceil(SECTOR)..end / SECTOR {
            if let Some(sector) = self.0.get(&number) {
                let at = (number * SECTOR - offset) as usize;
                buf[at..at + SECTOR as usize].copy_from_slice(sector);
            }
        }
    }
}
