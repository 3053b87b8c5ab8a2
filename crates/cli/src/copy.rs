//! Copies trees between any two sides: cp, and mv between volumes.
//!
//! Holes stay holes. With `archive`, what one inode was stays one inode: hard links within what
//! is copied are links in the copy. Directories get their mode and times last, after their entries.

use crate::failure::{Cause, Failure, Noted, OrCannot, Res};
use crate::output::Out;
use crate::progress::Progress;
use crate::quote::quoted;
use crate::side::{Meta, Outcome, Side, Sink, Source, shown};
use crate::walk::{Walk, When};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Bytes copied at a time.
const CHUNK: usize = 1 << 20;

/// What a copy keeps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) recursive: bool,
    /// Follow links that are named as sources (of a copy that is not recursive: always).
    pub(crate) follow: bool,
    /// Mode, owner and times.
    pub(crate) preserve: bool,
    /// Also extended attributes, ACLs and hard links.
    pub(crate) archive: bool,
    pub(crate) no_clobber: bool,
    pub(crate) verbose: bool,
    /// Mode bits that new files do not get unless `preserve`.
    pub(crate) umask: u32,
}

/// A copy under way.
pub(crate) struct Copier<'a> {
    pub(crate) options: Options,
    pub(crate) progress: Progress,
    pub(crate) out: &'a mut Out,
    /// First copy of each inode with several names: (place, device, inode) to path.
    links: HashMap<(Option<u64>, u64, u64), PathBuf>,
    buf: Vec<u8>,
}

impl<'a> Copier<'a> {
    pub(crate) fn new(options: Options, progress: Progress, out: &'a mut Out) -> Self {
        Self { options, progress, out, links: HashMap::new(), buf: vec![0; CHUNK] }
    }

    /// Copies `src` to `dst` (the new name itself, not the directory that it goes into). Failures inside of a tree are said at once; the
    /// result is then [`Failure::Silent`].
    pub(crate) fn copy(&mut self, from: &dyn Side, src: &Path, to: &dyn Side, dst: &Path) -> Res {
        let mut noted = Noted::default();
        let mut walk = Walk::new(from, src, self.options.follow)?;
        let mut copied_to = None;
        while let Some(step) = walk.next() {
            let step = match step {
                Ok(step) => step,
                Err(failure) => {
                    noted.note(Err(failure))?;
                    continue;
                }
            };
            let below = step.path.strip_prefix(src).unwrap_or(Path::new(""));
            let dst = if below.as_os_str().is_empty() { dst.to_path_buf() } else { dst.join(below) };
            let pair = Pair { from, src: &step.path, to, dst: &dst, meta: &step.meta };
            if step.when == When::Leave {
                noted.note(self.attributes(&pair))?;
                continue;
            }
            if step.meta.is_dir() {
                let same_place = from.place() == to.place();
                let entered = if !self.options.recursive {
                    Err(Failure::new(format!("-r not specified; omitting directory {}", pair.src_shown())))
                } else if same_place && copied_to == Some((step.meta.device, step.meta.ino)) {
                    Err(Failure::new(format!(
                        "cannot copy a directory, {}, into itself, {}",
                        quoted(shown(from, src)),
                        pair.src_shown()
                    )))
                } else {
                    self.directory(&pair)
                };
                match entered {
                    Ok(made) => copied_to = copied_to.or(Some((made.device, made.ino))),
                    Err(failure) => {
                        walk.stay_out();
                        noted.note(Err(failure))?;
                    }
                }
                continue;
            }
            noted.note(self.one(&pair))?;
        }
        noted.finish()
    }

