//! Directories (placeholder until they land).
use crate::error::{Error, Result};
use crate::txn::Txn;
use crate::volume::Fs;
use lanefs_format::{FileType, Inode, Superblock};
use std::ops::ControlFlow;

#[derive(Debug)]
pub(crate) struct DirParams;
impl DirParams {
    pub(crate) fn new(_: &Superblock) -> Self {
        Self
    }
}
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) ino: u32,
    pub(crate) file_type: Option<FileType>,
    pub(crate) cookie: u64,
}
pub(crate) struct Found {
    pub(crate) ino: u32,
}
pub(crate) const CREDITS_REMOVE: u32 = 4;
pub(crate) fn credits_insert(_: &Fs) -> u32 {
    24
}
fn none<T>() -> Result<T> {
    Err(Error::NotSupported("directories".into()))
}
pub(crate) fn lookup(_: &Fs, _: u32, _: &Inode, _: &[u8]) -> Result<Option<Found>> {
    none()
}
pub(crate) fn insert(_: &mut Txn<'_>, _: u32, _: &mut Inode, _: &[u8], _: u32, _: FileType) -> Result<()> {
    none()
}
pub(crate) fn remove(_: &mut Txn<'_>, _: u32, _: &mut Inode, _: &[u8]) -> Result<()> {
    none()
}
pub(crate) fn replace(_: &mut Txn<'_>, _: u32, _: &mut Inode, _: &[u8], _: u32, _: FileType) -> Result<()> {
    none()
}
pub(crate) fn init(_: &mut Txn<'_>, _: u32, _: &mut Inode, _: u32) -> Result<()> {
    none()
}
pub(crate) fn is_empty(_: &Fs, _: u32, _: &Inode) -> Result<bool> {
    none()
}
pub(crate) fn read_dir(
    _: &Fs,
    _: u32,
    _: &Inode,
    _: u64,
    _: &mut dyn FnMut(Entry<'_>) -> ControlFlow<()>,
) -> Result<()> {
    none()
}
