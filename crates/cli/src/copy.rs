//! Copies trees between any two sides: cp, and mv between volumes.
//!
//! Below the target that the user named, a copy follows no symbolic link of the destination,
//! neither on the host nor in a volume. It sets attributes of the inode that it made, not of a
//! name.
//!
//! Holes stay holes. With `archive`, hard links between the copied files are hard links in the
//! copy. Directories get their mode and times last, after their entries.

mod attributes;

use crate::failure::{Cause, Failure, Noted, OrCannot, Res};
use crate::output::Out;
use crate::progress::Progress;
use crate::quote::quoted_content;
use crate::side::{Meta, OpenInode, Outcome, Side, Sink, Source, follow_if, is_file_open_here, shown};
use crate::time::Time;
use crate::volumes::Spot;
use crate::walk::{Walk, When};
use lanefs::AtSymlink;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Bytes copied at a time.
const CHUNK: usize = 1 << 20;

/// The attributes that a copy keeps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) recursive: bool,
    /// Follow links that are named as sources (of a copy that is not recursive: always).
    pub(crate) follow: bool,
    /// Mode, ACLs, owner and times.
    pub(crate) preserve: bool,
    /// Also extended attributes and hard links.
    pub(crate) archive: bool,
    pub(crate) no_clobber: bool,
    /// What has the name of a copy is removed first, as mv(1) does: nothing is written through a
    /// link, or into a file that has other names.
    pub(crate) replace: bool,
    /// There are several sources: none overwrites what another has become.
    pub(crate) several: bool,
    pub(crate) verbose: bool,
    /// Mode bits that new files do not get unless `preserve`.
    pub(crate) umask: u32,
}

/// A copy under way, of all sources of a command to one side.
pub(crate) struct Copier<'a> {
    pub(crate) options: Options,
    pub(crate) progress: Progress,
    pub(crate) out: &'a mut Out,
    /// The first copy of each inode with several names, by place, device and inode.
    links: HashMap<(Option<u64>, u64, u64), Link>,
    /// The copies of `several` sources that are no directories.
    made: HashSet<PathBuf>,
    buf: Vec<u8>,
}

impl<'a> Copier<'a> {
    pub(crate) fn new(options: Options, progress: Progress, out: &'a mut Out) -> Self {
        Self { options, progress, out, links: HashMap::new(), made: HashSet::new(), buf: vec![0; CHUNK] }
    }

    /// Copies `src` to `dst` (the new name itself, not the directory that it goes into). Reports a
    /// failure inside of a tree at once; the result is then [`Failure::Silent`].
    pub(crate) fn copy(&mut self, src: &Spot, dst: &Spot) -> Res {
        let (from, to) = (&*src.side, &*dst.side);
        let mut noted = Noted::default();
        let mut walk = Walk::new(from, &src.path, follow_if(self.options.follow))?;
        // The copies of the directories on the way down.
        let mut made: Vec<Copied> = Vec::new();
        let mut first = None;
        while let Some(step) = walk.next() {
            let step = match step {
                Ok(step) => step,
                Err(failure) => {
                    noted.note(Err(failure))?;
                    continue;
                }
            };
            let below = step.path.strip_prefix(&src.path).unwrap_or(Path::new(""));
            let named = below.as_os_str().is_empty() && dst.named;
            let path = if below.as_os_str().is_empty() { dst.path.clone() } else { dst.path.join(below) };
            let pair = Pair { from, src: &step.path, to, dst: &path, meta: &step.meta, named };
            if step.when == When::Leave {
                if let Some(copy) = made.pop() {
                    noted.note(self.leave(&pair, &copy))?;
                }
                continue;
            }
            if !step.meta.is_dir() {
                noted.note(self.one(&pair))?;
                continue;
            }
            match self.enter(&pair, first, src) {
                Ok(copy) => {
                    first = first.or(Some(copy.id));
                    made.push(copy);
                }
                Err(failure) => {
                    walk.stay_out();
                    noted.note(Err(failure))?;
                }
            }
        }
        noted.finish()
    }

