//! A folder of this machine as the target of an export.
//!
//! One thread walks the volume and makes the directories, others make everything else. Every step
//! goes by an open directory and one name below it, and no link is followed: what lies in the
//! folder already cannot lead a file out of it. Files and folders are made for their owner alone;
//! mode, owner, times and attributes come last, those of folders when all is in them, so that
//! modes like 0000 work without any right.

use super::walk::{Step, Walk};
use super::{Options, data_ranges, member_of, named};
use crate::archive::host::Attributed;
use crate::archive::{Kind, Member, Problem, Report};
use lanefs::Dir;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a thread holds of a file.
const PIECE: usize = 1 << 20;
/// Names in a job, and jobs that wait.
const JOB_NAMES: usize = 32;
const JOBS: usize = 16;
/// Threads that write files, at most.
const WRITERS: usize = 4;

/// Names of one directory, none of them directories.
struct Job {
    from: Dir,
    into: Arc<OwnedFd>,
    names: Vec<(OsString, Vec<u8>)>,
}

/// A second name of a file: both paths.
struct Link {
    first: Vec<u8>,
    path: Vec<u8>,
}

/// What all threads share.
struct Shared<'a> {
    label: &'a [u8],
    options: &'a Options,
    report: Mutex<&'a mut (dyn Report + Send)>,
    /// The first path of every file with more than one name.
    firsts: Mutex<HashMap<u32, Vec<u8>>>,
    links: Mutex<Vec<Link>>,
    root_user: bool,
}

/// What went wrong with a name.
enum Fault {
    Volume(lanefs::Error),
    Host(Errno),
    Text(String),
}

impl From<lanefs::Error> for Fault {
    fn from(e: lanefs::Error) -> Self {
        Self::Volume(e)
    }
}

