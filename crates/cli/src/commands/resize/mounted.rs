//! Growth of a volume that is mounted: its server grows it, asked as resize2fs(8) asks the kernel.
//!
//! The server may not make files longer, so the command does that first, with its own rights.
//! Before it changes the file it asks for the size of now: that is no change, and is refused where
//! another size would be.

use super::{Args, NewSize, is_whole_file};
use crate::failure::{Cause, Failure, OrCannot, Res};
use crate::location::{VolumeName, whole_volume};
use crate::output::Out;
use crate::quote::quoted;
use crate::size;
use crate::volumes::{file_of, names_file, read_superblock, source, unlocked_device};
use crate::watch::place;
use lanefs::Resize;
use lanefs_device::{FileOptions, lengthen, resize_mounted};
use lanefs_format::Superblock;
use lanefs_fuse::MountPoint;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the mount of lanefs that an argument names by its directory or its volume, and the name
/// of the volume; `None` for a volume that is not mounted by lanefs here.
pub(super) fn find(arg: &OsStr) -> Res<Option<(MountPoint, VolumeName)>> {
    let dir = Path::new(arg);
    if !dir.is_dir() {
        let source = source(&whole_volume(arg));
        let mount = MountPoint::of_volume(&source).filter(|_| is_in_use(&source));
        return Ok(mount.map(|mount| (mount, source)));
    }
    let cannot = |why: String| Failure::cannot("resize", arg.as_bytes(), Cause::text(why));
    let mount = MountPoint::find(dir, |device| place::server_of(device).is_some());
    let mount = mount.map_err(|e| {
        cannot(format!("{e}; name a volume, or the directory that one is mounted at by lanefs"))
    })?;
    let name: VolumeName = mount.source().into();
    let why = match names_file(&name) && !file_of(&name).exists() {
        true => Some("the table of mounts does not say which file it is (fsname=): name the volume"),
        false if is_in_use(&name) => None,
        false => Some("no file of that name is in use: that of the volume was renamed"),
    };
    if let Some(why) = why {
        return Err(cannot(format!("the mount has the source {}, and {why}", quoted(name.as_bytes()))));
    }
    Ok(Some((mount, name)))
}

/// Returns whether a server may have the volume of that name. The table of mounts has names alone,
/// and another file may have taken the name since; but a server keeps its file locked.
fn is_in_use(name: &VolumeName) -> bool {
    !names_file(name) || FileOptions::new().open(file_of(name)).is_err()
}

impl Args {
    pub(super) fn grow_mounted(&self, mount: &MountPoint, name: &VolumeName, out: &mut Out) -> Res {
        let cannot = |why: String| Failure::cannot("resize", name.as_bytes(), Cause::text(why));
        let dir = quoted(mount.dir().as_os_str().as_bytes());
        let closed = format!("it is mounted at {dir}, and shrinks only while it is closed: unmount it first");
        if matches!(self.size, Some(NewSize::Fit(_))) {
            return Err(cannot(closed));
        }
        let root = mount.open_root().map_err(|e| cannot(e.to_string()))?;
        let ask = |blocks| resize_mounted(&root, blocks).map_err(|e| refused(&e, mount));
        let before = superblock(name)?;
        ask(before.blocks_count()).map_err(cannot)?;
        let bytes = |sb: &Superblock| sb.blocks_count().saturating_mul(sb.block_size().into());
        let wanted = match self.size {
            Some(NewSize::Bytes(size)) => size,
            Some(NewSize::More(more)) => {
                bytes(&before).checked_add(more).ok_or_else(|| cannot("larger than 2^64 bytes".into()))?
            }
            _ => unlocked_device(name)?.size(),
        };
        if wanted < bytes(&before) {
            return Err(cannot(closed));
        }
        let size = Resize::fit_of(&before, wanted).or_cannot("resize", name.as_bytes())?;
        let device = unlocked_device(name)?.size();
        if is_whole_file(name).or_cannot("resize", name.as_bytes())? {
            let file = File::options().write(true).open(file_of(name));
            file.and_then(|file| lengthen(&file, size)).or_cannot("make longer", name.as_bytes())?;
        } else if size > device {
            return Err(cannot(format!(
                "{} are wanted, and the device has {}: make it larger first",
                size::human(size),
                size::human(device)
            )));
        }
        ask(size / u64::from(before.block_size())).map_err(cannot)?;
        self.say(name, before.blocks_count(), &superblock(name)?, out)
    }
}

/// Reads the superblock of a volume that its server may be writing.
fn superblock(name: &VolumeName) -> Res<Superblock> {
    let read = || read_superblock(&*unlocked_device(name)?, name);
    (0..5).find_map(|_| read().ok()).map_or_else(read, Ok)
}

/// Says why the server does not change the size, and what to do.
fn refused(e: &std::io::Error, mount: &MountPoint) -> String {
    let dir = quoted(mount.dir().as_os_str().as_bytes());
    let why = match Errno::from_io_error(e) {
        Some(Errno::PERM) => "permission denied; root may, or the user who has mounted it",
        Some(Errno::ROFS) => "it is mounted read-only; unmount it first, or mount it again without ro",
        Some(Errno::OPNOTSUPP) => "an overlay drops what is written, the size too; unmount it first",
        Some(Errno::NOTTY) => "its server is of an older lanefs; unmount it first",
        Some(Errno::NOSPC) => "its server finds no room there; a mapped volume (pmem:) grows while closed",
        Some(Errno::UCLEAN) => "the volume has errors; unmount it, and check it (lanefs check)",
        errno => return format!("mounted at {dir}: {}", Cause::from(errno.unwrap_or(Errno::IO))),
    };
    format!("mounted at {dir}: {why}")
}
