//! Shares flushes: threads that need one at the same time wait for the same device flush.
//!
//! Flushes are numbered as they begin. A [`Ticket`] is the number of the first flush that begins
//! after the ticket was taken. The first thread that waits runs the next flush. Threads that arrive
//! while it runs share the flush after it.
//!
//! Invariants:
//! - The flush of a ticket, and every later one, covers all writes that had returned when the
//!   ticket was taken.
//! - A failure is permanent: every caller whose ticket no successful flush has covered gets the
//!   error. Earlier writes may be lost, and no later flush can prove otherwise. A panic of the
//!   device is a failure too.

use crate::baton::Baton;
use crate::{JournalError, Result};
use lanefs_device::BlockDevice;
use lanefs_sync::Mutex;
use lanefs_sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use lanefs_sync::time::Instant;

/// A point in time, from [`Journal::ticket`](crate::Journal::ticket): a flush that begins later
/// covers all writes that had returned by then.
///
/// Later tickets are greater: the maximum of several tickets covers them all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

impl Ticket {
    /// The ticket of a caller with nothing to flush. It is always satisfied.
    pub const NOTHING: Self = Self(0);

    /// Returns the ticket as a number, to be stored in an atomic. A greater number is later, and 0
    /// is [`NOTHING`](Self::NOTHING).
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// Returns the ticket whose [`to_u64`](Self::to_u64) is `number`.
    pub fn from_u64(number: u64) -> Self {
        Self(number)
    }
}

/// Shares the flushes of one device.
#[derive(Debug)]
pub(crate) struct SharedFlush {
    /// Flushes that have begun.
    begun: AtomicU64,
    /// The newest flush that succeeded.
    done: AtomicU64,
    failed: AtomicBool,
    error: Mutex<Option<JournalError>>,
    baton: Baton<Ticket>,
}

impl Default for SharedFlush {
    fn default() -> Self {
        Self {
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
            baton: Baton::default(),
        }
    }
}

/// Guard of a running flush. Dropping it, as only a panic does, latches the failure.
struct LostFlush<'a>(&'a SharedFlush);

impl Drop for LostFlush<'_> {
    fn drop(&mut self) {
        self.0.fail(JournalError::Aborted("a thread panicked in the middle of a flush".into()));
    }
}

impl SharedFlush {
    /// Returns a ticket for all writes that have returned.
    pub(crate) fn ticket(&self) -> Ticket {
        // Pairs with the fence after `begun` is incremented: either this thread sees that the flush
        // has begun, or the flush covers this thread's write.
        fence(Ordering::SeqCst);
        Ticket(self.begun.load(Ordering::SeqCst) + 1)
    }

