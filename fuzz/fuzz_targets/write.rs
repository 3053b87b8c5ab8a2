//! Writes to a small volume that the input has damaged, and holds each operation against what it
//! may change. The first byte chooses the volume, the second how much of the rest is damage; what
//! remains is a script of operations. Checksums are made anew.
#![no_main]

use lanefs_sim::{Image, OverlayDevice};
use lanefs_tests::{Mode, Victim, meddle, modes, small_victim};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};

static VICTIMS: LazyLock<[Victim; 3]> = LazyLock::new(|| {
    [
        small_victim(1 << 20, &["-b", "1024", "-O", "^has_journal,metadata_csum,metadata_csum_seed"], false),
        small_victim(1 << 20, &["-b", "1024", "-O", "^has_journal,^metadata_csum,^extents,^64bit"], false),
        small_victim(3 << 20, &["-b", "1024", "-J", "size=1", "-O", "orphan_file"], true),
    ]
});

static MODES: LazyLock<Vec<Mode>> = LazyLock::new(modes);

/// Bytes of one change.
const CHANGE: usize = 9;

/// Operations on one volume at most: each compares all of it.
const OPS: usize = 16;

fuzz_target!(|input: &[u8]| {
    let [which, changes, rest @ ..] = input else { return };
    let (damage, ops) = rest.split_at(rest.len().min(usize::from(changes % 5) * CHANGE));
    let victim = &VICTIMS[usize::from(*which) % VICTIMS.len()];
    let device = Arc::new(OverlayDevice::new(Image::from_bytes(victim.damaged(damage, true))));
    let mode = &MODES[usize::from(*which) / VICTIMS.len() % MODES.len()];
    if let Err(said) = meddle(&device, mode, &ops[..ops.len().min(OPS * 5)]) {
        panic!("{said}");
    }
});
