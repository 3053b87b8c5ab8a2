//! `lanefs export`: a directory of a volume into a folder or a tar stream.
//!
//! Into a folder several threads read the volume and write files; a tar stream is read by one
//! thread and written by another, names in the order of their bytes. The volume is not trusted: a
//! name that could lead out of the folder, a directory that is its own ancestor, a link in the way
//! end in a message, never outside.

mod folder;
mod tar;
mod walk;

use crate::archive::compress::program_for;
use crate::archive::{Epoch, Ownership, Problem, Report};
use crate::content::{self, Content};
use crate::failure::Cause;
use crate::host::{self, Overwrite};
use crate::side::Outcome;
use lanefs::{Dir, Volume};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What an export changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// How owners change.
    pub(crate) ownership: Ownership,
    /// The newest time that an exported file can have.
    pub(crate) epoch: Epoch,
    /// Which files of the host may be overwritten.
    pub(crate) overwrite: Overwrite,
}

/// Why a name cannot be exported.
#[derive(Debug)]
enum Fault {
    Volume(lanefs::Error),
    /// The host's answer, or a reason in our own words.
    Host(Cause),
}

impl From<lanefs::Error> for Fault {
    fn from(e: lanefs::Error) -> Self {
        Self::Volume(e)
    }
}

impl From<Cause> for Fault {
    fn from(cause: Cause) -> Self {
        Self::Host(cause)
    }
}

impl From<Errno> for Fault {
    fn from(e: Errno) -> Self {
        Self::Host(e.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(e) => e.fmt(f),
            Self::Host(cause) if cause.errno.is_some() => write!(f, "on this host: {cause}"),
            Self::Host(cause) => cause.fmt(f),
        }
    }
}

/// Where a tree goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    /// A folder, made if it does not exist.
    Folder(&'a Path),
    /// A tar archive in a file.
    Tar(&'a Path),
    /// A tar archive to standard output.
    Stdout,
}

impl<'a> Target<'a> {
    /// Returns what an argument means: `-` is standard output, a name that ends as that of an
    /// archive does, and is no folder, an archive.
    pub(crate) fn parse(arg: &'a OsStr) -> Self {
        let path = Path::new(arg);
        if arg == "-" {
            Self::Stdout
        } else if program_for(arg.as_bytes()).is_some() && !path.is_dir() {
            Self::Tar(path)
        } else {
            Self::Folder(path)
        }
    }
}

/// Exports the directory `dir` of `volume`. `label` stands before paths of the volume in messages.
///
/// # Errors
/// What ended the export early; what concerns one name is told to `report`.
pub(crate) fn run(
    volume: &Volume,
    dir: &Path,
    label: &[u8],
    target: Target<'_>,
    options: &Options,
    report: &mut (dyn Report + Send),
) -> Result<(), Problem> {
    let label = [label, dir.as_os_str().as_bytes()].concat();
    let root = volume.open_dir(dir).map_err(|e| Problem::new("export", &label, e))?;
    match target {
        Target::Folder(folder) => folder::write(root, &label, folder, options, report),
        Target::Tar(path) => {
            let name = path.as_os_str().as_bytes();
            let file = create_archive(path, options).map_err(|e| Problem::new("write", name, e))?;
            tar::write(root, &label, file, name, options, report)
        }
        Target::Stdout => tar::write(root, &label, std::io::stdout(), b"-", options, report),
    }
}

/// Makes the file of an archive. An older archive is overwritten, other files are not.
fn create_archive(path: &Path, options: &Options) -> Outcome<File> {
    let program = program_for(path.as_os_str().as_bytes()).unwrap_or_default();
    if !matches!(program, "" | "gzip") {
        return Err(Cause::text(format!(
            "lanefs compresses with gzip only; lanefs export SRC - | {program} > {}",
            path.display()
        )));
    }
    let there = content::of_path(path).filter(|_| options.overwrite == Overwrite::NoVolumes);
    if let Some(there) = there
        && there != Content::Ext
        && there != if program.is_empty() { Content::Archive("tar") } else { Content::Compressed(program) }
    {
        return Err(Cause::text(format!(
            "it is there already and holds {}, no archive; --force overwrites it",
            there.name()
        )));
    }
    Ok(host::create_named(path, 0o666, true, options.overwrite)?.into())
}

/// Returns a path of the volume as messages name it.
fn named(label: &[u8], path: &[u8]) -> Vec<u8> {
    match (path, label.ends_with(b"/")) {
        (b"", _) => label.to_vec(),
        (_, true) => [label, path].concat(),
        (_, false) => [label, b"/", path].concat(),
    }
}

/// Returns the member for a name in a directory, from its metadata and attributes.
fn member_of(
    dir: &Dir,
    name: &OsStr,
    path: &[u8],
    options: &Options,
) -> Result<crate::archive::Member, Fault> {
    use crate::archive::{Kind, Member};
    use lanefs::FileType;
    let node = if name.is_empty() { dir.node() } else { dir.lookup(name)? };
    let meta = node.metadata();
    let device = || meta.device().map_or((0, 0), |d| (d.major, d.minor));
    let kind = match meta.file_type() {
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink(node.read_link()?.into_encoded_bytes()),
        FileType::CharDevice => Kind::CharDevice(device().0, device().1),
        FileType::BlockDevice => Kind::BlockDevice(device().0, device().1),
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        // The caller that opens the file finds its ranges.
        FileType::Regular => Kind::File { size: meta.len(), data: Vec::new() },
    };
    let (uid, gid) = options.ownership.apply(meta.uid(), meta.gid()).map_err(Cause::text)?;
    let mut xattrs: Vec<_> =
        node.xattrs()?.into_iter().map(|(name, value)| (name.into_encoded_bytes(), value)).collect();
    xattrs.sort();
    options.ownership.apply_to_acls(&mut xattrs);
    let mtime = options.epoch.clamp(meta.mtime());
    Ok(Member { path: path.to_vec(), kind, mode: meta.permissions(), uid, gid, mtime, xattrs })
}

/// Returns the data ranges of a file, joined where they touch.
fn data_ranges(file: &lanefs::File, size: u64) -> lanefs::Result<crate::archive::Ranges> {
    let mut ranges = crate::archive::Ranges::new();
    let mut at = 0;
    while let Some((start, end)) = file.next_data(at)?.filter(|(start, _)| *start < size) {
        let end = end.min(size);
        match ranges.last_mut() {
            Some((first, len)) if *first + *len == start => *len = end - *first,
            _ => ranges.push((start, end - start)),
        }
        at = end;
    }
    Ok(ranges)
}
