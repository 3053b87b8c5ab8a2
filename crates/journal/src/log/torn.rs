//! Mends a journal superblock that was torn while it was written.
//!
//! Its fields and their checksum lie in the first 256 bytes, so only memory, which writes 8 bytes
//! at a time, can tear it. Each word is then the old or the new one. `s_sequence` and `s_start`
//! share a word, so they fit each other. `s_errno`, `s_head` and the features are right in both
//! forms: the superblock is durable before the commit block of a transaction that needs its new
//! form is written. What remains is to show that no committed transaction is lost by the tail.
//!
//! Hazard: the log is not trusted. The search reads the ring once, whatever the log claims.

use super::{LogMap, Ring};
use crate::{Result, Tid};
use lanefs_device::BlockDevice;
use lanefs_format::jbd2::{BlockType, Commit, CommitCheck, Header, Superblock};

/// Bytes of the superblock that hold its fields.
const FIELDS: usize = 256;

/// Returns the superblock in `block`, whose checksum is wrong, if the device can tear it and the
/// log agrees with it.
///
/// # Errors
/// The device's failure.
pub(super) fn mend(device: &dyn BlockDevice, map: &LogMap, block: &[u8]) -> Result<Option<Superblock>> {
    if device.atomic_write() >= FIELDS {
        return Ok(None);
    }
    let Ok(sb) = Superblock::parse_torn(block, map.block_size() as u32, map.blocks()) else {
        return Ok(None);
    };
    let loses_nothing = starts_at_tail(device, map, &sb)? || !has_commit(device, map, &sb)?;
    Ok(loses_nothing.then_some(sb))
}

/// Returns whether transaction `s_sequence` begins at block `s_start`.
fn starts_at_tail(device: &dyn BlockDevice, map: &LogMap, sb: &Superblock) -> Result<bool> {
    if sb.start() == 0 {
        return Ok(false);
    }
    let (layout, block) = (sb.layout(), map.read(device, sb.start())?);
    let Some(header) = Header::parse(&block).filter(|header| header.sequence == sb.sequence()) else {
        return Ok(false);
    };
    Ok(match header.block_type {
        Some(BlockType::Descriptor | BlockType::Revoke) => layout.verify_tail(&block),
        Some(BlockType::Commit) => Commit::check(&layout, &block, 0) != CommitCheck::Bad,
        _ => false,
    })
}

/// Returns whether the ring holds a commit block of transaction `s_sequence` or a later one. Its
/// checksum is not asked: where the UUID is damaged, every checksum of the log is wrong.
fn has_commit(device: &dyn BlockDevice, map: &LogMap, sb: &Superblock) -> Result<bool> {
    let (ring, first) = (Ring::new(sb), Tid(sb.sequence()));
    for at in (0..ring.len()).map(|n| ring.advance(ring.first(), n)) {
        let header = Header::parse(&map.read(device, at)?);
        let commit = header.filter(|header| header.block_type == Some(BlockType::Commit));
        if commit.is_some_and(|header| Tid(header.sequence).at_or_after(first)) {
            return Ok(true);
        }
    }
    Ok(false)
}
