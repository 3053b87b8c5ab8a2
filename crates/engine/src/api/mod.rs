//! The face that programs see, shaped like `std::fs`.

mod dir;
mod file;
mod metadata;
mod path;
mod volume;

pub use dir::{Dir, DirEntry, DirEntryRef};
pub use file::{File, FileOptions};
pub use metadata::Metadata;
pub use volume::{Volume, VolumeInfo};