    /// Copies a stream into a file, from its start to its end. `name` is the stream's in messages.
    /// Refuses a volume that this command has open, as [`one`](Self::one) does.
    pub(crate) fn stream(&mut self, mut stream: impl Read + AsFd, name: &str, dst: &Spot) -> Res {
        if is_file_open_here(&stream).or_cannot("read", name)? {
            return Err(source_in_use(name));
        }
        if self.keeps(dst.side.metadata(&dst.path, AtSymlink::NoFollow).ok().as_ref()) {
            return Ok(());
        }
        // First of all: a stream that cannot be read changes nothing.
        let mut n = fill(&mut self.buf, &mut stream).or_cannot("read", name)?;
        let sink = dst.side.create(&dst.path, 0o666 & !self.options.umask, true);
        let sink = sink.or_cannot("create", dst.shown())?;
        let mut at = 0;
        while n > 0 {
            sink.write_at(&self.buf[..n], at).or_cannot("write", dst.shown())?;
            at += n as u64;
            self.progress.bytes(n as u64);
            n = fill(&mut self.buf, &mut stream).or_cannot("read", name)?;
        }
        if self.options.verbose {
            writeln!(self.out, "{} -> {}", quoted_content(name), quoted_content(dst.shown()))?;
        }
        Ok(())
    }

    /// Returns whether what has the name of a copy stays. A directory is never overwritten, which
    /// is an error and not a choice.
    fn keeps(&self, there: Option<&Meta>) -> bool {
        self.options.no_clobber && there.is_some_and(|there| !there.is_dir())
    }

    /// Makes the copy of a directory, unless it is `copied_to`, the copy itself.
    fn enter(&mut self, pair: &Pair<'_>, copied_to: Option<(u64, u64)>, src: &Spot) -> Res<Copied> {
        if !self.options.recursive {
            return Err(Failure::new(format!("-r not specified; omitting directory {}", pair.src_shown())));
        }
        let same_place = pair.from.place() == pair.to.place();
        if same_place && copied_to == Some((pair.meta.device, pair.meta.ino)) {
            return Err(Failure::new(format!(
                "cannot copy a directory, {}, into itself, {}",
                quoted_content(src.shown()),
                pair.src_shown()
            )));
        }
        self.directory(pair)
    }

    /// Makes the directory, or takes the one that is there.
    fn directory(&mut self, pair: &Pair<'_>) -> Res<Copied> {
        match pair.to.metadata(pair.dst, follow_if(pair.named && !self.options.replace)) {
            Ok(there) if there.is_dir() => return Ok(Copied { id: there.id(), is_new: false }),
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
        let mode = (self.new_mode(pair.meta) & 0o777) | 0o700;
        pair.to.mkdir(pair.dst, mode).or_cannot("create directory", pair.dst_name())?;
        self.say(pair)?;
        self.progress.file();
        let made = pair.to.metadata(pair.dst, AtSymlink::NoFollow).or_cannot("access", pair.dst_name())?;
        Ok(Copied { id: made.id(), is_new: true })
    }

    /// Sets what a directory has, after its entries. Without `preserve`, a directory that was there
    /// stays as it was.
    fn leave(&mut self, pair: &Pair<'_>, copy: &Copied) -> Res {
        let wanted = pair.meta.mode & 0o777 & !self.options.umask;
        if !self.options.preserve && (!copy.is_new || wanted & 0o700 == 0o700) {
            return Ok(());
        }
        let node = pair.to.node(pair.dst, Some(copy.id)).or_cannot("access", pair.dst_name())?;
        if self.options.preserve {
            return attributes::set(self.options, pair, &*node);
        }
        // It was made writable for its entries.
        node.set_mode(wanted).or_cannot("set permissions of", pair.dst_name())
    }

    /// Copies what is no directory, with its attributes. Leaves out a volume that this command has
    /// open, as an import does, and replaces nothing by it: the copy would change what it reads.
    fn one(&mut self, pair: &Pair<'_>) -> Res {
        let meta = pair.meta;
        let is_read = meta.is_file() || !self.options.recursive && !meta.is_symlink();
        if is_read && pair.from.is_open_here(pair.src, meta) {
            return Err(source_in_use(pair.src_name()));
        }
        if self.clear_way(pair)? == Way::Keep {
            return Ok(());
        }
        let key = (pair.from.place(), meta.device, meta.ino);
        let linked = self.links.get(&key).filter(|link| link.is_of(meta, self.options.replace));
        if let Some(Link { first, id, .. }) = linked {
            pair.to.hard_link(first, *id, pair.dst).or_cannot("create hard link", pair.dst_name())?;
            self.note_made(pair);
            return self.say(pair);
        }
        let made: Box<dyn OpenInode + '_> = match meta.kind() {
            0o120000 => {
                let target =
                    pair.from.read_link(pair.src).or_cannot("read symbolic link", pair.src_name())?;
                let node = pair.to.symlink(Path::new(&target), pair.dst);
                node.or_cannot("create symbolic link", pair.dst_name())?
            }
            0o020000 | 0o060000 | 0o010000 | 0o140000 if self.options.recursive => {
                let node = pair.to.mknod(pair.dst, self.new_mode(meta), meta.rdev);
                node.or_cannot("create special file", pair.dst_name())?
            }
            _ => self.contents(pair)?,
        };
        // Before its attributes: what is there whole has its other names, whatever fails then.
        if self.options.archive && meta.nlink > 1 {
            let id = made.id().or_cannot("access", pair.dst_name())?;
            let link = Link { first: pair.dst.into(), id, mtime: meta.mtime, size: meta.size };
            self.links.insert(key, link);
        }
        self.note_made(pair);
        attributes::set(self.options, pair, &*made)?;
        self.progress.file();
        self.say(pair)
    }

