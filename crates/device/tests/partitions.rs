//! Judged by sgdisk and sfdisk, which make the tables; damaged by hand and at random.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panic")]

#[path = "common/loop_device.rs"]
mod loop_device;

use lanefs_device::{
    BlockDevice, FileDevice, FileOptions, LINUX_FILE_SYSTEM, MemDevice, NewPartition, Op, Partition,
    PartitionTable, Result, VolumeUrl, open_url, write_gpt,
};
use loop_device::LoopDevice;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A sparse disk of 64 MiB in a folder of its own.
fn disk() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.raw");
    drop(FileDevice::create(&path, 64 * MIB).unwrap());
    (dir, path)
}

fn run(program: &str, args: &[&str], path: &Path, input: &str) {
    use std::io::Write;
    let path_with_sbin = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut child = Command::new(program)
        .args(args)
        .arg(path)
        .env("PATH", path_with_sbin)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
}

fn sgdisk(path: &Path) {
    let args = "--disk-guid=11111111-2222-3333-4444-555555555555 \
        --new=1:1M:+8M --typecode=1:ef00 --change-name=1:ESP \
        --new=2:16M:+16M --typecode=2:8300 --change-name=2:root \
        --partition-guid=2:aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee --new=7:40M:+8M --change-name=7:10";
    run("sgdisk", &args.split_whitespace().collect::<Vec<_>>(), path, "");
}

fn at_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn crc32(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

fn read(path: &Path) -> Result<Option<PartitionTable>> {
    PartitionTable::read(&FileDevice::open_read_only(path).unwrap())
}

/// Attaches a loop device with sectors of 4096 bytes.
fn loop_of_4096(path: &Path) -> LoopDevice {
    LoopDevice::attach(path, &["--sector-size=4096"])
}

fn places(table: &PartitionTable) -> Vec<(u32, u64, u64)> {
    table.partitions.iter().map(|p| (p.number, p.start, p.size)).collect()
}

fn url(path: &Path, behind: &str) -> OsString {
    [path.as_os_str(), behind.as_ref()].into_iter().collect()
}

#[test]
fn a_gpt_of_sgdisk_and_its_backup() {
    let (_dir, path) = disk();
    assert!(read(&path).unwrap().is_none());
    sgdisk(&path);
    let check = || {
        let table = read(&path).unwrap().unwrap();
        assert_eq!((table.scheme, &*table.disk), ("gpt", "11111111-2222-3333-4444-555555555555"));
        assert_eq!(places(&table), [(1, MIB, 8 * MIB), (2, 16 * MIB, 16 * MIB), (7, 40 * MIB, 8 * MIB)]);
        assert_eq!(table.partitions[0].kind.to_string(), "EFI system");
        assert_eq!(table.partitions[1].kind.to_string(), "Linux file system");
        assert_eq!(table.partitions[1].uuid, "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee");
        assert_eq!(table.find("root").unwrap().number, 2);
        assert_eq!(table.find("7").unwrap().name, "10");
        assert_eq!(table.find("AAAAAAAA-BBBB-CCCC-DDDD-eeeeeeeeeeee").unwrap().number, 2);
        let none = r#"has no partition "10"; there are 1 ("ESP"), 2 ("root"), 7 ("10")"#;
        assert_eq!(table.find("10").unwrap_err(), none);
    };
    check();
    // Without its primary table.
    let device = FileDevice::open(&path).unwrap();
    device.write_at(&[0; 512], 512).unwrap();
    drop(device);
    check();
    // Without any: the first sector still says that there was one.
    let device = FileDevice::open(&path).unwrap();
    device.write_at(&[0xFF; 512], 64 * MIB - 512).unwrap();
    drop(device);
    assert!(read(&path).unwrap_err().to_string().contains("damaged"));
    let e = open_url(url(&path, "@2"), &FileOptions::new()).unwrap_err();
    assert!((e.op, e.errno()) == (Op::Open, libc::EINVAL) && e.to_string().contains("damaged"), "{e}");
}

fn new(start: u64, size: u64, name: &str) -> NewPartition {
    NewPartition { kind: LINUX_FILE_SYSTEM, uuid: [0xAB; 16], start, size, name: name.into() }
}

#[test]
fn a_gpt_that_is_written_is_one_of_sgdisk() {
    let (_dir, path) = disk();
    let device = FileDevice::open(&path).unwrap();
    let long = "n".repeat(35) + "\u{1F600}";
    let partitions = [new(MIB, 8 * MIB, "root"), new(16 * MIB, 47 * MIB, &long)];
    write_gpt(&device, [0x12; 16], &partitions).unwrap();
    drop(device);
    let path_with_sbin = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut sgdisk = Command::new("sgdisk");
    let out = sgdisk.args(["-v", "-p", "-i", "2"]).arg(&path).env("PATH", path_with_sbin).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("No problems found"), "{said}");
    assert!(said.contains("12121212-1212-1212-1212-121212121212"), "{said}");
    assert!(said.contains("Partition unique GUID: ABABABAB-"), "{said}");
    let table = read(&path).unwrap().unwrap();
    assert_eq!(places(&table), [(1, MIB, 8 * MIB), (2, 16 * MIB, 47 * MIB)]);
    // A character that needs two units has no room for them.
    assert_eq!(table.partitions[1].name, "n".repeat(35));
    assert_eq!(table.partitions[0].kind.to_string(), "Linux file system");
}

