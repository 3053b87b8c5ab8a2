//! Reads and writes of a caller with its own cache: whole blocks go past the page cache, the rest
//! goes through it.

use super::*;
use crate::{File, SetAttr, SetTime, Timestamp, Volume};
use lanefs_device::AlignedBuf;

const MIB: usize = 1 << 20;

fn open(image: &Image) -> Volume {
    OpenOptions::new().write(true).commit_interval(Duration::ZERO).open(image.path()).unwrap()
}

fn close(volume: Volume, image: &Image) {
    volume.close().unwrap();
    let (code, text) = run("e2fsck", &["-fn", &image.path()]);
    assert_eq!(code, 0, "{text}");
}

/// Together with writes and reads through the cache, which leave dirty blocks, clean blocks, and
/// blocks that are not cached.
#[test]
fn beside_the_cache() {
    for (kind, seed) in KINDS.iter().zip(0..) {
        let image = Image::new("64M", kind);
        let volume = open(&image);
        let file = volume.create_file("/f").unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut model, mut room) = (Vec::new(), vec![0; MIB]);
        for step in 0..400 {
            let at = rng.random_range(0..4 * MIB);
            let at = if rng.random_bool(0.7) { at / 4096 * 4096 } else { at };
            let most = if rng.random_bool(0.5) { 20_000 } else { MIB };
            let len = rng.random_range(1..most);
            match rng.random_range(0..8) {
                0..4 => {
                    let bytes = bytes(&mut rng, len);
                    if rng.random_bool(0.6) {
                        file.write_late(&bytes, at as u64).unwrap();
                    } else {
                        file.write_at(&bytes, at as u64).unwrap();
                    }
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&bytes);
                }
                4..7 => {
                    let n = file.read_for_cache(&mut room[..len], at as u64).unwrap();
                    let wanted = model.get(at..).unwrap_or_default();
                    assert!(room[..n] == wanted[..len.min(wanted.len())], "step {step}: {len} bytes at {at}");
                }
                _ => {
                    file.set_len(at as u64).unwrap();
                    model.resize(at, 0);
                }
            }
        }
        drop(file);
        close(volume, &image);
        assert!(image.dump("f") == model);
    }
}

#[test]
fn what_another_cache_holds_is_not_held_here() {
    let image = Image::new("64M", KINDS[0]);
    let volume = open(&image);
    let file = volume.create_file("/f").unwrap();
    let mut content = AlignedBuf::zeroed(MIB);
    content.fill(7);
    // Pieces of a file that grows, side by side and in any order.
    std::thread::scope(|scope| {
        for piece in [7, 2, 5, 0, 3, 6, 1, 4_u64] {
            let (file, content) = (&file, &content);
            scope.spawn(move || file.write_late(content, piece * MIB as u64).unwrap());
        }
    });
    let mut room = AlignedBuf::zeroed(MIB);
    for piece in 0..8 {
        assert_eq!(file.read_for_cache(&mut room, piece * MIB as u64).unwrap(), MIB);
        assert!(room[..] == content[..]);
    }
    assert_eq!(volume.stats().cache.used, 0);
    // The end of a file that is no whole block is kept.
    file.write_late(&content[..200_000], 8 * MIB as u64).unwrap();
    assert_eq!(volume.stats().cache.used, 4096);
    assert_eq!(file.read_for_cache(&mut room, 8 * MIB as u64).unwrap(), 200_000);
    file.sync_all().unwrap();
    assert_eq!(file.metadata().len(), 8 * MIB as u64 + 200_000);
    drop(file);
    close(volume, &image);
}

#[test]
fn what_was_allowed_comes_down_whatever_the_flags_are() {
    let image = Image::new("64M", KINDS[0]);
    let volume = open(&image);
    let file = volume.create_file("/f").unwrap();
    file.write_at(&[1; MIB], 0).unwrap();
    file.inode().set_file_attr(Some(InodeFlags::IMMUTABLE | InodeFlags::EXTENTS), None).unwrap();
    for at in [0, MIB as u64, 5 * MIB as u64] {
        assert!(matches!(file.write_at(&[2; MIB], at), Err(Error::NotPermitted(_))));
        file.write_late(&[2; MIB], at).unwrap();
    }
    let mut room = vec![0; MIB];
    for (at, byte) in [(0, 2), (1, 2), (2, 0), (5, 2)] {
        assert_eq!(file.read_at(&mut room, at * MIB as u64).unwrap(), MIB);
        assert!(room.iter().all(|b| *b == byte), "MiB {at}");
    }
    let end = u64::from(u32::MAX) * 4096;
    assert!(matches!(file.write_late(&[2; MIB], end), Err(Error::FileTooBig)));
    assert_eq!(file.metadata().len(), 6 * MIB as u64);
    drop(file);
    close(volume, &image);
}