    /// Makes the directory, or takes the one that is there.
    fn directory(&mut self, pair: &Pair<'_>) -> Res<Meta> {
        match pair.to.metadata(pair.dst, true) {
            Ok(there) if there.is_dir() => return Ok(there),
            Ok(_) => {
                let text = format!(
                    "cannot overwrite non-directory {} with directory {}",
                    pair.dst_shown(),
                    pair.src_shown()
                );
                return Err(Failure::new(text));
            }
            Err(e) if e.is(Errno::NOENT) => {}
            Err(e) => return Err(Failure::cannot("access", pair.dst_name(), e)),
        }
        // Writable until its entries are in.
        let mode = (pair.meta.mode & !self.options.umask & 0o777) | 0o700;
        pair.to.mkdir(pair.dst, mode).or_cannot("create directory", pair.dst_name())?;
        self.say(pair)?;
        self.progress.file();
        pair.to.metadata(pair.dst, false).or_cannot("access", pair.dst_name())
    }

    /// Copies what is no directory, with its attributes.
    fn one(&mut self, pair: &Pair<'_>) -> Res {
        let meta = pair.meta;
        let there = match pair.to.metadata(pair.dst, false) {
            Ok(there) => Some(there),
            Err(e) if e.is(Errno::NOENT) => None,
            Err(e) => return Err(Failure::cannot("create", pair.dst_name(), e)),
        };
        if let Some(there) = &there {
            if pair.from.place() == pair.to.place() && (there.device, there.ino) == (meta.device, meta.ino) {
                return Err(Failure::new(format!(
                    "{} and {} are the same file",
                    pair.src_shown(),
                    pair.dst_shown()
                )));
            }
            if there.is_dir() {
                return Err(Failure::new(format!(
                    "cannot overwrite directory {} with non-directory",
                    pair.dst_shown()
                )));
            }
            if self.options.no_clobber {
                return Ok(());
            }
            // A link at the destination is replaced, never written through: it may lead anywhere.
            if !(there.is_file() && meta.is_file()) || (self.options.archive && meta.nlink > 1) {
                pair.to.remove_file(pair.dst).or_cannot("remove", pair.dst_name())?;
            }
        }
        if self.options.archive && meta.nlink > 1 {
            let key = (pair.from.place(), meta.device, meta.ino);
            if let Some(first) = self.links.get(&key) {
                pair.to.hard_link(first, pair.dst).or_cannot("create hard link", pair.dst_name())?;
                return self.say(pair);
            }
            self.links.insert(key, pair.dst.into());
        }
        match meta.kind() {
            0o120000 => {
                let target =
                    pair.from.read_link(pair.src).or_cannot("read symbolic link", pair.src_name())?;
                pair.to
                    .symlink(Path::new(&target), pair.dst)
                    .or_cannot("create symbolic link", pair.dst_name())?;
            }
            0o020000 | 0o060000 | 0o010000 | 0o140000 if self.options.recursive => {
                let mode = meta.mode & !self.options.umask;
                pair.to.mknod(pair.dst, mode, meta.rdev).or_cannot("create special file", pair.dst_name())?;
            }
            _ => self.contents(pair)?,
        }
        self.progress.file();
        self.attributes(pair)?;
        self.say(pair)
    }

    /// Copies the data of a file, ranges without data left out.
    fn contents(&mut self, pair: &Pair<'_>) -> Res {
        let source = pair.from.open(pair.src).or_cannot("open", pair.src_name())?;
        let mode = pair.meta.mode & !self.options.umask & 0o777;
        let sink = pair.to.create(pair.dst, mode).or_cannot("create", pair.dst_name())?;
        let mut at = 0;
        while let Some((start, end)) = source.next_data(at).or_cannot("read", pair.src_name())? {
            at = start;
            while at < end {
                let want = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
                let buf = &mut self.buf[..want];
                let n = source.read_at(at, buf).or_cannot("read", pair.src_name())?;
                if n == 0 {
                    break;
                }
                sink.write_at(at, &buf[..n]).or_cannot("write", pair.dst_name())?;
                at += n as u64;
                self.progress.bytes(n as u64);
            }
            if at < end {
                break;
            }
        }
        if pair.meta.is_file() && at < pair.meta.size {
            sink.set_len(pair.meta.size).or_cannot("write", pair.dst_name())?;
        }
        Ok(())
    }

