//! Operations on names: those that a kernel's virtual file system calls in ext4.
//!
//! Every operation locks the directories that it changes (several in the order of their inode
//! numbers), starts one handle with credits for all blocks that it may change, and then changes
//! them. So each operation is atomic after a crash, and operations become durable in the order in
//! which they were done. Errors that a caller can cause are found before anything changes.

mod attr;
mod create;
mod link;
mod lookup;
mod remove;
mod rename;
#[cfg(test)]
mod tests;
mod xattr;

pub(crate) use attr::CAPABILITY;
pub use attr::{Atime, Modifier, SetAttr, SetTime};
pub use create::{NewAttr, NewKind};
pub(crate) use create::{PATH_MAX, check_target};
pub(crate) use link::link_found;
pub use rename::RenameFlags;

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::store::Store;
use crate::store::dir::check_name;
use lanefs_format::{Compat, EXT4_LINK_MAX, Inode, InodeFlags, RoCompat};
use lookup::{find, find_entry, find_name};

pub(crate) fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Checks that a name can be made.
fn check_new_name(name: &[u8]) -> Result<()> {
    check_name(name)?;
    if is_dots(name) { Err(Error::Exists) } else { Ok(()) }
}

/// Checks whether another subdirectory fits in `dir`. With `dir_nlink`, those of an indexed
/// directory may be too many to count.
fn check_dir_links(fs: &Fs, dir: &Inode) -> Result<()> {
    let indexed = fs.has(Compat::DIR_INDEX) && dir.flags.contains(InodeFlags::INDEX);
    let uncounted = fs.has_ro(RoCompat::DIR_NLINK) && indexed;
    if dir.links_count >= EXT4_LINK_MAX && !uncounted { Err(Error::TooManyLinks) } else { Ok(()) }
}

/// Counts a new subdirectory. Beyond the bound a directory has 1 link: "too many to count".
fn add_dir_link(store: &Store, dir: &mut Inode) {
    if dir.links_count == 1 && store.has_ro(RoCompat::DIR_NLINK) {
        return;
    }
    dir.links_count = if dir.links_count >= EXT4_LINK_MAX { 1 } else { dir.links_count + 1 };
}

/// Counts a removed subdirectory. A directory keeps its own two links, and 1 stays 1.
fn drop_dir_link(dir: &mut Inode) {
    if dir.links_count > 2 {
        dir.links_count -= 1;
    }
}
