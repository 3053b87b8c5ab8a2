//! File content (placeholder until it lands).
use crate::error::{Error, Result};
use crate::inode::Node;
use crate::volume::Fs;
use lanefs_format::Inode;
fn none<T>() -> Result<T> {
    Err(Error::NotSupported("file content".into()))
}
/// Reads content; the caller holds the inode still (its data lock, or nobody else has it).
pub(crate) fn read(_: &Fs, _: u32, _: &Inode, _: u64, _: &mut [u8]) -> Result<usize> {
    none()
}
pub(crate) fn write(_: &Node, _: u64, _: &[u8]) -> Result<()> {
    none()
}
pub(crate) fn append(_: &Node, _: &[u8]) -> Result<u64> {
    none()
}
/// Sets i_size, in as many transactions as it takes.
pub(crate) fn truncate(_: &Node, _: u64) -> Result<()> {
    none()
}
/// Frees what lies behind i_size: recovery of a truncation that was cut. The node is an orphan already.
pub(crate) fn truncate_tail(_: &Node) -> Result<()> {
    none()
}
/// Frees all blocks of an orphan that is to be deleted, whatever its i_size and type.
pub(crate) fn truncate_for_delete(_: &Node) -> Result<()> {
    Ok(())
}
