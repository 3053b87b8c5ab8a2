//! Holds the device in one committed state, for a thread that reads it beside the journal.
//!
//! The caller takes the turn to commit and the checkpoint lock, and writes nothing. Until it
//! releases both, no other thread writes the log or a metadata block. The exception is the note of
//! an abort (`s_errno`), written by a thread that met a device failure.

use crate::Result;
use crate::core::Core;

impl Core {
    /// Calls `look` while no commit and no checkpoint writes. Waits for a running commit and
    /// checkpoint first. Returns `None`, without a call, if there is no log: a commit then
    /// overwrites blocks in place, and the device holds no committed state meanwhile.
    pub(crate) fn hold<T>(&self, look: impl FnOnce() -> T) -> Result<Option<T>> {
        self.check()?;
        if self.log.is_none() {
            return Ok(None);
        }
        let turn = self.take_turn()?;
        let checkpoint = self.checkpointing.lock();
        let seen = self.check().map(|()| look());
        drop(checkpoint);
        turn.pass(None, |tid| self.is_durable(tid) || self.has_ended());
        seen.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{config, empty_log, options};
    use crate::{Journal, JournalError, Options};
    use lanefs_device::BlockDevice;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// One thread commits and another checkpoints all the time. Neither writes while a third looks.
    #[test]
    fn a_device_that_is_held_stays_as_it_is() {
        let device = Arc::new(empty_log(1024));
        let journal = Journal::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options(1024)).unwrap();
        let ended = AtomicBool::new(false);
        let change = |block: u64| {
            let buffer = journal.read(block).unwrap();
            let handle = journal.start(1).unwrap();
            let mut content = handle.write(&buffer).unwrap();
            content[0] = content[0].wrapping_add(1);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for block in (100..200).cycle().take_while(|_| !ended.load(Ordering::Relaxed)) {
                    change(block);
                    journal.sync().unwrap();
                }
            });
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    journal.checkpoint_oldest(u32::MAX).unwrap();
                    // The lock is not a fair one.
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            });
            let held = (0..50).all(|_| {
                let held = journal.hold(|| {
                    let before = device.to_bytes();
                    // Gives the other threads time to write, which they must not do.
                    std::thread::sleep(std::time::Duration::from_millis(2));
                    before == device.to_bytes()
                });
                held.unwrap().unwrap()
            });
            ended.store(true, Ordering::Relaxed);
            assert!(held);
        });
        journal.close().unwrap();
        assert!(matches!(journal.hold(|| ()), Err(JournalError::Closed)));
    }

    /// A hold comes before a commit that waits behind it, whatever becomes durable meanwhile.
    #[test]
    fn a_hold_has_its_turn_in_order() {
        let device = Arc::new(empty_log(1024));
        let journal = Journal::open(device as Arc<dyn BlockDevice>, options(1024)).unwrap();
        let handle = journal.start(1).unwrap();
        handle.write(&journal.read(100).unwrap()).unwrap()[0] = 1;
        let tid = handle.tid();
        handle.stop();
        let commits = &journal.core.commits;
        let wait_for = |waiters| {
            while commits.waiters() < waiters {
                std::thread::yield_now();
            }
        };
        let turn = commits.take(|| false).unwrap();
        let held = std::thread::scope(|scope| {
            let hold = scope.spawn(|| journal.hold(|| journal.is_durable(tid)));
            wait_for(1);
            let commit = scope.spawn(|| journal.commit(tid));
            wait_for(2);
            turn.pass(None, |other| other != tid);
            commit.join().unwrap().unwrap();
            hold.join().unwrap()
        });
        assert_eq!(held.unwrap(), Some(false));
        journal.close().unwrap();
    }

    #[test]
    fn without_a_log_there_is_nothing_to_hold() {
        let device = Arc::new(empty_log(1024));
        let options = Options { log: None, ..options(1024) };
        let journal = Journal::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options).unwrap();
        assert_eq!(journal.hold(|| ()).unwrap(), None);
        let options = Options { log: Some(config(1024)), read_only: true, ..Options::new(1024) };
        let journal = Journal::open(device, options).unwrap();
        assert_eq!(journal.hold(|| ()).unwrap(), None);
    }
}
