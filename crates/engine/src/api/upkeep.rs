//! Background tasks of an open volume, run at once.

use super::Volume;
use crate::error::Result;
use crate::fs::file::cache::Background;
use std::time::Duration;

/// A task of a volume's threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Upkeep {
    /// Commits the running transaction, as at the end of the commit interval. Writes no content of
    /// files.
    Commit,
    /// Writes out all dirty pages, as at the end of their age. Commits nothing.
    WriteBack,
    /// Writes all committed blocks in place, and frees the log.
    Checkpoint,
    /// Evicts every inode that is not in use and has nothing to write.
    Sweep,
    /// Drops every cached metadata block that is not in use, as when the volume is idle.
    Release,
}

impl Volume {
    /// Runs now a task that the volume's threads run when it is due. For tests and simulators,
    /// which have no clock.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly); the journal's or the device's. A page that
    /// could not be written out is reported by a sync of its file.
    ///
    /// ```
    /// # let volume = lanefs::Volume::in_memory(16 << 20)?;
    /// let before = volume.info().journal.commits;
    /// volume.create_dir("/durable")?;
    /// volume.upkeep(lanefs::Upkeep::Commit)?;
    /// assert_eq!(volume.info().journal.commits, before + 1);
    /// # Ok::<(), lanefs::Error>(())
    /// ```
    pub fn upkeep(&self, task: Upkeep) -> Result<()> {
        self.whole("run a background task of", self.run_task(task))
    }

    fn run_task(&self, task: Upkeep) -> Result<()> {
        let fs = &self.fs;
        fs.check_writable()?;
        match task {
            Upkeep::Commit => fs.journal.commit(fs.journal.running())?,
            Upkeep::WriteBack => drop(fs.background_round(&mut Background::new(Some(Duration::ZERO)))),
            Upkeep::Checkpoint => fs.journal.checkpoint_oldest(u32::MAX)?,
            Upkeep::Sweep => fs.inodes.sweep_all(),
            Upkeep::Release => fs.journal.release(),
        }
        Ok(())
    }
}
