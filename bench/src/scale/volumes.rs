//! Opening volumes of many sizes: clean, or after a crash.

use super::{Figures, options, resident};
use lanefs::{FallocMode, Volume};
use lanefs_lab::Outcome;
use std::path::Path;
use std::time::Instant;

/// Room that a full volume keeps, for the files of a crash and for the log of their names.
const ROOM: u64 = 256 << 20;
/// Bytes of the largest file: below the limit of a file with blocks of 4 KiB.
const LARGEST: u64 = 4 << 40;
/// Files that a crash interrupts.
const FILES: u32 = 2000;

/// Makes an empty, sparse volume.
pub(super) fn make(volume: &Path, size: u64) -> Outcome<Figures> {
    let began = Instant::now();
    // A file of the disk's file system ends one block before 16 TiB.
    let size = size.min((1 << 44) - (1 << 20));
    lanefs_mkfs::create(volume, size, &Default::default())?;
    Ok(Figures::from([("mkfs".into(), ms(began))]))
}

/// Fills the volume with preallocated files, so that each group's bitmap has all its blocks in use.
pub(super) fn fill(volume: &Path, _: u64) -> Outcome<Figures> {
    let volume = options().open(volume)?;
    let began = Instant::now();
    let mut number = 0;
    loop {
        let free = volume.statfs();
        let free = (free.blocks_free * u64::from(free.block_size)).saturating_sub(ROOM) >> 20 << 20;
        if free == 0 {
            break;
        }
        let file = volume.create_file(format!("/full-{number}"))?;
        file.fallocate(FallocMode::KeepSize, 0, free.min(LARGEST))?;
        number += 1;
    }
    volume.close()?;
    Ok(Figures::from([("fill".into(), ms(began))]))
}

/// Writes files, makes them durable, and ends as a crash does: the log is left to be replayed.
pub(super) fn crash(volume: &Path, _: u64) -> Outcome<Figures> {
    let volume = options().open(volume)?;
    for number in 0..FILES {
        volume.write(format!("/file-{number}"), &[number as u8; 3000])?;
    }
    volume.sync()?;
    println!("{{}}");
    std::process::exit(0);
}

/// Opens the volume, as it is; then makes the first file durable, and closes.
pub(super) fn open(volume: &Path, _: u64) -> Outcome<Figures> {
    let before = resident()?;
    let began = Instant::now();
    let volume = options().open(volume)?;
    let opened = ms(began);
    let memory = resident()? - before;
    let began = Instant::now();
    volume.write("/first", &[1; 4096])?;
    volume.sync()?;
    let first = ms(began);
    let memory_first = resident()? - before;
    let replayed = volume.info().recovery;
    let figures = Figures::from([
        ("open".into(), opened),
        ("memory".into(), memory),
        ("first file".into(), first),
        ("memory with it".into(), memory_first),
        ("replayed".into(), replayed.journal.blocks as f64),
        ("close".into(), closed(volume)?),
    ]);
    Ok(figures)
}

fn closed(volume: Volume) -> Outcome<f64> {
    let began = Instant::now();
    volume.close()?;
    Ok(ms(began))
}

fn ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}
