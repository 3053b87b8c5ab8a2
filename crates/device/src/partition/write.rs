//! GPT: writes a table, its backup, and the MBR that protects them.
//!
//! The offsets of the fields are those of the UEFI specification, 5.2.3, 5.3.2 and 5.3.3.

use super::gpt::{crc32, mixed};
use crate::{BlockDevice, DeviceError, Op, Result};
use std::io;
use std::ops::Range;

/// Bytes of a sector, and of an entry, and how many entries there are.
const SECTOR: u64 = 512;
const ENTRY: usize = 128;
const ENTRIES: usize = 128;
/// Sectors of the entries.
const TABLE: u64 = (ENTRY * ENTRIES) as u64 / SECTOR;
/// UTF-16 units of a name.
const NAME: usize = 36;

/// A partition to be written into a new table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewPartition {
    /// The GUID of its type, in the order in which it is written as text.
    pub kind: [u8; 16],
    /// Its PARTUUID, in the same order.
    pub uuid: [u8; 16],
    /// Its first byte, a multiple of 512.
    pub start: u64,
    /// Its size in bytes, a multiple of 512.
    pub size: u64,
    /// Its name. What has no room, 36 units of UTF-16, is left out.
    pub name: String,
}

/// The type of a partition with a Linux file system.
pub const LINUX_FILE_SYSTEM: [u8; 16] = 0x0fc6_3daf_8483_4772_8e79_3d69_d847_7de4_u128.to_be_bytes();

/// Bytes at the end of a disk that [`write_gpt`] uses.
pub const GPT_BACKUP: u64 = (1 + TABLE) * SECTOR;

/// Writes a GPT with these partitions, its backup at the end, and the protective MBR.
///
/// `disk` is the disk's GUID, in the order in which it is written as text. Sectors have 512 bytes.
///
/// # Errors
/// The device's; partitions that overlap, are more than 128, or do not lie between the table and
/// its backup in whole sectors ([`InvalidInput`](io::ErrorKind)): nothing is written.
///
/// # Examples
/// ```
/// use lanefs_device::{LINUX_FILE_SYSTEM, MemDevice, NewPartition, PartitionTable, write_gpt};
///
/// let disk = MemDevice::new(4 << 20);
/// let (kind, uuid, name) = (LINUX_FILE_SYSTEM, [9; 16], "root".into());
/// let root = NewPartition { kind, uuid, start: 1 << 20, size: 2 << 20, name };
/// write_gpt(&disk, [7; 16], &[root])?;
/// let table = PartitionTable::read(&disk)?.unwrap();
/// assert_eq!(table.find("root").unwrap().range(), 1 << 20..3 << 20);
/// # Ok::<(), lanefs_device::DeviceError>(())
/// ```
pub fn write_gpt(device: &dyn BlockDevice, disk: [u8; 16], partitions: &[NewPartition]) -> Result<()> {
    let sectors = device.size() / SECTOR;
    check(sectors, partitions)?;
    let mut entries = vec![0; ENTRY * ENTRIES];
    for (entry, partition) in entries.chunks_exact_mut(ENTRY).zip(partitions) {
        fill(entry, partition);
    }
    let last = sectors - 1;
    let header = |at, other, table| header(&entries, disk, sectors, [at, other, table]);
    // The first sector last: without it the disk has no table.
    device.write_at(&entries, (last - TABLE) * SECTOR)?;
    device.write_at(&header(last, 1, last - TABLE), last * SECTOR)?;
    device.write_at(&entries, 2 * SECTOR)?;
    device.write_at(&header(1, last, 2), SECTOR)?;
    device.write_at(&protective(sectors), 0)
}

/// Returns the sectors that partitions may have.
fn usable(sectors: u64) -> Range<u64> {
    2 + TABLE..sectors.saturating_sub(1 + TABLE)
}

/// Checks that the partitions fit on a disk of so many sectors.
fn check(sectors: u64, partitions: &[NewPartition]) -> Result<()> {
    let mut free = usable(sectors);
    let mut sorted: Vec<_> = partitions.iter().collect();
    sorted.sort_unstable_by_key(|partition| partition.start);
    let whole = |p: &&NewPartition| p.start.is_multiple_of(SECTOR) && p.size.is_multiple_of(SECTOR);
    let refuse = |at: u64, len: u64, why: &str| {
        Err(DeviceError::new(Op::Write, at, len, io::Error::new(io::ErrorKind::InvalidInput, why)))
    };
    if sorted.len() > ENTRIES || free.is_empty() || !sorted.iter().all(whole) {
        let why = "more than 128 partitions, or no whole sectors for them";
        return refuse(0, sectors * SECTOR, why);
    }
    for NewPartition { start, size, .. } in sorted {
        let end = start.checked_add(*size).map(|end| end / SECTOR);
        if *size == 0 || start / SECTOR < free.start || end.is_none_or(|end| end > free.end) {
            return refuse(*start, *size, "a partition that overlaps another, or the table");
        }
        free.start = (start + size) / SECTOR;
    }
    Ok(())
}

/// Returns a header of the table. `places` are its own sector, the other header's, and the first of
/// its entries.
fn header(entries: &[u8], disk: [u8; 16], sectors: u64, places: [u64; 3]) -> [u8; SECTOR as usize] {
    let [own, other, table] = places;
    let usable = usable(sectors);
    let mut bytes = [0; SECTOR as usize];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, b"EFI PART");
    put(8, &0x0001_0000_u32.to_le_bytes());
    put(12, &92_u32.to_le_bytes());
    for (at, value) in [(24, own), (32, other), (40, usable.start), (48, usable.end - 1), (72, table)] {
        put(at, &value.to_le_bytes());
    }
    put(56, &mixed(disk));
    put(80, &(ENTRIES as u32).to_le_bytes());
    put(84, &(ENTRY as u32).to_le_bytes());
    put(88, &crc32(entries).to_le_bytes());
    let sum = crc32(&bytes[..92]);
    bytes[16..20].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Writes the fields of an entry.
fn fill(entry: &mut [u8], partition: &NewPartition) {
    let first = partition.start / SECTOR;
    entry[..16].copy_from_slice(&mixed(partition.kind));
    entry[16..32].copy_from_slice(&mixed(partition.uuid));
    entry[32..40].copy_from_slice(&first.to_le_bytes());
    entry[40..48].copy_from_slice(&(first + partition.size / SECTOR - 1).to_le_bytes());
    let mut units = [0; 2];
    let mut at = 0;
    // Whole characters only.
    for c in partition.name.chars() {
        let units = c.encode_utf16(&mut units);
        if at + units.len() > NAME {
            break;
        }
        for unit in units {
            entry[56 + 2 * at..58 + 2 * at].copy_from_slice(&unit.to_le_bytes());
            at += 1;
        }
    }
}

/// Returns the MBR that shows the disk as full to programs that know no GPT.
fn protective(sectors: u64) -> [u8; SECTOR as usize] {
    let mut mbr = [0; SECTOR as usize];
    let entry = &mut mbr[446..462];
    // The first sector as cylinder, head and sector, and no last one that these could name.
    entry[1..8].copy_from_slice(&[0, 2, 0, 0xEE, 0xFF, 0xFF, 0xFF]);
    entry[8..12].copy_from_slice(&1_u32.to_le_bytes());
    let len = u32::try_from(sectors - 1).unwrap_or(u32::MAX);
    entry[12..16].copy_from_slice(&len.to_le_bytes());
    mbr[510..].copy_from_slice(&[0x55, 0xAA]);
    mbr
}
