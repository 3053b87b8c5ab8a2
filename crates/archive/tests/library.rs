//! Import and export as an image builder calls them: in memory, with callbacks, errors as types.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

#[cfg(target_os = "linux")]
mod folders;
#[cfg(target_os = "linux")]
mod replaced;

use lanefs::{NewAttr, Volume};
use lanefs_archive::{
    Action, Cause, Compression, DiffOptions, Event, ExportOptions, ImageOptions, ImageTarget, ImportOptions,
    Place, Source, Target, diff, export, export_image, import,
};
use std::io::{Cursor, Read, Write};
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const MANY: usize = 300;

fn volume() -> Volume {
    Volume::in_memory(64 << 20).unwrap()
}

/// A volume with directories, files, links and a hole.
fn filled() -> Volume {
    let volume = volume();
    volume.remove_dir("/lost+found").unwrap();
    for i in 0..MANY {
        let dir = format!("/d{}", i % 7);
        volume.create_dir_all(&dir).unwrap();
        volume.write(format!("{dir}/f{i}"), &[i as u8; 5000]).unwrap();
    }
    let root = volume.open_dir("/").unwrap();
    root.symlink("d1", "link", NewAttr { permissions: 0o777, uid: 0, gid: 0 }).unwrap();
    volume
}

fn go_on(_: Event) -> ControlFlow<()> {
    Continue(())
}

fn archive_of(volume: &Volume, compression: Compression) -> Vec<u8> {
    let mut tar = Vec::new();
    let target = Target::archive("out", &mut tar, compression);
    export(volume, "/", target, &ExportOptions::new(), go_on).unwrap();
    tar
}

fn import_all(archive: Vec<u8>) -> Volume {
    let volume = volume();
    volume.remove_dir("/lost+found").unwrap();
    let source = Source::archive("in", Cursor::new(archive)).unwrap();
    let strict = |event| if let Event::Skipped(e) = event { panic!("{e}") } else { Continue(()) };
    import(source, &volume, "/", &ImportOptions::new(), strict).unwrap();
    volume
}

/// Compresses the halves of `bytes` for themselves, one behind the other.
fn members(bytes: &[u8], compress: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let (one, other) = bytes.split_at(bytes.len() / 2);
    [compress(one), compress(other)].concat()
}

/// Large files go past the page cache; with holes, and with an end that is no whole block.
#[test]
fn large_files_arrive_whole() {
    let from = volume();
    let bytes: Vec<u8> = (0..20u32 << 20).map(|i| (i ^ i >> 11) as u8 | 1).collect();
    let sizes = [(8 << 20) - 1, 8 << 20, (9 << 20) + 123];
    for size in sizes {
        from.write(format!("/{size}"), &bytes[..size]).unwrap();
    }
    let sparse = from.create_file("/sparse").unwrap();
    for at in [1 << 20, 4 << 20, (14 << 20) - 4096] {
        sparse.write_at(&bytes[..(1 << 20) + 4096], at).unwrap();
    }
    let to = import_all(archive_of(&from, Compression::None));
    for size in sizes {
        assert!(to.read(format!("/{size}")).unwrap() == bytes[..size], "{size}");
    }
    assert!(to.read("/sparse").unwrap() == from.read("/sparse").unwrap());
    assert!(to.stats().times.write_direct.count > 0);
    to.close().unwrap();
}