impl From<Errno> for Fault {
    fn from(e: Errno) -> Self {
        Self::Host(e)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared<'_> {
    fn problem(&self, problem: Problem) {
        lock(&self.report).problem(problem);
    }

    fn fault(&self, path: &[u8], fault: Fault) {
        let cause = match fault {
            Fault::Volume(e) => e.to_string(),
            Fault::Host(e) => format!("on this host: {}", std::io::Error::from(e)),
            Fault::Text(text) => text,
        };
        self.problem(Problem::new("export", &named(self.label, path), cause));
    }
}

/// Writes what is in `root` into the folder `target`.
pub(super) fn write(
    root: Dir,
    label: &[u8],
    target: &Path,
    options: &Options,
    report: &mut (dyn Report + Send),
) -> Result<(), Problem> {
    let failed = |e: Errno| Problem::new("create", target.as_os_str().as_bytes(), std::io::Error::from(e));
    match fs::mkdir(target, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(failed(e)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = fs::openat(CWD, target, flags, Mode::empty()).map_err(failed)?;
    drop_default_acl(&folder).map_err(failed)?;
    let folder = Arc::new(folder);
    let shared = Shared {
        label,
        options,
        report: Mutex::new(report),
        firsts: Mutex::default(),
        links: Mutex::default(),
        root_user: rustix::process::geteuid().is_root(),
    };
    let writers = std::thread::available_parallelism().map_or(2, |n| n.get()).clamp(1, WRITERS);
    let dirs = std::thread::scope(|scope| {
        let (jobs, queue) = sync_channel(JOBS);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..writers {
            let (shared, queue) = (&shared, Arc::clone(&queue));
            scope.spawn(move || work(shared, &queue));
        }
        drop(queue);
        walk(&shared, root, &folder, &jobs)
    })?;
    let links = std::mem::take(&mut *lock(&shared.links));
    for link in links {
        if let Err(e) = make_link(&folder, &link) {
            shared.fault(&link.path, e.into());
        }
    }
    // Children before their parents: a parent's new mode may keep us out, and they change its times.
    for member in dirs.iter().rev() {
        let set = open_dir(&folder, &member.path).map_err(Fault::from);
        if let Err(fault) = set.and_then(|dir| finish(&shared, &dir, member)) {
            shared.fault(&member.path, fault);
        }
    }
    Ok(())
}

/// Makes all directories and hands everything else out. Gives the directories back, to be finished.
fn walk(
    shared: &Shared<'_>,
    root: Dir,
    folder: &Arc<OwnedFd>,
    jobs: &SyncSender<Job>,
) -> Result<Vec<Member>, Problem> {
    let mut dirs = Vec::new();
    match member_of(&root, "".as_ref(), b"", shared.options) {
        Ok(member) => dirs.push(member),
        Err(e) => shared.fault(b"", e.into()),
    }
    let mut walk = Walk::new(shared.label);
    walk.enter(root, Vec::new(), Arc::clone(folder))?;
    let mut job: Option<Job> = None;
    while let Some(step) = walk.next() {
        let step = match step {
            Ok(step) => step,
            Err(problem) => {
                shared.problem(problem);
                continue;
            }
        };
        match enter(shared, &step) {
            Ok(Some((dir, member, into))) => {
                // A file of the directory above keeps its place in a job of that directory.
                send(jobs, job.take());
                let path = step.path;
                dirs.push(member);
                lock(&shared.report).file();
                if let Err(problem) = walk.enter(dir, path, into) {
                    shared.problem(problem);
                }
            }
            Ok(None) => {
                if job
                    .as_ref()
                    .is_none_or(|job| !Arc::ptr_eq(&job.into, step.with) || job.names.len() >= JOB_NAMES)
                {
                    send(jobs, job.take());
                }
                let here = || Job { from: step.dir.clone(), into: Arc::clone(step.with), names: Vec::new() };
                job.get_or_insert_with(here).names.push((step.name, step.path));
            }
            Err(fault) => shared.fault(&step.path, fault),
        }
    }
    send(jobs, job);
    Ok(dirs)
}

fn send(jobs: &SyncSender<Job>, job: Option<Job>) {
    // The workers end only after this sender.
    let _ = job.map(|job| jobs.send(job));
}

/// A directory in the volume, what is to be set of it, and the one that was made here.
type Entered = (Dir, Member, Arc<OwnedFd>);

/// Makes the directory of a step; `None` if it is none.
fn enter(shared: &Shared<'_>, step: &Step<'_, Arc<OwnedFd>>) -> Result<Option<Entered>, Fault> {
    let dir = match step.dir.open_dir(&step.name) {
        Err(lanefs::Error::NotDir) => return Ok(None),
        opened => opened?,
    };
    let member = member_of(step.dir, &step.name, &step.path, shared.options)?;
    let name = c_name(&step.name)?;
    match fs::mkdirat(step.with, &name, Mode::RWXU) {
        Err(Errno::EXIST) => {}
        made => made?,
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let into = fs::openat(step.with, &name, flags, Mode::empty())?;
    drop_default_acl(&into)?;
    Ok(Some((dir, member, Arc::new(into))))
}

/// Takes the default ACL from a folder that was there already: what is made in it has its own
/// attributes, as the folder itself will have in the end.
fn drop_default_acl(dir: &OwnedFd) -> Result<(), Errno> {
    match fs::fremovexattr(dir, c"system.posix_acl_default") {
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        removed => removed,
    }
}

fn c_name(name: &OsString) -> Result<CString, Errno> {
    CString::new(name.clone().into_vec()).map_err(|_| Errno::INVAL)
}

fn work(shared: &Shared<'_>, queue: &Mutex<Receiver<Job>>) {
    let mut buf = vec![0; PIECE];
    loop {
        let job = lock(queue).recv();
        let Ok(job) = job else { return };
        let mut bytes = 0;
        for (name, path) in &job.names {
            match one(shared, &job, name, path, &mut buf) {
                Ok(n) => bytes += n,
                Err(fault) => shared.fault(path, fault),
            }
        }
        let mut report = lock(&shared.report);
        report.bytes(bytes);
        job.names.iter().for_each(|_| report.file());
    }
}

/// Makes one name that is no directory; how many bytes of data it had.
fn one(shared: &Shared<'_>, job: &Job, name: &OsString, path: &[u8], buf: &mut [u8]) -> Result<u64, Fault> {
    let meta = job.from.metadata_of(name)?;
    if meta.nlink() > 1 {
        let mut firsts = lock(&shared.firsts);
        if let Some(first) = firsts.get(&meta.ino()) {
            let link = Link { first: first.clone(), path: path.to_vec() };
            lock(&shared.links).push(link);
            return Ok(0);
        }
        firsts.insert(meta.ino(), path.to_vec());
    }
    let member = member_of(&job.from, name, path, shared.options)?;
    let (into, c_name) = (&*job.into, c_name(name)?);
    let mode = Mode::RUSR | Mode::WUSR;
    let node = |file_type, (major, minor)| {
        afresh(into, &c_name, || fs::mknodat(into, &c_name, file_type, mode, fs::makedev(major, minor)))
    };
    match &member.kind {
        Kind::File { size, .. } => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = afresh(into, &c_name, || fs::openat(into, &c_name, flags, mode))?;
            let source = job.from.open_file(name)?;
            let bytes = copy(&source, &file, *size, buf)?;
            finish(shared, &file, &member)?;
            return Ok(bytes);
        }
        Kind::Symlink(target) => {
            let target = CString::new(target.clone()).map_err(|_| Errno::INVAL)?;
            afresh(into, &c_name, || fs::symlinkat(&target, into, &c_name))?;
        }
        Kind::CharDevice(major, minor) => node(FileType::CharacterDevice, (*major, *minor))?,
        Kind::BlockDevice(major, minor) => node(FileType::BlockDevice, (*major, *minor))?,
        Kind::Fifo => node(FileType::Fifo, (0, 0))?,
        Kind::Socket => node(FileType::Socket, (0, 0))?,
        Kind::Dir | Kind::HardLink(_) => return Err(Fault::Text("it changed meanwhile".into())),
    }
    finish_at(shared, into, &c_name, &member).map(|()| 0)
}

/// Makes a name in the place of one that is no directory.
fn afresh<T>(into: &OwnedFd, name: &CString, make: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match make() {
        Err(Errno::EXIST) => {
            fs::unlinkat(into, name, AtFlags::empty())?;
            make()
        }
        made => made,
    }
}

/// Copies the data, and leaves the holes.
fn copy(from: &lanefs::File, into: &OwnedFd, size: u64, buf: &mut [u8]) -> Result<u64, Fault> {
    let (mut bytes, mut end) = (0, 0);
    for (start, len) in data_ranges(from, size)? {
        let mut at = start;
        while at < start + len {
            let want = (start + len - at).min(buf.len() as u64) as usize;
            let n = from.read_at(at, &mut buf[..want])?;
            if n == 0 {
                return Err(Fault::Text("it shrank meanwhile".into()));
            }
            let mut done = 0;
            while done < n {
                match rustix::io::pwrite(into, &buf[done..n], at + done as u64) {
                    Err(Errno::INTR) => {}
                    written => done += written?,
                }
            }
            at += n as u64;
            bytes += n as u64;
        }
        end = start + len;
    }
    if end < size {
        fs::ftruncate(into, size)?;
    }
    Ok(bytes)
}

fn times(member: &Member) -> Timestamps {
    let time = Timespec { tv_sec: member.mtime.sec, tv_nsec: i64::from(member.mtime.nsec) };
    Timestamps { last_access: time, last_modification: time }
}

/// Whether the owner could be set: an ordinary user cannot give files away, and that is no failure.
fn owned(shared: &Shared<'_>, set: Result<(), Errno>) -> Result<bool, Errno> {
    match set {
        Ok(()) => Ok(true),
        Err(Errno::PERM) if !shared.root_user => Ok(false),
        Err(e) => Err(e),
    }
}

/// The mode that an object gets: bits that give the owner's rights to others only go to the right owner.
fn mode(member: &Member, owned: bool) -> Mode {
    let keep = if owned { 0o7777 } else { 0o1777 };
    Mode::from_raw_mode(u32::from(member.mode) & keep)
}

/// Sets everything of an open file or directory.
fn finish(shared: &Shared<'_>, fd: &OwnedFd, member: &Member) -> Result<(), Fault> {
    let owner = fs::fchown(fd, Some(Uid::from_raw(member.uid)), Some(Gid::from_raw(member.gid)));
    let owned = owned(shared, owner)?;
    // Before the mode: it may be one that keeps us out. An access ACL agrees with the mode, so the
    // order of these two does not matter.
    set_xattrs(shared, &Attributed::File(fd.as_fd()), member);
    fs::fchmod(fd, mode(member, owned))?;
    Ok(fs::futimens(fd, &times(member))?)
}

/// Sets everything of a name that cannot be opened.
fn finish_at(shared: &Shared<'_>, into: &OwnedFd, name: &CString, member: &Member) -> Result<(), Fault> {
    let (uid, gid) = (Uid::from_raw(member.uid), Gid::from_raw(member.gid));
    let owner = fs::chownat(into, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
    let owned = owned(shared, owner)?;
    set_xattrs(shared, &Attributed::name(into, name), member);
    if !matches!(member.kind, Kind::Symlink(_)) {
        // It was made just now and is no link; chmod has no form that asks for that.
        fs::chmodat(into, name, mode(member, owned), AtFlags::empty())?;
    }
    Ok(fs::utimensat(into, name, &times(member), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn set_xattrs(shared: &Shared<'_>, object: &Attributed<'_>, member: &Member) {
    for (name, value) in &member.xattrs {
        if let Err(e) = object.set(name, value) {
            let cause = format!("attribute {}: {}", String::from_utf8_lossy(name), std::io::Error::from(e));
            shared.fault(&member.path, Fault::Text(cause));
        }
    }
}

/// Opens a directory below the folder, name by name, through no link.
fn open_dir(folder: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut dir = fs::openat(folder, c".", flags, Mode::empty())?;
    for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        dir = fs::openat(&dir, &name, flags, Mode::empty())?;
    }
    Ok(dir)
}

fn make_link(folder: &OwnedFd, link: &Link) -> Result<(), Errno> {
    let split = |path: &[u8]| -> Result<(OwnedFd, CString), Errno> {
        let at = path.iter().rposition(|b| *b == b'/');
        let (dir, name) = at.map_or((&[][..], path), |at| (&path[..at], &path[at + 1..]));
        Ok((open_dir(folder, dir)?, CString::new(name).map_err(|_| Errno::INVAL)?))
    };
    let ((from, old), (into, new)) = (split(&link.first)?, split(&link.path)?);
    afresh(&into, &new, || fs::linkat(&from, &old, &into, &new, AtFlags::empty()))
}