#[test]
fn partitions_without_room_are_not_written() {
    let disk = MemDevice::new(64 << 20);
    let end = 64 * MIB - lanefs_device::GPT_BACKUP;
    write_gpt(&disk, [1; 16], &[new(34 * 512, 512, ""), new(35 * 512, end - 35 * 512, "")]).unwrap();
    let blank = MemDevice::new(64 << 20);
    for wrong in [
        &[new(33 * 512, 512, "")][..],
        &[new(MIB, end - MIB + 512, "")],
        &[new(MIB, 0, "")],
        &[new(MIB, MIB, ""), new(2 * MIB - 512, MIB, "")],
        &[new(MIB + 1, MIB, "")],
        &[new(u64::MAX - 511, 512, "")],
        &vec![new(MIB, 512, ""); 129],
    ] {
        let e = write_gpt(&blank, [1; 16], wrong).unwrap_err();
        assert_eq!((e.op, e.source.kind()), (Op::Write, std::io::ErrorKind::InvalidInput), "{e}");
    }
    assert!(write_gpt(&MemDevice::new(4096), [1; 16], &[]).is_err());
    assert!(PartitionTable::read(&blank).unwrap().is_none());
}

#[test]
fn a_gpt_of_sectors_of_4096_bytes() {
    let (_dir, path) = disk();
    let attached = loop_of_4096(&path);
    let device = Path::new(attached.name());
    // The kernel is not told: nothing looks for partitions on this loop device.
    run("sfdisk", &["--quiet", "--no-tell-kernel"], device, "label: gpt\nstart=512, size=1024, name=data\n");
    drop(attached);
    assert_eq!(places(&read(&path).unwrap().unwrap()), [(1, 2 * MIB, 4 * MIB)]);
}

#[test]
fn a_dos_table_of_sfdisk_with_logical_partitions() {
    let (_dir, path) = disk();
    let script = "label: dos\nlabel-id: 0x01020304\n\
        start=2048, size=4096, type=c\nstart=8192, size=65536, type=5\n\
        start=10240, size=2048, type=83\nstart=16384, size=4096, type=82\nstart=32768, size=2048\n";
    run("sfdisk", &["--quiet"], &path, script);
    let table = read(&path).unwrap().unwrap();
    let (sector, number) = (512, |p: &Partition| p.number);
    assert_eq!((table.scheme, &*table.disk), ("dos", "01020304"));
    assert_eq!(table.partitions.iter().map(number).collect::<Vec<_>>(), [1, 2, 5, 6, 7]);
    let starts: Vec<u64> = table.partitions.iter().map(|p| p.start / sector).collect();
    assert_eq!(starts, [2048, 8192, 10240, 16384, 32768]);
    assert_eq!(table.find("01020304-06").unwrap().kind.to_string(), "Linux swap");
    assert_eq!(table.find("6").unwrap().size, 4096 * sector);
}

