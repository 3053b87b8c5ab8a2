//! Mends a superblock that was torn while it was written.
//!
//! A medium may write 512 of its 1024 bytes and lose power. One half is then old and one new, and
//! the checksum fits neither. Such a volume is sound: the halves differ in values that are valid
//! either way, or that the journal recovers. The fields that never change are compared with the
//! first backup that can be read. Without one, the superblock must lead to the checksums of the
//! first descriptor and the root inode, or to a log with the volume's UUID.
//!
//! Invariants:
//! - A superblock without such evidence is refused.
//! - First descriptor and log are not written at the same time, so a crash leaves one of them
//!   whole.
//! - A resize changes more fields, and so does a change of UUID, seed or features. The transaction
//!   has the whole superblock, so where the log waits for a replay, an old or a new backup stands
//!   in until then.

use lanefs_device::{AlignedBuf, BlockDevice, Result};
use lanefs_format::extent::{At, NodeRef};
use lanefs_format::{EXT4_JOURNAL_INO, EXT4_ROOT_INO, GroupDesc, Inode, InodeFlags, Superblock, jbd2};

/// Returns the superblock in `bytes`, whose checksum is wrong, if there is evidence that it was
/// only torn.
///
/// # Errors
/// The device's, if no evidence was found and some of it could not be read.
pub(super) fn mend(device: &dyn BlockDevice, bytes: &[u8]) -> Result<Option<Superblock>> {
    let sb = Superblock::parse_torn(bytes).ok().filter(|sb| sb.check_device(device.size()).is_ok());
    let found = match sb {
        Some(sb) => has_evidence(device, sb),
        None => Ok(None),
    };
    match found {
        Ok(Some(sb)) => Ok(Some(sb)),
        other => match stand_in(device, bytes) {
            Ok(None) => other,
            Err(e) => other.and(Err(e)),
            backup => backup,
        },
    }
}

/// Returns `sb` if there is evidence that it belongs to the volume.
fn has_evidence(device: &dyn BlockDevice, sb: Superblock) -> Result<Option<Superblock>> {
    let layout = sb.layout();
    let mut backups = (1..layout.group_count().min(64)).filter_map(|group| layout.super_location(group));
    // Evidence that cannot be read does not hide the next one.
    let mut unread = None;
    let mut known = |evidence: Result<bool>| evidence.map_err(|e| _ = unread.get_or_insert(e)).ok();
    let sound = match backups.find_map(|block| known(is_copy(device, &sb, block))) {
        Some(is_copy) => is_copy,
        None => [leads_to_root, leads_to_log].iter().any(|leads| known(leads(device, &sb)) == Some(true)),
    };
    match unread {
        Some(e) if !sound => Err(e),
        _ => Ok(sound.then_some(sb)),
    }
}

/// Returns a backup of the superblock in `bytes`, if its log waits for a replay, which writes the
/// superblock anew.
fn stand_in(device: &dyn BlockDevice, bytes: &[u8]) -> Result<Option<Superblock>> {
    for offset in Superblock::likely_backups(bytes) {
        // A whole aligned block, as a direct device needs it.
        let mut copy = AlignedBuf::zeroed(4096);
        let (start, at) = (offset / 4096 * 4096, (offset % 4096) as usize);
        if start.saturating_add(4096) > device.size() {
            continue;
        }
        device.read_at(&mut copy, start)?;
        let Ok(backup) = Superblock::parse(copy.get(at..).unwrap_or_default()) else { continue };
        let fits = backup.is_backup_of(bytes) && backup.check_device(device.size()).is_ok();
        if fits && log_of(device, &backup)?.is_some_and(|log| log.start() != 0) {
            return Ok(Some(backup));
        }
    }
    Ok(None)
}

fn is_copy(device: &dyn BlockDevice, sb: &Superblock, block: u64) -> Result<bool> {
    let mut copy = [0; 1024];
    let read = read_block(device, sb, block, 0, &mut copy)?;
    Ok(read && Superblock::parse(&copy).is_ok_and(|backup| backup.same_volume(sb)))
}

