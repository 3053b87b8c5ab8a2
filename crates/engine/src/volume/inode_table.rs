//! Inodes from and to the inode tables.

use super::Fs;
use crate::alloc::read_desc;
use crate::error::{Corrupt, Error, Result};
use crate::txn::Txn;
use lanefs_format::{FormatError, Inode, InodeUse};
use lanefs_journal::Buffer;

impl Fs {
    /// The table block that holds `ino`, and the byte of its slot.
    fn inode_buffer(&self, ino: u32) -> Result<(Buffer, std::ops::Range<usize>)> {
        let slot = self.layout.inode_slot(ino).map_err(|_| Corrupt::InodeNumber {
            ino,
            by: "a directory or list",
            count: self.layout.inodes_count(),
        })?;
        let block = read_desc(self, slot.group)?.inode_table + u64::from(slot.table_block);
        let start = slot.offset as usize;
        Ok((self.journal.read(block)?, start..start + usize::from(self.inode_ctx.inode_size)))
    }

    /// Reads an inode, its checksum and rules verified.
    pub(crate) fn read_inode(&self, ino: u32) -> Result<Inode> {
        let (buffer, slot) = self.inode_buffer(ino)?;
        let bytes = buffer.read();
        let slot = bytes.get(slot).unwrap_or_default();
        Ok(Inode::parse(slot, ino, &self.inode_ctx)?)
    }

    /// What the slot of `ino` says of its use. Nothing else of it is checked.
    pub(crate) fn raw_inode_use(&self, ino: u32) -> Result<InodeUse> {
        let (buffer, slot) = self.inode_buffer(ino)?;
        let bytes = buffer.read();
        Ok(InodeUse::of(bytes.get(slot).unwrap_or_default())?)
    }

    /// Writes an inode under a handle. Costs [`credits::INODE`](crate::txn::credits::INODE).
    pub(crate) fn write_inode(&self, txn: &Txn<'_>, ino: u32, inode: &Inode) -> Result<()> {
        let (buffer, slot) = self.inode_buffer(ino)?;
        // On the orphan list, i_dtime is the next inode of the list and belongs to the list.
        let chain = self.orphans.chain(ino);
        let mut bytes = txn.write(&buffer)?;
        let (start, len) = (slot.start, bytes.len());
        let Some(slot) = bytes.get_mut(slot) else {
            return Err(Error::Format(FormatError::Truncated {
                what: "inode table block",
                len,
                need: start,
            }));
        };
        match chain.next() {
            None => inode.encode(slot, ino, &self.inode_ctx)?,
            Some(next) => Inode { dtime: next, ..inode.clone() }.encode(slot, ino, &self.inode_ctx)?,
        }
        Ok(())
    }

    /// Writes the first inode into a slot, over whatever the last one left there.
    pub(crate) fn write_new_inode(&self, txn: &Txn<'_>, ino: u32, inode: &Inode) -> Result<()> {
        let (buffer, slot) = self.inode_buffer(ino)?;
        if let Some(slot) = txn.write(&buffer)?.get_mut(slot) {
            slot.fill(0);
        }
        self.write_inode(txn, ino, inode)
    }

    /// Changes `i_dtime` alone: of an inode on the orphan list it belongs to the list, which
    /// holds its lock.
    pub(crate) fn write_dtime(&self, txn: &Txn<'_>, ino: u32, dtime: u32) -> Result<()> {
        let (buffer, slot) = self.inode_buffer(ino)?;
        let mut bytes = txn.write(&buffer)?;
        let slot = bytes.get_mut(slot).unwrap_or_default();
        let inode = Inode { dtime, ..Inode::parse(slot, ino, &self.inode_ctx)? };
        Ok(inode.encode(slot, ino, &self.inode_ctx)?)
    }
}
