//! Work while no other thread has a handle, for changes of the volume's shape.
//!
//! The worker takes the turn to commit and the checkpoint lock. It commits the running transaction
//! and checkpoints all of the log, as a close does, and keeps the gate closed. It commits what it
//! changes under [`Alone::start`] in transactions of its own. A handle that finds the gate closed
//! waits as for a commit, so handles pay nothing for this otherwise.
//!
//! Invariant: the worker's transactions are checkpointed before the gate opens again. So a later
//! transaction never shares the log with one of them.

use crate::commit::Unfinished;
use crate::core::Core;
use crate::{Handle, Journal, JournalError, Result};
use lanefs_sync::time::Instant;
use std::cell::Cell;
use std::fmt;

/// The right to change the volume while no other thread does.
#[derive(Debug)]
pub struct Alone<'j> {
    journal: &'j Journal,
    has_committed: Cell<bool>,
}

impl<'j> Alone<'j> {
    /// Starts a handle. End it before [`commit`](Self::commit).
    ///
    /// # Errors
    /// More credits than a transaction has.
    pub fn start(&self, credits: u32) -> Result<Handle<'j>> {
        let (core, credits) = (&self.journal.core, credits.max(1));
        let max = core.max_credits();
        if credits > max {
            return Err(JournalError::TooManyCredits { asked: credits, max });
        }
        core.check()?;
        Ok(Handle::new(self.journal, core.gate.enter_closed(credits), credits))
    }

    /// Makes the changes of the handles since the last commit durable. They are not in place yet.
    ///
    /// # Errors
    /// The failure that aborts the journal.
    pub fn commit(&self) -> Result<()> {
        self.has_committed.set(true);
        self.journal.core.commit_closed()
    }

    /// Drops the cached contents of blocks that were written past the journal.
    pub fn forget(&self, blocks: impl IntoIterator<Item = u64>) {
        blocks.into_iter().for_each(|block| self.journal.core.forget(block));
    }
}

