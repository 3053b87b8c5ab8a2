//! Zones: the fixed metadata of a volume, which no file may own.
//!
//! [`Survey::read`] reads all group descriptors in one pass when the volume is opened. It keeps a
//! table of superblock copies, descriptors, bitmaps, inode tables, log and MMP block, sorted by
//! place. The allocator removes these from the free blocks of each group ([`Zones::within`]), and
//! each pointer of a file is checked against them ([`Zones::check`]). Adjacent structures of one
//! kind are one entry.
//!
//! Invariant: on a volume that is open for writing the table is complete and no two zones overlap.
//! A volume that breaks this is refused, as the kernel refuses it. If it is open for reading only,
//! it is read as far as its descriptors are valid.

use super::alloc::Free;
use crate::error::{Corrupt, Result, Zone};
use lanefs_device::{AlignedBuf, BlockDevice};
use lanefs_format::{GroupDesc, Layout, Superblock, bitmap};
use lanefs_journal::LogConfig;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of descriptors that are read at a time.
const CHUNK: usize = 256 << 10;

/// Structures of one kind, of one group or of several adjacent ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ZoneEntry {
    start: u64,
    blocks: u32,
    /// The first one.
    zone: Zone,
    /// Blocks of each.
    each: u32,
}

impl ZoneEntry {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.blocks.into())
    }

    /// Returns the structure that `block` belongs to.
    fn zone_at(&self, block: u64) -> Zone {
        let nth = block.saturating_sub(self.start) / u64::from(self.each.max(1));
        nth_after(self.zone, nth as u32)
    }

    /// Appends the structure of the next group, if it lies right behind.
    fn extend(&mut self, next: &ZoneEntry) -> bool {
        let nth = self.blocks / self.each.max(1);
        let follows = self.end() == next.start
            && self.each == next.each
            && nth_after(self.zone, nth) == next.zone
            && self.blocks.is_multiple_of(self.each.max(1));
        match self.blocks.checked_add(next.blocks).filter(|_| follows) {
            Some(blocks) => {
                self.blocks = blocks;
                true
            }
            None => false,
        }
    }
}

fn nth_after(zone: Zone, n: u32) -> Zone {
    match zone {
        Zone::Super(group) => Zone::Super(group.saturating_add(n)),
        Zone::BlockBitmap(group) => Zone::BlockBitmap(group.saturating_add(n)),
        Zone::InodeBitmap(group) => Zone::InodeBitmap(group.saturating_add(n)),
        Zone::InodeTable(group) => Zone::InodeTable(group.saturating_add(n)),
        Zone::Journal => Zone::Journal,
        Zone::Mmp => Zone::Mmp,
    }
}

/// All fixed metadata of a volume. See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Zones {
    /// Sorted, without overlap.
    entries: Box<[ZoneEntry]>,
}

impl Zones {
    /// Checks that a file can own the `len` blocks from `start` on.
    ///
    /// # Errors
    /// [`Corrupt::BlockOutside`], [`Corrupt::SystemZone`], [`Corrupt::JournalBlock`].
    pub(super) fn check(&self, layout: &Layout, start: u64, len: u64) -> Result<()> {
        if layout.check_blocks(start, len.max(1)).is_err() {
            return Err(Corrupt::BlockOutside { block: start, blocks: layout.blocks_count() }.into());
        }
        match self.within(start..start + len.max(1)).next() {
            None => Ok(()),
            Some((blocks, Zone::Journal)) => Err(Corrupt::JournalBlock { block: blocks.start }.into()),
            Some((blocks, zone)) => Err(Corrupt::SystemZone { block: blocks.start, zone }.into()),
        }
    }

