//! Open files, by the handle that the kernel names them by: 1 and above, since 0 stands for a file
//! that was not opened (`noopen`).

use crate::fault::{Answer, Fault};
use lanefs::format::InodeFlags;
use lanefs::{File, Node};
use lanefs_sync::IntMap;
use parking_lot::RwLock;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// An open file. Each request says whether it is direct, since fcntl(2) may change O_DIRECT.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) node: Node,
    pub(crate) cached: File,
    pub(crate) direct: File,
    pub(crate) inode: Arc<OpenInode>,
    kind: OpenKind,
}

impl Open {
    /// Returns a file that no program opened as far as lanefs knows: any may write to it, unless it
    /// is append-only, and the kernel may have cached any of it.
    ///
    /// # Errors
    /// An inode without content cannot be opened.
    pub(crate) fn unasked(node: Node) -> Answer<Self> {
        // A volume that is read-only, or a hash tree, forbids to write.
        let (cached, access) = match node.open_to_write() {
            Ok(file) if node.flags().contains(InodeFlags::APPEND) => (file, Access::Appends),
            Ok(file) => (file, Access::Writes),
            Err(_) => (node.open_to_read()?, Access::Reads),
        };
        let kind = OpenKind { access, privileged: false, past_cache: false };
        let (direct, inode) = (cached.with_direct(true), OpenInode::default());
        for count in inode.counts(kind) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        inode.cached();
        Ok(Self { node, cached, direct, inode: Arc::new(inode), kind })
    }

    /// Returns whether a program may write by it.
    pub(crate) fn writes(&self) -> bool {
        self.kind.access != Access::Reads
    }
}

/// What a handle is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenKind {
    pub(crate) access: Access,
    /// The program may take blocks reserved for root.
    pub(crate) privileged: bool,
    /// The kernel reads and writes past its cache.
    pub(crate) past_cache: bool,
}

/// The operations that a program may do by a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Reads,
    Writes,
    /// The inode was append-only when it was opened.
    Appends,
}

/// An inode that is open, by all of its handles.
#[derive(Debug, Default)]
pub(crate) struct OpenInode {
    handles: AtomicUsize,
    /// Handles that write anywhere.
    writers: AtomicUsize,
    appenders: AtomicUsize,
    /// Handles that write through the kernel's cache.
    cached_writers: AtomicUsize,
    /// Handles that write, of users that may not take the blocks reserved for root.
    unprivileged: AtomicUsize,
    /// The kernel has read content into its cache since the first handle.
    is_cached: AtomicBool,
    /// The kernel may take a count of blocks for valid that writeback changes.
    has_old_count: AtomicBool,
}

impl OpenInode {
    /// Returns whether a program may write to it, so that the kernel may have dirty pages of it.
    pub(crate) fn is_written(&self) -> bool {
        self.has_writers() || self.appenders.load(Ordering::Relaxed) > 0
    }

    /// Returns whether a handle writes anywhere, even if the inode has become append-only since.
    pub(crate) fn has_writers(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0
    }

    /// Returns whether a program may write to it through the kernel's cache.
    pub(crate) fn is_written_in_cache(&self) -> bool {
        self.cached_writers.load(Ordering::Relaxed) > 0
    }

    /// Notes that the kernel may have cached attributes from before the first writer.
    pub(crate) fn outdate_count(&self) {
        self.has_old_count.store(true, Ordering::Relaxed);
    }

    /// Returns whether the kernel may have such attributes.
    pub(crate) fn has_old_count(&self) -> bool {
        self.has_old_count.load(Ordering::Relaxed)
    }

    /// Returns the same, and notes that it has none any more.
    pub(crate) fn takes_old_count(&self) -> bool {
        self.has_old_count.swap(false, Ordering::Relaxed)
    }

    /// Notes that the kernel reads content into its cache.
    pub(crate) fn cached(&self) {
        // Loaded first: a store by every reading thread would contend for the cache line.
        if !self.is_cached() {
            self.is_cached.store(true, Ordering::Release);
        }
    }

    /// Returns whether the kernel may have cached content that a direct write makes stale.
    pub(crate) fn is_cached(&self) -> bool {
        self.is_cached.load(Ordering::Acquire)
    }

