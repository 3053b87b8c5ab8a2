//! GPT: reads a header and its entries, and trusts only what its checksums cover.
//!
//! The offsets of the fields are those of the UEFI specification, 5.3.2 and 5.3.3.

use super::{Partition, PartitionType, at_u32, at_u64};
use crate::{BlockDevice, Result};

/// The most bytes of entries that are read: 64 times what the usual 128 entries take.
const MOST: u64 = 1 << 20;

/// A table whose checksums agree.
pub(super) struct Gpt {
    pub(super) disk: String,
    pub(super) partitions: Vec<Partition>,
}

/// Reads the primary table, or the backup where that one is damaged. `Err` says that there was one
/// and it is damaged.
pub(super) fn read(device: &dyn BlockDevice) -> Result<std::result::Result<Option<Gpt>, &'static str>> {
    let mut damage = None;
    for sector in [512, 4096] {
        let sectors = device.size() / sector;
        for lba in [1, sectors.saturating_sub(1)] {
            if lba == 0 || lba >= sectors {
                continue;
            }
            match read_at(device, sector, lba)? {
                Ok(None) => {}
                Ok(found) => return Ok(Ok(found)),
                Err(why) => damage = Some(why),
            }
        }
    }
    Ok(damage.map_or(Ok(None), Err))
}

fn read_at(
    device: &dyn BlockDevice,
    sector: u64,
    lba: u64,
) -> Result<std::result::Result<Option<Gpt>, &'static str>> {
    let mut header = [0; 512];
    device.read_at(&mut header, lba * sector)?;
    if &header[..8] != b"EFI PART" {
        return Ok(Ok(None));
    }
    let len = at_u32(&header, 12) as usize;
    if !(92..=header.len()).contains(&len) {
        return Ok(Err("its header has a wrong length"));
    }
    let sum = at_u32(&header, 16);
    header[16..20].fill(0);
    if crc32(&header[..len]) != sum || at_u64(&header, 24) != lba {
        return Ok(Err("its header does not have the checksum or the place that it says"));
    }
    let (first, count, size) = (at_u64(&header, 72), at_u32(&header, 80), at_u32(&header, 84));
    let bytes = u64::from(count) * u64::from(size);
    let start = first.checked_mul(sector);
    let Some(start) = start.filter(|start| start.checked_add(bytes).is_some_and(|end| end <= device.size()))
    else {
        return Ok(Err("its entries lie beyond the end"));
    };
    if size < 128 || bytes > MOST {
        return Ok(Err("its entries have a wrong size or number"));
    }
    let mut entries = vec![0; bytes as usize];
    device.read_at(&mut entries, start)?;
    if crc32(&entries) != at_u32(&header, 88) {
        return Ok(Err("its entries do not have the checksum that its header says"));
    }
    let partitions = entries.chunks_exact(size as usize).zip(1..);
    let partitions = partitions.filter_map(|(entry, number)| partition(entry, number, sector)).collect();
    Ok(Ok(Some(Gpt { disk: guid(&header[56..72]), partitions })))
}

/// Reads an entry. Returns `None` for one that is not in use or ends before it begins.
fn partition(entry: &[u8], number: u32, sector: u64) -> Option<Partition> {
    if entry[..16] == [0; 16] {
        return None;
    }
    let (first, last) = (at_u64(entry, 32), at_u64(entry, 40));
    let start = first.checked_mul(sector)?;
    let size = last.checked_sub(first)?.checked_add(1)?.checked_mul(sector)?;
    start.checked_add(size)?;
    let name: Vec<u16> = entry[56..128]
        .chunks_exact(2)
        .map(|unit| u16::from_le_bytes([unit[0], unit[1]]))
        .take_while(|unit| *unit != 0)
        .collect();
    Some(Partition {
        number,
        start,
        size,
        kind: PartitionType::Gpt(guid(&entry[..16])),
        name: String::from_utf16_lossy(&name),
        uuid: guid(&entry[16..32]),
        label: None,
        volume_uuid: None,
    })
}

/// Returns a GUID as text: three numbers in little endian, and eight bytes.
fn guid(bytes: &[u8]) -> String {
    super::uuid(mixed(std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))))
}

/// Returns the bytes of a GUID on the disk by those of its text, and the other way round.
pub(super) fn mixed(guid: [u8; 16]) -> [u8; 16] {
    [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15].map(|at: usize| guid[at])
}

/// Returns the CRC of IEEE 802.3, computed bit by bit: a table has 16 KiB.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}
