//! A folder's tree as values that can be compared.

use rustix::fs::{Advice, SeekFrom};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{ErrorKind, Read, Seek};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// One file with all that a copy of it must have.
#[derive(Clone, PartialEq, Eq)]
pub struct TreeEntry {
    /// Relative to the listed folder, which is itself the first entry with an empty path.
    pub path: PathBuf,
    /// Its type.
    pub kind: Kind,
    /// Permissions with setuid, setgid and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes; 0 for directories, whose length is a matter of their history.
    pub size: u64,
    /// Time of the last change of content: seconds and nanoseconds.
    pub mtime: (i64, i64),
    /// Number of hard links.
    pub nlink: u64,
    /// The first path of the same inode, where this is not the first.
    pub link_of: Option<PathBuf>,
    /// Major and minor number, 0 but for devices.
    pub rdev: u64,
    /// Where a symlink points.
    pub target: Option<PathBuf>,
    /// Extended attributes, POSIX ACLs among them (`system.posix_acl_access`).
    pub xattrs: BTreeMap<OsString, Vec<u8>>,
    /// A hash of a regular file's content.
    pub content: Option<u64>,
    /// The parts of a regular file that are no holes.
    pub data: Vec<Range<u64>>,
}

impl fmt::Debug for TreeEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, kind, mode, uid, gid, size, mtime: (s, ns), nlink, rdev, .. } = self;
        write!(f, "/{}: {kind:?} {mode:04o} {uid}:{gid} {size} bytes, {s}.{ns:09}", path.display())?;
        write!(f, ", {nlink} links, rdev {rdev:#x}")?;
        if let Some(first) = &self.link_of {
            write!(f, ", link of /{}", first.display())?;
        }
        if let Some(target) = &self.target {
            write!(f, " -> {}", target.display())?;
        }
        if let Some(content) = self.content {
            write!(f, ", content {content:016x}, data {:?}", self.data)?;
        }
        self.xattrs.iter().try_for_each(|(name, value)| {
            let shown = &value[..value.len().min(60)];
            write!(f, ", {}={} ({} bytes)", name.display(), shown.escape_ascii(), value.len())
        })
    }
}

/// Everything in `dir`, sorted by path. Read it as root: it opens files of any mode.
///
/// # Panics
/// If anything cannot be read.
pub fn tree_listing(dir: impl AsRef<Path>) -> Vec<TreeEntry> {
    let dir = dir.as_ref();
    let mut paths = Vec::new();
    collect(dir, PathBuf::new(), &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        let full = dir.join(&path);
        let failed = |e: std::io::Error| -> ! { panic!("{}: {e}", full.display()) };
        let ino = fs::symlink_metadata(&full).unwrap_or_else(|e| failed(e)).ino();
        (read_entry(&full, path).unwrap_or_else(|e| failed(e)), ino)
    };
    link_names(paths.into_iter().map(read).collect())
}

/// Notes in each entry, sorted by path and with its inode number, which other is the same inode.
pub(crate) fn link_names(entries: Vec<(TreeEntry, u64)>) -> Vec<TreeEntry> {
    let mut first_of = HashMap::new();
    let named = |(mut entry, ino): (TreeEntry, u64)| {
        if entry.kind != Kind::Directory && entry.nlink > 1 {
            let first: &PathBuf = first_of.entry(ino).or_insert_with(|| entry.path.clone());
            entry.link_of = (*first != entry.path).then(|| first.clone());
        }
        entry
    };
    entries.into_iter().map(named).collect()
}

fn collect(root: &Path, path: PathBuf, all: &mut Vec<PathBuf>) {
    let full = root.join(&path);
    let failed = |e: std::io::Error| -> ! { panic!("{}: {e}", full.display()) };
    if fs::symlink_metadata(&full).unwrap_or_else(|e| failed(e)).is_dir() {
        for child in fs::read_dir(&full).unwrap_or_else(|e| failed(e)) {
            let name = child.unwrap_or_else(|e| failed(e)).file_name();
            collect(root, path.join(name), all);
        }
    }
    all.push(path);
}

fn read_entry(full: &Path, path: PathBuf) -> std::io::Result<TreeEntry> {
    let meta = fs::symlink_metadata(full)?;
    let file_type = meta.file_type();
    let kind = match () {
        () if file_type.is_file() => Kind::File,
        () if file_type.is_dir() => Kind::Directory,
        () if file_type.is_symlink() => Kind::Symlink,
        () if file_type.is_fifo() => Kind::Fifo,
        () if file_type.is_socket() => Kind::Socket,
        () if file_type.is_char_device() => Kind::CharDevice,
        () => Kind::BlockDevice,
    };
    let mut xattrs = BTreeMap::new();
    for name in xattr::list(full)? {
        let value = xattr::get(full, &name)?.unwrap_or_default();
        xattrs.insert(name, value);
    }
    let (content, data) = match kind {
        Kind::File => {
            let mut file = File::open(full)?;
            // For the kernel, what it has cached is data, also where blocks were never written: so
            // nothing is cached.
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
            let data = data_ranges(&file, meta.len())?;
            file.rewind()?;
            (Some(hash(&mut file)?), data)
        }
        _ => (None, Vec::new()),
    };
    Ok(TreeEntry {
        path,
        kind,
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        size: if kind == Kind::Directory { 0 } else { meta.len() },
        mtime: (meta.mtime(), meta.mtime_nsec()),
        nlink: meta.nlink(),
        link_of: None,
        rdev: meta.rdev(),
        target: (kind == Kind::Symlink).then(|| fs::read_link(full)).transpose()?,
        xattrs,
        content,
        data,
    })
}

/// The hash of a content, piece by piece.
#[derive(Default)]
pub(crate) struct HashOf(DefaultHasher);

impl HashOf {
    pub(crate) fn add(&mut self, piece: &[u8]) {
        self.0.write(piece);
    }

    pub(crate) fn finish(&self) -> u64 {
        self.0.finish()
    }
}

fn hash(file: &mut File) -> std::io::Result<u64> {
    let mut hash = HashOf::default();
    let mut buf = vec![0; 1 << 20];
    loop {
        match file.read(&mut buf) {
            Ok(0) => return Ok(hash.finish()),
            Ok(n) => hash.add(&buf[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

fn data_ranges(file: &File, size: u64) -> std::io::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        ranges.push(start..at);
    }
    Ok(ranges)
}

/// One line for each entry that two listings do not share: `-` only on the left, `+` only on the
/// right.
pub fn tree_diff(left: &[TreeEntry], right: &[TreeEntry]) -> Vec<String> {
    let by_path = |list: &[TreeEntry]| list.iter().map(|e| (e.path.clone(), e.clone())).collect();
    let (left, right): (BTreeMap<_, TreeEntry>, BTreeMap<_, TreeEntry>) = (by_path(left), by_path(right));
    let mut lines = Vec::new();
    for path in left.keys().chain(right.keys().filter(|p| !left.contains_key(*p))) {
        let (l, r) = (left.get(path), right.get(path));
        if l != r {
            lines.extend(l.map(|e| format!("- {e:?}")));
            lines.extend(r.map(|e| format!("+ {e:?}")));
        }
    }
    lines
}

/// # Panics
/// With the lines of [`tree_diff`], if there are any (the first 40).
#[track_caller]
pub fn assert_same_tree(left: &[TreeEntry], right: &[TreeEntry]) {
    let lines = tree_diff(left, right);
    let shown = lines.iter().take(40).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(lines.is_empty(), "the trees differ in {} lines:\n{shown}", lines.len());
}

#[cfg(test)]
mod tests;