    /// Returns whether all users that have it open for writing may take blocks reserved for root.
    pub(crate) fn is_privileged(&self) -> bool {
        self.unprivileged.load(Ordering::Relaxed) == 0
    }

    fn counts(&self, kind: OpenKind) -> impl Iterator<Item = &AtomicUsize> {
        let writes = match kind.access {
            Access::Reads => None,
            Access::Writes => Some(&self.writers),
            Access::Appends => Some(&self.appenders),
        };
        let cached = writes.filter(|_| !kind.past_cache).map(|_| &self.cached_writers);
        let unprivileged = writes.filter(|_| !kind.privileged).map(|_| &self.unprivileged);
        [&self.handles].into_iter().chain(writes).chain(cached).chain(unprivileged)
    }
}

/// The handle in requests about a file that was not opened.
pub(crate) const NO_HANDLE: u64 = 0;

/// Returns the handle of a place in [`Slots::open`].
fn handle_of(at: usize) -> u64 {
    at as u64 + 1
}

/// Returns the place of a handle, or one that does not exist.
fn place_of(handle: u64) -> usize {
    handle.checked_sub(1).and_then(|at| usize::try_from(at).ok()).unwrap_or(usize::MAX)
}

/// The table of open handles. A handle is a place in `open`, which is taken again when it is free.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    slots: RwLock<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    open: Vec<Option<Arc<Open>>>,
    free: Vec<usize>,
    inodes: IntMap<u32, Arc<OpenInode>>,
}

impl Slots {
    fn drop_handle(&mut self, open: &Open) {
        for count in open.inode.counts(open.kind) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        if open.inode.handles.load(Ordering::Relaxed) == 0 {
            self.inodes.remove(&open.node.ino());
        }
    }
}

impl Handles {
    /// Returns a handle for the file `node`.
    ///
    /// # Errors
    /// An inode without content cannot be opened.
    pub(crate) fn open(&self, node: Node, kind: OpenKind) -> Answer<u64> {
        let cached = match kind.access {
            Access::Reads => node.open_to_read()?,
            Access::Writes | Access::Appends => node.open_to_write()?,
        };
        let direct = cached.with_direct(true);
        let mut slots = self.slots.write();
        let inode = Arc::clone(slots.inodes.entry(node.ino()).or_default());
        for count in inode.counts(kind) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let open = Some(Arc::new(Open { node, cached, direct, inode, kind }));
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
        Ok(handle_of(at))
    }

    /// Returns the open file of a handle.
    ///
    /// # Errors
    /// EBADF if there is none.
    pub(crate) fn get(&self, handle: u64) -> Answer<Arc<Open>> {
        let at = place_of(handle);
        self.slots.read().open.get(at).cloned().flatten().ok_or(Fault(Errno::BADF))
    }

    /// Returns whether a program may write to this inode.
    pub(crate) fn is_written(&self, ino: u32) -> bool {
        self.slots.read().inodes.get(&ino).is_some_and(|inode| inode.is_written())
    }

    /// Returns whether a program may write to this inode through the kernel's cache.
    pub(crate) fn is_written_in_cache(&self, ino: u32) -> bool {
        self.slots.read().inodes.get(&ino).is_some_and(|inode| inode.is_written_in_cache())
    }

    /// Returns the inodes that programs may write to.
    pub(crate) fn written(&self) -> Vec<u32> {
        let slots = self.slots.read();
        slots.inodes.iter().filter(|(_, inode)| inode.is_written()).map(|(ino, _)| *ino).collect()
    }

    /// Returns how many handles are open.
    pub(crate) fn len(&self) -> usize {
        let slots = self.slots.read();
        slots.open.len() - slots.free.len()
    }

    /// Closes a handle.
    pub(crate) fn close(&self, handle: u64) {
        let at = place_of(handle);
        let gone = {
            let mut slots = self.slots.write();
            let gone = slots.open.get_mut(at).and_then(Option::take);
            if let Some(open) = &gone {
                slots.free.push(at);
                slots.drop_handle(open);
            }
            gone
        };
        // Not under the lock: the last use of an inode may delete it.
        drop(gone);
    }
}
