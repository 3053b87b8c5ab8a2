//! The folder of damaged volumes that is not part of the project.

use std::io::Read;
use std::path::{Path, PathBuf};

/// Bigger images are about size, and belong to other tests.
const MOST: u64 = 1 << 29;

/// The images of the folder that `LANEFS_CORPUS` names, or of `shared/corpus` beside the
/// checkout, sorted by name. `LANEFS_IMAGE` keeps those whose name contains it. `None`, with a
/// line that says so, if there is no folder.
///
/// # Panics
/// If `LANEFS_CORPUS` names no folder.
pub fn corpus_images() -> Option<Vec<PathBuf>> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpus");
    let named = std::env::var_os("LANEFS_CORPUS").map(PathBuf::from);
    if let Some(dir) = &named {
        assert!(dir.is_dir(), "LANEFS_CORPUS={} is no folder", dir.display());
    }
    let Some(dir) = named.or(Some(beside)).filter(|dir| dir.is_dir()) else {
        println!("no folder of damaged images: LANEFS_CORPUS names one");
        return None;
    };
    let only = std::env::var("LANEFS_IMAGE").unwrap_or_default();
    let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().contains(&only));
    paths.sort();
    Some(paths)
}

/// The bytes of an image, `.gz`, `.bz2` or plain; `None` for a file that is no image.
///
/// # Panics
/// If it cannot be read.
pub fn unpacked(path: &Path) -> Option<Vec<u8>> {
    let raw = std::fs::read(path).unwrap();
    let mut bytes = Vec::new();
    let name = path.file_name()?.to_str()?;
    match path.extension().and_then(|e| e.to_str()) {
        Some("gz") => flate2::read::MultiGzDecoder::new(&*raw).take(MOST).read_to_end(&mut bytes),
        Some("bz2") => bzip2::read::BzDecoder::new(&*raw).take(MOST).read_to_end(&mut bytes),
        _ if name.contains("image") => return Some(raw),
        _ => return None,
    }
    .unwrap();
    Some(bytes)
}
