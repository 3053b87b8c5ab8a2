//! What the kernel keeps in its cache of a mount: the files of `/sys/class/bdi/MAJOR:MINOR`.
//!
//! They are opened when the mount is made, because a confined server opens nothing later. Only root
//! may write to them; the mount of another user keeps the kernel's own values.

use crate::table::MountDevice;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// A value that the kernel has for a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// KiB that it reads ahead of a program that reads from front to back.
    ReadAheadKb,
    /// Percent of all dirty pages that it may have in any case.
    MinRatio,
    /// Percent of all dirty pages that it may have at most.
    MaxRatio,
    /// Bytes that may be dirty.
    MaxBytes,
}

/// Each value and the file that sets it.
const FILES: [(Limit, &str); 4] = [
    (Limit::ReadAheadKb, "read_ahead_kb"),
    (Limit::MinRatio, "min_ratio"),
    (Limit::MaxRatio, "max_ratio"),
    (Limit::MaxBytes, "max_bytes"),
];

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Bdi {
    files: [Option<File>; FILES.len()],
}

impl Bdi {
    /// Opens the files of a mount, as far as the caller may.
    pub(crate) fn open(device: MountDevice) -> Self {
        let MountDevice { major, minor } = device;
        let open =
            |name| File::options().write(true).open(format!("/sys/class/bdi/{major}:{minor}/{name}")).ok();
        Self { files: FILES.map(|(_, name)| open(name)) }
    }

    /// Returns the open files, and a bit for each of the possible ones that is among them.
    pub(crate) fn files(&self) -> (u8, Vec<BorrowedFd<'_>>) {
        let bits = (0..).zip(&self.files).map(|(bit, file)| u8::from(file.is_some()) << bit).sum();
        (bits, self.files.iter().flatten().map(AsFd::as_fd).collect())
    }

    /// Puts together what [`files`](Self::files) has taken apart.
    pub(crate) fn from_files(bits: u8, files: impl IntoIterator<Item = OwnedFd>) -> Self {
        let mut files = files.into_iter();
        let mut bit = 0..FILES.len();
        let mut next = || bit.next().filter(|bit| bits >> bit & 1 != 0).and_then(|_| files.next());
        Self { files: [(); FILES.len()].map(|()| next().map(File::from)) }
    }

    /// Sets a value, if the caller may.
    pub(crate) fn set(&self, limit: Limit, value: u64) {
        let files = FILES.iter().zip(&self.files).filter(|((of, _), _)| *of == limit);
        for file in files.filter_map(|(_, file)| file.as_ref()) {
            let _ = file.write_all_at(value.to_string().as_bytes(), 0);
        }
    }

    /// Has the kernel read as many bytes ahead, in place of its own 128 KiB, and keep as many
    /// percent of all dirty pages, in place of one at most.
    pub(crate) fn tune(&self, read_ahead: usize, dirty_percent: u32) {
        self.set(Limit::ReadAheadKb, (read_ahead >> 10) as u64);
        // The least must not be above the most meanwhile.
        self.set(Limit::MaxRatio, dirty_percent.into());
        self.set(Limit::MinRatio, dirty_percent.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_apart_and_put_together() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let made = |name: &str| Some(File::create(path(name)).unwrap());
        let bdi = Bdi { files: [made("read_ahead_kb"), None, made("max_ratio"), None] };
        let (bits, files) = bdi.files();
        let files: Vec<OwnedFd> = files.iter().map(|file| file.try_clone_to_owned().unwrap()).collect();
        assert_eq!((bits, files.len()), (0b0101, 2));
        let again = Bdi::from_files(bits, files);
        again.tune(2 << 20, 3);
        again.set(Limit::MaxBytes, 7);
        assert_eq!(std::fs::read(path("read_ahead_kb")).unwrap(), b"2048");
        assert_eq!(std::fs::read(path("max_ratio")).unwrap(), b"3");
    }
}
