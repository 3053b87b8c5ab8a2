//! `lanefs import`: a folder's contents or a tar stream into a directory of a volume.
//!
//! One thread reads the source, the caller's writes the volume, a bounded pipe between them. Names
//! go in the order of their bytes and one thread writes, so the same source gives the same volume.
//!
//! The source's users need not exist and no right is asked for: owners, modes, devices and every
//! attribute are written into the volume as they are, or as [`Options`] have them changed.

mod fill;
mod folder;
mod late;
mod tar;

use crate::archive::compress::{Unpacked, unpacked};
use crate::archive::pipe::{Outlet, Piece, pipe};
use crate::archive::{Epoch, Ownership, Problem, Report};
use fill::Fill;
use lanefs::Volume;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes of an archive that are read at once.
const READ_AHEAD: usize = 1 << 20;

/// What an import changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// How owners change.
    pub(crate) ownership: Ownership,
    /// The newest time that an imported file can have. For a reproducible volume, set the volume's
    /// own clock to it too.
    pub(crate) epoch: Epoch,
}

/// Where a tree comes from.
pub(crate) struct Source {
    label: Vec<u8>,
    origin: Origin,
    /// Bytes of an archive that is a file.
    pub(crate) size: Option<u64>,
}

enum Origin {
    Folder(OwnedFd),
    Tar(Box<dyn Read + Send>),
}

impl Source {
    /// Opens a folder, a tar archive in a file, or with `-` an archive from standard input.
    ///
    /// # Errors
    /// The source cannot be opened.
    pub(crate) fn open(path: &OsStr) -> Result<Self, Problem> {
        let label = path.as_bytes().to_vec();
        if path == "-" {
            let stream = BufReader::with_capacity(READ_AHEAD, io::stdin());
            return Self::archive(label, stream, None);
        }
        let failed = |e: io::Error| Problem::new("open", path.as_bytes(), e);
        if Path::new(path).metadata().map_err(failed)?.is_dir() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
            return Ok(Self { label, origin: Origin::Folder(folder), size: None });
        }
        let file = File::open(path).map_err(failed)?;
        let size = file.metadata().ok().map(|m| m.len()).filter(|len| *len != 0);
        let stream = BufReader::with_capacity(READ_AHEAD, file);
        Self::archive(label, stream, size)
    }

    fn archive(
        label: Vec<u8>,
        stream: impl BufRead + Send + 'static,
        size: Option<u64>,
    ) -> Result<Self, Problem> {
        match unpacked(stream) {
            Ok(Unpacked::Stream { stream, compressed }) => {
                Ok(Self { label, origin: Origin::Tar(stream), size: size.filter(|_| !compressed) })
            }
            Ok(Unpacked::By(program)) => {
                let cause = format!(
                    "it holds compressed data ({program}); {program} -dc FILE | lanefs import - VOLUME:/DIR"
                );
                Err(Problem::new("read", &label, cause))
            }
            Err(e) => Err(Problem::new("read", &label, e)),
        }
    }

    fn send(self, out: &mut Outlet) {
        // Either way the reader is done: the other side knows, or is gone.
        let _ = match self.origin {
            Origin::Folder(folder) => folder::send(folder, &self.label, out),
            Origin::Tar(stream) => tar::send(stream, &self.label, out),
        };
    }
}

/// Imports `source` into the directory `dir` of `volume`, which is made if it does not exist.
/// `label` stands before paths of the volume in messages. Existing entries stay, but an imported
/// name replaces an existing entry that is not a directory.
///
/// # Errors
/// What ended the import early; what concerns one name is told to `report`.
pub(crate) fn run(
    source: Source,
    volume: &Volume,
    dir: &Path,
    label: &[u8],
    options: &Options,
    report: &mut dyn Report,
) -> Result<(), Problem> {
    let mut fill = Fill::new(volume, dir, label, options, report)?;
    let (mut out, pieces) = pipe();
    let reader = std::thread::Builder::new().name("import".into()).spawn(move || source.send(&mut out));
    let reader = reader.map_err(|e| Problem::new("import", label, e))?;
    for batch in pieces {
        for piece in batch {
            match piece {
                Piece::Member(member) => fill.member(member)?,
                Piece::Data { offset, bytes } => fill.data(offset, &bytes)?,
                Piece::Problem(problem) => fill.problem(problem),
                Piece::Failed(problem) => return Err(problem),
            }
        }
    }
    // Its end of the pipe is closed: it has ended, or died.
    if reader.join().is_err() {
        return Err(Problem::new("import", label, "the reading thread died"));
    }
    fill.finish()
}
