//! A layer of an image, where it lies on this machine.

use crate::compress::{self, READ_AHEAD};
use crate::{Action, Cause, Error, Place};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

/// A layer: a tar archive that may be compressed.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Its name in errors.
    pub(crate) name: Vec<u8>,
    blob: Blob,
}

/// Bytes that can be read more than once, unless they are a pipe.
#[derive(Debug)]
pub(crate) enum Blob {
    File(PathBuf),
}

impl Blob {
    pub(crate) fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        match self {
            Self::File(path) => Ok(Box::new(File::open(path)?)),
        }
    }
}

impl Layer {
    /// Returns the layer in a file. Looks into it, if it is no pipe.
    pub(crate) fn at(path: &Path) -> Result<Self, Error> {
        let name = path.as_os_str().as_encoded_bytes().to_vec();
        let layer = Self { name, blob: Blob::File(path.to_owned()) };
        let found = path.metadata().map_err(|e| layer.failed(Action::Open, e))?;
        if found.is_dir() {
            return Err(layer.failed(Action::Read, io::Error::from(io::ErrorKind::IsADirectory)));
        }
        if found.is_file() {
            layer.unpacked()?;
        }
        Ok(layer)
    }

    fn failed(&self, action: Action, cause: impl Into<Cause>) -> Error {
        Error::new(action, Place::Host(self.name.clone()), cause)
    }

    /// Opens the archive, unpacked.
    pub(crate) fn unpacked(&self) -> Result<Box<dyn Read + Send>, Error> {
        let stream = self.blob.open().map_err(|e| self.failed(Action::Open, e))?;
        let opened = compress::unpacked(BufReader::with_capacity(READ_AHEAD, stream));
        opened.map(|(stream, _)| stream).map_err(|e| self.failed(Action::Read, e))
    }
}
