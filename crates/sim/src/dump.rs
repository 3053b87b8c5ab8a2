//! Images as files, for judges that are programs.

use crate::Image;
use crate::image::PAGE;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that takes one image after another, and writes only where they differ.
#[derive(Debug)]
pub struct DumpFile {
    path: PathBuf,
    file: File,
    holds: Image,
}

impl DumpFile {
    /// Makes a sparse file that holds `image`.
    ///
    /// # Errors
    /// The system's.
    pub fn create(path: impl AsRef<Path>, image: &Image) -> io::Result<Self> {
        let path = path.as_ref().to_owned();
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        let mut dump = Self { path, file, holds: image.without_pages() };
        dump.rewrite(image)?;
        Ok(dump)
    }

    /// Returns the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the file hold `image`. Nobody else may have written to the file since the last time.
    ///
    /// # Errors
    /// The system's.
    pub fn set(&mut self, image: &Image) -> io::Result<()> {
        if !self.holds.same_base(image) {
            return self.rewrite(image);
        }
        let base = image.without_pages();
        let mut page = [0; PAGE];
        for (number, new) in image.pages() {
            if !self.holds.pages().get(number).is_some_and(|old| Arc::ptr_eq(old, new)) {
                self.put(*number, image.size(), &new[..])?;
            }
        }
        for number in self.holds.pages().keys().filter(|n| !image.pages().contains_key(n)) {
            base.read(number * PAGE as u64, &mut page);
            self.put(*number, image.size(), &page)?;
        }
        self.holds = image.clone();
        Ok(())
    }

    fn rewrite(&mut self, image: &Image) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.set_len(image.size())?;
        const CHUNK: usize = 64 * PAGE;
        let mut chunk = vec![0; CHUNK];
        for start in (0..image.size()).step_by(CHUNK) {
            let n = (image.size() - start).min(CHUNK as u64) as usize;
            image.read(start, &mut chunk[..n]);
            if chunk[..n].iter().any(|&b| b != 0) {
                self.file.write_all_at(&chunk[..n], start)?;
            }
        }
        self.holds = image.clone();
        Ok(())
    }

    fn put(&self, number: u64, size: u64, page: &[u8]) -> io::Result<()> {
        let at = number * PAGE as u64;
        let n = (size - at).min(PAGE as u64) as usize;
        self.file.write_all_at(&page[..n], at)
    }
}

impl Image {
    /// Writes the image to a sparse file.
    ///
    /// # Errors
    /// The system's.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        DumpFile::create(path, self).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_follows_the_image() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dump");
        let base = Image::from_bytes((0..1_000_100).map(|i| i as u8).collect::<Vec<_>>());
        let mut a = base.clone();
        a.write(5_000, &[9; 10_000]);
        a.write(1_000_000, &[8; 100]);
        let mut b = base.clone();
        b.write(12_000, &[7; 300_000]);
        let other = Image::zeroed(70_000);
        let mut dump = DumpFile::create(&path, &a).unwrap();
        for image in [&a, &b, &base, &a, &other, &b] {
            dump.set(image).unwrap();
            assert!(std::fs::read(&path).unwrap() == image.to_bytes());
        }
        a.write(6_000, b"changed after a clone was set");
        dump.set(&a).unwrap();
        assert!(std::fs::read(dump.path()).unwrap() == a.to_bytes());
    }
}
