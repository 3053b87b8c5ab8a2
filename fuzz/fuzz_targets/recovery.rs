//! Recovers a small volume whose journal waits for it and that the input has damaged; the input is
//! as that of `open_walk`.
#![no_main]

use lanefs_tests::{Victim, damage_and_use, small_victim};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static VICTIMS: LazyLock<[Victim; 3]> = LazyLock::new(|| {
    [
        small_victim(3 << 20, &["-b", "1024", "-J", "size=1", "-O", "orphan_file,metadata_csum_seed"], true),
        small_victim(3 << 20, &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum,^64bit"], true),
        small_victim(3 << 20, &["-b", "1024", "-J", "size=1", "-O", "^64bit,^orphan_file", "-I", "128"], true),
    ]
});

fuzz_target!(|input: &[u8]| {
    let [which, mend, script @ ..] = input else { return };
    damage_and_use(&VICTIMS[usize::from(*which) % VICTIMS.len()], script, *mend % 8 != 0);
});
