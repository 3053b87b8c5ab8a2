//! The overlay against a model, and hostile tops.

use super::top::read_header;
use super::{BLOCK, CowDevice, first_run};
use crate::{BlockDevice, FileOptions, MemDevice, Op, ReadOp, WriteOp, create_url, errno, open_url};
use proptest::prelude::*;
use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Blocks of the base, and bytes of a part of one.
const SIZE: usize = 37 * BLOCK as usize + 512;
/// The end of two slots of the header, and two of the only unit of the map.
const MAP_END: usize = 4 * BLOCK as usize;

fn base() -> Arc<MemDevice> {
    Arc::new(MemDevice::from_bytes((0..SIZE).map(|at| (at / 7) as u8).collect()))
}

fn top() -> Arc<MemDevice> {
    Arc::new(MemDevice::new(CowDevice::top_size(SIZE as u64).unwrap() as usize))
}

fn read_all(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![9; device.size() as usize];
    device.read_at(&mut bytes, 0).unwrap();
    bytes
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize, usize, u8),
    Batch(Vec<(usize, usize, u8)>),
    Zeroes(usize, usize),
    /// Discards, and writes the range anew.
    Discard(usize, usize),
    Flush,
    Reopen,
}

fn steps() -> impl Strategy<Value = Step> {
    let range = || (0..SIZE, 0..3 * BLOCK as usize).prop_map(|(at, len)| (at, len.min(SIZE - at)));
    prop_oneof![
        4 => (range(), any::<u8>()).prop_map(|((at, len), byte)| Step::Write(at, len, byte)),
        2 => prop::collection::vec((0..9usize, 1..BLOCK as usize, any::<u8>()), 1..5).prop_map(|ops| {
            Step::Batch(ops.into_iter().enumerate().map(|(i, (at, len, byte))| {
                ((i * 9 + at) * BLOCK as usize % SIZE, len.min(512), byte)
            }).collect())
        }),
        1 => range().prop_map(|(at, len)| Step::Zeroes(at, len)),
        1 => range().prop_map(|(at, len)| Step::Discard(at, len)),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
    ]
}

