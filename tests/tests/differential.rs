//! Random operations on lanefs and on the kernel's ext4, side by side: the same outcome of each,
//! the same tree after each batch, the same image for the kernel's eyes at the end, and the same
//! blocks of each file, those among them that were never written, for lanefs's.
//!
//! `LANEFS_SEED` replays a run; a failure prints it, and the seed of the case alone.
//! `LANEFS_DIFF_SECONDS` is the time for which new cases are started; without it there are as many
//! on a fast machine as on a slow one. With `LANEFS_DIFF_TRACE` set, every operation is printed.

use lanefs::Volume;
use lanefs_tests::{
    Host, Kind, Lane, LoopMount, RandomOps, Seen, Target, TreeEntry, assert_same_tree, e2fsck_clean,
    each_case, mke2fs, modes, open, settled, tree_listing, volume_listing,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use std::path::{Path, PathBuf};

const BATCHES: usize = 6;
const OPS: usize = 150;

/// Cases of a run without a time.
const CASES: usize = 12;

/// Block size and arguments of mke2fs.
const SHAPES: &[(u64, &[&str])] = &[
    (4096, &["-t", "ext4", "-b", "4096"]),
    (1024, &["-t", "ext4", "-b", "1024", "-O", "orphan_file,metadata_csum_seed"]),
    (4096, &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,^has_journal"]),
    (1024, &["-t", "ext3", "-b", "1024", "-I", "128"]),
    (2048, &["-t", "ext4", "-b", "2048", "-O", "^extents,^64bit", "-I", "256"]),
];

#[test]
fn random_operations_agree() {
    each_case(CASES, run);
}

fn run(case: u64) {
    let mut rng = StdRng::seed_from_u64(case);
    let (block, args) = SHAPES[rng.random_range(0..SHAPES.len())];
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("kernel"), dir.path().join("lanefs"));
    for image in [&one, &two] {
        mke2fs(image, 64 << 20, args);
    }
    let mount = LoopMount::new(&one, "");
    mount.keep_unwritten();
    let host = Host::new(mount.path());
    let modes = modes();
    let mode = &modes[rng.random_range(0..modes.len())];
    let lane = Lane(open(mode.options(), &two).unwrap());
    let mut draw = RandomOps::new(rng, block);
    let trace = std::env::var_os("LANEFS_DIFF_TRACE").is_some();
    let mut differ = Vec::new();
    for batch in 0..BATCHES {
        for i in 0..OPS {
            let op = draw.draw();
            let (kernel, said) = (host.apply(&op), lane.run(&op));
            let lanefs = said.as_ref().map(Seen::clone).map_err(lanefs::Error::errno);
            if trace {
                println!("{batch}.{i}: {op:?}: {kernel:?}");
            }
            if kernel != lanefs {
                let said = said.map_or_else(|e| e.to_string(), |_| String::new());
                let at = format!("batch {batch}, operation {i}: {op:?}");
                differ.push(format!("{at}\nkernel: {kernel:?}\nlanefs: {lanefs:?} {said}\n"));
            }
            // Where both fail the volumes are still the same, and there may be more to learn.
            let together = kernel.is_ok() == lanefs.is_ok();
            assert!(
                together && differ.len() < 20,
                "case {case:#x} ({args:?}, {mode})\n{}",
                differ.join("\n")
            );
            draw.learn(&op, &kernel);
        }
        // What waits for its blocks counts as a hole in files without extents.
        rustix::fs::syncfs(std::fs::File::open(mount.path()).unwrap()).unwrap();
        let kernel = settled(tree_listing(mount.path()));
        let lanefs = settled(volume_listing(&lane.0).unwrap());
        println!("batch {batch}: {} files", kernel.len());
        assert_same_tree(&kernel, &lanefs);
    }
    assert!(differ.is_empty(), "case {case:#x} ({args:?}, {mode})\n{}", differ.join("\n"));
    drop(host);
    mount.unmount();
    lane.0.close().unwrap();
    for image in [&one, &two] {
        e2fsck_clean(image);
    }
    assert_same_tree(&kernel_reads(&one), &kernel_reads(&two));
    let (kernel, lanefs) = (mapped(&one), mapped(&two));
    let differs = kernel.iter().zip(&lanefs).find(|(a, b)| a != b);
    assert!(kernel == lanefs, "case {case:#x} ({args:?}, {mode}): blocks of files: {differs:#?}");
}

/// Path of each file, and the bytes that have blocks; of which `true` have never been written.
type Blocks = Vec<(PathBuf, Vec<(Range<u64>, bool)>)>;

fn mapped(image: &Path) -> Blocks {
    let volume = Volume::open_read_only(image).unwrap();
    let files = volume_listing(&volume).unwrap().into_iter().filter(|e| e.kind == Kind::File);
    files
        .map(|entry| {
            let path = Path::new("/").join(&entry.path);
            let mut runs: Vec<(Range<u64>, bool)> = Vec::new();
            for e in volume.open_file(&path).unwrap().fiemap(0..u64::MAX, usize::MAX).unwrap() {
                match runs.last_mut() {
                    // Wherever they are on the device.
                    Some((run, unwritten)) if run.end == e.logical && *unwritten == e.unwritten => {
                        run.end += e.len
                    }
                    _ => runs.push((e.logical..e.logical + e.len, e.unwritten)),
                }
            }
            (entry.path, runs)
        })
        .collect()
}

fn kernel_reads(image: &Path) -> Vec<TreeEntry> {
    let mount = LoopMount::new(image, "ro");
    let listing = settled(tree_listing(mount.path()));
    mount.unmount();
    listing
}
