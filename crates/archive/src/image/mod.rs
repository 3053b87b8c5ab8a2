//! Images of containers: OCI layouts and archives of `docker save`.
//!
//! An index or a `manifest.json` leads to the layers of one image ([`ImageChoice`]). Every document
//! is checked against its digest when it is read, every layer before the first of them is written.
//!
//! Invariants:
//! - A blob is found by a digest of a known form, or by a name of the archive: no path leads out.
//! - Documents, members of the archive, levels of indexes and their number are bounded.
//! - One decoder at a time that may take much memory.

mod archive_stream;
mod blob;
mod check;
mod choose;
mod copies;
mod digest;
mod documents;
mod error;
mod file_state;
mod in_order;
mod plain;
mod platform;
mod store;

pub(crate) use archive_stream::ArchiveStream;
pub(crate) use blob::Layer;
pub use choose::ImageChoice;
pub(crate) use copies::Copies;
pub(crate) use digest::Digest;
pub use error::{ImageError, Text};
pub(crate) use file_state::FileState;
pub(crate) use plain::PlainArchive;
pub use platform::{Platform, PlatformError};

use crate::limit::Limit;
use crate::pipe::{Gone, Outlet, PipeItem};
use crate::{Action, Cause, Error, Place};
use check::Takers;
use in_order::InOrder;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use store::Store;

/// Returns the layers of the image at `path`; `None` if it is no image.
pub(crate) fn find(path: &Path, choice: &ImageChoice) -> Result<Option<Vec<Layer>>, Error> {
    of_store(path.as_os_str().as_encoded_bytes(), Store::find(path), choice)
}

/// Returns the layers of the image in a file of the name `name`; `None` if it is no image.
pub(crate) fn find_in(name: &[u8], file: File, choice: &ImageChoice) -> Result<Option<Vec<Layer>>, Error> {
    of_store(name, Store::in_file(file), choice)
}

fn of_store(
    name: &[u8],
    store: Result<Option<Store>, Cause>,
    choice: &ImageChoice,
) -> Result<Option<Vec<Layer>>, Error> {
    let layers = store.and_then(|store| store.map(|store| choose::layers(&store, choice)).transpose());
    layers.map_err(|cause| Error::new(Action::Read, Place::Host(name.to_vec()), cause))
}

/// Returns whether an archive that begins like this may be an image. Reads no more than that takes.
pub(crate) fn may_begin(stream: impl Read + Send) -> bool {
    store::may_begin(stream)
}

/// Checks what an image says of its layers. Layers that came without an image pass.
pub(crate) fn check(
    layers: &[Layer],
    max_size: Option<u64>,
    tell: impl FnMut(u64) -> Result<(), Error>,
) -> Result<(), Error> {
    if layers.iter().all(|layer| layer.expected.diff_id.is_none()) {
        return Ok(());
    }
    check::check(layers, &Limit::new(max_size), None, tell)
}

/// Checks what there is to check of layers, sends their members without data, in the order of the
/// layers, and copies what they unpack to.
pub(crate) fn check_and_send(
    layers: &[Layer],
    max_size: Option<u64>,
    copies: &Copies,
    out: &mut Outlet,
) -> Result<(), Gone> {
    let order = InOrder::new(layers, out);
    let tell = |bytes| order.checked(bytes).map_err(|e| Error::new(Action::Read, Place::Host(Vec::new()), e));
    let takers = Takers { members: &order, copies };
    let checked = check::check(layers, &Limit::new(max_size), Some(takers), tell);
    drop(order);
    checked.or_else(|e| out.push(PipeItem::Failed(e)))
}