    /// Returns the parts of `blocks` that are fixed metadata, in order, each with the structure it
    /// begins in.
    pub(crate) fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = (Range<u64>, Zone)> + '_ {
        let first = self.entries.partition_point(|e| e.end() <= blocks.start);
        let rest = self.entries.get(first..).unwrap_or_default();
        rest.iter().take_while(move |e| e.start < blocks.end).map(move |e| {
            let start = e.start.max(blocks.start);
            (start..e.end().min(blocks.end), e.zone_at(start))
        })
    }

    /// Returns the fixed metadata that lies in `group`, as bits of its bitmap.
    fn bits_in(&self, layout: &Layout, group: u32) -> Result<impl Iterator<Item = Range<usize>>> {
        let first = layout.group_first_block(group)?;
        let end = first + u64::from(layout.group_blocks(group)?);
        let bit = move |block: u64| (block - first) as usize;
        Ok(self.within(first..end).map(move |(run, _)| bit(run.start)..bit(run.end)))
    }

    /// Returns the bitmap of a group in which only fixed metadata is in use: the group's own, and
    /// that of other groups that lies in it. The bits past its end are set too.
    ///
    /// # Errors
    /// A group that the volume does not have.
    pub(super) fn initial_bitmap(&self, layout: &Layout, group: u32) -> Result<Vec<u8>> {
        let mut map = vec![0; layout.block_size() as usize];
        for bits in self.bits_in(layout, group)? {
            bitmap::set(&mut map, bits)?;
        }
        let blocks = layout.group_blocks(group)? as usize;
        bitmap::set(&mut map, blocks..layout.block_size() as usize * 8)?;
        Ok(map)
    }

    /// Checks that `map`, the bitmap of `group`, marks all fixed metadata in the group as used.
    ///
    /// # Errors
    /// [`Corrupt::BitmapMissesMetadata`].
    pub(super) fn check_bitmap(&self, layout: &Layout, group: u32, map: &[u8]) -> Result<()> {
        let first = layout.group_first_block(group)?;
        for bits in self.bits_in(layout, group)? {
            if let Some(bit) = bitmap::next_zero(map, bits) {
                let block = first + bit as u64;
                if let Some((_, zone)) = self.within(block..block + 1).next() {
                    return Err(Corrupt::BitmapMissesMetadata { group, block, zone }.into());
                }
            }
        }
        Ok(())
    }

    /// Returns the zones of a volume that has grown to `layout` and `groups`: with the log and the
    /// MMP block of `before`, which is returned if nothing else has changed either.
    ///
    /// # Errors
    /// Zones that overlap.
    pub(super) fn grown(before: &Arc<Self>, layout: &Layout, groups: &[GroupDesc]) -> Result<Arc<Self>> {
        let mut table = Table::default();
        for (group, desc) in (0..layout.group_count()).zip(groups) {
            table.add_group(layout, group, desc);
        }
        for group in 0..layout.group_count() {
            table.entries.extend(base(layout, group, true)?);
        }
        let kept = |entry: &&ZoneEntry| matches!(entry.zone, Zone::Journal | Zone::Mmp);
        table.entries.extend(before.entries.iter().filter(kept));
        let zones = Self::new(table.entries, true)?;
        Ok(if zones.entries == before.entries { Arc::clone(before) } else { Arc::new(zones) })
    }

    /// Sorts the entries. If two overlap, that is an error if `strict`; else the earlier one wins.
    fn new(mut entries: Vec<ZoneEntry>, strict: bool) -> Result<Self> {
        entries.sort_by_key(|e| e.start);
        let mut last: Option<ZoneEntry> = None;
        let mut overlap = None;
        entries.retain_mut(|entry| {
            let taken = last.as_ref().map_or(0, ZoneEntry::end);
            if let Some(last) = last.filter(|_| entry.start < taken) {
                let (first, second) = (last.zone_at(entry.start), entry.zone);
                overlap.get_or_insert(Corrupt::ZonesOverlap { block: entry.start, first, second });
                entry.blocks = entry.end().saturating_sub(taken) as u32;
                entry.start = taken;
            }
            last = Some(*entry).filter(|e| e.blocks > 0).or(last);
            entry.blocks > 0
        });
        match overlap.filter(|_| strict) {
            Some(overlap) => Err(overlap.into()),
            None => Ok(Self { entries: entries.into() }),
        }
    }
}

/// Returns the superblock and the descriptors in a group. For a group whose copy lies outside of
/// the volume it returns `None` or, if `strict`, an error.
fn base(layout: &Layout, group: u32, strict: bool) -> Result<Option<ZoneEntry>> {
    let (start, len) = (layout.group_first_block(group)?, layout.group_base_meta(group));
    let inside = layout.check_blocks(start, len.into());
    if len == 0 || !strict && inside.is_err() {
        return Ok(None);
    }
    inside?;
    Ok(Some(ZoneEntry { start, blocks: len, zone: Zone::Super(group), each: len }))
}

/// The data that all group descriptors together give.
#[derive(Debug, Clone, Default)]
pub(crate) struct Survey {
    pub(super) zones: Arc<Zones>,
    pub(super) free: Free,
}

impl Survey {
    /// Reads all descriptors of the volume that `sb` describes.
    ///
    /// # Errors
    /// If `strict`: a damaged descriptor, zones that overlap ([`Corrupt::ZonesOverlap`]), a failed
    /// read.
    pub(crate) fn read(
        device: &dyn BlockDevice,
        sb: &Superblock,
        log: Option<&LogConfig>,
        strict: bool,
    ) -> Result<Self> {
        let (layout, csum) = (sb.layout(), sb.checksummer());
        let mut table = Table::default();
        let mut free = Free::default();
        let base = |group| base(&layout, group, strict);
        let mut bases: Vec<ZoneEntry> = base(0)?.into_iter().collect();
        each_chunk(device, &layout, |first, bytes| {
            let size = usize::from(layout.desc_size());
            let per_block = layout.descs_per_block() as usize;
            let slots = bytes.chunks_exact(layout.block_size() as usize);
            let slots = slots.flat_map(|block| block.chunks_exact(size).take(per_block));
            for (group, slot) in (first..layout.group_count()).zip(slots) {
                let desc = match GroupDesc::parse(slot, group, &layout, &csum) {
                    Err(_) if !strict => continue,
                    desc => desc?,
                };
                table.add_group(&layout, group, &desc);
                // Of groups with a descriptor: what a volume claims alone takes no memory.
                if group > 0 {
                    bases.extend(base(group)?);
                }
                free.add(group, &desc);
            }
            Ok(())
        })
        .or_else(|e| if strict { Err(e) } else { Ok(()) })?;
        table.entries.append(&mut bases);
        let runs = log.map(|log| log.runs.as_slice()).unwrap_or_default();
        let log = runs.iter().map(|r| ZoneEntry {
            start: r.physical,
            blocks: r.len,
            zone: Zone::Journal,
            each: r.len,
        });
        table.entries.extend(log);
        table.entries.extend(mmp(sb));
        Ok(Self { zones: Arc::new(Zones::new(table.entries, strict)?), free })
    }
}

