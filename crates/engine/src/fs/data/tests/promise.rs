//! A write that was accepted is kept, however full the volume is when it is written out.

use super::*;
use crate::store::alloc::{self, Reach};
use crate::store::space::Claim;
use lanefs_device::MemDevice;
use std::sync::Mutex;

const BLOCK: usize = 1024;
/// Entries of a full node of the extent tree.
const FULL: usize = 84;

/// Returns a file of four unwritten extents, as many as its inode has room for, on a volume without
/// a free block.
fn full() -> (Image, Arc<Fs>, InodeRef, Vec<alloc::Reserved>) {
    let image = Image::new("8M", KINDS[1]);
    let (ino, other) = (image.file("a"), image.file("full"));
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    for i in 0..4 {
        node.content().fallocate(FallocMode::KeepSize, i * 100 * BLOCK as u64, 20 * BLOCK as u64).unwrap();
    }
    let filler = fs.inode(other).unwrap();
    assert!(matches!(write(&filler, 0, &vec![1; 16 << 20]), Err(Error::NoSpace)));
    let mut at = filler.file().size();
    while write(&filler, at, &[1; BLOCK]).is_ok() {
        at += BLOCK as u64;
    }
    drop(filler);
    node.sync_all().unwrap();
    // The blocks that were left for nodes.
    let held = std::iter::from_fn(|| alloc::reserve(&fs, 0, 1, Reach::Volume).ok()).collect();
    assert_eq!(fs.alloc.free_blocks(), 0);
    (image, fs, node, held)
}

