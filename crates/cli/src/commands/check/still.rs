//! Keeps a volume still while it is checked, even if it is in use.
//!
//! - A volume that no process has open is locked against writers.
//! - A mount of lanefs is asked at its socket ([`crate::watch`]) to hold its device in one
//!   committed state. The check then reads the volume without the lock.
//! - A volume that the kernel has mounted must be frozen (`fsfreeze`) or mounted read-only. The
//!   lock of a reader does not detect such a mount; the superblock tells (`is_quiet`).
//!
//! After the check, [`Still::end`] says whether the volume held still until the end. If it did not,
//! a finding may be an artefact of a change, and is not reported.

use crate::failure::{Cause, Failure, Res};
use crate::location::VolumeName;
use crate::volumes::{self, file_of, names_file, names_part};
use crate::watch::{HeldMount, LIMIT, Refusal, place};
use lanefs_device::{BlockDevice, FileOptions, claimed_device, lock_holders, open_url};
use lanefs_format::{Compat, Incompat, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State, Superblock};
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::Arc;

/// The reason why nothing changes the volume.
pub(super) enum Still {
    /// A mount of lanefs waits.
    Held(HeldMount),
    /// It is locked, and if it is mounted then nothing is written: its superblock, which the first
    /// change would change.
    Quiet { superblock: Box<[u8; SUPERBLOCK_SIZE]>, mounted: bool },
}

impl Still {
    /// Opens the volume for a check.
    ///
    /// # Errors
    /// Why that cannot be; with what to do where the volume is in use.
    pub(super) fn open(name: &VolumeName) -> Res<(Arc<dyn BlockDevice>, Self)> {
        let busy = match volumes::device(name) {
            Ok(device) => return Self::quiet(name, device),
            Err(busy) => busy,
        };
        let mut servers = opened(name).map(|file| lock_holders(&file)).unwrap_or_default();
        servers.dedup();
        // Of several processes that use a disk it is not known which has this partition.
        servers.truncate(if names_part(name) && servers.len() > 1 { 0 } else { servers.len() });
        let Some(socket) = place::socket_of(&servers) else { return Err(busy) };
        match HeldMount::new(&socket) {
            Ok(held) => Ok((beside_the_mount(name)?, Self::Held(held))),
            // It has been unmounted since.
            Err(Refusal::Gone) => Self::quiet(name, volumes::device(name)?),
            Err(why) => Err(in_use(name, &why.to_string())),
        }
    }

    fn quiet(name: &VolumeName, device: Arc<dyn BlockDevice>) -> Res<(Arc<dyn BlockDevice>, Self)> {
        let superblock = superblock(name, &*device)?;
        let user = claimed(name);
        if let Some(user) = user.as_ref().filter(|_| !is_quiet(&superblock)) {
            let way = match Superblock::parse(&superblock[..]).is_ok_and(|sb| sb.has(Compat::HAS_JOURNAL)) {
                true => "freeze it for the time of the check: fsfreeze --freeze DIRECTORY",
                false => "mount it read-only: it has no journal, and is not whole when it is frozen",
            };
            let why = format!("/dev/{user} is mounted. Unmount it, or {way}");
            return Err(in_use(name, &why));
        }
        Ok((device, Self::Quiet { superblock, mounted: user.is_some() }))
    }

    /// Returns whether the volume is in use.
    pub(super) fn is_live(&self) -> bool {
        match self {
            Self::Held(_) => true,
            Self::Quiet { mounted, .. } => *mounted,
        }
    }

    /// Returns whether a mount of lanefs holds the volume.
    pub(super) fn is_held(&self) -> bool {
        matches!(self, Self::Held(_))
    }

    /// Lets the volume go.
    ///
    /// # Errors
    /// That it did not hold still until now.
    pub(super) fn end(self, name: &VolumeName, device: &dyn BlockDevice) -> Res {
        match self {
            Self::Held(held) => {
                if held.end() {
                    return Ok(());
                }
                let why = format!(
                    "its mount did not wait for the end of the check, which has {} seconds. Unmount it, or \
                     check a snapshot of its device",
                    LIMIT.as_secs()
                );
                Err(in_use(name, &why))
            }
            Self::Quiet { superblock: before, .. } => {
                let now = superblock(name, device)?;
                if now == before && (claimed(name).is_none() || is_quiet(&now)) {
                    return Ok(());
                }
                Err(in_use(name, "it was changed while it was checked"))
            }
        }
    }
}

fn in_use(name: &VolumeName, why: &str) -> Failure {
    Failure::cannot("check", name.as_bytes(), Cause::text(format!("is in use: {why}")))
}

/// Returns the file that the volume is in.
fn opened(name: &VolumeName) -> Option<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    names_file(name)
        .then(|| File::options().read(true).custom_flags(flags).open(file_of(name)).ok())
        .flatten()
}

/// Returns the device by which the kernel, or a program other than lanefs, uses the volume.
fn claimed(name: &VolumeName) -> Option<String> {
    opened(name).and_then(|file| claimed_device(&file))
}

/// Opens a volume without the lock, which its mount has.
fn beside_the_mount(name: &VolumeName) -> Res<Arc<dyn BlockDevice>> {
    let path = file_of(name);
    // Of a block special file that is written past the page cache, that may hold old bytes.
    let direct = std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device());
    let options = FileOptions::new().read_only(true).unlocked(true).direct(direct);
    // Not as memory: only a part is read.
    let name_of_file = name.as_bytes().strip_prefix(b"pmem:").unwrap_or(name.as_bytes());
    match open_url(OsStr::from_bytes(name_of_file), &options) {
        Ok(device) => Ok(device),
        Err(e) => Err(Failure::cannot("open", name.as_bytes(), Cause::text(e.to_string()))),
    }
}

fn superblock(name: &VolumeName, device: &dyn BlockDevice) -> Res<Box<[u8; SUPERBLOCK_SIZE]>> {
    let mut bytes = Box::new([0; SUPERBLOCK_SIZE]);
    let end = SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64;
    if device.size() >= end {
        let read = device.read_at(&mut bytes[..], SUPERBLOCK_OFFSET);
        read.map_err(|e| Failure::cannot("read", name.as_bytes(), Cause::text(e.to_string())))?;
    }
    Ok(bytes)
}

/// Returns whether a mounted volume is not written: it is frozen, or mounted read-only. The kernel
/// marks a volume that it writes: with a journal as needing recovery, without one as not clean.
fn is_quiet(superblock: &[u8; SUPERBLOCK_SIZE]) -> bool {
    Superblock::parse(superblock).is_ok_and(|sb| match sb.has(Compat::HAS_JOURNAL) {
        true => !sb.has_in(Incompat::RECOVER),
        false => sb.state().contains(State::VALID_FS),
    })
}
