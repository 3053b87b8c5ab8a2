//! Copies trees between any two sides: cp, and mv between volumes.
//!
//! Below the target that the user named, a copy follows no symbolic link of the destination,
//! neither on the host nor in a volume. It sets attributes of the inode that it made, not of a
//! name.
//!
//! Holes stay holes. With `archive`, hard links between the copied files are hard links in the
//! copy. Directories get their mode and times last, after their entries.

use crate::failure::{Cause, Failure, Noted, OrCannot, Res};
use crate::output::Out;
use crate::progress::Progress;
use crate::quote::quoted;
use crate::side::{Meta, OpenInode, Outcome, Side, Sink, Source, follow_if, shown};
use crate::volumes::Spot;
use crate::walk::{Walk, When};
use lanefs::AtSymlink;
use lanefs_format::acl;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Bytes copied at a time.
const CHUNK: usize = 1 << 20;

/// The attributes that a copy keeps.
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
    /// What has the name of a copy is removed first, as mv(1) does: nothing is written through a
    /// link, or into a file that has other names.
    pub(crate) replace: bool,
    pub(crate) verbose: bool,
    /// Mode bits that new files do not get unless `preserve`.
    pub(crate) umask: u32,
}

/// A copy under way.
pub(crate) struct Copier<'a> {
    pub(crate) options: Options,
    pub(crate) progress: Progress,
    pub(crate) out: &'a mut Out,
    /// The first copy of each inode with several names, by place, device and inode.
    links: HashMap<(Option<u64>, u64, u64), Link>,
    buf: Vec<u8>,
}

