//! A revoke block: older copies of these blocks are not to be replayed.

use super::{BlockType, Header, Jbd2Error, Layout, get_u32, get_u64, put_u32, put_u64};

/// Header and `r_count`.
pub(crate) const REVOKE_HEADER_LEN: usize = 16;

/// Returns the blocks that a revoke block names. The caller has checked its header and
/// [tail](Layout::verify_tail). An `r_count` that ends before the first record names none, as in
/// the kernel.
///
/// # Errors
/// `r_count` is beyond the end of the block.
pub fn parse_revokes<'a>(
    layout: &Layout,
    block: &'a [u8],
) -> Result<impl Iterator<Item = u64> + use<'a>, Jbd2Error> {
    let max = block.len().saturating_sub(layout.tail_len());
    let count = get_u32(block, 12).unwrap_or(0);
    let end = usize::try_from(count).ok().filter(|&end| end <= max);
    let records = end.and_then(|end| block.get(REVOKE_HEADER_LEN..end.max(REVOKE_HEADER_LEN)));
    let records = records.ok_or(Jbd2Error::RevokeCount { count, max })?;
    let is_64bit = layout.is_64bit;
    Ok(records.chunks_exact(if is_64bit { 8 } else { 4 }).map(move |record| {
        let number = if is_64bit { get_u64(record, 0) } else { get_u32(record, 0).map(u64::from) };
        number.unwrap_or(u64::MAX)
    }))
}

/// Builds a revoke block.
#[derive(Debug)]
pub struct RevokeBlock;

impl RevokeBlock {
    /// Fills `block` with a revoke of `blocks` in transaction `sequence`; at most
    /// [`Layout::revokes_per_block`].
    pub fn write(layout: &Layout, block: &mut [u8], sequence: u32, blocks: &[u64]) {
        block.fill(0);
        Header::put(block, BlockType::Revoke, sequence);
        let mut at = REVOKE_HEADER_LEN;
        for &number in blocks {
            if layout.is_64bit {
                put_u64(block, at, number);
                at += 8;
            } else {
                put_u32(block, at, number as u32);
                at += 4;
            }
        }
        put_u32(block, 12, at as u32);
        layout.seal_tail(block);
    }
}
