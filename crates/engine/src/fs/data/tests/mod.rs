//! File content on volumes of mke2fs, judged by e2fsck and debugfs.

mod ahead;
mod batch;
mod close;
mod damaged;
mod dax;
mod ends;
mod failures;
mod fallocate;
mod half;
mod held;
mod kernel;
mod late;
mod panic;
mod past;
mod placed;
mod power;
mod promise;
mod rounds;
mod shift;
mod sizes;
mod sync;
mod tables;
mod tree;
mod version;
mod wide;
mod zones;

use super::*;
use crate::error::Error;
use crate::fs::Fs;
use crate::fs::OpenOptions;
use crate::fs::inode::InodeRef;
use lanefs_device::{BlockDevice, FileDevice, ReadOp, WriteOp, forward_to};
use lanefs_format::InodeFlags;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// The kinds of volume that differ in the map of a file.
const KINDS: [&[&str]; 5] = [
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit"],
    &["-t", "ext3", "-b", "1024"],
    &["-t", "ext4", "-b", "4096", "-O", "^extents,^64bit"],
];

// Past the cache, unless a test says otherwise.
fn read(node: &CachedInode, offset: u64, buf: &mut [u8]) -> Result<usize> {
    node.content().read(buf, offset, Caching::Direct)
}

fn write(node: &CachedInode, offset: u64, bytes: &[u8]) -> Result<()> {
    node.content().write(bytes, offset, Caching::Direct, &mut 0)
}

fn append(node: &CachedInode, bytes: &[u8]) -> Result<u64> {
    append_by(node, bytes, Caching::Direct)
}

/// Returns where the bytes begin.
fn append_by(node: &CachedInode, bytes: &[u8], caching: Caching) -> Result<u64> {
    let mut at = 0;
    node.content().append(bytes, caching, &mut at, &mut 0).map(|()| at)
}

/// Through the cache.
mod buffered {
    use super::{CachedInode, Caching, Result};

    pub(super) fn read(node: &CachedInode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        node.content().read(buf, offset, Caching::Cached)
    }

    pub(super) fn write(node: &CachedInode, offset: u64, bytes: &[u8]) -> Result<()> {
        node.content().write(bytes, offset, Caching::Cached, &mut 0)
    }

    pub(super) fn append(node: &CachedInode, bytes: &[u8]) -> Result<u64> {
        super::append_by(node, bytes, Caching::Cached)
    }
}

/// A volume of mke2fs in a file that is removed with it.
struct Image {
    dir: TempDir,
}

