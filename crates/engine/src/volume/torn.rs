//! A superblock that was torn while it was written.
//!
//! It is 1024 bytes; a medium may write 512 of them and lose power. Then one half is of before and one of
//! after, and the checksum fits neither. Such a volume is sound: what differs between the halves are
//! times, counts and flags, whose old and new values are both right, and all else is recovered from the
//! journal. What must not have changed is held against a backup; on a volume of one group, which has
//! none, against the checksums of what it leads to. Without such evidence the volume is refused.

use lanefs_device::BlockDevice;
use lanefs_format::{EXT4_ROOT_INO, GroupDesc, Inode, Superblock};

/// The superblock behind `bytes`, whose checksum is wrong, if there is evidence that it was only torn.
pub(super) fn mend(device: &dyn BlockDevice, bytes: &[u8]) -> Option<Superblock> {
    let sb = Superblock::parse_torn(bytes).ok()?;
    sb.check_device(device.size()).ok()?;
    let layout = sb.layout();
    let backup = (1..layout.group_count().min(64)).find_map(|group| layout.super_location(group));
    let sound = match backup {
        Some(block) => is_copy(device, &sb, block),
        None => leads_to_root(device, &sb) == Some(true),
    };
    sound.then_some(sb)
}

fn is_copy(device: &dyn BlockDevice, sb: &Superblock, block: u64) -> bool {
    let mut copy = [0; 1024];
    let read = device.read_at(block.saturating_mul(u64::from(sb.block_size())), &mut copy);
    read.is_ok() && Superblock::parse(&copy).is_ok_and(|backup| backup.same_volume(sb))
}

/// Whether the first group descriptor and the root inode have the checksums that this superblock asks for.
fn leads_to_root(device: &dyn BlockDevice, sb: &Superblock) -> Option<bool> {
    let (layout, block_size) = (sb.layout(), u64::from(sb.block_size()));
    let (block, offset) = layout.desc_location(0).ok()?;
    let mut desc = vec![0; usize::from(layout.desc_size())];
    device.read_at(block.checked_mul(block_size)?.checked_add(u64::from(offset))?, &mut desc).ok()?;
    let desc = GroupDesc::parse(&desc, 0, &layout, &sb.checksummer()).ok()?;
    let place = layout.inode_slot(EXT4_ROOT_INO).ok()?;
    let block = desc.inode_table.checked_add(u64::from(place.table_block))?;
    let mut slot = vec![0; usize::from(layout.inode_size())];
    device.read_at(block.checked_mul(block_size)?.checked_add(u64::from(place.offset))?, &mut slot).ok()?;
    Some(Inode::parse(&slot, EXT4_ROOT_INO, &sb.inode_context()).ok()?.is_dir())
}
