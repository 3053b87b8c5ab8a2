//! A tar stream as the target of an export.

use super::walk::{Step, Walk};
use super::{Fault, Options, data_ranges, member_of, named};
use crate::archive::compress::Packer;
use crate::archive::pipe::{Gone, Outlet, PIECE, Piece, pipe};
use crate::archive::places::Place;
use crate::archive::tarball::{TarError, TarWriter};
use crate::archive::{Kind, Member, Problem, Report};
use lanefs::{Dir, File};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// Writes the content of `root` to `stream`. The name `target` says whether it is compressed.
pub(super) fn write(
    root: Dir,
    label: &[u8],
    stream: impl Write,
    target: &[u8],
    options: &Options,
    report: &mut dyn Report,
) -> Result<(), Problem> {
    let failed = |e: TarError| Problem::new("write", target, e);
    let mut tar = TarWriter::new(Packer::new(stream, target));
    std::thread::scope(|scope| {
        let (out, pieces) = pipe();
        scope.spawn(move || read(root, label, options, out));
        for piece in pieces.into_iter().flatten() {
            match piece {
                Piece::Member(member) => {
                    report.file();
                    if !tar.member(&member).map_err(failed)? {
                        let what = named(label, &member.path);
                        report.problem(Problem::new("export", &what, "tar has no sockets"));
                    }
                }
                Piece::Data { bytes, .. } => {
                    report.bytes(bytes.len() as u64);
                    tar.data(&bytes).map_err(failed)?;
                }
                Piece::Problem(problem) => report.problem(problem),
                Piece::Failed(problem) => return Err(problem),
            }
        }
        tar.finish().and_then(|packer| Ok(packer.finish()?)).map_err(failed)
    })
}

/// The work of the reading thread. It ends early, without a report, if the writing thread has
/// ended.
fn read(root: Dir, label: &[u8], options: &Options, out: Outlet) {
    let mut reader = Reader { label, options, out, links: HashMap::new() };
    let _ = reader.tree(root);
}

struct Reader<'a> {
    label: &'a [u8],
    options: &'a Options,
    out: Outlet,
    /// The first name of every file with more than one.
    links: HashMap<u32, (Place, OsString)>,
}

impl Reader<'_> {
    fn problem(&mut self, path: &[u8], cause: impl std::fmt::Display) -> Result<(), Gone> {
        self.out.push(Piece::Problem(Problem::new("export", &named(self.label, path), cause)))
    }

    fn tree(&mut self, root: Dir) -> Result<(), Gone> {
        match member_of(&root, "".as_ref(), b"", self.options) {
            Ok(member) => self.out.push(Piece::Member(member))?,
            Err(e) => self.problem(b"", e)?,
        }
        let mut walk = match Walk::new(self.label, root) {
            Ok(walk) => walk,
            Err(problem) => return self.out.push(Piece::Failed(problem)),
        };
        while let Some(step) = walk.next() {
            let step = match step {
                Ok(step) => step,
                Err(problem) => {
                    self.out.push(Piece::Problem(problem))?;
                    continue;
                }
            };
            match self.name(&step)? {
                Ok(None) => {}
                Ok(Some(dir)) => {
                    let name = step.name;
                    if let (_, Err(problem)) = walk.enter(dir, &name) {
                        self.out.push(Piece::Problem(problem))?;
                    }
                }
                Err(e) => self.problem(&step.path(), e)?,
            }
        }
        Ok(())
    }

    /// Sends one name; returns a directory to go down into.
    fn name(&mut self, step: &Step<'_>) -> Result<Result<Option<Dir>, Fault>, Gone> {
        let found = (|| -> Result<_, Fault> {
            let meta = step.dir.metadata_of(&step.name)?;
            let mut member = member_of(step.dir, &step.name, &step.path(), self.options)?;
            let linked = meta.nlink() > 1 && !meta.is_dir();
            if let Some((place, name)) = self.links.get(&meta.ino()).filter(|_| linked) {
                member.kind = Kind::HardLink(step.places.path_of(*place, name.as_bytes()));
            } else if linked {
                self.links.insert(meta.ino(), (step.place, step.name.clone()));
            }
            let (mut file, mut dir) = (None, None);
            match &mut member.kind {
                Kind::File { size, data } => {
                    let open = step.dir.open_file(&step.name)?;
                    *data = data_ranges(&open, *size)?;
                    file = Some(open);
                }
                Kind::Dir => dir = Some(step.dir.open_dir(&step.name)?),
                _ => {}
            }
            Ok((member, file, dir))
        })();
        let (member, file, dir) = match found {
            Ok(found) => found,
            Err(e) => return Ok(Err(e)),
        };
        self.out.push(Piece::Member(member.clone()))?;
        if let Some(file) = file {
            self.data(&file, &member)?;
        }
        Ok(Ok(dir))
    }

    /// Sends the data of a file. What cannot be read arrives as zeros, for the archive has its size
    /// already.
    fn data(&mut self, file: &File, member: &Member) -> Result<(), Gone> {
        let Kind::File { data, .. } = &member.kind else { return Ok(()) };
        let mut told = false;
        for &(start, len) in data {
            let mut at = start;
            while at < start + len {
                let mut bytes = vec![0; (start + len - at).min(PIECE as u64) as usize];
                match file.read_at(&mut bytes, at) {
                    Ok(n) if n == bytes.len() => {}
                    result if !told => {
                        told = true;
                        match result {
                            Err(e) => self.problem(&member.path, e)?,
                            Ok(_) => self.problem(&member.path, "it shrank meanwhile")?,
                        }
                    }
                    _ => {}
                }
                let offset = at;
                at += bytes.len() as u64;
                self.out.push(Piece::Data { offset, bytes })?;
            }
        }
        Ok(())
    }
}
