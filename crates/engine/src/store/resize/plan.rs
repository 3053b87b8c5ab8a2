//! How far one step of growth goes.

use super::shape;
use super::source::MetadataSource;
use super::step::ResizeStep;
use crate::error::{Error, ResizeError, Result};
use lanefs_format::{Compat, GroupDesc, Superblock};

/// Plans the largest step towards `blocks` that changes at most `credits` blocks at once, of the
/// volume that `sb` and `groups` describe.
///
/// # Errors
/// [`ResizeError`]; structures that contradict each other; the device's.
pub(super) fn plan(
    source: &dyn MetadataSource,
    (sb, groups): (&Superblock, &[GroupDesc]),
    blocks: u64,
    credits: u32,
) -> Result<ResizeStep> {
    let before = sb.layout();
    let mut keep_reserve = true;
    let mut to = shape::reach(sb, blocks);
    loop {
        let shape = shape::with_blocks(sb, to, keep_reserve)?;
        let more = shape.layout().group_count() - before.group_count();
        let step = match ResizeStep::grow(source, (sb, groups), shape) {
            // The resize inode has no room for so many backups.
            Err(Error::NotSupported(_)) if keep_reserve => {
                (keep_reserve, to) = (false, blocks);
                continue;
            }
            step => step?,
        };
        let need = step.logged.len() as u32;
        if need <= credits {
            return Ok(step);
        }
        if more > 1 {
            let groups = u64::from(before.group_count() + more / 2);
            to = before.first_data_block() + groups * u64::from(before.blocks_per_group());
        } else if keep_reserve && sb.has(Compat::RESIZE_INODE) {
            (keep_reserve, to) = (false, blocks);
        } else {
            return Err(ResizeError::LogTooSmall { need, max: credits }.into());
        }
    }
}
