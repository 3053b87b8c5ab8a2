//! Puts a plan on the device.
//!
//! The order is: zeros, blocks with content, a flush, and only then the primary superblock. So
//! after an interruption neither the new volume nor the old one can be opened.

use crate::plan::Plan;
use crate::{MkfsError, Options};
use lanefs_device::{AlignedBuf, BlockDevice, DeviceError};
use lanefs_format::{GroupFlags, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State, Superblock, bitmap};
use std::ops::Range;

/// Bytes at the start and at the end of a device that may hold signatures of other file systems and
/// RAID.
const SIGNATURES: u64 = 64 * 1024;

/// Writes the volume, waits until it is on the medium, and gives its superblock.
pub(crate) fn write(
    plan: &Plan,
    device: &dyn BlockDevice,
    options: &Options,
) -> Result<Superblock, MkfsError> {
    let mut w = Writer { plan, out: Sink::new(device), descs: Vec::new() };
    w.zeros(options.keep)?;
    w.descs = w.bitmaps()?;
    w.inodes()?;
    w.content()?;
    w.descriptors()?;
    let mut superblock = plan.superblock.clone();
    superblock.set_kbytes_written(w.out.bytes.div_ceil(1024));
    w.backups(superblock.clone())?;
    w.out.flush()?;
    device.flush()?;
    let bytes = superblock.encode();
    w.out.put(SUPERBLOCK_OFFSET, &bytes)?;
    w.out.flush()?;
    device.flush()?;
    Ok(Superblock::parse(&bytes)?)
}

struct Writer<'a> {
    plan: &'a Plan,
    out: Sink<'a>,
    /// The table of descriptors, as every copy has it.
    descs: Vec<u8>,
}

impl Writer<'_> {
    fn offset(&self, block: u64) -> u64 {
        block * u64::from(self.plan.layout.block_size())
    }

    fn put(&mut self, block: u64, bytes: &[u8]) -> Result<(), MkfsError> {
        Ok(self.out.put(self.offset(block), bytes)?)
    }

    /// Zeroes the ends of the volume, every inode table and the journal.
    fn zeros(&mut self, keep: bool) -> Result<(), MkfsError> {
        let (plan, device) = (self.plan, self.out.device);
        let size = self.offset(plan.layout.blocks_count());
        let mut head = AlignedBuf::zeroed(SIGNATURES.min(size) as usize);
        device.read_at(&mut head, 0)?;
        if head.iter().any(|&b| b != 0) {
            // Not even a part of the new volume may be there together with the old superblock.
            device.write_zeroes(0, head.len() as u64)?;
            device.flush()?;
        }
        if !keep {
            device.discard(0, size)?;
        }
        device.write_zeroes(0, head.len() as u64)?;
        let tail = size.saturating_sub(SIGNATURES);
        device.write_zeroes(tail, size - tail)?;

        let table = u64::from(plan.layout.inode_table_blocks());
        let tables = plan.groups.iter().map(|d| d.inode_table..d.inode_table + table);
        let mut run: Range<u64> = 0..0;
        for next in tables.chain(plan.zero.iter().cloned()) {
            if next.start == run.end {
                run.end = next.end;
            } else {
                device.write_zeroes(self.offset(run.start), self.offset(run.end - run.start))?;
                run = next;
            }
        }
        device.write_zeroes(self.offset(run.start), self.offset(run.end - run.start))?;
        Ok(())
    }

    /// Writes the bitmaps that do not follow from their group's flags, and makes the table of
    /// descriptors, which hold their checksums.
    fn bitmaps(&mut self) -> Result<Vec<u8>, MkfsError> {
        let layout = &self.plan.layout;
        let mut groups = self.plan.groups.clone();
        let mut map = self.plan.zero_block();
        let bits = map.len() * 8;
        for (group, desc) in (0..).zip(&mut groups) {
            if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
                continue;
            }
            let first = layout.group_first_block(group)?;
            let blocks = layout.group_blocks(group)?;
            map.fill(0);
            bitmap::set(&mut map, blocks as usize..bits)?;
            for run in self.plan.space.taken(first..first + u64::from(blocks)) {
                bitmap::set(&mut map, (run.start - first) as usize..(run.end - first) as usize)?;
            }
            desc.sum_block_bitmap(&map, layout, &self.plan.csum)?;
            self.put(desc.block_bitmap, &map)?;
        }
        let per_group = layout.inodes_per_group() as usize;
        for (group, desc) in (0..).zip(&mut groups) {
            if desc.flags.contains(GroupFlags::INODE_UNINIT) {
                continue;
            }
            map.fill(0);
            bitmap::set(&mut map, per_group..bits)?;
            let first = layout.ino(group, 0)?;
            let last = layout.ino(group, layout.inodes_per_group() - 1)?;
            for (ino, _) in self.plan.inodes.range(first..=last) {
                let index = (ino - first) as usize;
                bitmap::set(&mut map, index..index + 1)?;
            }
            desc.sum_inode_bitmap(&map, layout, &self.plan.csum)?;
            self.put(desc.inode_bitmap, &map)?;
        }
        let size = usize::from(layout.desc_size());
        let per_block = layout.descs_per_block() as usize;
        let block_size = layout.block_size() as usize;
        let mut bytes = vec![0; layout.desc_blocks() as usize * block_size];
        for (n, desc) in groups.iter().enumerate() {
            let at = n / per_block * block_size + n % per_block * size;
            desc.encode(&mut bytes[at..], n as u32, layout, &self.plan.csum)?;
        }
        Ok(bytes)
    }

    /// Writes the inodes: all lie in the first blocks of a table or two.
    fn inodes(&mut self) -> Result<(), MkfsError> {
        let layout = &self.plan.layout;
        let (mut block, mut bytes) = (0, self.plan.zero_block());
        for (&ino, inode) in &self.plan.inodes {
            let slot = layout.inode_slot(ino)?;
            let table = self.plan.groups.get(slot.group as usize).map_or(0, |d| d.inode_table);
            let here = table + u64::from(slot.table_block);
            if here != block {
                if block != 0 {
                    self.put(block, &bytes)?;
                }
                block = here;
                bytes.fill(0);
            }
            let at = slot.offset as usize;
            inode.encode_new(&mut bytes[at..], &self.plan.ctx)?;
        }
        self.put(block, &bytes)
    }

    fn content(&mut self) -> Result<(), MkfsError> {
        let plan = self.plan;
        plan.content.iter().try_for_each(|(&block, bytes)| self.put(block, bytes))
    }

    /// Writes the descriptors and their copies.
    fn descriptors(&mut self) -> Result<(), MkfsError> {
        let layout = &self.plan.layout;
        let descs = std::mem::take(&mut self.descs);
        let (per_block, block_size) = (layout.descs_per_block(), layout.block_size() as usize);
        for group in 0..layout.group_count() {
            let count = layout.group_desc_blocks(group) as usize;
            if count == 0 {
                continue;
            }
            let at = match layout.super_location(group) {
                Some(block) => block + 1,
                None => layout.group_first_block(group)?,
            };
            // With meta_bg a group holds the one block that its own descriptor is in.
            let meta_bg = self.plan.superblock.has_in(lanefs_format::Incompat::META_BG);
            let first = if meta_bg { (group / per_block) as usize } else { 0 };
            self.put(at, &descs[first * block_size..(first + count) * block_size])?;
        }
        Ok(())
    }

    fn backups(&mut self, mut superblock: Superblock) -> Result<(), MkfsError> {
        let plan = self.plan;
        // A backup is not marked clean: before a program uses one, it should check the volume.
        superblock.set_state(superblock.state() - State::VALID_FS);
        for group in 1..plan.layout.group_count() {
            if let Some(block) = plan.layout.super_location(group) {
                let mut bytes = self.plan.zero_block();
                let backup = superblock.encode_backup(group);
                if let Some(head) = bytes.get_mut(..SUPERBLOCK_SIZE) {
                    head.copy_from_slice(&backup);
                }
                self.put(block, &bytes)?;
            }
        }
        Ok(())
    }
}

