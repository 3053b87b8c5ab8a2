//! A whole volume as one number, to compare states of it.

use foldhash::quality::FixedState;
use lanefs::{Dir, Volume};
use std::hash::{BuildHasher, Hash};
use std::path::PathBuf;

/// What a walk of a volume through lanefs sees: a line for each name, sorted. Names, types, modes,
/// links, sizes, devices, content, targets and attributes; no times and no inode numbers.
///
/// # Panics
/// If anything of the volume cannot be read.
pub fn volume_lines(volume: &Volume) -> Vec<String> {
    let root = volume.open_dir("/").expect("root");
    let mut lines = vec![line(&root, "", "/")];
    let mut stack = vec![(PathBuf::from("/"), root)];
    while let Some((path, dir)) = stack.pop() {
        for entry in dir.read_dir().unwrap_or_else(|e| panic!("{}: {e}", path.display())) {
            let full = path.join(&entry.name);
            let name = entry.name.to_str().expect("test names are ASCII");
            lines.push(line(&dir, name, &full.display().to_string()));
            if dir.symlink_metadata(name).expect("listed").is_dir() {
                stack.push((full, dir.open_dir(name).expect("listed")));
            }
        }
    }
    lines.sort();
    lines
}

/// The lines of [`volume_lines`] as one number.
pub fn volume_digest(volume: &Volume) -> u64 {
    hash(&volume_lines(volume))
}

fn hash(value: &impl Hash) -> u64 {
    FixedState::default().hash_one(value)
}

fn line(dir: &Dir, name: &str, path: &str) -> String {
    let fail = |e: lanefs::Error| -> ! { panic!("{path}: {e}") };
    let node = if name.is_empty() { dir.node() } else { dir.lookup(name).unwrap_or_else(|e| fail(e)) };
    let meta = node.metadata();
    let mut content = 0;
    if meta.is_file() {
        let file = node.open().unwrap_or_else(|e| fail(e));
        let mut bytes = vec![0; usize::try_from(meta.len()).expect("test files are small")];
        let n = file.read_at(&mut bytes, 0).unwrap_or_else(|e| fail(e));
        assert_eq!(n as u64, meta.len(), "{path}: a short read");
        content = hash(&bytes);
    } else if meta.is_symlink() {
        content = hash(&node.read_link().unwrap_or_else(|e| fail(e)));
    }
    let mut attrs = node.xattrs().unwrap_or_else(|e| fail(e));
    attrs.sort();
    let size = if meta.is_dir() { 0 } else { meta.len() };
    format!(
        "{path} {:o} {}:{} links {} size {size} {:?} {content:016x} {attrs:?}",
        meta.mode(),
        meta.uid(),
        meta.gid(),
        meta.nlink(),
        meta.device()
    )
}
