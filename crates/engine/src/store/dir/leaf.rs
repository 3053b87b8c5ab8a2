//! Entries inside one directory block: find, add, remove, compact.
//!
//! These functions work on the bytes of a block that
//! [`verify_block`](lanefs_format::dirent::verify_block) has checked; the caller updates checksums.
//! Only [`pack`] moves entries, so byte offsets in linear directories stay valid.

use super::NewEntry;
use lanefs_format::dirent::{self, DirLayout, Dirent, DirentError, entries, rec_len};

/// The result of one pass over a block for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scan {
    pub(super) hit: Option<Hit>,
    /// Where an entry of the name fits.
    pub(super) room: Option<usize>,
}

/// An entry, and the one before it in its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) offset: usize,
    pub(super) before: Option<usize>,
    pub(super) inode: u32,
}

/// Searches for `name`, and on the way for room for it.
///
/// Every lookup ends here, so this decodes the headers itself. It checks only what keeps it inside
/// the block, and makes no slice of a name of another length.
pub(super) fn scan(block: &[u8], layout: &DirLayout, name: &[u8]) -> Result<Scan, DirentError> {
    let need = rec_len(name.len());
    // Names of one directory seldom differ at the start: compare the last bytes first.
    let tail = name.last_chunk::<8>();
    let mut scan = Scan { hit: None, room: None };
    let (mut before, mut at, end) = (None, 0, layout.end());
    while at < end {
        let header = block.get(at..end).and_then(|b| b.first_chunk::<{ dirent::HEADER_LEN }>());
        let Some(&[i0, i1, i2, i3, r0, r1, name_len, _]) = header else {
            return Err(DirentError::Truncated { offset: at, bound: end });
        };
        let inode = u32::from_le_bytes([i0, i1, i2, i3]);
        let len = layout.decode_rec_len(u16::from_le_bytes([r0, r1]));
        let name_len = usize::from(name_len);
        let used = if inode == 0 { 0 } else { rec_len(name_len) };
        if len < dirent::MIN_REC_LEN || used > len {
            // Returns the error that names the broken rule.
            Dirent::parse_bounds(block, at, layout)?;
        }
        let here = at + dirent::HEADER_LEN;
        let same = |found: &[u8]| found.last_chunk::<8>() == tail && found == name;
        if name_len == name.len() && inode != 0 && block.get(here..here + name_len).is_some_and(same) {
            scan.hit = Some(Hit { offset: at, before, inode });
            break;
        }
        if scan.room.is_none() && len.saturating_sub(used) >= need {
            scan.room = Some(at);
        }
        before = Some(at);
        at += len.max(dirent::MIN_REC_LEN);
    }
    Ok(scan)
}

/// Adds an entry in the slack of the entry at `offset`.
///
/// # Errors
/// The slack is too small; nothing is written.
pub(super) fn add(
    block: &mut [u8],
    layout: &DirLayout,
    offset: usize,
    new: &NewEntry<'_>,
) -> Result<(), DirentError> {
    let host = Dirent::parse_bounds(block, offset, layout)?;
    let (need, room, len) = (new.need(), host.slack(), host.rec_len);
    if need > room {
        return Err(DirentError::NoRoom { offset, need, room });
    }
    let kept = len - room;
    dirent::write_entry(block, layout, &new.at(offset + kept, room))?;
    if kept != 0 {
        dirent::write_rec_len(block, layout, offset, kept);
    }
    Ok(())
}

/// Removes the entry at `hit`: the entry before it grows over it.
///
/// # Errors
/// The place does not hold such an entry any more; nothing is written.
pub(super) fn take(block: &mut [u8], layout: &DirLayout, hit: &Hit) -> Result<(), DirentError> {
    let entry = Dirent::parse_bounds(block, hit.offset, layout)?;
    let (used, len) = (rec_len(entry.name.len()), entry.rec_len);
    let Some(offset) = hit.before else {
        dirent::write_free(block, layout, hit.offset, len, used);
        return Ok(());
    };
    let before = Dirent::parse_bounds(block, offset, layout)?.rec_len;
    dirent::write_free(block, layout, hit.offset, 0, used);
    dirent::write_rec_len(block, layout, offset, before + len);
    Ok(())
}

/// Returns whether the place still holds `name`, reached from the entry before it.
pub(super) fn holds(block: &[u8], layout: &DirLayout, hit: &Hit, name: &[u8]) -> bool {
    let at = |offset| Dirent::parse_bounds(block, offset, layout);
    let reached = match hit.before {
        None => hit.offset == 0,
        Some(before) => at(before).is_ok_and(|e| e.next() == hit.offset),
    };
    reached && at(hit.offset).is_ok_and(|e| e.inode == hit.inode && e.name == name)
}

/// Returns the bytes that the entries in use need when they are compacted.
pub(super) fn live_bytes(block: &[u8], layout: &DirLayout) -> usize {
    entries(block, layout).flatten().filter(|e| e.inode != 0).map(|e| rec_len(e.name.len())).sum()
}

/// Rebuilds `block` from `items` without gaps; the last one gets the rest of the block.
///
/// # Errors
/// They do not fit.
pub(super) fn pack<'a>(
    block: &mut [u8],
    layout: &DirLayout,
    items: impl Iterator<Item = Dirent<'a>>,
) -> Result<(), DirentError> {
    dirent::init_block(block, layout);
    let (mut at, mut last) = (0, 0);
    for item in items {
        let len = rec_len(item.name.len());
        dirent::write_entry(block, layout, &Dirent { offset: at, rec_len: len, ..item })?;
        (last, at) = (at, at + len);
    }
    if at != 0 {
        dirent::write_rec_len(block, layout, last, layout.end() - last);
    }
    Ok(())
}
