//! The overlay against a model, and hostile tops.

use super::{BLOCK, CowDevice};
use crate::{BlockDevice, FileOptions, MemDevice, ReadOp, WriteOp, create_url, errno, open_url};
use proptest::prelude::*;
use std::sync::Arc;

/// Blocks of the base, and bytes of a part of one.
const SIZE: usize = 37 * BLOCK as usize + 512;

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