fn taken(written: &Result<()>) -> bool {
    match written {
        Ok(()) => true,
        Err(Error::NoSpace) => false,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn a_write_into_unwritten_blocks_that_was_taken_is_written_out() {
    for direct in [false, true] {
        let (image, fs, node, held) = full();
        let mut model = vec![0; 400 * BLOCK];
        // In the middle of each: a node is needed, or several.
        for i in 0..4 {
            for at in [3, 9, 15] {
                let at = (i * 100 + at) * BLOCK;
                let written = match direct {
                    true => write(&node, at as u64, &[7; BLOCK]),
                    false => buffered::write(&node, at as u64, &[7; BLOCK]),
                };
                if taken(&written) {
                    model[at..at + BLOCK].fill(7);
                }
            }
        }
        node.sync_all().unwrap();
        model.truncate(node.file().size() as usize);
        assert!(all(&node) == model);
        // It continues once there is space.
        drop(held);
        let filler = fs.inode(node.ino + 1).unwrap();
        filler.content().truncate(1 << 20).unwrap();
        drop(filler);
        buffered::write(&node, 3 * BLOCK as u64, &[9; BLOCK]).unwrap();
        node.sync_all().unwrap();
        drop(node);
        image.close(fs);
    }
}

/// A hole inside of an extent needs a node: the punch reports that, and nothing is lost.
#[test]
fn a_punch_that_finds_no_space_changes_nothing() {
    let (image, fs, node, held) = full();
    let full = fs.inode(node.ino + 1).unwrap();
    let before = all(&full);
    for (node, at) in [(&node, 5), (&full, 7)] {
        for _ in 0..2 {
            let punched = node.content().fallocate(FallocMode::PunchHole, at * BLOCK as u64, BLOCK as u64);
            assert!(matches!(punched, Ok(()) | Err(Error::NoSpace)), "{punched:?}");
            node.sync_all().unwrap();
        }
    }
    let mut after = all(&full);
    assert!(after.len() == before.len() && [0, 1].contains(&after[7 * BLOCK]));
    let byte = after[7 * BLOCK];
    after[7 * BLOCK..8 * BLOCK].copy_from_slice(&before[7 * BLOCK..8 * BLOCK]);
    assert!(after == before && before[7 * BLOCK] == 1, "{byte}");
    drop(held);
    // A punch up to the end needs no node.
    full.content().fallocate(FallocMode::PunchHole, 0, 2 << 20).unwrap();
    drop((node, full));
    image.close(fs);
}

/// One block in a hole of each of many full leaves: each of them is split, and needs a block of its
/// own.
#[test]
fn writes_into_many_full_leaves_that_were_taken_are_written_out() {
    const LEAVES: usize = 60;
    let image = Image::new("32M", KINDS[1]);
    let ino = image.file("a");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    let mut model = vec![0; LEAVES * FULL * 2 * BLOCK];
    for at in (0..LEAVES * FULL).map(|i| i * 2 * BLOCK) {
        model[at..at + BLOCK].fill(1);
        write(&node, at as u64, &[1; BLOCK]).unwrap();
    }
    node.sync_all().unwrap();
    // No hole has the block between its neighbours: it would join them into one extent.
    node.file().alloc.discard();
    let mut held = Vec::new();
    while fs.alloc.free_blocks() > LEAVES as u64 * 3 / 2 {
        held.push(alloc::reserve(&fs, 0, 1, Reach::Volume).unwrap());
    }
    let mut written = 0;
    for at in (0..LEAVES).map(|leaf| (leaf * FULL + FULL / 2) * 2 * BLOCK + BLOCK) {
        if taken(&buffered::write(&node, at as u64, &[2; BLOCK])) {
            model[at..at + BLOCK].fill(2);
            written += 1;
        }
    }
    node.sync_all().unwrap_or_else(|e| panic!("{written} blocks were taken: {e}"));
    assert!(written >= LEAVES / 2, "{written} blocks were taken");
    model.truncate(node.file().size() as usize);
    assert!(all(&node) == model);
    drop((node, held));
    image.close(fs);
}

/// Takes all free blocks.
fn take_all(fs: &Arc<Fs>) -> Vec<alloc::Reserved> {
    std::iter::from_fn(|| alloc::reserve(fs, 0, 1, Reach::Volume).ok()).collect()
}

/// A user changes a file of as many extents as its inode has room for, where only reserved blocks
/// are left for the node that one more extent needs.
#[test]
fn a_split_takes_reserved_blocks() {
    const BLOCK: u64 = 4096;
    for mode in [FallocMode::PunchHole, FallocMode::CollapseRange, FallocMode::InsertRange] {
        let image = Image::new("16M", KINDS[0]);
        let ino = image.file("f");
        let fs = image.open();
        let node = fs.inode(ino).unwrap();
        for i in 0..4 {
            node.content().fallocate(FallocMode::Allocate, i * 100 * BLOCK, 8 * BLOCK).unwrap();
        }
        node.sync_all().unwrap();
        let held = alloc::keeping_reserved(true, || take_all(&fs));
        let left = fs.alloc.free_blocks();
        assert!(left > 0, "no block is reserved");
        let change = || node.content().fallocate(mode, 3 * BLOCK, BLOCK);
        crate::Volume::keeping_reserved(change).unwrap_or_else(|e| panic!("{mode:?}: {e}"));
        assert_eq!(fs.alloc.free_blocks(), left - 1, "{mode:?}");
        drop((node, held));
        image.close(fs);
    }
}

/// A user's file that would fit only in reserved blocks is refused before it has taken others.
#[test]
fn a_preallocation_that_needs_reserved_blocks_takes_none() {
    let image = Image::new("16M", KINDS[0]);
    let ino = image.file("f");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    let before = fs.statfs();
    let blocks = before.blocks_available + (before.blocks_free - before.blocks_available) / 2;
    let allocate = || node.content().fallocate(FallocMode::Allocate, 0, blocks * 4096);
    let refused = crate::Volume::keeping_reserved(allocate);
    assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    assert_eq!(fs.statfs(), before);
    allocate().unwrap();
    drop(node);
    image.close(fs);
}

/// Pages become dirty while the file's tree is small. Before they are written out, writes past the
/// cache fill as many leaves.
#[test]
fn writes_that_were_taken_before_the_tree_grew_are_written_out() {
    const LEAVES: usize = 60;
    for unwritten in [false, true] {
        let image = Image::new("32M", KINDS[1]);
        let ino = image.file("a");
        let fs = image.open();
        let node = fs.inode(ino).unwrap();
        let mut model = vec![0; LEAVES * FULL * 2 * BLOCK];
        // No write past the cache has to write out what lies between i_disksize and it.
        node.content().truncate(model.len() as u64).unwrap();
        let waiting: Vec<_> = (0..LEAVES).map(|leaf| (leaf * FULL + FULL / 2) * 2 * BLOCK + BLOCK).collect();
        for at in waiting {
            model[at..at + BLOCK].fill(2);
            buffered::write(&node, at as u64, &[2; BLOCK]).unwrap();
        }
        for at in (0..LEAVES * FULL).map(|i| i * 2 * BLOCK) {
            match unwritten {
                true => node.content().fallocate(FallocMode::Allocate, at as u64, BLOCK as u64).unwrap(),
                false => {
                    model[at..at + BLOCK].fill(1);
                    write(&node, at as u64, &[1; BLOCK]).unwrap();
                }
            }
        }
        assert_eq!(fs.pages.dirty_bytes(), (LEAVES * BLOCK) as u64);
        node.file().alloc.discard();
        let held = take_all(&fs);
        node.sync_all().unwrap_or_else(|e| panic!("unwritten {unwritten}: {e}"));
        assert!(all(&node) == model);
        drop((node, held));
        image.close(fs);
    }
}

/// One block in each of several full nodes of the tree's second level: with the leaf, the node
/// above it is split.
#[test]
fn writes_into_many_full_index_nodes_that_were_taken_are_written_out() {
    const NODES: usize = 10;
    let image = Image::new("192M", KINDS[1]);
    let ino = image.file("a");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    for i in 0..NODES * FULL * FULL {
        buffered::write(&node, (i * 2 * BLOCK) as u64, &[1; BLOCK]).unwrap();
    }
    node.sync_all().unwrap();
    // No hole has the block between its neighbours: it would join them into one extent.
    node.file().alloc.discard();
    for i in 0..NODES {
        let at = ((i * FULL + FULL / 2) * FULL + FULL / 2) * 2 * BLOCK + BLOCK;
        buffered::write(&node, at as u64, &[2; BLOCK]).unwrap();
    }
    let held = take_all(&fs);
    node.sync_all().unwrap();
    drop((node, held));
    image.close(fs);
}

/// Claims are given back to the last block, whether their pages were written out, cut off or
/// refused.
#[test]
fn nothing_is_claimed_when_all_is_written_out() {
    let ways = [
        crate::WritebackMode::MapAfter,
        crate::WritebackMode::DioreadLock,
        crate::WritebackMode::DioreadNolock,
    ];
    for (kind, way) in [1, 3].into_iter().flat_map(|kind| ways.map(|way| (kind, way))) {
        let image = Image::new("8M", KINDS[kind]);
        let inos = [image.file("a"), image.file("b")];
        let options = OpenOptions::new().write(true).use_reserved(true).commit_interval(Duration::ZERO);
        let device = Arc::new(FileDevice::open(PathBuf::from(image.path())).unwrap());
        let fs = Fs::open(device, options.writeback(way)).unwrap();
        let nodes = inos.map(|ino| fs.inode(ino).unwrap());
        let mut rng = StdRng::seed_from_u64(kind as u64);
        for step in 0..1500 {
            let node = &nodes[rng.random_range(0..2)];
            let (at, len) = (rng.random_range(0..8 << 20), rng.random_range(1..20_000));
            let done = match rng.random_range(0..9) {
                0..3 => buffered::write(node, at, &vec![1; len]),
                3..5 => write(node, at, &vec![2; len]),
                5 => buffered::write(node, at / 2048 * 2048, &[3; BLOCK]),
                6 => node.content().fallocate(FallocMode::KeepSize, at, len as u64 * 4),
                7 => node.content().fallocate(FallocMode::PunchHole, at, len as u64),
                _ if rng.random_range(0..30) == 0 => node.content().truncate(at),
                _ => Ok(()),
            };
            assert!(matches!(done, Ok(()) | Err(Error::NoSpace | Error::NotSupported(_))), "{done:?}");
            if step % 50 == 0 {
                for node in &nodes {
                    node.sync_all().unwrap_or_else(|e| panic!("{way:?}, kind {kind}, step {step}: {e}"));
                }
                assert!(!fs.alloc.has_claims(), "{way:?}, kind {kind}, step {step}");
            }
        }
        drop(nodes);
        image.close(fs);
    }
}

/// A device on which another thread finds no space when the block bitmap is read: then the claims
/// of dirty pages have been taken, and blocks for them are being chosen.
#[derive(Debug)]
struct Refusing {
    inner: Arc<MemDevice>,
    /// The place of the bitmap.
    at: u64,
    /// The file that the other thread writes to.
    node: Mutex<Option<InodeRef>>,
    /// What it takes, in place of another file.
    taken: Mutex<Option<Claim>>,
}

impl BlockDevice for Refusing {
    forward_to!(inner: size read_only write_at flush discard);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> lanefs_device::Result<()> {
        if offset == self.at
            && let Some(node) = self.node.lock().unwrap().take()
        {
            // In another thread, because this one holds locks.
            let refused = std::thread::spawn(move || {
                let refused = node.content().claim(std::iter::once(260..261));
                assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
                alloc::claim(&node.fs, node.fs.alloc.free_blocks()).unwrap()
            });
            *self.taken.lock().unwrap() = Some(refused.join().unwrap());
        }
        self.inner.read_at(buf, offset)
    }
}

/// A write that is refused releases nothing of what pages in writeback need, even where no other
/// page is dirty.
#[test]
fn a_refused_write_takes_nothing_from_a_writeback() {
    const BLOCK: u64 = 4096;
    let inner = Arc::new(MemDevice::new(16 << 20));
    let options = lanefs_mkfs::Options { block_size: Some(BLOCK as u32), ..Default::default() };
    lanefs_mkfs::format(&*inner, &options).unwrap();
    let options = || OpenOptions::new().write(true).use_reserved(true).commit_interval(Duration::ZERO);
    let volume = options().open_device(inner.clone()).unwrap();
    let file = volume.create_file("/f").unwrap();
    for i in 0..4 {
        file.fallocate(FallocMode::Allocate, i * 100 * BLOCK, BLOCK).unwrap();
    }
    let at = alloc::read_desc(&file.inode().fs, 0).unwrap().block_bitmap * BLOCK;
    drop(file);
    volume.close().unwrap();
    let (node, taken) = (Mutex::default(), Mutex::default());
    let device = Arc::new(Refusing { inner, at, node, taken });
    let volume = options().open_device(device.clone()).unwrap();
    let file = volume.open_options().read(true).write(true).open("/f").unwrap();
    // The inode has room for four extents: this one needs a node.
    file.write_at(&[7; BLOCK as usize], 250 * BLOCK).unwrap();
    let fs = &file.inode().fs;
    let rest = alloc::claim(fs, fs.alloc.free_blocks()).unwrap();
    *device.node.lock().unwrap() = Some(file.inode().clone());
    file.sync_all().unwrap();
    assert!(device.taken.lock().unwrap().take().is_some(), "the bitmap was not read");
    drop(rest);
    let mut read = [0; BLOCK as usize];
    assert_eq!(file.read_at(&mut read, 250 * BLOCK).unwrap(), read.len());
    assert_eq!(read, [7; BLOCK as usize]);
    assert!(!fs.alloc.has_claims());
    drop(file);
    volume.close().unwrap();
}