/// A caller with its own cache keeps the times of what it accepted. The times that it sets are
/// stored, whether it sets them before or after it writes the bytes.
#[test]
fn the_times_are_those_that_the_other_cache_set() {
    let stamped = Timestamp { sec: 1_000_000_000, nsec: 4_000_000 };
    let set = SetAttr {
        mtime: Some(SetTime::At(stamped)),
        ctime: Some(SetTime::At(stamped)),
        ..SetAttr::default()
    };
    for len in [100, MIB] {
        let image = Image::new("64M", KINDS[0]);
        let volume = open(&image);
        let file = volume.create_file("/f").unwrap();
        let times = |meta: &crate::Metadata| (meta.mtime(), meta.ctime());
        let made = file.metadata();
        file.write_late(&vec![1; len], 0).unwrap();
        let written = file.metadata();
        assert_eq!(times(&written), times(&made));
        assert_ne!(written.version(), made.version());
        file.set_attr(&set).unwrap();
        let before = file.metadata().version();
        // Over existing bytes, and behind them.
        for at in [0, len as u64] {
            file.write_late(&vec![2; len], at).unwrap();
        }
        let after = file.metadata().version();
        assert_ne!(after, before);
        file.sync_all().unwrap();
        drop(file);
        let volume = {
            close(volume, &image);
            open(&image)
        };
        let meta = volume.metadata("/f").unwrap();
        assert_eq!(times(&meta), (stamped, stamped));
        assert_eq!(meta.version(), after);
        close(volume, &image);
    }
}

/// Returns a file of 4 MiB whose first MiB is written. Late writes of the rest found no space, so
/// i_disksize is 1 MiB.
fn with_size_ahead(image: &Image) -> (Volume, File) {
    let volume = open(image);
    let (file, filler) = (volume.create_file("/f").unwrap(), volume.create_file("/filler").unwrap());
    file.write_late(&[1; MIB], 0).unwrap();
    file.sync_all().unwrap();
    for len in [MIB, 4096] {
        let mut end = filler.metadata().len();
        while filler.write_at(&vec![9; len], end).is_ok() {
            end += len as u64;
        }
        filler.sync_all().unwrap();
    }
    for piece in [3, 1] {
        let written = file.write_late(&[2; MIB], piece * MIB as u64);
        assert!(matches!(written, Err(Error::NoSpace)), "{written:?}");
    }
    file.sync_all().unwrap();
    let size = volume.metadata("/f").unwrap().len();
    assert_eq!((size, file.inode().state().size), (4 * MIB as u64, MIB as u64));
    (volume, file)
}

/// As after a failed writeback in the kernel's ext4, i_size stays where the caller moved it, and
/// the bytes that could not be written read as zeros. i_disksize does not move, so the volume has
/// no size without its bytes.
#[test]
fn a_late_write_that_fails_leaves_i_disksize_where_it_was() {
    let image = Image::new("16M", KINDS[0]);
    let (volume, file) = with_size_ahead(&image);
    let content = volume.read("/f").unwrap();
    assert!(content[..MIB] == [1; MIB] && content[MIB..].iter().all(|byte| *byte == 0));
    // Once there is space, the caller writes the rest again, in any order.
    volume.remove_file("/filler").unwrap();
    file.write_late(&[2; MIB], 3 * MIB as u64).unwrap();
    drop(file);
    close(volume, &image);
    let dumped = image.dump("f");
    assert!(dumped[..MIB] == [1; MIB] && dumped[MIB..3 * MIB].iter().all(|byte| *byte == 0));
    assert!(dumped[3 * MIB..] == [2; MIB]);
}

/// The tree vouches for all bytes of the file, so they are in the inode too.
#[test]
fn a_file_whose_i_disksize_stayed_behind_gets_a_tree() {
    let image = Image::new("16M", KINDS[0]);
    let (volume, file) = with_size_ahead(&image);
    volume.remove_file("/filler").unwrap();
    volume.sync().unwrap();
    // By the handle that knows the size.
    file.enable_verity(&Verity::default()).unwrap();
    drop(file);
    close(volume, &image);
    let volume = open(&image);
    let content = volume.read("/f").unwrap();
    assert_eq!(content.len(), 4 * MIB);
    assert!(content[..MIB] == [1; MIB] && content[MIB..].iter().all(|byte| *byte == 0));
    close(volume, &image);
}

/// An insertion that changed nothing leaves i_size alone, also where i_disksize is less.
#[test]
fn an_insertion_that_fails_cuts_nothing() {
    let image = Image::new("16M", KINDS[0]);
    let (volume, file) = with_size_ahead(&image);
    volume.remove_file("/filler").unwrap();
    volume.sync().unwrap();
    // A block that cannot move further.
    let last = (u64::from(u32::MAX) - 1) * 4096;
    file.fallocate(FallocMode::KeepSize, last, 4096).unwrap();
    assert!(file.fallocate(FallocMode::InsertRange, 0, MIB as u64).is_err());
    assert_eq!(file.metadata().len(), 4 * MIB as u64);
    assert_eq!(volume.read("/f").unwrap().len(), 4 * MIB);
    drop(file);
    close(volume, &image);
}
