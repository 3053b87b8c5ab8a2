//! A file that the kernel has mounted by a loop device, as long as the value lives.

use super::run_tool;
use crate::Outcome;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The mount, at a folder of its own. Dropping it unmounts and detaches.
#[derive(Debug)]
pub struct LoopMount {
    device: String,
    dir: PathBuf,
    mounted: bool,
}

impl LoopMount {
    /// Mounts the file system of type `kind` in `image`, by a loop device that goes past the page
    /// cache of the file system that the image is in, so that content is not cached twice.
    /// `options` are those of `mount -o`.
    ///
    /// # Errors
    /// What `losetup` or `mount` says: not root, no loop device, no such file system.
    pub fn direct(image: &Path, kind: &str, options: &str) -> Outcome<Self> {
        let image = image.to_string_lossy();
        let device = run_tool("losetup", &["--direct-io=on", "--find", "--show", &image])?;
        let dir = tempfile::Builder::new().prefix("lanefs-lab-mnt").tempdir()?.keep();
        let mut mount = Self { device, dir, mounted: false };
        let mounted =
            run_tool("mount", &["-t", kind, "-o", options, &mount.device, &mount.dir.to_string_lossy()]);
        mount.mounted = mounted.is_ok();
        // While it is mounted, this only marks the device: it goes with the last user.
        run_tool("losetup", &["--detach", &mount.device])?;
        mounted.map(|_| mount)
    }

    /// Returns where it is mounted.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Unmounts.
    ///
    /// # Errors
    /// A file of it that is still open.
    pub fn unmount(mut self) -> Outcome<()> {
        self.unmount_now()
    }

    fn unmount_now(&mut self) -> Outcome<()> {
        // Another process (a device manager, say) may look at it for a moment.
        let mut tries = 20;
        while self.mounted {
            match run_tool("umount", &[&*self.dir.to_string_lossy()]) {
                Ok(_) => self.mounted = false,
                Err(e) if tries == 0 => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
            tries -= 1;
        }
        self.wait_for_detach();
        Ok(())
    }

    /// Waits until the kernel detaches, a moment after the unmount: until then the image has a
    /// user.
    fn wait_for_detach(&self) {
        let name = self.device.trim_start_matches("/dev/");
        let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
        for _ in 0..400 {
            if !backing.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        if let Err(e) = self.unmount_now() {
            eprintln!("{e}");
        }
        // Never its content: that would be the volume's, if it is still mounted.
        let _ = std::fs::remove_dir(&self.dir);
    }
}
