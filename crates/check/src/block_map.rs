//! The blocks in use, marked while the volume is walked.
//!
//! One bit for each cluster, in a bitmap for each group that is made when the first of its blocks
//! is claimed: the memory is bounded by the bitmaps of the volume itself.

use lanefs_format::{Layout, bitmap};
use std::collections::BTreeMap;

/// The clusters that something claims.
#[derive(Debug)]
pub(crate) struct BlockMap {
    groups: BTreeMap<u32, Box<[u8]>>,
    layout: Layout,
}

/// Clusters of a run that were claimed before: how many, and the first block of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) block: u64,
    pub(crate) count: u64,
}

impl BlockMap {
    pub(crate) fn new(layout: Layout) -> Self {
        Self { groups: BTreeMap::new(), layout }
    }

    /// Claims `len` blocks from `block` on, which lie inside the volume. Returns what of them was
    /// claimed before.
    pub(crate) fn claim(&mut self, block: u64, len: u64) -> Option<Conflict> {
        let bits = self.layout.cluster_bits();
        let first = self.layout.first_data_block();
        let per_group = u64::from(self.layout.clusters_per_group());
        let (mut at, end) = ((block - first) >> bits, (block - first + len).div_ceil(1 << bits));
        let mut conflict: Option<Conflict> = None;
        while at < end {
            let (group, from) = (at / per_group, (at % per_group) as usize);
            let to = (end - group * per_group).min(per_group) as usize;
            let map = self.group_mut(group as u32)?;
            let taken = bitmap::count_set(map, from..to) as u64;
            if taken > 0
                && let Some(bit) = bitmap::next_set(map, from..to)
            {
                let block = first + ((group * per_group + bit as u64) << bits);
                conflict.get_or_insert(Conflict { block, count: 0 }).count += taken;
            }
            // The range is inside of the map.
            let set = bitmap::set(map, from..to);
            debug_assert!(set.is_ok());
            at = group * per_group + to as u64;
        }
        conflict
    }

    fn group_mut(&mut self, group: u32) -> Option<&mut [u8]> {
        let len = self.layout.clusters_per_group().div_ceil(8) as usize;
        let is_there = group < self.layout.group_count();
        is_there.then(|| &mut **self.groups.entry(group).or_insert_with(|| vec![0; len].into()))
    }

    /// Returns the bitmap of a group, `None` if nothing of it is claimed.
    pub(crate) fn group(&self, group: u32) -> Option<&[u8]> {
        self.groups.get(&group).map(|map| &**map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_device::{BlockDevice, MemDevice};
    use lanefs_format::Superblock;

    fn layout() -> Layout {
        let device = MemDevice::new(64 << 20);
        let options = lanefs_mkfs::Options { block_size: Some(1024), ..Default::default() };
        lanefs_mkfs::format(&device, &options).unwrap();
        let mut bytes = [0; 1024];
        device.read_at(&mut bytes, 1024).unwrap();
        Superblock::parse(&bytes).unwrap().layout()
    }

    #[test]
    fn a_second_claim_names_the_first_block_and_the_count() {
        let mut map = BlockMap::new(layout());
        assert_eq!(map.claim(100, 20_000), None);
        assert_eq!(map.claim(99, 1), None);
        assert_eq!(map.claim(20_100, 1), None);
        assert_eq!(map.claim(90, 20), Some(Conflict { block: 99, count: 11 }));
        assert_eq!(map.claim(8_000, 10_000), Some(Conflict { block: 8_000, count: 10_000 }));
        assert_eq!(map.claim(30_000, 5), None);
        assert!(map.group(7).is_none());
    }
}
