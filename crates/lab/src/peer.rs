//! The programs that lanefs is compared with, and whether this machine can run them.

use crate::store::{missing_tools, run_tool};
use std::path::Path;

/// A program that lanefs is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// The kernel's ext4 on a loop device.
    KernelExt4,
    /// The kernel's XFS on a loop device.
    KernelXfs,
    /// The backing file itself, past the page cache.
    Raw,
}

impl Peer {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::KernelExt4, Self::KernelXfs, Self::Raw];

    /// Returns the name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::KernelExt4 => "kernel-ext4",
            Self::KernelXfs => "kernel-xfs",
            Self::Raw => "raw",
        }
    }

    /// Returns why this machine cannot run the peer, if so.
    pub(crate) fn missing(self) -> Option<String> {
        let (kind, tools): (_, &[&str]) = match self {
            Self::Raw => return None,
            Self::KernelExt4 => ("ext4", &["mke2fs", "losetup", "mount"]),
            Self::KernelXfs => ("xfs", &["mkfs.xfs", "losetup", "mount"]),
        };
        if !rustix::process::geteuid().is_root() {
            return Some("only root may mount".to_owned());
        }
        if let [first, ..] = missing_tools(tools)[..] {
            return Some(format!("there is no {first}"));
        }
        if !Path::new("/dev/loop-control").exists() {
            return Some("there are no loop devices".to_owned());
        }
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        // As a module it may yet be loaded; then `mount` says if it cannot.
        let module = || run_tool("modprobe", &["-n", kind]).is_ok();
        let there = known.split_whitespace().any(|word| word == kind) || module();
        (!there).then(|| format!("this kernel has no {kind}"))
    }
}
