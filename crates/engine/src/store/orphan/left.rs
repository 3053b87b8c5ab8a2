//! Reads the orphans that a crash left.
//!
//! Damage does not keep a volume from being opened for writing: orphans that are not found stay
//! allocated, and e2fsck finds them without the list. It ignores the list of a volume with noted
//! errors, and the kernel clears it. A device that fails is no damage, and always an error.

use super::check_new;
use super::file::{FileRead, OrphanFile};
use crate::error::{Corrupt, Result};
use crate::store::Store;
use crate::store::txn::credits;
use lanefs_format::Compat;
use std::collections::HashSet;

/// The orphan list, as far as it can be read.
#[derive(Debug, Default)]
struct ListRead {
    /// Newest first. The last may be a damaged inode, which hides those behind it.
    inodes: Vec<u32>,
    /// The number at which the list breaks off, if it is none of an orphan.
    broken: Option<Corrupt>,
}

/// Reads the orphan list up to a damaged inode, or to a number that closes a circle, leaves the
/// volume or is a special inode's. Adds its numbers to those `seen`.
///
/// # Errors
/// The device's.
fn read_list(store: &Store, seen: &mut HashSet<u32>) -> Result<ListRead> {
    let mut list = ListRead::default();
    let mut ino = store.sb.lock().last_orphan();
    while ino != 0 {
        if let Err(rule) = check_new(store, ino, seen) {
            list.broken = Some(Corrupt::OrphanList { ino, place: list.inodes.len() as u32, rule });
            break;
        }
        list.inodes.push(ino);
        match store.read_inode(ino) {
            Ok(inode) => ino = inode.dtime,
            Err(e) if e.is_of_medium() => return Err(e),
            Err(_) => break,
        }
    }
    Ok(list)
}

/// Reads the orphan file, if the volume has one, without the numbers that the list has too.
///
/// # Errors
/// Those of [`OrphanFile::load`].
fn read_file(store: &Store, seen: &mut HashSet<u32>) -> Result<Option<FileRead>> {
    if !store.has(Compat::ORPHAN_FILE) {
        return Ok(None);
    }
    let ino = store.sb.lock().raw().s_orphan_file_inum.get();
    OrphanFile::load(store, ino, seen).map(Some)
}

/// Checks that the orphans can be found, without changes. Returns how many are found. A damaged
/// inode hides the rest of a list, but not of an orphan file.
///
/// # Errors
/// A file that is no orphan file, or is damaged; the device's.
pub(crate) fn check(store: &Store) -> Result<u32> {
    let mut seen = HashSet::new();
    let list = read_list(store, &mut seen)?.inodes;
    let in_file = read_file(store, &mut seen)?.map(|read| read.inodes).unwrap_or_default();
    for &ino in &in_file {
        if let Err(e) = store.read_inode(ino)
            && e.is_of_medium()
        {
            return Err(e);
        }
    }
    Ok((list.len() + in_file.len()) as u32)
}

/// Loads the orphans of a volume just opened for writing. Returns them, newest first. Notes where
/// the list breaks off, and a number in the file that is none of an orphan. A damaged inode stays
/// an orphan, and the number is cleared.
///
/// # Errors
/// Those of [`check`]; the journal's.
pub(crate) fn load(store: &Store) -> Result<Vec<u32>> {
    let mut seen = HashSet::new();
    let ListRead { inodes: mut orphans, broken } = read_list(store, &mut seen)?;
    if let Some(broken) = broken {
        store.note_error(&broken.into());
    }
    store.orphans.list.load(orphans.iter().rev().copied());
    if let Some(FileRead { file, inodes, broken }) = read_file(store, &mut seen)? {
        orphans.extend(inodes);
        if let Some(broken) = broken {
            store.note_error(&broken.into());
            while store.transact(credits::ORPHAN, |txn| file.clear_broken(txn))? {}
        }
        let _ = store.orphans.file.set(file);
    }
    Ok(orphans)
}

#[cfg(test)]
mod tests {
    use crate::NewAttr;
    use crate::fs::OpenOptions;
    use crate::store::map::{self, Mapping};
    use crate::store::read_super;
    use lanefs_device::MemDevice;
    use lanefs_format::State;
    use lanefs_format::orphan_file::{OrphanFile as Codec, entries, set_entry};
    use std::sync::Arc;
    use std::time::Duration;

    fn options() -> OpenOptions {
        OpenOptions::new().write(true).commit_interval(Duration::ZERO)
    }

    /// Numbers in an orphan file that are none of an orphan: the others are deleted, the volume
    /// says that it needs a check, and no later open takes the numbers for orphans.
    #[test]
    fn a_wrong_number_in_the_orphan_file_keeps_the_volume_usable() {
        let device = Arc::new(MemDevice::new(16 << 20));
        let features = "orphan_file".parse().unwrap();
        lanefs_mkfs::format(&*device, &lanefs_mkfs::Options { features, ..Default::default() }).unwrap();
        let volume = options().open_device(device.clone()).unwrap();
        let root = volume.open_dir("/").unwrap();
        let attr = NewAttr { permissions: 0o600, uid: 0, gid: 0 };
        let files = [(); 3].map(|()| root.create_nameless(attr).unwrap());
        let fs = Arc::clone(&files[0].inode().fs);
        fs.journal.checkpoint().unwrap();
        let whole = device.to_bytes();
        let ino = fs.sb.lock().raw().s_orphan_file_inum.get();
        let inode = fs.read_inode(ino).unwrap();
        let Mapping::Mapped { block, .. } = map::lookup(&fs, &inode, 0).unwrap() else { panic!("a hole") };
        let (codec, size) = (Codec::new(&inode, &fs.checksummer), fs.block_size as usize);
        let at = block as usize * size..(block as usize + 1) * size;
        assert_eq!(entries(&whole[at.clone()]).filter(|ino| *ino != 0).count(), 3);
        for number in [4_000_000_000, 5, files[0].inode().ino] {
            let mut bytes = whole.clone();
            set_entry(&mut bytes[at.clone()], 1, number);
            codec.seal(&mut bytes[at.clone()], block).unwrap();
            let device = Arc::new(MemDevice::from_bytes(bytes));
            for found in [2, 0] {
                let volume = options().open_device(device.clone()).unwrap();
                assert_eq!(volume.info().recovery.orphans, found, "{number}");
                volume.write("/new", b"new").unwrap();
                volume.close().unwrap();
                assert!(read_super(&*device).unwrap().state().contains(State::ERROR_FS), "{number}");
                assert!(entries(&device.to_bytes()[at.clone()]).all(|ino| ino == 0), "{number}");
            }
        }
    }
}
