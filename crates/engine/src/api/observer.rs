//! Access to the device of an open volume, for another reader.

use super::Volume;
use crate::error::Result;
use crate::fs::Fs;
use std::fmt;
use std::sync::Arc;

/// A handle by which another thread holds the device of an open volume in one committed state. It
/// does not keep the volume open.
#[derive(Clone)]
pub struct Observer {
    fs: Arc<Fs>,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

impl Volume {
    /// Returns a handle for another reader of the volume's device.
    pub fn observer(&self) -> Observer {
        Observer { fs: Arc::clone(&self.fs) }
    }
}

impl Observer {
    /// Calls `look` while the device holds one committed state of the volume: the state that a
    /// crash would leave now. Neither a commit nor a checkpoint writes to the device meanwhile.
    /// Data of files is written, but only to blocks that this state has as free, or of which it
    /// records only the owner.
    ///
    /// A thread that waits for a commit (a sync, [`Volume::close`]) waits until `look` has
    /// returned, and so does a thread that finds the running transaction full. So `look` must not
    /// change the volume: it could wait for itself.
    ///
    /// Returns `None`, without a call, for a volume without a journal and for one that is open for
    /// reading only.
    ///
    /// # Errors
    /// The journal's: it was closed or aborted.
    ///
    /// ```
    /// # let device = std::sync::Arc::new(lanefs::device::MemDevice::new(16 << 20));
    /// # lanefs::mkfs::format(&*device, &lanefs::mkfs::Options::default()).unwrap();
    /// # let volume = lanefs::Volume::open_device(device.clone())?;
    /// volume.create_dir("/committed")?;
    /// volume.sync()?;
    /// volume.create_dir("/not committed")?;
    /// let image = volume.observer().hold_commits(|| device.to_bytes())?;
    /// assert!(image.is_some());
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn hold_commits<T>(&self, look: impl FnOnce() -> T) -> Result<Option<T>> {
        Ok(self.fs.journal.hold(look)?)
    }
}
