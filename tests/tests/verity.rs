//! Files with fs-verity: what a changed bit does, hostile descriptors, what is refused, a power cut
//! while a file gets its tree.

use lanefs::{Error, FallocMode, File, OpenOptions, Verity, VerityError, VerityHash, Volume};
use lanefs_device::{BlockDevice, MemDevice, PmemDevice, errno};
use lanefs_format::InodeFlags;
use lanefs_format::verity::DescriptorError;
use lanefs_sim::{DumpFile, Image, RecordingDevice};
use lanefs_tests::{debugfs_write, e2fsck, mke2fs};
use std::sync::Arc;
use std::time::Duration;

const SIZE: usize = 700_000;

fn content() -> Vec<u8> {
    (0..SIZE).map(|at| (at / 100) as u8).collect()
}

fn open(device: &Arc<MemDevice>) -> Volume {
    let device = Arc::clone(device) as Arc<dyn BlockDevice>;
    OpenOptions::new().write(true).commit_interval(Duration::ZERO).open_device(device).unwrap()
}

/// A closed volume with blocks of so many bytes and a file `/f`, whose tree is of `verity`.
fn volume(block_size: u32, verity: &Verity) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(16 << 20));
    let options = lanefs::mkfs::Options { block_size: Some(block_size), ..Default::default() };
    lanefs::mkfs::format(&*device, &options).unwrap();
    let volume = open(&device);
    volume.write("/f", &content()).unwrap();
    volume.open_file("/f").unwrap().enable_verity(verity).unwrap();
    volume.close().unwrap();
    device
}

fn sha512() -> Verity {
    let mut verity = Verity::default();
    (verity.hash, verity.block_size, verity.salt) = (VerityHash::Sha512, Some(1024), vec![1, 2, 3]);
    verity
}

/// The bytes of the volume that hold the file, from byte `from` on, and where the file ends.
fn places(device: &Arc<MemDevice>, from: u64) -> Vec<(u64, u64)> {
    let volume = open(device);
    let extents = volume.open_file("/f").unwrap().fiemap(from..u64::MAX, 1000).unwrap();
    extents.iter().map(|extent| (extent.physical, extent.len)).collect()
}

/// The volume with one byte changed.
fn changed(device: &MemDevice, at: u64, byte: impl Fn(u8) -> u8) -> Arc<MemDevice> {
    let mut bytes = device.to_bytes();
    bytes[at as usize] = byte(bytes[at as usize]);
    Arc::new(MemDevice::from_bytes(bytes))
}

/// Reads all of the file, in pieces; the first error.
fn read_all(file: &File, piece: usize) -> Result<Vec<u8>, Error> {
    let (mut all, mut buf) = (Vec::new(), vec![0; piece]);
    loop {
        match file.read_at(&mut buf, all.len() as u64)? {
            0 => return Ok(all),
            n => all.extend_from_slice(&buf[..n]),
        }
    }
}

#[test]
fn every_way_to_read_verifies() {
    for (block_size, verity) in [(4096, Verity::default()), (4096, sha512()), (1024, Verity::default())] {
        let device = volume(block_size, &verity);
        let behind = (SIZE as u64).next_multiple_of(65_536);
        let (data, tree) = (places(&device, 0)[0], places(&device, behind)[0]);
        let volume = open(&device);
        let file = volume.open_file("/f").unwrap();
        assert!(read_all(&file, 5000).unwrap() == content());
        assert!(read_all(&file.with_direct(true), 65_536).unwrap() == content());
        drop((file, volume));
        // In the data, in the root block, in a leaf.
        for (at, in_tree) in [(data.0 + 5000, false), (tree.0 + 3, true), (tree.0 + 4100, true)] {
            let device = changed(&device, at, |byte| byte ^ 4);
            let volume = open(&device);
            let file = volume.open_file("/f").unwrap();
            for direct in [false, true] {
                let file = file.with_direct(direct);
                let failed = read_all(&file, 4096).map(drop).unwrap_err();
                let told = matches!(
                    (&failed, in_tree),
                    (Error::Verity(VerityError::Data { .. }), false)
                        | (Error::Verity(VerityError::Tree { .. }), true)
                );
                assert!(told && failed.errno() == errno::EIO, "{failed}");
                let mut all = vec![0; SIZE];
                assert!(file.read_at(&mut all, 0).is_err() && file.read_for_cache(&mut all, 0).is_err());
                // What does not wait has only what was verified.
                if let Ok(n) = file.try_read_at(&mut all[..4096], 4096) {
                    assert!(all[..n] == content()[4096..4096 + n]);
                }
            }
            // It stays so: what is wrong is not cached.
            assert!(read_all(&file, 4096).is_err());
        }
        // The bytes of the last block behind i_size are not the file's.
        let last = places(&device, SIZE as u64 - 1)[0].0;
        let end = last + SIZE as u64 % u64::from(block_size);
        let device = changed(&device, end, |byte| byte ^ 1);
        assert!(open(&device).read("/f").unwrap() == content());
    }
}