/// Linux numbers the logical partitions that there are, not the links of the chain.
#[test]
fn a_link_without_a_partition_has_no_number() {
    let (_dir, path) = disk();
    let script = "label: dos\nstart=8192, size=65536, type=5\n\
        start=10240, size=2048, type=83\nstart=16384, size=4096, type=82\nstart=32768, size=2048\n";
    run("sfdisk", &["--quiet"], &path, script);
    let all = places(&read(&path).unwrap().unwrap());
    assert_eq!(all.iter().map(|place| place.0).collect::<Vec<_>>(), [1, 5, 6, 7]);
    let device = FileDevice::open(&path).unwrap();
    let first = (8192 << 9) + 446;
    let mut entries = [0; 64];
    device.read_at(&mut entries, first).unwrap();
    device.write_at(&[0; 16], first).unwrap();
    drop(device);
    let left = [all[0], (5, all[2].1, all[2].2), (6, all[3].1, all[3].2)];
    assert_eq!(places(&read(&path).unwrap().unwrap()), left);
    // The link may be the first entry and the partition the second.
    entries[..32].rotate_left(16);
    let device = FileDevice::open(&path).unwrap();
    device.write_at(&entries, first).unwrap();
    drop(device);
    assert_eq!(places(&read(&path).unwrap().unwrap()), all);
}

#[test]
fn a_dos_table_of_sectors_of_4096_bytes() {
    let (_dir, path) = disk();
    let attached = loop_of_4096(&path);
    let device = Path::new(attached.name());
    let script =
        "label: dos\nstart=256, size=1024, type=83\nstart=2048, size=8192, type=5\nstart=4096, size=512\n";
    run("sfdisk", &["--quiet", "--no-tell-kernel"], device, script);
    let table = read(device);
    let found = places(&table.unwrap().unwrap());
    assert_eq!(found, [(1, MIB, 4 * MIB), (2, 8 * MIB, 32 * MIB), (5, 16 * MIB, 2 * MIB)]);
}

/// The boot sector of a file system ends as an MBR does.
#[test]
fn a_boot_sector_is_no_table() {
    let (_dir, path) = disk();
    run("mkfs.vfat", &[], &path, "");
    assert!(read(&path).unwrap().is_none());
}