/// Gathers writes that lie one behind the other, and keeps to the device's alignment: where a
/// run ends inside of a unit, the rest of the unit is read first.
struct Sink<'a> {
    device: &'a dyn BlockDevice,
    align: u64,
    buf: AlignedBuf,
    /// Byte on the device where the buffer starts: a multiple of the alignment.
    start: u64,
    len: usize,
    /// Bytes that were put so far.
    bytes: u64,
}

impl<'a> Sink<'a> {
    const ROOM: usize = 1 << 20;

    fn new(device: &'a dyn BlockDevice) -> Self {
        let align = device.alignment().max(1) as u64;
        Self { device, align, buf: AlignedBuf::zeroed(Self::ROOM), start: 0, len: 0, bytes: 0 }
    }

    fn put(&mut self, mut offset: u64, mut bytes: &[u8]) -> Result<(), DeviceError> {
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.len == Self::ROOM || self.start + self.len as u64 != offset {
                self.flush()?;
                self.begin(offset)?;
            }
            let n = bytes.len().min(Self::ROOM - self.len);
            let (now, later) = bytes.split_at(n);
            self.buf[self.len..self.len + n].copy_from_slice(now);
            self.len += n;
            offset += n as u64;
            bytes = later;
        }
        Ok(())
    }

    fn begin(&mut self, offset: u64) -> Result<(), DeviceError> {
        let head = offset % self.align;
        self.start = offset - head;
        self.len = head as usize;
        if head > 0 {
            self.device.read_at(&mut self.buf[..self.align as usize], self.start)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        if self.len == 0 {
            return Ok(());
        }
        let unit = self.align as usize;
        let over = self.len % unit;
        if over > 0 {
            let mut last = AlignedBuf::zeroed(unit);
            let at = self.len - over;
            self.device.read_at(&mut last, self.start + at as u64)?;
            self.buf[self.len..at + unit].copy_from_slice(&last[over..]);
            self.len = at + unit;
        }
        self.device.write_at(&self.buf[..self.len], self.start)?;
        self.len = 0;
        Ok(())
    }
}
