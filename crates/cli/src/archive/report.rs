//! How an import or export reports its progress and its problems.

use crate::failure::words_of;
use std::fmt::Display;

/// A failure that concerns one name: `cannot VERB 'WHAT': CAUSE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// What could not be done: "read", "create".
    pub(crate) verb: &'static str,
    /// The name, as the user knows it.
    pub(crate) what: Vec<u8>,
    /// Why.
    pub(crate) cause: String,
}

impl Problem {
    pub(crate) fn new(verb: &'static str, what: &[u8], cause: impl Display) -> Self {
        Self { verb, what: what.to_vec(), cause: words_of(&cause.to_string()) }
    }

    /// Returns about how many bytes of memory it takes.
    pub(crate) fn memory(&self) -> usize {
        self.what.len() + self.cause.len()
    }
}

/// Receives the progress and the problems of an import or export.
pub(crate) trait Report {
    /// Counts `n` more bytes of data.
    fn bytes(&mut self, n: u64);
    /// Counts one more name.
    fn file(&mut self);
    /// Reports a problem that does not end the work.
    fn problem(&mut self, problem: Problem);
}
