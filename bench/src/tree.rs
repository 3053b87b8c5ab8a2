//! Trees of files to be put into volumes.

use lanefs_lab::Outcome;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A tree of `files` files in directories of 50, about 51 KiB each on average: 1 GiB for 20,000.
/// Sizes go from nothing to 1 MiB, most of them small, as in real trees.
///
/// # Errors
/// The errors of the file system.
pub fn make_tree(root: &Path, files: u32) -> Outcome<u64> {
    let noise: Vec<u8> = (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut bytes = 0;
    for i in 0..files {
        let dir = root.join(format!("d{:03}/e{:03}", i / 1000, i / 50 % 20));
        if i % 50 == 0 {
            fs::create_dir_all(&dir)?;
        }
        let size = match i % 20 {
            0 => 0,
            1..=9 => 700 * (i as usize % 13 + 1),
            10..=15 => 4096 * (i as usize % 11 + 1),
            16..=18 => 60_000 + 1000 * (i as usize % 71),
            _ => 400_000 + 4096 * (i as usize % 90),
        };
        let at = i as usize * 37 % (noise.len() - size.min(noise.len()) + 1);
        fs::write(dir.join(format!("file{i:05}.dat")), &noise[at..at + size])?;
        bytes += size as u64;
    }
    // The files are in the page cache now. Syncs, so that no timed run overlaps their writeback.
    Command::new("sync").status()?;
    Ok(bytes)
}
