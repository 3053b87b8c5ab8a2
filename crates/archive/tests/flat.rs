//! Archives that are not compressed: a build reads their headers, and their data goes from their
//! file into the volume.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

mod support;

use lanefs::Volume;
use lanefs_archive::{BuildOptions, Cause, Error, Event, ImportOptions, Source, VolumeSize, build};
use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::ops::ControlFlow::{Break, Continue};
use std::path::{Path, PathBuf};
use support::{Tar, listing, skipped, volume};
use tempfile::TempDir;

/// Files whose lengths lie around those of blocks, and of what is read at once.
fn tar() -> Tar {
    let lengths = [0, 1, 511, 512, 4095, 4096, 4097, 262_144, 262_145, (4 << 20) - 1, 9 << 20];
    let content = |len: usize| (0..len).map(|n| char::from(b'a' + (n % 23) as u8)).collect::<String>();
    let tar = Tar::new().dir("d").empty("d/empty").symlink("s", "f1").file("a", "a").link("l", "a");
    lengths.iter().fold(tar, |tar, len| tar.file(&format!("f{len}"), &content(*len)))
}

fn written(tar: Tar) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flat.tar");
    fs::write(&path, tar.end()).unwrap();
    (dir, path)
}

fn open(path: &Path, as_layers: bool) -> Source {
    if as_layers { Source::layers([path]) } else { Source::open(path) }.unwrap()
}

/// Builds, and has `change` change the archive between the passes.
fn built(
    path: &Path,
    as_layers: bool,
    options: &BuildOptions,
    mut change: impl FnMut(&Path) + Send,
) -> Result<PathBuf, Error> {
    let image = path.with_file_name("v.img");
    build(open(path, as_layers), &image, options, |event| {
        if matches!(event, Event::Sized(_)) {
            change(path);
        }
        Continue(())
    })?;
    Ok(image)
}

#[test]
fn a_build_has_what_an_import_has() {
    let (_dir, path) = written(tar());
    for as_layers in [false, true] {
        let imported = volume();
        assert!(skipped(open(&path, as_layers), &imported, &ImportOptions::new()).unwrap().is_empty());
        for size in [VolumeSize::Fit, VolumeSize::Bytes(64 << 20)] {
            let image = built(&path, as_layers, &BuildOptions::new().size(size).overwrite(true), |_| {});
            let image = image.unwrap();
            assert!(listing(&Volume::open_read_only(&image).unwrap()) == listing(&imported));
            let checked = std::process::Command::new("e2fsck").arg("-fn").arg(image).output().unwrap();
            assert!(checked.status.success(), "{checked:?}");
        }
    }
}

/// The first pass needs no room for data, however much there is: of this archive, a hole.
#[test]
fn a_tree_may_be_larger_than_the_usual_scratch_volume() {
    let size: u64 = (1 << 40) + (64 << 30);
    let (_dir, path) = written(Tar::new().member(b'0', "f", "", b"", &[("size", &size.to_string())]));
    let archive = OpenOptions::new().write(true).open(&path).unwrap();
    archive.set_len(archive.metadata().unwrap().len() + size).unwrap();
    let (mut found, mut sized) = (0, 0);
    let cancelled = build(open(&path, false), path.with_file_name("v.img"), &BuildOptions::new(), |event| {
        found += usize::from(matches!(event, Event::Found));
        let Event::Sized(bytes) = event else { return Continue(()) };
        sized = bytes;
        Break(())
    });
    let error = cancelled.unwrap_err();
    assert!(error.is_cancelled() && sized > size, "{sized}: {error}");
    assert_eq!(found, 1, "the name is found by two surveys, and told once");
}

/// Whatever happens to the archive between the passes: no volume is made of other bytes.
#[test]
fn an_archive_that_changes_is_refused() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 4] = [
        ("cut", |path| OpenOptions::new().write(true).open(path).unwrap().set_len(10_000_000).unwrap()),
        ("longer", |path| OpenOptions::new().append(true).open(path).unwrap().write_all(&[0]).unwrap()),
        ("overwritten", |path| {
            let mut file = OpenOptions::new().write(true).open(path).unwrap();
            file.seek(SeekFrom::Start(9_000_000)).unwrap();
            file.write_all(b"other bytes").unwrap();
        }),
        ("replaced", |path| {
            let (other, modified) = (path.with_file_name("other"), path.metadata().unwrap().modified());
            fs::write(&other, tar().end()).unwrap();
            let file = fs::File::options().append(true).open(&other).unwrap();
            file.set_modified(modified.unwrap()).unwrap();
            fs::rename(other, path).unwrap();
        }),
    ];
    for as_layers in [false, true] {
        for (what, change) in changes {
            for size in [VolumeSize::Fit, VolumeSize::Bytes(64 << 20)] {
                let (dir, path) = written(tar());
                let error = built(&path, as_layers, &BuildOptions::new().size(size), change).unwrap_err();
                assert!(matches!(error.cause(), Cause::Changed), "{what}: {error}");
                assert!(error.to_string().contains("flat.tar"), "{what}: {error}");
                assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{what}");
            }
        }
    }
}

/// The data that is passed over counts too.
#[test]
fn the_greatest_size_is_of_all_bytes() {
    let (_dir, path) = written(tar());
    let len = path.metadata().unwrap().len();
    for as_layers in [false, true] {
        let most = |bytes| BuildOptions::new().import(ImportOptions::new().max_size(bytes)).overwrite(true);
        let error = built(&path, as_layers, &most(len - 2048), |_| {}).unwrap_err();
        assert!(matches!(error.cause(), Cause::TooLarge(max) if *max == len - 2048), "{error}");
        built(&path, as_layers, &most(len), |_| {}).unwrap();
    }
}

/// An archive that ends in the data of a member is no whole one, wherever it ends.
#[test]
fn an_archive_that_ends_early_is_refused() {
    let (_dir, path) = written(Tar::new().file("a", "a").file("f", &"f".repeat(5000)));
    let whole = fs::read(&path).unwrap();
    for len in [1025, 1536, 1537, 4096, 1536 + 4999, 1536 + 5000] {
        fs::write(&path, &whole[..len]).unwrap();
        for as_layers in [false, true] {
            let image = path.with_file_name("v.img");
            let source = if as_layers { Source::layers([&path]) } else { Source::open(&path) };
            let error = source
                .and_then(|source| build(source, &image, &BuildOptions::new(), |_| Continue(())).map(drop));
            assert!(matches!(error.unwrap_err().cause(), Cause::Archive { .. }), "{len}");
        }
    }
}
