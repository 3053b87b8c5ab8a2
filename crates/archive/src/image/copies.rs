//! What layers unpack to, kept by the first pass of a build for the second.
//!
//! A copy lies in a file without a name, in the folder of the volume that is built. A layer that is
//! not compressed needs none. Where the copies become too many files or bytes, or would take the
//! space that the volume needs, a layer has none, and the second pass unpacks it again.

use super::blob::{Blob, Expected, Layer};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of all copies together.
const MOST: u64 = 4 << 30;
/// Copies, each of which is an open file. Docker makes no image of more layers.
const MOST_FILES: usize = 128;
/// Bytes of a copy after which the space of the disk is looked at again.
const LOOK: u64 = 1 << 20;

/// The copies of a build.
#[derive(Debug)]
pub(crate) struct Copies {
    folder: PathBuf,
    /// Bytes of all copies, those that are being made too.
    taken: AtomicU64,
    /// Copies that were begun and not given up.
    files: AtomicUsize,
    /// By the number of the layer.
    made: Mutex<HashMap<usize, Blob>>,
}

impl Copies {
    /// Returns none yet; they will be made beside `target`.
    pub(crate) fn beside(target: &Path) -> Self {
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        Self { folder, taken: AtomicU64::new(0), files: AtomicUsize::new(0), made: Mutex::default() }
    }

    /// Begins the copy of a layer.
    pub(crate) fn begin(&self, layer: usize) -> LayerCopy<'_> {
        let more = |files| (files < MOST_FILES).then_some(files + 1);
        let may = self.files.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        let file = may.then(|| tempfile::tempfile_in(&self.folder).ok()).flatten();
        if may && file.is_none() {
            self.files.fetch_sub(1, Ordering::Relaxed);
        }
        LayerCopy { copies: self, layer, file, len: 0 }
    }

    /// Returns whether the disk has `bytes` more beside the copies.
    #[cfg(target_os = "linux")]
    pub(crate) fn leave_room_for(&self, bytes: u64) -> bool {
        rustix::fs::statvfs(&self.folder)
            .is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) >= bytes)
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn leave_room_for(&self, _bytes: u64) -> bool {
        true
    }

    /// Returns the same layers, each read from its copy if it has one.
    pub(crate) fn instead_of(&self, layers: &[Layer]) -> Vec<Layer> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let from = |(at, layer): (usize, &Layer)| Layer {
            name: layer.name.clone(),
            blob: made.get(&at).unwrap_or(&layer.blob).clone(),
            expected: Expected::default(),
        };
        layers.iter().enumerate().map(from).collect()
    }
}

/// The copy of a layer, in the making.
#[derive(Debug)]
pub(crate) struct LayerCopy<'a> {
    copies: &'a Copies,
    layer: usize,
    /// `None` once it cannot be had.
    file: Option<File>,
    len: u64,
}

impl LayerCopy<'_> {
    /// Adds the next bytes, if the copy can be had.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let Some(file) = &mut self.file else { return };
        let more = bytes.len() as u64;
        let taken = self.copies.taken.fetch_add(more, Ordering::Relaxed) + more;
        let looks = self.len / LOOK != (self.len + more) / LOOK || self.len == 0;
        self.len += more;
        if taken > MOST || looks && !has_room(file, taken) || file.write_all(bytes).is_err() {
            self.give_up();
        }
    }

    /// Ends the copy: it has all bytes.
    pub(crate) fn finish(mut self) {
        let Some(file) = self.file.take() else { return };
        let mut made = self.copies.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.insert(self.layer, Blob::Unpacked(Arc::new(file), self.len));
    }

    fn give_up(&mut self) {
        if self.file.take().is_some() {
            self.copies.taken.fetch_sub(self.len, Ordering::Relaxed);
            self.copies.files.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for LayerCopy<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Returns whether the disk has, beside copies of `taken` bytes, twice as much left: the volume
/// takes these bytes too, and its own structures.
#[cfg(target_os = "linux")]
fn has_room(file: &File, taken: u64) -> bool {
    rustix::fs::fstatvfs(file).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) / 2 >= taken)
}

#[cfg(not(target_os = "linux"))]
fn has_room(_file: &File, _taken: u64) -> bool {
    true
}
