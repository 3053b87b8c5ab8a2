use super::*;
use std::process::Command;

const SEED: [u32; 4] = [0x0403_0201, 0x0605_0807, 0x0a09_0807, 0x100f_0e0d];

fn judge(version: &str, seed: [u32; 4], name: &str) -> NameHash {
    let b: Vec<String> = seed.iter().flat_map(|w| w.to_le_bytes()).map(|b| format!("{b:02x}")).collect();
    let uuid = [b[0..4].concat(), b[4..6].concat(), b[6..8].concat(), b[8..10].concat(), b[10..].concat()];
    let request = format!("dx_hash -h {version} -s {} \"{name}\"", uuid.join("-"));
    let out = Command::new("debugfs").args(["-R", &request]).output().expect("debugfs of e2fsprogs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let hex: Vec<u32> = text
        .split_once(" is ")
        .unwrap_or_else(|| panic!("{request}: {text}"))
        .1
        .split(|c: char| !c.is_ascii_hexdigit() && c != 'x')
        .filter_map(|w| u32::from_str_radix(w.strip_prefix("0x")?, 16).ok())
        .collect();
    NameHash { major: hex[0], minor: hex[1] }
}

#[test]
fn agrees_with_debugfs() {
    let names: Vec<String> =
        ["a", "ab", "abc", "abcd", "lost+found", "héllo wörld", "ÿÿÿÿÿ", "日本語のとても長いファイル名です"]
            .into_iter()
            .map(String::from)
            .chain(
                [15, 16, 17, 31, 32, 33, 64, 100, 254, 255]
                    .map(|n| "xyzé-".chars().cycle().take(n).collect()),
            )
            .collect();
    for (text, version) in
        [("legacy", HashVersion::Legacy), ("half_md4", HashVersion::HalfMd4), ("tea", HashVersion::Tea)]
    {
        for seed in [SEED, [0; 4], [0, 0, 0, 1]] {
            let ours = NameHasher::new(version, false, seed);
            for name in &names {
                assert_eq!(ours.hash(name.as_bytes()), judge(text, seed, name), "{text} {seed:x?} {name}");
            }
        }
    }
}

#[test]
fn signedness_matters_above_ascii_only() {
    for version in [HashVersion::Legacy, HashVersion::HalfMd4, HashVersion::Tea] {
        let (signed, unsigned) =
            (NameHasher::new(version, false, SEED), NameHasher::new(version, true, SEED));
        assert_eq!(signed.hash(b"plain"), unsigned.hash(b"plain"));
        assert_ne!(signed.hash(b"\xff\xfe\xfd"), unsigned.hash(b"\xff\xfe\xfd"));
    }
}

#[test]
fn bit_0_is_clear_and_the_end_is_never_hit() {
    let hasher = NameHasher::new(HashVersion::Legacy, true, [0; 4]);
    for i in 0..200_000_u32 {
        let major = hasher.hash(&i.to_le_bytes()).major;
        assert!(major & 1 == 0 && major <= 0xffff_fffc, "{i}: {major:#x}");
    }
    // One of the few names whose hash would be that of the end.
    assert_eq!(hasher.hash(b"fuhuyjl").major, 0xffff_fffc);
}
