//! The cache against a model, and what must never be given out.

use super::CachedDevice;
use crate::{BlockDevice, FileOptions, create_url, errno, open_url};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

const SIZE: u64 = (8 << 20) + 512;

struct Bench {
    dir: tempfile::TempDir,
    size: &'static str,
}

impl Bench {
    /// A volume with a content that its place tells.
    fn new(size: &'static str) -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap(), size };
        let base = create_url(bench.base(), SIZE, &FileOptions::new()).unwrap();
        base.write_at(&content(0..SIZE), 0).unwrap();
        bench
    }

    fn base(&self) -> PathBuf {
        self.dir.path().join("base")
    }

    fn open(&self, write: bool) -> crate::Result<Arc<dyn BlockDevice>> {
        let (base, dir) = (self.base(), self.dir.path().join("cache"));
        let name = format!("cached:{},dir={},size={}", base.display(), dir.display(), self.size);
        open_url(name, &FileOptions::new().read_only(!write))
    }

    /// The file of the cache.
    fn file(&self) -> File {
        let mut files = std::fs::read_dir(self.dir.path().join("cache")).unwrap();
        let path = files.next().unwrap().unwrap().path();
        File::options().read(true).write(true).open(path).unwrap()
    }

    /// Changes the base past the cache, without a trace in its first bytes.
    fn meddle(&self, offset: u64) {
        File::options().write(true).open(self.base()).unwrap().write_all_at(b"meddled", offset).unwrap();
    }
}

fn content(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|at| (at / 11 + at / 5000) as u8).collect()
}

fn read(device: &dyn BlockDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.read_at(&mut bytes, offset).unwrap();
    bytes
}

fn is_cached(device: &Arc<dyn BlockDevice>) -> bool {
    device.name().is_some_and(|name| name.starts_with("cached:"))
}

#[test]
fn what_was_read_is_kept() {
    let bench = Bench::new("100M");
    let device = bench.open(false).unwrap();
    assert!(is_cached(&device));
    for (offset, len) in [(0, 1), (100_000, 9000), (SIZE - 700, 700), (4096, 4096), (1 << 20, 1 << 20)] {
        assert_eq!(read(&*device, offset, len), content(offset..offset + len as u64), "{offset}");
    }
    bench.meddle(100_100);
    assert_eq!(read(&*device, 100_000, 9000), content(100_000..109_000));
    // Another process shares it.
    let second = bench.open(false).unwrap();
    assert!(is_cached(&second));
    assert_eq!(read(&*second, 100_000, 9000), content(100_000..109_000));
    drop((device, second));
    assert_eq!(read(&*bench.open(false).unwrap(), SIZE - 5, 5), content(SIZE - 5..SIZE));
}

#[test]
fn a_damaged_block_is_read_again() {
    let bench = Bench::new("100M");
    let device = bench.open(false).unwrap();
    read(&*device, 0, 4 << 20);
    let file = bench.file();
    let end = file.metadata().unwrap().len();
    for at in (4096..end).step_by(1000) {
        file.write_all_at(&[0x5a], at).unwrap();
    }
    assert_eq!(read(&*device, 0, 4 << 20), content(0..4 << 20));
    file.set_len(100).unwrap();
    assert_eq!(read(&*device, 0, 4 << 20), content(0..4 << 20));
}

#[test]
fn a_base_that_has_changed_is_read_anew() {
    let bench = Bench::new("100M");
    read(&*bench.open(false).unwrap(), 0, 1 << 20);
    bench.meddle(1024);
    bench.meddle(500_000);
    let seen = read(&*bench.open(false).unwrap(), 500_000, 7);
    assert_eq!(seen, b"meddled");
}