    /// Returns the mode of a new copy. One that is to have owner and mode of its source is its
    /// maker's alone until it has them.
    fn new_mode(&self, meta: &Meta) -> u32 {
        let others = if self.options.preserve { 0o077 } else { 0 };
        meta.mode & !self.options.umask & !others
    }

    /// Remembers a copy that no later source may overwrite.
    fn note_made(&mut self, pair: &Pair<'_>) {
        if self.options.several {
            self.made.insert(pair.dst.into());
        }
    }

    /// Looks at what has the name of a copy, and removes what cannot stay.
    fn clear_way(&self, pair: &Pair<'_>) -> Res<Way> {
        let meta = pair.meta;
        let mut there = match pair.to.metadata(pair.dst, AtSymlink::NoFollow) {
            Ok(there) => there,
            Err(e) if e.is(Errno::NOENT) => return Ok(Way::Free),
            Err(e) => return Err(Failure::cannot("create", pair.dst_name(), e)),
        };
        let on_host = pair.to.place().is_none();
        let replace = self.options.replace || self.options.archive && meta.nlink > 1;
        // As cp does: what a link that the user named leads to is written to.
        let follows = pair.named && meta.is_file() && !replace && !self.options.no_clobber;
        if !on_host && there.is_symlink() && follows {
            there = match pair.to.metadata(pair.dst, AtSymlink::Follow) {
                Err(e) if e.is(Errno::NOENT) => {
                    let text = format!("not writing through dangling symbolic link {}", pair.dst_shown());
                    return Err(Failure::new(text));
                }
                led => led.or_cannot("create", pair.dst_name())?,
            };
        }
        if pair.from.place() == pair.to.place() && (there.device, there.ino) == (meta.device, meta.ino) {
            let text = format!("{} and {} are the same file", pair.src_shown(), pair.dst_shown());
            return Err(Failure::new(text));
        }
        if there.is_dir() {
            let text = format!("cannot overwrite directory {} with non-directory", pair.dst_shown());
            return Err(Failure::new(text));
        }
        if self.keeps(Some(&there)) {
            return Ok(Way::Keep);
        }
        if self.made.contains(pair.dst) {
            let (src, dst) = (pair.src_shown(), pair.dst_shown());
            return Err(Failure::new(format!("will not overwrite just-created {dst} with {src}")));
        }
        // So is a link, a device or a pipe of the host.
        let written_to = there.is_file() || pair.named && on_host;
        if !meta.is_file() || !written_to || replace {
            pair.to.displace(pair.dst).or_cannot("create", pair.dst_name())?;
        }
        Ok(Way::Free)
    }

