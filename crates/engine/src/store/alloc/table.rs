//! The states of the groups in core, made on first use.
//!
//! A volume claims how many groups it has. So only the first groups have a place from the
//! beginning, and those of the others are made for [`CHUNK`] neighbours at a time. The table grows
//! with the volume, beside threads that use it.

use super::Group;
use lanefs_sync::atomic::{AtomicU32, Ordering};
use lanefs_sync::{Mutex, OnceLock};

/// Groups whose places are made together.
const CHUNK: u32 = 4096;

type Chunk = Box<[OnceLock<Box<Mutex<Group>>>]>;

#[derive(Debug)]
pub(super) struct GroupTable {
    count: AtomicU32,
    first: Chunk,
    /// The rest of the first chunk, for a volume that had fewer groups when it was opened.
    rest: OnceLock<Chunk>,
    /// The chunks behind the first: directory `n` has those from number 2^n on.
    others: [OnceLock<Box<[OnceLock<Chunk>]>>; 20],
}

fn places<T>(len: u32) -> Box<[OnceLock<T>]> {
    (0..len).map(|_| OnceLock::new()).collect()
}

impl GroupTable {
    pub(super) fn new(count: u32) -> Self {
        Self {
            count: AtomicU32::new(count),
            first: places(count.min(CHUNK)),
            rest: OnceLock::new(),
            others: std::array::from_fn(|_| OnceLock::new()),
        }
    }

    /// Gives a volume that has grown `count` groups.
    pub(super) fn grow(&self, count: u32) {
        self.count.fetch_max(count, Ordering::Release);
    }

    /// Returns the state of a group, which `make` makes on first use; `None` if the volume has no
    /// such group.
    pub(super) fn get(&self, group: u32, make: impl FnOnce() -> Group) -> Option<&Mutex<Group>> {
        if group >= self.count.load(Ordering::Acquire) {
            return None;
        }
        let place = match (group / CHUNK).checked_ilog2() {
            None => match group.checked_sub(self.first.len() as u32) {
                None => self.first.get(group as usize)?,
                Some(at) => {
                    self.rest.get_or_init(|| places(CHUNK - self.first.len() as u32)).get(at as usize)?
                }
            },
            Some(n) => {
                let directory = self.others.get(n as usize)?.get_or_init(|| places(1 << n));
                let chunk = directory.get((group / CHUNK - (1 << n)) as usize)?;
                chunk.get_or_init(|| places(CHUNK)).get((group % CHUNK) as usize)?
            }
        };
        Some(place.get_or_init(|| Box::new(Mutex::new(make()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_has_a_state_of_its_own() {
        for count in [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5] {
            let table = GroupTable::new(count);
            let make = || Group::unread(false);
            let places = |count| {
                let place = |group| std::ptr::from_ref(table.get(group, make).unwrap());
                (0..count).map(place).collect::<Vec<_>>()
            };
            let before = places(count);
            assert!(table.get(count, make).is_none() && table.get(u32::MAX, make).is_none());
            let more = count + 2 * CHUNK;
            table.grow(more);
            let states = places(more);
            assert_eq!(states[..count as usize], before);
            assert_eq!(states.iter().collect::<std::collections::BTreeSet<_>>().len(), more as usize);
            assert!(table.get(more, make).is_none() && table.get(u32::MAX, make).is_none());
        }
    }
}
