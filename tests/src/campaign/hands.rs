//! Steps as calls of a volume.

use super::model::{MADE, NAMELESS_IN, XATTR, byte, mode, target};
use super::observed::bit;
use super::step::{Slot, Step, Way};
use lanefs::{AtSymlink, Error, File, Io, NewAttr, RenameFlags, SetAttr, SetXattr, Upkeep, Volume};
use lanefs_device::AlignedBuf;
use std::collections::BTreeMap;

/// The files that a workload has open.
pub(super) type Files = BTreeMap<Slot, File>;

const ATTR: NewAttr = NewAttr { permissions: MADE.0, uid: MADE.1, gid: 8 };

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
            Step::Chown(path) => volume.set_attr(
                path,
                &SetAttr { uid: Some(1000 + i as u32), ..SetAttr::default() },
                AtSymlink::NoFollow,
            ),
            Step::Chattr { path, flag } => {
                let node = volume.node_at(volume.symlink_metadata(path)?.ino())?;
                node.set_flags(node.flags() ^ bit(*flag))
            }
            Step::Fsync(file) => self.file(*file)?.sync_all(),
            Step::Fdatasync(file) => self.file(*file)?.sync_data(),
            Step::FsyncDir(path) => {
                let found = volume.metadata(path)?;
                if !found.is_dir() {
                    return Err(Error::NotDir);
                }
                volume.node_at(found.ino())?.sync()
            }
            Step::Sync => volume.sync(),
            Step::Commit => volume.upkeep(Upkeep::Commit),
            Step::WriteBack => volume.upkeep(Upkeep::WriteBack),
            Step::Checkpoint => volume.upkeep(Upkeep::Checkpoint),
            Step::Sweep => volume.upkeep(Upkeep::Sweep),
            _ => self.change_content(i, step),
        }
    }

    fn change_content(&self, i: usize, step: &Step) -> lanefs::Result<()> {
        match *step {
            Step::Write { way, file, at, len } => {
                // Aligned, so that what a device asks for depends on the step alone.
                let mut bytes = AlignedBuf::zeroed(len);
                bytes.fill(byte(i));
                write(self.file(file)?, way, &bytes, at as u64)
            }
            Step::Append { file, len } => {
                let file = self.file(file)?;
                file.write_at(&vec![byte(i); len], file.metadata().len())
            }
            Step::Falloc { mode, file, at, len } => {
                match self.file(file)?.fallocate(mode, at as u64, len as u64) {
                    // The model knows which ranges these are.
                    Err(Error::Invalid(_)) => Err(Error::NotFound),
                    done => done,
                }
            }
            Step::Truncate { file, len } => self.file(file)?.set_len(len as u64),
            Step::Copy { from, at, to, to_at, len } => {
                copy_all(self.file(from)?, at as u64, self.file(to)?, to_at as u64, len as u64)
            }
            _ => Err(Error::NotFound),
        }
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
    }
}

/// Writes what can be written at once, and then waits for the rest.
fn write_without_waiting(file: &File, bytes: &[u8], at: u64) -> lanefs::Result<()> {
    let done = match file.try_write_at(bytes, at) {
        Err(Error::WouldBlock) => 0,
        done => done?,
    };
    if done < bytes.len() { file.write_at(&bytes[done..], at + done as u64) } else { Ok(()) }
}
