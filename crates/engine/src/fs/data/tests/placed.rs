//! Bytes that the caller itself puts on the device.

use crate::fs::data::Placement;
use crate::{Error, File, OpenOptions, Volume, WritebackMode};
use lanefs_device::{BlockDevice, DeviceError, MemDevice, Op};
use std::sync::Arc;
use std::time::Duration;

const OLD: u8 = 0xaa;

/// Returns an empty volume whose free blocks have old content.
fn volume(block_size: u32) -> (Arc<MemDevice>, Volume) {
    let device = Arc::new(MemDevice::new(32 << 20));
    let options = lanefs_mkfs::Options { block_size: Some(block_size), ..Default::default() };
    lanefs_mkfs::format(&*device, &options).unwrap();
    let open = || OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    let volume = open().open_device(device.clone()).unwrap();
    let file = volume.create_file("/old").unwrap();
    let full = loop {
        if let Err(e) = file.write_at(&vec![OLD; 1 << 20], file.metadata().len()) {
            break e;
        }
    };
    assert!(matches!(full, Error::NoSpace), "{full}");
    drop(file);
    volume.remove_file("/old").unwrap();
    volume.close().unwrap();
    (device.clone(), open().open_device(device).unwrap())
}

/// Puts the bytes of places, each a number that its place in the file gives, and the zeros.
fn put(device: &MemDevice, places: &[Placement]) -> crate::Result<()> {
    for place in places {
        let bytes = place.bytes.clone().map(byte_at);
        let zeros = |n| std::iter::repeat_n(0, n);
        let all: Vec<_> = zeros(place.head).chain(bytes).chain(zeros(place.tail)).collect();
        device.write_at(&all, place.offset)?;
    }
    Ok(())
}

fn byte_at(at: u64) -> u8 {
    1 + (at % 101) as u8
}

fn content(file: &File) -> Vec<u8> {
    let mut content = vec![OLD; file.metadata().len() as usize];
    assert_eq!(file.read_at(&mut content, 0).unwrap(), content.len());
    content
}

#[test]
fn placed_bytes_and_zeros_around_them_are_all_that_a_file_has() {
    for block_size in [1024, 4096] {
        let (device, volume) = volume(block_size);
        let file = volume.create_file("/f").unwrap();
        let mut want = vec![0; 9_500_100];
        // Around ends of blocks; the largest in several plans; some over others.
        for (start, end) in [(10, 20), (5000, 9000), (8192, 12_288), (20_000, 9_500_100), (4095, 4097)] {
            file.write_placed(start..end, &mut |places| put(&device, places)).unwrap();
            (start..end).for_each(|at| want[at as usize] = byte_at(at));
            assert!(content(&file)[..end as usize] == want[..end as usize], "{start}..{end}");
        }
        file.write_placed(7..7, &mut |_| panic!("there is nothing to write")).unwrap();
        assert!(content(&file) == want);
        volume.close().unwrap();
    }
}

/// A file never has blocks that were not written.
#[test]
fn bytes_that_cannot_be_put_are_not_mapped() {
    let (device, volume) = volume(4096);
    let file = volume.create_file("/f").unwrap();
    let failed = || DeviceError::new(Op::Write, 0, 0, std::io::ErrorKind::StorageFull.into());
    file.write_placed(0..100_000, &mut |_| Err(failed().into())).unwrap_err();
    assert_eq!((file.metadata().len(), file.metadata().sectors()), (0, 0));
    // The second plan fails: the first stays.
    let mut plans = 0;
    let mut write = |places: &[Placement]| {
        plans += 1;
        if plans == 2 { Err(failed().into()) } else { put(&device, places) }
    };
    file.write_placed(0..10 << 20, &mut write).unwrap_err();
    let size = file.metadata().len();
    assert!((1..10 << 20).contains(&size), "{size}");
    assert!(content(&file).into_iter().eq((0..size).map(byte_at)));
    volume.close().unwrap();
    let volume = Volume::open_device(device).unwrap();
    assert!(volume.read("/f").unwrap().into_iter().eq((0..size).map(byte_at)));
}

#[test]
fn gathered_blocks_are_those_of_a_write() {
    for block_size in [1024, 4096] {
        let (_, volume) = volume(block_size);
        let file = volume.create_file("/f").unwrap();
        let bytes: Vec<u8> = (0..9 << 20).map(byte_at).collect();
        let (mut want, block) = (vec![0; 12 << 20], block_size as usize);
        // Over a hole, over each other, and over pages that are dirty; cut anywhere.
        file.write_at(&[7; 100], 6 << 20).unwrap();
        for (start, len, cuts) in [(1 << 20, 9 << 20, 7), (0, 2 << 20, 100), (11 << 20, block, 1)] {
            let pieces: Vec<&[u8]> = bytes[..len].chunks(len.div_ceil(cuts)).collect();
            assert!(file.write_gathered(&pieces, start as u64).unwrap());
            want[start..start + len].copy_from_slice(&bytes[..len]);
        }
        want.truncate((11 << 20) + block);
        assert!(content(&file) == want);
        // No whole blocks.
        assert!(!file.write_gathered(&[&bytes[..block + 1]], 0).unwrap());
        assert!(!file.write_gathered(&[&bytes[..block]], 1).unwrap());
        assert!(file.write_gathered(&[], 0).unwrap());
        assert!(content(&file) == want);
        volume.close().unwrap();
    }
}

/// With `dioread_lock` blocks are mapped before their bytes are put.
#[test]
fn bytes_that_cannot_be_put_into_mapped_blocks_are_behind_the_end() {
    let (device, volume) = volume(4096);
    volume.close().unwrap();
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    let volume = options.writeback(WritebackMode::DioreadLock).open_device(device).unwrap();
    let file = volume.create_file("/f").unwrap();
    let failed = || DeviceError::new(Op::Write, 0, 0, std::io::ErrorKind::StorageFull.into());
    file.write_placed(0..100_000, &mut |_| Err(failed().into())).unwrap_err();
    assert_eq!(file.metadata().len(), 0);
}