    /// Returns the number of flushes so far.
    pub(crate) fn count(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Returns whether a successful flush has covered `ticket`.
    pub(crate) fn is_done(&self, ticket: Ticket) -> bool {
        self.done.load(Ordering::Acquire) >= ticket.0
    }

    /// Waits until a successful flush has covered `ticket`. If no thread is flushing, the caller
    /// first gathers the threads that shared the last flush, and then runs one.
    pub(crate) fn wait_together(&self, device: &dyn BlockDevice, ticket: Ticket) -> Result<()> {
        self.wait_with(ticket, true, || device.flush().map_err(JournalError::from))
    }

    /// Flushes all writes that have returned. Does not gather other threads first: the caller is a
    /// commit or a checkpoint that other threads wait for.
    pub(crate) fn flush(&self, device: &dyn BlockDevice) -> Result<()> {
        self.wait_with(self.ticket(), false, || device.flush().map_err(JournalError::from))
    }

    /// Flushes the note of an abort, even after a failed flush, whose error stays. A failure of
    /// this flush is permanent too: it may have lost a write of a waiting thread.
    pub(crate) fn flush_note(&self, device: &dyn BlockDevice) -> Result<()> {
        self.flush(device).or_else(|_| Ok(device.flush()?))
    }

    fn wait_with(&self, ticket: Ticket, gather: bool, flush: impl Fn() -> Result<()>) -> Result<()> {
        loop {
            if self.is_done(ticket) {
                return Ok(());
            }
            if self.failed.load(Ordering::Acquire) {
                return self.error.lock().clone().map_or(Ok(()), Err);
            }
            let over = |ticket| self.is_done(ticket) || self.failed.load(Ordering::Acquire);
            if let Some(turn) = self.baton.wait(ticket, || over(ticket)) {
                if gather {
                    turn.gather();
                }
                let began = Instant::now();
                let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
                fence(Ordering::SeqCst);
                let lost = LostFlush(self);
                let flushed = flush();
                std::mem::forget(lost);
                match flushed {
                    // One flush runs at a time, so no thread has stored a greater number.
                    Ok(()) => self.done.store(number, Ordering::Release),
                    Err(error) => self.fail(error),
                }
                turn.pass(Some(began.elapsed()), over);
            }
        }
    }

    /// Latches a failure; the first one stays.
    fn fail(&self, error: JournalError) {
        self.error.lock().get_or_insert(error);
        self.failed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_sync::{Arc, model, thread};

    /// A device that consists of two numbers: the writes made, and how many of them are durable.
    #[derive(Default)]
    struct Medium {
        written: AtomicU64,
        durable: AtomicU64,
        flushes: AtomicU64,
        shared: SharedFlush,
    }

    impl Medium {
        fn flush(&self) -> Result<()> {
            let written = self.written.load(Ordering::Relaxed);
            thread::yield_now();
            self.durable.store(written, Ordering::Relaxed);
            self.flushes.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        /// Writes and makes it durable, as an fdatasync would.
        fn write_and_sync(&self, gather: bool) {
            let mine = self.written.fetch_add(1, Ordering::Relaxed) + 1;
            let ticket = self.shared.ticket();
            self.shared.wait_with(ticket, gather, || self.flush()).unwrap();
            assert!(self.durable.load(Ordering::Relaxed) >= mine);
            assert!(self.shared.is_done(ticket));
        }
    }

    #[test]
    fn a_covered_ticket_is_durable() {
        model(|| {
            let medium = Arc::new(Medium::default());
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let medium = Arc::clone(&medium);
                    thread::spawn(move || medium.write_and_sync(false))
                })
                .collect();
            medium.write_and_sync(false);
            others.into_iter().for_each(|other| other.join().unwrap());
            let flushes = medium.flushes.load(Ordering::Relaxed);
            assert!((1..=3).contains(&flushes));
            // Nothing was written since.
            medium.shared.wait_with(Ticket(flushes), false, || panic!("no flush is needed")).unwrap();
        });
    }

    /// The one that is first waits for the other, whose write the flush then covers too.
    #[test]
    fn threads_that_are_gathered_share_a_flush() {
        model(|| {
            let medium = Arc::new(Medium::default());
            medium.shared.baton.expect_crowd(2);
            let other = {
                let medium = Arc::clone(&medium);
                thread::spawn(move || medium.write_and_sync(true))
            };
            medium.write_and_sync(true);
            other.join().unwrap();
            assert_eq!(medium.flushes.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn a_failure_reaches_all_threads_that_were_not_covered_and_stays() {
        model(|| {
            let shared = Arc::new(SharedFlush::default());
            shared.wait_with(shared.ticket(), false, || Ok(())).unwrap();
            let covered = Ticket(1);
            let fail = || Err(JournalError::Aborted("the medium is gone".into()));
            let other = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.wait_with(shared.ticket(), false, fail).unwrap_err().to_string())
            };
            let error = shared.wait_with(shared.ticket(), false, fail).unwrap_err().to_string();
            assert!(error.contains("the medium is gone"));
            assert_eq!(other.join().unwrap(), error);
            shared.wait_with(covered, false, || panic!("it is done")).unwrap();
            shared.wait_with(Ticket::NOTHING, false, || panic!("nothing to do")).unwrap();
            assert!(shared.wait_with(shared.ticket(), false, || panic!("no second try")).is_err());
        });
    }
}
