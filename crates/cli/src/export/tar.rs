//! A tar stream as the target of an export.

use super::walk::{Step, Walk};
use super::{Options, data_ranges, member_of, named};
use crate::archive::pipe::{Gone, Outlet, PIECE, Piece, pipe};
use crate::archive::tarball::{TarError, TarWriter};
use crate::archive::{Kind, Member, Problem, Report};
use lanefs::{Dir, Error, File};
use std::collections::HashMap;
use std::io::{BufWriter, Write};

/// Bytes that are written of an archive at once.
const WRITE_BEHIND: usize = 1 << 20;

/// Writes what is in `root` to `stream`, whose name is `target`.
pub(super) fn write(
    root: Dir,
    label: &[u8],
    stream: impl Write,
    target: &[u8],
    options: &Options,
    report: &mut dyn Report,
) -> Result<(), Problem> {
    let failed = |e: TarError| Problem::new("write", target, e);
    let mut tar = TarWriter::new(BufWriter::with_capacity(WRITE_BEHIND, stream));
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
        tar.finish().map(|_| ()).map_err(failed)
    })
}

/// The reading thread. If the other side goes away, there is nobody to tell.
fn read(root: Dir, label: &[u8], options: &Options, out: Outlet) {
    let mut reader = Reader { label, options, out, links: HashMap::new() };
    let _ = reader.tree(root);
}

struct Reader<'a> {
    label: &'a [u8],
    options: &'a Options,
    out: Outlet,
    /// The first path of every file with more than one name.
    links: HashMap<u32, Vec<u8>>,
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
        let mut walk = Walk::new(self.label);
        if let Err(problem) = walk.enter(root, Vec::new(), ()) {
            return self.out.push(Piece::Failed(problem));
        }
        while let Some(step) = walk.next() {
            let down = match step {
                Ok(step) => {
                    let path = step.path.clone();
                    match self.name(&step)? {
                        Ok(down) => down.map(|dir| (dir, path)),
                        Err(e) => {
                            self.problem(&path, e)?;
                            None
                        }
                    }
                }
                Err(problem) => {
                    self.out.push(Piece::Problem(problem))?;
                    None
                }
            };
            if let Some((dir, path)) = down
                && let Err(problem) = walk.enter(dir, path, ())
            {
                self.out.push(Piece::Problem(problem))?;
            }
        }
        Ok(())
    }

    /// Sends one name; a directory is given back to go down into.
    fn name(&mut self, step: &Step<'_, ()>) -> Result<Result<Option<Dir>, Error>, Gone> {
        let found = (|| {
            let meta = step.dir.metadata_of(&step.name)?;
            let mut member = member_of(step.dir, &step.name, &step.path, self.options)?;
            let linked = meta.nlink() > 1 && !meta.is_dir();
            if let Some(first) = self.links.get(&meta.ino()).filter(|_| linked) {
                member.kind = Kind::HardLink(first.clone());
            } else if linked {
                self.links.insert(meta.ino(), step.path.clone());
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

    /// Sends the data of a file. What cannot be read arrives as zeros, for the archive has its size already.
    fn data(&mut self, file: &File, member: &Member) -> Result<(), Gone> {
        let Kind::File { data, .. } = &member.kind else { return Ok(()) };
        let mut told = false;
        for &(start, len) in data {
            let mut at = start;
            while at < start + len {
                let mut bytes = vec![0; (start + len - at).min(PIECE as u64) as usize];
                match file.read_at(at, &mut bytes) {
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