/// The map of a hostile volume makes holes of written blocks, which callers skip unread.
#[test]
fn a_hole_is_verified_before_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for (requests, wrong) in [
        (&["punch /f 20 60"][..], 20),
        (&["punch /f 20 60", "fallocate /f 20 60"], 20),
        (&["punch /f 100 170"], 100),
        (&["punch /f 0 170"], 0),
    ] {
        std::fs::write(&path, volume(4096, &Verity::default()).to_bytes()).unwrap();
        for request in requests {
            debugfs_write(&path, request);
        }
        let volume = open(&Arc::new(MemDevice::from_bytes(std::fs::read(&path).unwrap())));
        let (file, to) = (volume.open_file("/f").unwrap(), volume.create_file("/to").unwrap());
        let at = wrong * 4096;
        assert_eq!(file.next_data(0).ok(), (at > 0).then_some(Some((0, at))), "{requests:?}");
        let told = [
            file.next_data(at).map(drop),
            file.seek_data(at).map(drop),
            file.seek_hole(0).map(drop),
            file.copy_range(at, &to, at, 4096).map(drop),
        ];
        for told in told {
            let is_right =
                matches!(told, Err(Error::Verity(VerityError::Data { block, .. })) if block == wrong);
            assert!(is_right, "{requests:?}: {told:?}");
        }
    }
}

/// What the tree has as zeros stays a hole: inside of a file, and at its end.
#[test]
fn a_hole_of_the_content_stays_one() {
    for verity in [Verity::default(), sha512()] {
        let volume = Volume::in_memory(16 << 20).unwrap();
        let file = volume.create_file("/f").unwrap();
        file.write_at(&[7; 4096], 0).unwrap();
        file.write_at(&[7; 4096], 100 << 20).unwrap();
        file.set_len(SIZE as u64 + (200 << 20)).unwrap();
        file.enable_verity(&verity).unwrap();
        // Also from the middle of the hole on, and twice.
        for at in [4096, 50 << 20, 5000] {
            assert_eq!(file.next_data(at).unwrap(), Some((100 << 20, (100 << 20) + 4096)));
            assert_eq!((file.seek_data(at).unwrap(), file.seek_hole(at).unwrap()), (100 << 20, at));
        }
        assert_eq!(file.next_data((100 << 20) + 4096).unwrap(), None);
        assert_eq!(file.seek_hole(100 << 20).unwrap(), (100 << 20) + 4096);
        assert!(matches!(file.seek_data(150 << 20), Err(Error::NothingThere { .. })));
    }
}

/// One digest stands for all that is below it: a block of the tree amid the hole is not read. A
/// read of the content there reads it.
#[test]
fn a_large_hole_is_verified_by_few_digests() {
    const END: u64 = 200 << 20;
    let device = Arc::new(MemDevice::new(16 << 20));
    let options = lanefs::mkfs::Options { block_size: Some(4096), ..Default::default() };
    lanefs::mkfs::format(&*device, &options).unwrap();
    let volume = open(&device);
    let file = volume.create_file("/f").unwrap();
    file.write_at(&[7; 4096], 0).unwrap();
    file.set_len(END).unwrap();
    file.enable_verity(&Verity::default()).unwrap();
    drop(file);
    volume.close().unwrap();
    // Levels of 1, 4 and 400 blocks: of the last one, the block with number 95.
    let digests = places(&device, END + 100 * 4096)[0].0;
    let volume = open(&changed(&device, digests, |byte| byte ^ 1));
    let file = volume.open_file("/f").unwrap();
    assert_eq!(file.next_data(4096).unwrap(), None);
    assert_eq!(file.seek_hole(0).unwrap(), 4096);
    let read = |block: u64| file.read_at(&mut [0; 100], block * 4096);
    let wrong = read(95 * 128);
    assert!(matches!(wrong, Err(Error::Verity(VerityError::Tree { block: 100, .. }))), "{wrong:?}");
    assert_eq!(read(50 * 128).unwrap(), 100);
}

