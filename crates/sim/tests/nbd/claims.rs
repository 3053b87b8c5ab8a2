//! What this host keeps apart on a server: the parts of an export, whatever they are called.

use super::{Bench, SIZE, usual};
use lanefs_device::{
    FileOptions, LINUX_FILE_SYSTEM, MemDevice, NbdError, NewPartition, Op, open_url, write_gpt,
};
use lanefs_sim::Image;

/// Serves a disk with two partitions of 2 MiB, the first one from 2 MiB on.
fn disk() -> Bench {
    let disk = MemDevice::new(SIZE as usize);
    let part = |number: u8, name: &str| {
        let (start, size) = (u64::from(number) << 21, 2 << 20);
        NewPartition { kind: LINUX_FILE_SYSTEM, uuid: [number; 16], start, size, name: name.into() }
    };
    write_gpt(&disk, [7; 16], &[part(1, "boot"), part(2, "root")]).unwrap();
    Bench::over(Image::from_bytes(disk.to_bytes()), usual())
}

/// Number, name and UUID lead to one partition, and so may a range of bytes. The rest is free.
#[test]
fn a_partition_by_two_names_is_one() {
    let bench = disk();
    let open = |part: &str, read_only| {
        let options = FileOptions::new().read_only(read_only);
        open_url(format!("{}{part}", bench.server.url("")), &options)
    };
    let root = open("@2", false).unwrap();
    let _boot = open("@boot", false).unwrap();
    let uuid = "@02020202-0202-0202-0202-020202020202";
    for part in ["@2", "@root", uuid, "&offset=5M&size=512k", "&offset=2M", ""] {
        for read_only in [false, true] {
            let e = open(part, read_only).unwrap_err();
            let is_in_use = matches!(e.nbd(), Some(NbdError::InUse { by: Some(_) }));
            assert!(e.op == Op::Lock && is_in_use, "{part}: {e}");
        }
    }
    open("&offset=6M", false).unwrap();
    drop(root);
    open("@root", false).unwrap();
    // A reader that takes no lock sees the table while parts are open.
    open_url(bench.server.url(""), &FileOptions::new().read_only(true).unlocked(true)).unwrap();
}
