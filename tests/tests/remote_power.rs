//! Power loss of an NBD server: it is killed, and loses a part of what was not flushed, each sector
//! for itself.
//!
//! As long as the client lives and the server comes back, nothing is lost: neither what was synced
//! nor what was written since. If the client dies with it, the volume recovers to a state that was
//! promised. e2fsck judges both.

use super::power_loss::{ARGS, tried};
use lanefs::{OpenOptions, Volume};
use lanefs_device::{BlockDevice, FileOptions, NbdDevice, forward_to};
use lanefs_sim::{DumpFile, Image, NbdFault, NbdServer, NbdSettings, OverlayDevice, seed_from_env};
use lanefs_tests::{VirtualClock, e2fsck, memory_dir, patterned, volume_digest};
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
        let dir = memory_dir();
        let mut rng = seed.rng(case);
        let server = NbdServer::start(dir.path(), base.clone(), NbdSettings::default()).unwrap();
        let volume = open(&server, "&timeout=5&reconnect=60");
        let mut at = 0;
        for _ in 0..30 {
            at += rng.random_range(2..14);
            server.fault(None, at, NbdFault::Kill(rng.next_u64()));
        }
        for i in 0..OPERATIONS * 2 {
            tried(&volume, &mut rng);
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

/// A device on which a lock keeps other hosts out, as that of an RBD image does. It repeats nothing
/// that a guard would have to be asked for.
#[derive(Debug)]
struct Locked(NbdDevice);

impl BlockDevice for Locked {
    forward_to!(0: size read_only alignment sector_size name is_remote read_at read_batch);
    forward_to!(0: write_at write_batch flush discard write_zeroes);

    fn is_private(&self) -> bool {
        true
    }
}

fn unlocked(device: NbdDevice) -> Arc<dyn BlockDevice> {
    Arc::new(device)
}

#[test]
fn a_host_that_lost_its_volume_repeats_nothing() {
    a_host_loses_its_volume_to(unlocked);
}

/// The other host comes by the cluster's lock, and the first by a server of the image.
#[test]
fn a_host_that_lost_its_volume_to_a_lock_repeats_nothing() {
    a_host_loses_its_volume_to(|device| Arc::new(Locked(device)));
}

/// A host loses its connection, and with it its volume: what it has not flushed is not written
/// again.
fn a_host_loses_its_volume_to(other: fn(NbdDevice) -> Arc<dyn BlockDevice>) {
    let dir = memory_dir();
    let base = patterned(12 << 20, &[ARGS, &["-O", "mmp", "-E", "mmp_update_interval=1"]].concat());
    let server = NbdServer::start(dir.path(), base.clone(), NbdSettings::default()).unwrap();
    // By the names of two volumes: no lock of this host keeps them apart.
    let host = |name, device_of: fn(NbdDevice) -> Arc<dyn BlockDevice>| {
        let url = server.url("&timeout=5&reconnect=5");
        let device = NbdDevice::open(&url, Some(name), &FileOptions::new()).unwrap();
        let options = OpenOptions::new().write(true).threads(false).commit_interval(Duration::ZERO);
        options.mmp_clock(Arc::new(VirtualClock::default())).open_device(device_of(device)).unwrap()
    };
    let first = host("a", unlocked);
    first.write("/synced", &[1; 100_000]).unwrap();
    first.sync().unwrap();
    let direct = first.open_options().write(true).direct(true).open("/synced").unwrap();
    // Acknowledged, and kept until a flush.
    direct.write_at(&[2; 65_536], 0).unwrap();
    let second = host("b", other);
    assert_eq!(second.info().recovery.journal.transactions, 1);
    second.remove_file("/synced").unwrap();
    second.write("/b", &[3; 2_000_000]).unwrap();
    second.sync().unwrap();
    let held = server.image();
    server.disconnect();
    // Its clock says that it has just looked.
    let e = direct.write_at(&[2; 4096], 0).unwrap_err();
    assert!(e.to_string().contains("another one has taken the volume"), "{e}");
    assert_eq!(e.errno(), lanefs_device::errno::EIO);
    first.sync().unwrap_err();
    drop((direct, first));
    assert!(server.image().to_bytes() == held.to_bytes(), "it has written");
    second.write("/c", b"4").unwrap();
    second.close().unwrap();
    let mut dump = DumpFile::create(dir.path().join("state.img"), &base).unwrap();
    recovered(server.image(), &mut dump, "closed");
}

/// A server that loses what was not flushed has an older block of the same host, which goes on.
#[test]
fn a_host_that_keeps_its_volume_goes_on() {
    let dir = memory_dir();
    let base = patterned(12 << 20, &[ARGS, &["-O", "mmp", "-E", "mmp_update_interval=1"]].concat());
    let server = NbdServer::start(dir.path(), base, NbdSettings::default()).unwrap();
    let volume = open(&server, "&timeout=5&reconnect=60");
    for round in 0..4u8 {
        // Longer than an update, and than a look is fresh.
        std::thread::sleep(Duration::from_millis(1200));
        server.kill(round.into());
        volume.write("/f", &[round; 50_000]).unwrap();
        volume.sync().unwrap();
    }
    assert_eq!(volume.read("/f").unwrap(), [3; 50_000]);
    volume.close().unwrap();
}

#[test]
fn a_client_that_dies_with_its_server_leaves_what_was_promised() {
    let seed = seed_from_env("LANEFS_SEED");
    let base = patterned(12 << 20, ARGS);
    let dir = memory_dir();
    let mut dump = DumpFile::create(dir.path().join("state.img"), &base).unwrap();
    let mut changed = 0;
    for case in 100..140 {
        let place = memory_dir();
        let mut rng = seed.rng(case);
        let server = NbdServer::start(place.path(), base.clone(), NbdSettings::default()).unwrap();
        let volume = open(&server, "&timeout=2&reconnect=0");
        let mut history = vec![volume_digest(&volume)];
        let (mut synced, last) = (0, rng.random_range(5..OPERATIONS));
        for i in 0..last {
            tried(&volume, &mut rng);
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