impl<'a> Copier<'a> {
    pub(crate) fn new(options: Options, progress: Progress, out: &'a mut Out) -> Self {
        Self { options, progress, out, links: HashMap::new(), buf: vec![0; CHUNK] }
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
    pub(crate) fn stream(&mut self, stream: impl Read, name: &str, dst: &Spot) -> Res {
        if self.keeps(dst.side.metadata(&dst.path, AtSymlink::NoFollow).ok().as_ref()) {
            return Ok(());
        }
        let sink = dst.side.create(&dst.path, 0o666 & !self.options.umask, true);
        let sink = sink.or_cannot("create", dst.shown())?;
        drain(stream, &*sink, &mut self.progress).or_cannot("write", dst.shown())?;
        if self.options.verbose {
            writeln!(self.out, "{} -> {}", quoted(name), quoted(dst.shown()))?;
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
                quoted(src.shown()),
                pair.src_shown()
            )));
        }
        self.directory(pair)
    }

    /// Makes the directory, or takes the one that is there.
    fn directory(&mut self, pair: &Pair<'_>) -> Res<Copied> {
        match pair.to.metadata(pair.dst, follow_if(pair.named)) {
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
        let mode = (pair.meta.mode & !self.options.umask & 0o777) | 0o700;
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
            return self.attributes(pair, &*node);
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
            let why = lanefs_archive::Cause::SourceInUse.to_string();
            return Err(Failure::cannot("read", pair.src_name(), Cause::text(why)));
        }
        if self.clear_way(pair)? == Way::Keep {
            return Ok(());
        }
        let key = (pair.from.place(), meta.device, meta.ino);
        let linked = self.options.archive && meta.nlink > 1;
        if let Some(Link { first, id }) = self.links.get(&key).filter(|_| linked) {
            pair.to.hard_link(first, *id, pair.dst).or_cannot("create hard link", pair.dst_name())?;
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
                let mode = meta.mode & !self.options.umask;
                let node = pair.to.mknod(pair.dst, mode, meta.rdev);
                node.or_cannot("create special file", pair.dst_name())?
            }
            _ => self.contents(pair)?,
        };
        // Before its attributes: what is there whole has its other names, whatever fails then.
        if linked {
            let id = made.id().or_cannot("access", pair.dst_name())?;
            self.links.insert(key, Link { first: pair.dst.into(), id });
        }
        self.attributes(pair, &*made)?;
        self.progress.file();
        self.say(pair)
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
        let mode = pair.meta.mode & !self.options.umask & 0o777;
        let keep = !self.options.preserve;
        let sink = pair.to.create(pair.dst, mode, keep).or_cannot("create", pair.dst_name())?;
        let keeps_holes = sink.keeps_holes().or_cannot("access", pair.dst_name())?;
        let next = |at| if keeps_holes { source.next_data(at) } else { Ok(Some((at, u64::MAX))) };
        let mut at = 0;
        while let Some((start, end)) = next(at).or_cannot("read", pair.src_name())? {
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
            if at < end {
                break;
            }
        }
        if pair.meta.is_file() && at < pair.meta.size {
            sink.set_len(pair.meta.size).or_cannot("write", pair.dst_name())?;
        }
        Ok(sink)
    }

    /// Sets owner, attributes, mode and times, in an order in which none undoes another.
    fn attributes<N: OpenInode + ?Sized>(&self, pair: &Pair<'_>, node: &N) -> Res {
        if !self.options.preserve {
            return Ok(());
        }
        let meta = pair.meta;
        let mut mode = meta.mode & 0o7777;
        match node.set_owner(Some(meta.uid), Some(meta.gid)) {
            Ok(()) => {}
            // A user that may not change the owner keeps the file, without its set-user-id and
            // set-group-id bits.
            Err(e) if e.is(Errno::PERM) => mode &= 0o1777,
            Err(e) => return Err(Failure::cannot("preserve ownership of", pair.dst_name(), e)),
        }
        self.xattrs(pair, node)?;
        if !meta.is_symlink() {
            node.set_mode(mode).or_cannot("preserve permissions of", pair.dst_name())?;
        }
        node.set_times(meta.atime, meta.mtime).or_cannot("preserve times of", pair.dst_name())
    }

    /// Sets the attributes that the source has, if they are to be kept, and ACLs in place of those
    /// that the copy has from its directory or from a file that it overwrites.
    fn xattrs<N: OpenInode + ?Sized>(&self, pair: &Pair<'_>, node: &N) -> Res {
        let meta = pair.meta;
        let mut names = Vec::new();
        if self.options.archive {
            names = pair.from.list_xattrs(pair.src).or_cannot("read attributes of", pair.src_name())?;
        }
        if !meta.is_symlink() {
            let own = acl::own((meta.mode & 0o777) as u16, meta.is_dir());
            for (name, list) in own.filter(|(name, _)| !names.iter().any(|known| known == name)) {
                set_xattr(pair, node, OsStr::new(name), &list.to_xattr())?;
            }
        }
        for name in names {
            let value =
                pair.from.get_xattr(pair.src, &name).or_cannot("read attributes of", pair.src_name())?;
            set_xattr(pair, node, &name, &value)?;
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

fn set_xattr<N: OpenInode + ?Sized>(pair: &Pair<'_>, node: &N, name: &OsStr, value: &[u8]) -> Res {
    match node.set_xattr(name, value) {
        // What only root may set, or what the other file system does not know: as cp -a does.
        Err(e) if e.is(Errno::PERM) || e.is(Errno::NOTSUP) => Ok(()),
        set => {
            let verb = format!("set attribute {} of", quoted(name.as_bytes()));
            set.or_cannot(&verb, pair.dst_name())
        }
    }
}

/// The copy of a file that has other names: its first name, device and inode.
struct Link {
    first: PathBuf,
    id: (u64, u64),
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
        quoted(self.src_name())
    }

    fn dst_shown(&self) -> String {
        quoted(self.dst_name())
    }
}

fn drain(mut stream: impl Read, sink: &dyn Sink, progress: &mut Progress) -> Outcome<u64> {
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
        sink.write_at(&buf[..n], at)?;
        at += n as u64;
        progress.bytes(n as u64);
    }
}

/// Copies a file to a stream, holes as zeros.
pub(crate) fn pour(source: &dyn Source, out: &mut impl Write, name: &[u8], progress: &mut Progress) -> Res {
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