/// Runs `work` alone: see [`Journal::alone`].
pub(crate) fn run<T, E: From<JournalError> + fmt::Display>(
    journal: &Journal,
    work: impl FnOnce(&Alone<'_>) -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let core = &*journal.core;
    core.check()?;
    if core.is_read_only() {
        return Err(JournalError::ReadOnly.into());
    }
    // Does most of the work while other threads still change the volume.
    core.sync()?;
    core.checkpoint()?;
    let turn = core.take_turn()?;
    let checkpoint = core.checkpointing.lock();
    let unfinished = Unfinished(core);
    let alone = Alone { journal, has_committed: Cell::new(false) };
    let prepared = core.commit_closed().and_then(|()| core.try_checkpoint(u32::MAX));
    let outcome = prepared.inspect_err(|e| core.abort(e)).map_err(E::from).and_then(|()| work(&alone));
    let ended = core.end_alone(&alone, outcome.as_ref().err().map(ToString::to_string));
    drop((unfinished, checkpoint));
    turn.pass(None, |tid| core.is_durable(tid) || core.has_ended());
    let value = outcome?;
    ended?;
    Ok(value)
}

impl Core {
    /// Commits the closed transaction, if it has changes, and leaves the next one closed.
    fn commit_closed(&self) -> Result<()> {
        let began = Instant::now();
        let (place, txn) = self.close_running();
        if !txn.is_dirty() {
            self.report_freed(&txn.freed);
            return Ok(());
        }
        self.write_out(place, txn, began)?;
        self.gate.step_closed(place.tid.next(), self.limit(&self.state.lock()));
        Ok(())
    }

    /// Checkpoints what was committed alone, and opens the gate. An error behind a commit, or with
    /// changes that were not committed, aborts.
    fn end_alone(&self, alone: &Alone<'_>, failed: Option<String>) -> Result<()> {
        if self.has_ended() {
            return self.check();
        }
        let is_half_done = alone.has_committed.get() || self.is_dirty();
        match failed {
            Some(why) if is_half_done => {
                self.abort(&JournalError::Aborted(format!("an operation failed half way: {why}").into()));
                return self.check();
            }
            Some(_) => {}
            None => {
                let done = self.commit_closed().and_then(|()| self.try_checkpoint(u32::MAX));
                done.inspect_err(|error| self.abort(error))?;
            }
        }
        self.help(self.gate.reopen());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{BLOCK, device_bytes, empty_log, options};
    use crate::{Journal, JournalError, Options};
    use lanefs_device::BlockDevice;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// Ends the writers, also where the test fails: the scope waits for them.
    struct Ending<'a>(&'a AtomicBool);

    impl Drop for Ending<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Writers count in blocks of their own. While one thread works alone, no count moves, and all
    /// of them are in place; what it changes is in place when the next handle starts.
    #[test]
    fn no_handle_is_open_beside_the_worker() {
        for threads in [false, true] {
            let device = Arc::new(empty_log(1024));
            let options = Options { threads, ..options(1024) };
            let journal = Journal::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options).unwrap();
            let (ended, open) = (AtomicBool::new(false), AtomicU64::new(0));
            std::thread::scope(|scope| {
                for block in 100..103 {
                    let (journal, ended, open) = (&journal, &ended, &open);
                    scope.spawn(move || {
                        let buffer = journal.read(block).unwrap();
                        while !ended.load(Ordering::Relaxed) {
                            let handle = journal.start(1).unwrap();
                            open.fetch_add(1, Ordering::SeqCst);
                            let mut content = handle.write(&buffer).unwrap();
                            content[0] = content[0].wrapping_add(1);
                            drop(content);
                            open.fetch_sub(1, Ordering::SeqCst);
                            let tid = handle.tid();
                            drop(handle);
                            if block == 100 {
                                journal.commit(tid).unwrap();
                            }
                        }
                    });
                }
                let ending = Ending(&ended);
                for round in 1..50u8 {
                    let seen = journal.alone(|alone| {
                        let home = |block| device_bytes(&*device, block);
                        for block in 100..103 {
                            assert_eq!(&journal.read(block)?.read()[..], &home(block)[..]);
                        }
                        let buffer = journal.read(200)?;
                        let handle = alone.start(1)?;
                        handle.write(&buffer)?.fill(round);
                        drop(handle);
                        alone.commit()?;
                        assert_ne!(home(200)[0], round);
                        std::thread::sleep(std::time::Duration::from_millis(1));
                        Ok::<_, JournalError>(open.load(Ordering::SeqCst))
                    });
                    assert_eq!(seen.unwrap(), 0);
                    assert_eq!(device_bytes(&*device, 200), vec![round; BLOCK as usize]);
                }
                drop(ending);
            });
            journal.close().unwrap();
        }
    }

    /// An error with nothing changed is that of the worker alone; one half way ends the journal.
    #[test]
    fn an_error_half_way_aborts() {
        let device = Arc::new(empty_log(1024));
        let journal = Journal::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options(1024)).unwrap();
        let fail = || Err::<(), _>(JournalError::Aborted("refused".into()));
        assert!(journal.alone(|_| fail()).is_err());
        let handle = journal.start(1).unwrap();
        handle.write(&journal.read(100).unwrap()).unwrap()[0] = 1;
        drop(handle);
        let changed = journal.alone(|alone| {
            let handle = alone.start(1)?;
            handle.write(&journal.read(200)?)?[0] = 1;
            drop(handle);
            fail()
        });
        assert!(changed.is_err() && journal.has_ended());
        assert!(matches!(journal.start(1), Err(JournalError::Aborted(_))));
        assert_eq!((device_bytes(&*device, 100)[0], device_bytes(&*device, 200)[0]), (1, 0));
    }

    #[test]
    fn a_handle_has_no_more_credits_than_a_transaction() {
        let journal = Journal::open(Arc::new(empty_log(1024)), options(1024)).unwrap();
        let max = journal.max_credits();
        let asked = journal.alone(|alone| alone.start(max + 1).map(drop));
        assert!(matches!(asked, Err(JournalError::TooManyCredits { .. })), "{asked:?}");
        journal.close().unwrap();
    }
}