fn apply(step: &Step, device: &CowDevice, model: &mut [u8]) {
    match step {
        Step::Write(at, len, byte) => {
            device.write_at(&vec![*byte; *len], *at as u64).unwrap();
            model[*at..at + len].fill(*byte);
        }
        Step::Batch(ops) => {
            let data: Vec<_> = ops.iter().map(|(_, len, byte)| vec![*byte; *len]).collect();
            let pieces: Vec<_> = data.iter().map(|data| data.split_at(data.len() / 2)).collect();
            let pieces: Vec<_> = pieces.iter().map(|(a, b)| [*a, *b]).collect();
            let ops: Vec<_> = ops
                .iter()
                .zip(&pieces)
                .map(|((at, ..), data)| WriteOp { offset: *at as u64, data })
                .collect();
            device.write_batch(&ops).unwrap();
            for op in &ops {
                let bytes = op.data.concat();
                model[op.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
        Step::Zeroes(at, len) => {
            device.write_zeroes(*at as u64, *len as u64).unwrap();
            model[*at..at + len].fill(0);
        }
        Step::Discard(at, len) => {
            device.discard(*at as u64, *len as u64).unwrap();
            device.write_at(&vec![1; *len], *at as u64).unwrap();
            model[*at..at + len].fill(1);
        }
        Step::Flush | Step::Reopen => device.flush().unwrap(),
    }
}

proptest! {
    /// Reads return what was written, after a reopen too; the base never changes; a commit makes
    /// the base what the overlay was.
    #[test]
    fn an_overlay_is_its_model(steps in prop::collection::vec(steps(), 1..30)) {
        let (below, above) = (base(), top());
        let mut model = below.to_bytes();
        let mut device = CowDevice::new(below.clone(), above.clone(), "base").unwrap();
        for step in &steps {
            apply(step, &device, &mut model);
            if matches!(step, Step::Reopen) {
                device = CowDevice::new(below.clone(), above.clone(), "base").unwrap();
            }
            prop_assert!(read_all(&device) == model);
        }
        let (mut a, mut b) = (vec![0; 10_000], vec![0; 700]);
        let mut ops = [ReadOp { offset: 4000, buf: &mut a }, ReadOp { offset: 77_777, buf: &mut b }];
        device.read_batch(&mut ops).unwrap();
        prop_assert!(a == model[4000..14_000] && b == model[77_777..78_477]);
        prop_assert!(below.to_bytes() == base().to_bytes());
        device.flush().unwrap();
        let own = device.own_bytes();
        drop(device);
        let written = CowDevice::commit(&*below, above.clone(), "base", None).unwrap();
        prop_assert!(written <= own && below.to_bytes() == model);
        let device = CowDevice::new(below.clone(), above, "base").unwrap();
        prop_assert!(device.own_bytes() == 0 && read_all(&device) == model);
    }

    /// Any bytes in the header and the map: an error, or an overlay that can be read.
    #[test]
    fn a_hostile_top_is_an_error(changes in prop::collection::vec((0..16_384usize, any::<u8>()), 1..40)) {
        let above = top();
        let device = CowDevice::new(base(), above.clone(), "base").unwrap();
        device.write_at(&[1; 9000], 5000).unwrap();
        device.flush().unwrap();
        for (at, byte) in changes {
            above.write_at(&[byte], at as u64).unwrap();
        }
        if let Ok(device) = CowDevice::new(base(), above, "base") {
            read_all(&device);
        }
    }
}

#[test]
fn bytes_to_keep_stay() {
    let (below, above) = (base(), top());
    let device = CowDevice::new(below.clone(), above.clone(), "base").unwrap();
    device.write_at(&[1; 3 * BLOCK as usize], 0).unwrap();
    device.flush().unwrap();
    drop(device);
    let before = below.to_bytes();
    let written = CowDevice::commit(&*below, above, "base", Some(5000..6000)).unwrap();
    let after = below.to_bytes();
    assert_eq!(written, 3 * BLOCK - 1000);
    assert!(after[..5000].iter().chain(&after[6000..12288]).all(|byte| *byte == 1));
    assert!(after[5000..6000] == before[5000..6000] && after[12288..] == before[12288..]);
}

#[test]
fn a_top_belongs_to_its_base() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let options = FileOptions::new();
    for name in ["a", "b"] {
        drop(create_url(at(name), SIZE as u64, &options).unwrap());
    }
    let name = |base: &str| format!("overlay:base={},top={}", at(base).display(), at("top").display());
    let reading = options.clone().read_only(true);

    // A reader makes no file.
    let reader = open_url(name("a"), &reading).unwrap();
    assert!(reader.read_only() && reader.write_at(b"x", 0).unwrap_err().errno() == errno::EROFS);
    assert!(!at("top").exists());
    drop(reader);
    let writer = open_url(name("a"), &options).unwrap();
    writer.write_at(b"mine", 1000).unwrap();
    writer.flush().unwrap();
    assert_eq!(writer.name(), Some(name("a")));
    // The base is shared, and its top is not.
    let shared = open_url(at("a"), &reading).unwrap();
    assert_eq!(open_url(at("a"), &options).unwrap_err().errno(), errno::EBUSY);
    assert_eq!(open_url(name("a"), &options).unwrap_err().errno(), errno::EBUSY);
    drop((writer, shared));
    assert_eq!(CowDevice::base_of(&at("top")).unwrap(), at("a").display().to_string());

    // Of the same size and content, but for the first bytes.
    open_url(at("b"), &options).unwrap().write_at(&[1], 1024).unwrap();
    let e = open_url(name("b"), &options).unwrap_err();
    assert_eq!(e.errno(), errno::ESTALE);
    for part in [at("a").display().to_string(), at("b").display().to_string(), format!("{SIZE} bytes")] {
        assert!(e.to_string().contains(&part), "{e}");
    }
    let mut seen = [0; 4];
    open_url(name("a"), &reading).unwrap().read_at(&mut seen, 1000).unwrap();
    assert_eq!(&seen, b"mine");
    std::fs::write(at("top"), b"no top").unwrap();
    assert!(open_url(name("a"), &options).unwrap_err().to_string().contains("is no top of an overlay"));
    // An empty file is a new top.
    std::fs::write(at("top"), b"").unwrap();
    open_url(name("a"), &options).unwrap();
}

/// Threads write different bytes of the same blocks at the same time.
#[test]
fn threads_share_a_block() {
    let (below, above) = (base(), top());
    let device = CowDevice::new(below, above, "base").unwrap();
    std::thread::scope(|scope| {
        for part in 0..8u8 {
            let device = &device;
            scope.spawn(move || {
                for block in 0..37 {
                    let at = block * BLOCK + u64::from(part) * 512;
                    device.write_at(&[part; 512], at).unwrap();
                    if block % 9 == 0 {
                        device.flush().unwrap();
                    }
                }
            });
        }
    });
    let seen = read_all(&device);
    assert!(
        seen[..37 * BLOCK as usize].chunks(512).enumerate().all(|(i, part)| part == [(i % 8) as u8; 512])
    );
}

/// A block that another thread writes between two looks at the map.
#[test]
fn no_block_is_looked_at_twice() {
    let looks = Cell::new(0);
    let has = |_| looks.replace(looks.get() + 1) > 0;
    assert_eq!(first_run(5..6, has), (false, 6));
    assert_eq!(first_run(5..9, |block| block < 7), (true, 7));
    assert_eq!(first_run(5..9, |_| true), (true, 9));
}

/// A device whose writes, or whose reads from a byte on, fail after so many.
#[derive(Debug)]
struct Failing {
    below: Arc<MemDevice>,
    writes: AtomicUsize,
    reads_until: u64,
}

impl Failing {
    fn new(below: &Arc<MemDevice>, writes: usize) -> Self {
        Self { below: below.clone(), writes: writes.into(), reads_until: u64::MAX }
    }
}

impl BlockDevice for Failing {
    crate::forward_to!(below: size read_only flush discard);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> crate::Result<()> {
        match offset + buf.len() as u64 <= self.reads_until {
            true => self.below.read_at(buf, offset),
            false => Err(crate::DeviceError::out_of_range(Op::Read, offset, buf.len() as u64, 0)),
        }
    }

    fn write_at(&self, data: &[u8], offset: u64) -> crate::Result<()> {
        let left = self.writes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        match left {
            Ok(_) => self.below.write_at(data, offset),
            Err(_) => Err(crate::DeviceError::out_of_range(Op::Write, offset, data.len() as u64, 0)),
        }
    }
}

/// A base, and a top that has its blocks 0 and 9.
fn changed() -> (Arc<MemDevice>, Arc<MemDevice>) {
    let (below, above) = (base(), top());
    let device = CowDevice::new(below.clone(), above.clone(), "base").unwrap();
    device.write_at(&[1; 2000], 100).unwrap();
    device.write_at(&[2; 100], 9 * BLOCK).unwrap();
    device.flush().unwrap();
    (below, above)
}

#[test]
fn a_commit_that_was_cut_goes_on_with_its_base_alone() {
    for writes in 0..2 {
        let (below, above) = changed();
        let want = read_all(&CowDevice::new(below.clone(), above.clone(), "base").unwrap());
        let old = below.to_bytes();
        CowDevice::commit(&Failing::new(&below, writes), above.clone(), "base", None).unwrap_err();
        // As a cut leaves the first block: some of its sectors are new, and the others old.
        for sector in (0..8).step_by(3) {
            below.write_at(&old[sector * 512..][..512], sector as u64 * 512).unwrap();
        }
        let device = CowDevice::new(below.clone(), above.clone(), "base").unwrap();
        assert!(read_all(&device) == want);
        // Of the same UUID, size and content but for a byte.
        below.write_at(&[77], 3000).unwrap();
        for done in [
            CowDevice::new(below.clone(), above.clone(), "base").map(|_| ()),
            CowDevice::commit(&*below, above.clone(), "base", None).map(|_| ()),
        ] {
            assert_eq!(done.unwrap_err().errno(), errno::ESTALE, "{writes}");
        }
        below.write_at(&old[3000..3001], 3000).unwrap();
        // The first block changes once more, and the next commit is cut too.
        device.write_at(&[3; 512], 1024).unwrap();
        device.flush().unwrap();
        let want = read_all(&device);
        CowDevice::commit(&Failing::new(&below, writes), above.clone(), "base", None).unwrap_err();
        assert!(read_all(&CowDevice::new(below.clone(), above.clone(), "base").unwrap()) == want);
        CowDevice::commit(&*below, above, "base", None).unwrap();
        assert!(below.to_bytes() == want);
    }
}

#[test]
fn a_commit_that_wrote_nothing_leaves_no_mark() {
    let (below, above) = (base(), top());
    let device = CowDevice::new(below.clone(), above.clone(), "base").unwrap();
    device.write_at(&[2; 100], 9 * BLOCK).unwrap();
    device.flush().unwrap();
    // Header and map can be read, and the blocks cannot.
    let reads_until = above.size() - SIZE.next_multiple_of(BLOCK as usize) as u64;
    let cut = Failing { below: above.clone(), writes: 99.into(), reads_until };
    CowDevice::commit(&*below, Arc::new(cut), "base", None).unwrap_err();
    let is_committing = || read_header(&*above).unwrap().unwrap().is_committing;
    assert!(!is_committing());
    CowDevice::commit(&Failing::new(&below, 0), above.clone(), "base", None).unwrap_err();
    assert!(is_committing(), "a write that fails may have written");
}

#[test]
fn a_new_top_has_nothing_of_an_older_one() {
    let (below, above) = changed();
    above.write_at(&[0; 8192], 0).unwrap();
    let device = CowDevice::new(below.clone(), above.clone(), "base").unwrap();
    assert_eq!(device.own_bytes(), 0);
    drop(device);
    let device = CowDevice::new(below.clone(), above, "base").unwrap();
    assert!(device.own_bytes() == 0 && read_all(&device) == below.to_bytes());
}

#[test]
fn a_top_whose_first_header_was_cut_is_new() {
    // On a file of its size, and on a larger device that was used before.
    for more in [0, 1 << 20] {
        let mut bytes = changed().1.to_bytes();
        bytes[..8192].fill(0);
        bytes[MAP_END..].fill(7);
        bytes.resize(bytes.len() + more, 7);
        let above = Arc::new(MemDevice::from_bytes(bytes));
        drop(CowDevice::new(base(), above.clone(), "base").unwrap());
        above.write_at(&[0; 500], 4096 + 20).unwrap();
        let device = CowDevice::new(base(), above, "base").unwrap();
        assert!(device.own_bytes() == 0 && read_all(&device) == base().to_bytes());
    }
}

#[test]
fn a_file_that_is_named_as_a_top_by_mistake_is_kept() {
    // As a disk whose first blocks are free. The last one also has a unit of a top.
    for content in [8192..MAP_END, 12_288..MAP_END, 8292..12_288] {
        let mut bytes = changed().1.to_bytes();
        bytes[..8192].fill(0);
        bytes[content.clone()].fill(7);
        let above = Arc::new(MemDevice::from_bytes(bytes.clone()));
        let e = CowDevice::new(base(), above.clone(), "base").unwrap_err();
        assert!(e.errno() == errno::EINVAL && e.to_string().contains("is no top of an overlay"), "{e}");
        assert!(above.to_bytes() == bytes, "{content:?}");
    }
}

/// Two processes make the same top, and the other one is faster.
#[cfg(target_os = "linux")]
#[test]
fn a_top_that_another_process_made_meanwhile_is_kept() {
    fn make(path: &Path) {
        let device = CowDevice::open("mem:1M".as_ref(), path, &FileOptions::new()).unwrap();
        device.write_at(b"theirs", 5000).unwrap();
        device.flush().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["none", "empty"] {
        let path = dir.path().join(name);
        if name == "empty" {
            std::fs::write(&path, b"").unwrap();
        }
        crate::file::at_next_lock(make);
        let device = CowDevice::open("mem:1M".as_ref(), &path, &FileOptions::new()).unwrap();
        let mut seen = [0; 6];
        device.read_at(&mut seen, 5000).unwrap();
        assert_eq!(&seen, b"theirs", "{name}");
    }
}

/// A device that writes so many bytes whole.
#[derive(Debug)]
struct Whole {
    below: Arc<MemDevice>,
    unit: usize,
}

impl BlockDevice for Whole {
    crate::forward_to!(below: size read_only read_at write_at flush discard);

    fn atomic_write(&self) -> usize {
        self.unit
    }
}

/// A volume on the base may have been torn there before it got a top.
#[test]
fn a_unit_is_no_larger_than_that_of_the_base() {
    for (of_base, of_top, expected) in [(8, 512, 8), (512, 8, 8), (512, 4096, 512), (8192, 8192, 4096)] {
        let below = Whole { below: base(), unit: of_base };
        let above = Whole { below: top(), unit: of_top };
        let device = CowDevice::new(Arc::new(below), Arc::new(above), "base").unwrap();
        assert_eq!(device.atomic_write(), expected, "{of_base} {of_top}");
    }
}

/// A base that stops between the read of its bytes and the return, the first time.
#[derive(Debug)]
struct SlowBase {
    below: Arc<MemDevice>,
    stop: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl BlockDevice for SlowBase {
    crate::forward_to!(below: size read_only read_batch write_at flush discard write_zeroes);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> crate::Result<()> {
        self.below.read_at(buf, offset)?;
        let stop = self.stop.lock().unwrap().take_if(|_| offset == 5 * BLOCK);
        if let Some((here, go)) = stop {
            here.send(()).unwrap();
            go.recv_timeout(Duration::from_millis(100)).unwrap_err();
        }
        Ok(())
    }
}

/// One thread has read the base's bytes of a block, to write some others; another writes it whole.
#[test]
fn a_copy_does_not_undo_a_write() {
    let (here, stopped) = channel();
    let (_go, go) = channel();
    let slow = SlowBase { below: base(), stop: Mutex::new(Some((here, go))) };
    let overlay = CowDevice::new(Arc::new(slow), top(), "base").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| overlay.write_at(&[7; 512], 5 * BLOCK).unwrap());
        stopped.recv().unwrap();
        overlay.write_at(&[8; BLOCK as usize], 5 * BLOCK).unwrap();
    });
    let mut seen = vec![0; BLOCK as usize - 512];
    overlay.read_at(&mut seen, 5 * BLOCK + 512).unwrap();
    assert!(seen.iter().all(|byte| *byte == 8), "the base's bytes over a write that was acknowledged");
}
