//! The open files of a mount whose kernel opens none (`noopen`): one for each inode.
//!
//! The kernel then sends reads, writes and syncs with handle 0, and tells neither of an open nor of
//! a close. A file is opened at the first such request, and stays open until the kernel forgets the
//! inode or [`MOST`] other files were used since.

use crate::fault::Answer;
use crate::handles::Open;
use lanefs::Node;
use lanefs_sync::IntMap;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// The greatest number of files that are open.
const MOST: usize = 1024;

/// The open files of a mount with `noopen`.
#[derive(Debug, Default)]
pub(crate) struct NodeFiles {
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    open: IntMap<u64, Arc<Open>>,
    /// Node ids in the order of their opens. Some may have been closed since.
    order: VecDeque<u64>,
}

impl NodeFiles {
    /// Returns the open file of a node, which `node` reads if it is not open.
    ///
    /// # Errors
    /// The errors of `node`; an inode without content cannot be opened.
    pub(crate) fn get(&self, id: u64, node: impl FnOnce() -> Answer<Node>) -> Answer<Arc<Open>> {
        if let Some(open) = self.files.lock().open.get(&id) {
            return Ok(Arc::clone(open));
        }
        let new = Arc::new(Open::unasked(node()?)?);
        let mut files = self.files.lock();
        // Another thread may have opened it meanwhile.
        let open = Arc::clone(files.open.entry(id).or_insert_with(|| Arc::clone(&new)));
        let mut closed = Vec::new();
        if Arc::ptr_eq(&open, &new) {
            files.order.push_back(id);
            closed.extend(files.make_room());
        }
        // Not under the lock: the last use of an inode may delete it.
        drop(files);
        drop(closed);
        Ok(open)
    }

    /// Closes the file of a node.
    pub(crate) fn close(&self, id: u64) {
        let closed = self.files.lock().open.remove(&id);
        drop(closed);
    }
}

impl Files {
    /// Takes out the files that were opened first, where there are too many.
    fn make_room(&mut self) -> Vec<Arc<Open>> {
        let mut closed = Vec::new();
        while self.order.len() > MOST
            && let Some(id) = self.order.pop_front()
        {
            closed.extend(self.open.remove(&id));
        }
        closed
    }
}
