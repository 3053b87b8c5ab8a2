//! Rings where there are none: crate `io-uring` is for processors of 64 bits.

use super::piece::{Source, Target};
use std::fs::File;
use std::io;

/// The rings of a device: none.
#[derive(Debug, Default)]
pub(super) struct Rings;

/// The answers to a run: nothing was asked.
pub(super) type Answers = Vec<Option<i32>>;

impl Rings {
    pub(super) fn probe(&self, _file: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn make_all(&self, file: &File) -> io::Result<()> {
        self.probe(file)
    }

    pub(super) fn write<'a>(
        &self,
        _file: &File,
        runs: impl ExactSizeIterator<Item = (u64, &'a [Source<'a>])>,
    ) -> Answers {
        vec![None; runs.len()]
    }

    pub(super) fn read<'a, 'b: 'a>(
        &self,
        _file: &File,
        runs: impl ExactSizeIterator<Item = (u64, &'a mut [Target<'b>])>,
    ) -> Answers {
        vec![None; runs.len()]
    }
}