/// Returns whether the first group descriptor and the root inode have the checksums that this
/// superblock implies.
fn leads_to_root(device: &dyn BlockDevice, sb: &Superblock) -> Result<bool> {
    let layout = sb.layout();
    let Ok((block, offset)) = layout.desc_location(0) else { return Ok(false) };
    let mut desc = vec![0; usize::from(layout.desc_size())];
    if !read_block(device, sb, block, u64::from(offset), &mut desc)? {
        return Ok(false);
    }
    let Ok(desc) = GroupDesc::parse(&desc, 0, &layout, &sb.checksummer()) else { return Ok(false) };
    let Ok(place) = layout.inode_slot(EXT4_ROOT_INO) else { return Ok(false) };
    let block = desc.inode_table.saturating_add(u64::from(place.table_block));
    let mut slot = vec![0; usize::from(layout.inode_size())];
    let read = read_block(device, sb, block, u64::from(place.offset), &mut slot)?;
    Ok(read && Inode::parse(&slot, EXT4_ROOT_INO, &sb.inode_context()).is_ok_and(|root| root.is_dir()))
}

/// Reads from byte `offset` of a block on; `false` if that does not lie on the device.
fn read_block(
    device: &dyn BlockDevice,
    sb: &Superblock,
    block: u64,
    offset: u64,
    buf: &mut [u8],
) -> Result<bool> {
    let start = block.saturating_mul(u64::from(sb.block_size())).saturating_add(offset);
    if start.saturating_add(buf.len() as u64) > device.size() {
        return Ok(false);
    }
    device.read_at(buf, start).map(|()| true)
}

fn leads_to_log(device: &dyn BlockDevice, sb: &Superblock) -> Result<bool> {
    Ok(log_of(device, sb)?.is_some_and(|log| log.uuid() == sb.raw().s_uuid))
}

/// Returns the superblock of the log, if it lies where the superblock's copy of the journal's map
/// says, with a block size and length that fit this superblock. Its checksum is not checked: it may
/// be torn too. Its UUID is the one that the volume was made with.
fn log_of(device: &dyn BlockDevice, sb: &Superblock) -> Result<Option<jbd2::Superblock>> {
    let (Some(inode), block_size) = (sb.journal_backup(), sb.block_size()) else { return Ok(None) };
    let mut block = AlignedBuf::zeroed(block_size as usize);
    let Some(first) = first_block(device, sb, &inode, &mut block)? else { return Ok(None) };
    if !read_block(device, sb, first, 0, &mut block)? {
        return Ok(None);
    }
    let blocks = inode.size / u64::from(block_size);
    let log = jbd2::Superblock::parse(&block, block_size, blocks);
    let log = log.or_else(|_| jbd2::Superblock::parse_torn(&block, block_size, blocks));
    Ok(log.ok().filter(jbd2::Superblock::is_v2))
}

/// Returns the first block of the journal. The blocks of its map are read into `block`.
fn first_block(
    device: &dyn BlockDevice,
    sb: &Superblock,
    inode: &Inode,
    block: &mut [u8],
) -> Result<Option<u64>> {
    if !inode.flags.contains(InodeFlags::EXTENTS) {
        return Ok(inode.i_block.first_chunk().map(|pointer| u32::from_le_bytes(*pointer).into()));
    }
    let (mut node, mut depth) = (inode.i_block.to_vec(), None);
    loop {
        let Ok(found) = NodeRef::new(&node, At { ino: EXT4_JOURNAL_INO, block: 0 }) else { return Ok(None) };
        let Some(first) = found.entries.first().filter(|_| depth.is_none_or(|d| d == found.eh_depth)) else {
            return Ok(None);
        };
        let Some(below) = found.eh_depth.checked_sub(1) else {
            let first = first.extent();
            return Ok((first.ee_block == 0).then_some(first.ee_start));
        };
        if !read_block(device, sb, first.index().ei_leaf, 0, block)? {
            return Ok(None);
        }
        (node, depth) = (block.to_vec(), Some(below));
    }
}

#[cfg(test)]
mod tests {
    use crate::{OpenOptions, Volume};
    use lanefs_device::{MemDevice, Op};
    use lanefs_format::Tuning;
    use lanefs_sim::FailingDevice;
    use std::sync::Arc;
    use std::time::Duration;

