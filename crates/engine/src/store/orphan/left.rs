//! Reads the orphans that a crash left.

use super::OrphanFile;
use crate::error::{Corrupt, Error, Result};
use crate::store::Store;
use lanefs_format::Compat;
use std::collections::HashSet;

/// Returns the orphan list of the volume, newest first.
///
/// # Errors
/// A list that has a cycle, leaves the volume, or includes special inodes.
fn read_list(store: &Store) -> Result<Vec<u32>> {
    let mut list = Vec::new();
    let mut seen = HashSet::new();
    let mut ino = store.sb.lock().last_orphan();
    while ino != 0 {
        let place = list.len() as u32;
        if ino < store.first_ino || ino > store.layout().inodes_count() {
            return Err(Corrupt::OrphanList { ino, place, rule: "is no inode that can be an orphan" }.into());
        }
        if !seen.insert(ino) {
            return Err(Corrupt::OrphanList { ino, place, rule: "stands on the list twice" }.into());
        }
        list.push(ino);
        ino = store.read_inode(ino)?.dtime;
    }
    Ok(list)
}

fn read_file(store: &Store) -> Result<Option<(OrphanFile, Vec<u32>)>> {
    if !store.has(Compat::ORPHAN_FILE) {
        return Ok(None);
    }
    let ino = store.sb.lock().raw().s_orphan_file_inum.get();
    let (file, found) = OrphanFile::load(store, ino)?;
    for (place, &ino) in found.iter().enumerate() {
        if ino < store.first_ino || ino > store.layout().inodes_count() {
            let rule = "is no inode that can be an orphan";
            return Err(Corrupt::OrphanList { ino, place: place as u32, rule }.into());
        }
    }
    Ok(Some((file, found)))
}

/// Checks that the orphans can be found, without changes. Returns how many there are. A damaged
/// inode hides the rest of a list, but not of an orphan file.
///
/// # Errors
/// A list or file that breaks a rule, a damaged inode on the list; the device's.
pub(crate) fn check(store: &Store) -> Result<u32> {
    let list = read_list(store)?;
    let in_file = read_file(store)?.map(|f| f.1).unwrap_or_default();
    for &ino in &in_file {
        if let Err(e @ Error::Device(_)) = store.read_inode(ino) {
            return Err(e);
        }
    }
    Ok((list.len() + in_file.len()) as u32)
}

/// Loads the orphans of a volume just opened for writing. Returns them, newest first.
///
/// # Errors
/// As [`check`].
pub(crate) fn load(store: &Store) -> Result<Vec<u32>> {
    let list = read_list(store)?;
    let mut orphans = list.clone();
    store.orphans.list.load(list.into_iter().rev().collect());
    if let Some((file, found)) = read_file(store)? {
        orphans.extend(found);
        let _ = store.orphans.file.set(file);
    }
    Ok(orphans)
}
