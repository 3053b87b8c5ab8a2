//! What import and export have in common: members of a tree, and the tar format.
//!
//! A [`Member`] is one name of a tree with all that lanefs keeps of it, on its way from a folder, a
//! tar stream or a volume to another of them. Data does not go with it: it follows in pieces,
//! through a bounded [`pipe`](pipe::pipe) from the reading thread to the writing thread.

mod acl_text;
pub(crate) mod compress;
pub(crate) mod host;
mod ids;
mod member;
mod path;
pub(crate) mod pipe;
pub(crate) mod places;
mod report;
pub(crate) mod tarball;

pub(crate) use ids::{IdMap, IdRange, Ownership};
pub(crate) use member::{Epoch, Kind, Member, Ranges, Xattrs};
pub(crate) use path::{clean, shown};
pub(crate) use report::{Problem, Report};
