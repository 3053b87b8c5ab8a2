//! One face over extents and indirect blocks (placeholder until they land).
use crate::error::{Error, Result};
use crate::txn::Txn;
use crate::volume::Fs;
use lanefs_format::Inode;

pub(crate) enum Mapping {
    Hole {
        #[allow(dead_code)]
        len: u32,
    },
    Mapped {
        block: u64,
        len: u32,
        unwritten: bool,
    },
}
fn none<T>() -> Result<T> {
    Err(Error::NotSupported("block maps".into()))
}
pub(crate) fn lookup(_: &Fs, _: u32, _: &Inode, _: u32) -> Result<Mapping> {
    none()
}
pub(crate) fn init_extents(_: &mut Inode) {}
pub(crate) fn alloc_append(_: &mut Txn<'_>, _: u32, _: &mut Inode, _: u32) -> Result<u64> {
    none()
}
pub(crate) fn first_run(_: &Fs, _: u32, _: &Inode) -> Result<Option<(u64, u32)>> {
    none()
}