#[test]
fn every_compression_is_told_by_its_content() {
    let from = filled();
    let plain = archive_of(&from, Compression::None);
    let gzip = archive_of(&from, Compression::Gzip);
    assert!(gzip.len() < plain.len() / 4);
    let xz = |bytes: &[u8]| {
        let mut to = liblzma::write::XzEncoder::new(Vec::new(), 1);
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    };
    let bzip2 = |bytes: &[u8]| {
        let mut to = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    };
    let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
    // As pzstd does: the size of each frame is in a skippable frame before it.
    let pzstd = |bytes: &[u8]| {
        let frame = zstd(bytes);
        let size = (frame.len() as u32).to_le_bytes();
        [&b"\x50\x2A\x4D\x18\x04\0\0\0"[..], &size[..], &frame[..]].concat()
    };
    let [zstd, pzstd] = [members(&plain, zstd), members(&plain, pzstd)];
    let all = [plain.clone(), gzip, zstd, pzstd, members(&plain, xz), members(&plain, bzip2)];
    for (i, archive) in all.into_iter().enumerate() {
        let again = archive_of(&import_all(archive), Compression::None);
        let differs = again.iter().zip(&plain).position(|(a, b)| a != b);
        assert_eq!((differs, again.len()), (None, plain.len()), "archive {i}");
    }
    let Err(error) = Source::archive("in", &b"\x04\x22\x4d\x18 lz4"[..]) else { panic!("no lz4 here") };
    assert!(matches!(error.cause(), Cause::Compressed("lz4")), "{error}");
    // A stream that ends early.
    let cut = xz(&plain);
    let source = Source::archive("in", Cursor::new(cut[..cut.len() / 2].to_vec())).unwrap();
    let error = import(source, &volume(), "/", &ImportOptions::new(), go_on).unwrap_err();
    assert_eq!((error.action(), error.place()), (Action::Read, &Place::Host(b"in".to_vec())), "{error}");
}

/// The checksum of a compressed archive lies behind the end that the archive itself has.
#[test]
fn a_compressed_archive_is_read_up_to_its_checksum() {
    let plain = archive_of(&filled(), Compression::None);
    let gzip = |bytes: &[u8]| {
        let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    };
    let bzip2 = |bytes: &[u8]| {
        let mut to = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    };
    let mut zstd = zstd::Encoder::new(Vec::new(), 1).unwrap();
    zstd.include_checksum(true).unwrap();
    zstd.write_all(&plain).unwrap();
    let failed = |archive: &[u8]| {
        let source = Source::archive("in", Cursor::new(archive.to_vec())).unwrap();
        import(source, &volume(), "/", &ImportOptions::new(), go_on).is_err()
    };
    for packed in [gzip(&plain), members(&plain, bzip2), zstd.finish().unwrap()] {
        assert!(!failed(&packed) && failed(&packed[..packed.len() - 1]));
    }
    let packed = members(&plain, gzip);
    let content = packed.len() / 4;
    for at in [content].into_iter().chain(packed.len() - 8..packed.len()) {
        let mut damaged = packed.clone();
        damaged[at] ^= 1;
        assert!(failed(&damaged), "byte {at} of {}", packed.len());
        assert!(at == content || failed(&packed[..at]), "{at} of {} bytes", packed.len());
    }
    // As gzip(1) has it.
    let followed = |by: &[u8]| failed(&[&packed, by].concat());
    assert!(!followed(&[0; 1]) && !followed(&[0; 5000]) && !followed(&gzip(b"")));
    assert!(followed(b"more") && followed(b"\0more") && followed(&gzip(b"")[..9]));
}

/// Bytes that come as fast as they are read, or slowly until a test has ended. `read` counts.
struct Endless {
    tar: Cursor<Vec<u8>>,
    ended: Arc<AtomicBool>,
    read: Arc<AtomicU64>,
}

impl Endless {
    fn behind(tar: Vec<u8>) -> Self {
        Self { tar: Cursor::new(tar), ended: Arc::default(), read: Arc::default() }
    }
}