/// The chain of logical partitions leads into itself, or out of the disk.
#[test]
fn a_chain_without_end_is_cut() {
    let mut bytes = vec![0; 4 << 20];
    let entry = |bytes: &mut [u8], at: usize, kind: u8, start: u32| {
        bytes[at + 4] = kind;
        bytes[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
        bytes[at + 12..at + 16].copy_from_slice(&u32::MAX.to_le_bytes());
    };
    for sector in [0, 8] {
        bytes[sector * 512 + 510..][..2].copy_from_slice(&[0x55, 0xAA]);
    }
    entry(&mut bytes, 446, 5, 8);
    entry(&mut bytes, 8 * 512 + 446, 0x83, u32::MAX);
    entry(&mut bytes, 8 * 512 + 462, 5, 0);
    let table = PartitionTable::read(&MemDevice::from_bytes(bytes.clone())).unwrap().unwrap();
    assert_eq!(table.partitions.len(), 1 + 251);
    assert!(table.find("x").unwrap_err().ends_with("236 more"));
    entry(&mut bytes, 8 * 512 + 462, 5, u32::MAX);
    let table = PartitionTable::read(&MemDevice::from_bytes(bytes)).unwrap().unwrap();
    assert_eq!(table.partitions.len(), 2);
}

/// No bytes of a table make the reader panic or allocate without bound. The checksums are made to
/// agree half of the time, so that what they guard is reached.
#[test]
fn hostile_tables() {
    let (_dir, path) = disk();
    sgdisk(&path);
    let good = std::fs::read(&path).unwrap();
    let mut seed = 1_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut read = 0;
    for round in 0..1000 {
        let mut bytes = good[..2 << 20].to_vec();
        for _ in 0..=random(8) {
            let at = [446 + random(66), 512 + random(92), 1024 + random(1024)][random(3) as usize] as usize;
            let value = [0, 0xFF, 0x7F, 0x80, random(256) as u8][random(5) as usize];
            let len = 1 + random(8) as usize;
            bytes[at..at + len].fill(value);
        }
        if round % 2 == 0 {
            let (count, size) = (at_u32(&bytes, 592), at_u32(&bytes, 596));
            let len = usize::try_from(u64::from(count) * u64::from(size)).unwrap_or(0).min(1 << 20);
            let sum = crc32(&bytes[1024..1024 + len]);
            bytes[600..604].copy_from_slice(&sum.to_le_bytes());
            bytes[528..532].fill(0);
            let len = (at_u32(&bytes, 524) as usize).min(512);
            let sum = crc32(&bytes[512..512 + len]);
            bytes[528..532].copy_from_slice(&sum.to_le_bytes());
        }
        if let Ok(Some(table)) = PartitionTable::read(&MemDevice::from_bytes(bytes)) {
            read += 1;
            let _ = (table.find("root"), table.to_string());
            assert!(table.partitions.iter().all(|p| p.range().end >= p.start));
        }
    }
    assert!(read > 100, "only {read} tables were read");
}

#[test]
fn names_of_parts() {
    let (dir, path) = disk();
    let parse = |name: &OsStr| VolumeUrl::parse(name).map(|url| url.part.map(|part| format!("{part:?}")));
    let part = |behind: &str| parse(&url(&path, behind)).unwrap().unwrap();
    assert!(part("@2").contains("Partition(\"2\")"));
    assert!(part("@a@b").contains("Partition(\"a@b\")"));
    assert!(part("?offset=1M&size=4G").contains("offset: 1048576, size: Some(4294967296)"));
    assert!(part("?size=512").contains("offset: 0, size: Some(512)"));
    assert!(part("?offset=0").contains("offset: 0, size: None"));
    for bad in ["?offset=1", "?offset=", "?size=0", "?offset=1M&x=1", "?size=1M&size=1M", "?offset=1M&"] {
        let e = parse(&url(&path, bad)).unwrap_err();
        assert!(e.errno() == libc::EINVAL && e.to_string().contains("?offset=1M&size=4G"), "{e}");
    }
    // Neither behind what is no file, nor of a path that exists.
    for plain in ["x@2", "icon@2x.img", "a?b", "?offset=1M"] {
        assert_eq!(parse(plain.as_ref()).unwrap(), None, "{plain}");
    }
    assert_eq!(parse(&url(dir.path(), "@2")).unwrap(), None);
    for name in ["disk.raw@2", "disk.raw?offset=1M"] {
        let there = dir.path().join(name);
        drop(FileDevice::create(&there, 4096).unwrap());
        assert_eq!(open_url(&there, &FileOptions::new()).unwrap().size(), 4096);
    }
    let mapped = url(Path::new("pmem:"), &format!("{}@1", path.display()));
    assert!(VolumeUrl::parse(&mapped).unwrap().part.is_some());
}

#[test]
fn a_part_is_opened_inside_of_its_bounds() {
    let (_dir, path) = disk();
    sgdisk(&path);
    let options = FileOptions::new();
    let open = |behind: &str| open_url(url(&path, behind), &options);
    for direct in [false, true] {
        let device = open_url(url(&path, "@root"), &FileOptions::new().direct(direct)).unwrap();
        assert_eq!(device.size(), 16 * MIB);
        device.write_at(b"first", 0).unwrap();
        device.write_at(b"last", 16 * MIB - 4).unwrap();
        assert!(device.write_at(b"x", 16 * MIB).is_err());
        device.flush().unwrap();
    }
    let disk = std::fs::read(&path).unwrap();
    assert_eq!(&disk[16 << 20..][..5], b"first");
    assert_eq!(&disk[(32 << 20) - 4..32 << 20], b"last");
    let mapped = url(Path::new("pmem:"), &format!("{}@root", path.display()));
    let device = open_url(&mapped, &options).unwrap();
    assert_eq!(device.mapped().unwrap().size(), 16 * MIB);
    let mut seen = [0; 5];
    device.read_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"first");
    device.write_at(b"1", 1).unwrap();
    assert!(device.write_at(b"x", 16 * MIB).is_err() && device.discard(16 * MIB, 1).is_err());
    drop(device);
    assert_eq!(&std::fs::read(&path).unwrap()[16 << 20..][..5], b"f1rst");

    assert_eq!(open("?offset=16M&size=1M").unwrap().size(), MIB);
    assert_eq!(open("?offset=63M").unwrap().size(), MIB);
    for (behind, errno, why) in [
        ("@9", libc::ENOENT, "has no partition \"9\"; there are 1 (\"ESP\"), 2"),
        ("?offset=64M", libc::EINVAL, "has 67108864 bytes"),
        ("?offset=63M&size=2M", libc::EINVAL, "bytes 66060288 to 68157440"),
        ("?size=16777215T", libc::EINVAL, "has 67108864 bytes"),
    ] {
        let e = open(behind).unwrap_err();
        assert!(e.errno() == errno && e.to_string().contains(why), "{behind}: {e}");
    }
    // A disk that was cut short.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(20 * MIB).unwrap();
    assert!(open("@1").is_ok());
    assert!(open("@root").unwrap_err().to_string().contains("has 20971520 bytes"));
}