    /// Returns a volume whose superblock was torn: of one group, or of four with a backup in two of
    /// them.
    fn torn(size: usize, block_size: u32) -> Vec<u8> {
        let device = MemDevice::new(size);
        let options = lanefs_mkfs::Options { block_size: Some(block_size), ..Default::default() };
        lanefs_mkfs::format(&device, &options).unwrap();
        let mut torn = device.to_bytes();
        // s_wtime.
        torn[1024 + 0x30] ^= 1;
        torn
    }

    fn open(torn: &[u8], fail: impl Fn(&FailingDevice<MemDevice>)) -> crate::Result<Volume> {
        let device = FailingDevice::new(MemDevice::from_bytes(torn.to_vec()));
        fail(&device);
        Volume::open_device(Arc::new(device))
    }

    /// An error of the device is not taken for a superblock that is damaged.
    #[test]
    fn evidence_that_cannot_be_read_is_an_error_of_the_device() {
        for torn in [torn(16 << 20, 4096), torn(32 << 20, 1024)] {
            let e = open(&torn, |device| device.fail_from(Op::Read, 2, 5)).unwrap_err();
            assert_eq!(e.errno(), 5, "{e}");
            open(&torn, |_| ()).unwrap();
        }
    }

    #[test]
    fn evidence_that_cannot_be_read_does_not_hide_other_evidence() {
        // The first descriptor, the root inode; the first backup.
        for (torn, nth) in [(torn(16 << 20, 4096), 2), (torn(16 << 20, 4096), 3), (torn(32 << 20, 1024), 2)] {
            open(&torn, |device| device.fail_once(Op::Read, nth, 5)).unwrap();
        }
        // Both backups.
        open(&torn(32 << 20, 1024), |device| (1..3).for_each(|nth| device.fail_once(Op::Read, nth + 1, 5)))
            .unwrap();
    }

    /// Either half may be new before the backups are: they have the old UUID, and so has the log
    /// for ever.
    #[test]
    fn a_superblock_with_a_new_uuid_may_be_torn() {
        let device = Arc::new(MemDevice::new(32 << 20));
        let options = lanefs_mkfs::Options { block_size: Some(1024), ..Default::default() };
        lanefs_mkfs::format(&*device, &options).unwrap();
        for uuid in [[8; 16], [9; 16]] {
            let options = OpenOptions::new().write(true).threads(false).commit_interval(Duration::ZERO);
            let volume = options.open_device(device.clone()).unwrap();
            let tuning = Tuning { checksum_seed: Some(true), uuid: Some(uuid), ..Tuning::default() };
            volume.tune(&tuning).unwrap();
            volume.sync().unwrap();
            // The log waits for a replay, and nothing is written in place.
            let committed = device.to_bytes();
            volume.close().unwrap();
            let closed = device.to_bytes();
            for half in [1024..1536, 1536..2048] {
                let mut torn = committed.clone();
                torn[half.clone()].copy_from_slice(&closed[half]);
                assert_eq!(open(&torn, |_| ()).unwrap().statfs().uuid, uuid);
            }
        }
    }

    /// Memory tears at words: the old free counts may stand beside the new state, which says that
    /// the volume was closed.
    #[test]
    fn free_counts_of_a_torn_superblock_are_counted_anew() {
        let device = Arc::new(MemDevice::new(16 << 20));
        lanefs_mkfs::format(&*device, &lanefs_mkfs::Options::default()).unwrap();
        let old = device.to_bytes();
        let volume = Volume::open_device(device.clone()).unwrap();
        volume.write("/file", &[1; 100_000]).unwrap();
        volume.sync().unwrap();
        let free = volume.statfs().blocks_free;
        volume.close().unwrap();
        let mut torn = device.to_bytes();
        // s_free_blocks_count_lo.
        let word = 1024 + 0x08..1024 + 0x10;
        assert_ne!(torn[word.clone()], old[word.clone()]);
        torn[word.clone()].copy_from_slice(&old[word]);
        let volume = Volume::open_device(Arc::new(MemDevice::from_bytes(torn))).unwrap();
        assert_eq!(volume.statfs().blocks_free, free);
    }
}
