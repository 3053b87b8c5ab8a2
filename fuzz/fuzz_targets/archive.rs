//! Imports an archive of the input into a directory of a volume. The first byte chooses between the
//! rest as it is and bytes of a sound archive to change, each with its place, and whether headers
//! get right checksums again. The volume stays sound, and nothing changes outside of the directory.
#![no_main]

use lanefs::{
    AtSymlink, DeviceNumber, FileType, NewAttr, OpenOptions, SetAttr, SetXattr, Timestamp, Volume, mkfs,
};
use lanefs_archive::{Compression, ExportOptions, ImportOptions, Source, Target, export, import};
use lanefs_sim::{Image, OverlayDevice};
use lanefs_tests::campaign::check_volume;
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use std::ops::ControlFlow;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

const RECORD: usize = 512;
/// Bytes that an archive may unpack to.
const MOST: u64 = 64 << 20;
/// The second at which the volume is made and filled.
const TIME: i64 = 1_000_000_000;

/// An archive with members of every kind: pax records for long names, large owners, attributes and
/// ACLs, maps of holes, and a directory where the volume has a link that leads out.
static SOUND: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let volume = Volume::in_memory(16 << 20).unwrap();
    volume.create_dir_all("/dir/deep").unwrap();
    volume.create_dir("/out").unwrap();
    volume.write("/out/file", b"inside").unwrap();
    volume.write("/dir/file", b"content").unwrap();
    volume.write(format!("/dir/deep/{}", "n".repeat(150)), &[7; 700]).unwrap();
    volume.hard_link("/dir/file", "/dir/hard").unwrap();
    volume.symlink("../../outside/file", "/dir/link").unwrap();
    volume.symlink("t".repeat(200), "/dir/long link").unwrap();
    let attr = NewAttr { permissions: 0o640, uid: 3, gid: 4 };
    let device = DeviceNumber { major: 1, minor: 3 };
    volume.mknod("/dir/null", FileType::CharDevice, device, attr).unwrap();
    volume.mknod("/dir/fifo", FileType::Fifo, device, attr).unwrap();
    let owner = SetAttr { uid: Some(3_000_000), permissions: Some(0o4755), ..SetAttr::default() };
    volume.set_attr("/dir/file", &owner, AtSymlink::NoFollow).unwrap();
    volume.set_xattr("/dir/file", "user.name", b"value", SetXattr::Any).unwrap();
    volume.set_xattr("/dir", "system.posix_acl_default", &acl(), SetXattr::Any).unwrap();
    let sparse = volume.create_file("/sparse").unwrap();
    [0, 50_000, 900_000].into_iter().for_each(|at| sparse.write_at(b"data", at).unwrap());
    drop(sparse);
    let mut archive = Vec::new();
    let target = Target::archive("", &mut archive, Compression::None);
    export(&volume, "/", target, &ExportOptions::new(), |_| ControlFlow::Continue(())).unwrap();
    assert!(archive.len() < 1 << 16, "a place has two bytes");
    archive
});

/// A volume with a directory to fill, a link in it that leads out, and what is outside.
static VOLUME: LazyLock<Image> = LazyLock::new(|| {
    let device = Arc::new(OverlayDevice::new(Image::zeroed(8 << 20)));
    let options = mkfs::Options { uuid: Some([7; 16]), time: Some(TIME as u64), ..mkfs::Options::default() };
    mkfs::format(&*device, &options).unwrap();
    let volume = open(&device);
    volume.create_dir_all("/into").unwrap();
    volume.create_dir("/outside").unwrap();
    volume.write("/outside/file", b"as before").unwrap();
    volume.symlink("/outside", "/into/out").unwrap();
    volume.close().unwrap();
    device.image()
});

/// An ACL with a user.
fn acl() -> Vec<u8> {
    let mut acl = 2u32.to_le_bytes().to_vec();
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 5, 1000), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];
    for (tag, permissions, id) in entries {
        acl.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        acl.extend(id.to_le_bytes());
    }
    acl
}

fn open(device: &Arc<OverlayDevice>) -> Volume {
    let clock = Some(Timestamp { sec: TIME, nsec: 0 });
    let options = OpenOptions::new().write(true).commit_interval(Duration::ZERO);
    options.threads(false).clock(clock).open_device(device.clone()).unwrap()
}

/// Returns what a walk sees of the volume but for the directory.
fn outside(volume: &Volume) -> Vec<String> {
    let names = |dir: &str| {
        let mut names: Vec<_> = volume.read_dir(dir).unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        format!("{dir} {names:?}")
    };
    let attributes = |path: &str| {
        let meta = volume.symlink_metadata(path).unwrap();
        let (ino, owner, times) = (meta.ino(), (meta.uid(), meta.gid()), (meta.mtime(), meta.ctime()));
        format!("{path} {ino} {:o} {owner:?} {} {} {times:?}", meta.mode(), meta.nlink(), meta.len())
    };
    let mut lines: Vec<String> = ["/", "/lost+found", "/outside", "/outside/file"].map(attributes).into();
    lines.extend(["/", "/lost+found", "/outside"].map(names));
    lines.push(format!("{:?}", volume.read("/outside/file").unwrap()));
    lines
}

/// Writes the checksum of each header anew.
fn seal(archive: &mut [u8]) {
    for record in archive.as_chunks_mut::<RECORD>().0 {
        if record[257..262] == *b"ustar" {
            record[148..156].fill(b' ');
            let sum: u32 = record.iter().map(|byte| u32::from(*byte)).sum();
            record[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let [how, script @ ..] = input else { return };
    let mut archive = if how & 1 == 0 { SOUND.clone() } else { script.to_vec() };
    if how & 1 == 0 {
        for change in script.as_chunks::<3>().0 {
            let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
            let at = at % archive.len();
            archive[at] = change[2];
        }
    }
    if how & 2 == 0 {
        seal(&mut archive);
    }
    let device = Arc::new(OverlayDevice::new(VOLUME.clone()));
    let volume = open(&device);
    let before = outside(&volume);
    let Ok(source) = Source::archive("input", Cursor::new(archive)) else { return };
    let options = ImportOptions::new().max_size(MOST);
    if let Err(e) = import(source, &volume, "/into", &options, |_| ControlFlow::Continue(())) {
        assert!(e.to_string().len() > 8, "an error that says nothing: {e:?}");
    }
    assert_eq!(outside(&volume), before);
    volume.close().unwrap();
    check_volume(device).unwrap();
});
