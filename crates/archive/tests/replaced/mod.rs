//! Targets in the folder of another user. That user replaces a temporary name by a link.

use super::filled;
use lanefs::Volume;
use lanefs_archive::{
    BuildOptions, Cause, Error, Event, ExportOptions, ImageOptions, ImageTarget, Source, Target, build,
    export, export_image, export_layer, host,
};
use std::fs;
use std::ops::ControlFlow::{self, Break, Continue};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder where targets go, and a file and a folder that are for their owner alone.
struct Shared {
    dir: TempDir,
    victim: Vec<u8>,
}

impl Shared {
    fn new() -> Self {
        let shared = Self { dir: tempfile::tempdir().unwrap(), victim: vec![7; 16 << 20] };
        for name in ["shared", "taken", "private"] {
            fs::create_dir(shared.at(name)).unwrap();
        }
        fs::write(shared.at("victim"), &shared.victim).unwrap();
        fs::set_permissions(shared.at("victim"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(shared.at("private"), fs::Permissions::from_mode(0o700)).unwrap();
        shared
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn target(&self, name: &str) -> PathBuf {
        self.at("shared").join(name)
    }

    /// Names in the folder of targets.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.at("shared")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Moves what has a temporary name away, and puts a link to what is private there. Returns how
    /// many.
    fn redirect(&self) -> usize {
        let is_made = |name: &String| name.starts_with(".lanefs-") && !self.target(name).is_symlink();
        let temporary: Vec<_> = self.names().into_iter().filter(is_made).collect();
        for name in &temporary {
            let path = self.target(name);
            let private = if path.is_dir() { "private" } else { "victim" };
            fs::rename(&path, self.at("taken").join(name)).unwrap();
            symlink(self.at(private), path).unwrap();
        }
        temporary.len()
    }

    /// Returns a callback that redirects once, when `is_now` says so of an event.
    fn redirecting<'a>(
        &'a self,
        count: &'a mut usize,
        is_now: impl Fn(&Event) -> bool + Send + 'a,
    ) -> impl FnMut(Event) -> ControlFlow<()> + Send + 'a {
        move |event| {
            if *count == 0 && is_now(&event) {
                *count = self.redirect();
            }
            Continue(())
        }
    }

    fn is_untouched(&self) {
        let mode = |name: &str| fs::metadata(self.at(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("victim"), mode("private")), (0o600, 0o700));
        assert!(fs::read(self.at("victim")).unwrap() == self.victim);
        assert_eq!(fs::read_dir(self.at("private")).unwrap().count(), 0);
    }
}

fn is_replaced(error: &Error) -> bool {
    matches!(error.cause(), Cause::Host(host::Error::Replaced))
}

/// An empty file that everybody may write to.
fn old(path: &Path) {
    fs::write(path, "").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
}

#[test]
fn an_archive_sets_no_mode_of_another_file() {
    let (shared, volume, mut count) = (Shared::new(), filled(), 0);
    let path = shared.target("out.tar");
    old(&path);
    let events = shared.redirecting(&mut count, |_| true);
    let error = export(&volume, "/", Target::file(&path), &ExportOptions::new(), events).unwrap_err();
    assert!(count == 1 && is_replaced(&error), "{count}: {error}");
    shared.is_untouched();
    // The older file stays, and what another user has put there.
    assert_eq!((fs::read(&path).unwrap().len(), shared.names().len()), (0, 2));
}

#[test]
fn a_layer_is_written_to_no_other_file() {
    let (shared, volume, mut count) = (Shared::new(), filled(), 0);
    let path = shared.target("layer.tar");
    old(&path);
    let options = ImageOptions::new().overwrite(true);
    let events = shared.redirecting(&mut count, |_| true);
    let error = export_layer(&volume, "/", ImageTarget::file(&path), &options, events).unwrap_err();
    assert!(count == 1 && is_replaced(&error), "{count}: {error}");
    shared.is_untouched();
    assert_eq!(fs::read(&path).unwrap().len(), 0);
}

/// The table of a disk is written last, and the tree of dm-verity before it.
#[test]
fn a_build_writes_to_no_other_file() {
    let shared = Shared::new();
    let path = shared.target("disk.raw");
    fs::create_dir(shared.at("t")).unwrap();
    fs::write(shared.at("t/f"), "content").unwrap();
    let options = BuildOptions::new().gpt(true).verity(Default::default()).overwrite(true).keep(true);
    let source = || Source::folder(shared.at("t")).unwrap();
    for is_there in [false, true] {
        if is_there {
            old(&path);
        }
        let mut count = 0;
        let events = shared.redirecting(&mut count, |event| matches!(event, Event::Entry));
        let error = build(source(), &path, &options, events).unwrap_err();
        assert!(count == 1 && is_replaced(&error), "{count}: {error}");
        shared.is_untouched();
        assert!(path.exists() == is_there && !path.is_symlink());
        fs::remove_dir_all(shared.at("taken")).unwrap();
        fs::create_dir(shared.at("taken")).unwrap();
    }
    // Nor is it kept.
    fs::remove_file(&path).unwrap();
    let cancelled = build(source(), &path, &options, |event| match event {
        Event::Data(_) => {
            assert_eq!(shared.redirect(), 1);
            Break(())
        }
        _ => Continue(()),
    });
    assert!(cancelled.unwrap_err().is_cancelled() && !path.is_symlink() && !path.exists());
    shared.is_untouched();
}

#[test]
fn a_layout_is_written_to_no_other_folder() {
    let volume = filled();
    let shared = Shared::new();
    let (path, mut count) = (shared.target("layout"), 0);
    let events = shared.redirecting(&mut count, |_| true);
    let error =
        export_image(&volume, "/", ImageTarget::folder(&path), &ImageOptions::new(), events).unwrap_err();
    assert!(count == 1 && is_replaced(&error), "{count}: {error}");
    shared.is_untouched();
    assert!(!path.exists());
    // What was made is gone, wherever it is.
    let taken = fs::read_dir(shared.at("taken")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_dir(taken).unwrap().count(), 0);

    // An archive is packed of the folder that was made.
    let shared = Shared::new();
    let (path, mut count) = (shared.target("image.tar"), 0);
    let events = shared.redirecting(&mut count, |_| true);
    export_image(&volume, "/", ImageTarget::file(&path), &ImageOptions::new(), events).unwrap();
    assert_eq!(count, 1);
    shared.is_untouched();
    let imported = Volume::in_memory(64 << 20).unwrap();
    let source = Source::open(&path).unwrap();
    lanefs_archive::import(source, &imported, "/", &Default::default(), |_| Continue(())).unwrap();
    assert_eq!(imported.read("/d0/f0").unwrap(), [0_u8; 5000]);
}
