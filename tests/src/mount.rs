//! The kernel as a judge: a loop mount that goes with the value.

use crate::tools::{private_mounts, require_root, run};
use lanefs_lab::store::{self, LoopOptions};
use std::path::Path;
use std::time::Duration;

/// Options of loop devices: `direct` bypasses the page cache of the image's file system.
fn options(read_only: bool, direct: bool) -> LoopOptions {
    // Long, because tests that run side by side may want the same free device, and a child of
    // another thread that has not come to its exec still has what files this one had open.
    LoopOptions { read_only, direct, patience: Duration::from_secs(60) }
}

/// An image that the kernel has mounted, at a folder of its own. Dropping it, also by a panic,
/// unmounts and detaches.
#[derive(Debug)]
pub struct LoopMount(store::LoopMount);

impl LoopMount {
    /// Mounts `image` as ext4. `options` are the kernel's, as behind `mount -o`; `ro` also makes
    /// the loop device read-only.
    ///
    /// # Panics
    /// If the test is not root, there is no loop device, or the kernel refuses the volume.
    pub fn new(image: impl AsRef<Path>, options: &str) -> Self {
        Self::with_type(image, "ext4", options)
    }

    /// Mounts as [`new`](Self::new) does, as a file system of another type.
    ///
    /// # Panics
    /// Panics as [`new`](Self::new) does.
    pub fn with_type(image: impl AsRef<Path>, kind: &str, options: &str) -> Self {
        Self::mount(image.as_ref(), kind, options, false).unwrap_or_else(|said| panic!("{said}"))
    }

    /// Mounts as [`with_type`](Self::with_type) does, with a loop device that bypasses the page
    /// cache of the image's file system, so that content is not cached twice.
    ///
    /// # Errors
    /// The message of `losetup` or `mount`.
    ///
    /// # Panics
    /// If the caller is not root.
    pub fn direct(image: impl AsRef<Path>, kind: &str, options: &str) -> Result<Self, String> {
        Self::mount(image.as_ref(), kind, options, true)
    }

    /// Mounts as [`new`](Self::new) does, but returns an error if the kernel refuses to mount.
    ///
    /// # Errors
    /// The message of `losetup` or `mount`.
    ///
    /// # Panics
    /// If the test is not root.
    pub fn try_new(image: impl AsRef<Path>, options: &str) -> Result<Self, String> {
        Self::mount(image.as_ref(), "ext4", options, false)
    }

    fn mount(image: &Path, kind: &str, words: &str, direct: bool) -> Result<Self, String> {
        private_mounts();
        let options = options(words.split(',').any(|word| word == "ro"), direct);
        store::LoopMount::new(image, kind, words, options).map(Self).map_err(|e| e.to_string())
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The loop device.
    pub fn device(&self) -> &str {
        self.0.device().path().to_str().expect("a path in UTF-8")
    }

    /// Has the kernel write no zeros to short runs of unwritten blocks, which would then count as
    /// data.
    ///
    /// # Panics
    /// If it is not mounted for writing, as ext4.
    pub fn keep_unwritten(&self) {
        let device = self.0.device().name();
        std::fs::write(format!("/sys/fs/ext4/{device}/extent_max_zeroout_kb"), "0").unwrap();
    }

    /// Unmounts.
    ///
    /// # Panics
    /// If that fails: something still has a file of it open.
    pub fn unmount(mut self) {
        self.0.unmount().unwrap_or_else(|said| panic!("{said}"));
    }

    /// Cuts the power: the kernel stops writing to the volume at once, then it is unmounted. The
    /// image keeps a journal that needs recovery, if a transaction was committed since the mount.
    ///
    /// # Panics
    /// If that fails.
    pub fn cut_power(mut self) {
        self.shut_down();
        self.0.unmount().unwrap_or_else(|said| panic!("{said}"));
    }

    /// As [`cut_power`](Self::cut_power), but without the unmount: programs keep their open files,
    /// and further operations on them fail.
    ///
    /// # Panics
    /// If that fails.
    pub fn shut_down(&self) {
        // EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH: an ioctl needs `unsafe` in Rust, and
        // no program of e2fsprogs calls it. Perl is part of every Debian.
        let script = r#"open(my $f, "<", $ARGV[0]) or die $!; my $flags = pack("L", 2);
            ioctl($f, 0x8004587d, $flags) or die $!;"#;
        run("perl", &["-e", script, self.path().to_str().unwrap()]);
    }
}

/// A loop device on a file, as long as the value lives.
#[derive(Debug)]
pub struct LoopDevice(store::LoopDevice);

impl LoopDevice {
    /// Attaches a device that goes through the page cache of the file's file system.
    ///
    /// # Panics
    /// If the caller is not root, or there is no loop device.
    pub fn new(image: impl AsRef<Path>) -> Self {
        Self::attach(image.as_ref(), false)
    }

