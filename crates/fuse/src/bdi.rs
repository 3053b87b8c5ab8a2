//! Limits of the kernel's cache of a mount: the files of `/sys/class/bdi/MAJOR:MINOR`.
//!
//! They are opened when the mount is made, before any program can reach it. Only root may write to
//! them; the mount of another user keeps the kernel's own values. A confined server does not have
//! them: its broker does, and knows the two rules of [`CacheRule`] only.

use crate::broker::Broker;
use crate::request::MAX_CONTENT;
use crate::table::MountDevice;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes that the kernel reads ahead, in place of its own 128 KiB: two requests.
const READ_AHEAD: usize = 2 * MAX_CONTENT;
/// Percent of the dirty pages of the system that a mount may have. With less than one, which is the
/// kernel's word for FUSE, a program that writes waits most of the time; if it were much more, what
/// is written out by and by would only be written in the end.
pub(crate) const DIRTY_PERCENT: u32 = 2;
/// Bytes that the kernel may have dirty while the volume is nearly full. Writers of several
/// processors may go somewhat above it.
const DIRTY_WHEN_TIGHT: u64 = 32 << 20;

/// The bound of the kernel's cache of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheRule {
    /// As long as there is room on the volume.
    Roomy,
    /// While the volume is nearly full.
    Tight,
}

/// The backing device info of a mount in sysfs.
#[derive(Debug)]
pub(crate) enum Bdi {
    /// The files, as far as they could be opened.
    Open(Files),
    /// The broker has them.
    OfBroker(Arc<Broker>),
}

/// The files that are written to.
#[derive(Debug, Default)]
pub(crate) struct Files {
    read_ahead_kb: Option<File>,
    min_ratio: Option<File>,
    max_ratio: Option<File>,
    max_bytes: Option<File>,
}

impl Bdi {
    /// Opens the files of a mount, as far as the caller may.
    pub(crate) fn open(device: MountDevice) -> Self {
        let MountDevice { major, minor } = device;
        Self::Open(Files::open(&format!("/sys/class/bdi/{major}:{minor}")))
    }

    /// Sets the values of a rule, if the caller may.
    pub(crate) fn set(&self, rule: CacheRule) {
        match self {
            Self::Open(files) => files.set(rule),
            Self::OfBroker(broker) => broker.set_cache(rule as u32),
        }
    }
}

impl Files {
    fn open(folder: &str) -> Self {
        let open = |name| File::options().write(true).open(format!("{folder}/{name}")).ok();
        Self {
            read_ahead_kb: open("read_ahead_kb"),
            min_ratio: open("min_ratio"),
            max_ratio: open("max_ratio"),
            max_bytes: open("max_bytes"),
        }
    }

    fn set(&self, rule: CacheRule) {
        let write = |file: &Option<File>, value: u64| {
            if let Some(file) = file {
                let _ = file.write_all_at(value.to_string().as_bytes(), 0);
            }
        };
        // The least must not be above the most meanwhile.
        match rule {
            CacheRule::Roomy => {
                write(&self.read_ahead_kb, (READ_AHEAD >> 10) as u64);
                write(&self.max_ratio, DIRTY_PERCENT.into());
                write(&self.min_ratio, DIRTY_PERCENT.into());
            }
            CacheRule::Tight => {
                write(&self.min_ratio, 0);
                write(&self.max_bytes, DIRTY_WHEN_TIGHT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_rule_sets_what_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["read_ahead_kb", "min_ratio", "max_bytes"] {
            fs::write(path(name), "").unwrap();
        }
        let bdi = Bdi::Open(Files::open(dir.path().to_str().unwrap()));
        bdi.set(CacheRule::Roomy);
        assert_eq!(fs::read(path("read_ahead_kb")).unwrap(), b"2048");
        assert_eq!(
            (fs::read(path("min_ratio")).unwrap(), fs::read(path("max_bytes")).unwrap()),
            (b"2".into(), b"".into())
        );
        bdi.set(CacheRule::Tight);
        assert_eq!(fs::read(path("min_ratio")).unwrap(), b"0");
        assert_eq!(fs::read(path("max_bytes")).unwrap(), b"33554432");
        assert!(!path("max_ratio").exists());
    }
}
