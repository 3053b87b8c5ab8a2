//! The commits and flushes that a sync waits for.

use crate::{OpenOptions, Volume};
use lanefs_device::MemDevice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

fn volume() -> Volume {
    let device = MemDevice::new(32 << 20);
    lanefs_mkfs::format(&device, &lanefs_mkfs::Options::default()).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    options.open_device(Arc::new(device)).unwrap()
}

#[test]
fn an_fsync_waits_for_the_flushes_of_its_commit_and_no_other() {
    let volume = volume();
    let file = volume.create_file("/f").unwrap();
    volume.sync().unwrap();
    for all in [true, false] {
        let flushes = || volume.stats().journal.flushes;
        let before = flushes();
        file.write_at(&[1; 10_000], u64::from(all) << 20).unwrap();
        if all { file.sync_all() } else { file.sync_data() }.unwrap();
        // One before the commit block and one behind it: the first covers the data.
        assert_eq!(flushes() - before, 2);
        file.sync_data().unwrap();
        assert_eq!(flushes() - before, 2, "nothing was written since");
    }
}

#[test]
fn those_who_sync_together_share_handle_and_commit_and_all_are_woken() {
    const THREADS: usize = 24;
    let volume = volume();
    let files: Vec<_> = (0..THREADS).map(|i| volume.create_file(format!("/{i}")).unwrap()).collect();
    volume.sync().unwrap();
    let combiner = &files[0].node().fs.combiner;
    for round in 0..3_u8 {
        let counts = || {
            let journal = volume.stats().journal;
            (journal.handles, journal.commits, journal.flushes)
        };
        let before = counts();
        combiner.gathers.store(THREADS, Ordering::Relaxed);
        thread::scope(|scope| {
            for (at, file) in files.iter().enumerate() {
                scope.spawn(move || {
                    file.write_at(&[at as u8 + round; 10_000], u64::from(round) << 16).unwrap();
                    if at % 2 == 0 { file.sync_all() } else { file.sync_data() }.unwrap();
                });
            }
        });
        combiner.gathers.store(0, Ordering::Relaxed);
        let after = counts();
        assert_eq!((after.0 - before.0, after.1 - before.1, after.2 - before.2), (1, 1, 2));
        for (at, file) in files.iter().enumerate() {
            let mut bytes = [0; 10_000];
            // From the device.
            file.node().file().drop_pages(0..u32::MAX);
            assert_eq!(file.read_at(&mut bytes, u64::from(round) << 16).unwrap(), bytes.len());
            assert!(bytes.iter().all(|b| *b == at as u8 + round));
        }
    }
}
