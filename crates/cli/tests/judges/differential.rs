//! Random operations through the mount and on the kernel's ext4, side by side: the same outcome of
//! each, and the same tree after each batch, as `tests/tests/differential.rs` has it for the
//! library.
//!
//! `LANEFS_SEED` replays a run; `LANEFS_DIFF_SECONDS` starts new cases for so long.

use crate::support::{Image, judged};
use lanefs::FallocMode;
use lanefs_tests::{Host, Op, RandomOps, Server, Target, assert_same_tree, each_case, settled, tree_listing};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const BATCHES: usize = 4;
const OPS: usize = 150;

/// Cases of a run without a time.
const CASES: usize = 6;

/// Bytes of a block. The kernel's half of FUSE writes whole pages, so a smaller block would be a
/// hole on one side only.
const BLOCK: u64 = 4096;

/// Arguments of mke2fs.
const SHAPES: [&[&str]; 3] = [
    &["-b", "4096"],
    &["-b", "4096", "-O", "orphan_file,metadata_csum_seed"],
    &["-b", "4096", "-O", "^extents,^64bit"],
];

#[test]
fn random_operations_agree() {
    each_case(CASES, run);
}

/// Returns whether the kernel's half of FUSE does an operation in its own way, under every server:
/// docs/mount.md.
fn is_of_fuse(op: &Op) -> bool {
    match op {
        Op::Fallocate { how: FallocMode::CollapseRange | FallocMode::InsertRange, .. } => true,
        // Beyond the largest file: the kernel caches the write, and reports the failure later.
        Op::Write { offset: at, .. } | Op::CopyRange { to_offset: at, .. } => *at >= 1 << 42,
        // A time that no inode has room for: kept as it was said until the inode is forgotten.
        Op::Utimes { mtime: (sec, _), .. } => !(-(1 << 31)..15_032_385_536).contains(sec),
        _ => false,
    }
}

fn run(case: u64) {
    let mut rng = StdRng::seed_from_u64(case);
    let args = SHAPES[rng.random_range(0..SHAPES.len())];
    let images = [Image::new(64 << 20, args), Image::new(64 << 20, args)];
    let (kernel, lanefs) = (images[0].mount(&Server::Kernel), images[1].mount(&judged()));
    kernel.keep_unwritten();
    let hosts = [Host::new(kernel.path()), Host::new(lanefs.path())];
    let mut draw = RandomOps::new(rng, BLOCK);
    let trace = std::env::var_os("LANEFS_DIFF_TRACE").is_some();
    for batch in 0..BATCHES {
        for i in 0..OPS {
            let op = draw.draw();
            if is_of_fuse(&op) {
                continue;
            }
            let [kernel, lanefs] = hosts.each_ref().map(|host| host.apply(&op));
            if trace {
                println!("{batch}.{i}: {op:?}: {kernel:?}");
            }
            assert!(
                kernel == lanefs,
                "case {case:#x} ({args:?}), batch {batch}, operation {i}: {op:?}\nkernel: {kernel:?}\nlanefs: {lanefs:?}"
            );
            draw.learn(&op, &kernel);
        }
        let [kernel, lanefs] = [&kernel, &lanefs].map(|mounted| {
            rustix::fs::syncfs(std::fs::File::open(mounted.path()).unwrap()).unwrap();
            settled(tree_listing(mounted.path()))
        });
        assert_same_tree(&kernel, &lanefs);
    }
    drop(hosts);
    kernel.unmount();
    lanefs.unmount();
    let [kernel, lanefs] = images.each_ref().map(|image| {
        let mounted = image.mount(&Server::Kernel);
        let listing = settled(tree_listing(mounted.path()));
        mounted.unmount();
        listing
    });
    assert_same_tree(&kernel, &lanefs);
}
