//! Failures of operations on paths: they name the operation and the path.

use super::{Error, Result};
use lanefs_device::Op;
use std::fmt;
use std::path::{Path, PathBuf};

/// A failed operation of [`Volume`](crate::Volume), [`At`](crate::At) or [`Dir`](crate::Dir): what
/// failed, with which path, and why.
///
/// It reads as one line: `cannot open "/etc/passwd": No such file or directory`. Operations on an
/// open [`File`](crate::File) or a [`Node`](crate::Node) have no path to name.
#[derive(Debug)]
pub struct OperationError {
    operation: &'static str,
    path: PathBuf,
    target: Option<PathBuf>,
    source: Error,
}

impl OperationError {
    /// Returns what failed, as words that follow "cannot".
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// Returns the path as the caller gave it: inside the volume, or that of the volume itself. In
    /// an error of a [`Dir`](crate::Dir) it is the name in that directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the second path of a rename or a link.
    #[must_use]
    pub fn target(&self) -> Option<&Path> {
        self.target.as_deref()
    }
}

impl fmt::Display for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, path, target, source } = self;
        // Quoted as `Debug` does: a name may contain control characters.
        match target {
            Some(target) => write!(f, "cannot {operation} {path:?} to {target:?}: {source}"),
            None => write!(f, "cannot {operation} {path:?}: {source}"),
        }
    }
}

impl std::error::Error for OperationError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl Error {
    /// Returns the reason without the operation and the path, for matching.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let e = volume.open_file("/absent").unwrap_err();
    /// assert!(matches!(e.kind(), lanefs::Error::NotFound));
    /// assert_eq!(e.to_string(), "cannot open \"/absent\": No such file or directory");
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    #[must_use]
    pub fn kind(&self) -> &Error {
        match self {
            Error::Operation(e) => &e.source,
            bare => bare,
        }
    }

    /// Returns the reason without the operation and the path, as [`kind`](Self::kind) does, by
    /// value: `result.map_err(Error::into_kind)`.
    #[must_use]
    pub fn into_kind(self) -> Error {
        match self {
            Error::Operation(e) => e.source,
            bare => bare,
        }
    }

    /// Returns the path that the operation failed with, if the error names one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Error::Operation(e) => Some(&e.path),
            _ => None,
        }
    }

    /// Adds the operation and its paths to an error that names no path.
    fn naming(self, operation: &'static str, path: &Path, target: Option<&Path>) -> Error {
        match self {
            Error::Operation(_) => self,
            Error::Device(ref e) if matches!(e.op, Op::Open | Op::Lock) => self,
            source => {
                let (path, target) = (path.to_owned(), target.map(Path::to_owned));
                Error::Operation(Box::new(OperationError { operation, path, target, source }))
            }
        }
    }
}

/// Names operation and path in a failure: `result.or_cannot("open", path)`. A success costs
/// nothing.
pub(crate) trait OrCannot<T> {
    fn or_cannot(self, operation: &'static str, path: impl AsRef<Path>) -> Result<T>;

    /// Does the same, with the second path of a rename or a link.
    fn or_cannot_to(
        self,
        operation: &'static str,
        path: impl AsRef<Path>,
        target: impl AsRef<Path>,
    ) -> Result<T>;
}

impl<T> OrCannot<T> for Result<T> {
    fn or_cannot(self, operation: &'static str, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|e| e.naming(operation, path.as_ref(), None))
    }

    fn or_cannot_to(
        self,
        operation: &'static str,
        path: impl AsRef<Path>,
        target: impl AsRef<Path>,
    ) -> Result<T> {
        self.map_err(|e| e.naming(operation, path.as_ref(), Some(target.as_ref())))
    }
}
