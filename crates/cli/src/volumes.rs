//! The volumes that a command has open, each once, and the host beside them.
//!
//! A volume is locked against other openers, so a command that names it twice must share it. A
//! command that writes to a volume anywhere opens it for writing from the start.

use crate::failure::{Cause, Failure, Noted, Res};
use crate::location::{self, Location, VolumeName, not_inside};
use crate::quote::{escaped, quoted};
use crate::side::{HostSide, Side, VolumeSide, shown};
use crate::stats::StatsArg;
use crate::streams::tell;
use lanefs::{AtSymlink, MmpWait, OpenOptions, Resize, Volume};
use lanefs_archive::Overwrite;
use lanefs_archive::content::{self, Content};
use lanefs_device::{
    BlockDevice, Cached, FileOptions, Medium, PartitionTable, VolumeUrl, absolute_name, open_url,
    without_password,
};
use lanefs_format::{FormatError, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// A path and the side that it is on.
#[derive(Clone)]
pub(crate) struct Spot {
    pub(crate) side: Rc<dyn Side>,
    pub(crate) path: PathBuf,
    /// The user named this very path; false below it.
    pub(crate) named: bool,
}

impl Spot {
    /// Returns the path as messages name it.
    pub(crate) fn shown(&self) -> Vec<u8> {
        shown(&*self.side, &self.path)
    }

    /// Returns whether both are one name in one directory, however they are written.
    pub(crate) fn is_same_name(&self, other: &Self) -> bool {
        let dir = |spot: &Self| {
            let meta = spot.side.metadata(spot.path.parent()?, AtSymlink::Follow).ok()?;
            Some((spot.side.place(), meta.id(), spot.path.file_name()?.to_owned()))
        };
        self.path == other.path || dir(self).is_some_and(|name| Some(name) == dir(other))
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> Self {
        Self { side: self.side.clone(), path: self.path.join(name), named: false }
    }
}

/// What tells a volume from all others: its file, and the part of it, from its first byte to its
/// end; `None` for all of it.
type VolumeKey = (PathBuf, Option<(u64, u64)>);

/// The volumes that a command has open.
#[derive(Default)]
pub(crate) struct Volumes {
    open: BTreeMap<VolumeKey, Rc<VolumeSide>>,
    overwrite: Overwrite,
}

impl Volumes {
    /// Lets paths of the host that are named from now on be overwritten whatever they hold.
    pub(crate) fn overwrite(mut self, overwrite: Overwrite) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Opens for writing what any of `locations` names: call it before anything else opens the same
    /// volumes for reading.
    pub(crate) fn open_for_writing(&mut self, location: &Location) -> Res {
        match location {
            Location::Volume { volume, .. } => self.volume(volume, true).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Returns the spot that a location names. `write`: it will be changed.
    pub(crate) fn spot(&mut self, location: Location, write: bool) -> Res<Spot> {
        match location {
            Location::Stdio => Err(Failure::new(
                "'-' (standard input or output) cannot be used here: name a file as VOLUME:/path",
            )),
            Location::Host(path) => {
                refuse_forgotten_slash(path.as_os_str())?;
                let side = Rc::new(HostSide::new(&path, self.overwrite));
                Ok(Spot { side, path, named: true })
            }
            Location::Volume { volume, path } => {
                Ok(Spot { side: self.volume(&volume, write)?, path, named: true })
            }
        }
    }

    /// Returns the spot of an argument that must name a path inside a volume.
    pub(crate) fn inside(&mut self, arg: &OsStr, write: bool) -> Res<Spot> {
        match Location::parse(arg) {
            Location::Host(path) => {
                refuse_forgotten_slash(path.as_os_str())?;
                Err(not_inside(arg, "/path"))
            }
            location => self.spot(location, write),
        }
    }

    /// Returns the volume of that name, opened if it is not yet.
    pub(crate) fn volume(&mut self, name: &VolumeName, write: bool) -> Res<Rc<VolumeSide>> {
        let path = file_of(name);
        let window = window_of(name).map_err(|e| cannot_open(open_verb(write), name, e.into(), None))?;
        let window = window.map(|bytes| (bytes.start, bytes.end));
        let key = (path.canonicalize().unwrap_or_else(|_| path.into()), window);
        if let Some(side) = self.open.get(&key) {
            return Ok(side.clone());
        }
        let side = Rc::new(VolumeSide::new(open(name, write)?, name, self.open.len() as u64));
        self.open.insert(key, side.clone());
        Ok(side)
    }

    /// Prints what each volume counted and timed, if that is wanted.
    pub(crate) fn print(&self, stats: &StatsArg) -> Res {
        self.open.values().try_for_each(|side| side.print(stats))
    }

    /// Runs `one` for each argument. Notes the failure of an argument, and goes on with the next.
    pub(crate) fn visit<'a>(
        &mut self,
        args: &'a [OsString],
        noted: &mut Noted,
        mut one: impl FnMut(&mut Self, &'a OsString) -> Res,
    ) -> Res {
        args.iter().try_for_each(|arg| noted.note(one(self, arg)))
    }

    /// Runs `one` for each argument as [`visit`](Self::visit) does, then closes every volume.
    pub(crate) fn for_each<'a>(
        mut self,
        args: &'a [OsString],
        one: impl FnMut(&mut Self, &'a OsString) -> Res,
    ) -> Res {
        let mut noted = Noted::default();
        self.visit(args, &mut noted, one)?;
        self.close()?;
        noted.finish()
    }

    /// Closes every volume. All changes are durable after that.
    pub(crate) fn close(self) -> Res {
        for side in self.open.into_values() {
            side.close()?;
        }
        Ok(())
    }
}

/// Opens a volume, and says what to do where it cannot.
pub(crate) fn open(name: &VolumeName, write: bool) -> Res<Volume> {
    open_with(name, write, |options| options)
}

/// Opens as [`open`] does, with the options that `change` adds.
pub(crate) fn open_with(
    name: &VolumeName,
    write: bool,
    change: impl FnOnce(OpenOptions) -> OpenOptions,
) -> Res<Volume> {
    // A command reads and writes once: a small cache does, and leaves the machine its memory. One
    // thread writes, so direct I/O would wait for the device once for each small file. The system
    // writes back beside it, and keeps what the next command reads.
    let cached = OpenOptions::new().cache_bytes(64 << 20).cached(Cached::All);
    open_by(name, write, change(cached.write(write)))
}

/// Opens as [`open`] does, with these options, which must agree with `write`.
pub(crate) fn open_by(name: &VolumeName, write: bool, options: OpenOptions) -> Res<Volume> {
    open_device(name, write, options.write(write), Ok)
}

/// Opens as [`open_by`] does, but calls `look` with the device, opened and locked, before anything
/// of the file system is read. A partition table is read before, because the lock needs it. `look`
/// returns the device to read. `write` is for the first, `options` for the second.
pub(crate) fn open_device(
    name: &VolumeName,
    write: bool,
    options: OpenOptions,
    look: impl FnOnce(Arc<dyn BlockDevice>) -> Res<Arc<dyn BlockDevice>>,
) -> Res<Volume> {
    let options = options.clock(source_date_epoch()?).on_mmp_wait(tell_wait(name));
    let verb = open_verb(write);
    let device = options.clone().write(write).device(name).map_err(|e| cannot_open(verb, name, e, None))?;
    // For a message that says what it holds: after `look`, this process may open nothing any more.
    let file = names_file(name).then(|| File::open(file_of(name)).ok()).flatten();
    let device = look(device)?;
    options.open_device(device).map_err(|e| cannot_open(verb, name, e, file.as_ref()))
}

/// Opens a volume to give it another size.
pub(crate) fn open_resize(name: &VolumeName) -> Res<Resize> {
    let options = mmp_options(name)?.cache_bytes(64 << 20).write(true);
    let failed = |e| cannot_open("resize", name, e, None);
    let device = options.device(name).map_err(failed)?;
    Resize::open(device, options).map_err(failed)
}

/// Returns options with what every open of a command has: the clock, and a line on standard error
/// where it waits for another host.
pub(crate) fn mmp_options(name: &VolumeName) -> Res<OpenOptions> {
    Ok(OpenOptions::new().clock(source_date_epoch()?).on_mmp_wait(tell_wait(name)))
}

/// Returns the function that says for what an open waits, and for how long.
fn tell_wait(name: &VolumeName) -> impl Fn(&MmpWait) + Send + Sync + use<> {
    let name = quoted(without_password(name).as_encoded_bytes());
    move |wait| {
        let seconds = wait.longest.as_secs();
        let by = match &wait.holder {
            Some(holder) => format!("was not closed by its last user: {holder}"),
            None => "may be in use by another host".into(),
        };
        let text = format!("{name} {by}; waiting for up to {seconds} s to see whether it is in use");
        tell(escaped(text.as_bytes()));
    }
}

/// Opens and locks a volume's device to write to it past its file system.
pub(crate) fn writable_device(name: &VolumeName) -> Res<Arc<dyn BlockDevice>> {
    open_url(name, &FileOptions::new()).map_err(|e| cannot_open("open for writing", name, e.into(), None))
}

/// Refuses `VOLUME:name`, which would be a file of the host.
pub(crate) fn refuse_forgotten_slash(arg: &OsStr) -> Res {
    match location::forgotten_slash(arg) {
        Some(meant) => Err(Failure::new(format!(
            "{} lacks a slash: a path inside of a volume is written {}",
            quoted(arg.as_encoded_bytes()),
            quoted(meant.as_encoded_bytes())
        ))),
        None => Ok(()),
    }
}

/// Returns the file that a volume is in, by the volume's name.
pub(crate) fn file_of(name: &VolumeName) -> &Path {
    VolumeUrl::parse(name).ok().and_then(|url| url.path()).unwrap_or(Path::new(name))
}

/// Returns the bytes of its file that a volume is, `None` for all of them.
fn window_of(name: &VolumeName) -> lanefs_device::Result<Option<Range<u64>>> {
    VolumeUrl::parse(name).and_then(|url| url.window())
}

/// Returns the name by which a process in any directory finds the volume again.
pub(crate) fn source(name: &VolumeName) -> OsString {
    absolute_name(name).unwrap_or_else(|_| name.into())
}

/// Returns whether a volume of that name is in a file at all.
pub(crate) fn names_file(name: &VolumeName) -> bool {
    VolumeUrl::parse(name).is_ok_and(|url| url.path().is_some())
}

/// Returns whether what is in a volume of that name can be read through its device alone.
fn is_remote_or_stacked(name: &VolumeName) -> bool {
    VolumeUrl::names_server(name) || VolumeUrl::is_stacked(name)
}

/// Returns whether a volume of that name is a part of a file or device.
pub(crate) fn names_part(name: &VolumeName) -> bool {
    VolumeUrl::parse(name).is_ok_and(|url| url.part.is_some())
}

/// Returns what an open does, for messages.
fn open_verb(write: bool) -> &'static str {
    if write { "open for writing" } else { "open" }
}

/// Returns why a volume cannot be opened, and what to do about it. `content` is its file, if that
/// is open.
fn cannot_open(verb: &str, name: &VolumeName, error: lanefs::Error, content: Option<&File>) -> Failure {
    if let Err(slip) = refuse_forgotten_slash(name) {
        return slip;
    }
    let file = file_of(name);
    let foreign = matches!(error.kind(), lanefs::Error::Format(FormatError::BadMagic { .. }));
    let shown = match VolumeUrl::parse(name).map(|url| url.medium) {
        // A part is not in the name that the device has.
        Ok(Medium::Nbd(url) | Medium::Rbd(url)) => url.to_owned(),
        _ => without_password(file.as_os_str()).to_string_lossy().into_owned(),
    };
    let cause = Cause::from(error).without(&format!("{shown}: "));
    let cause = match std::fs::metadata(file).map_err(Cause::from) {
        Err(_) if foreign && is_remote_or_stacked(name) => not_a_volume(name, None).unwrap_or(cause),
        Err(_) if !names_file(name) => cause,
        Err(missing) if missing.is(Errno::NOENT) => {
            Cause::text(format!("{missing}; lanefs mkfs --size 1G VOLUME makes a volume"))
        }
        Err(other) => other,
        Ok(meta) if meta.is_dir() => Cause::text("Is a directory; a volume is a file or a block device"),
        Ok(meta) if meta.len() == 0 && meta.is_file() => {
            Cause::text("the file is empty; lanefs mkfs --size 1G VOLUME makes a volume")
        }
        Ok(_) if foreign => not_a_volume(name, content).unwrap_or(cause),
        Ok(_) => cause,
    };
    Failure::cannot(verb, name.as_encoded_bytes(), cause)
}

/// Returns what the volume's file, or its part of it, holds; `None` for zeros, or if it cannot be
/// read.
pub(crate) fn content_of(name: &VolumeName) -> Option<Content> {
    if is_remote_or_stacked(name) {
        let device = open_url(name, &FileOptions::new().read_only(true).unlocked(true)).ok()?;
        let mut head = vec![0; device.size().min(content::HEAD as u64) as usize];
        device.read_at(&mut head, 0).ok()?;
        return content::of_head(&head);
    }
    match window_of(name).ok()? {
        None => content::of_path(file_of(name)),
        Some(window) => content::of_range(&File::open(file_of(name)).ok()?, window).ok()?,
    }
}

/// Says what a volume's name leads to that holds no ext4 volume, and how to get at one in it.
fn not_a_volume(name: &VolumeName, open: Option<&File>) -> Option<Cause> {
    let found = match (open, window_of(name).ok()?) {
        (Some(file), None) => content::of(file).ok().flatten(),
        (Some(file), Some(window)) => content::of_range(file, window).ok().flatten(),
        (None, _) => content_of(name),
    };
    let found = found.filter(|found| !matches!(found, Content::Ext));
    let text = match found {
        Some(found) => match advice(found, name) {
            Some(advice) => format!("it holds no ext4 volume but {}; {advice}", found.name()),
            None => format!("it holds no ext4 volume but {}", found.name()),
        },
        None => "it holds no ext4 volume but zeros; lanefs mkfs makes a volume".into(),
    };
    Some(Cause::text(text))
}

/// Returns what to do to get at an ext4 volume in it, if there is a way.
fn advice(found: Content, name: &VolumeName) -> Option<String> {
    Some(match found {
        Content::Gpt | Content::Mbr => {
            let options = FileOptions::new().read_only(true).unlocked(true);
            let table = open_url(name, &options).and_then(|disk| PartitionTable::read(&*disk));
            match table {
                Ok(Some(table)) => format!("name a partition, as in FILE@1: there are {table}"),
                Ok(None) => "it has no partitions".into(),
                Err(e) => e.to_string().trim_start_matches("has a GPT partition table; ").to_owned(),
            }
        }
        Content::Luks => "cryptsetup open makes it a device, /dev/mapper/NAME".into(),
        Content::LvmMember => "a volume in it is a device, /dev/VG/LV, after vgchange -ay".into(),
        Content::RaidMember => "mdadm --assemble makes it a device, /dev/mdN".into(),
        Content::DiskImage(format) => format!(
            "qemu-nbd -f {format} -c /dev/nbd0 FILE makes it a device, qemu-img convert -f {format} -O raw a \
             plain image"
        ),
        Content::Compressed(by) => format!("unpack it first: {by} -dc"),
        Content::Archive("tar") => "lanefs import puts it into a volume".into(),
        _ => return None,
    })
}

/// Returns the volume's device, for commands that read a volume without opening it.
pub(crate) fn device(name: &VolumeName) -> Res<Arc<dyn BlockDevice>> {
    device_cached(name, Cached::All)
}

/// Returns the same with another use of the page cache, where what the volume lies on allows it.
pub(crate) fn device_cached(name: &VolumeName, cached: Cached) -> Res<Arc<dyn BlockDevice>> {
    let options = FileOptions::new().read_only(true).cached(cached);
    open_url(name, &options).map_err(|e| cannot_open("open", name, e.into(), None))
}

/// Opens as [`device`] does, without a lock: another process may write to it meanwhile.
pub(crate) fn unlocked_device(name: &VolumeName) -> Res<Arc<dyn BlockDevice>> {
    let options = FileOptions::new().read_only(true).unlocked(true);
    open_url(name, &options).map_err(|e| cannot_open("open", name, e.into(), None))
}

/// Returns the superblock as it is on the medium.
pub(crate) fn read_superblock(device: &dyn BlockDevice, name: &VolumeName) -> Res<Superblock> {
    let read = || -> lanefs::Result<Superblock> {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(&mut bytes, SUPERBLOCK_OFFSET)?;
        Ok(Superblock::parse(&bytes)?)
    };
    read().map_err(|e| {
        let may_be_torn = matches!(e.kind(), lanefs::Error::Format(FormatError::SuperblockChecksum { .. }));
        match cannot_open("open", name, e, None) {
            Failure::Message { text, code } if may_be_torn => {
                let text = format!("{text}; lanefs recover mends one that a power cut has torn");
                Failure::Message { text, code }
            }
            failure => failure,
        }
    })
}

/// Returns the time that `SOURCE_DATE_EPOCH` sets for reproducible volumes.
pub(crate) fn source_date_epoch() -> Res<Option<lanefs_format::Timestamp>> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else { return Ok(None) };
    let sec = text.to_str().and_then(|t| t.parse().ok()).ok_or_else(|| {
        Failure::new(format!(
            "SOURCE_DATE_EPOCH is not a number of seconds: {}",
            quoted(text.as_encoded_bytes())
        ))
    })?;
    Ok(Some(lanefs_format::Timestamp { sec, nsec: 0 }))
}
