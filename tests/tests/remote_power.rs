//! Power loss of an NBD server: it is killed, and loses a part of what was not flushed, each sector
//! for itself.
//!
//! As long as the client lives and the server comes back, nothing is lost: neither what was synced
//! nor what was written since. If the client dies with it, the volume recovers to a state that was
//! promised. e2fsck judges both.

use super::power_loss::{ARGS, step};
use lanefs::{OpenOptions, Volume};
use lanefs_device::{FileOptions, NbdDevice};
use lanefs_sim::{DumpFile, Image, NbdFault, NbdServer, NbdSettings, OverlayDevice, seed_from_env};
use lanefs_tests::{e2fsck, patterned, volume_digest};
use rand::{Rng, RngCore};
use std::sync::Arc;
use std::time::Duration;

/// Operations on one volume.
const OPERATIONS: usize = 60;

fn open(server: &NbdServer, parameters: &str) -> Volume {
    let device = NbdDevice::open(&server.url(parameters), None, &FileOptions::new()).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    options.open_device(Arc::new(device)).unwrap()
}

/// Recovers a volume, and has e2fsck judge it. Returns its digest.
fn recovered(image: Image, dump: &mut DumpFile, case: &str) -> u64 {
    let device = Arc::new(OverlayDevice::new(image));
    let volume = Volume::open_device(device.clone()).unwrap_or_else(|e| panic!("{case}: {e}"));
    let digest = volume_digest(&volume);
    volume.close().unwrap_or_else(|e| panic!("{case}: close: {e}"));
    dump.set(&device.image()).unwrap();
    let (code, said) = e2fsck(dump.path(), &["-fn"]);
    assert!(code == 0, "{case}: e2fsck -fn: {code}\n{said}");
    digest
}

#[test]
fn kills_of_a_server_that_comes_back_lose_nothing() {
    let seed = seed_from_env("LANEFS_SEED");
    let base = patterned(12 << 20, ARGS);
    for case in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let mut rng = seed.rng(case);
        let server = NbdServer::start(dir.path(), base.clone(), NbdSettings::default()).unwrap();
        let volume = open(&server, "&timeout=5&reconnect=60");
        let mut at = 0;
        for _ in 0..30 {
            at += rng.random_range(2..14);
            server.fault(None, at, NbdFault::Kill(rng.next_u64()));
        }
        for i in 0..OPERATIONS * 2 {
            let _ = step(&volume, &mut rng);
            if i % 7 == 0 {
                volume.sync().unwrap();
            }
        }
        let last = volume_digest(&volume);
        volume.close().unwrap();
        assert!(server.connections() > 5, "{} connections", server.connections());
        let mut dump = DumpFile::create(dir.path().join("state.img"), &base).unwrap();
        // What a further kill would leave.
        assert_eq!(recovered(server.durable(), &mut dump, "closed"), last, "case {case}");
    }
}

#[test]
fn a_client_that_dies_with_its_server_leaves_what_was_promised() {
    let seed = seed_from_env("LANEFS_SEED");
    let base = patterned(12 << 20, ARGS);
    let dir = tempfile::tempdir().unwrap();
    let mut dump = DumpFile::create(dir.path().join("state.img"), &base).unwrap();
    let mut changed = 0;
    for case in 100..140 {
        let place = tempfile::tempdir().unwrap();
        let mut rng = seed.rng(case);
        let server = NbdServer::start(place.path(), base.clone(), NbdSettings::default()).unwrap();
        let volume = open(&server, "&timeout=2&reconnect=0");
        let mut history = vec![volume_digest(&volume)];
        let (mut synced, last) = (0, rng.random_range(5..OPERATIONS));
        for i in 0..last {
            let _ = step(&volume, &mut rng);
            history.push(volume_digest(&volume));
            if rng.random_bool(0.15) && i + 1 < last {
                volume.sync().unwrap();
                synced = history.len() - 1;
            }
        }
        // In the middle of what a sync writes.
        server.fault(None, rng.random_range(1..7), NbdFault::Kill(rng.next_u64()));
        let ended = volume.sync();
        server.set_down(true);
        server.kill(rng.next_u64());
        drop(volume);
        if ended.is_ok() {
            synced = history.len() - 1;
        }
        let seen = recovered(server.durable(), &mut dump, &format!("case {case}"));
        let allowed = &history[synced..];
        assert!(allowed.contains(&seen), "case {case}: none of the trees since operation {synced}");
        changed += usize::from(*allowed.last().unwrap() != seen);
    }
    assert!(changed > 5, "only {changed} of 40 volumes lost anything: the kills came too late");
}
