//! The processes that keep a mount in use.

use crate::table::{self, MountDevice};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

/// A process that keeps a mount in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The process.
    pub pid: u32,
    /// The name of its program, as far as the kernel keeps it.
    pub name: String,
    /// How it uses the mount.
    pub by: UsedBy,
}

/// The way in which a process keeps a mount in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsedBy {
    /// The mount is in the mount namespace of this process, which is not that of the caller.
    Namespace,
    /// An open file, or a working directory.
    File,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.by {
            UsedBy::Namespace => "has it in another mount namespace",
            UsedBy::File => "has files of it open",
        };
        write!(f, "process {} ({}) {how}", self.pid, self.name)
    }
}

/// Returns the processes that keep the file system `device` in use, as far as the caller may know:
/// one of each mount namespace that has it mounted, besides the caller's, and all that have files
/// of it open.
///
/// It asks the file system nothing, and so does not wait for a server that hangs.
pub fn users(device: MountDevice) -> Vec<User> {
    let mut namespaces: BTreeSet<PathBuf> = namespace("thread-self").into_iter().collect();
    let mut found = Vec::new();
    for pid in processes() {
        let process = pid.to_string();
        let is_new = namespace(&process).is_some_and(|namespace| namespaces.insert(namespace));
        let by = if is_new && table::of(&process).iter().any(|entry| entry.device == device) {
            UsedBy::Namespace
        } else if uses_files(&process, device) {
            UsedBy::File
        } else {
            continue;
        };
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        found.push(User { pid, name: name.trim_end().into(), by });
    }
    found
}

fn processes() -> BTreeSet<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn namespace(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok()
}

fn uses_files(process: &str, device: MountDevice) -> bool {
    let dir = Path::new("/proc").join(process);
    let open = std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten().map(|fd| fd.path());
    open.chain([dir.join("cwd"), dir.join("root")]).any(|link| {
        // With no field asked for, and from the cache: the answer is the device number only.
        let known = statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::empty());
        known.is_ok_and(|known| (known.stx_dev_major, known.stx_dev_minor) == (device.major, device.minor))
    })
}
