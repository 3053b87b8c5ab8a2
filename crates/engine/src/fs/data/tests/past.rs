//! Large reads and writes that bypass the page cache: those of an uncached handle, and no others.

use crate::{File, OpenOptions, Volume};
use lanefs_device::MemDevice;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn options() -> OpenOptions {
    OpenOptions::new().write(true).commit_interval(Duration::ZERO)
}

fn volume(mib: usize, options: OpenOptions) -> (Arc<MemDevice>, Volume) {
    let device = Arc::new(MemDevice::new(mib << 20));
    lanefs_mkfs::format(&*device, &lanefs_mkfs::Options { block_size: Some(4096), ..Default::default() })
        .unwrap();
    let volume = options.open_device(device.clone()).unwrap();
    (device, volume)
}

fn open(volume: &Volume, uncached: bool) -> File {
    volume.open_options().read(true).write(true).create(true).uncached(uncached).open("/f").unwrap()
}

/// Returns how many writes of the volume have bypassed the cache.
fn bypassed(volume: &Volume) -> u64 {
    volume.stats().times.write_direct.count
}

/// Bytes of a write of a stream.
const PIECE: u64 = 4 * MIB;

#[test]
fn a_long_stream_goes_through_the_cache() {
    let (_, volume) = volume(256, options());
    let file = open(&volume, false);
    let piece = |n: u64| vec![n as u8; PIECE as usize];
    for n in 0..40 {
        file.write_at(&piece(n), n * PIECE).unwrap();
    }
    let log = volume.open_options().append(true).open("/f").unwrap();
    for n in 40..44 {
        log.write_at(&piece(n), 0).unwrap();
    }
    file.write_at(&piece(3), 3 * PIECE).unwrap();
    assert_eq!(bypassed(&volume), 0);
    let mut read = piece(0);
    for n in 0..44 {
        assert_eq!(file.read_at(&mut read, n * PIECE).unwrap(), read.len());
        assert!(read == piece(n), "piece {n}");
    }
    file.sync_all().unwrap();
}

#[test]
fn an_uncached_handle_bypasses_it_from_the_first_byte_on() {
    let (_, volume) = volume(32, options());
    let file = open(&volume, true);
    file.write_at(&vec![1; MIB as usize], 0).unwrap();
    file.write_at(&vec![2; 128 << 10], MIB).unwrap();
    assert_eq!(bypassed(&volume), 2);
    file.write_at(&vec![3; (128 << 10) + 1], 2 * MIB).unwrap();
    file.write_at(&vec![4; 128 << 10], 1).unwrap();
    file.write_at(&vec![5; 64 << 10], 0).unwrap();
    assert_eq!(bypassed(&volume), 2);
    file.sync_all().unwrap();
    let before = volume.stats().times.read_direct.count;
    let mut read = vec![0; 256 << 10];
    assert_eq!(file.read_at(&mut read, MIB).unwrap(), read.len());
    assert_eq!(volume.stats().times.read_direct.count, before + 1);
    assert!(read[..128 << 10] == [2; 128 << 10] && read[128 << 10..] == [0; 128 << 10]);
}

/// Handles of each kind on one file agree with a model, and with the volume opened again.
#[test]
fn handles_of_all_kinds_agree() {
    let mut rng = StdRng::seed_from_u64(16);
    let (device, volume) = volume(32, options().past_cache(8192));
    let files = [open(&volume, false), open(&volume, true), open(&volume, false).with_direct(true)];
    let mut model: Vec<u8> = Vec::new();
    for round in 0..3000_u32 {
        let file = &files[rng.random_range(0..3)];
        let fine = rng.random_range(0..4) == 0;
        let unit = if fine { 1 } else { 4096 };
        let offset = rng.random_range(0..(256 << 10) / unit) * unit;
        let len = rng.random_range(0..(64 << 10) / unit) * unit;
        match rng.random_range(0..8) {
            0 => {
                file.set_len(offset as u64).unwrap();
                model.resize(offset, 0);
            }
            1 => file.sync_data().unwrap(),
            2..=4 => {
                let mut read = vec![1; len];
                let n = file.read_at(&mut read, offset as u64).unwrap();
                let want = model.get(offset..).unwrap_or_default();
                let want = &want[..want.len().min(len)];
                assert!(read[..n] == *want, "round {round}: {len} bytes at {offset}");
            }
            _ => {
                let bytes = vec![1 + (round % 255) as u8; len];
                file.write_at(&bytes, offset as u64).unwrap();
                if len > 0 {
                    model.resize(model.len().max(offset + len), 0);
                    model[offset..offset + len].copy_from_slice(&bytes);
                }
            }
        }
    }
    drop(files);
    volume.close().unwrap();
    let volume = options().open_device(device).unwrap();
    assert!(volume.read("/f").unwrap() == model);
}
