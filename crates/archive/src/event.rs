//! Events that an import, an export, a build or a comparison reports to its caller.

use crate::difference::Difference;
use crate::{Action, Cause, Error, Place};
use std::ops::ControlFlow;

/// A step of an import, an export, a build or a comparison.
///
/// The callback that receives it returns whether to go on. [`ControlFlow::Break`] cancels: the call
/// ends with an error whose [`is_cancelled`](Error::is_cancelled) is true.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// One more name: a file, a directory, a link or a device. Of a comparison: one in both trees.
    Entry,
    /// So many more bytes of file data; holes do not count. Of a comparison: those of one of both.
    Data(u64),
    /// So many more bytes were read to check the layers of an image, before anything is written.
    Checked(u64),
    /// One more name was found in the first pass of a build, which writes nothing.
    Found,
    /// The size of the volume that a build makes is known, in bytes.
    Sized(u64),
    /// So many more bytes were hashed for the tree of dm-verity.
    Hashed(u64),
    /// Nothing new: told ten times a second while a source gives nothing, and at the end of a
    /// build, so that the caller can cancel.
    Waiting,
    /// A name of which two trees that are compared differ.
    Differs(Difference),
    /// A name that is left out, or an attribute of it. The work goes on with the next name.
    Skipped(Error),
}

/// The callback of an import or an export.
pub(crate) type Tell<'a> = dyn FnMut(Event) -> ControlFlow<()> + Send + 'a;

/// Tells the caller of a step, and returns the error that ends the work if the caller wants that.
/// `place` is the tree in the volume.
pub(crate) fn tell(to: &mut Tell<'_>, event: Event, action: Action, place: &[u8]) -> Result<(), Error> {
    match to(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::new(action, Place::Volume(place.to_vec()), Cause::Cancelled)),
    }
}
