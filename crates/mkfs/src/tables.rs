//! Places of bitmaps and inode tables: in each group its own, or with flex_bg all those of a flex
//! group together at its start.

use crate::MkfsError;
use crate::plan::Plan;
use std::ops::Range;

impl Plan {
    /// Places the bitmaps and tables of all groups.
    pub(crate) fn place_tables(&mut self) -> Result<(), MkfsError> {
        for group in 0..self.layout.group_count() {
            if self.layout.groups_per_flex() > 1 {
                self.place_in_flex(group)?;
            } else {
                self.place_in_group(group)?;
            }
        }
        Ok(())
    }

    fn place_in_group(&mut self, group: u32) -> Result<(), MkfsError> {
        let first = self.layout.group_first_block(group)?;
        let within = first..first + u64::from(self.layout.group_blocks(group)?);
        let table = u64::from(self.layout.inode_table_blocks());
        let mut places = [0; 3];
        for (place, len) in places.iter_mut().zip([1, 1, table]) {
            let at = self.space.find(within.clone(), len);
            *place = at.ok_or(MkfsError::NoSpace("bitmaps and inode tables"))?;
            self.space.take(*place..*place + len);
        }
        let blocks = self.table_blocks();
        if let Some(desc) = self.groups.get_mut(group as usize) {
            // These do not make the block bitmap one that must be written: it follows from them.
            desc.free_blocks_count = desc.free_blocks_count.saturating_sub(blocks);
            [desc.block_bitmap, desc.inode_bitmap, desc.inode_table] = places;
        }
        Ok(())
    }

    fn place_in_flex(&mut self, group: u32) -> Result<(), MkfsError> {
        let layout = self.layout;
        let flex = layout.groups_per_flex();
        let (start, end) = (group / flex * flex, (group / flex + 1) * flex);
        let last = end.min(layout.group_count()) - 1;
        let area = layout.group_first_block(start)?
            ..layout.group_first_block(last)? + u64::from(layout.group_blocks(last)?);
        let left = last - group + 1;
        // Each kind leaves room for its kin of the whole flex group. A lone group leaves room
        // for a full one.
        let apart = u64::from(if last > start { last - start + 1 } else { flex });
        let before = (group > start).then(|| self.groups[group as usize - 1]);
        let table = layout.inode_table_blocks();

        let goal = before.map(|b| b.block_bitmap + 1);
        let block_bitmap = self.place(goal, area.clone(), left, 1)?;
        let goal = before.map_or(block_bitmap + apart, |b| b.inode_bitmap + 1);
        let inode_bitmap = self.place(Some(goal), area.clone(), left, 1)?;
        let goal = before.map_or(inode_bitmap + apart, |b| b.inode_table + u64::from(table));
        let inode_table = self.place(Some(goal), area, left, table)?;
        if let Some(desc) = self.groups.get_mut(group as usize) {
            (desc.block_bitmap, desc.inode_bitmap, desc.inode_table) =
                (block_bitmap, inode_bitmap, inode_table);
        }
        Ok(())
    }

    /// Takes `len` blocks: at `goal` if they are free there, else where as many as the `left`
    /// groups need (up to a quarter of a group) are free, else where there is room.
    fn place(&mut self, goal: Option<u64>, area: Range<u64>, left: u32, len: u32) -> Result<u64, MkfsError> {
        let one = u64::from(len);
        let all = (u64::from(left) * one).min(u64::from(self.layout.blocks_per_group() / 4)).max(one);
        let whole = self.layout.first_data_block()..self.layout.blocks_count();
        let at = goal
            .filter(|&g| self.space.is_free(g..g + one))
            .or_else(|| self.space.find(area.clone(), all))
            .or_else(|| self.space.find(area, one))
            .or_else(|| self.space.find(whole, one))
            .ok_or(MkfsError::NoSpace("bitmaps and inode tables"))?;
        self.take(at..at + one)?;
        Ok(at)
    }
}
