//! Exercises an untrusted volume: walks it, writes to it and closes it. Each call must succeed
//! correctly or fail with an error that names the defect.

use crate::VirtualClock;
use lanefs::{Error, FileType, NewAttr, OpenOptions, RenameFlags, SetXattr, Volume};
use lanefs_device::BlockDevice;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bounds of a walk, and what it has met.
#[derive(Debug, Clone)]
pub struct Walk {
    /// Entries to visit at most: directories of a damaged volume may hold each other.
    pub entries: usize,
    /// Bytes to read at most, in all.
    pub bytes: u64,
    /// Errors met, as they were told.
    pub errors: Vec<String>,
}

impl Default for Walk {
    fn default() -> Self {
        Self { entries: 5000, bytes: 16 << 20, errors: Vec::new() }
    }
}

/// The verdict on a volume.
#[derive(Debug)]
pub enum Verdict {
    /// It was not opened.
    Refused(String),
    /// It was opened.
    Opened(Walk),
}

impl Walk {
    fn note<T>(&mut self, result: lanefs::Result<T>) -> Option<T> {
        result.map_err(|e| self.errors.push(explained(&e))).ok()
    }
}

/// The words of an error.
///
/// # Panics
/// If they do not tell which rule was broken, and where.
pub fn explained(e: &Error) -> String {
    let said = e.to_string();
    assert!(said.len() >= 8 && e.errno() > 0, "an error that says nothing: {e:?}");
    if e.errno() == libc::EUCLEAN {
        let numbers = said.contains(|c: char| c.is_ascii_digit());
        assert!(numbers && said.contains(' '), "damage without a number: {said:?}");
    }
    said
}

/// Opens for reading and walks.
pub fn read_all(device: Arc<dyn BlockDevice>) -> Verdict {
    match options().open_device(device) {
        Err(e) => Verdict::Refused(explained(&e)),
        Ok(volume) => Verdict::Opened(walk(&volume)),
    }
}

/// Opens for writing, walks, changes and closes.
pub fn change_all(device: Arc<dyn BlockDevice>) -> Verdict {
    match options().write(true).open_device(device) {
        Err(e) => Verdict::Refused(explained(&e)),
        Ok(volume) => {
            let mut met = walk(&volume);
            change(&volume, &mut met);
            let closed = volume.close();
            met.note(closed);
            Verdict::Opened(met)
        }
    }
}

/// Returns options to open an untrusted volume for reading.
pub(crate) fn options() -> OpenOptions {
    // Without a commit timer: everything happens in the order of the calls.
    let options = OpenOptions::new().metadata_cache_bytes(4 << 20).commit_interval(Duration::ZERO);
    // A block of multiple mount protection may say that another host has the volume.
    options.mmp_clock(Arc::new(VirtualClock::default()))
}

/// Visits everything that can be reached from the root, by breadth.
pub fn walk(volume: &Volume) -> Walk {
    let mut met = Walk::default();
    let mut dirs = VecDeque::from([PathBuf::from("/")]);
    let mut entries = met.entries;
    let mut bytes = met.bytes;
    let _ = (volume.statfs(), volume.info());
    while let Some(path) = dirs.pop_front() {
        let Some(dir) = met.note(volume.open_dir(&path)) else { continue };
        met.note(dir.node().xattrs());
        let Some(names) = met.note(dir.read_dir()) else { continue };
        for entry in names {
            if entries == 0 {
                return met;
            }
            entries -= 1;
            let name: &OsStr = &entry.name;
            let Some(meta) = met.note(dir.symlink_metadata(name)) else { continue };
            met.note(dir.lookup(name).and_then(|node| node.xattrs()));
            match meta.file_type() {
                // A path that gets too long is a circle.
                FileType::Directory if path.as_os_str().len() < 1000 => dirs.push_back(path.join(name)),
                FileType::Symlink => drop(met.note(dir.read_link(name))),
                FileType::Regular => {
                    if let Some(file) = met.note(dir.open_file(name)) {
                        read(&file, meta.len(), &mut bytes, &mut met);
                    }
                }
                _ => {}
            }
        }
    }
    met
}

fn read(file: &lanefs::File, size: u64, left: &mut u64, met: &mut Walk) {
    let mut buf = vec![0; 1 << 16];
    let mut at = 0;
    // From the start, then the end, which may be far away.
    for start in [0, size.saturating_sub(buf.len() as u64)] {
        at = at.max(start);
        while *left > 0 {
            match met.note(file.read_at(&mut buf, at)) {
                None | Some(0) => break,
                Some(n) => {
                    at += n as u64;
                    *left = left.saturating_sub(n as u64);
                }
            }
            if start == 0 && at >= 1 << 20 {
                break;
            }
        }
    }
}

/// Changes of every kind, at the root and at the first files and directories found there.
fn change(volume: &Volume, met: &mut Walk) {
    let found: Vec<OsString> = volume
        .read_dir("/")
        .map(|all| all.into_iter().take(40).map(|e| e.name).collect())
        .unwrap_or_default();
    let attr = NewAttr { permissions: 0o755, uid: 1, gid: 2 };
    met.note(volume.create_dir("/made by a test"));
    met.note(volume.write("/made by a test/file", &[7; 10_000]));
    met.note(volume.write("/file of a test", &[8; 3000]));
    met.note(volume.symlink("x".repeat(100), "/made by a test/link"));
    met.note(volume.mknod(
        "/made by a test/fifo",
        FileType::Fifo,
        lanefs::DeviceNumber { major: 0, minor: 0 },
        attr,
    ));
    met.note(volume.set_xattr("/file of a test", "user.large", &[9; 700], SetXattr::Any));
    met.note(volume.hard_link("/file of a test", "/made by a test/hard"));
    for name in &found {
        let path = Path::new("/").join(name);
        let Some(meta) = met.note(volume.symlink_metadata(&path)) else { continue };
        met.note(volume.set_xattr(&path, "user.test", b"touched", SetXattr::Any));
        if meta.is_dir() {
            for i in 0..3 {
                met.note(volume.write(path.join(format!("new in here {i}")), b"content"));
            }
            met.note(volume.create_dir(path.join("new directory")));
            let first = volume.read_dir(&path).ok().and_then(|all| all.into_iter().next());
            if let Some(first) = first {
                met.note(volume.rename(path.join(first.name), "/taken out"));
                met.note(volume.remove_dir_all("/taken out"));
            }
        } else if meta.is_file() {
            if let Some(file) = met.note(volume.open_options().append(true).open(&path)) {
                met.note(file.write_at(&[1; 5000], 0));
            }
            if let Some(file) = met.note(volume.open_options().write(true).open(&path)) {
                met.note(file.write_at(&[2; 2000], 30_000));
                met.note(file.set_len(meta.len() / 2));
                met.note(file.set_len(meta.len().saturating_add(100_000)));
            }
            met.note(volume.rename_with(&path, "/file of a test", RenameFlags::Exchange));
        }
    }
    met.note(volume.sync());
    for name in found.iter().take(20) {
        met.note(volume.remove_dir_all(Path::new("/").join(name)));
    }
    met.note(volume.remove_dir_all("/made by a test"));
    met.note(volume.sync());
}