    /// Owner, attributes, mode and times, in an order in which none undoes another.
    fn attributes(&mut self, pair: &Pair<'_>) -> Res {
        let (to, dst, meta) = (pair.to, pair.dst, pair.meta);
        if !self.options.preserve {
            // A directory was made writable for its entries.
            let wanted = meta.mode & 0o777 & !self.options.umask;
            if meta.is_dir() && wanted & 0o700 != 0o700 {
                to.set_mode(dst, wanted).or_cannot("set permissions of", pair.dst_name())?;
            }
            return Ok(());
        }
        let mut mode = meta.mode & 0o7777;
        match to.set_owner(dst, Some(meta.uid), Some(meta.gid)) {
            Ok(()) => {}
            // Who may not give a file away keeps it, without the bits that act in its owner's name.
            Err(e) if e.is(Errno::PERM) => mode &= 0o1777,
            Err(e) => return Err(Failure::cannot("preserve ownership of", pair.dst_name(), e)),
        }
        if self.options.archive {
            self.xattrs(pair)?;
        }
        if !meta.is_symlink() {
            to.set_mode(dst, mode).or_cannot("preserve permissions of", pair.dst_name())?;
        }
        to.set_times(dst, meta.atime, meta.mtime).or_cannot("preserve times of", pair.dst_name())
    }

    fn xattrs(&mut self, pair: &Pair<'_>) -> Res {
        let names = pair.from.list_xattrs(pair.src).or_cannot("read attributes of", pair.src_name())?;
        for name in names {
            let value =
                pair.from.get_xattr(pair.src, &name).or_cannot("read attributes of", pair.src_name())?;
            match pair.to.set_xattr(pair.dst, &name, &value) {
                Ok(()) => {}
                // What only root may set, or what the other file system does not know: as cp -a does.
                Err(e) if e.is(Errno::PERM) || e.is(Errno::NOTSUP) => {}
                Err(e) => {
                    let verb = format!("set attribute {} of", quoted(name.as_bytes()));
                    return Err(Failure::cannot(&verb, pair.dst_name(), e));
                }
            }
        }
        Ok(())
    }

    fn say(&mut self, pair: &Pair<'_>) -> Res {
        if self.options.verbose {
            writeln!(self.out, "{} -> {}", pair.src_shown(), pair.dst_shown())?;
        }
        Ok(())
    }
}

/// One file and its copy.
struct Pair<'a> {
    from: &'a dyn Side,
    src: &'a Path,
    to: &'a dyn Side,
    dst: &'a Path,
    meta: &'a Meta,
}

impl Pair<'_> {
    fn src_name(&self) -> Vec<u8> {
        shown(self.from, self.src)
    }

    fn dst_name(&self) -> Vec<u8> {
        shown(self.to, self.dst)
    }

    fn src_shown(&self) -> String {
        quoted(self.src_name())
    }

    fn dst_shown(&self) -> String {
        quoted(self.dst_name())
    }
}

/// Copies a stream into a file, from its start to its end.
pub(crate) fn drain(
    mut stream: impl std::io::Read,
    sink: &dyn Sink,
    progress: &mut Progress,
) -> Outcome<u64> {
    let mut buf = vec![0; CHUNK];
    let mut at = 0;
    loop {
        // Whole chunks, so that a slow pipe does not make many small writes.
        let mut n = 0;
        while n < buf.len() {
            match stream.read(&mut buf[n..]) {
                Ok(0) => break,
                Ok(got) => n += got,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Cause::from(e)),
            }
        }
        if n == 0 {
            return Ok(at);
        }
        sink.write_at(at, &buf[..n])?;
        at += n as u64;
        progress.bytes(n as u64);
    }
}

/// Copies a file to a stream, holes as zeros.
pub(crate) fn pour(source: &dyn Source, out: &mut impl Write, name: &[u8], progress: &mut Progress) -> Res {
    let mut buf = vec![0; CHUNK];
    let mut at = 0;
    loop {
        let n = source.read_at(at, &mut buf).or_cannot("read", name)?;
        if n == 0 {
            return Ok(());
        }
        out.write_all(&buf[..n])?;
        at += n as u64;
        progress.bytes(n as u64);
    }
}
