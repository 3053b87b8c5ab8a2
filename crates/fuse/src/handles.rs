//! Open files, by the handle that the kernel names them by.

use crate::fault::{Answer, Fault};
use lanefs::{File, Node};
use parking_lot::RwLock;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;

/// An open file. Which way a request goes is the request's to say: fcntl(2) may change O_DIRECT.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) node: Node,
    pub(crate) cached: File,
    pub(crate) direct: File,
    writes: bool,
}

/// See the head of the file. A handle is a place in `open`, which is taken again when it is free.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    slots: RwLock<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    open: Vec<Option<Arc<Open>>>,
    free: Vec<usize>,
    /// How often each inode is open for writing.
    written: HashMap<u32, usize>,
}

impl Slots {
    fn drop_writer(&mut self, ino: u32) {
        if let Some(count) = self.written.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.written.remove(&ino);
            }
        }
    }
}

impl Handles {
    /// A handle for `node`, a file, by which a program may write if `writes`.
    ///
    /// # Errors
    /// What has no content cannot be open.
    pub(crate) fn open(&self, node: Node, writes: bool) -> Answer<u64> {
        let cached = node.open()?;
        let direct = cached.with_direct(true);
        let ino = node.ino();
        let open = Some(Arc::new(Open { node, cached, direct, writes }));
        let mut slots = self.slots.write();
        if writes {
            *slots.written.entry(ino).or_default() += 1;
        }
        let at = match slots.free.pop() {
            Some(at) => {
                slots.open[at] = open;
                at
            }
            None => {
                slots.open.push(open);
                slots.open.len() - 1
            }
        };
        Ok(at as u64)
    }

    /// The open file of a handle.
    ///
    /// # Errors
    /// EBADF if there is none.
    pub(crate) fn get(&self, handle: u64) -> Answer<Arc<Open>> {
        let at = usize::try_from(handle).unwrap_or(usize::MAX);
        self.slots.read().open.get(at).cloned().flatten().ok_or(Fault(Errno::BADF))
    }

    /// Whether a program may write to this inode, so that the kernel may have what the volume has not.
    pub(crate) fn is_written(&self, ino: u32) -> bool {
        self.slots.read().written.contains_key(&ino)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        let slots = self.slots.read();
        slots.open.len() - slots.free.len()
    }

    /// Closes it.
    pub(crate) fn close(&self, handle: u64) {
        let at = usize::try_from(handle).unwrap_or(usize::MAX);
        let gone = {
            let mut slots = self.slots.write();
            let gone = slots.open.get_mut(at).and_then(Option::take);
            if let Some(open) = &gone {
                slots.free.push(at);
                if open.writes {
                    slots.drop_writer(open.node.ino());
                }
            }
            gone
        };
        // Not under the lock: the last use of an inode may delete it.
        drop(gone);
    }
}
