//! Images of mke2fs for the tests of this crate, and what dumpe2fs and debugfs say of them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// An image file in the system's temporary folder, removed when dropped.
pub(crate) struct Image(pub(crate) PathBuf);

impl Image {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).unwrap()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs a tool of e2fsprogs, which these tests cannot do without, and gives what it prints.
pub(crate) fn run(tool: &str, args: &[&str]) -> String {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    // By its path: for a bare name and another PATH the standard library forks.
    let file = path.split(':').map(|dir| Path::new(dir).join(tool)).find(|file| file.is_file());
    let out = Command::new(file.expect("e2fsprogs is needed")).args(args).output().unwrap();
    assert!(out.status.success(), "{tool} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Makes a volume by mke2fs.
pub(crate) fn mke2fs(size: &str, args: &[&str]) -> Image {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let image = Image(std::env::temp_dir().join(format!("lanefs-format-{}-{n}.img", std::process::id())));
    let mut all = vec!["-q", "-F"];
    all.extend(args);
    all.extend([image.0.to_str().unwrap(), size]);
    run("mke2fs", &all);
    image
}

/// Returns the value of one line of `dumpe2fs -h`.
pub(crate) fn dumpe2fs_field(image: &Image, name: &str) -> String {
    let out = run("dumpe2fs", &["-h", image.0.to_str().unwrap()]);
    let line = out.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}
