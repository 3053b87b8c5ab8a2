//! Reads the partition table of a disk that the input has changed. The first byte chooses the disk,
//! and whether a GPT gets right checksums again; the rest are bytes to change, each with its place.
#![no_main]

use lanefs_device::{
    BlockDevice, LINUX_FILE_SYSTEM, MemDevice, NewPartition, PartitionTable, Window, write_gpt,
};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};

const SIZE: usize = 256 << 10;
const SECTOR: usize = 512;
/// Places below this are bytes from the start of the disk, others bytes from its end.
const FRONT: usize = 32 << 10;

/// A disk with a GPT, and one with an MBR and logical partitions.
static DISKS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let gpt = MemDevice::new(SIZE);
    let part = |start: u64, name: &str| NewPartition {
        kind: LINUX_FILE_SYSTEM,
        uuid: [name.len() as u8; 16],
        start,
        size: 32 << 10,
        name: name.into(),
    };
    write_gpt(&gpt, [7; 16], &[part(64 << 10, "root"), part(128 << 10, "of others")]).unwrap();
    let mut mbr = vec![0; SIZE];
    // Sectors: a primary partition, and an extended one with a chain of two.
    put_entries(&mut mbr, 0, &[(0x83, 128, 64), (0x05, 8, 48)]);
    put_entries(&mut mbr, 8, &[(0x83, 2, 8), (0x05, 16, 20)]);
    put_entries(&mut mbr, 24, &[(0x83, 2, 8)]);
    let mut disks = [gpt.to_bytes(), mbr];
    // The superblock of a volume, with a label.
    for (disk, at) in disks.iter_mut().zip([64 << 10, 128 * SECTOR]) {
        disk[at + 1080..at + 1082].copy_from_slice(&[0x53, 0xEF]);
        disk[at + 1144..at + 1149].copy_from_slice(b"label");
    }
    disks
});

/// Writes entries of a table, each a type, a first sector and a number of them, and its signature.
fn put_entries(disk: &mut [u8], sector: usize, entries: &[(u8, u32, u32)]) {
    let table = &mut disk[sector * SECTOR..][..SECTOR];
    for (entry, (kind, first, count)) in table[446..510].as_chunks_mut::<16>().0.iter_mut().zip(entries) {
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..16].copy_from_slice(&count.to_le_bytes());
    }
    table[510..].copy_from_slice(&[0x55, 0xAA]);
}

/// Returns the CRC of IEEE 802.3.
fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

/// Writes the checksums of the GPT whose header is at byte `at`, where it has any.
fn seal(disk: &mut [u8], at: usize) {
    let number = |disk: &[u8], field: usize| {
        let bytes: [u8; 4] = disk[at + field..at + field + 4].try_into().unwrap();
        u32::from_le_bytes(bytes) as usize
    };
    if disk[at..at + 8] != *b"EFI PART" {
        return;
    }
    // The first sector of the entries has eight bytes; a disk of this size needs two.
    let (first, count, size) = (number(disk, 72) & 0xFFFF, number(disk, 80), number(disk, 84));
    let len = count.saturating_mul(size);
    if let Some(entries) = disk.get(first * SECTOR..(first * SECTOR).saturating_add(len)) {
        let sum = crc32(entries);
        disk[at + 88..at + 92].copy_from_slice(&sum.to_le_bytes());
    }
    let len = number(disk, 12);
    if (92..=SECTOR).contains(&len) {
        disk[at + 16..at + 20].fill(0);
        let sum = crc32(&disk[at..at + len]);
        disk[at + 16..at + 20].copy_from_slice(&sum.to_le_bytes());
    }
}

fuzz_target!(|input: &[u8]| {
    let [how, script @ ..] = input else { return };
    let mut bytes = DISKS[usize::from(how & 1)].clone();
    for change in script.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        let at = if at < FRONT { at } else { SIZE - 1 - (at - FRONT) };
        bytes[at] = change[2];
    }
    if how & 2 == 0 {
        seal(&mut bytes, SECTOR);
        seal(&mut bytes, SIZE - SECTOR);
    }
    if how & 4 != 0 {
        bytes.truncate(usize::from(how >> 3) * 8000);
    }
    let disk = Arc::new(MemDevice::from_bytes(bytes));
    let table = match PartitionTable::read(&disk) {
        Ok(Some(table)) => table,
        Ok(None) => return,
        Err(e) => return assert!(e.to_string().len() > 8, "an error that says nothing: {e:?}"),
    };
    for wanted in ["1", "5", "99999999999", "root", "label", "", &table.disk] {
        if let Err(said) = table.find(wanted) {
            assert!(said.contains("partition"), "{said}");
        }
    }
    for partition in &table.partitions {
        assert!(partition.number > 0 && !partition.to_string().is_empty());
        let Ok(window) = Window::new(disk.clone(), partition.range()) else { continue };
        assert_eq!(window.size(), partition.size);
        if let Some(last) = window.size().checked_sub(1) {
            window.read_at(&mut [0], last).expect("a window lies inside of its disk");
        }
    }
});
