//! A loop device, for the tests beside the code and for those of the whole crate.

use std::path::Path;
use std::process::Command;

/// A loop device over a file, detached on drop.
pub(crate) struct LoopDevice(String);

impl LoopDevice {
    /// Attaches a loop device to `path`, with more options of losetup(8). Needs root.
    pub(crate) fn attach(path: &Path, options: &[&str]) -> Self {
        let mut command = Command::new("losetup");
        let out = command.args(["--find", "--show"]).args(options).arg(path).output().unwrap();
        assert!(out.status.success(), "{command:?} (needs root): {}", String::from_utf8_lossy(&out.stderr));
        Self(String::from_utf8(out.stdout).unwrap().trim().to_owned())
    }

    /// Returns the name of the device's file.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}
