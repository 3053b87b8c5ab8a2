//! Uses a small volume that the input has damaged. The first byte chooses the volume. The second
//! says whether checksums are made anew, and whether the volume is opened, walked and changed, or
//! given another size, other settings or multiple mount protection. The rest is a script of damage.
#![no_main]

use lanefs_tests::{Victim, damage_and_change_offline, damage_and_use, rare_victims, small_victim};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static VICTIMS: LazyLock<Vec<Victim>> = LazyLock::new(|| {
    let mut victims = vec![
        small_victim(1 << 20, &["-b", "1024", "-O", "^has_journal,metadata_csum,metadata_csum_seed"], false),
        small_victim(1 << 20, &["-b", "1024", "-O", "^has_journal,^metadata_csum,^extents,^64bit"], false),
        small_victim(3 << 20, &["-b", "1024", "-J", "size=1", "-O", "orphan_file"], false),
    ];
    victims.extend(rare_victims());
    victims
});

fuzz_target!(|input: &[u8]| {
    let [which, how, script @ ..] = input else { return };
    let victim = &VICTIMS[usize::from(*which) % VICTIMS.len()];
    let mend = *how % 8 != 0;
    match *how & 0x80 {
        0 => damage_and_use(victim, script, mend),
        _ => damage_and_change_offline(victim, script, mend, usize::from(*how >> 3 & 0xF)),
    }
});
