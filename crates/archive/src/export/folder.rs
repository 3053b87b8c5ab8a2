//! A folder of this machine as the target of an export.
//!
//! One thread walks the volume and makes the directories, other threads make everything else. Files
//! and folders are made with rights for their owner alone. Mode, owner, times and attributes are
//! set last, those of a folder after its entries exist, so that modes like 0000 work without any
//! right.
//!
//! Invariants:
//! - All go through [`host`](crate::host): a link in the folder cannot lead a file out of it.
//! - Few descriptors are open at once, however deep the tree is. A folder that is opened again must
//!   have the identity of the folder that the export made or found.
//! - Attributes are set on the inode that the export made and has held open since.
//! - A file whose data cannot be copied whole has no name in the end, and the older file that had
//!   its name stays.

use super::ExportOptions;
use super::tree::{Tree, TreeEntry, data_ranges, member_of};
use crate::event::{Tell, tell};
use crate::host::{self, Folder, Identity, NewName, Object, c_name};
use crate::member::{Kind, Member, Ranges};
use crate::places::{DirId, Places, joined};
use crate::{Action, Cause, Error, Event, Place};
use lanefs::Dir;
use rustix::fs::{self, FileType, Mode};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes that a thread holds of a file.
const PIECE: usize = 1 << 20;
/// Names in a batch, and batches that wait.
const BATCH_NAMES: usize = 32;
const BATCHES: usize = 16;
/// Threads that write files, at most.
const WRITERS: usize = 4;

/// Names of one directory, none of them directories.
struct NameBatch {
    from: Dir,
    into: Arc<Folder>,
    place: DirId,
    dir_path: Vec<u8>,
    names: Vec<OsString>,
}

/// The first name of a file that has several.
struct First {
    place: DirId,
    name: OsString,
    /// The identity of the file, once it was made.
    made: Option<Identity>,
}

/// A second name of a file.
struct Link {
    ino: u32,
    place: DirId,
    name: OsString,
}

/// A directory that the export made or found, and the attributes to set in the end.
struct Made {
    identity: Identity,
    member: Option<Member>,
}

/// What all threads share.
struct Shared<'a> {
    /// The path of the root in the volume.
    base: &'a [u8],
    options: &'a ExportOptions,
    events: Mutex<&'a mut Tell<'a>>,
    /// What ended the work early: the caller cancelled.
    ended: OnceLock<Error>,
    /// The first names of files that have several, by their inodes.
    firsts: Mutex<HashMap<u32, First>>,
    links: Mutex<Vec<Link>>,
    root_user: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared<'_> {
    /// Tells the caller of steps, until the caller cancels.
    fn tell(&self, events: impl IntoIterator<Item = Event>) {
        let mut to = lock(&self.events);
        for event in events {
            if self.ended.get().is_none()
                && let Err(cancelled) = tell(*to, event, Action::Export, self.base)
            {
                // Only here it is set, and the lock is held.
                let _ = self.ended.set(cancelled);
            }
        }
    }

    /// Leaves a name, or an attribute of it, out.
    fn skip(&self, path: &[u8], cause: impl Into<Cause>) {
        let place = Place::in_volume(self.base, path);
        self.tell([Event::Skipped(Error::new(Action::Export, place, cause))]);
    }
}

/// Writes the content of `root` into the folder `target`.
pub(super) fn write(
    root: Dir,
    base: &[u8],
    target: &Path,
    options: &ExportOptions,
    events: &mut Tell<'_>,
) -> Result<(), Error> {
    let failed =
        |e: host::Error| Error::new(Action::Create, Place::Host(target.as_os_str().as_bytes().to_vec()), e);
    match fs::mkdir(target, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(failed(e.into())),
    }
    let folder = Arc::new(Folder::open(target, options.overwrite).map_err(failed)?);
    drop_default_acl(&folder).map_err(failed)?;
    let shared = Shared {
        base,
        options,
        events: Mutex::new(events),
        ended: OnceLock::new(),
        firsts: Mutex::default(),
        links: Mutex::default(),
        root_user: rustix::process::geteuid().is_root(),
    };
    let writers = std::thread::available_parallelism().map_or(2, |n| n.get()).clamp(1, WRITERS);
    let (made, places) = std::thread::scope(|scope| {
        let (batches, queue) = sync_channel(BATCHES);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..writers {
            let (shared, queue) = (&shared, Arc::clone(&queue));
            scope.spawn(move || work(shared, &queue));
        }
        drop(queue);
        let identity = folder.object().identity().map_err(failed)?;
        let made = vec![Made { identity, member: None }];
        Walker { shared: &shared, root: &folder, here: (0, folder.clone()), made }.walk(root, &batches)
    })?;
    if shared.ended.get().is_some() {
        return shared.ended.into_inner().map_or(Ok(()), Err);
    }
    let reopen = |place: DirId| folder.beneath_as(&places.path(place), made[place].identity);
    let links = std::mem::take(&mut *lock(&shared.links));
    for link in links {
        let linked = reopen(link.place)
            .map_err(Cause::from)
            .and_then(|into| make_link(&shared, &link, &into, &reopen));
        if let Err(e) = linked {
            shared.skip(&places.path_of(link.place, link.name.as_bytes()), e);
        }
    }
    // Children before their parents: a parent's new mode may keep us out, and they change its
    // times.
    for (place, Made { member, .. }) in made.iter().enumerate().rev() {
        let Some(member) = member else { continue };
        let set = reopen(place).map_err(Cause::from);
        if let Err(e) = set.and_then(|dir| finish(&shared, dir.object(), member, &places.path(place))) {
            shared.skip(&places.path(place), e);
        }
    }
    shared.ended.into_inner().map_or(Ok(()), Err)
}

