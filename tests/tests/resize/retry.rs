//! A shrinking that fails, and goes on with the same [`Resize`](lanefs::Resize).

use super::{judge, make, open, slot_of};
use lanefs_device::{BlockDevice, DeviceError, FileDevice, FileOptions, Op, forward_to};
use lanefs_tests::memory_dir;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A device that counts the writes of the byte `at`, and fails one read: the first behind so many
/// of these writes.
#[derive(Debug)]
struct FailingBehind {
    inner: FileDevice,
    at: u64,
    writes: AtomicU64,
    fails_behind: AtomicU64,
}

impl BlockDevice for FailingBehind {
    forward_to!(inner: size read_only flush discard write_zeroes);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> lanefs_device::Result<()> {
        if self.writes.load(SeqCst) >= self.fails_behind.load(SeqCst) {
            self.fails_behind.store(u64::MAX, SeqCst);
            let eio = std::io::Error::from_raw_os_error(5);
            return Err(DeviceError::new(Op::Read, offset, buf.len() as u64, eio));
        }
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        if (offset..offset + data.len() as u64).contains(&self.at) {
            self.writes.fetch_add(1, SeqCst);
        }
        self.inner.write_at(data, offset)
    }
}

/// The log has moved when the read fails.
#[test]
fn a_read_that_fails_behind_the_move_of_the_log_is_no_end() {
    let dir = memory_dir();
    let path = dir.path().join("v");
    let digest = make(&path, 200 << 20, &["-t", "ext4", "-b", "1024"]);
    let at = slot_of(&path, 8).0 * 1024;
    let inner = FileOptions::new().open(&path).unwrap();
    let (writes, fails_behind) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let device = Arc::new(FailingBehind { inner, at, writes, fails_behind });
    let mut resize = open(device.clone());
    // Of the journal's inode in place, and of its block by the checkpoint.
    device.fails_behind.store(device.writes.load(SeqCst) + 2, SeqCst);
    resize.shrink(60 << 20).unwrap_err();
    assert_eq!(device.fails_behind.load(SeqCst), u64::MAX, "no read failed");
    assert_eq!(resize.size(), 200 << 20);
    resize.shrink(60 << 20).unwrap();
    assert_eq!(resize.size(), 60 << 20);
    drop((resize, device));
    File::options().write(true).open(&path).unwrap().set_len(60 << 20).unwrap();
    judge(&path, digest, "shrunk");
}
