//! The names below a directory of a volume, as an export meets them.

use crate::member::{Kind, Member, Ranges};
use crate::pipe::PIECE;
use crate::places::{DirId, PATH_MAX, Places, joined};
use crate::tarball::DATA_RANGES_MAX;
use crate::walk::{Step, Walk, is_name};
use crate::{Action, Cause, Error, ExportOptions, Place};
use lanefs::{Dir, FileType};
use std::ffi::{OsStr, OsString};

/// A walk of a volume. A path is kept as a name and its directory, and put together when it is
/// asked for.
pub(super) struct Tree<'a> {
    /// The path of the root in the volume.
    base: &'a [u8],
    walk: Walk<(Dir, DirId)>,
    places: Places,
}

/// A name and where it is.
pub(super) struct TreeEntry<'a> {
    pub(super) dir: &'a Dir,
    pub(super) name: OsString,
    /// Its directory.
    pub(super) place: DirId,
    pub(super) dir_path: &'a [u8],
    pub(super) places: &'a Places,
}

impl TreeEntry<'_> {
    /// Returns the path from the start of the walk.
    pub(super) fn path(&self) -> Vec<u8> {
        joined(self.dir_path, self.name.as_encoded_bytes())
    }
}

impl<'a> Tree<'a> {
    /// Starts a walk at `root`.
    pub(super) fn new(base: &'a [u8], root: Dir) -> Result<Self, Error> {
        let mut tree = Self { base, walk: Walk::new(), places: Places::default() };
        tree.push(root, OsStr::new(""), 0)?;
        Ok(tree)
    }

    /// Goes down into the directory that the last step named: its names come next. Returns its
    /// place, and why it is left out.
    pub(super) fn enter(&mut self, dir: Dir, name: &OsStr) -> (DirId, Result<(), Error>) {
        let parent = self.walk.dir().map_or(0, |(_, place)| *place);
        let place = self.places.add(parent, name.as_encoded_bytes());
        (place, self.push(dir, name, place))
    }

    fn push(&mut self, dir: Dir, name: &OsStr, place: DirId) -> Result<(), Error> {
        let path = self.walk.path_of(name);
        let failed = |cause| Error::new(Action::Export, Place::in_volume(self.base, &path), cause);
        if path.len() > PATH_MAX {
            return Err(failed(Cause::PathTooLong(path.len())));
        }
        let identity = (0, u64::from(dir.metadata().ino()));
        self.walk.enter(name, Some(identity), (dir.clone(), place)).map_err(failed)?;
        match dir.read_dir() {
            Ok(entries) => self.walk.fill(entries.into_iter().map(|e| e.name).collect()),
            Err(e) => {
                self.walk.leave();
                return Err(failed(e.into()));
            }
        }
        Ok(())
    }

    /// Returns the next name.
    pub(super) fn next(&mut self) -> Option<Result<TreeEntry<'_>, Error>> {
        let name = loop {
            match self.walk.next()? {
                Step::Name { name, .. } => break name,
                Step::Leave(_) => {}
            }
        };
        if !is_name(&name) {
            let place = Place::in_volume(self.base, &self.walk.path_of(&name));
            return Some(Err(Error::new(Action::Export, place, Cause::BadName)));
        }
        let (dir, place) = self.walk.dir()?;
        let (dir_path, places) = (self.walk.path(), &self.places);
        Some(Ok(TreeEntry { dir, name, place: *place, dir_path, places }))
    }

    /// Ends the walk; the directories that it met.
    #[cfg(target_os = "linux")]
    pub(super) fn into_places(self) -> Places {
        self.places
    }
}

