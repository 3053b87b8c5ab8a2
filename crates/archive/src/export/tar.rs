//! A tar stream as the target of an export.

use super::ExportOptions;
use super::tree::{Tree, TreeEntry, data_ranges, member_of};
use crate::compress::Packer;
use crate::event::{Tell, tell};
use crate::member::{Kind, Member};
use crate::pipe::{Gone, Outlet, PIECE, PipeItem, pipe};
use crate::places::DirId;
use crate::tarball::{TarError, TarWriter};
use crate::{Action, Cause, Compression, Error, Event, Place};
use lanefs::device::os_name::OsStrExt;
use lanefs::{Dir, File};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Write;

/// The stream of an archive.
pub(super) struct Sink<'a> {
    /// Its name in errors.
    pub(super) name: Vec<u8>,
    pub(super) stream: Box<dyn Write + 'a>,
    pub(super) compression: Compression,
}

/// Writes the content of `root`, whose path is `base`, to `sink`.
pub(super) fn write(
    root: Dir,
    base: &[u8],
    sink: Sink<'_>,
    options: &ExportOptions,
    events: &mut Tell<'_>,
) -> Result<(), Error> {
    let Sink { name, stream, compression } = sink;
    let failed = |e: std::io::Error| Error::new(Action::Write, Place::Host(name.clone()), e);
    let packer = Packer::new(stream, compression).map_err(failed)?;
    let read = |out| read(root, base, options, out);
    let packer = archive(read, packer, (&name, base), events)?;
    packer.finish().and_then(|mut stream| stream.flush()).map_err(failed)
}

/// Writes what `read` sends, on a thread of its own, as an archive to `stream`, and gives that
/// back. `name` is the archive in errors, `base` the path of the tree in the volume.
pub(super) fn archive<W: Write>(
    read: impl FnOnce(Outlet) + Send,
    stream: W,
    (name, base): (&[u8], &[u8]),
    events: &mut Tell<'_>,
) -> Result<W, Error> {
    let failed = |e: TarError| Error::new(Action::Write, Place::Host(name.to_vec()), e);
    let mut tell = |event| tell(events, event, Action::Export, base);
    let mut tar = TarWriter::new(stream);
    std::thread::scope(|scope| {
        let (out, items) = pipe();
        scope.spawn(move || read(out));
        for item in items.flatten() {
            match item {
                PipeItem::Member(member) => {
                    tell(Event::Entry)?;
                    if !tar.member(&member).map_err(failed)? {
                        let place = Place::in_volume(base, &member.path);
                        tell(Event::Skipped(Error::new(Action::Export, place, Cause::Socket)))?;
                    }
                }
                PipeItem::Data { bytes, .. } => {
                    tell(Event::Data(bytes.len() as u64))?;
                    tar.data(&bytes).map_err(failed)?;
                }
                PipeItem::Skipped(error) => tell(Event::Skipped(error))?,
                PipeItem::Checked(bytes) => tell(Event::Checked(bytes))?,
                // The header of an incomplete member, with its size, is written already.
                PipeItem::Failed(error) | PipeItem::Incomplete(error) => return Err(error),
                // A volume is sent without them.
                PipeItem::Layer(_) | PipeItem::Unread { .. } => {}
            }
        }
        tar.finish().map_err(failed)
    })
}

/// Runs the reading thread. It ends early, without a report, if the writing thread has
/// ended.
fn read(root: Dir, base: &[u8], options: &ExportOptions, out: Outlet) {
    let _ = Reader::new(base, options, Unreadable::Zeros, out).tree(root, |_| Ok(true));
}

/// What becomes of an archive where data of a file cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// It has zeros in their place, and an error that names the file tells of them.
    Zeros,
    /// It ends in that error.
    Ends,
}

