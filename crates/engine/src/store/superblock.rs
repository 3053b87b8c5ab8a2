//! The superblock: read before anything else is known, changed under a handle while the volume is
//! open.

use super::txn::{Txn, credits};
use super::{Store, torn};
use crate::error::{Error, Result};
use lanefs_device::{AlignedBuf, BlockDevice};
use lanefs_format::{FormatError, Superblock};
use lanefs_journal::Buffer;
use lanefs_sync::order::{Level, Ordered};

/// Copies of the superblock that one handle changes.
const COPIES: usize = 32;

/// Reads and checks the superblock. [Mends](torn::mend) a torn one.
pub(crate) fn read_super(device: &dyn BlockDevice) -> Result<Superblock> {
    // A whole aligned block, as a direct device needs it.
    let mut bytes = AlignedBuf::zeroed(4096);
    if device.size() < 4096 {
        let (size, magic) = (device.size(), "too small to hold a superblock");
        return Err(Error::NotVolume { size, rule: magic });
    }
    device.read_at(&mut bytes, 0)?;
    let bytes = &bytes[1024..2048];
    let sb = match Superblock::parse(bytes) {
        Err(e @ FormatError::SuperblockChecksum { .. }) => torn::mend(device, bytes)?.ok_or(e)?,
        sb => sb?,
    };
    sb.check_device(device.size())?;
    Ok(sb)
}

/// Writes the superblock past the journal, as it is: only while the journal holds nothing.
pub(crate) fn write_super(device: &dyn BlockDevice, sb: &Superblock) -> Result<()> {
    // An alignment is never larger than a block, so the range holds bytes of this block only.
    let size = device.alignment().max(1024);
    let start = 1024 / size * size;
    let mut bytes = AlignedBuf::zeroed(size);
    if size > 1024 {
        device.read_at(&mut bytes, start as u64)?;
    }
    bytes[1024 - start..2048 - start].copy_from_slice(&sb.encode());
    Ok(device.write_at(&bytes, start as u64)?)
}

impl Store {
    /// Changes the superblock under a handle. Its block is held in memory from the moment when the
    /// volume is opened for writing, so this does no I/O.
    pub(crate) fn write_super(&self, txn: &Txn<'_>, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let buffer = match self.super_buffer.get() {
            Some(buffer) => buffer,
            None => &self.read_super_buffer()?,
        };
        let offset = if self.block_size == 1024 { 0 } else { 1024 };
        let mut sb = Ordered::take(Level::Super, 0, || self.sb.lock());
        let mut bytes = txn.write(buffer)?;
        change(&mut sb);
        if let Some(slot) = bytes.get_mut(offset..offset + 1024) {
            slot.copy_from_slice(&sb.encode());
        }
        Ok(())
    }

    /// Changes the superblock and its copies, from that in group `from` on, in as many transactions
    /// as it takes. Leaves a copy alone that is not one of `before`.
    ///
    /// # Errors
    /// The device's, the journal's.
    pub(crate) fn write_supers(
        &self,
        before: &Superblock,
        from: u32,
        change: impl Fn(&mut Superblock) + Copy,
    ) -> Result<()> {
        for groups in self.super_groups(from).chunks(COPIES) {
            // A copy that cannot be read fails the call before its first change, and so aborts no
            // journal.
            let _held = self.hold_copies(groups)?;
            self.transact(credits::SUPER * COPIES as u32, |txn| {
                groups.iter().try_for_each(|group| match group {
                    0 => txn.store().write_super(txn, change),
                    group => txn.store().write_backup(txn, (*group, before), change),
                })
            })?;
        }
        Ok(())
    }

    /// Reads the superblock and its first [`COPIES`] copies. While the result is held, changing
    /// them does no I/O.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn hold_supers(&self) -> Result<impl Sized + use<>> {
        let groups = self.super_groups(0);
        self.hold_copies(groups.get(..=COPIES).unwrap_or(&groups))
    }

    /// Returns the groups from `from` on that have the superblock or a copy.
    fn super_groups(&self, from: u32) -> Vec<u32> {
        let layout = self.layout();
        (from..layout.group_count()).filter(|group| layout.has_super(*group)).collect()
    }

    fn hold_copies(&self, groups: &[u32]) -> Result<Vec<Buffer>> {
        let blocks = groups.iter().filter_map(|group| self.layout().super_location(*group));
        blocks.map(|block| Ok(self.journal.read(block)?)).collect()
    }

    /// Changes the superblock's copy in `group` under a handle. Leaves a copy alone that is not one
    /// of `before`.
    ///
    /// # Errors
    /// The device's, the journal's.
    pub(crate) fn write_backup(
        &self,
        txn: &Txn<'_>,
        (group, before): (u32, &Superblock),
        change: impl FnOnce(&mut Superblock),
    ) -> Result<()> {
        let Some(block) = self.layout().super_location(group) else { return Ok(()) };
        let buffer = self.journal.read(block)?;
        let copy = Superblock::parse(&buffer.read()).ok();
        let Some(mut copy) = copy.filter(|copy| copy.same_volume(before)) else { return Ok(()) };
        change(&mut copy);
        if let Some(slot) = txn.write(&buffer)?.get_mut(..1024) {
            slot.copy_from_slice(&copy.encode_backup(group));
        }
        Ok(())
    }

    /// Holds the superblock's block in memory from now on.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn hold_super(&self) -> Result<()> {
        let _ = self.super_buffer.set(self.read_super_buffer()?);
        Ok(())
    }

    fn read_super_buffer(&self) -> Result<Buffer> {
        Ok(self.journal.read(u64::from(self.block_size == 1024))?)
    }
}
