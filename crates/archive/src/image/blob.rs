//! A layer of an image, where it lies on this machine.

use super::digest::Digest;
use super::plain::{PlainArchive, RangeReader};
use crate::compress::{self, READ_AHEAD};
use crate::content::{self, ARCHIVE_HEAD, Content};
use crate::{Action, Cause, Error, Place};
use std::fs::File;
#[cfg(unix)]
use std::fs::Metadata;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A layer: a tar archive that may be compressed.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Its name in errors.
    pub(crate) name: Vec<u8>,
    pub(crate) blob: Blob,
    pub(crate) expected: Expected,
}

/// What an image says of a layer.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// The digest and the size of the blob.
    pub(crate) blob: Option<(Digest, u64)>,
    /// The digest of the archive, unpacked.
    pub(crate) diff_id: Option<Digest>,
}

/// Bytes that can be read more than once, unless they are a pipe.
#[derive(Debug, Clone)]
pub(crate) enum Blob {
    File(PathBuf),
    /// A range of a file: where it begins, and its length.
    Range(Arc<File>, u64, u64),
    /// What a compressed layer unpacks to, and its length. It is an archive, even if the name of
    /// its first member looks like the head of a compressed one.
    Unpacked(Arc<File>, u64),
}

impl Blob {
    /// Returns whether it lies in the file at `path`.
    #[cfg(unix)]
    pub(crate) fn is_in(&self, path: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        let own = match self {
            Self::File(path) => path.metadata(),
            Self::Range(file, ..) | Self::Unpacked(file, _) => file.metadata(),
        };
        let identity = |meta: io::Result<Metadata>| meta.ok().map(|meta| (meta.dev(), meta.ino()));
        identity(own).is_some_and(|own| identity(path.metadata()) == Some(own))
    }

    /// Returns whether it is the file at `path`.
    #[cfg(not(unix))]
    pub(crate) fn is_in(&self, path: &Path) -> bool {
        let Self::File(own) = self else { return false };
        own.canonicalize().is_ok_and(|own| path.canonicalize().is_ok_and(|path| path == own))
    }

    pub(crate) fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        let range =
            |file, at: u64, len| RangeReader { file: Arc::clone(file), at, end: at.saturating_add(len) };
        Ok(match self {
            Self::File(path) => Box::new(File::open(path)?),
            Self::Range(file, at, len) => Box::new(range(file, *at, *len)),
            Self::Unpacked(file, len) => Box::new(range(file, 0, *len)),
        })
    }
}

impl Layer {
    /// Returns the archive in a file, which is not looked at.
    pub(crate) fn of_file(path: &Path) -> Self {
        let name = path.as_os_str().as_encoded_bytes().to_vec();
        Self { name, blob: Blob::File(path.to_owned()), expected: Expected::default() }
    }

    /// Returns the archive in a file that is open.
    pub(crate) fn in_file(name: &[u8], file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        let blob = Blob::Range(Arc::new(file), 0, len);
        Ok(Self { name: name.to_vec(), blob, expected: Expected::default() })
    }

    /// Returns the layer in a file. Looks into it, if it is no pipe.
    pub(crate) fn at(path: &Path) -> Result<Self, Error> {
        let layer = Self::of_file(path);
        let found = path.metadata().map_err(|e| layer.failed(Action::Open, e))?;
        if found.is_dir() {
            return Err(layer.failed(Action::Read, io::Error::from(io::ErrorKind::IsADirectory)));
        }
        if found.is_file() {
            layer.unpacked()?;
        }
        Ok(layer)
    }

    /// Returns the names of layers in errors, in their order.
    pub(crate) fn labels(layers: &[Self]) -> impl Iterator<Item = String> {
        let label = |(i, layer): (usize, &Self)| {
            format!("layer {} of {}, {}", i + 1, layers.len(), Place::Host(layer.name.clone()))
        };
        layers.iter().enumerate().map(label)
    }

    /// Returns whether it can be read more than once.
    pub(crate) fn is_repeatable(&self) -> bool {
        match &self.blob {
            Blob::File(path) => path.metadata().is_ok_and(|found| found.is_file()),
            Blob::Range(..) | Blob::Unpacked(..) => true,
        }
    }

    pub(crate) fn failed(&self, action: Action, cause: impl Into<Cause>) -> Error {
        Error::new(action, Place::Host(self.name.clone()), cause)
    }

    /// Returns the archive as it lies in its file; `None` if it is compressed or a pipe.
    pub(crate) fn plain(&self) -> io::Result<Option<PlainArchive>> {
        if !self.is_repeatable() {
            return Ok(None);
        }
        let archive = match &self.blob {
            Blob::File(path) => {
                let file = File::open(path)?;
                let len = file.metadata()?.len();
                PlainArchive { file: Arc::new(file), at: 0, len }
            }
            Blob::Range(file, at, len) => PlainArchive { file: Arc::clone(file), at: *at, len: *len },
            Blob::Unpacked(file, len) => {
                return Ok(Some(PlainArchive { file: Arc::clone(file), at: 0, len: *len }));
            }
        };
        let mut head = [0; ARCHIVE_HEAD];
        let want = archive.len.min(ARCHIVE_HEAD as u64) as usize;
        archive.excerpt(0..want as u64).read(0, &mut head[..want])?;
        let packed = matches!(content::of_head(&head[..want]), Some(Content::Compressed(_)));
        Ok((!packed).then_some(archive))
    }

    /// Opens the archive, unpacked.
    pub(crate) fn unpacked(&self) -> Result<Box<dyn BufRead + Send>, Error> {
        let stream = self.blob.open().map_err(|e| self.failed(Action::Open, e))?;
        if matches!(self.blob, Blob::Unpacked(..)) {
            return Ok(Box::new(BufReader::with_capacity(READ_AHEAD, stream)));
        }
        let opened = compress::unpacked(BufReader::with_capacity(READ_AHEAD, stream));
        opened.map(|(stream, _)| stream).map_err(|e| self.failed(Action::Read, e))
    }
}
