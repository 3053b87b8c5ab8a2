//! Opens, walks and changes a small volume that the input has damaged. The first byte chooses the
//! volume, the second whether checksums are made anew; the rest is a script of damage.
#![no_main]

use lanefs_tests::{Victim, damage_and_use, small_victim};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static VICTIMS: LazyLock<[Victim; 3]> = LazyLock::new(|| {
    [
        small_victim(1 << 20, &["-b", "1024", "-O", "^has_journal,metadata_csum,metadata_csum_seed"], false),
        small_victim(1 << 20, &["-b", "1024", "-O", "^has_journal,^metadata_csum,^extents,^64bit"], false),
        small_victim(3 << 20, &["-b", "1024", "-J", "size=1", "-O", "orphan_file"], false),
    ]
});

fuzz_target!(|input: &[u8]| {
    let [which, mend, script @ ..] = input else { return };
    damage_and_use(&VICTIMS[usize::from(*which) % VICTIMS.len()], script, *mend % 8 != 0);
});
