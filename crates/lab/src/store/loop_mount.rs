//! Loop devices, and files that the kernel has mounted by them, as long as the value lives.
//!
//! The tests judge by the same mounts: `lanefs_tests::LoopMount` panics where these return an
//! error.

use super::run_tool;
use crate::Outcome;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long another process (a device manager, say) may use a mount or its image after their last
/// use here.
const PATIENCE: Duration = Duration::from_secs(2);

/// Options of a [`LoopDevice`] and a [`LoopMount`].
#[derive(Debug, Clone, Copy)]
pub struct LoopOptions {
    /// The loop device is read-only.
    pub read_only: bool,
    /// The loop device bypasses the page cache of the file system that the image is in, so that
    /// content is not cached twice.
    pub direct: bool,
    /// How long to wait for a free loop device, for other users of the mount, and until the kernel
    /// has detached the device.
    pub patience: Duration,
}

impl LoopOptions {
    /// A loop device for writing, through the page cache; two seconds of patience.
    pub const DEFAULT: Self = Self { read_only: false, direct: false, patience: PATIENCE };

    /// The same past the page cache: content is not cached twice.
    pub const DIRECT: Self = Self { direct: true, ..Self::DEFAULT };
}

/// Calls `f` until it succeeds, at most for `patience`.
fn retry<T>(patience: Duration, mut f: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    let began = Instant::now();
    loop {
        match f() {
            Err(_) if began.elapsed() < patience => std::thread::sleep(Duration::from_millis(50)),
            done => return done,
        }
    }
}

/// A loop device on a file. Dropping it detaches.
#[derive(Debug)]
pub struct LoopDevice {
    path: String,
    /// The file that the kernel says it is on.
    backing: String,
    patience: Duration,
}

impl LoopDevice {
    /// Attaches a free loop device to `image`.
    ///
    /// # Errors
    /// The message of `losetup`: not root, no loop device.
    pub fn new(image: &Path, options: LoopOptions) -> Outcome<Self> {
        let image = image.to_string_lossy();
        let mut args = vec!["--find", "--show", &*image];
        args.extend(options.read_only.then_some("--read-only"));
        args.extend(options.direct.then_some("--direct-io=on"));
        // Other processes may want the same free device.
        let path = retry(options.patience, || run_tool("losetup", &args))?;
        let mut device = Self { path, backing: String::new(), patience: options.patience };
        device.backing = device.backing_now().ok_or("the kernel names no file of the loop device")?;
        Ok(device)
    }

    /// Returns the device's file.
    pub fn path(&self) -> &Path {
        Path::new(&self.path)
    }

    /// Returns the kernel's name of the device.
    pub fn name(&self) -> &str {
        self.path.trim_start_matches("/dev/")
    }

    /// Returns the kernel's name of the file. It has a suffix when the file has been removed.
    fn backing_now(&self) -> Option<String> {
        let file = Path::new("/sys/block").join(self.name()).join("loop/backing_file");
        Some(std::fs::read_to_string(file).ok()?.trim_end().to_owned())
    }

    /// Detaches the device, at once or with its last user.
    fn detach(&self) -> Outcome<()> {
        run_tool("losetup", &["--detach", &self.path]).map(drop)
    }

    /// Waits until the kernel has detached, a moment after the last use: until then the image has a
    /// user. The device may belong to another file by then.
    fn wait_for_detach(&self) {
        let began = Instant::now();
        while self.backing_now().is_some_and(|now| now.starts_with(&self.backing))
            && began.elapsed() < self.patience
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if self.backing_now().is_some_and(|now| now.starts_with(&self.backing)) {
            let _ = self.detach();
            self.wait_for_detach();
        }
    }
}

/// An image that the kernel has mounted, at a folder of its own. Dropping it unmounts and detaches.
#[derive(Debug)]
pub struct LoopMount {
    device: LoopDevice,
    dir: PathBuf,
    mounted: bool,
}

impl LoopMount {
    /// Mounts the file system of type `kind` in `image`. `words` are those of `mount -o`.
    ///
    /// # Errors
    /// The message of `losetup` or `mount`: not root, no loop device, no such file system.
    pub fn new(image: &Path, kind: &str, words: &str, options: LoopOptions) -> Outcome<Self> {
        let device = LoopDevice::new(image, options)?;
        let dir = tempfile::Builder::new().prefix("lanefs-mnt").tempdir()?.keep();
        let mut mount = Self { device, dir, mounted: false };
        let words = if words.is_empty() { "defaults" } else { words };
        let args = ["-t", kind, "-o", words, &mount.device.path, &mount.dir.to_string_lossy()];
        let mounted = run_tool("mount", &args);
        mount.mounted = mounted.is_ok();
        // While it is mounted, this only marks the device: it goes with the last user.
        mount.device.detach()?;
        mounted.map(|_| mount)
    }

    /// Returns where it is mounted.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns the loop device.
    pub fn device(&self) -> &LoopDevice {
        &self.device
    }

    /// Unmounts, and waits until the image has no user any more. Does nothing the second time.
    ///
    /// # Errors
    /// The message of `umount`: a file of it is still open.
    pub fn unmount(&mut self) -> Outcome<()> {
        if self.mounted {
            retry(self.device.patience, || run_tool("umount", &[&*self.dir.to_string_lossy()]))?;
            self.mounted = false;
        }
        self.device.wait_for_detach();
        Ok(())
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        if let Err(e) = self.unmount() {
            eprintln!("{e}");
            let _ = run_tool("umount", &["--lazy", &*self.dir.to_string_lossy()]);
        }
        // Never its content: that would be the volume's, if it is still mounted.
        let _ = std::fs::remove_dir(&self.dir);
    }
}
