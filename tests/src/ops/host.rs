//! Operations done by the kernel.

use super::{Op, OpenHow, Outcome, READ_MAX, RenameHow, Sectors, Seen, Target, XattrHow, content};
use crate::Kind;
use lanefs::FallocMode;
use rustix::fs::{
    Advice, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Timespec,
    Timestamps, Uid, XattrFlags,
};
use rustix::io::{Errno, Result};
use std::ffi::OsStr;
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A folder of this machine, as a root directory.
pub struct Host {
    root: PathBuf,
    ops: Option<Sender<Op>>,
    outcomes: Receiver<Outcome>,
    worker: Option<JoinHandle<()>>,
}

impl Host {
    /// Starts a thread whose root directory is `root`, so that absolute links and ".." stay inside.
    ///
    /// # Panics
    /// If the test is not root.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        crate::require_root();
        let root = root.into();
        let (ops, inbox) = channel::<Op>();
        let (outbox, outcomes) = channel();
        let dir = root.clone();
        let work = move || {
            confine(&dir);
            for op in inbox {
                let outcome = run(&op).map_err(|e| e.raw_os_error());
                if outbox.send(outcome).is_err() {
                    break;
                }
            }
        };
        let worker = std::thread::Builder::new().name("host".into()).spawn(work).unwrap();
        Self { root, ops: Some(ops), outcomes, worker: Some(worker) }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

impl Target for Host {
    fn apply(&self, op: &Op) -> Outcome {
        self.ops.as_ref().unwrap().send(op.clone()).expect("the worker lives");
        self.outcomes.recv().expect("the worker answers")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.ops.take());
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", self.root.display())
    }
}

/// Gives this thread a root directory and a umask of its own.
fn confine(root: &Path) {
    // Not the descriptors, which other threads rely on: only what belongs to paths.
    #[expect(deprecated, reason = "what replaces it guards against unsharing descriptors")]
    rustix::thread::unshare(rustix::thread::UnshareFlags::FS).expect("unshare");
    rustix::process::chroot(root).expect("chroot");
    rustix::process::chdir("/").expect("chdir");
    rustix::process::umask(Mode::empty());
}

fn run(op: &Op) -> Result<Seen> {
    match op {
        // lanefs opens directories by another call.
        Op::Open { path, how, mode } => drop(open_regular(path, open_flags(*how), *mode)?),
        Op::Read { path, offset, len } => return read(path, *offset, *len),
        Op::Write { path, offset, len, fill } => {
            let file = open(path, OFlags::WRONLY, 0)?;
            write_all(&file, *offset, &content(*offset, *len, *fill))?;
        }
        Op::Append { path, len, fill } => {
            let file = open(path, OFlags::WRONLY | OFlags::APPEND, 0)?;
            write_all(&file, 0, &content(0, *len, *fill))?;
        }
        Op::Truncate { path, len } => rustix::fs::ftruncate(open(path, OFlags::WRONLY, 0)?, *len)?,
        Op::Fallocate { path, how, offset, len } => {
            fallocate(&open(path, OFlags::WRONLY, 0)?, *how, *offset, *len)?;
        }
        Op::SeekData { path, offset } => return seek(path, SeekFrom::Data(*offset)),
        Op::SeekHole { path, offset } => return seek(path, SeekFrom::Hole(*offset)),
        Op::CopyRange { from, offset, to, to_offset, len } => {
            let (from, to) = (open_regular(from, OFlags::RDONLY, 0)?, open_regular(to, OFlags::WRONLY, 0)?);
            return copy(&from, *offset, &to, *to_offset, *len).map(Seen::Number);
        }
        Op::Mkdir { path, mode } => rustix::fs::mkdir(path, bits(*mode))?,
        Op::Rmdir { path } => rustix::fs::rmdir(path)?,
        Op::Unlink { path } => rustix::fs::unlink(path)?,
        Op::Link { from, to } => rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty())?,
        Op::Symlink { target, path } => rustix::fs::symlink(target, path)?,
        Op::ReadLink { path } => {
            return Ok(Seen::Bytes(rustix::fs::readlink(path, Vec::new())?.into_bytes()));
        }
        Op::Rename { from, to, how } => rustix::fs::renameat_with(CWD, from, CWD, to, rename_flags(*how))?,
        Op::Mknod { path, kind, device: (major, minor), mode } => {
            let device = rustix::fs::makedev(*major, *minor);
            rustix::fs::mknodat(CWD, path, file_type(*kind), bits(*mode), device)?;
        }
        Op::Chmod { path, mode } => rustix::fs::chmodat(CWD, path, bits(*mode), AtFlags::empty())?,
        Op::Chown { path, uid, gid, follow } => {
            let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
            rustix::fs::chownat(CWD, path, Some(uid), Some(gid), at(*follow))?;
        }
        Op::Utimes { path, atime, mtime, follow } => {
            let time = |(sec, nsec): (i64, u32)| Timespec { tv_sec: sec, tv_nsec: nsec.into() };
            let times = Timestamps { last_access: time(*atime), last_modification: time(*mtime) };
            rustix::fs::utimensat(CWD, path, &times, at(*follow))?;
        }
        Op::SetXattr { path, name, value, how } => {
            rustix::fs::lsetxattr(path, name, value, xattr_flags(*how))?;
        }
        Op::GetXattr { path, name } => {
            let mut value = vec![0; 1 << 16];
            let n = rustix::fs::lgetxattr(path, name, value.as_mut_slice())?;
            value.truncate(n);
            return Ok(Seen::Bytes(value));
        }
        Op::RemoveXattr { path, name } => rustix::fs::lremovexattr(path, name)?,
        Op::Stat { path, follow } => return stat(path, at(*follow)),
        Op::Space { path } => return space(path),
        Op::List { path } => return list(path),
    }
    Ok(Seen::Nothing)
}