#[test]
fn a_batch_reads_what_is_verified() {
    let device = volume(4096, &Verity::default());
    let data = places(&device, 0)[0];
    let device = changed(&device, data.0 + 9000, |byte| byte ^ 1);
    let volume = open(&device);
    let file = volume.open_file("/f").unwrap().with_direct(true);
    let mut bufs = [vec![0; 4096], vec![0; 4096]];
    let [wrong, right] = &mut bufs;
    let mut batch = [lanefs::Io::read(&file, wrong, 8192), lanefs::Io::read(&file, right, 0)];
    let done = File::run_batch(&mut batch);
    assert!(matches!(done[0], Err(Error::Verity(_))) && matches!(done[1], Ok(4096)), "{done:?}");
}

/// On a device that is memory nothing else is cached, and slices are lent.
#[test]
fn memory_is_verified_too() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("volume");
    let device = volume(4096, &Verity::default());
    let data = places(&device, 0)[0];
    let wrong = changed(&device, data.0 + 9000, |byte| byte ^ 1);
    for (device, well) in [(device, true), (wrong, false)] {
        std::fs::write(&path, device.to_bytes()).unwrap();
        let memory = Arc::new(PmemDevice::open(&path).unwrap());
        let volume = OpenOptions::new().write(true).dax(true).open_device(memory).unwrap();
        let file = volume.open_file("/f").unwrap();
        assert!(file.map(0, 4096).unwrap().is_none());
        assert_eq!(read_all(&file, 5000).is_ok_and(|all| all == content()), well);
        volume.write("/plain", &[7; 4096]).unwrap();
        assert!(volume.open_file("/plain").unwrap().map(0, 4096).unwrap().is_some());
    }
}

/// Each bit of the descriptor, and of its length. A salt that ends in zeros is as good as one
/// without them, but has another digest.
#[test]
fn no_bit_of_a_descriptor_may_change() {
    let device = volume(4096, &sha512());
    let digest = open(&device).open_file("/f").unwrap().measure_verity().unwrap();
    let behind = places(&device, (SIZE as u64).next_multiple_of(65_536));
    let (start, len) = *behind.last().unwrap();
    let descriptor = start + len - 4096;
    assert_eq!(device.to_bytes()[descriptor as usize], 1);
    let bytes = (0..256).chain(4092..4096);
    for bit in bytes.flat_map(|byte| (0..8).map(move |bit| byte * 8 + bit)) {
        let device = changed(&device, descriptor + bit / 8, |byte| byte ^ 1 << (bit % 8));
        let volume = open(&device);
        let file = volume.open_file("/f").unwrap();
        match read_all(&file, 4096) {
            Err(failed) => {
                assert!(matches!(failed, Error::Verity(_)), "bit {bit}: {failed}");
                assert_eq!(failed.errno(), errno::EIO);
            }
            Ok(_) => {
                assert!(bit / 8 == 3 && file.measure_verity().unwrap() != digest, "bit {bit}");
            }
        }
    }
}

#[test]
fn each_rule_of_a_descriptor_is_told() {
    let device = volume(4096, &Verity::default());
    let behind = places(&device, (SIZE as u64).next_multiple_of(65_536));
    let (start, len) = *behind.last().unwrap();
    let descriptor = start + len - 4096;
    use DescriptorError::*;
    let rules = [
        (0, 0, Version(0)),
        (1, 3, Algorithm(3)),
        (2, 13, BlockSize { found: 13, max: 12 }),
        (3, 33, SaltSize(33)),
        (5, 1, SignatureSize { found: 256, len: 0 }),
        (15, 0x80, DataSize { found: SIZE as u64 | 1 << 63, size: SIZE as u64 }),
        (60, 1, Padding("root_hash")),
        (81, 1, Padding("salt")),
        (112, 1, Padding("the descriptor")),
    ];
    for (at, byte, rule) in rules {
        let device = changed(&device, descriptor + at, |_| byte);
        match open(&device).open_file("/f").unwrap().measure_verity() {
            Err(Error::Verity(VerityError::Descriptor { error, .. })) => assert_eq!(error, rule),
            other => panic!("{other:?}"),
        }
    }
    for (at, byte) in [(4092, 255), (4093, 0), (4093, 64), (4095, 255), (4094, 1)] {
        let device = changed(&device, descriptor + at, |_| byte);
        let measured = open(&device).open_file("/f").unwrap().measure_verity();
        assert!(matches!(
            measured,
            Err(Error::Verity(VerityError::Place { .. } | VerityError::Descriptor { .. }))
        ));
    }
}