/// The thread that walks the volume.
struct Walker<'a, 'b> {
    shared: &'a Shared<'b>,
    root: &'a Arc<Folder>,
    /// The folder that was used last.
    here: (DirId, Arc<Folder>),
    /// By place.
    made: Vec<Made>,
}

impl Walker<'_, '_> {
    /// Makes all directories and hands everything else out. Returns the directories, to be
    /// finished.
    fn walk(mut self, root: Dir, batches: &SyncSender<NameBatch>) -> Result<(Vec<Made>, Places), Error> {
        match member_of(&root, "".as_ref(), b"", self.shared.options) {
            Ok(member) => self.made[0].member = Some(member),
            Err(e) => self.shared.skip(b"", e),
        }
        let mut walk = Tree::new(self.shared.base, root)?;
        let mut batch: Option<NameBatch> = None;
        while self.shared.ended.get().is_none()
            && let Some(step) = walk.next()
        {
            let step = match step {
                Ok(step) => step,
                Err(error) => {
                    self.shared.tell([Event::Skipped(error)]);
                    continue;
                }
            };
            match self.enter(&step) {
                Ok(Some((dir, made, into))) => {
                    // A file of the directory above keeps its place in a batch of that directory.
                    send(batches, batch.take());
                    let name = step.name;
                    let (place, entered) = walk.enter(dir, &name);
                    self.made.push(made);
                    self.here = (place, into);
                    self.shared.tell([Event::Entry]);
                    self.shared.tell(entered.err().map(Event::Skipped));
                }
                Ok(None) => {
                    if batch.as_ref().is_none_or(|j| j.place != step.place || j.names.len() >= BATCH_NAMES) {
                        send(batches, batch.take());
                    }
                    let (from, place) = (step.dir.clone(), step.place);
                    let (dir_path, into) = (step.dir_path, self.here.1.clone());
                    let begin =
                        || NameBatch { from, into, place, dir_path: dir_path.to_vec(), names: Vec::new() };
                    batch.get_or_insert_with(begin).names.push(step.name);
                }
                Err(e) => self.shared.skip(&step.path(), e),
            }
        }
        send(batches, batch);
        Ok((self.made, walk.into_places()))
    }

    /// Makes the directory of a step; `None` if it is none. The folder that the step is in is
    /// `here` after this.
    fn enter(&mut self, step: &TreeEntry<'_>) -> Result<Option<(Dir, Made, Arc<Folder>)>, Cause> {
        if self.here.0 != step.place {
            let path = step.places.path(step.place);
            let folder = self.root.beneath_as(&path, self.made[step.place].identity)?;
            self.here = (step.place, Arc::new(folder));
        }
        let dir = match step.dir.open_dir(&step.name).map_err(lanefs::Error::into_kind) {
            Err(lanefs::Error::NotDir) => return Ok(None),
            opened => opened?,
        };
        // The member's own path is of no use here, and long.
        let member = member_of(step.dir, &step.name, b"", self.shared.options)?;
        let name = c_name(&step.name)?;
        match self.here.1.make_dir(&name, 0o700) {
            Err(e) if e.is(Errno::EXIST) => {}
            made => made?,
        }
        let into = self.here.1.beneath(step.name.as_bytes())?;
        drop_default_acl(&into)?;
        let identity = into.object().identity()?;
        Ok(Some((dir, Made { identity, member: Some(member) }, Arc::new(into))))
    }
}

fn send(batches: &SyncSender<NameBatch>, batch: Option<NameBatch>) {
    // The workers end only after this sender.
    let _ = batch.map(|batch| batches.send(batch));
}

/// Removes the default ACL of a folder that was there already: new entries have attributes of their
/// own, and so has the folder itself in the end.
fn drop_default_acl(dir: &Folder) -> host::Result {
    dir.object().remove_xattr(OsStr::new("system.posix_acl_default"))
}

fn work(shared: &Shared<'_>, queue: &Mutex<Receiver<NameBatch>>) {
    let mut buf = vec![0; PIECE];
    loop {
        let batch = lock(queue).recv();
        let Ok(batch) = batch else { return };
        let mut bytes = 0;
        for name in &batch.names {
            if shared.ended.get().is_some() {
                break;
            }
            match one(shared, &batch, name, &mut buf) {
                Ok(n) => bytes += n,
                Err(e) => shared.skip(&joined(&batch.dir_path, name.as_bytes()), e),
            }
        }
        shared.tell([Event::Data(bytes)].into_iter().chain(batch.names.iter().map(|_| Event::Entry)));
    }
}

