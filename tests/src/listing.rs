//! A lanefs volume's tree as values that can be held against the kernel's view of it.

use crate::ops::kind;
use crate::tree::{HashOf, link_names};
use crate::{Kind, TreeEntry};
use lanefs::{File, Metadata, Volume};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Everything in `volume`, sorted by path, as [`tree_listing`](crate::tree_listing) lists a folder.
///
/// # Errors
/// The first that reading anything gives.
pub fn volume_listing(volume: &Volume) -> lanefs::Result<Vec<TreeEntry>> {
    let mut found = Vec::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let open = volume.open_dir(absolute(&dir))?;
        found.push(entry(volume, dir.clone(), &open.metadata())?);
        for e in open.read_dir()? {
            let path = dir.join(&e.name);
            let meta = open.symlink_metadata(&e.name)?;
            match meta.is_dir() {
                true => dirs.push(path),
                false => found.push(entry(volume, path, &meta)?),
            }
        }
    }
    found.sort_by(|a, b| a.0.path.cmp(&b.0.path));
    Ok(link_names(found))
}

/// Returns the listing with 0 in place of every modification time of the last hour: such a time is
/// that of an operation of the test, which did not set it explicitly.
pub fn settled(mut listing: Vec<TreeEntry>) -> Vec<TreeEntry> {
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_secs() as i64);
    for entry in &mut listing {
        if (now - 3600..now + 3600).contains(&entry.mtime.0) {
            entry.mtime = (0, 0);
        }
    }
    listing
}

fn absolute(path: &Path) -> PathBuf {
    Path::new("/").join(path)
}

fn entry(volume: &Volume, path: PathBuf, meta: &Metadata) -> lanefs::Result<(TreeEntry, u64)> {
    let full = absolute(&path);
    let kind = kind(meta.file_type());
    let (content, data) = match kind {
        Kind::File => {
            let file = volume.open_options().read(true).follow(false).open(&full)?;
            (Some(hash(&file)?), data_ranges(&file, meta.len())?)
        }
        _ => (None, Vec::new()),
    };
    let rdev = meta.device().map_or(0, |d| rustix::fs::makedev(d.major, d.minor));
    let entry = TreeEntry {
        kind,
        mode: meta.permissions().into(),
        uid: meta.uid(),
        gid: meta.gid(),
        size: if kind == Kind::Directory { 0 } else { meta.len() },
        mtime: (meta.mtime().sec, meta.mtime().nsec.into()),
        nlink: meta.nlink().into(),
        link_of: None,
        rdev,
        target: if kind == Kind::Symlink { Some(volume.read_link(&full)?) } else { None },
        xattrs: volume.xattrs(&full)?.into_iter().collect(),
        content,
        data,
        path,
    };
    Ok((entry, meta.ino().into()))
}

fn hash(file: &File) -> lanefs::Result<u64> {
    let mut hash = HashOf::default();
    let mut buf = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        match file.read_at(&mut buf, at)? {
            0 => return Ok(hash.finish()),
            n => {
                hash.add(&buf[..n]);
                at += n as u64;
            }
        }
    }
}

/// Returns the ranges that are not holes. They do not touch each other.
fn data_ranges(file: &File, size: u64) -> lanefs::Result<Vec<Range<u64>>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while let Some((start, end)) = file.next_data(at)?.filter(|(start, _)| *start < size) {
        assert!(start >= at && end > start, "data at {start}..{end}, asked from {at} on");
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end.min(size),
            _ => ranges.push(start..end.min(size)),
        }
        at = end;
    }
    Ok(ranges)
}
