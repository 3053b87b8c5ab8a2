//! Steps as calls of a volume.

use super::model::{MADE, NAMELESS_IN, XATTR, byte, mode, owner, target, touched_at};
use super::observed::bit;
use super::step::{Slot, Step, Way};
use lanefs::{AtSymlink, Error, File, Io, NewAttr, RenameFlags, SetAttr, SetTime, SetXattr, Upkeep, Volume};
use lanefs_device::AlignedBuf;
use std::collections::BTreeMap;

/// The files that a workload has open.
pub(super) type Files = BTreeMap<Slot, File>;

const ATTR: NewAttr = NewAttr { permissions: MADE.0, uid: MADE.1, gid: MADE.2 };

struct Hands<'v> {
    volume: &'v Volume,
    files: &'v Files,
}

/// Does step number `i`. Returns the file that it opened, if it opened one.
pub(super) fn carry_out(
    volume: &Volume,
    files: &Files,
    i: usize,
    step: &Step,
) -> lanefs::Result<Option<(Slot, File)>> {
    match step {
        Step::Create(path) => {
            let options = volume.open_options().read(true).write(true).create_new(true).attr(ATTR);
            Ok(Some((Slot::N, options.open(path)?)))
        }
        Step::Nameless => Ok(Some((Slot::T, volume.open_dir(NAMELESS_IN)?.create_nameless(ATTR)?))),
        _ => Hands { volume, files }.change(i, step).map(|()| None),
    }
}

impl Hands<'_> {
    fn file(&self, slot: Slot) -> lanefs::Result<&File> {
        self.files.get(&slot).ok_or(Error::NotFound)
    }

    fn change(&self, i: usize, step: &Step) -> lanefs::Result<()> {
        let volume = self.volume;
        match step {
            Step::LinkNameless(path) => volume.link_file(self.file(Slot::T)?, path),
            Step::Link { from, to } => volume.hard_link(from, to),
            Step::Unlink(path) => volume.remove_file(path),
            Step::Rename { from, to } => volume.rename(from, to),
            Step::Exchange { from, to } => volume.rename_with(from, to, RenameFlags::Exchange),
            Step::Symlink { path, len } => volume.symlink(target(i, *len), path),
            Step::Mkdir(path) => volume.create_dir_with(path, ATTR),
            Step::Rmdir(path) => volume.remove_dir(path),
            Step::SetXattr { path, len } => {
                volume.set_xattr(path, XATTR, &vec![byte(i); *len], SetXattr::Any)
            }
            Step::RemoveXattr(path) => volume.remove_xattr(path, XATTR),
            Step::Chmod(path) => volume.set_attr(
                path,
                &SetAttr { permissions: Some(mode(i)), ..SetAttr::default() },
                AtSymlink::NoFollow,
            ),
            Step::Chown(path) => {
                let (uid, gid) = owner(i);
                let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
                volume.set_attr(path, &set, AtSymlink::NoFollow)
            }
            Step::Touch(path) => {
                let set = SetAttr { mtime: Some(SetTime::At(touched_at(i))), ..SetAttr::default() };
                volume.set_attr(path, &set, AtSymlink::NoFollow)
            }
            Step::Chattr { path, flag } => {
                let node = volume.node_at(volume.symlink_metadata(path)?.ino())?;
                node.set_flags(node.flags() ^ bit(*flag))
            }
            Step::FsyncDir(path) => {
                let found = volume.metadata(path)?;
                if !found.is_dir() {
                    return Err(Error::NotDir);
                }
                volume.node_at(found.ino())?.sync_all()
            }
            Step::Sync => volume.sync(),
            Step::Trim => volume.trim(0..u64::MAX, 1).map(drop),
            Step::Commit => volume.upkeep(Upkeep::Commit),
            Step::WriteBack => volume.upkeep(Upkeep::WriteBack),
            Step::Checkpoint => volume.upkeep(Upkeep::Checkpoint),
            Step::Sweep => volume.upkeep(Upkeep::Sweep),
            _ => carry_out_on_files(self.files, i, step),
        }
    }
}

