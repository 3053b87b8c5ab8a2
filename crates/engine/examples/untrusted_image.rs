//! Lists an image of unknown origin:
//! `cargo run -p lanefs --example untrusted_image -- IMAGE`.
//!
//! Any byte of the image may be wrong. lanefs answers what the image says, or with an error that
//! names structure, number and rule; it neither panics nor loops, and writes nothing. What is left
//! to the caller: how much of it to read, and what names are shown on a terminal.

use lanefs::{Dir, Error, OpenOptions};
use std::env;
use std::path::Path;

/// Entries that are listed at most: an image may claim millions.
const MOST: usize = 10_000;

/// Directories below directories that are followed at most.
const DEEPEST: usize = 64;

/// Lists `dir`, which is `path`, and what is below it. Returns how many entries could not be read:
/// the damage of one entry hides no other.
fn list(dir: &Dir, path: &Path, depth: usize, left: &mut usize) -> usize {
    let entries = match dir.read_dir() {
        Ok(entries) => entries,
        Err(e) => return complain(path, &e),
    };
    let mut damaged = 0;
    for entry in entries {
        if *left == 0 {
            break;
        }
        *left -= 1;
        let path = path.join(&entry.name);
        let meta = match dir.symlink_metadata(&entry.name) {
            Ok(meta) => meta,
            Err(e) => {
                damaged += complain(&path, &e);
                continue;
            }
        };
        // Debug quotes control characters, which a terminal would obey.
        println!("{:>12} {path:?}", meta.len());
        if meta.is_dir() && depth < DEEPEST {
            match dir.open_dir(&entry.name) {
                Ok(below) => damaged += list(&below, &path, depth + 1, left),
                Err(e) => damaged += complain(&path, &e),
            }
        }
    }
    damaged
}

fn complain(path: &Path, e: &Error) -> usize {
    println!("{path:?}: {e}");
    1
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = env::args_os().nth(1).ok_or("usage: untrusted_image IMAGE")?;
    // Read-only: a journal that needs recovery is replayed in memory. The bound is on what lanefs
    // caches of the image.
    let volume = OpenOptions::new().cache_bytes(32 << 20).open(&image)?;
    let damaged = list(&volume.open_dir("/")?, Path::new("/"), 0, &mut MOST.clone());
    volume.close()?;
    println!("{damaged} entries could not be read");
    Ok(())
}