    /// Attaches a device that bypasses the page cache of the file's file system.
    ///
    /// # Panics
    /// If the caller is not root, or there is no loop device.
    pub fn direct(image: impl AsRef<Path>) -> Self {
        Self::attach(image.as_ref(), true)
    }

    fn attach(image: &Path, direct: bool) -> Self {
        require_root();
        Self(store::LoopDevice::new(image, options(false, direct)).unwrap_or_else(|said| panic!("{said}")))
    }

    /// The device's file.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The kernel's name of the device.
    pub fn name(&self) -> &str {
        self.0.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dumpe2fs, e2fsck_clean, e2fsck_replay, mke2fs};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::PathBuf;
    use std::process::Command;

    fn volume() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        mke2fs(&path, 16 << 20, &["-t", "ext4"]);
        (dir, path)
    }

    fn is_mounted(dir: &Path) -> bool {
        std::fs::read_to_string("/proc/thread-self/mounts").unwrap().contains(dir.to_str().unwrap())
    }

    fn is_attached(image: &Path) -> bool {
        !run("losetup", &["--associated", image.to_str().unwrap()]).is_empty()
    }

    #[test]
    fn what_was_written_is_in_the_image() {
        let (_dir, image) = volume();
        let mount = LoopMount::new(&image, "");
        assert!(is_mounted(mount.path()));
        std::fs::write(mount.path().join("file"), "content").unwrap();
        let dir = mount.path().to_owned();
        mount.unmount();
        assert!(!is_mounted(&dir) && !dir.exists() && !is_attached(&image));
        e2fsck_clean(&image);
        let mount = LoopMount::new(&image, "ro");
        assert_eq!(std::fs::read_to_string(mount.path().join("file")).unwrap(), "content");
        assert!(std::fs::write(mount.path().join("file"), "x").is_err());
    }

    #[test]
    fn a_panic_unmounts() {
        let (_dir, image) = volume();
        let mut dir = PathBuf::new();
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mount = LoopMount::new(&image, "");
            dir = mount.path().to_owned();
            panic!("on purpose");
        }));
        assert!(result.is_err() && !is_mounted(&dir) && !dir.exists() && !is_attached(&image));
    }

    /// A container that is started meanwhile has a copy of all mounts of its parent. It does not
    /// keep this one in use.
    #[test]
    fn another_mount_namespace_keeps_nothing_alive() {
        let (_dir, image) = volume();
        let (mounted, begin) = std::sync::mpsc::channel();
        // A thread that began before the mount has the namespace of the process.
        let stranger = std::thread::spawn(move || {
            let () = begin.recv().unwrap();
            let mut command = Command::new("unshare");
            let script = "echo; exec sleep 600";
            command.args(["--mount", "sh", "-c", script]).stdout(std::process::Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut line = [0];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
            child
        });
        let mut mount = LoopMount::new(&image, "");
        mounted.send(()).unwrap();
        let mut stranger = stranger.join().unwrap();
        // Before its directory is removed, which takes the mount away in all namespaces.
        mount.0.unmount().unwrap();
        let kept = is_attached(&image);
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        assert!(!kept, "the volume is still mounted in the other namespace");
    }

    #[test]
    fn what_the_kernel_refuses_leaves_nothing() {
        let (_dir, image) = volume();
        std::fs::write(&image, vec![0; 1 << 20]).unwrap();
        let said = LoopMount::try_new(&image, "").unwrap_err();
        assert!(said.contains("mount"), "{said}");
        assert!(!is_attached(&image));
    }

    #[test]
    fn a_power_cut_leaves_a_dirty_journal() {
        let (_dir, image) = volume();
        let mount = LoopMount::new(&image, "");
        let file = mount.path().join("synced");
        std::fs::write(&file, "kept").unwrap();
        std::fs::File::open(&file).unwrap().sync_all().unwrap();
        std::fs::write(mount.path().join("not synced"), "lost").unwrap();
        mount.cut_power();
        assert!(!is_attached(&image));
        assert!(dumpe2fs(&image, &["-h"]).contains("needs_recovery"));
        assert!(e2fsck_replay(&image));
        let mount = LoopMount::new(&image, "ro,noload");
        assert_eq!(std::fs::read_to_string(mount.path().join("synced")).unwrap(), "kept");
        assert!(!mount.path().join("not synced").exists());
        mount.unmount();
        e2fsck_clean(&image);
    }
}