#[test]
fn what_would_change_the_content_is_refused() {
    let device = Arc::new(MemDevice::new(16 << 20));
    lanefs::mkfs::format(&*device, &lanefs::mkfs::Options::default()).unwrap();
    let volume = open(&device);
    let writer = volume.create_file("/f").unwrap();
    writer.write_at(&content(), 0).unwrap();
    let reader = volume.open_file("/f").unwrap();
    let busy = reader.enable_verity(&Verity::default());
    assert!(matches!(&busy, Err(e) if e.errno() == errno::ETXTBSY), "{busy:?}");
    // The only writer may.
    writer.enable_verity(&sha512()).unwrap();
    assert!(matches!(writer.enable_verity(&Verity::default()), Err(Error::Exists)));
    let refused = [
        writer.write_at(b"x", 0),
        writer.write_at(b"x", SIZE as u64),
        writer.with_direct(true).write_at(&[1; 4096], 0),
        writer.write_late(&[1; 4096], 0),
        writer.write_late(&vec![1; 1 << 20], 0),
        writer.try_write_at(b"x", 0).map(drop),
        writer.with_direct(true).try_write_at(&[1; 4096], 4096).map(drop),
        writer.set_len(0),
        writer.set_len(1 << 20),
        writer.fallocate(FallocMode::PunchHole, 0, 4096),
        writer.fallocate(FallocMode::KeepSize, 0, 4096),
        writer.fallocate(FallocMode::CollapseRange, 0, 4096),
        reader.copy_range(0, &writer, 8192, 10).map(drop),
        volume.open_options().write(true).open("/f").map(drop),
        volume.open_options().append(true).open("/f").map(drop),
        volume.create_file("/f").map(drop),
        volume.root_node().unwrap().lookup("f").unwrap().set_len(5),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        let refused = refused.unwrap_err();
        assert!(matches!(refused.kind(), Error::NotPermitted(_)), "{number}: {refused}");
    }
    assert!(volume.read("/f").unwrap() == content());
    // Names and attributes may change.
    reader.set_xattr("user.a", b"1", lanefs::SetXattr::Any).unwrap();
    volume.rename("/f", "/g").unwrap();
    volume.hard_link("/g", "/h").unwrap();
    let meta = volume.metadata("/g").unwrap();
    assert!(meta.flags().contains(InodeFlags::VERITY) && meta.len() == SIZE as u64);
    let free = volume.statfs().blocks_free;
    drop((writer, reader));
    volume.remove_file("/g").unwrap();
    volume.remove_file("/h").unwrap();
    volume.sync().unwrap();
    assert!(volume.statfs().blocks_free > free + SIZE as u64 / 4096);
}

#[test]
fn options_that_cannot_be_leave_a_file_without_a_tree() {
    let device = Arc::new(MemDevice::new(16 << 20));
    let options = lanefs::mkfs::Options { block_size: Some(1024), ..Default::default() };
    lanefs::mkfs::format(&*device, &options).unwrap();
    let volume = open(&device);
    volume.write("/f", b"x").unwrap();
    let file = volume.open_file("/f").unwrap();
    for (block_size, salt) in [(512, 0), (2048, 0), (0, 0), (1000, 0), (1024, 33)] {
        let mut verity = Verity::default();
        (verity.block_size, verity.salt) = (Some(block_size), vec![0; salt]);
        assert!(matches!(file.enable_verity(&verity), Err(Error::Invalid(_))));
        assert_eq!(verity.room(1, 1024), None);
    }
    assert!(matches!(file.measure_verity(), Err(Error::NoData)));
    // 16 digests a block, and eight levels.
    assert!(sha512().room(4 << 40, 4096).is_some() && sha512().room((4 << 40) + 1, 4096).is_none());
    let dax = volume.create_file("/dax").unwrap();
    volume
        .node_at(dax.metadata().ino())
        .unwrap()
        .set_flags(dax.metadata().flags() | InodeFlags::DAX)
        .unwrap();
    assert!(matches!(dax.enable_verity(&Verity::default()), Err(Error::Invalid(_))));
    // A hole, whose tree the volume has no room for: no block of it is written.
    let sparse = volume.create_file("/sparse").unwrap();
    sparse.set_len(8 << 30).unwrap();
    let handles = || volume.stats().journal.handles;
    let before = handles();
    assert!(matches!(sparse.enable_verity(&Verity::default()), Err(Error::NoSpace)));
    // To the orphan list, a look for blocks behind the end, and off the list: no block was
    // allocated.
    assert_eq!(handles() - before, 3);
    // Full: the file is as it was, and can be written.
    let full = volume.create_file("/full").unwrap();
    while full.write_at(&[7; 1024], full.metadata().len()).is_ok() {}
    full.set_len(full.metadata().len() - 1024).unwrap();
    volume.sync().unwrap();
    let file = volume.open_options().read(true).write(true).open("/full").unwrap();
    drop(full);
    let size = file.metadata().len();
    assert!(matches!(file.enable_verity(&Verity::default()), Err(Error::NoSpace)));
    file.write_at(b"goes on", size - 10).unwrap();
    assert!(!file.metadata().flags().contains(InodeFlags::VERITY) && file.metadata().len() == size);
}