/// The entries while they are collected.
#[derive(Debug, Default)]
struct Table {
    entries: Vec<ZoneEntry>,
    /// The last entry of each kind that a descriptor has.
    last: [Option<usize>; 3],
}

impl Table {
    fn add_group(&mut self, layout: &Layout, group: u32, desc: &GroupDesc) {
        let parts = [
            (desc.block_bitmap, 1, Zone::BlockBitmap(group)),
            (desc.inode_bitmap, 1, Zone::InodeBitmap(group)),
            (desc.inode_table, layout.inode_table_blocks(), Zone::InodeTable(group)),
        ];
        for (last, (start, blocks, zone)) in self.last.iter_mut().zip(parts) {
            let entry = ZoneEntry { start, blocks, zone, each: blocks };
            let before = last.and_then(|at| self.entries.get_mut(at));
            if !before.is_some_and(|before| before.extend(&entry)) {
                *last = Some(self.entries.len());
                self.entries.push(entry);
            }
        }
    }
}

/// Returns the MMP block of a volume that has one. What the superblock says is checked by the claim
/// of the volume.
fn mmp(sb: &Superblock) -> Option<ZoneEntry> {
    let (start, _) = sb.mmp()?;
    sb.layout().check_blocks(start, 1).ok()?;
    Some(ZoneEntry { start, blocks: 1, zone: Zone::Mmp, each: 1 })
}

/// Calls `f` with runs of descriptor blocks and the first group that each describes.
fn each_chunk(
    device: &dyn BlockDevice,
    layout: &Layout,
    mut f: impl FnMut(u32, &[u8]) -> Result<()>,
) -> Result<()> {
    let size = layout.block_size() as usize;
    let count = layout.desc_blocks();
    let mut buf = AlignedBuf::zeroed((count as usize).saturating_mul(size).clamp(size, CHUNK.max(size)));
    let most = (buf.len() / size) as u32;
    let mut n = 0;
    while n < count {
        let start = layout.desc_block(n)?;
        let mut len = 1;
        while len < most.min(count - n) && layout.desc_block(n + len)? == start + u64::from(len) {
            len += 1;
        }
        let Some(bytes) = buf.get_mut(..len as usize * size) else { break };
        device.read_at(bytes, start.saturating_mul(size as u64))?;
        f(n.saturating_mul(layout.descs_per_block()), bytes)?;
        n += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(start: u64, blocks: u32, zone: Zone) -> ZoneEntry {
        ZoneEntry { start, blocks, zone, each: blocks }
    }

    #[test]
    fn tables_that_follow_each_other_are_one_entry() {
        let mut tables = entry(100, 10, Zone::InodeTable(4));
        assert!(tables.extend(&entry(110, 10, Zone::InodeTable(5))));
        assert!(!tables.extend(&entry(120, 10, Zone::InodeTable(7))), "group 6 is missing");
        assert!(!tables.extend(&entry(121, 10, Zone::InodeTable(6))), "there is a gap");
        let zones = Zones::new(vec![tables, entry(90, 3, Zone::Super(2))], true).unwrap();
        let found: Vec<_> = zones.within(92..118).collect();
        assert_eq!(found, [(92..93, Zone::Super(2)), (100..118, Zone::InodeTable(4))]);
        assert_eq!(zones.within(115..116).next(), Some((115..116, Zone::InodeTable(5))));
        assert_eq!(zones.within(93..100).next(), None);
    }

    #[test]
    fn an_overlap_is_refused_or_belongs_to_the_first() {
        let entries = || {
            vec![
                entry(10, 20, Zone::InodeTable(0)),
                entry(25, 10, Zone::Journal),
                entry(12, 1, Zone::Super(0)),
            ]
        };
        let e = Zones::new(entries(), true).unwrap_err().to_string();
        assert_eq!(
            e,
            "block 12 is both the inode table of group 0 and the superblock or the descriptors in group 0"
        );
        let zones = Zones::new(entries(), false).unwrap();
        let found: Vec<_> = zones.within(0..100).collect();
        assert_eq!(found, [(10..30, Zone::InodeTable(0)), (30..35, Zone::Journal)]);
    }
}
