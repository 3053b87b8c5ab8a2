//! Finishing what a crash left: orphans without a name are deleted, the others are truncated to
//! their size.

use super::{OrphanFile, settle};
use crate::data;
use crate::error::{Corrupt, Error, Result};
use crate::txn::credits;
use crate::volume::Fs;
use lanefs_format::Compat;
use std::collections::HashSet;
use std::sync::Arc;

/// The orphan list of the volume, newest first.
///
/// # Errors
/// A list that runs in a circle, leaves the volume, or goes through special inodes.
fn read_list(fs: &Fs) -> Result<Vec<u32>> {
    let mut list = Vec::new();
    let mut seen = HashSet::new();
    let mut ino = fs.sb.lock().last_orphan();
    while ino != 0 {
        let place = list.len() as u32;
        if ino < fs.first_ino || ino > fs.layout.inodes_count() {
            return Err(Corrupt::OrphanList { ino, place, rule: "is no inode that can be an orphan" }.into());
        }
        if !seen.insert(ino) {
            return Err(Corrupt::OrphanList { ino, place, rule: "stands on the list twice" }.into());
        }
        list.push(ino);
        ino = fs.read_inode(ino)?.dtime;
    }
    Ok(list)
}

fn read_file(fs: &Fs) -> Result<Option<(OrphanFile, Vec<u32>)>> {
    if !fs.has(Compat::ORPHAN_FILE) {
        return Ok(None);
    }
    let ino = fs.sb.lock().raw().s_orphan_file_inum.get();
    let (file, found) = OrphanFile::load(fs, ino)?;
    for (place, &ino) in found.iter().enumerate() {
        if ino < fs.first_ino || ino > fs.layout.inodes_count() {
            let rule = "is no inode that can be an orphan";
            return Err(Corrupt::OrphanList { ino, place: place as u32, rule }.into());
        }
    }
    Ok(Some((file, found)))
}

/// Looks whether the orphans can be read, without changing anything; how many there are.
pub(crate) fn check(fs: &Fs) -> Result<u32> {
    let mut orphans = read_list(fs)?;
    orphans.extend(read_file(fs)?.map(|f| f.1).unwrap_or_default());
    for &ino in &orphans {
        fs.read_inode(ino)?;
    }
    Ok(orphans.len() as u32)
}

/// Reads the orphans of a volume just opened for writing and finishes each.
pub(crate) fn recover(fs: &Arc<Fs>) -> Result<()> {
    let list = read_list(fs)?;
    let mut orphans = list.clone();
    fs.orphans.list.load(list.into_iter().rev().collect());
    if let Some((file, found)) = read_file(fs)? {
        orphans.extend(found);
        let _ = fs.orphans.file.set(file);
    }
    for ino in orphans {
        match finish(fs, ino) {
            Err(e @ (Error::Device(_) | Error::Journal(_))) => return Err(e),
            // One that is damaged stays an orphan: the volume has been written, and can be used.
            Err(e) => fs.note_error(&e),
            Ok(()) => {}
        }
    }
    Ok(())
}

fn finish(fs: &Arc<Fs>, ino: u32) -> Result<()> {
    let node = fs.orphan_node(ino)?;
    if node.state().links_count == 0 {
        // Nobody else has it: dropping the node deletes it.
        return Ok(());
    }
    data::truncate_tail(&node)?;
    let prepared = node.prepare()?;
    fs.transact(credits::INODE + credits::ORPHAN, |txn| {
        prepared.update(txn, |txn, inode| settle(txn, ino, inode))
    })
}