/// After a cut the file has its whole tree, or no flag and no block behind i_size.
#[test]
fn a_cut_while_a_file_gets_its_tree() {
    let dir = tempfile::tempdir().unwrap();
    for features in ["orphan_file", "^orphan_file"] {
        let path = dir.path().join("image");
        mke2fs(&path, 16 << 20, &["-t", "ext4", "-b", "1024", "-O", features]);
        let base = Image::from_bytes(std::fs::read(&path).unwrap());
        let mut dump = DumpFile::create(dir.path().join("state.img"), &base).unwrap();
        let device = Arc::new(RecordingDevice::new(base));
        let options = || OpenOptions::new().write(true).commit_interval(Duration::ZERO);
        let volume = options().open_device(Arc::clone(&device) as Arc<dyn BlockDevice>).unwrap();
        let names = ["/a", "/b"];
        for name in names {
            volume.write(name, &content()).unwrap();
        }
        volume.sync().unwrap();
        let start = device.mark("written");
        volume.open_file("/a").unwrap().enable_verity(&Verity::default()).unwrap();
        // Half of what follows is in one transaction with it.
        volume.open_file("/b").unwrap().enable_verity(&sha512()).unwrap();
        volume.sync().unwrap();
        device.mark("synced");
        volume.close().unwrap();
        let log = device.log();
        let mut seen = [false; 2];
        for state in log.crash_states(7, 6).filter(|state| state.cut > start) {
            let found = Arc::new(state.device());
            let volume = options().open_device(Arc::clone(&found) as Arc<dyn BlockDevice>).unwrap();
            for name in names {
                assert!(volume.read(name).unwrap() == content(), "{state}: {name}");
                let file = volume.open_file(name).unwrap();
                let has = file.metadata().flags().contains(InodeFlags::VERITY);
                assert_eq!(file.measure_verity().is_ok(), has, "{state}: {name}");
                let behind = file.fiemap(SIZE.next_multiple_of(1024) as u64..u64::MAX, 10).unwrap();
                assert_eq!(behind.is_empty(), !has, "{state}: {name}");
                let synced = state.marks(&log).any(|(_, mark)| mark == "synced");
                assert!(has || !synced, "{state}: {name}");
                seen[usize::from(has)] = true;
            }
            volume.close().unwrap();
            dump.set(&found.image()).unwrap();
            let (code, said) = e2fsck(dump.path(), &["-fn"]);
            assert_eq!(code, 0, "{state}: {said}");
        }
        assert_eq!(seen, [true; 2]);
    }
}

/// A cut between the orphan and the flag, for certain: the tree is committed, and the flag is not.
#[test]
fn a_tree_without_the_flag_is_freed() {
    let device = volume(4096, &Verity::default());
    let volume = open(&device);
    let ino = volume.metadata("/f").unwrap().ino();
    let free = volume.statfs().blocks_free;
    volume.close().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, device.to_bytes()).unwrap();
    debugfs_write(&path, "set_inode_field /f flags 0x80000");
    debugfs_write(&path, &format!("set_super_value last_orphan {ino}"));
    let device = Arc::new(MemDevice::from_bytes(std::fs::read(&path).unwrap()));
    let volume = open(&device);
    let file = volume.open_file("/f").unwrap();
    assert!(read_all(&file, 4096).unwrap() == content());
    assert!(file.fiemap((SIZE as u64).next_multiple_of(4096)..u64::MAX, 10).unwrap().is_empty());
    volume.sync().unwrap();
    assert!(volume.statfs().blocks_free > free);
}