impl Read for Endless {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = match self.tar.read(buf)? {
            0 if self.ended.load(Ordering::Relaxed) => 0,
            0 => {
                std::thread::sleep(Duration::from_millis(1));
                buf.fill(0);
                buf.len()
            }
            n => n,
        };
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// A program that writes to a pipe fails where it is closed behind the end of the archive.
#[test]
fn a_plain_archive_is_read_to_the_end_of_its_stream() {
    let tar = archive_of(&filled(), Compression::None);
    let len = tar.len() as u64;
    let padded = [&tar[..], &vec![0; 5 << 20][..]].concat();
    let all = padded.len() as u64;
    let stream = Endless::behind(padded);
    stream.ended.store(true, Ordering::Relaxed);
    let read = Arc::clone(&stream.read);
    let source = Source::archive("in", stream).unwrap();
    import(source, &volume(), "/", &ImportOptions::new(), go_on).unwrap();
    assert_eq!(read.load(Ordering::Relaxed), all);

    // One without an end is bounded by the greatest size, and ends with the caller.
    let stream = Endless::behind(tar.clone());
    let source = Source::archive("in", stream).unwrap();
    let options = ImportOptions::new().max_size(len + (8 << 20));
    let error = import(source, &volume(), "/", &options, go_on).unwrap_err();
    assert!(matches!(error.cause(), Cause::TooLarge(_)), "{error}");
    let (stream, volume) = (Endless::behind(tar), volume());
    let ended = Arc::clone(&stream.ended);
    let source = Source::archive("in", stream).unwrap();
    let (all, mut entries, mut waits) = (1 + 7 + MANY + 1, 0, 0);
    let hear = |event| {
        entries += usize::from(matches!(event, Event::Entry));
        waits += usize::from(matches!(event, Event::Waiting));
        // The last ones do not wait for the end of the stream.
        if waits == 50 || waits > 0 && entries == all { Break(()) } else { Continue(()) }
    };
    let error = import(source, &volume, "/", &ImportOptions::new(), hear).unwrap_err();
    ended.store(true, Ordering::Relaxed);
    assert!(error.is_cancelled() && entries == all, "{entries}: {error}");
}

#[test]
fn steps_are_counted() {
    let from = filled();
    let count = |entries: &mut u64, bytes: &mut u64, event| {
        match event {
            Event::Entry => *entries += 1,
            Event::Data(more) => *bytes += more,
            event => panic!("{event:?}"),
        }
        Continue(())
    };
    let want = (1 + 7 + MANY as u64 + 1, 5000 * MANY as u64);
    let mut tar = Vec::new();
    let target = Target::archive("out", &mut tar, Compression::None);
    let (mut entries, mut bytes) = (0, 0);
    export(&from, "/", target, &ExportOptions::new(), |e| count(&mut entries, &mut bytes, e)).unwrap();
    assert_eq!((entries, bytes), want);
    let source = Source::archive("in", Cursor::new(tar)).unwrap();
    let (mut entries, mut bytes) = (0, 0);
    import(source, &volume(), "/", &ImportOptions::new(), |e| count(&mut entries, &mut bytes, e)).unwrap();
    assert_eq!((entries, bytes), want);
}

/// Cancels at the `n`th step, and counts the steps that come after it.
fn cancel_at(n: usize, seen: &mut usize) -> impl FnMut(Event) -> ControlFlow<()> + Send + '_ {
    move |_| {
        *seen += 1;
        if *seen >= n { Break(()) } else { Continue(()) }
    }
}

#[test]
fn a_cancelled_import_ends_at_once_and_leaves_a_volume() {
    let tar = archive_of(&filled(), Compression::None);
    for n in [1, 2, 50, 500] {
        let (volume, mut seen) = (volume(), 0);
        let source = Source::archive("in", Cursor::new(tar.clone())).unwrap();
        let error =
            import(source, &volume, "/to", &ImportOptions::new(), cancel_at(n, &mut seen)).unwrap_err();
        assert!(error.is_cancelled() && error.place() == &Place::Volume(b"/to".to_vec()), "{error}");
        assert_eq!(seen, n);
        for entry in volume.read_dir("/to").unwrap_or_default() {
            let dir = format!("/to/{}", entry.name.display());
            for entry in volume.read_dir(&dir).unwrap_or_default() {
                let path = format!("{dir}/{}", entry.name.display());
                assert_eq!(volume.metadata(&path).unwrap().len(), 5000, "{path} of {n}");
            }
        }
        volume.write("/after", b"x").unwrap();
        volume.close().unwrap();
    }
}

