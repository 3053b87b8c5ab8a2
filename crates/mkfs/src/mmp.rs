//! The block of multiple mount protection, which says that no host uses the volume.

use crate::plan::Plan;
use crate::{MkfsError, Options};
use lanefs_format::mmp::{EXT4_MMP_MAX_UPDATE_INTERVAL, EXT4_MMP_MIN_CHECK_INTERVAL};
use lanefs_format::{EXT4_MMP_SEQ_CLEAN, Mmp};

impl Plan {
    /// Makes the MMP block in the first free block. It names no host, so that the volume is
    /// reproducible.
    pub(crate) fn make_mmp(&mut self, options: &Options) -> Result<(), MkfsError> {
        let Some((_, default)) = self.superblock.mmp() else { return Ok(()) };
        let interval = match options.mmp_update_interval.unwrap_or(0) {
            0 => default,
            seconds if seconds <= EXT4_MMP_MAX_UPDATE_INTERVAL => seconds,
            seconds => return Err(MkfsError::MmpInterval { seconds, max: EXT4_MMP_MAX_UPDATE_INTERVAL }),
        };
        let block = self.take_block(self.layout.first_data_block(), "the MMP block")?;
        let mmp = Mmp {
            seq: EXT4_MMP_SEQ_CLEAN,
            time: self.now.sec.max(0).unsigned_abs(),
            nodename: Vec::new(),
            bdevname: Vec::new(),
            check_interval: interval.max(EXT4_MMP_MIN_CHECK_INTERVAL),
        };
        let mut bytes = self.zero_block();
        if let Some(head) = bytes.get_mut(..Mmp::LEN) {
            head.copy_from_slice(&mmp.encode(&self.csum));
        }
        self.content.insert(block, bytes);
        self.superblock.set_mmp(Some((block, interval)));
        Ok(())
    }
}