    /// Copies the data of a file, ranges without data left out where the copy keeps holes.
    fn contents<'p>(&mut self, pair: &Pair<'p>) -> Res<Box<dyn Sink + 'p>> {
        let source = pair.from.open(pair.src).or_cannot("open", pair.src_name())?;
        let mode = self.new_mode(pair.meta) & 0o777;
        let keep = !self.options.preserve;
        let sink = pair.to.create(pair.dst, mode, keep).or_cannot("create", pair.dst_name())?;
        let keeps_holes = sink.keeps_holes().or_cannot("access", pair.dst_name())?;
        if self.options.preserve && keeps_holes {
            // A file that was there has its own mode. Where it cannot be set, that is told at the
            // end.
            let _ = sink.set_mode(mode);
        }
        // A file of procfs says that it is empty, and a search finds no data in it.
        let is_empty = pair.meta.is_file() && pair.meta.size == 0;
        let searches = keeps_holes && !is_empty;
        let next = |at| if searches { source.next_data(at) } else { Ok(Some((at, u64::MAX))) };
        let mut at = 0;
        let ends_in_hole = loop {
            let Some((start, end)) = next(at).or_cannot("read", pair.src_name())? else { break true };
            at = start;
            while at < end {
                let want = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
                let buf = &mut self.buf[..want];
                let n = source.read_at(buf, at).or_cannot("read", pair.src_name())?;
                if n == 0 {
                    break;
                }
                sink.write_at(&buf[..n], at).or_cannot("write", pair.dst_name())?;
                at += n as u64;
                self.progress.bytes(n as u64);
            }
            // Files of sysfs are shorter than their metadata says.
            if at < end {
                break false;
            }
        };
        if ends_in_hole && pair.meta.is_file() && at < pair.meta.size {
            sink.set_len(pair.meta.size).or_cannot("write", pair.dst_name())?;
        }
        Ok(sink)
    }

    fn say(&mut self, pair: &Pair<'_>) -> Res {
        if self.options.verbose {
            writeln!(self.out, "{} -> {}", pair.src_shown(), pair.dst_shown())?;
        }
        Ok(())
    }
}

/// Returns the refusal to copy a volume that this command has open.
fn source_in_use(name: impl AsRef<[u8]>) -> Failure {
    Failure::cannot("read", name, Cause::text(lanefs_archive::Cause::SourceInUse.to_string()))
}

/// The copy of a file that has other names: its first name, device and inode.
struct Link {
    first: PathBuf,
    id: (u64, u64),
    /// The time of the last change and the size that the file had then.
    mtime: Time,
    size: u64,
}

impl Link {
    /// Returns whether it is the copy of a file of that inode number whose metadata is `meta`. A
    /// move removes each name that it has copied: the last one has no other, and the number of a
    /// file without a name may be that of another file by then.
    fn is_of(&self, meta: &Meta, moves: bool) -> bool {
        if moves { (self.mtime, self.size) == (meta.mtime, meta.size) } else { meta.nlink > 1 }
    }
}

/// The copy of a directory: device and inode, and whether this copy made it.
struct Copied {
    id: (u64, u64),
    is_new: bool,
}

/// The way in which a copy can be made.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    Free,
    /// What is there stays (`--no-clobber`).
    Keep,
}

/// One file and its copy.
struct Pair<'a> {
    from: &'a dyn Side,
    src: &'a Path,
    to: &'a dyn Side,
    dst: &'a Path,
    meta: &'a Meta,
    /// The user named the destination: a link there may be followed.
    named: bool,
}

impl Pair<'_> {
    fn src_name(&self) -> Vec<u8> {
        shown(self.from, self.src)
    }

    fn dst_name(&self) -> Vec<u8> {
        shown(self.to, self.dst)
    }

    fn src_shown(&self) -> String {
        quoted_content(self.src_name())
    }

    fn dst_shown(&self) -> String {
        quoted_content(self.dst_name())
    }
}

/// Fills a buffer from a stream, so that a slow pipe does not make many small writes. Returns the
/// number of bytes, which is less only at the end of the stream.
fn fill(buf: &mut [u8], stream: &mut impl Read) -> Outcome<usize> {
    let mut n = 0;
    while n < buf.len() {
        match stream.read(&mut buf[n..]) {
            Ok(0) => break,
            Ok(got) => n += got,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Cause::from(e)),
        }
    }
    Ok(n)
}

/// Copies a file to a stream, holes as zeros.
pub(crate) fn pour(source: &dyn Source, out: &mut Out, name: &[u8], progress: &mut Progress) -> Res {
    let mut buf = vec![0; CHUNK];
    let mut at = 0;
    loop {
        let n = source.read_at(&mut buf, at).or_cannot("read", name)?;
        if n == 0 {
            return Ok(());
        }
        out.write_all(&buf[..n])?;
        at += n as u64;
        progress.bytes(n as u64);
    }
}