#[test]
fn writes_go_through_and_are_seen() {
    let bench = Bench::new("100M");
    let device = bench.open(true).unwrap();
    let mut model = content(0..SIZE);
    read(&*device, 0, SIZE as usize);
    device.write_at(&[1; 700], 5000).unwrap();
    model[5000..5700].fill(1);
    device.write_zeroes(70_000, 70_000).unwrap();
    model[70_000..140_000].fill(0);
    device.write_shared(&[2; 512], SIZE - 512).unwrap();
    model[SIZE as usize - 512..].fill(2);
    assert!(read(&*device, 0, SIZE as usize) == model);
    assert!(std::fs::read(bench.base()).unwrap() == model);
    let refused = bench.open(true).unwrap_err();
    assert_eq!(refused.errno(), errno::EBUSY);
    drop(device);
    // The cache of a writer that has closed is kept.
    bench.meddle(1 << 20);
    let again = bench.open(false).unwrap();
    assert!(read(&*again, 0, SIZE as usize) == model);
}

#[test]
fn the_cache_of_a_writer_that_died_is_dropped() {
    let bench = Bench::new("100M");
    let device = bench.open(true).unwrap();
    read(&*device, 0, SIZE as usize);
    let before = bench.file();
    let mut header = [0; 4096];
    before.read_exact_at(&mut header, 0).unwrap();
    drop(device);
    // As a process leaves it that is killed.
    before.write_all_at(&header, 0).unwrap();
    bench.meddle(1 << 20);
    assert_eq!(read(&*bench.open(false).unwrap(), 1 << 20, 7), b"meddled");
}

#[test]
fn the_cache_is_bounded() {
    let bench = Bench::new("4M");
    let device = bench.open(false).unwrap();
    for round in 0..3 {
        for at in (0..SIZE - 4096).step_by(4096) {
            assert_eq!(read(&*device, at, 4096), content(at..at + 4096), "round {round}");
        }
        use std::os::unix::fs::MetadataExt;
        let kept = bench.file().metadata().unwrap().blocks() * 512;
        assert!((1 << 20..5 << 20).contains(&kept), "{kept} bytes kept");
    }
}

/// A piece here and there of a large volume: the pages of its entries would be more than the bound.
#[test]
fn entries_are_given_back_with_their_blocks() {
    const STEP: u64 = 2 << 20;
    const COUNT: u64 = 400;
    let bench = Bench::new("1M");
    drop(create_url(bench.base(), COUNT * STEP, &FileOptions::new()).unwrap());
    let device = bench.open(false).unwrap();
    (0..COUNT).for_each(|n| drop(read(&*device, n * STEP, 4096)));
    let last = COUNT - 8..COUNT;
    last.clone().for_each(|n| bench.meddle(n * STEP));
    let kept = last.filter(|n| read(&*device, n * STEP, 7) == [0_u8; 7]).count();
    assert!(kept >= 6, "{kept} of the last 8 pieces are kept");
}

/// What a writer forgets that the cache never had takes no space.
#[test]
fn a_block_that_was_not_kept_is_forgotten_without_a_trace() {
    use std::os::unix::fs::MetadataExt;
    let bench = Bench::new("100M");
    let device = bench.open(true).unwrap();
    let before = bench.file().metadata().unwrap().blocks();
    for at in (0..SIZE - 512).step_by(1 << 20) {
        device.write_at(&[1; 512], at).unwrap();
    }
    assert_eq!(bench.file().metadata().unwrap().blocks(), before);
}

#[test]
fn a_reader_without_a_lock_has_no_cache() {
    let bench = Bench::new("100M");
    let device = bench.open(false).unwrap();
    let dir = bench.dir.path().join("cache");
    let options = FileOptions::new().read_only(true).unlocked(true);
    let unlocked = CachedDevice::open(bench.base().as_os_str(), &dir, 1 << 30, &options).unwrap();
    assert!(!is_cached(&unlocked));
    drop(device);
}

/// What a server says of its size costs no memory.
#[test]
fn a_base_of_absurd_size_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let open = File::options().read(true).write(true).open(file.path()).unwrap();
    let refused = super::store::Store::new(file.path(), open, 1 << 62, 1 << 30).err();
    assert_eq!(refused.map(|e| e.errno()), Some(errno::EFBIG));
    assert_eq!(crate::CowDevice::top_size(1 << 62), None);
}
