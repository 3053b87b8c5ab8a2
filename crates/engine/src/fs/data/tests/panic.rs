//! A panic in a thread that does the work of other threads.

use crate::OpenOptions;
use lanefs_device::MemDevice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

#[test]
fn a_follower_of_a_leader_that_panics_is_told() {
    const THREADS: usize = 8;
    for all in [true, false] {
        let device = MemDevice::new(32 << 20);
        lanefs_mkfs::format(&device, &lanefs_mkfs::Options::default()).unwrap();
        let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
        let volume = options.open_device(Arc::new(device)).unwrap();
        let files: Vec<_> = (0..THREADS).map(|i| volume.create_file(format!("/{i}")).unwrap()).collect();
        volume.sync().unwrap();
        let combiner = &files[0].inode().fs.combiner;
        combiner.panics.store(true, Ordering::Relaxed);
        combiner.gathers.store(THREADS, Ordering::Relaxed);
        let synced: Vec<_> = thread::scope(|scope| {
            let sync = |file: &crate::File| {
                file.write_at(&[1; 10_000], 0).unwrap();
                if all { file.sync_all() } else { file.sync_data() }
            };
            let sync = |file| scope.spawn(move || catch_unwind(AssertUnwindSafe(|| sync(file))));
            let threads: Vec<_> = files.iter().map(sync).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        combiner.gathers.store(0, Ordering::Relaxed);
        assert_eq!(synced.iter().filter(|result| result.is_err()).count(), 1, "one has led");
        for told in synced.into_iter().flatten() {
            assert_eq!(told.unwrap_err().errno(), rustix::io::Errno::IO.raw_os_error());
        }
        assert!(files.iter().all(|file| file.sync_data().is_err() && file.write_at(b"x", 0).is_err()));
        assert!(volume.create_dir("/d").is_err());
    }
}