fn at(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

fn bits(mode: u16) -> Mode {
    Mode::from_raw_mode(mode.into())
}

/// Opens a file as lanefs does, which knows no devices: what is behind one is not asked.
fn open(path: &Path, flags: OFlags, mode: u16) -> Result<OwnedFd> {
    let special = |s: rustix::fs::Stat| {
        let kind = FileType::from_raw_mode(s.st_mode);
        !matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink)
    };
    let nofollow = flags.contains(OFlags::NOFOLLOW);
    if !flags.contains(OFlags::EXCL) && rustix::fs::statat(CWD, path, at(!nofollow)).is_ok_and(special) {
        return Err(Errno::INVAL);
    }
    rustix::fs::open(path, flags | OFlags::CLOEXEC, bits(mode))
}

fn write_all(file: &OwnedFd, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let n = rustix::io::pwrite(file, bytes, offset)?;
        (offset, bytes) = (offset + n as u64, &bytes[n..]);
    }
    Ok(())
}

fn open_flags(how: OpenHow) -> OFlags {
    let OpenHow { write, create, excl, trunc, nofollow } = how;
    let flag = |on: bool, flag: OFlags| if on { flag } else { OFlags::empty() };
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    access
        | flag(create, OFlags::CREATE)
        | flag(create && excl, OFlags::EXCL)
        | flag(trunc && write, OFlags::TRUNC)
        | flag(nofollow, OFlags::NOFOLLOW)
}

