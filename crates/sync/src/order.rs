//! The lock order, in one place, checked in debug builds.
//!
//! A thread takes locks only in the order of [`Level`], and namespace locks in the order of inode
//! numbers. Threads that follow this order cannot deadlock. In a debug build [`Ordered`] records
//! each lock that a thread takes, and panics with both names if one is out of order. In a release
//! build it does nothing.

use std::ops::{Deref, DerefMut};

/// The data that a lock guards, from the outermost inwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The shape of the directory tree: renames between directories.
    Topology,
    /// The entries of a directory; the key is the inode number.
    Namespace,
    /// Bytes of a file's content; the key is the inode number.
    Range,
    /// A change of content that a close of the volume waits for: one for a thread.
    Writers,
    /// The writing out of a file's dirty pages; the key is the inode number.
    Writeback,
    /// An open transaction handle: one for a thread.
    Handle,
    /// A run of cached pages.
    Page,
    /// The decoded inode: one for a thread.
    Inode,
    /// The orphan list or file.
    Orphans,
    /// Preallocated blocks: the list of files that have some, then those of a file.
    Prealloc,
    /// A block group.
    Group,
    /// The superblock.
    Super,
}

/// A held lock: its guard, and the note that it is held.
#[derive(Debug)]
pub struct Ordered<G> {
    guard: G,
    _note: Note,
}

impl<G> Ordered<G> {
    /// Takes a lock of `level` by calling `lock`. `key` orders locks of one level.
    ///
    /// # Panics
    /// In a debug build, if the thread holds a lock that must come after this one.
    pub fn take(level: Level, key: u64, lock: impl FnOnce() -> G) -> Self {
        // Noted before the wait: a deadlock that happens is then told too.
        let note = Note::new(level, key);
        Self { guard: lock(), _note: note }
    }

    /// Takes as [`take`](Self::take) does, a lock that another thread may hold: `lock` then gives
    /// `None`.
    ///
    /// # Panics
    /// Panics as [`take`](Self::take) does.
    pub fn try_take(level: Level, key: u64, lock: impl FnOnce() -> Option<G>) -> Option<Self> {
        let note = Note::new(level, key);
        lock().map(|guard| Self { guard, _note: note })
    }
}

impl<G: Deref> Deref for Ordered<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ordered<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

pub use note::Note;

#[cfg(debug_assertions)]
mod note {
    use super::Level;
    use std::cell::RefCell;
    use std::marker::PhantomData;

    thread_local! {
        static HELD: RefCell<Vec<(Level, u64)>> = const { RefCell::new(Vec::new()) };
    }

    /// A note that this thread holds something of a level. Stays on its thread.
    #[derive(Debug)]
    pub struct Note(Level, u64, PhantomData<*const ()>);

    impl Note {
        /// Notes it.
        ///
        /// # Panics
        /// If the thread holds something that must come after it.
        #[allow(clippy::panic)]
        pub fn new(level: Level, key: u64) -> Self {
            HELD.with_borrow_mut(|held| {
                if let Some(last) = held.iter().max().filter(|last| **last >= (level, key)) {
                    panic!("lock order: {level:?} {key} is taken while {:?} {} is held", last.0, last.1);
                }
                held.push((level, key));
            });
            Self(level, key, PhantomData)
        }
    }

    impl Drop for Note {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| {
                if let Some(at) = held.iter().rposition(|h| *h == (self.0, self.1)) {
                    held.remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod note {
    use super::Level;

    /// An empty note, in a release build.
    #[derive(Debug)]
    pub struct Note;

    impl Note {
        /// Does nothing, in a release build.
        #[inline(always)]
        pub fn new(_: Level, _: u64) -> Self {
            Self
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use parking_lot::{Mutex, MutexGuard};

    fn take(level: Level, key: u64, m: &Mutex<()>) -> Ordered<MutexGuard<'_, ()>> {
        Ordered::take(level, key, || m.lock())
    }

    #[test]
    fn in_order_is_silent_and_release_may_be_in_any_order() {
        let m: [Mutex<()>; 4] = Default::default();
        let a = take(Level::Namespace, 5, &m[0]);
        let b = take(Level::Namespace, 9, &m[1]);
        let c = take(Level::Group, 0, &m[2]);
        drop(a);
        drop(c);
        drop(b);
        drop(take(Level::Namespace, 1, &m[3]));
    }

    #[test]
    #[should_panic(expected = "Namespace 5 is taken while Namespace 9 is held")]
    fn a_smaller_inode_after_a_larger_panics() {
        let m: [Mutex<()>; 2] = Default::default();
        let _b = take(Level::Namespace, 9, &m[0]);
        let _a = take(Level::Namespace, 5, &m[1]);
    }

    #[test]
    #[should_panic(expected = "Namespace 5 is taken while Inode 1 is held")]
    fn an_outer_level_after_an_inner_panics() {
        let m: [Mutex<()>; 2] = Default::default();
        let _b = take(Level::Inode, 1, &m[0]);
        let _a = take(Level::Namespace, 5, &m[1]);
    }

    #[test]
    #[should_panic(expected = "Inode 0 is taken while Inode 0 is held")]
    fn two_inodes_at_once_panic() {
        let m: [Mutex<()>; 2] = Default::default();
        let _b = take(Level::Inode, 0, &m[0]);
        let _a = take(Level::Inode, 0, &m[1]);
    }
}
