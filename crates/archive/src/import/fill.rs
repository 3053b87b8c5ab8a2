//! The volume's side of an import: members and data in, files out.
//!
//! An import writes nothing through a symbolic link: every component of a path below the target
//! directory must be a directory. New entries change the times of their directory, so its times are
//! set again when it is left. New entries inherit the default ACL of their directory; the import
//! replaces an inherited ACL by the ACL of the archive.

use super::current::Current;
use super::dir_times::{DirTimes, set_again};
use super::entry::{Made, attributes, disinherit, drop_xattrs, make_new, node_of};
use super::gather::Gather;
use super::layer::{Layer, Whiteout, remove, whiteout};
use super::pass::{Pass, Survey};
use super::{FsVerity, ImportOptions};
use crate::event::{self, Tell};
use crate::excerpt::Excerpt;
use crate::member::{Kind, Member};
use crate::path::{clean, is_lost_found, shown, split};
use crate::{Action, Cause, Error, Event, Place};
use lanefs::device::os_name::OsStrExt;
use lanefs::format::{EXT4_LINK_MAX, InodeFlags};
use lanefs::{Dir, FallocMode, Metadata, NewAttr, SetXattr, Timestamp, Volume};
use std::ffi::OsStr;
use std::path::Path;

const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

pub(super) struct Fill<'a> {
    options: &'a ImportOptions,
    events: &'a mut Tell<'a>,
    /// The target directory.
    base: Vec<u8>,
    /// Owner and group of directories that a path leads through and that no member names.
    parent_owner: (u32, u32),
    /// The directories on the way to the last name, the target directory first.
    stack: Vec<Level>,
    /// The file that data is for.
    current: Option<Current>,
    /// The directories that have the times of the source.
    times: DirTimes,
    /// The layer that the members are of, if the source is made of layers.
    layer: Option<Layer>,
    pass: Pass<'a>,
}

struct Level {
    name: Vec<u8>,
    dir: Dir,
    /// It has a default ACL, which new names in it inherit.
    gives_acl: bool,
    /// The time that it must have when it is left.
    mtime: Option<Timestamp>,
}

impl Level {
    fn new(name: &[u8], dir: Dir, times: &DirTimes) -> lanefs::Result<Self> {
        let gives_acl = dir.node().xattrs()?.iter().any(|(name, _)| name.as_bytes() == DEFAULT_ACL);
        let mtime = times.of(&dir);
        Ok(Self { name: name.to_vec(), dir, gives_acl, mtime })
    }
}

/// The reason why a name was not imported.
enum Failed {
    /// This name only.
    Name(Error),
    /// The volume cannot take more, or the caller ends the import.
    All(Error),
}

impl<'a> Fill<'a> {
    pub(super) fn new(
        volume: &Volume,
        dir: &Path,
        options: &'a ImportOptions,
        events: &'a mut Tell<'a>,
        pass: Pass<'a>,
    ) -> Result<Self, Error> {
        let base = dir.as_os_str().as_encoded_bytes().to_vec();
        let failed = |cause| Error::new(Action::ImportInto, Place::Volume(base.clone()), cause);
        let root = match volume.open_dir(dir).map_err(lanefs::Error::into_kind) {
            Err(lanefs::Error::NotFound) => volume.create_dir_all(dir).and_then(|()| volume.open_dir(dir)),
            opened => opened,
        };
        let times = DirTimes::default();
        let root = root.and_then(|root| Level::new(b"", root, &times));
        let stack = vec![root.map_err(|e| failed(Cause::from(e)))?];
        let parent_owner = options.ownership.apply(0, 0).map_err(|e| failed(e.into()))?;
        Ok(Self { options, events, base, parent_owner, stack, current: None, times, layer: None, pass })
    }

    /// Returns the target directory.
    pub(super) fn place(&self) -> Place {
        Place::Volume(self.base.clone())
    }

    /// Begins a layer, which lies on everything before it.
    pub(super) fn layer(&mut self, label: String) -> Result<(), Error> {
        self.finish_file()?;
        let Some(root) = self.stack.first() else { return Ok(()) };
        let there = || root.dir.read_dir();
        let lowest = self.layer.is_none()
            && there()
                .map_err(|e| Error::new(Action::ImportInto, Place::Volume(self.base.clone()), e))?
                .iter()
                .all(|entry| is_lost_found(&root.dir, &entry.name));
        self.layer = Some(Layer::new(label, lowest));
        Ok(())
    }