/// Whatever ends an import: a file that has its name has its data.
#[test]
fn a_file_whose_data_does_not_arrive_loses_its_name() {
    let from = volume();
    for (name, size) in [("a", 5000), ("b", 300_000), ("c", 10 << 20)] {
        from.write(name, &vec![b'x'; size]).unwrap();
    }
    let tar = archive_of(&from, Compression::None);
    let end = |part: &[u8]| part.iter().rposition(|byte| *byte == b'x').unwrap();
    let whole = end(&tar);
    for missing in [1, 1000, 5 << 20, (10 << 20) - 1] {
        let volume = volume();
        let source = Source::archive("in", Cursor::new(tar[..=whole - missing].to_vec())).unwrap();
        import(source, &volume, "/", &ImportOptions::new(), go_on).unwrap_err();
        let mut names: Vec<_> = volume.read_dir("/").unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        assert_eq!(names, ["a", "b", "lost+found"], "{missing}");
        assert_eq!(volume.read("/b").unwrap(), vec![b'x'; 300_000]);
        volume.close().unwrap();
    }
}

#[test]
fn a_cancelled_export_ends_at_once() {
    let from = filled();
    for n in [1, 2, 50, 300] {
        let mut seen = 0;
        let target = Target::archive("out", std::io::sink(), Compression::None);
        let error = export(&from, "/", target, &ExportOptions::new(), cancel_at(n, &mut seen)).unwrap_err();
        assert!(error.is_cancelled() && seen == n, "{error}");
        let (dir, mut seen) = (tempfile::tempdir().unwrap(), 0);
        let target = Target::folder(dir.path());
        let error = export(&from, "/", target, &ExportOptions::new(), cancel_at(n, &mut seen)).unwrap_err();
        assert!(error.is_cancelled() && seen == n, "{error}");
    }
}

#[test]
fn an_error_has_its_parts() {
    let from = volume();
    let root = from.open_dir("/").unwrap();
    let attr = NewAttr { permissions: 0o644, uid: 0, gid: 0 };
    root.mknod("socket", lanefs::FileType::Socket, lanefs::DeviceNumber { major: 0, minor: 0 }, attr)
        .unwrap();
    let mut skipped = Vec::new();
    let target = Target::archive("out", std::io::sink(), Compression::None);
    let keep = |event| {
        if let Event::Skipped(error) = event {
            skipped.push(error);
        }
        Continue(())
    };
    export(&from, "/", target, &ExportOptions::new(), keep).unwrap();
    let [error] = &skipped[..] else { panic!("{skipped:?}") };
    assert!(matches!(error.cause(), Cause::Socket));
    assert_eq!(error.place(), &Place::Volume(b"/socket".to_vec()));
    assert_eq!(error.to_string(), "cannot export '/socket': tar has no sockets");

    let error =
        import(Source::archive("junk", &b"junk"[..]).unwrap(), &from, "/", &ImportOptions::new(), go_on)
            .unwrap_err();
    assert!(matches!(error.cause(), Cause::Archive { .. }), "{error}");
    assert!(error.to_string().starts_with("cannot read 'junk': byte "), "{error}");
    let error = Source::open("/none/at/all").unwrap_err();
    assert!(matches!((error.action(), error.cause()), (Action::Open, Cause::Io(_))), "{error}");
}

/// What is being made beside a target is for its owner's eyes.
#[test]
fn half_an_image_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (from, mut seen) = (filled(), 0);
    let mut look = |_| {
        for entry in std::fs::read_dir(dir.path()).unwrap().flatten().filter(|e| e.path().is_dir()) {
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
            seen += 1;
        }
        Continue(())
    };
    let (folder, file) = (dir.path().join("layout"), dir.path().join("image.tar"));
    export_image(&from, "/", ImageTarget::file(&file), &ImageOptions::new(), &mut look).unwrap();
    export_image(&from, "/", ImageTarget::folder(&folder), &ImageOptions::new(), &mut look).unwrap();
    assert!(seen > 2 * MANY, "{seen}");
}

#[test]
fn a_file_of_many_names_is_compared_once() {
    let [old, new] = [(); 2].map(|()| {
        let volume = volume();
        volume.write("/0", &[7; 1 << 20]).unwrap();
        (1..9).for_each(|name| volume.hard_link("/0", format!("/{name}")).unwrap());
        volume
    });
    let mut read = 0;
    let hear = |event| {
        if let Event::Data(bytes) = event {
            read += bytes;
        }
        Continue(())
    };
    assert!(diff(&old, "/", &new, "/", &DiffOptions::new().times(false), hear).unwrap());
    assert_eq!(read, 1 << 20);
}
