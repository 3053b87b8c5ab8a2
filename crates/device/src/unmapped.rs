//! Mapped volumes on systems other than Linux, which lanefs does not map: types without a value.

use crate::errno::EOPNOTSUPP;
use crate::{DeviceError, FileOptions, MemDevice, Op, Result};
use std::convert::Infallible;
use std::ops::Deref;
use std::path::Path;

/// A volume in a mapped file: on Linux only.
pub(crate) enum PmemDevice {}

impl PmemDevice {
    pub(crate) fn open_with(_options: &FileOptions, path: &Path) -> Result<MemDevice> {
        refuse(path)
    }

    pub(crate) fn create(path: &Path, _size: u64) -> Result<MemDevice> {
        refuse(path)
    }
}

fn refuse(path: &Path) -> Result<MemDevice> {
    Err(DeviceError::at_path(Op::Open, path, EOPNOTSUPP, "volumes are mapped on Linux only"))
}

/// A volume that is mapped into memory: on Linux only.
#[derive(Debug, Clone)]
pub struct Mapped(Infallible);

/// A part of a mapped volume: on Linux only.
#[derive(Debug)]
pub struct Lent(Infallible);

/// The failures that a completed write to a mapping survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// A power cut.
    Power,
    /// The end of the process.
    Process,
    /// The end of the process, and after a flush a power cut.
    Flush,
}

impl Mapped {
    /// Returns which failures a completed write survives.
    pub fn persistence(&self) -> Persistence {
        match self.0 {}
    }

    /// Lends a range as a slice.
    pub fn lend(&self, _offset: u64, _len: usize) -> Option<Lent> {
        match self.0 {}
    }
}

impl Deref for Lent {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self.0 {}
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
