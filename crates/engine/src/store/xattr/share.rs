//! Attribute blocks that many inodes share.
//!
//! Files of one tree often have the same attributes (an ACL, a security label). A block with an
//! equal list is used again, and counts its users in `h_refcount`. [`Sharing`] remembers, by
//! `h_hash`, blocks that this mount wrote or whose users it changed.
//!
//! Invariants:
//! - While more than one inode uses a block its list does not change.
//! - [`Sharing`] is a hint: the content of a block that it returns is compared.
//!
//! Lock: the mutex of [`Sharing`] is held while a block gets or loses a user, below the inode's
//! lock and above block groups and buffers.

use super::block;
use crate::store::Store;
use lanefs_format::xattr as codec;
use lanefs_journal::Buffer;
use lanefs_sync::{Mutex, MutexGuard};
use std::collections::HashMap;

/// Blocks that are remembered at most.
const LIMIT: usize = 8192;

/// The blocks that another inode may share.
#[derive(Debug, Default)]
pub(crate) struct Sharing(Mutex<ByHash>);

#[derive(Debug, Default)]
pub(super) struct ByHash(HashMap<u32, u64>);

impl Sharing {
    pub(super) fn lock(&self) -> MutexGuard<'_, ByHash> {
        self.0.lock()
    }
}

impl ByHash {
    /// Returns a block whose list equals that of the block's bytes `content`, with room for a user.
    /// One that cannot be read is none.
    pub(super) fn find(&self, store: &Store, ino: u32, hash: u32, content: &[u8]) -> Option<Buffer> {
        let buffer = block::load(store, ino, *self.0.get(&hash)?).ok().flatten()?;
        let bytes = buffer.read();
        let header = codec::BlockHeader::parse(&bytes).ok();
        let room = header.is_some_and(|h| h.refcount < codec::EXT4_XATTR_REFCOUNT_MAX);
        let equal = match (codec::parse_block(&bytes), codec::parse_block(content)) {
            (Ok(a), Ok(b)) => a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| a.same(b)),
            _ => false,
        };
        drop(bytes);
        (room && equal).then_some(buffer)
    }

    /// Remembers that a block with this hash may be shared. Hash 0 means that it must not be.
    pub(super) fn remember(&mut self, hash: u32, block: u64) {
        if self.0.len() >= LIMIT {
            self.0.clear();
        }
        if hash != 0 {
            self.0.insert(hash, block);
        }
    }

    pub(super) fn forget(&mut self, hash: u32, block: u64) {
        if self.0.get(&hash) == Some(&block) {
            self.0.remove(&hash);
        }
    }
}