/// Makes one name that is no directory; how many bytes of data it had.
fn one(shared: &Shared<'_>, batch: &NameBatch, name: &OsString, buf: &mut [u8]) -> Result<u64, Cause> {
    let meta = batch.from.symlink_metadata(name)?;
    let linked = meta.nlink() > 1;
    if linked {
        let mut firsts = lock(&shared.firsts);
        if firsts.contains_key(&meta.ino()) {
            let link = Link { ino: meta.ino(), place: batch.place, name: name.clone() };
            lock(&shared.links).push(link);
            return Ok(0);
        }
        let first = First { place: batch.place, name: name.clone(), made: None };
        firsts.insert(meta.ino(), first);
    }
    let path = joined(&batch.dir_path, name.as_bytes());
    let member = member_of(&batch.from, name, b"", shared.options)?;
    let (object, bytes) = make(batch, name, &member, (shared.options.sparse, buf))?;
    finish(shared, &object, &member, &path)?;
    if linked && let Some(first) = lock(&shared.firsts).get_mut(&meta.ino()) {
        first.made = Some(object.identity()?);
    }
    Ok(bytes)
}

/// Makes what a name leads to, with its data; how many bytes of data it had.
fn make(
    batch: &NameBatch,
    name: &OsString,
    member: &Member,
    (sparse, buf): (bool, &mut [u8]),
) -> Result<(Object, u64), Cause> {
    let (into, c_name) = (&*batch.into, c_name(name)?);
    let node = |kind: FileType, device| into.mknod(&c_name, kind.as_raw_mode() | 0o600, device);
    let object = match &member.kind {
        Kind::File { size, .. } => {
            let source = batch.from.open_file(name)?;
            let ranges = data_ranges(&source, *size, sparse)?;
            let (object, new_name) = NewName::create(into, &c_name, 0o600)?;
            let bytes = copy(&source, &object, ranges, *size, buf)?;
            new_name.keep()?;
            return Ok((object, bytes));
        }
        Kind::Symlink(target) => {
            let target = CString::new(target.clone()).map_err(|_| Errno::INVAL)?;
            into.symlink(&target, &c_name)?
        }
        Kind::CharDevice(major, minor) => node(FileType::CharacterDevice, (*major, *minor))?,
        Kind::BlockDevice(major, minor) => node(FileType::BlockDevice, (*major, *minor))?,
        Kind::Fifo => node(FileType::Fifo, (0, 0))?,
        Kind::Socket => node(FileType::Socket, (0, 0))?,
        Kind::Dir | Kind::HardLink(_) => return Err(Cause::Changed),
    };
    Ok((object, 0))
}

/// Copies the data, and leaves the holes.
fn copy(from: &lanefs::File, into: &Object, ranges: Ranges, size: u64, buf: &mut [u8]) -> Result<u64, Cause> {
    let (mut bytes, mut end) = (0, 0);
    for (start, len) in ranges {
        let mut at = start;
        while at < start + len {
            let want = (start + len - at).min(buf.len() as u64) as usize;
            let n = from.read_at(&mut buf[..want], at)?;
            if n == 0 {
                return Err(Cause::Shrank);
            }
            into.write_at(&buf[..n], at)?;
            at += n as u64;
            bytes += n as u64;
        }
        end = start + len;
    }
    if end < size {
        into.set_len(size)?;
    }
    Ok(bytes)
}

/// Sets everything that an inode has.
fn finish(shared: &Shared<'_>, object: &Object, member: &Member, path: &[u8]) -> Result<(), Cause> {
    let owned = match object.set_owner(Some(member.uid), Some(member.gid)) {
        Ok(()) => true,
        // An ordinary user cannot give files away, and that is no failure.
        Err(e) if e.is(Errno::PERM) && !shared.root_user => false,
        Err(e) => return Err(e.into()),
    };
    // Before the mode, which may deny access to this user. An access ACL agrees with the mode, so
    // the order of these two does not matter.
    for (name, value) in &member.xattrs {
        if let Err(e) = object.set_xattr(OsStr::from_bytes(name), value) {
            let name = String::from_utf8_lossy(name).into_owned();
            shared.skip(path, Cause::Xattr { name, cause: Box::new(e.into()) });
        }
    }
    if !matches!(member.kind, Kind::Symlink(_)) {
        // Bits that give the owner's rights to others only go to the right owner.
        let keep = if owned { 0o7777 } else { 0o1777 };
        object.set_mode(u32::from(member.mode) & keep)?;
    }
    Ok(object.set_times(member.mtime, member.mtime)?)
}

/// Gives a file that was made its second name.
fn make_link(
    shared: &Shared<'_>,
    link: &Link,
    into: &Folder,
    reopen: &dyn Fn(DirId) -> host::Result<Folder>,
) -> Result<(), Cause> {
    let firsts = lock(&shared.firsts);
    let Some(First { place, name, made: Some(made) }) = firsts.get(&link.ino) else {
        return Err(Cause::NoFirstName);
    };
    let object = reopen(*place)?.find(&c_name(name)?)?;
    object.must_be(*made)?;
    Ok(into.link(&object, &c_name(&link.name)?)?)
}
