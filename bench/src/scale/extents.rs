//! Files of many extents.

use super::{Figures, Timed, options, resident};
use lanefs::{FallocMode, File};
use lanefs_lab::Outcome;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::os::unix::fs::FileExt;
use std::path::Path;

const BLOCK: u64 = 4096;
/// Operations of each kind in a measurement.
const OPERATIONS: u64 = 10_000;

/// Makes a volume with a file of so many extents: every other block is a hole.
pub(super) fn make(volume: &Path, extents: u64) -> Outcome<Figures> {
    lanefs_mkfs::create(volume, (extents + OPERATIONS * 4) * BLOCK * 2 + (1 << 30), &Default::default())?;
    let volume = options().open(volume)?;
    let file = volume.create_file("/f")?;
    for number in 0..extents {
        file.write_at(&[7; BLOCK as usize], number * 2 * BLOCK)?;
    }
    file.sync_all()?;
    drop(file);
    volume.close()?;
    Ok(Figures::new())
}

/// Overwrites blocks while the map does not change. Then overwrites a block, appends one behind a
/// hole, and punches one, in turns: each change of the map meets what the operation before it left.
/// All writes are direct, so that each one uses the map.
///
/// The first overwrites find their blocks in a snapshot of the map, if the file has no more extents
/// and holes than one may have. Those between changes find them in the tree: each change drops the
/// snapshot.
///
/// The same blocks are written without a map too, because the more of them there are, the slower
/// memory and the host are. The figure of an overwrite is what it takes beyond that.
pub(super) fn measure(path: &Path, extents: u64) -> Outcome<Figures> {
    let before = resident()?;
    let volume = options().open(path)?;
    let file = volume.open_options().read(true).write(true).direct(true).open("/f")?;
    // An earlier run has left blocks at other places than it found them.
    let map = file.fiemap(0..file.metadata().len(), usize::MAX)?;
    let mut positions: Vec<u64> = map.iter().map(|extent| extent.logical).collect();
    drop(map);
    let mut random = StdRng::seed_from_u64(extents);
    // More than enough lookups for a snapshot.
    overwrites(&file, &positions, OPERATIONS / 4, &mut random)?;
    let unchanged = overwrites(&file, &positions, OPERATIONS, &mut random)?;
    turns(&file, &mut positions, OPERATIONS / 4, &mut random)?;
    let [overwrite, append, punch] = turns(&file, &mut positions, OPERATIONS, &mut random)?;
    let memory = resident()? - before;
    let bare = bare(path, &file, &mut random)?;
    drop(file);
    volume.close()?;
    Ok(Figures::from([
        ("overwrite of an unchanged map beyond a bare write".into(), unchanged.each() - bare.each()),
        ("overwrite beyond a bare write".into(), overwrite.each() - bare.each()),
        ("bare".into(), bare.each()),
        ("append".into(), append.each()),
        ("punch".into(), punch.each()),
        ("memory".into(), memory),
    ]))
}

/// Writes blocks of the file at random, past the volume.
fn bare(path: &Path, file: &File, random: &mut StdRng) -> Outcome<Timed> {
    let image = std::fs::File::options().write(true).open(path)?;
    let extents = file.fiemap(0..file.metadata().len(), usize::MAX)?;
    let (block, mut bare) = ([9; BLOCK as usize], Timed::default());
    for _ in 0..OPERATIONS {
        let at = extents[random.random_range(0..extents.len())].physical;
        bare.run(1, || Ok(image.write_all_at(&block, at)?))?;
    }
    Ok(bare)
}

fn overwrites(file: &File, positions: &[u64], count: u64, random: &mut StdRng) -> Outcome<Timed> {
    let (block, mut overwrite) = ([8; BLOCK as usize], Timed::default());
    for _ in 0..count {
        let at = positions[random.random_range(0..positions.len())];
        overwrite.run(1, || Ok(file.write_at(&block, at)?))?;
    }
    Ok(overwrite)
}

fn turns(file: &File, positions: &mut Vec<u64>, count: u64, random: &mut StdRng) -> Outcome<[Timed; 3]> {
    let block = [8; BLOCK as usize];
    let [mut overwrite, mut append, mut punch] = [Timed::default(), Timed::default(), Timed::default()];
    let mut end = file.metadata().len().next_multiple_of(2 * BLOCK);
    for _ in 0..count {
        let at = positions[random.random_range(0..positions.len())];
        overwrite.run(1, || Ok(file.write_at(&block, at)?))?;
        append.run(1, || Ok(file.write_at(&block, end)?))?;
        let gone = positions.swap_remove(random.random_range(0..positions.len()));
        positions.push(end);
        end += 2 * BLOCK;
        punch.run(1, || Ok(file.fallocate(FallocMode::PunchHole, gone, BLOCK)?))?;
    }
    Ok([overwrite, append, punch])
}
