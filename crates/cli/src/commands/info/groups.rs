//! The block groups, as their descriptors have them.

use super::of_volume;
use crate::failure::{OrCannot, Res};
use crate::output::Out;
use lanefs_device::BlockDevice;
use lanefs_format::{GroupDesc, GroupFlags, Superblock};
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// A block group.
#[derive(Serialize)]
pub(super) struct Group {
    group: u32,
    first_block: u64,
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
    blocks_free: u64,
    inodes_free: u32,
    dirs: u32,
    flags: Vec<&'static str>,
    /// The rule that the descriptor breaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<String>,
}

/// Reads all descriptors, a block of them at a time. One that is damaged is listed as such.
pub(super) fn read(device: &dyn BlockDevice, sb: &Superblock, name: &OsString) -> Res<Vec<Group>> {
    let (layout, checksummer) = (sb.layout(), sb.checksummer());
    let mut bytes = vec![0; sb.block_size() as usize];
    let mut loaded = None;
    let mut groups = Vec::new();
    for group in 0..layout.group_count() {
        let (block, offset) = of_volume(layout.desc_location(group), name)?;
        if loaded != Some(block) {
            let at = block.saturating_mul(sb.block_size().into());
            device.read_at(&mut bytes, at).map_err(lanefs::Error::from).or_cannot("read", name.as_bytes())?;
            loaded = Some(block);
        }
        let bytes = bytes.get(offset as usize..).unwrap_or_default();
        let (desc, damage) = match GroupDesc::parse(bytes, group, &layout, &checksummer) {
            Ok(desc) => (desc, None),
            Err(e) => (GroupDesc::default(), Some(e.to_string())),
        };
        groups.push(Group {
            group,
            first_block: of_volume(layout.group_first_block(group), name)?,
            block_bitmap: desc.block_bitmap,
            inode_bitmap: desc.inode_bitmap,
            inode_table: desc.inode_table,
            blocks_free: layout.blocks_of(desc.free_blocks_count.into()),
            inodes_free: desc.free_inodes_count,
            dirs: desc.used_dirs_count,
            flags: flags(desc.flags),
            damage,
        });
    }
    Ok(groups)
}

fn flags(flags: GroupFlags) -> Vec<&'static str> {
    [
        (GroupFlags::INODE_UNINIT, "INODE_UNINIT"),
        (GroupFlags::BLOCK_UNINIT, "BLOCK_UNINIT"),
        (GroupFlags::INODE_ZEROED, "ITABLE_ZEROED"),
    ]
    .into_iter()
    .filter_map(|(flag, name)| flags.contains(flag).then_some(name))
    .collect()
}

pub(super) fn show(groups: &[Group], out: &mut Out) -> Res {
    writeln!(
        out,
        "\n{:>7} {:>12} {:>12} {:>12} {:>12} {:>8} {:>8} {:>6}  flags",
        "group", "first block", "block bitmap", "inode bitmap", "inode table", "free", "inodes", "dirs"
    )?;
    for g in groups {
        if let Some(damage) = &g.damage {
            writeln!(
                out,
                "{:>7} {:>12} {}",
                g.group,
                g.first_block,
                crate::quote::escaped(damage.as_bytes())
            )?;
            continue;
        }
        let line = format!(
            "{:>7} {:>12} {:>12} {:>12} {:>12} {:>8} {:>8} {:>6}  {}",
            g.group,
            g.first_block,
            g.block_bitmap,
            g.inode_bitmap,
            g.inode_table,
            g.blocks_free,
            g.inodes_free,
            g.dirs,
            g.flags.join(" ")
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
