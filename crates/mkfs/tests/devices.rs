//! Devices that fail, lose power or want aligned memory.

mod common;

use common::options;
use lanefs_device::{BlockDevice, FileOptions, MemDevice, Op, forward_to};
use lanefs_format::Superblock;
use lanefs_mkfs::{MkfsError, Options, format};
use lanefs_sim::{FailingDevice, Image, RecordingDevice, seed_from_env};

const EIO: i32 = 5;

/// The superblock on a device, if it is one.
fn superblock(image: &Image) -> Option<Superblock> {
    let mut bytes = [0; 1024];
    image.read(1024, &mut bytes);
    Superblock::parse(&bytes).ok()
}

#[test]
fn a_failed_write_is_an_error_and_leaves_no_volume() {
    for op in [Op::Read, Op::Write, Op::Flush, Op::Discard] {
        let mut nth = 1;
        loop {
            let device = FailingDevice::new(RecordingDevice::new(Image::zeroed(24 << 20)));
            device.fail_from(op, nth, EIO);
            match format(&device, &options("-O orphan_file")) {
                Ok(_) => break,
                Err(MkfsError::Device(e)) => assert_eq!(e.source.raw_os_error(), Some(EIO)),
                Err(e) => panic!("{op} {nth}: {e}"),
            }
            // But for the last flush, which says that even the superblock may not have arrived.
            if op != Op::Flush || nth < 2 {
                assert_eq!(superblock(&device.inner().image()), None, "{op} {nth}");
            }
            nth += 1;
        }
        assert!(nth > 1, "{op} is never called");
    }
}

/// A volume is made over another. Whenever the power goes, there is the old one untouched, the
/// new one whole, or none.
#[test]
fn a_cut_leaves_the_old_volume_the_new_one_or_none() {
    let old = RecordingDevice::new(Image::zeroed(24 << 20));
    format(&old, &options("-b 1024")).unwrap();
    let (old, before) = (old.image(), superblock(&old.image()));
    let device = RecordingDevice::new(old.clone());
    let options = Options { uuid: Some([7; 16]), ..options("-b 4096") };
    let after = format(&device, &options).unwrap().superblock;
    let whole = device.image().to_bytes();

    let log = device.log();
    let mut seen = [0; 3];
    for state in log.crash_states(seed_from_env("LANEFS_SEED").value(), 20) {
        let found = superblock(&state.image);
        if found.is_none() {
            seen[0] += 1;
        } else if found == before {
            seen[1] += 1;
            // All that differs yet are zeros before the superblock or behind it.
            let mut rest = vec![0; (24 << 20) - 65536];
            state.image.read(65536, &mut rest);
            assert!(rest == old.to_bytes()[65536..], "{state}");
        } else {
            seen[2] += 1;
            assert_eq!(found.as_ref(), Some(&after), "{state}");
            assert!(state.image.to_bytes() == whole, "{state}");
        }
    }
    assert!(seen.iter().all(|&n| n > 0), "none, old and new were left {seen:?} times");
}

/// A device that wants everything aligned gets the same bytes.
#[test]
fn direct_io_makes_the_same_volume() {
    for args in ["-b 1024", "-b 4096 -O orphan_file"] {
        let dir = tempfile::tempdir().unwrap();
        let bytes = [false, true].map(|direct| {
            let path = dir.path().join(direct.to_string());
            let Ok(device) = FileOptions::new().direct(direct).create(&path, 24 << 20) else {
                // A folder in memory has no direct I/O.
                assert!(direct);
                return std::fs::read(dir.path().join("false")).unwrap();
            };
            format(&device, &options(args)).unwrap();
            std::fs::read(path).unwrap()
        });
        assert!(bytes[0] == bytes[1], "{args}");
    }
}

/// A device with sectors of 4096 bytes.
#[derive(Debug)]
struct Sectors(MemDevice);

impl BlockDevice for Sectors {
    forward_to!(0: size read_only read_at write_at flush discard);

    fn sector_size(&self) -> u64 {
        4096
    }
}

/// The kernel mounts no volume whose blocks are smaller than the sectors of its device.
#[test]
fn no_block_is_smaller_than_a_sector() {
    let device = Sectors(MemDevice::new(64 << 20));
    assert_eq!(format(&device, &options("")).unwrap().block_size, 4096);
    let refused = format(&device, &options("-b 2048"));
    assert!(matches!(refused, Err(MkfsError::BelowSector { block_size: 2048, sector: 4096 })), "{refused:?}");
    assert_eq!(format(&device, &options("-b 8192")).unwrap().block_size, 8192);
}