/// Does step number `i`, which has to do with open files alone.
pub(super) fn carry_out_on_files(files: &Files, i: usize, step: &Step) -> lanefs::Result<()> {
    let file = |slot: Slot| files.get(&slot).ok_or(Error::NotFound);
    match *step {
        Step::Write { way, file: slot, at, len } => {
            // Aligned, so that what a device asks for depends on the step alone.
            let mut bytes = AlignedBuf::zeroed(len);
            bytes.fill(byte(i));
            write(file(slot)?, way, &bytes, at as u64)
        }
        Step::Append { file: slot, len } => {
            let file = file(slot)?;
            file.write_at(&vec![byte(i); len], file.metadata().len())
        }
        Step::Falloc { mode, file: slot, at, len } => {
            match file(slot)?.fallocate(mode, at as u64, len as u64) {
                // The model knows which ranges these are.
                Err(Error::Invalid(_)) => Err(Error::NotFound),
                done => done,
            }
        }
        Step::Truncate { file: slot, len } => file(slot)?.set_len(len as u64),
        Step::Copy { from, at, to, to_at, len } => {
            copy_all(file(from)?, at as u64, file(to)?, to_at as u64, len as u64)
        }
        Step::Fsync(slot) => file(slot)?.sync_all(),
        Step::Fdatasync(slot) => file(slot)?.sync_data(),
        _ => Err(Error::NotFound),
    }
}

/// Copies as a caller does: a copy may end early, as where a read fails behind its first block.
fn copy_all(from: &File, at: u64, to: &File, to_at: u64, len: u64) -> lanefs::Result<()> {
    let mut done = 0;
    while done < len {
        match from.copy_range(at + done, to, to_at + done, len - done)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(())
}

fn write(file: &File, way: Way, bytes: &[u8], at: u64) -> lanefs::Result<()> {
    match way {
        Way::Write => file.write_at(bytes, at),
        Way::Direct => file.with_direct(true).write_at(bytes, at),
        Way::Late => file.write_late(bytes, at),
        Way::Dsync => {
            file.write_at(bytes, at)?;
            file.sync_data()
        }
        Way::Batch => {
            let file = file.with_direct(true);
            let (front, back) = bytes.split_at(bytes.len() / 2);
            let behind = at + front.len() as u64;
            let done = File::run_batch(&mut [Io::write(&file, front, at), Io::write(&file, back, behind)]);
            done.into_iter().try_for_each(|done| done.map(drop))
        }
        Way::NoWait => write_without_waiting(file, bytes, at),
        Way::NoWaitDirect => write_without_waiting(&file.with_direct(true), bytes, at),
        Way::Lent => write_beside_slice(&file.with_direct(true), bytes, at),
    }
}

/// Writes the back half while the front half is lent, and then the front half. Writes all at once
/// where the front half cannot be lent.
///
/// # Panics
/// If lent bytes change, or if a slice does not show what was written.
fn write_beside_slice(file: &File, bytes: &[u8], at: u64) -> lanefs::Result<()> {
    let (front, back) = bytes.split_at(bytes.len() / 2);
    let behind = at + front.len() as u64;
    let Some(slice) = file.map(at, front.len())? else { return file.write_at(bytes, at) };
    let before = slice.to_vec();
    let over = file.try_write_at(front, at);
    assert!(matches!(over, Err(Error::WouldBlock)), "a write over a lent slice: {over:?}");
    let done = match file.try_write_at(back, behind) {
        Err(Error::WouldBlock) => 0,
        done => done?,
    };
    assert!(*slice == *before, "bytes of a lent slice have changed");
    drop(slice);
    file.write_at(&back[done..], behind + done as u64)?;
    file.write_at(front, at)?;
    let slice = file.map(at, bytes.len())?;
    assert!(slice.is_none_or(|slice| *slice == *bytes), "a slice does not show what was written");
    Ok(())
}

/// Holds the slices that a file lends (`File::map`) against its content: block by block, and behind
/// the end.
///
/// # Errors
/// The first slice that shows other bytes.
pub(super) fn check_slices(file: &File, content: &[u8], block: usize) -> Result<(), String> {
    let end = (content.len(), &[0][..]);
    for (at, bytes) in (0..).step_by(block).zip(content.chunks(block)).chain([end]) {
        let slice = file.map(at as u64, bytes.len()).map_err(|e| e.to_string())?;
        if slice.is_some_and(|slice| at == content.len() || *slice != *bytes) {
            return Err(format!("the slice at {at} shows other bytes"));
        }
    }
    Ok(())
}

/// Writes what can be written at once, and then waits for the rest.
fn write_without_waiting(file: &File, bytes: &[u8], at: u64) -> lanefs::Result<()> {
    let done = match file.try_write_at(bytes, at) {
        Err(Error::WouldBlock) => 0,
        done => done?,
    };
    if done < bytes.len() { file.write_at(&bytes[done..], at + done as u64) } else { Ok(()) }
}
