//! The journal: its size by the volume's, its place in the middle, its superblock.

use crate::plan::Plan;
use crate::{MkfsError, Options};
use lanefs_format::{Compat, EXT4_JOURNAL_INO, jbd2};

impl Plan {
    /// Makes the journal. A volume that is too small for one loses the feature, as with mke2fs.
    pub(crate) fn make_journal(&mut self, options: &Options) -> Result<(), MkfsError> {
        if !self.has(Compat::HAS_JOURNAL) {
            return Ok(());
        }
        let Some(blocks) = self.journal_size(options)? else {
            return self.edit_superblock(|raw| {
                let bits = raw.s_feature_compat.get() & !Compat::HAS_JOURNAL.bits();
                raw.s_feature_compat = bits.into();
            });
        };
        let goal = self.journal_goal()?;
        let mut inode = self.new_inode(EXT4_JOURNAL_INO, 0o100_600, 1);
        let runs = self.map_file(&mut inode, blocks, goal)?;
        let uuid = self.superblock.raw().s_uuid;
        let sb = jbd2::Superblock::new(self.layout.block_size(), blocks, uuid);
        let mut bytes = self.zero_block();
        if let Some(head) = bytes.get_mut(..jbd2::Superblock::LEN) {
            head.copy_from_slice(&sb.to_bytes());
        }
        if let Some(first) = runs.first() {
            self.content.insert(first.start, bytes);
        }
        self.zero.extend(runs);
        self.edit_superblock(|raw| raw.s_journal_inum = EXT4_JOURNAL_INO.into())?;
        self.superblock.set_journal_backup(&inode.i_block, inode.size);
        self.replace_inode(inode);
        self.journal_blocks = blocks;
        Ok(())
    }

    /// Returns the blocks of the journal; `None` if the volume is too small for one and the options
    /// name no size.
    fn journal_size(&self, options: &Options) -> Result<Option<u32>, MkfsError> {
        let free: u64 = self.groups.iter().map(|d| u64::from(d.free_blocks_count)).sum();
        let blocks = match options.journal_size {
            Some(mib) => {
                let blocks = u64::from(mib) * (1 << 20) / u64::from(self.layout.block_size());
                if !(1024..=10_240_000).contains(&blocks) {
                    return Err(MkfsError::JournalSize { blocks });
                }
                blocks as u32
            }
            None => match default_size(self.layout.blocks_count()) {
                Some(blocks) => blocks,
                None => return Ok(None),
            },
        };
        if u64::from(blocks) > free / 2 {
            return Err(MkfsError::JournalTooBig { blocks: blocks.into(), free });
        }
        Ok(Some(blocks))
    }

    /// Returns the emptiest group near the middle, in a large volume at the start of a flex group.
    fn journal_goal(&self) -> Result<u64, MkfsError> {
        let layout = self.layout;
        let (count, flex) = (layout.group_count(), layout.groups_per_flex());
        let middle = (layout.blocks_count() - layout.first_data_block()) / 2;
        let mut group = layout.group_of_block(middle.max(layout.first_data_block()))?.0;
        let free = |g: u32| self.groups.get(g as usize).map_or(0, |d| d.free_blocks_count);
        let start = if flex > 1 && group > flex {
            group = group / flex * flex;
            while group < count && free(group) == 0 {
                group += 1;
            }
            if group == count {
                group = 0;
            }
            group
        } else {
            group.saturating_sub(1)
        };
        let end = if group + 1 < count { group + 1 } else { group };
        let best = (start..=end).reduce(|best, g| if free(g) > free(best) { g } else { best });
        Ok(layout.group_first_block(best.unwrap_or(start))?)
    }
}

/// Returns the blocks of the journal of a volume of `blocks` blocks.
pub(crate) fn default_size(blocks: u64) -> Option<u32> {
    Some(match blocks {
        0..2048 => return None,
        2048..32_768 => 1024,
        32_768..262_144 => 4096,
        262_144..524_288 => 8192,
        524_288..4_194_304 => 16_384,
        4_194_304..8_388_608 => 32_768,
        8_388_608..16_777_216 => 65_536,
        16_777_216..33_554_432 => 131_072,
        _ => 262_144,
    })
}
