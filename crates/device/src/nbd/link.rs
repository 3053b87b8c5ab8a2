//! One connection, shared by threads: requests out, replies in.
//!
//! No thread is there to receive (`leader`). One of the threads that wait for replies is the
//! leader: it reads the socket, fills its own buffers, and gives other threads what is theirs. When
//! its requests are answered, it wakes another waiter, which leads on. Requests are queued. A
//! thread that sends anyway, or the leader before it sleeps, sends what several threads have
//! queued.
//!
//! Invariants:
//! - No thread waits for the socket to take bytes while no thread reads replies. Without a leader,
//!   the rest is left to the next one, which sends and reads. So a server that stops reading until
//!   its replies are read does not stop for ever.
//! - While a thread sleeps, one thread leads, or has been woken to.
//! - A thread that sleeps is in `sleepers` until it is answered. Changes take the table's lock.
//! - The reader is in the table while no thread leads.

use super::error::NbdError;
use super::job::{Job, Waiter};
use super::reader::{Inlet, Reader};
use super::request::{Command, Request};
use super::socket::Socket;
use super::stream::Readiness;
use super::table::{Table, Terms};
use super::wire::{is_tick, lost};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most requests of one thread in flight.
pub(super) const BURST: usize = 256;
/// The most bytes of one thread in flight.
pub(super) const BURST_BYTES: usize = 16 << 20;
/// How long a thread that cannot send waits before it looks whether there is still a leader.
pub(super) const WAIT: Duration = Duration::from_millis(20);

/// Requests that are in flight, `None` for none.
#[must_use]
pub(crate) struct Sent(Option<Arc<Waiter>>);

/// A connection after its negotiation.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) socket: Arc<Socket>,
    pub(super) terms: Terms,
    /// Requests without an answer.
    pub(super) in_flight: AtomicUsize,
    table: Mutex<Table>,
}

impl Link {
    pub(crate) fn new(socket: Socket, terms: Terms) -> Self {
        let socket = Arc::new(socket);
        let reader = Some(Box::new(Reader::new(Arc::clone(&socket))));
        let table = Table { next_cookie: 1, next_waiter: 1, reader, ..Table::default() };
        Self { socket, terms, in_flight: AtomicUsize::new(0), table: Mutex::new(table) }
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many requests have no answer yet.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Runs those of `jobs` that are not done, in any order.
    ///
    /// # Errors
    /// A loss, or a reply that breaks a rule: the connection has ended. Jobs that were done are. A
    /// request that the server failed is done, and says so itself.
    pub(crate) fn run(&self, jobs: &mut [Job<'_>]) -> Result<(), NbdError> {
        let mut from = 0;
        while from < jobs.len() {
            let to = burst_end(jobs, from);
            let burst = &mut jobs[from..to];
            let sent = self.send_out(burst)?;
            self.wait_for(sent, burst)?;
            from = to;
        }
        Ok(())
    }

    /// Says goodbye, and ends the connection.
    pub(crate) fn disconnect(&self) {
        let table = self.table();
        // A server that does not take it in one call gets none.
        if table.lost.is_none() && !table.is_sending && table.outgoing.is_empty() {
            let request = Request { command: Command::Disconnect, flags: 0, offset: 0, len: 0 };
            let _ = self.socket.send(&request.encode(0), false);
        }
        drop(table);
        self.end(NbdError::Closed);
    }

    /// Ends the connection for all threads, for this reason. Returns the first reason.
    pub(crate) fn end(&self, why: NbdError) -> NbdError {
        let mut table = self.table();
        // Before the shutdown, which other threads take for a loss.
        let first = table.lost.get_or_insert(why).clone();
        self.socket.shutdown();
        table.sleepers.values().for_each(|waiter| waiter.wake());
        first
    }

    /// Sends the jobs that are not done, for [`wait_for`](Self::wait_for).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) fn send_out(&self, jobs: &[Job<'_>]) -> Result<Sent, NbdError> {
        self.send(jobs).map_err(|e| self.end(e))
    }

    /// Waits for jobs that were sent.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) fn wait_for(&self, sent: Sent, jobs: &mut [Job<'_>]) -> Result<(), NbdError> {
        let Sent(Some(waiter)) = sent else { return Ok(()) };
        let waited = self.wait(&waiter, jobs);
        waiter.take_arrivals(jobs);
        waited.map_err(|e| self.end(e))
    }

    fn send(&self, jobs: &[Job<'_>]) -> Result<Sent, NbdError> {
        let count = jobs.iter().filter(|job| !job.done).count();
        if count == 0 {
            return Ok(Sent(None));
        }
        let mut table = self.table();
        if let Some(lost) = &table.lost {
            return Err(lost.clone());
        }
        let waiter = table.register(jobs, count, self.terms);
        self.in_flight.fetch_add(waiter.left(), Ordering::Relaxed);
        if !table.is_sending && !table.leader_sends {
            table.is_sending = true;
            self.send_all(table)?;
        }
        Ok(Sent(Some(waiter)))
    }

    /// Sends what is queued, and what is queued meanwhile.
    pub(super) fn send_all<'l>(&'l self, mut table: MutexGuard<'l, Table>) -> Result<(), NbdError> {
        while let Some(mut now) = table.next_outgoing() {
            drop(table);
            loop {
                match now.send(&self.socket) {
                    Ok(()) => break,
                    Err(e) if is_tick(&e) => {}
                    Err(e) => return Err(self.known_loss(lost(&e))),
                }
                let mut table = self.table();
                if let Some(lost) = &table.lost {
                    return Err(lost.clone());
                }
                if let Some(reader) = &mut table.reader {
                    // The next leader goes on, which may be this thread.
                    reader.inlet.unsent = Some(now);
                    return Ok(());
                }
                drop(table);
                let writable = Readiness { read: false, write: true };
                self.socket.wait(writable, WAIT).map_err(|e| self.known_loss(lost(&e)))?;
            }
            table = self.table();
            table.spare = now;
        }
        Ok(())
    }

    /// Sends what threads have left to the leader, as much as the socket takes.
    pub(super) fn send_before_sleep(&self, inlet: &mut Inlet) -> Result<(), NbdError> {
        loop {
            let Some(now) = &mut inlet.unsent else {
                if !std::mem::take(&mut inlet.sends_for_others) {
                    return Ok(());
                }
                let mut table = self.table();
                table.leader_sends = false;
                if !table.is_sending && !table.outgoing.is_empty() {
                    table.is_sending = true;
                    inlet.unsent = table.next_outgoing();
                }
                continue;
            };
            match now.send(&self.socket) {
                Ok(()) => {
                    let mut table = self.table();
                    table.spare = inlet.unsent.take().unwrap_or_default();
                    inlet.unsent = table.next_outgoing();
                }
                Err(e) if is_tick(&e) => return Ok(()),
                Err(e) => return Err(self.known_loss(lost(&e))),
            }
        }
    }

    /// Returns why the connection was ended, `seen` if this thread is the first to notice.
    pub(super) fn known_loss(&self, seen: NbdError) -> NbdError {
        self.table().lost.clone().unwrap_or(seen)
    }
}

/// Returns where the burst ends that begins with the job `from`.
fn burst_end(jobs: &[Job<'_>], from: usize) -> usize {
    let mut bytes = 0;
    let rest = &jobs[from..jobs.len().min(from + BURST)];
    let fitting = rest.iter().take_while(|job| {
        let fits = bytes < BURST_BYTES;
        bytes += job.request.len as usize;
        fits
    });
    from + fitting.count()
}
