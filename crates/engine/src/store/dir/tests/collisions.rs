//! More names of one hash than fit in a leaf.

use super::*;
use lanefs_format::hash::{HashVersion, NameHasher};

/// Returns the names of 255 bytes with one legacy hash of signed bytes: the last byte is solved
/// for.
fn colliding(count: usize) -> Vec<Vec<u8>> {
    const FACTOR: u32 = 7_152_373;
    const TARGET: u32 = 0x1234_5678;
    let next = |(last, before): (u32, u32), byte: u8| {
        let byte = i32::from(byte.cast_signed()).cast_unsigned();
        let sum = before.wrapping_add(last ^ byte.wrapping_mul(FACTOR));
        (if sum & 0x8000_0000 != 0 { sum.wrapping_sub(0x7fff_ffff) } else { sum }, last)
    };
    // FACTOR is odd: Newton's iteration gives its inverse modulo 2^32.
    let inverse = (0..5).fold(1_u32, |x, _| x.wrapping_mul(2_u32.wrapping_sub(FACTOR.wrapping_mul(x))));
    assert_eq!(inverse.wrapping_mul(FACTOR), 1);
    let mut found = BTreeSet::new();
    for round in 0_u32.. {
        let prefix = format!("{round:a>251}").into_bytes();
        let start = prefix.iter().fold((0x12a3_fe2d, 0x37ab_e8f9), |state, &b| next(state, b));
        for [a, b] in (b'a'..=b'z').flat_map(|a| (b'a'..=b'z').map(move |b| [a, b])) {
            let state = next(next(start, a), b);
            for c in (1..=255).filter(|&c| c != b'/') {
                let (last, before) = next(state, c);
                // The sums that become TARGET, with their top bit taken off or not.
                for sum in [TARGET, TARGET + 0x7fff_ffff] {
                    let byte = (sum.wrapping_sub(before) ^ last).wrapping_mul(inverse).cast_signed();
                    if let Ok(byte) = i8::try_from(byte)
                        && ![0, b'/'].contains(&byte.cast_unsigned())
                    {
                        found.insert([&prefix[..], &[a, b, c, byte.cast_unsigned()]].concat());
                    }
                }
            }
        }
        if found.len() >= count {
            break;
        }
    }
    found.into_iter().take(count).collect()
}

#[test]
fn one_hash_goes_on_over_many_leaves() {
    let volume = Volume::tuned(16 << 20, &["-b", "1024"], &["-E", "hash_alg=legacy"]);
    let mut filled = volume.make();
    let names = colliding(12);
    let hasher = NameHasher::new(HashVersion::Legacy, false, [0; 4]);
    let hash = hasher.hash(&names[0]).major;
    assert!(names.iter().all(|name| hasher.hash(name).major == hash && name.len() == 255));

    // Others before, between and after.
    for (i, name) in names.iter().enumerate() {
        for k in 0..10 {
            filled.insert(&volume.fs, format!("{k} and {i:0>90}").as_bytes()).unwrap();
        }
        filled.insert(&volume.fs, name).unwrap();
        filled.check(&volume.fs);
    }
    // A leaf holds three names of 255 bytes.
    let state = filled.dir.state().clone();
    let dir = Dir::new(&volume.fs, &state).unwrap();
    let (root, info) = dir.root().unwrap();
    let mut path = htree::IndexPath::to(&dir, root, info, hash).unwrap();
    let mut leaves = 1;
    while path.goes_on(hash) && path.next(&dir).unwrap() {
        leaves += 1;
    }
    assert!(leaves >= 4, "{leaves}");

    // Room in the middle of the chain is found again.
    for name in [&names[3], &names[7], &names[11]] {
        filled.remove(&volume.fs, name).unwrap();
        assert_eq!(filled.lookup(&volume.fs, name), None);
    }
    let size = filled.dir.state().size;
    for name in [&names[11], &names[3], &names[7]] {
        filled.insert(&volume.fs, name).unwrap();
    }
    assert_eq!(filled.dir.state().size, size);
    filled.check(&volume.fs);

    // A listing that stops behind every single entry shows all, each once.
    let mut cookie = 0;
    let mut seen = BTreeSet::new();
    loop {
        let mut one = None;
        read_dir(&volume.fs, &filled.dir.state(), cookie, &mut |entry| {
            one = Some((entry.name.to_vec(), entry.cookie));
            ControlFlow::Break(())
        })
        .unwrap();
        let Some((name, next)) = one else { break };
        assert!(next > cookie);
        assert!(seen.insert(name));
        cookie = next;
    }
    assert_eq!(seen.len(), filled.names.len() + 2);

    // Names of one hash keep their places while others with it are added, removed or moved to other
    // leaves.
    let mut rng = StdRng::seed_from_u64(9);
    for _ in 0..20 {
        let mut others: Vec<_> = names[5..].to_vec();
        let seen = cookies::list_in_pieces(&volume.fs, &mut filled, &mut rng, |filled, rng| {
            let name = others.remove(rng.random_range(0..others.len()));
            match filled.names.contains_key(&name) {
                true => filled.remove(&volume.fs, &name).unwrap(),
                false => filled.insert(&volume.fs, &name).unwrap(),
            }
            others.push(name);
        });
        for name in &names[..5] {
            assert_eq!(seen.iter().filter(|n| *n == name).count(), 1);
        }
    }
    filled.check(&volume.fs);
    filled.settle(&volume.fs);
    volume.judge();
}
