//! Listings in pieces, while the directory changes.

use super::*;

/// Lists `dir` in pieces of a random size, and runs `between` between them.
pub(super) fn list_in_pieces(
    fs: &Fs,
    filled: &mut Filled,
    rng: &mut StdRng,
    mut between: impl FnMut(&mut Filled, &mut StdRng),
) -> Vec<Vec<u8>> {
    let (mut cookie, mut seen, most) = (0, Vec::new(), rng.random_range(2..40));
    loop {
        let (mut left, before) = (rng.random_range(1..most), seen.len());
        read_dir(fs, &filled.dir.state(), cookie, &mut |entry| {
            seen.push(entry.name.to_vec());
            assert!(entry.cookie > cookie && entry.cookie < 1 << 63);
            cookie = entry.cookie;
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        if seen.len() == before {
            return seen;
        }
        between(filled, rng);
    }
}

#[test]
fn what_stays_is_listed_once() {
    for (args, tune) in [
        (&["-b", "1024"][..], &[][..]),
        (&["-b", "4096"], &["-E", "hash_alg=tea"]),
        (&["-b", "1024"], &["-E", "hash_alg=legacy"]),
        (&["-b", "1024", "-O", "^dir_index"], &[]),
    ] {
        let volume = Volume::tuned(32 << 20, args, tune);
        let fs = &volume.fs;
        let mut filled = volume.make();
        let mut rng = StdRng::seed_from_u64(7);
        // From a directory of one block, which becomes indexed while it is listed, up to a large
        // one.
        for start in [10, 30, 300, 2000] {
            while filled.names.len() < start {
                let name = format!("stays {}", filled.names.len());
                filled.insert(fs, name.as_bytes()).unwrap();
            }
            let stay: BTreeSet<_> = filled.names.keys().cloned().collect();
            let mut made = 0;
            let seen = list_in_pieces(fs, &mut filled, &mut rng, |filled, rng| {
                for _ in 0..rng.random_range(0..8) {
                    made += 1;
                    filled.insert(fs, format!("{made} comes").as_bytes()).unwrap();
                    if rng.random_bool(0.5) {
                        filled.remove(fs, format!("{made} comes").as_bytes()).unwrap();
                    }
                }
            });
            let unique: BTreeSet<_> = seen.iter().cloned().collect();
            assert_eq!(unique.len(), seen.len(), "{args:?}: a name was listed twice");
            assert!(stay.is_subset(&unique), "{args:?}: a name was left out");
            let come: Vec<_> = filled.names.keys().filter(|n| n.ends_with(b"comes")).cloned().collect();
            for name in come {
                filled.remove(fs, &name).unwrap();
            }
        }
    }
}

#[test]
fn a_listing_may_remove_what_it_sees() {
    for args in [&["-b", "1024"][..], &["-b", "1024", "-O", "^dir_index"]] {
        let volume = Volume::new(32 << 20, args);
        let fs = &volume.fs;
        let mut filled = volume.make();
        for n in 0..500 {
            filled.insert(fs, format!("name {n}").as_bytes()).unwrap();
        }
        let mut rng = StdRng::seed_from_u64(3);
        let (mut cookie, mut gone) = (0, 0);
        loop {
            let (mut batch, most) = (Vec::new(), rng.random_range(1..30));
            read_dir(fs, &filled.dir.state(), cookie, &mut |entry| {
                cookie = entry.cookie;
                batch.push(entry.name.to_vec());
                if batch.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
            if batch.is_empty() {
                break;
            }
            for name in batch.iter().filter(|name| !name.starts_with(b".")) {
                filled.remove(fs, name).unwrap();
                gone += 1;
            }
        }
        assert_eq!(gone, 500);
        assert!(is_empty(fs, &filled.dir.state()).unwrap());
    }
}

#[test]
fn any_number_is_a_cookie() {
    for args in [&["-b", "1024"][..], &["-b", "1024", "-O", "^dir_index"]] {
        let volume = Volume::new(8 << 20, args);
        let mut filled = volume.make();
        for n in 0..200 {
            filled.insert(&volume.fs, format!("name {n}").as_bytes()).unwrap();
        }
        let mut rng = StdRng::seed_from_u64(5);
        for _ in 0..500 {
            let cookie = rng.random::<u64>() >> rng.random_range(0..64);
            let mut last = cookie;
            read_dir(&volume.fs, &filled.dir.state(), cookie, &mut |entry| {
                assert!(entry.cookie > last || entry.cookie > cookie);
                last = entry.cookie;
                ControlFlow::Continue(())
            })
            .unwrap();
        }
    }
}