/// Direct I/O in units that two partitions share would write the neighbour's bytes.
#[test]
fn a_part_that_shares_a_sector_is_not_opened_for_direct_io() {
    let (_dir, path) = disk();
    let attached = loop_of_4096(&path);
    let device = Path::new(attached.name());
    let direct = FileOptions::new().direct(true);
    for (offset, size) in [(512, 64 << 12), (4096, (64 << 12) + 512)] {
        let name = url(device, &format!("?offset={offset}&size={size}"));
        let e = open_url(&name, &direct).unwrap_err();
        assert!(e.to_string().contains("is not a multiple of 4096, as direct I/O asks"), "{e}");
        assert_eq!(open_url(&name, &FileOptions::new()).unwrap().size(), size);
    }
    let whole = url(device, "?offset=4096&size=64K");
    assert_eq!(open_url(&whole, &direct).unwrap().alignment(), 4096);
}

#[test]
fn partitions_are_locked_one_by_one() {
    let (_dir, path) = disk();
    sgdisk(&path);
    let (write, look) = (FileOptions::new(), FileOptions::new().read_only(true));
    let busy = |name: OsString, options: &FileOptions| {
        let e = open_url(&name, options).unwrap_err();
        assert_eq!((e.op, e.errno()), (Op::Lock, libc::EBUSY), "{e}");
        e.to_string()
    };
    let open = |behind: &str, options: &FileOptions| open_url(url(&path, behind), options).unwrap();
    let root = open("@2", &write);
    let esp = open("@1", &write);
    assert!(busy(url(&path, "@root"), &write).ends_with("is in use: another opener has it open"));
    drop(esp);
    for options in [&write, &look] {
        busy(url(&path, "@root"), options);
        busy(url(&path, "?offset=31M"), options);
        busy(url(&path, ""), options);
        drop(open("?offset=32M", options));
    }
    assert!(busy(url(&path, ""), &look).ends_with("this process writes to it, or to a part of it"));
    drop(root);
    let whole = open("", &look);
    let also = open("@2", &look);
    busy(url(&path, "@1"), &write);
    drop(whole);
    drop(open("@1", &write));
    busy(url(&path, "@2"), &write);
    drop(also);
    let whole = open("", &write);
    busy(url(&path, "@2"), &look);
    drop(whole);
    drop(open("@2", &write));
    let mapped = open_url(url(Path::new("pmem:"), &format!("{}@2", path.display())), &write).unwrap();
    busy(url(&path, "@2"), &look);
    drop(open("@1", &write));
    drop(mapped);
    drop(open("", &write));
}

/// Two threads write to neighbouring partitions at the same time.
#[test]
fn neighbours_write_at_the_same_time() {
    let (_dir, path) = disk();
    sgdisk(&path);
    let parts = ["@1", "@2"].map(|part| open_url(url(&path, part), &FileOptions::new()).unwrap());
    std::thread::scope(|scope| {
        for (device, byte) in parts.iter().zip(1..) {
            let device = Arc::clone(device);
            scope.spawn(move || {
                for at in (0..device.size()).step_by(1 << 16) {
                    device.write_at(&[byte; 1 << 16], at).unwrap();
                }
            });
        }
    });
    let disk = std::fs::read(&path).unwrap();
    assert!(
        disk[1 << 20..9 << 20].iter().all(|b| *b == 1) && disk[16 << 20..32 << 20].iter().all(|b| *b == 2)
    );
    assert!(disk[9 << 20..16 << 20].iter().all(|b| *b == 0));
}
