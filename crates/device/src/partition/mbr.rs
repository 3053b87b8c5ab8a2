//! MBR: four entries in the first sector, and a chain of logical partitions in an extended one.
//!
//! Numbers are those of Linux: 1 to 4 for the entries of the first sector, from 5 on for logical
//! partitions in the order of the chain. A link without a partition has no number.

use super::{Partition, PartitionType, at_u32};
use crate::{BlockDevice, Result};
use std::fmt::Write;

/// The bytes of a table, at the start of a sector of any size.
const SECTOR: u64 = 512;
/// The number of the last partition, as in Linux.
const LAST: u32 = 255;
/// So many links without a partition end a chain, as in Linux: it may lead into itself.
const MOST_EMPTY: u32 = 100;

/// The first sector of a disk, if it is an MBR.
pub(super) struct Mbr {
    entries: [MbrEntry; 4],
    disk: u32,
    /// The unit of its numbers.
    sector: u64,
}

/// An entry, with its sectors as numbers.
#[derive(Clone, Copy)]
struct MbrEntry {
    kind: u8,
    start: u64,
    sectors: u64,
}

impl MbrEntry {
    /// Returns whether it has sectors. In a link of a chain this is enough for a number.
    fn has_sectors(self) -> bool {
        self.sectors != 0
    }

    fn is_used(self) -> bool {
        self.kind != 0 && self.has_sectors()
    }

    fn is_extended(self) -> bool {
        self.is_used() && matches!(self.kind, 0x05 | 0x0F | 0x85)
    }
}

impl Mbr {
    /// Reads the first sector. Returns `None` if it has no table: the boot sector of a file system
    /// ends with the same signature, so the first byte of each entry must be one of an entry.
    pub(super) fn read(device: &dyn BlockDevice) -> Result<Option<Self>> {
        if device.size() < SECTOR {
            return Ok(None);
        }
        let mut bytes = [0; SECTOR as usize];
        device.read_at(&mut bytes, 0)?;
        let plausible = (446..510).step_by(16).all(|at| bytes[at] & 0x7F == 0);
        let entries = entries(&bytes).filter(|entries| plausible && entries.iter().any(|e| e.is_used()));
        Ok(entries.map(|entries| Self { entries, disk: at_u32(&bytes, 440), sector: device.sector_size() }))
    }

    /// Returns whether it says that the disk has a GPT.
    pub(super) fn is_protective(&self) -> bool {
        self.entries.iter().any(|entry| entry.is_used() && entry.kind == 0xEE)
    }

    pub(super) fn disk(&self) -> String {
        format!("{:08x}", self.disk)
    }

    pub(super) fn partitions(&self, device: &dyn BlockDevice) -> Result<Vec<Partition>> {
        let used = self.entries.into_iter().zip(1..).filter(|(entry, _)| entry.is_used());
        let mut found: Vec<_> = used.map(|(entry, number)| self.partition(entry, number)).collect();
        let mut number = 5;
        for extended in self.entries.iter().filter(|entry| entry.is_extended()) {
            number = self.follow(device, *extended, number, &mut found)?;
        }
        Ok(found)
    }

    /// Adds the logical partitions in an extended one, from `number` on. Returns the number behind
    /// the last. The chain ends where a sector is none of it.
    fn follow(
        &self,
        device: &dyn BlockDevice,
        extended: MbrEntry,
        mut number: u32,
        found: &mut Vec<Partition>,
    ) -> Result<u32> {
        let mut bytes = [0; SECTOR as usize];
        let (mut sector, mut len, mut empty) = (extended.start, extended.sectors, 0);
        while number <= LAST && empty < MOST_EMPTY && sector * self.sector + SECTOR <= device.size() {
            empty += 1;
            device.read_at(&mut bytes, sector * self.sector)?;
            let Some(entries) = entries(&bytes) else { break };
            for (at, logical) in entries.into_iter().enumerate() {
                let start = sector + logical.start;
                // The third and the fourth may be anything.
                let inside = logical.start + logical.sectors <= len
                    && start + logical.sectors <= extended.start + extended.sectors;
                let is_one = logical.has_sectors() && !logical.is_extended() && (at < 2 || inside);
                if is_one && number <= LAST {
                    found.push(self.partition(MbrEntry { start, ..logical }, number));
                    (number, empty) = (number + 1, 0);
                }
            }
            let Some(next) = entries.iter().find(|entry| entry.is_extended()) else { break };
            (sector, len) = (extended.start + next.start, next.sectors);
        }
        Ok(number)
    }

    fn partition(&self, entry: MbrEntry, number: u32) -> Partition {
        let mut uuid = self.disk();
        let _ = write!(uuid, "-{number:02x}");
        Partition {
            number,
            start: entry.start * self.sector,
            size: entry.sectors * self.sector,
            kind: PartitionType::Mbr(entry.kind),
            name: String::new(),
            uuid,
            label: None,
            volume_uuid: None,
        }
    }
}

/// Reads the entries of a sector with the signature of a table.
fn entries(sector: &[u8; SECTOR as usize]) -> Option<[MbrEntry; 4]> {
    let entry = |at: usize| MbrEntry {
        kind: sector[at + 4],
        start: at_u32(sector, at + 8).into(),
        sectors: at_u32(sector, at + 12).into(),
    };
    (sector[510..] == [0x55, 0xAA]).then(|| [446, 462, 478, 494].map(entry))
}
