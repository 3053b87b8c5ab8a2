//! Folders as sources and as targets, when a file of them cannot be read whole.

use lanefs::device::{BlockDevice, DeviceError, MemDevice, Op, forward_to};
use lanefs::{Volume, mkfs};
use lanefs_archive::{
    BuildOptions, Cause, Error, Event, ExportOptions, ImportOptions, Place, Source, Target, build, export,
    import,
};
use std::fs;
use std::ops::ControlFlow::{self, Continue};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a callback that collects skipped names and calls `data` at each data event.
fn noting(
    skipped: &mut Vec<Error>,
    mut data: impl FnMut() + Send,
) -> impl FnMut(Event) -> ControlFlow<()> + Send {
    move |event| {
        match event {
            Event::Skipped(error) => skipped.push(error),
            Event::Data(_) => data(),
            _ => {}
        }
        Continue(())
    }
}

fn is_in(error: &Error, path: &Path) -> bool {
    error.place() == &Place::Host(path.as_os_str().as_bytes().to_vec())
}

/// The reader is at most some ten megabytes ahead of the first data that the caller hears of.
#[test]
fn a_file_that_shrinks_while_it_is_read_is_left_out() {
    let (dir, large) = (tempfile::tempdir().unwrap(), vec![b'x'; 32 << 20]);
    let [folder, image] = ["folder", "v.img"].map(|name| dir.path().join(name));
    fs::create_dir(&folder).unwrap();
    let [cut, again, later] = ["cut", "cut-again", "later"].map(|name| folder.join(name));
    for by_build in [false, true] {
        fs::write(&cut, &large).unwrap();
        let _ = fs::remove_file(&again);
        fs::hard_link(&cut, &again).unwrap();
        fs::write(&later, vec![b'l'; 9 << 20]).unwrap();
        let shorten = || fs::File::options().write(true).open(&cut).unwrap().set_len(3).unwrap();
        let (source, mut skipped) = (Source::folder(&folder).unwrap(), Vec::new());
        let volume = if by_build {
            build(source, &image, &BuildOptions::new(), noting(&mut skipped, shorten)).unwrap();
            let checked = Command::new("e2fsck").arg("-fn").arg(&image).output().unwrap();
            assert!(checked.status.success(), "{checked:?}");
            Volume::open_read_only(&image).unwrap()
        } else {
            let volume = super::volume();
            let hear = noting(&mut skipped, shorten);
            import(source, &volume, "/", &ImportOptions::new(), hear).unwrap();
            volume
        };
        let [error] = &skipped[..] else { panic!("{skipped:?}") };
        assert!(is_in(error, &cut) && matches!(error.cause(), Cause::Shrank), "{error}");
        assert!(!volume.exists("/cut").unwrap(), "by build: {by_build}");
        // The other name is read anew.
        assert_eq!(volume.read("/cut-again").unwrap(), b"xxx");
        assert!(volume.read("/later").unwrap() == vec![b'l'; 9 << 20]);
    }
}

#[test]
fn a_volume_does_not_go_into_itself() {
    let dir = tempfile::tempdir().unwrap();
    let [image, link, file] = ["disk.img", "link.img", "file"].map(|name| dir.path().join(name));
    let volume = Volume::create(&image, 16 << 20, &mkfs::Options::default()).unwrap();
    fs::hard_link(&image, &link).unwrap();
    fs::write(&file, "content").unwrap();
    let (source, mut skipped) = (Source::folder(dir.path()).unwrap(), Vec::new());
    import(source, &volume, "/all", &ImportOptions::new(), noting(&mut skipped, || {})).unwrap();
    assert!(skipped.iter().all(|error| matches!(error.cause(), Cause::SourceInUse)), "{skipped:?}");
    assert!(skipped.len() == 2 && is_in(&skipped[0], &image) && is_in(&skipped[1], &link), "{skipped:?}");
    let names: Vec<_> = volume.read_dir("/all").unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["file"]);
    assert_eq!(volume.read("/all/file").unwrap(), b"content");
    volume.close().unwrap();
}

/// A device that fails reads of one byte.
#[derive(Debug)]
struct BadByte {
    below: MemDevice,
    at: AtomicU64,
}

impl BlockDevice for BadByte {
    forward_to!(below: size read_only write_at flush discard);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), DeviceError> {
        let len = buf.len() as u64;
        if (offset..offset + len).contains(&self.at.load(Ordering::Relaxed)) {
            return Err(DeviceError::new(Op::Read, offset, len, std::io::Error::from_raw_os_error(5)));
        }
        self.below.read_at(buf, offset)
    }
}

/// Exports a volume of a device into a folder. Returns what is left out.
fn exported(device: &Arc<BadByte>, into: &Path) -> Vec<Error> {
    let (volume, mut skipped) = (Volume::open_device(device.clone()).unwrap(), Vec::new());
    let hear = noting(&mut skipped, || {});
    export(&volume, "/", Target::folder(into), &ExportOptions::new(), hear).unwrap();
    volume.close().unwrap();
    skipped
}

#[test]
fn a_file_that_cannot_be_read_replaces_none() {
    let device = Arc::new(BadByte { below: MemDevice::new(64 << 20), at: AtomicU64::new(u64::MAX) });
    mkfs::format(&*device, &mkfs::Options::default()).unwrap();
    let volume = Volume::open_device(device.clone()).unwrap();
    volume.remove_dir("/lost+found").unwrap();
    let large = vec![b'n'; 3 << 20];
    volume.write("/f", &large).unwrap();
    volume.hard_link("/f", "/g").unwrap();
    volume.write("/h", b"new").unwrap();
    // Two pieces of the file can be read.
    let at = (2 << 20) + 500_000;
    let bad = volume.open_file("/f").unwrap().fiemap(at..at + 1, 1).unwrap()[0].physical;
    volume.close().unwrap();

    let dir = tempfile::tempdir().unwrap();
    let [older, fresh] = ["older", "fresh"].map(|name| dir.path().join(name));
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names.join(" ")
    };
    fs::create_dir(&older).unwrap();
    for name in ["f", "g", "h"] {
        fs::write(older.join(name), "old").unwrap();
    }
    device.at.store(bad, Ordering::Relaxed);
    for (folder, left) in [(&older, "f g h"), (&fresh, "h")] {
        let skipped = exported(&device, folder);
        let [first, second] = &skipped[..] else { panic!("{skipped:?}") };
        assert_eq!(first.place(), &Place::Volume(b"/f".to_vec()), "{first}");
        assert!(matches!(second.cause(), Cause::NoFirstName), "{second}");
        assert_eq!(names(folder), left);
        assert_eq!(fs::read(folder.join("h")).unwrap(), b"new");
    }
    for name in ["f", "g"] {
        assert_eq!(fs::read(older.join(name)).unwrap(), b"old");
    }
    device.at.store(u64::MAX, Ordering::Relaxed);
    for folder in [&older, &fresh] {
        assert!(exported(&device, folder).is_empty());
        assert_eq!(names(folder), "f g h");
        assert!(fs::read(folder.join("f")).unwrap() == large && fs::read(folder.join("g")).unwrap() == large);
    }
}
