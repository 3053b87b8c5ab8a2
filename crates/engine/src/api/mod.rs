//! The interface for programs, shaped like `std::fs`.

mod at;
mod batch;
mod copy;
mod cursor;
mod dir;
mod file;
mod file_options;
mod fragmentation;
mod make;
mod mapped;
mod metadata;
pub mod mmp;
mod node;
mod observer;
mod open;
mod path;
mod resize;
mod upkeep;
mod verity;
mod volume;
mod xattr;

pub use at::At;
pub use batch::Io;
pub use cursor::FileCursor;
pub use dir::{Dir, DirEntry, DirEntryRef};
pub use file::File;
pub use file_options::FileOptions;
pub use fragmentation::{Extents, Fragmentation, FreeRuns};
pub use mapped::Mapped;
pub use metadata::Metadata;
pub use node::Node;
pub use observer::Observer;
pub use path::AtSymlink;
pub use resize::Resize;
pub use upkeep::Upkeep;
pub use volume::{Volume, VolumeInfo};