fn run(program: &str, args: &[&str]) -> (i32, String) {
    let out = Command::new(program).args(args).env("LC_ALL", "C").output();
    let out = out.unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = [out.stdout, out.stderr].concat();
    (out.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

impl Image {
    fn new(size: &str, options: &[&str]) -> Self {
        let image = Self { dir: TempDir::new().unwrap() };
        let path = image.path();
        let (code, text) = run("mke2fs", &[&["-q", "-F"], options, &[&path, size]].concat());
        assert_eq!(code, 0, "{text}");
        image
    }

    fn path(&self) -> String {
        self.dir.path().join("image").to_str().unwrap().to_owned()
    }

    fn debugfs(&self, command: &str) -> String {
        run("debugfs", &["-w", "-R", command, &self.path()]).1
    }

    /// Makes an empty file. Returns its number.
    fn file(&self, name: &str) -> u32 {
        let text = self.debugfs(&format!("write /dev/null {name}"));
        let number = text.split("Allocated inode:").nth(1).and_then(|s| s.split_whitespace().next());
        number.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    }

    fn dump(&self, name: &str) -> Vec<u8> {
        let to = self.dir.path().join("dump");
        self.debugfs(&format!("dump {name} {}", to.display()));
        std::fs::read(to).unwrap()
    }

    fn open(&self) -> Arc<Fs> {
        let device = Arc::new(FileDevice::open(PathBuf::from(self.path())).unwrap());
        self.open_on(device)
    }

    fn open_on(&self, device: Arc<dyn BlockDevice>) -> Arc<Fs> {
        // Without a timer: the counts are those of the calls alone.
        let options = OpenOptions::new().write(true).use_reserved(true).commit_interval(Duration::ZERO);
        Fs::open(device, options).unwrap()
    }

    /// Closes the volume and runs e2fsck.
    fn close(&self, fs: Arc<Fs>) {
        fs.close().unwrap();
        assert_eq!(fs.journal.stats().credits_overdrawn, 0);
        drop(fs);
        let (code, text) = run("e2fsck", &["-fn", &self.path()]);
        assert_eq!(code, 0, "{text}");
    }
}

fn bytes(rng: &mut StdRng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill_bytes(&mut bytes);
    bytes
}

fn all(node: &InodeRef) -> Vec<u8> {
    let size = node.file().size();
    let mut content = vec![0xAA; size as usize + 10];
    let n = read(node, 0, &mut content).unwrap();
    assert_eq!(n as u64, size);
    content.truncate(n);
    content
}

/// One file under random writes, appends and truncations; `model` is what it should hold.
fn churn(node: &InodeRef, model: &mut Vec<u8>, rng: &mut StdRng, steps: u32, span: usize) {
    for _ in 0..steps {
        match rng.random_range(0..10) {
            0..6 => {
                let at = rng.random_range(0..span);
                let len = [1, 100, 1024, 5000, 4096, 70_000][rng.random_range(0..6usize)];
                let len = rng.random_range(1..=len);
                let data = bytes(rng, len);
                match rng.random_bool(0.5) {
                    true => write(node, at as u64, &data).unwrap(),
                    false => buffered::write(node, at as u64, &data).unwrap(),
                }
                if model.len() < at + data.len() {
                    model.resize(at + data.len(), 0);
                }
                model[at..at + data.len()].copy_from_slice(&data);
            }
            6 => {
                let data = bytes(rng, 3000);
                let at = match rng.random_bool(0.5) {
                    true => append(node, &data).unwrap(),
                    false => buffered::append(node, &data).unwrap(),
                };
                assert_eq!(at, model.len() as u64);
                model.extend(data);
            }
            _ => {
                let len = rng.random_range(0..span);
                node.content().truncate(len as u64).unwrap();
                model.resize(len, 0);
            }
        }
        let at = rng.random_range(0..span);
        let mut piece = vec![0xAA; 9000];
        let n = match rng.random_bool(0.3) {
            true => read(node, at as u64, &mut piece).unwrap(),
            false => buffered::read(node, at as u64, &mut piece).unwrap(),
        };
        assert_eq!(piece[..n], model[at.min(model.len())..(at + 9000).min(model.len())]);
    }
    assert_eq!(all(node), *model);
}

#[test]
fn random_writes_and_truncations_on_each_kind_of_volume() {
    for (seed, kind) in KINDS.into_iter().enumerate() {
        let image = Image::new("24M", kind);
        let (a, b) = (image.file("a"), image.file("b"));
        let mut rng = StdRng::seed_from_u64(seed as u64);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let fs = image.open();
            let (first, second) = (fs.inode(a).unwrap(), fs.inode(b).unwrap());
            churn(&first, &mut x, &mut rng, 60, 3_000_000);
            churn(&second, &mut y, &mut rng, 60, 200_000);
            drop((first, second));
            image.close(fs);
            assert_eq!((image.dump("a"), image.dump("b")), (x.clone(), y.clone()), "{kind:?}");
        }
    }
}

/// Counts the requests that a test asks for, and requires an alignment.
#[derive(Debug)]
struct Strict {
    inner: FileDevice,
    align: usize,
}

impl BlockDevice for Strict {
    forward_to!(inner: size read_only flush discard);

    fn alignment(&self) -> usize {
        self.align
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> lanefs_device::Result<()> {
        assert!(offset.is_multiple_of(self.align as u64) && buf.len().is_multiple_of(self.align));
        assert!(buf.as_ptr().addr().is_multiple_of(self.align));
        self.inner.read_at(buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        assert!(offset.is_multiple_of(self.align as u64) && data.len().is_multiple_of(self.align));
        assert!(data.as_ptr().addr().is_multiple_of(self.align));
        self.inner.write_at(data, offset)
    }
    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> lanefs_device::Result<()> {
        ops.iter_mut().try_for_each(|op| self.read_at(op.buf, op.offset))
    }
    fn write_batch(&self, ops: &[WriteOp<'_>]) -> lanefs_device::Result<()> {
        for op in ops {
            let mut at = op.offset;
            for piece in op.data.iter().filter(|p| !p.is_empty()) {
                self.write_at(piece, at)?;
                at += piece.len() as u64;
            }
        }
        Ok(())
    }
}

#[test]
fn a_device_that_wants_whole_sectors() {
    let image = Image::new("16M", KINDS[0]);
    let ino = image.file("a");
    let mut rng = StdRng::seed_from_u64(7);
    let mut model = Vec::new();
    let inner = FileDevice::open(PathBuf::from(image.path())).unwrap();
    let fs = image.open_on(Arc::new(Strict { inner, align: 512 }));
    let node = fs.inode(ino).unwrap();
    churn(&node, &mut model, &mut rng, 80, 400_000);
    drop(node);
    image.close(fs);
    assert_eq!(image.dump("a"), model);
}

/// Every other block, so that each is an extent of its own, in an order that splits leaves.
#[test]
fn a_file_of_many_extents() {
    for kind in [KINDS[1], KINDS[3]] {
        let image = Image::new("96M", kind);
        let ino = image.file("a");
        let fs = image.open();
        let node = fs.inode(ino).unwrap();
        const N: u64 = 9000;
        for i in 0..N {
            // Coprime to N: each once, all over the file.
            let block = i * 4001 % N * 2;
            write(&node, block * 1024, &block.to_le_bytes().repeat(128)).unwrap();
        }
        let check = |from: u64, to: u64| {
            let mut block = [0; 1024];
            for i in (0..N * 2 - 1).step_by(97).filter(|i| (from..to).contains(i)) {
                read(&node, i * 1024, &mut block).unwrap();
                let want = if i % 2 == 0 { i } else { 0 };
                assert_eq!(block[..], want.to_le_bytes().repeat(128)[..]);
            }
        };
        check(0, N * 2);
        if kind[1] == "ext4" {
            assert!(node.state().i_block[6] >= 2, "depth {}", node.state().i_block[6]);
        }
        let used = node.state().blocks;
        node.content().truncate(N * 1024 + 5).unwrap();
        check(0, N);
        assert!(node.state().blocks <= used / 2 + 20, "{} of {used} sectors left", node.state().blocks);
        node.content().truncate(0).unwrap();
        assert_eq!(node.state().blocks, 0);
        assert!(map::is_empty(&node.state()));
        drop(node);
        image.close(fs);
    }
}

/// debugfs makes the extents; writes into the middle and at the ends convert parts of them.
#[test]
fn unwritten_extents_read_as_zeros_until_written() {
    for kind in [KINDS[0], KINDS[1]] {
        let image = Image::new("24M", kind);
        let ino = image.file("a");
        // The old content of the blocks must not show.
        let junk = image.file("junk");
        let fs = image.open();
        let node = fs.inode(junk).unwrap();
        write(&node, 0, &vec![0x5A; 15_000_000]).unwrap();
        node.content().truncate(0).unwrap();
        drop(node);
        image.close(fs);
        let text = image.debugfs("fallocate a 0 899");
        image.debugfs("sif a size 300000");
        let fs = image.open();
        let node = fs.inode(ino).unwrap();
        let unwritten = |lblk| map::lookup(&fs, &node.state(), lblk).unwrap();
        assert!(matches!(unwritten(0), Mapping::Mapped { unwritten: true, .. }), "{text}");
        let mut model = vec![0; 300_000];
        assert_eq!(all(&node), model);
        let mut rng = StdRng::seed_from_u64(3);
        for (at, len) in [(5000, 10), (0, 1), (100_000, 9000), (20_479, 2), (299_000, 3000), (50_000, 30_000)]
        {
            let data = bytes(&mut rng, len);
            write(&node, at as u64, &data).unwrap();
            model.resize(model.len().max(at + len), 0);
            model[at..at + len].copy_from_slice(&data);
            assert_eq!(all(&node), model);
        }
        drop(node);
        image.close(fs);
        assert_eq!(image.dump("a"), model);
    }
}

#[test]
fn a_full_volume_loses_nothing() {
    for kind in KINDS {
        let image = Image::new("9M", kind);
        let (full, small) = (image.file("full"), image.file("small"));
        let fs = image.open();
        let node = fs.inode(full).unwrap();
        let data = bytes(&mut StdRng::seed_from_u64(1), 16 << 20);
        let e = write(&node, 0, &data).unwrap_err();
        assert!(matches!(e, Error::NoSpace), "{e}");
        let size = node.state().size as usize;
        // But for a node that might have been needed, every block was used.
        assert!(size > 1 << 20 && fs.alloc.free_blocks() <= 2, "{size}, {} free", fs.alloc.free_blocks());
        assert!(all(&node) == data[..size]);
        let other = fs.inode(small).unwrap();
        // A hole needs blocks that are not there; the file stays as it was.
        while append(&other, &[1; 1024]).is_ok() {}
        let before = all(&other);
        assert!(matches!(write(&other, 1 << 20, &[1; 9000]), Err(Error::NoSpace)));
        assert_eq!(all(&other)[..before.len()], before);
        // Blocks that a truncation frees can be used at once, though their freeing has not
        // committed.
        node.content().truncate(0).unwrap();
        write(&other, 0, &data[..1 << 20]).unwrap();
        assert!(all(&other)[..1 << 20] == data[..1 << 20]);
        drop((node, other));
        image.close(fs);
    }
}

#[test]
fn the_largest_files() {
    for (kind, blocks, block_size) in
        [(KINDS[0], u64::from(u32::MAX), 4096), (KINDS[3], 12 + 256 + 256 * 256 + 256 * 256 * 256, 1024)]
    {
        let image = Image::new("16M", kind);
        let ino = image.file("a");
        let fs = image.open();
        let node = fs.inode(ino).unwrap();
        let max = blocks * block_size;
        assert!(matches!(write(&node, max - 1, b"ab"), Err(Error::FileTooBig)));
        assert!(matches!(write(&node, u64::MAX, b"a"), Err(Error::FileTooBig)));
        assert!(matches!(node.content().truncate(max + 1), Err(Error::FileTooBig)));
        assert_eq!(node.state().size, 0);
        write(&node, max - 1, b"z").unwrap();
        write(&node, 0, b"a").unwrap();
        let mut byte = [0; 2];
        assert_eq!((read(&node, max - 1, &mut byte).unwrap(), byte[0]), (1, b'z'));
        assert_eq!((read(&node, max / 2, &mut byte).unwrap(), byte), (2, [0, 0]));
        assert_eq!(read(&node, max, &mut byte).unwrap(), 0);
        // With room for more, and with cached pages that might be newer.
        buffered::write(&node, max - 1, b"y").unwrap();
        let mut room = [0; 5000];
        assert_eq!((read(&node, max - 1, &mut room).unwrap(), room[0]), (1, b'y'));
        assert_eq!((buffered::read(&node, max - 1, &mut room).unwrap(), room[0]), (1, b'y'));
        node.content().truncate(max / 2).unwrap();
        node.content().truncate(1).unwrap();
        assert_eq!(node.state().blocks, block_size / 512);
        drop(node);
        image.close(fs);
        assert_eq!(image.dump("a"), b"a");
    }
}

/// Without extents, a map has numbers of 32 bits. The test lowers that bound, in place of a volume
/// of more than 16 TiB.
#[test]
fn a_map_of_numbers_gets_no_block_that_it_cannot_number() {
    for caching in [Caching::Direct, Caching::Cached] {
        let image = Image::new("64M", KINDS[3]);
        let ino = image.file("f");
        let fs = image.open();
        let end = fs.layout().group_first_block(5).unwrap();
        fs.alloc.set_low_blocks(end);
        let node = fs.inode(ino).unwrap();
        let mut at = 0;
        let full = loop {
            let written = node.content().write(&vec![7; 1 << 20], at, caching, &mut 0);
            match written.and_then(|()| node.sync_all()) {
                Ok(()) => at += 1 << 20,
                Err(e) => break e,
            }
        };
        assert!(matches!(full, Error::NoSpace), "{full}");
        assert!(at >= 10 << 20 && fs.alloc.free_blocks() > 10 << 10, "{at}");
        node.content().truncate(at).unwrap();
        drop(node);
        image.close(fs);
        // With the blocks of numbers.
        let text = image.debugfs("blocks f");
        let blocks: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert!(blocks.len() as u64 > at >> 10, "{text}");
        assert!(blocks.iter().all(|block| *block < end), "{blocks:?}");
    }
}

/// The bytes behind the end of the file are zeros on the device itself, as the kernel expects.
#[test]
fn the_tail_of_the_last_block_is_zeroed() {
    let image = Image::new("16M", KINDS[0]);
    let ino = image.file("a");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    write(&node, 0, &[7; 8192]).unwrap();
    node.content().truncate(5000).unwrap();
    let Mapping::Mapped { block, .. } = map::lookup(&fs, &node.state(), 1).unwrap() else { panic!() };
    let mut raw = [1; 4096];
    fs.device.read_at(&mut raw, fs.byte_of(block)).unwrap();
    assert_eq!((raw[..904].to_vec(), raw[904..].to_vec()), (vec![7; 904], vec![0; 4096 - 904]));
    // Bytes there do not show when the file grows, whatever wrote them.
    for grow in [true, false] {
        fs.device.write_at(&[9; 3000], fs.byte_of(block) + 904).unwrap();
        match grow {
            true => node.content().truncate(6000).unwrap(),
            false => write(&node, 7000, b"x").unwrap(),
        }
        assert!(all(&node)[5000..].iter().all(|b| *b == 0 || *b == b'x'));
        node.content().truncate(5000).unwrap();
    }
    drop(node);
    image.close(fs);
}

/// A file of one large write is a few large extents, and one handle maps it.
#[test]
fn a_large_write_is_one_extent_and_one_handle() {
    let image = Image::new("64M", KINDS[0]);
    let ino = image.file("a");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    let before = fs.journal.stats().handles;
    write(&node, 0, &vec![3; 8 << 20]).unwrap();
    assert_eq!(fs.journal.stats().handles - before, 1);
    let Mapping::Mapped { len, .. } = map::lookup(&fs, &node.state(), 0).unwrap() else { panic!() };
    assert_eq!(len, 2048);
    drop(node);
    image.close(fs);
}

/// Recovery finishes a truncation that a crash interrupted: it frees the blocks behind i_size of an
/// orphan.
#[test]
fn deletion_and_tails_free_everything() {
    for kind in KINDS {
        let image = Image::new("24M", kind);
        let ino = image.file("a");
        let fs = image.open();
        let node = fs.inode(ino).unwrap();
        let mut rng = StdRng::seed_from_u64(5);
        let mut model = Vec::new();
        churn(&node, &mut model, &mut rng, 20, 3_000_000);
        write(&node, 0, &vec![1; 3_000_000]).unwrap();
        // As recovery finds it: the size is set and nothing has been freed.
        fs.transact(20, |txn| {
            node.update(txn, |txn, inode| {
                inode.size = 5001;
                crate::store::orphan::add(txn, ino)
            })
        })
        .unwrap();
        node.truncate_tail().unwrap();
        assert!(node.state().blocks <= 16, "{}", node.state().blocks);
        fs.transact(20, |txn| node.update(txn, |txn, inode| crate::store::orphan::settle(txn, inode)))
            .unwrap();
        assert_eq!(all(&node), vec![1; 5001]);
        node.truncate_for_delete().unwrap();
        assert_eq!(node.state().blocks, 0);
        node.content().truncate(0).unwrap();
        drop(node);
        image.close(fs);
    }
}

#[test]
fn flags_that_forbid_change() {
    let image = Image::new("8M", KINDS[0]);
    let ino = image.file("a");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    write(&node, 0, b"abc").unwrap();
    let set = |flags| {
        fs.transact(4, |txn| {
            node.update(txn, |_, inode| {
                inode.flags.remove(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
                inode.flags |= flags;
                Ok(())
            })
        })
        .unwrap();
    };
    set(InodeFlags::APPEND);
    assert!(matches!(write(&node, 1, b"x"), Err(Error::NotPermitted(_))));
    assert!(matches!(node.content().truncate(1), Err(Error::NotPermitted(_))));
    append(&node, b"d").unwrap();
    set(InodeFlags::IMMUTABLE);
    assert!(matches!(append(&node, b"x"), Err(Error::NotPermitted(_))));
    assert!(matches!(node.content().truncate(0), Err(Error::NotPermitted(_))));
    assert_eq!(all(&node), b"abcd");
    set(InodeFlags::empty());
    drop(node);
    image.close(fs);
}

/// Blocks that held nodes of a map become data: no old copy of a node overwrites them.
#[test]
fn blocks_of_the_map_become_data() {
    for kind in [KINDS[1], KINDS[3]] {
        let image = Image::new("9M", kind);
        let (a, b) = (image.file("a"), image.file("b"));
        let data = bytes(&mut StdRng::seed_from_u64(9), 16 << 20);
        for _ in 0..3 {
            let fs = image.open();
            let (first, second) = (fs.inode(a).unwrap(), fs.inode(b).unwrap());
            second.content().truncate(0).unwrap();
            for i in 0..1000 {
                write(&first, i * 7919 % 1000 * 2048, &[i as u8; 1024]).unwrap();
            }
            first.content().truncate(0).unwrap();
            assert!(matches!(write(&second, 0, &data), Err(Error::NoSpace)));
            let size = second.state().size as usize;
            // Metadata changes on top, for the log to hold more than the end of the story.
            first.content().truncate(5).unwrap();
            drop((first, second));
            image.close(fs);
            assert!(image.dump("b") == data[..size]);
        }
    }
}

/// More to free than one transaction of a small journal has credits for.
#[test]
fn a_cut_in_many_transactions() {
    let image = Image::new("128M", &["-t", "ext4", "-b", "1024", "-J", "size=1", "-g", "256"]);
    let ino = image.file("a");
    let fs = image.open();
    let node = fs.inode(ino).unwrap();
    let data = vec![1; 4 << 20];
    for i in 0..25 {
        write(&node, i * 4_195_328, &data).unwrap();
    }
    let before = fs.journal.stats().commits;
    node.content().truncate(1000).unwrap();
    assert!(fs.journal.stats().commits > before);
    assert_eq!(node.state().blocks, 2);
    drop(node);
    image.close(fs);
}
