//! Writes one file with many threads, each its own part, and none waits for another:
//! `cargo run -p lanefs --example parallel_writers`.
//!
//! The bytes of a file are locked by range, so writers of disjoint ranges go on side by side. In
//! the kernel's ext4, buffered writers of one file take turns.

use lanefs::{File, Volume};
use std::panic::resume_unwind;
use std::thread;

const THREADS: u8 = 8;
const PART: u64 = 1 << 20;
const RECORD: u64 = 4096;

/// Fills a part of the file with a byte of its own.
fn fill(file: &File, part: u8) -> lanefs::Result<()> {
    let start = u64::from(part) * PART;
    (0..PART / RECORD).try_for_each(|n| file.write_at(&[part + 1; RECORD as usize], start + n * RECORD))
}

fn main() -> lanefs::Result<()> {
    let volume = Volume::in_memory(64 << 20)?;
    let file = volume.open_options().read(true).write(true).create(true).open("/shared")?;
    // Writes before i_size lock their own bytes only; one that moves i_size locks all behind it.
    file.set_len(u64::from(THREADS) * PART)?;
    thread::scope(|scope| {
        let file = &file;
        let writers: Vec<_> = (0..THREADS).map(|part| scope.spawn(move || fill(file, part))).collect();
        writers.into_iter().try_for_each(|writer| writer.join().unwrap_or_else(|e| resume_unwind(e)))
    })?;
    file.sync_all()?;
    for part in 0..THREADS {
        let mut last = [0];
        file.read_at(&mut last, (u64::from(part) + 1) * PART - 1)?;
        println!("part {part}: {PART} bytes of {}", last[0]);
    }
    drop(file);
    volume.close()
}