    /// Names the layer in an error.
    fn named(&self, error: Error) -> Error {
        match &self.layer {
            Some(layer) => error.in_layer(&layer.label),
            None => error,
        }
    }

    /// Tells the caller of a step.
    pub(super) fn tell(&mut self, event: Event) -> Result<(), Error> {
        let event = match event {
            Event::Skipped(error) => Event::Skipped(self.named(error)),
            event => event,
        };
        event::tell(self.events, event, Action::Import, &self.base)
    }

    /// Makes the next name.
    pub(super) fn member(&mut self, mut member: Member) -> Result<(), Error> {
        self.finish_file()?;
        let empty = matches!(member.kind, Kind::File { .. }) && self.pass.file(&member);
        if self.layer.is_some()
            && self.options.whiteouts
            && let Some(whiteout) = whiteout(&member.path)
        {
            let done = self.take_away(&member.path, whiteout);
            return self.settle(done);
        }
        match self.options.ownership.apply(member.uid, member.gid) {
            Ok(owner) => (member.uid, member.gid) = owner,
            Err(e) => {
                let place = Place::Member(shown(&member.path).to_vec());
                return self.tell(Event::Skipped(Error::new(Action::Import, place, e)));
            }
        }
        self.options.ownership.apply_to_acls(&mut member.xattrs);
        member.mtime = self.options.newest.map_or(member.mtime, |newest| newest.min(member.mtime));
        if empty {
            member.kind = Kind::File { size: 0, data: Vec::new() };
            member.xattrs.clear();
        }
        self.tell(if self.pass.is_measure() { Event::Found } else { Event::Entry })?;
        let made = self.make(member, empty);
        self.settle(made)
    }

    /// Writes data of the last file.
    pub(super) fn data(&mut self, offset: u64, content: Excerpt) -> Result<(), Error> {
        self.tell(Event::Data(content.len()))?;
        // Without a file, its making failed and has been told.
        let Some(current) = self.current.as_mut().filter(|current| !current.empty) else { return Ok(()) };
        match current.write(offset, &content, self.pass.sink()) {
            Ok(()) => {
                current.end = offset + content.len();
                Ok(())
            }
            Err(cause) => {
                let path = current.member.path.clone();
                self.current = None;
                let failed = Err(self.failed(Action::Write, &path, cause));
                self.settle(failed)
            }
        }
    }

    /// Leaves the last file out: the rest of its data cannot be read. An entry that it replaced
    /// does not come back.
    pub(super) fn incomplete(&mut self, error: Error) -> Result<(), Error> {
        self.current = None;
        self.tell(Event::Skipped(error))
    }