fn read(path: &Path, offset: u64, len: usize) -> Result<Seen> {
    let file = open(path, OFlags::RDONLY, 0)?;
    let mut buf = vec![0; len.min(READ_MAX)];
    let mut done = 0;
    loop {
        match rustix::io::pread(&file, &mut buf[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    buf.truncate(done);
    Ok(Seen::Bytes(buf))
}

/// Opens a file for a call of which the kernel says other things of a directory than lanefs, which
/// has no such call.
fn open_regular(path: &Path, flags: OFlags, mode: u16) -> Result<OwnedFd> {
    let file = open(path, flags, mode)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::Directory => Err(Errno::ISDIR),
        _ => Ok(file),
    }
}

fn times_of(file: &OwnedFd) -> Result<Timestamps> {
    let s = rustix::fs::fstat(file)?;
    let time = |tv_sec, nsec: u64| Timespec { tv_sec, tv_nsec: nsec as i64 };
    Ok(Timestamps {
        last_access: time(s.st_atime, s.st_atime_nsec),
        last_modification: time(s.st_mtime, s.st_mtime_nsec),
    })
}

fn fallocate(file: &OwnedFd, how: FallocMode, offset: u64, len: u64) -> Result<()> {
    let times = times_of(file)?;
    rustix::fs::fallocate(file, falloc_flags(how), offset, len).or_else(|e| {
        // The kernel stamps also a file that it then leaves as it is.
        rustix::fs::futimens(file, &times)?;
        Err(e)
    })
}

fn falloc_flags(how: FallocMode) -> FallocateFlags {
    match how {
        FallocMode::KeepSize => FallocateFlags::KEEP_SIZE,
        FallocMode::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        FallocMode::ZeroRange => FallocateFlags::ZERO_RANGE,
        FallocMode::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        FallocMode::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
        FallocMode::InsertRange => FallocateFlags::INSERT_RANGE,
        // Of the kernel's ext4, nothing can be unshared.
        _ => FallocateFlags::empty(),
    }
}

/// Settles a file: what is cached counts as data for the kernel, wherever it lies.
fn settle(file: &OwnedFd) -> Result<()> {
    rustix::fs::fsync(file)?;
    rustix::fs::fadvise(file, 0, None, Advice::DontNeed)
}

fn seek(path: &Path, to: SeekFrom) -> Result<Seen> {
    let file = open_regular(path, OFlags::RDONLY, 0)?;
    settle(&file)?;
    rustix::fs::seek(&file, to).map(Seen::Number)
}

/// Copies data, and makes holes of what is a hole: the kernel alone would write zeros.
fn copy(from: &OwnedFd, offset: u64, to: &OwnedFd, to_offset: u64, len: u64) -> Result<u64> {
    settle(from)?;
    let end = offset.saturating_add(len).min(rustix::fs::fstat(from)?.st_size as u64);
    let piece = |at: u64, there: u64, len: u64| {
        rustix::fs::copy_file_range(from, Some(&mut { at }), to, Some(&mut { there }), len as usize)
    };
    // No bytes, or ranges that overlap: the kernel alone says what is wrong.
    let same = rustix::fs::fstat(from)?.st_ino == rustix::fs::fstat(to)?.st_ino;
    if end <= offset || same && to_offset < end && offset < to_offset.saturating_add(end - offset) {
        return piece(offset, to_offset, len).map(|n| n as u64);
    }
    // All of them before anything is read, for what is read is cached.
    let (mut data, mut at) = (Vec::new(), offset);
    while at < end {
        match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) if start < end => {
                at = rustix::fs::seek(from, SeekFrom::Hole(start))?.min(end);
                data.push(start..at);
            }
            Ok(_) | Err(Errno::NXIO) => break,
            Err(e) => return Err(e),
        }
    }
    data.push(end..end);
    let mut at = offset;
    for data in data {
        let (there, size) = (to_offset + (at - offset), rustix::fs::fstat(to)?.st_size as u64);
        let hole = data.start - at;
        if hole > 0 && there < size {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(to, flags, there, hole.min(size - there))?;
        }
        // To cut it to the size that it has would free what is preallocated.
        if hole > 0 && there + hole > size {
            rustix::fs::ftruncate(to, there + hole)?;
        }
        at = data.start;
        while at < data.end {
            at += piece(at, to_offset + (at - offset), data.end - at)? as u64;
        }
    }
    Ok(end - offset)
}

fn stat(path: &Path, flags: AtFlags) -> Result<Seen> {
    let s = rustix::fs::statat(CWD, path, flags)?;
    let kind = match FileType::from_raw_mode(s.st_mode) {
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        _ => Kind::File,
    };
    Ok(Seen::Stat {
        kind,
        mode: s.st_mode & 0o7777,
        uid: s.st_uid,
        gid: s.st_gid,
        nlink: s.st_nlink,
        size: if kind == Kind::Directory { 0 } else { s.st_size as u64 },
    })
}

fn space(path: &Path) -> Result<Seen> {
    let file = open_regular(path, OFlags::RDONLY, 0)?;
    rustix::fs::fsync(&file)?;
    let s = rustix::fs::fstat(&file)?;
    Ok(Seen::Space(Sectors { count: s.st_blocks as u64, block: s.st_blksize as u64 }))
}

fn list(path: &Path) -> Result<Seen> {
    let dir = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(Seen::Names(names.iter().map(|n| OsStr::from_bytes(n).to_owned()).collect()))
}

fn rename_flags(how: RenameHow) -> RenameFlags {
    match how {
        RenameHow::Replace => RenameFlags::empty(),
        RenameHow::NoReplace => RenameFlags::NOREPLACE,
        RenameHow::Exchange => RenameFlags::EXCHANGE,
    }
}

fn xattr_flags(how: XattrHow) -> XattrFlags {
    match how {
        XattrHow::Any => XattrFlags::empty(),
        XattrHow::Create => XattrFlags::CREATE,
        XattrHow::Replace => XattrFlags::REPLACE,
    }
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharacterDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}
