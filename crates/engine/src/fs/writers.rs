//! The threads that change the content of files, which a close of the volume refuses and waits for.
//!
//! The handle of a change of metadata is either committed by a close, or refused by the journal. A
//! change of content is made in memory first, and a close that has passed the file would not write
//! it out. So each such change is [entered](Writers::enter) while it is made. A close first
//! [refuses](Writers::refuse) new ones and waits for the others, and then writes files out.
//!
//! Invariant: a thread enters with the bytes of the file locked, and waits for no lock of bytes
//! before it leaves. A caller may hold such a lock for as long as it likes (`File::map`), and may
//! be the thread that closes the volume.

use super::admission::{Admission, Admitted};
use lanefs_sync::order::{Level, Note};

/// The threads that are inside.
#[derive(Debug, Default)]
pub(crate) struct Writers(Admission);

/// A thread that is inside.
#[derive(Debug)]
pub(crate) struct Writer<'w> {
    _admitted: Admitted<'w>,
    _note: Note,
}

impl Writers {
    /// Lets the caller begin a change; `None` once they are refused.
    pub(super) fn enter(&self) -> Option<Writer<'_>> {
        let note = Note::new(Level::Writers, 0);
        self.0.enter().map(|admitted| Writer { _admitted: admitted, _note: note })
    }

    pub(super) fn are_refused(&self) -> bool {
        self.0.refuses()
    }

    /// Refuses all changes from now on, and waits for those that have begun.
    pub(super) fn refuse(&self) {
        self.0.refuse();
    }
}
