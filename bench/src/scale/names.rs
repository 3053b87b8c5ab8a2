//! Names in directories of many entries.

use super::{Figures, Timed, options, resident};
use lanefs::{Dir, NewAttr};
use lanefs_lab::Outcome;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;

const ATTR: NewAttr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
/// Operations of each kind in a measurement.
const OPERATIONS: u64 = 20_000;
/// Names that are looked up first: more than the cache of metadata has room for.
const WARM: u64 = 400_000;

fn name(number: u64) -> String {
    format!("file-{number:08}")
}

/// Makes a volume with a directory of so many entries, each a file.
pub(super) fn make(volume: &Path, entries: u64) -> Outcome<Figures> {
    // mkfs makes an inode for each 16 KiB. The file is sparse.
    lanefs_mkfs::create(volume, (entries + entries / 8) * (16 << 10) + (1 << 30), &Default::default())?;
    let volume = options().open(volume)?;
    volume.create_dir("/d")?;
    let dir = volume.open_dir("/d")?;
    for number in 0..entries {
        dir.create_new_file(name(number), ATTR)?;
    }
    drop(dir);
    volume.close()?;
    Ok(Figures::new())
}

/// Creates, looks up and unlinks names, in batches of at most a tenth of the directory, so that its
/// size stays what it is. The names that are unlinked are spread over the whole directory: those
/// that were just created are in the caches, whatever its size.
pub(super) fn measure(volume: &Path, entries: u64) -> Outcome<Figures> {
    let before = resident()?;
    let volume = options().open(volume)?;
    let dir = volume.open_dir("/d")?;
    let batch = (entries / 10).clamp(1, 1000);
    let mut random = StdRng::seed_from_u64(entries);
    // Reads what a directory in use has in memory.
    for number in 0..entries.min(WARM) {
        dir.lookup(name(number))?;
    }
    rounds(&dir, entries, OPERATIONS / 4 / batch, batch, &mut random)?;
    let [create, lookup, unlink] = rounds(&dir, entries, OPERATIONS / batch, batch, &mut random)?;
    let memory = resident()? - before;
    drop(dir);
    volume.close()?;
    Ok(Figures::from([
        ("create".into(), create.each()),
        ("lookup".into(), lookup.each()),
        ("unlink".into(), unlink.each()),
        ("memory".into(), memory),
    ]))
}

fn rounds(dir: &Dir, entries: u64, count: u64, batch: u64, random: &mut StdRng) -> Outcome<[Timed; 3]> {
    let [mut create, mut lookup, mut unlink] = [Timed::default(), Timed::default(), Timed::default()];
    for round in 0..count {
        let fresh: Vec<String> = (0..batch).map(|i| name(entries + round * batch + i)).collect();
        let known: Vec<String> = (0..batch).map(|_| name(random.random_range(0..entries))).collect();
        let first = random.random_range(0..entries);
        let spread: Vec<String> =
            (0..batch).map(|i| name((first + i * (entries / batch)) % entries)).collect();
        create.run(batch, || each(&fresh, |name| drop_ok(dir.create_new_file(name, ATTR))))?;
        lookup.run(batch, || each(&known, |name| drop_ok(dir.lookup(name))))?;
        unlink.run(batch, || each(&spread, |name| drop_ok(dir.remove_file(name))))?;
        // The directory becomes what it was, for the next round and the next run.
        each(&spread, |name| drop_ok(dir.create_new_file(name, ATTR)))?;
        each(&fresh, |name| drop_ok(dir.remove_file(name)))?;
    }
    Ok([create, lookup, unlink])
}

fn each(names: &[String], work: impl Fn(&str) -> Outcome<()>) -> Outcome<()> {
    names.iter().try_for_each(|name| work(name))
}

fn drop_ok<T>(done: lanefs::Result<T>) -> Outcome<()> {
    done.map(drop).map_err(Into::into)
}
