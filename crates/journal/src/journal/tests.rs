use super::*;
use lanefs_device::MemDevice;

#[test]
fn a_commit_brings_changes_home() {
    let device = Arc::new(MemDevice::new(1 << 20));
    let journal = Journal::open(device.clone(), Options::new(1024)).unwrap();
    let buffer = journal.read(7).unwrap();
    let handle = journal.start(2).unwrap();
    handle.write(&buffer).unwrap()[3] = 9;
    let tid = handle.tid();
    assert_eq!(handle.credits(), 1);
    handle.stop();
    assert_eq!(device.to_bytes()[7 * 1024 + 3], 0);
    journal.commit(tid).unwrap();
    journal.close().unwrap();
    assert_eq!(device.to_bytes()[7 * 1024 + 3], 9);
    assert!(journal.start(1).is_err());
}
