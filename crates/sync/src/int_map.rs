//! Hash maps whose keys are numbers of blocks and inodes.
//!
//! The hash of the standard library costs more than the rest of such a look-up. The numbers come
//! from volumes, which may have been made to collide: foldhash mixes in a secret that each process
//! draws anew, but under the scheduler: there a map has the same order each time, for a seed
//! replays a session.

use std::collections::{HashMap, HashSet};

#[cfg(lanefs_schedule)]
use foldhash::fast::FixedState as RandomState;
#[cfg(not(lanefs_schedule))]
use foldhash::fast::RandomState;

/// A map from numbers.
pub type IntMap<K, V> = HashMap<K, V, RandomState>;

/// A set of numbers.
pub type IntSet<K> = HashSet<K, RandomState>;