/// Returns the member for a name in a directory, from its metadata and attributes. A caller that
/// opens the file finds its ranges.
pub(super) fn member_of(
    dir: &Dir,
    name: &OsStr,
    path: &[u8],
    options: &ExportOptions,
) -> Result<Member, Cause> {
    let node = if name.is_empty() { dir.node() } else { dir.lookup(name)? };
    let meta = node.metadata();
    let device = || meta.device().map_or((0, 0), |d| (d.major, d.minor));
    let kind = match meta.file_type() {
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink(node.read_link()?.into_os_string().into_encoded_bytes()),
        FileType::CharDevice => Kind::CharDevice(device().0, device().1),
        FileType::BlockDevice => Kind::BlockDevice(device().0, device().1),
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::Regular => Kind::File { size: meta.len(), data: Vec::new() },
    };
    let (uid, gid) = options.ownership.apply(meta.uid(), meta.gid())?;
    let mut xattrs: Vec<_> =
        node.xattrs()?.into_iter().map(|(name, value)| (name.into_encoded_bytes(), value)).collect();
    xattrs.sort();
    options.ownership.apply_to_acls(&mut xattrs);
    let mtime = options.newest.map_or(meta.mtime(), |newest| newest.min(meta.mtime()));
    Ok(Member { path: path.to_vec(), kind, mode: meta.permissions(), uid, gid, mtime, xattrs })
}

/// Returns the data ranges of a file, joined where they touch; with `sparse`, those of blocks that
/// are not all zeros.
///
/// A damaged map may have a billion ranges. There are at most as many as an archive takes: the last
/// one reaches to the end of the data, and the holes in it are read as zeros.
pub(super) fn data_ranges(file: &lanefs::File, size: u64, sparse: bool) -> lanefs::Result<Ranges> {
    data_ranges_up_to(DATA_RANGES_MAX, file, size, sparse)
}

/// Returns the data ranges as [`data_ranges`] does, but `most` of them at most.
fn data_ranges_up_to(most: usize, file: &lanefs::File, size: u64, sparse: bool) -> lanefs::Result<Ranges> {
    let mut ranges = Ranges::new();
    let mut add = |start: u64, end: u64| {
        let is_full = ranges.len() == most;
        match ranges.last_mut() {
            Some((first, len)) if is_full || *first + *len == start => *len = end - *first,
            _ => ranges.push((start, end - start)),
        }
    };
    let mut at = 0;
    while let Some((start, end)) = file.next_data(at)?.filter(|(start, _)| *start < size) {
        let end = end.min(size);
        if sparse {
            without_zeros(file, start, end, &mut add)?;
        } else {
            add(start, end);
        }
        at = end;
    }
    Ok(ranges)
}

/// Calls `add` for each block of a range that has a byte that is not zero.
fn without_zeros(
    file: &lanefs::File,
    start: u64,
    end: u64,
    add: &mut impl FnMut(u64, u64),
) -> lanefs::Result<()> {
    const BLOCK: usize = 4096;
    let mut bytes = vec![0; (end - start).min(PIECE as u64) as usize];
    let mut at = start;
    while at < end {
        let len = (end - at).min(bytes.len() as u64) as usize;
        let n = file.read_at(&mut bytes[..len], at)?;
        // What another thread cut off meanwhile is told of where the data is read.
        bytes[n..len].fill(1);
        let mut block_start = at;
        for block in bytes[..len].chunks(BLOCK) {
            let block_end = block_start + block.len() as u64;
            if block.iter().any(|byte| *byte != 0) {
                add(block_start, block_end);
            }
            block_start = block_end;
        }
        at += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_too_many_ranges_reaches_over_the_others() {
        let volume = lanefs::Volume::in_memory(16 << 20).unwrap();
        let file = volume.create_file("/file").unwrap();
        let all: Ranges = (0..10).map(|n| (n * 65536, 4096)).collect();
        for (at, len) in &all {
            file.write_at(&vec![1; *len as usize], *at).unwrap();
        }
        // A hole at the end.
        file.set_len(1 << 20).unwrap();
        for sparse in [false, true] {
            assert_eq!(data_ranges_up_to(10, &file, 1 << 20, sparse).unwrap(), all);
            assert_eq!(data_ranges(&file, 1 << 20, sparse).unwrap(), all);
            let few = data_ranges_up_to(4, &file, 1 << 20, sparse).unwrap();
            assert_eq!(few, [&all[..3], &[(3 * 65536, 6 * 65536 + 4096)]].concat());
        }
    }
}
