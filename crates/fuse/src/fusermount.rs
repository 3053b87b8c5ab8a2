//! fusermount3, which mounts and unmounts for users that are not root.

use crate::error::MountError;
use crate::options::MountOptions;
use crate::pass;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// Mounts, and returns the connection, which fusermount3 passes over a socket.
pub(crate) fn mount(source: &OsStr, dir: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    if let Some(word) = options.only_for_root() {
        return Err(MountError::OnlyForRoot(word));
    }
    let failed = |e: &dyn std::fmt::Display| MountError::Helper(e.to_string());
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|e| failed(&e))?;
    fcntl_setfd(&theirs, FdFlags::empty()).map_err(|e| failed(&e))?;
    let child = Command::new("fusermount3")
        .arg("-o")
        .arg(words(source, options))
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| MountError::Helper(format!("{e}; install fuse3, or mount as root")))?;
    drop(theirs);
    let device = pass::receive(&ours).ok().and_then(|(_, files)| files.into_iter().next());
    let output = child.wait_with_output().map_err(|e| failed(&e))?;
    device.ok_or_else(|| {
        let text = String::from_utf8_lossy(&output.stderr);
        let text = text.trim().trim_start_matches("fusermount3: ");
        MountError::Helper(if text.is_empty() { "it handed nothing over".into() } else { text.into() })
    })
}

fn words(source: &OsStr, options: &MountOptions) -> OsString {
    let mut words = format!("subtype={},{}", options.subtype(), options.flag_words()).into_bytes();
    if options.kernel_checks() {
        words.extend_from_slice(b",default_permissions");
    }
    if options.allows_others(false) {
        words.extend_from_slice(b",allow_other");
    }
    words.extend_from_slice(b",fsname=");
    for byte in options.fsname.as_deref().unwrap_or(source).as_bytes() {
        if matches!(byte, b',' | b'\\') {
            words.push(b'\\');
        }
        words.push(*byte);
    }
    OsString::from_vec(words)
}

/// Unmounts. `lazy`: also while it is in use.
///
/// # Errors
/// EBUSY while it is in use; what fusermount3 says otherwise.
pub(crate) fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let out = command.arg("--").arg(dir).output().map_err(|e| MountError::Helper(e.to_string()))?;
    if out.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&out.stderr);
    if text.contains("busy") {
        return Err(MountError::System { call: "umount", dir: dir.into(), errno: Errno::BUSY });
    }
    Err(MountError::Helper(text.trim().trim_start_matches("fusermount3: ").into()))
}