    /// Sets the attributes and times that must be set last.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        self.finish_file()?;
        let unchanged = self.pass.check();
        unchanged.map_err(|cause| Error::new(Action::Import, Place::Volume(self.base.clone()), cause))?;
        let left = self.leave_to(0).map_err(|e| self.failed(Action::SetAttributes, b"", e));
        self.settle(left)
    }

    /// Returns what the names take, if that was to be found out.
    pub(super) fn into_survey(mut self) -> Result<Option<Survey>, Error> {
        self.finish_file()?;
        Ok(self.pass.into_survey())
    }

    fn settle(&mut self, done: Result<(), Failed>) -> Result<(), Error> {
        match done {
            Ok(()) => Ok(()),
            Err(Failed::Name(error)) => self.tell(Event::Skipped(error)),
            Err(Failed::All(error)) => Err(self.named(error)),
        }
    }

    /// Removes what a whiteout says. `path` is that of the whiteout itself.
    fn take_away(&mut self, path: &[u8], whiteout: Whiteout<'_>) -> Result<(), Failed> {
        let (dir, name) = match whiteout {
            Whiteout::Name { dir, name } => (dir, Some(name)),
            Whiteout::Opaque { dir } => (dir, None),
            Whiteout::Ignored => return Ok(()),
            Whiteout::Malformed => {
                let place = Place::Member(path.to_vec());
                return Err(Failed::Name(Error::new(Action::Import, place, Cause::BadWhiteout)));
            }
        };
        if self.layer.as_ref().is_none_or(Layer::is_lowest) {
            return Ok(());
        }
        let dir = match self.dir(dir, false) {
            // A name that is no directory has nothing below it. umoci writes such whiteouts for
            // what was in a directory that became a file or a link.
            Err(lanefs::Error::NotFound | lanefs::Error::NotDir) => return Ok(()),
            found => found.cloned(),
        };
        self.pass.will_remove();
        let removed = dir.and_then(|dir| {
            let (times, pass, layer) = (&mut self.times, &mut self.pass, self.layer.as_ref());
            let gone = |meta: &Metadata| pass.removed(meta);
            layer.map_or(Ok(()), |layer| layer.take_away(&dir, name.map(OsStr::from_bytes), times, gone))
        });
        removed.map_err(|e| self.failed(Action::Import, path, e))
    }

    fn failed(&self, action: Action, path: &[u8], cause: impl Into<Cause>) -> Failed {
        let cause = cause.into();
        let all = match &cause {
            Cause::Volume(e) => {
                ends(e) || matches!(e.kind(), lanefs::Error::NoSpace | lanefs::Error::NoInodes)
            }
            _ => true,
        };
        let error = Error::new(action, Place::in_volume(&self.base, shown(path)), cause);
        if all { Failed::All(error) } else { Failed::Name(error) }
    }

    /// Returns the directory `path`, and makes it if `make` and it does not exist.
    fn dir(&mut self, path: &[u8], make: bool) -> lanefs::Result<&Dir> {
        let parts: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|p| !p.is_empty()).collect();
        let same =
            self.stack.iter().skip(1).zip(&parts).take_while(|(level, part)| level.name == **part).count();
        self.leave_to(same + 1)?;
        for part in parts.into_iter().skip(same) {
            let name = OsStr::from_bytes(part);
            let Some(Level { dir: parent, .. }) = self.stack.last() else {
                return Err(lanefs::Error::NotFound);
            };
            let dir = match parent.open_dir(name).map_err(lanefs::Error::into_kind) {
                Err(lanefs::Error::NotFound) if make => {
                    let (uid, gid) = self.parent_owner;
                    parent.create_dir(name, NewAttr { permissions: 0o755, uid, gid })?
                }
                opened => opened?,
            };
            self.stack.push(Level::new(part, dir, &self.times)?);
        }
        self.stack.last().map(|level| &level.dir).ok_or(lanefs::Error::NotFound)
    }

    /// Leaves directories of the stack until `depth` are left.
    fn leave_to(&mut self, depth: usize) -> lanefs::Result<()> {
        while self.stack.len() > depth {
            if let Some(level) = self.stack.pop() {
                set_again(&level.dir, level.mtime)?;
            }
        }
        Ok(())
    }

    fn make(&mut self, mut member: Member, empty: bool) -> Result<(), Failed> {
        let (parent, name) = split(&member.path);
        let made = self.make_in(parent, OsStr::from_bytes(name), &member);
        let made = made.map_err(|e| self.failed(Action::Create, &member.path, e))?;
        if let Some(layer) = &mut self.layer {
            let dirs = self.stack.iter().map(|level| &level.dir);
            let link = matches!(member.kind, Kind::HardLink(_));
            let brought = layer.bring(dirs, OsStr::from_bytes(name), link);
            brought.map_err(|e| self.failed(Action::Create, &member.path, e))?;
        }
        if self.stack.last().is_some_and(|level| level.gives_acl) {
            disinherit(&mut member);
        }
        let (_, name) = split(&member.path);
        match (made, &member.kind) {
            (Made::File(file), _) => {
                self.pass.made(file.metadata().ino());
                // A build reads nothing again: its data needs no cache.
                let file = file.with_direct(self.pass.sink().is_some());
                let gather = Gather::default();
                let dir = self.stack.last().map(|level| level.dir.clone());
                let partial = dir.filter(|_| !self.pass.is_measure());
                self.current = Some(Current { file, member, gather, end: 0, empty, partial });
            }
            (_, Kind::HardLink(_)) => {}
            (made, kind) => {
                let name = name.to_vec();
                let set = (!self.pass.is_measure()).then(|| attributes(&member));
                let joined = self.layer.is_some() && matches!(made, Made::Joined);
                let dir = self.dir(split(&member.path).0, false);
                let set = dir.and_then(|dir| {
                    if joined {
                        drop_xattrs(&node_of(dir, &name)?, &member)?;
                    }
                    let Some(set) = set else { return Ok(None) };
                    let node = node_of(dir, &name)?;
                    node.set_attr(&set)?;
                    Ok(Some(node.ino()))
                });
                let set = set.map_err(|e| self.failed(Action::SetAttributes, &member.path, e))?;
                if let (Some(ino), Kind::Dir) = (set, kind) {
                    self.times.give(ino);
                }
                for (attr, value) in &member.xattrs {
                    let dir = self.dir(split(&member.path).0, false);
                    let set = dir.and_then(|dir| {
                        node_of(dir, &name)?.set_xattr(OsStr::from_bytes(attr), value, SetXattr::Any)
                    });
                    if let Err(e) = set {
                        let failed = self.failed_xattr(&member.path, attr, e);
                        self.note(failed)?;
                    }
                }
                // A directory below the target is looked at when it is entered.
                if let (Some(level), true) = (self.stack.last_mut(), name.is_empty()) {
                    level.gives_acl |= member.xattrs.iter().any(|(attr, _)| attr == DEFAULT_ACL);
                    level.mtime = self.times.of(&level.dir);
                }
            }
        }
        Ok(())
    }

    /// Makes the name itself.
    fn make_in(&mut self, parent: &[u8], name: &OsStr, member: &Member) -> lanefs::Result<Made> {
        if let Kind::HardLink(target) = &member.kind {
            let target = clean(target).ok_or(lanefs::Error::Invalid("a link to a path with '..' in it"))?;
            let (target_parent, target_name) = split(&target);
            let from = self.dir(target_parent, false)?.clone();
            let dir = self.dir(parent, true)?.clone();
            let link = || from.hard_link(OsStr::from_bytes(target_name), &dir, name);
            return match link().map_err(lanefs::Error::into_kind) {
                Err(lanefs::Error::Exists) if member.path == target => Ok(Made::New),
                Err(lanefs::Error::Exists) if is_below(&target, &member.path) => {
                    Err(lanefs::Error::Invalid("a link in the place of a directory that its target is in"))
                }
                Err(lanefs::Error::Exists) => {
                    check_linkable(&from.symlink_metadata(OsStr::from_bytes(target_name))?)?;
                    self.displace(&dir, name).and_then(|()| link()).map(|()| Made::New)
                }
                linked => linked.map(|()| Made::New),
            };
        }
        let dir = self.dir(parent, true)?.clone();
        if name.is_empty() {
            // The target directory itself.
            return if member.kind == Kind::Dir { Ok(Made::Joined) } else { Err(lanefs::Error::IsDir) };
        }
        match make_new(&dir, name, member).map_err(lanefs::Error::into_kind) {
            Err(lanefs::Error::Exists)
                if member.kind == Kind::Dir && dir.symlink_metadata(name)?.is_dir() =>
            {
                Ok(Made::Joined)
            }
            Err(lanefs::Error::Exists) => {
                self.displace(&dir, name)?;
                make_new(&dir, name, member)
            }
            made => made,
        }
    }

    /// Removes an entry that a member replaces: a directory only for a member of a layer, and never
    /// the volume's `lost+found`.
    fn displace(&mut self, dir: &Dir, name: &OsStr) -> lanefs::Result<()> {
        let there = dir.symlink_metadata(name)?;
        self.pass.will_remove();
        let (times, pass) = (&mut self.times, &mut self.pass);
        match dir.remove_file(name).map_err(lanefs::Error::into_kind) {
            Err(lanefs::Error::IsDir) if self.layer.is_some() && !is_lost_found(dir, name) => {
                remove(dir, Some(name), |_, _, _| false, times, |meta| pass.removed(meta))
            }
            removed => removed.map(|()| {
                times.forget(there.ino());
                pass.removed(&there);
            }),
        }
    }

    /// Returns the failure of one attribute. A value that fits nowhere concerns this name only. So
    /// does a full volume, where other names may still fit, unless it is made again, larger.
    fn failed_xattr(&self, path: &[u8], attr: &[u8], e: lanefs::Error) -> Failed {
        let all = ends(&e) || self.pass.retries() && matches!(e.kind(), lanefs::Error::NoSpace);
        let cause = Cause::Xattr { name: String::from_utf8_lossy(attr).into(), cause: Box::new(e.into()) };
        let error = Error::new(Action::SetAttributes, Place::in_volume(&self.base, shown(path)), cause);
        if all { Failed::All(error) } else { Failed::Name(error) }
    }

    fn note(&mut self, failed: Failed) -> Result<(), Failed> {
        match failed {
            Failed::Name(error) => self.tell(Event::Skipped(error)).map_err(Failed::All),
            all => Err(all),
        }
    }

    /// Finishes the last file, which has all of its data.
    fn finish_file(&mut self) -> Result<(), Error> {
        let Some(mut current) = self.current.take() else { return Ok(()) };
        let written = current.write_gathered();
        let written = written.map_err(|cause| self.failed(Action::Write, &current.member.path, cause));
        let whole = written.and_then(|()| self.give_size(&current));
        if whole.is_ok() {
            current.partial = None;
        }
        let done = whole.and_then(|()| self.complete(&current));
        self.settle(done)
    }

    /// Gives a file its size, and in a first pass the blocks of its data.
    fn give_size(&self, Current { file, member, end, .. }: &Current) -> Result<(), Failed> {
        let Kind::File { size, data } = &member.kind else { return Ok(()) };
        let grown = match self.pass.is_measure() {
            true => data.iter().try_for_each(|(at, len)| file.fallocate(FallocMode::Allocate, *at, *len)),
            false if end < size => file.set_len(*size),
            false => Ok(()),
        };
        grown.map_err(|e| self.failed(Action::Write, &member.path, e))
    }

    fn complete(&mut self, current: &Current) -> Result<(), Failed> {
        let Current { file, member, .. } = current;
        let path = &member.path;
        if !self.pass.is_measure() {
            let set = file.set_attr(&attributes(member));
            set.map_err(|e| self.failed(Action::SetAttributes, path, e))?;
        }
        for (attr, value) in &member.xattrs {
            if let Err(e) = file.set_xattr(OsStr::from_bytes(attr), value, SetXattr::Any) {
                let failed = self.failed_xattr(path, attr, e);
                self.note(failed)?;
            }
        }
        self.give_tree(current).map_err(|e| self.failed(Action::Write, path, e))
    }

    /// Gives a complete file its hash tree, or in a first pass the room for one.
    fn give_tree(&self, Current { file, member, empty, .. }: &Current) -> lanefs::Result<()> {
        let Some(FsVerity { verity, wanted }) = &self.options.fs_verity else { return Ok(()) };
        let path = [b"/", &*member.path].concat();
        if *empty || !wanted(&path) {
            return Ok(());
        }
        if !self.pass.is_measure() {
            return file.enable_verity(verity);
        }
        let meta = file.metadata();
        let Kind::File { size, .. } = member.kind else { return Ok(()) };
        let room = verity.room(size, meta.block_size()).ok_or(lanefs::Error::FileTooBig)?;
        file.fallocate(FallocMode::KeepSize, room.start, room.end - room.start)
    }
}

/// Checks that an inode can have another name, before what has that name is removed.
fn check_linkable(meta: &Metadata) -> lanefs::Result<()> {
    if meta.is_dir() {
        return Err(lanefs::Error::NotPermitted("a directory has one name"));
    }
    if meta.flags().intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
        return Err(lanefs::Error::NotPermitted("the inode is immutable or append-only"));
    }
    if meta.nlink() >= EXT4_LINK_MAX { Err(lanefs::Error::TooManyLinks) } else { Ok(()) }
}

/// Returns whether a path leads through another one.
fn is_below(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Returns whether the volume cannot be written any more.
fn ends(e: &lanefs::Error) -> bool {
    use lanefs::Error::{Closed, Device, Journal, ReadOnly};
    matches!(e.kind(), ReadOnly | Closed | Journal(_) | Device(_))
}
