//! Fast commits are not replayed; a log that holds one is refused rather than half recovered.

use crate::log::LogMap;
use crate::{JournalError, Result, Tid};
use lanefs_device::BlockDevice;
use lanefs_format::jbd2::Superblock;

const TAG_TAIL: u16 = 8;
const TAG_HEAD: u16 = 9;

/// Fails if the fast-commit area holds a fast commit on top of the committed transactions, the
/// last of which comes before `end`.
///
/// A fast commit is a chain of little-endian (tag, length, value) entries: a head with a
/// transaction number in its second word, entries, and a tail with the same number. Entries do not
/// cross blocks.
pub(super) fn refuse(device: &dyn BlockDevice, map: &LogMap, sb: &Superblock, end: Tid) -> Result<()> {
    // The area's first block is used by some writers and skipped by others.
    for start in [sb.end(), sb.end().saturating_add(1)] {
        if sb.fast_commit_blocks() > 0 && is_fast_commit(device, map, start..sb.maxlen(), end)? {
            return Err(JournalError::FastCommit { tid: end });
        }
    }
    Ok(())
}

fn is_fast_commit(
    device: &dyn BlockDevice,
    map: &LogMap,
    area: std::ops::Range<u32>,
    tid: Tid,
) -> Result<bool> {
    let mut first = true;
    for at in area {
        let block = map.read(device, at)?;
        let mut rest = &block[..];
        while let Some((entry, value)) = rest.split_at_checked(4) {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            let len = usize::from(u16::from_le_bytes([entry[2], entry[3]]));
            let word =
                |i: usize| value.get(4 * i..4 * i + 4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
            match tag {
                TAG_HEAD if word(1) != Some(tid.0) => return Ok(false),
                TAG_HEAD => {}
                _ if first => return Ok(false),
                TAG_TAIL => return Ok(word(0) == Some(tid.0)),
                1..TAG_TAIL => {}
                _ => return Ok(false),
            }
            first = false;
            rest = value.get(len..).unwrap_or_default();
        }
    }
    Ok(false)
}
