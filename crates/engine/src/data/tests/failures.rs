//! Files that cannot be written out, beside files that can.

use super::*;
use crate::namei::{NewAttr, NewKind};
use lanefs_device::{MemDevice, Op};
use lanefs_sim::FailingDevice;

type Device = Arc<FailingDevice<MemDevice>>;

/// A volume with the empty files "a" and "b" on a device that can be made to fail.
fn volume(options: OpenOptions) -> (Device, OpenOptions, Arc<Fs>, [NodeRef; 2]) {
    let image = Image::new("16M", KINDS[0]);
    let (a, b) = (image.file("a"), image.file("b"));
    let bytes = std::fs::read(image.path()).unwrap();
    let device = Arc::new(FailingDevice::new(MemDevice::from_bytes(bytes)));
    let options = options.write(true).commit_interval(Duration::ZERO);
    let fs = Fs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options.clone()).unwrap();
    let nodes = [fs.node(a).unwrap(), fs.node(b).unwrap()];
    (device, options, fs, nodes)
}

fn create(fs: &Arc<Fs>, name: &[u8]) {
    let attr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
    drop(fs.create(&fs.root().unwrap(), name, NewKind::File, attr).unwrap());
}

#[test]
fn one_file_that_fails_does_not_keep_others_from_being_committed() {
    for close in [false, true] {
        let (device, options, fs, [a, _]) = volume(OpenOptions::new());
        buffered::write(&a, 0, &[1; 4096]).unwrap();
        create(&fs, b"new");
        // The block bitmap cannot be read: the page of "a" stays dirty.
        device.fail_from(Op::Read, 1, 5);
        let failed = match close {
            true => fs.close(),
            false => fs.sync(),
        };
        assert!(failed.is_err());
        device.heal();
        let after = Arc::new(MemDevice::from_bytes(device.inner().to_bytes()));
        let fs = Fs::open(after, options).unwrap();
        let found = fs.lookup(&fs.root().unwrap(), b"new");
        assert!(found.is_ok(), "close {close}: what was made is lost: {:?}", found.err());
    }
}

#[test]
fn a_writer_is_not_told_of_another_file() {
    let (device, _, fs, [a, b]) = volume(OpenOptions::new().cache_bytes(1 << 20));
    // Too much for the cache, and no place for it can be found.
    buffered::write(&a, 0, &[1; 600 << 10]).unwrap();
    device.fail_from(Op::Read, 1, 5);
    buffered::write(&b, 0, &[2; 4096]).unwrap();
    assert!(sync_all(&a).is_err());
    device.heal();
    sync_all(&b).unwrap();
    sync_all(&a).unwrap();
    let mut room = [0; 10];
    buffered::read(&b, 0, &mut room).unwrap();
    assert_eq!(room, [2; 10]);
    drop((a, b));
    fs.close().unwrap();
}