/// Sends the names of a volume as members, and the data of files.
pub(super) struct Reader<'a> {
    pub(super) base: &'a [u8],
    pub(super) options: &'a ExportOptions,
    unreadable: Unreadable,
    pub(super) out: Outlet,
    /// The first name of every file with more than one.
    links: HashMap<u32, (DirId, OsString)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        base: &'a [u8],
        options: &'a ExportOptions,
        unreadable: Unreadable,
        out: Outlet,
    ) -> Self {
        Self { base, options, unreadable, out, links: HashMap::new() }
    }

    /// Leaves a name out.
    pub(super) fn skip(&mut self, path: &[u8], cause: impl Into<Cause>) -> Result<(), Gone> {
        let error = self.failed(path, cause);
        self.out.push(PipeItem::Skipped(error))
    }

    fn failed(&self, path: &[u8], cause: impl Into<Cause>) -> Error {
        Error::new(Action::Export, Place::in_volume(self.base, path), cause)
    }

    /// Sends everything of `root` that `wanted` wants.
    pub(super) fn tree(
        &mut self,
        root: Dir,
        wanted: impl Fn(&TreeEntry<'_>) -> Result<bool, Cause>,
    ) -> Result<(), Gone> {
        self.dir(&root, b"")?;
        let mut walk = match Tree::new(self.base, root) {
            Ok(walk) => walk,
            Err(error) => return self.out.push(PipeItem::Failed(error)),
        };
        while let Some(step) = walk.next() {
            let step = match step {
                Ok(step) => step,
                Err(error) => {
                    self.out.push(PipeItem::Skipped(error))?;
                    continue;
                }
            };
            let sent = match wanted(&step) {
                Ok(true) => self.name(&step)?,
                Ok(false) => continue,
                Err(e) => Err(e),
            };
            match sent {
                Ok(None) => {}
                Ok(Some(dir)) => {
                    let name = step.name;
                    if let (_, Err(error)) = walk.enter(dir, &name) {
                        self.out.push(PipeItem::Skipped(error))?;
                    }
                }
                Err(e) => self.skip(&step.path(), e)?,
            }
        }
        Ok(())
    }

    /// Sends a directory itself.
    pub(super) fn dir(&mut self, dir: &Dir, path: &[u8]) -> Result<(), Gone> {
        match member_of(dir, "".as_ref(), path, self.options) {
            Ok(member) => self.out.push(PipeItem::Member(member)),
            Err(e) => self.skip(path, e),
        }
    }

    /// Sends one name; returns a directory to go down into.
    pub(super) fn name(&mut self, step: &TreeEntry<'_>) -> Result<Result<Option<Dir>, Cause>, Gone> {
        let found = (|| -> Result<_, Cause> {
            let meta = step.dir.symlink_metadata(&step.name)?;
            let mut member = member_of(step.dir, &step.name, &step.path(), self.options)?;
            // A socket is no member: tar has none.
            let linked = meta.nlink() > 1 && !meta.is_dir() && member.kind != Kind::Socket;
            let first = self.links.get(&meta.ino()).filter(|_| linked);
            let is_first = linked && first.is_none();
            if let Some((place, name)) = first {
                member.kind = Kind::HardLink(step.places.path_of(*place, name.as_bytes()));
            }
            let (mut file, mut dir) = (None, None);
            match &mut member.kind {
                Kind::File { size, data } => {
                    let open = step.dir.open_file(&step.name)?;
                    *data = data_ranges(&open, *size, self.options.sparse)?;
                    file = Some(open);
                }
                Kind::Dir => dir = Some(step.dir.open_dir(&step.name)?),
                _ => {}
            }
            // What could not be opened is no member, which another name could lead to.
            if is_first {
                self.links.insert(meta.ino(), (step.place, step.name.clone()));
            }
            Ok((member, file, dir))
        })();
        let (member, file, dir) = match found {
            Ok(found) => found,
            Err(e) => return Ok(Err(e)),
        };
        self.out.push(PipeItem::Member(member.clone()))?;
        if let Some(file) = file {
            self.data(&file, &member)?;
        }
        Ok(Ok(dir))
    }

    /// Sends the data of a file, whose size the archive has already.
    fn data(&mut self, file: &File, member: &Member) -> Result<(), Gone> {
        let Kind::File { data, .. } = &member.kind else { return Ok(()) };
        let mut told = false;
        for &(start, len) in data {
            let mut at = start;
            while at < start + len {
                let mut bytes = vec![0; (start + len - at).min(PIECE as u64) as usize];
                let cause = match file.read_at(&mut bytes, at) {
                    Ok(n) if n == bytes.len() => None,
                    Ok(_) => Some(Cause::Shrank),
                    Err(e) => Some(Cause::from(e)),
                };
                match cause.filter(|_| !told) {
                    Some(cause) if self.unreadable == Unreadable::Ends => {
                        let error = self.failed(&member.path, cause);
                        // The other side ends when it hears of that.
                        return self.out.push(PipeItem::Incomplete(error)).and(Err(Gone));
                    }
                    Some(cause) => {
                        told = true;
                        self.skip(&member.path, Cause::Zeros(Box::new(cause)))?;
                    }
                    None => {}
                }
                let offset = at;
                at += bytes.len() as u64;
                self.out.push(PipeItem::Data { offset, bytes })?;
            }
        }
        Ok(())
    }
}
