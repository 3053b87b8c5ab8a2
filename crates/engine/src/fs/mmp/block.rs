//! The MMP block on its device, read and written past the journal and past the caches of this host.

use super::HostClock;
use crate::error::{MmpError, Result};
use lanefs_device::{AlignedBuf, BlockDevice, RepeatGuard};
use lanefs_format::{Checksummer, FormatError, Mmp, Superblock};
use lanefs_sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// How often a block is read that is no MMP block: another host may be writing it.
const TRIES: u32 = 4;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);
/// Bytes that a medium writes whole, or not at all.
const SECTOR: usize = 512;

/// What the bytes of an MMP block say.
#[derive(Debug)]
pub(super) enum BlockContent {
    Whole(Mmp),
    /// All but the checksum is right. A power cut may tear a write of the block, whose checksum
    /// lies in another sector than the rest: each part is then of a block that was written.
    Torn(Mmp, FormatError),
    Damaged(FormatError),
}

impl BlockContent {
    /// Returns what `bytes` of the block `number` say.
    pub(super) fn new(number: u64, csum: &Checksummer, bytes: &[u8]) -> Self {
        let unchecked = || Mmp::parse(bytes, number, &Checksummer::NONE);
        match Mmp::parse(bytes, number, csum) {
            Ok(mmp) => Self::Whole(mmp),
            Err(why) => match unchecked() {
                Ok(mmp) => Self::Torn(mmp, why),
                Err(_) => Self::Damaged(why),
            },
        }
    }
}

/// The MMP block of a volume.
#[derive(Debug)]
pub(crate) struct MmpBlock {
    pub(super) device: Arc<dyn BlockDevice>,
    /// Its number.
    pub(super) number: u64,
    /// Bytes of a block.
    pub(super) size: usize,
    pub(super) csum: Checksummer,
}

impl MmpBlock {
    /// Returns the MMP block of the volume on `device`, `None` if the volume has none.
    ///
    /// # Errors
    /// [`MmpError::Place`].
    pub(crate) fn of(device: &Arc<dyn BlockDevice>, sb: &Superblock) -> Result<Option<Self>> {
        let Some((number, _)) = sb.mmp() else { return Ok(None) };
        let layout = sb.layout();
        if number <= layout.first_data_block() || layout.check_blocks(number, 1).is_err() {
            return Err(MmpError::Place { block: number, blocks: layout.blocks_count() }.into());
        }
        let (device, size) = (Arc::clone(device), sb.block_size() as usize);
        Ok(Some(Self { device, number, size, csum: sb.checksummer() }))
    }

    /// Returns the device's byte at which the block begins.
    pub(super) fn offset(&self) -> u64 {
        self.number.saturating_mul(self.size as u64)
    }

    /// Reads the bytes of the block.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn read_bytes(&self) -> Result<AlignedBuf> {
        let mut bytes = AlignedBuf::zeroed(self.size);
        self.device.read_shared(&mut bytes, self.offset())?;
        Ok(bytes)
    }

    /// Checks bytes of the block.
    ///
    /// # Errors
    /// Those of [`Mmp::parse`].
    pub(super) fn parse(&self, bytes: &[u8]) -> std::result::Result<Mmp, FormatError> {
        Mmp::parse(bytes, self.number, &self.csum)
    }

    /// Reads the block, and again a few times if it is damaged: another host may have written a
    /// part of it. Returns the bytes, and what they say.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn read_any(&self, clock: &HostClock) -> Result<(AlignedBuf, BlockContent)> {
        let mut tries = 1;
        loop {
            let bytes = self.read_bytes()?;
            let content = BlockContent::new(self.number, &self.csum, &bytes);
            if tries == TRIES || matches!(content, BlockContent::Whole(_)) {
                return Ok((bytes, content));
            }
            clock.sleep(BETWEEN_TRIES);
            tries += 1;
        }
    }

    /// Reads and checks the block as [`read_any`](Self::read_any) does.
    ///
    /// # Errors
    /// The device's; those of [`Mmp::parse`].
    pub(crate) fn read(&self, clock: &HostClock) -> Result<Mmp> {
        match self.read_any(clock)?.1 {
            BlockContent::Whole(mmp) => Ok(mmp),
            BlockContent::Torn(_, why) | BlockContent::Damaged(why) => Err(why.into()),
        }
    }

    /// Writes the block over `before`, durably, for a host without a claim. Returns what a reader
    /// finds, and the bytes.
    ///
    /// A device that loses its connection repeats the write only over `before`, or over parts of
    /// itself: any other block is a claim that another host has made meanwhile. Once the block is
    /// durable there is nothing to repeat, and any host may write it.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn write_over(&self, before: &AlignedBuf, mmp: &Mmp) -> Result<(Mmp, AlignedBuf)> {
        let bytes = self.encode(mmp);
        let (number, csum, was, is) = (self.number, self.csum, before.to_vec(), bytes.to_vec());
        let durable = Arc::new(AtomicBool::new(false));
        let is_durable = Arc::clone(&durable);
        let check = move |now: &[u8]| {
            if is_durable.load(Ordering::Acquire) {
                return Ok(());
            }
            let mut sectors = now.chunks(SECTOR).zip(was.chunks(SECTOR).zip(is.chunks(SECTOR)));
            if sectors.all(|(now, (was, is))| now == was || now == is) {
                return Ok(());
            }
            let why = match BlockContent::new(number, &csum, now) {
                BlockContent::Whole(seen) => MmpError::fenced(&seen),
                BlockContent::Torn(_, why) | BlockContent::Damaged(why) => {
                    MmpError::FencedByDamage { why: why.to_string() }
                }
            };
            Err(why.to_string())
        };
        // Before the write: the device asks on each new connection.
        let (offset, len) = (self.offset(), self.size);
        self.device.guard_repeats(RepeatGuard { offset, len, check: Arc::new(check) });
        self.write_bytes(&bytes)?;
        self.device.flush()?;
        durable.store(true, Ordering::Release);
        Ok((self.parse(&bytes)?, bytes))
    }

    /// Writes the block, for a holder of the volume or where none can be:
    /// [`write_over`](Self::write_over) is for all others. Volatile until a flush. Returns what a
    /// reader finds: names are cut.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn write(&self, mmp: &Mmp) -> Result<(Mmp, AlignedBuf)> {
        let bytes = self.encode(mmp);
        self.write_bytes(&bytes)?;
        Ok((self.parse(&bytes)?, bytes))
    }

    /// Returns the bytes of the block.
    pub(super) fn encode(&self, mmp: &Mmp) -> AlignedBuf {
        let mut bytes = AlignedBuf::zeroed(self.size);
        bytes[..Mmp::LEN].copy_from_slice(&mmp.encode(&self.csum));
        bytes
    }

    /// Writes these bytes, of a whole block in aligned memory.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn write_bytes(&self, bytes: &AlignedBuf) -> Result<()> {
        Ok(self.device.write_shared(bytes, self.offset())?)
    }
}
