//! The states of the groups in core, made on first use.
//!
//! A volume claims how many groups it has. So only the first groups have a place from the
//! beginning, and those of the others are made for [`CHUNK`] neighbours at a time.

use super::Group;
use lanefs_sync::{Mutex, OnceLock};

/// Groups whose places are made together.
const CHUNK: u32 = 4096;

type Chunk = Box<[OnceLock<Box<Mutex<Group>>>]>;

#[derive(Debug)]
pub(super) struct GroupTable {
    count: u32,
    first: Chunk,
    others: Box<[OnceLock<Chunk>]>,
}

fn chunk(len: u32) -> Chunk {
    (0..len).map(|_| OnceLock::new()).collect()
}

impl GroupTable {
    pub(super) fn new(count: u32) -> Self {
        let first = chunk(count.min(CHUNK));
        let others = (1..count.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        Self { count, first, others }
    }

    /// Returns the state of a group; `None` if the volume has no such group.
    pub(super) fn get(&self, group: u32) -> Option<&Mutex<Group>> {
        if group >= self.count {
            return None;
        }
        let chunk = match (group / CHUNK).checked_sub(1) {
            None => &self.first,
            Some(n) => self.others.get(n as usize)?.get_or_init(|| chunk(CHUNK)),
        };
        Some(chunk.get((group % CHUNK) as usize)?.get_or_init(Default::default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_has_a_state_of_its_own() {
        for count in [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5] {
            let table = GroupTable::new(count);
            let states: std::collections::BTreeSet<_> =
                (0..count).map(|group| std::ptr::from_ref(table.get(group).unwrap())).collect();
            assert_eq!(states.len(), count as usize);
            assert!(table.get(count).is_none() && table.get(u32::MAX).is_none());
        }
    }
}
