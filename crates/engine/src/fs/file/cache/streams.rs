//! The streams of a volume that wait to be written out.

use super::file::FileCache;
use lanefs_sync::Mutex;
use lanefs_sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// The streams of a volume that wait to be written out.
#[derive(Debug, Default)]
pub(super) struct Streams {
    any: AtomicBool,
    /// The files, each once, and the chunk before which all is to be written out.
    list: Mutex<VecDeque<(Weak<FileCache>, u32)>>,
}

impl Streams {
    pub(super) fn add(&self, file: &Weak<FileCache>, end: u32) {
        let mut list = self.list.lock();
        match list.iter_mut().find(|(known, _)| known.ptr_eq(file)) {
            Some(known) => known.1 = end,
            None => list.push_back((Weak::clone(file), end)),
        }
        self.any.store(true, Ordering::Release);
    }

    /// Returns whether a stream waits. One atomic load.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes the stream that has waited longest.
    pub(super) fn take(&self) -> Option<(Arc<FileCache>, u32)> {
        if !self.any() {
            return None;
        }
        let mut list = self.list.lock();
        let mut found = None;
        while let (None, Some((file, end))) = (&found, list.pop_front()) {
            found = file.upgrade().map(|file| (file, end));
        }
        self.any.store(!list.is_empty(), Ordering::Release);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_in_the_list_once() {
        let cache = super::super::PageCache::new(4096, 1 << 30);
        let files = [1, 2, 3].map(|ino| FileCache::new(&cache, ino));
        let streams = Streams::default();
        assert!(!streams.any());
        for (file, end) in [(0, 64), (1, 64), (0, 128), (2, 64)] {
            streams.add(&files[file].weak(), end);
        }
        let [first, gone, last] = files;
        drop(gone);
        let taken = streams.take().unwrap();
        assert!(Arc::ptr_eq(&taken.0, &first) && taken.1 == 128);
        assert!(streams.any() && Arc::ptr_eq(&streams.take().unwrap().0, &last));
        assert!(!streams.any() && streams.take().is_none());
    }
}
