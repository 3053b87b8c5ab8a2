//! What a sync waits for.

use crate::OpenOptions;
use lanefs_device::MemDevice;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn an_fsync_waits_for_the_flushes_of_its_commit_and_no_other() {
    let device = MemDevice::new(32 << 20);
    lanefs_mkfs::format(&device, &lanefs_mkfs::Options::default()).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    let volume = options.open_device(Arc::new(device)).unwrap();
    let file = volume.create_file("/f").unwrap();
    volume.sync().unwrap();
    for all in [true, false] {
        let flushes = || volume.stats().journal.flushes;
        let before = flushes();
        file.write_at(u64::from(all) << 20, &[1; 10_000]).unwrap();
        if all { file.sync_all() } else { file.sync_data() }.unwrap();
        // One before the commit block and one behind it: the first covers the data.
        assert_eq!(flushes() - before, 2);
        file.sync_data().unwrap();
        assert_eq!(flushes() - before, 2, "nothing was written since");
    }
}
