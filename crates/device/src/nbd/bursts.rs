//! The writes of one call, in bursts of which several are in flight.
//!
//! A burst is on its way while the caller copies the content of the next one, so the server has
//! something to do from the first burst on, and what is sent was copied a moment ago.
//!
//! Invariant: each write that was entered into [`Unflushed`](super::unflushed::Unflushed) is told
//! to be answered, or to have failed, before the bursts are dropped.

use super::client::{Client, job_of};
use super::error::NbdError;
use super::job::Job;
use super::link;
use super::session::{SentOn, Session};
use super::unflushed::{Kept, Next};
use std::collections::VecDeque;
use std::sync::Arc;

/// Requests that are sent together, and the bytes of their content after which no other joins.
const REQUESTS: usize = 64;
const BYTES: usize = 256 << 10;

/// Writes that were sent together.
struct Burst {
    /// The number of the first one.
    first: u64,
    jobs: Vec<Job<'static>>,
    bytes: usize,
    /// `None`: there were no connections.
    sent: Option<(Arc<Session>, Result<SentOn, NbdError>)>,
}

/// The bursts of one call that are in flight.
struct Bursts<'c> {
    client: &'c Client,
    in_flight: VecDeque<Burst>,
    bytes: usize,
    requests: usize,
}

/// Takes the writes of the next burst.
fn next_burst(writes: &mut impl Iterator<Item = Kept>) -> Vec<Kept> {
    let (mut burst, mut bytes) = (Vec::new(), 0);
    while burst.len() < REQUESTS && bytes < BYTES {
        let Some(write) = writes.next() else { break };
        bytes += write.content();
        burst.push(write);
    }
    burst
}

impl Client {
    /// Runs writes, which are kept until they are flushed. With FUA they are durable then. The next
    /// of `writes` is asked for while those before are in flight.
    ///
    /// # Errors
    /// As [`run`](Self::run), and as [`flush`](Self::flush) where there is no room for more.
    pub(crate) fn write(&self, writes: impl Iterator<Item = Kept>) -> Result<(), NbdError> {
        let (mut writes, mut in_flight) = (writes.peekable(), Bursts::new(self));
        while writes.peek().is_some() {
            let burst = next_burst(&mut writes);
            let mut rest = &burst[..];
            while let Some(next) = rest.first() {
                // What has room before a flush goes together.
                let (first, count) = self.unflushed.enter(rest);
                let (now, later) = rest.split_at(count);
                rest = later;
                if count == 0 {
                    in_flight.end()?;
                    self.wait_for_room(next)?;
                } else if in_flight.is_empty() && later.is_empty() && writes.peek().is_none() {
                    let mut jobs: Vec<Job<'_>> =
                        now.iter().map(|write| job_of(write, self.write_flags)).collect();
                    self.end_writes(first, &mut jobs)?;
                } else {
                    in_flight.send(first, now)?;
                }
            }
        }
        in_flight.end()
    }

    fn wait_for_room(&self, write: &Kept) -> Result<(), NbdError> {
        if self.unflushed.wait_for_room(write) == Next::Enter {
            return Ok(());
        }
        let flushed = self.flush();
        self.unflushed.made_room();
        flushed
    }
}

impl<'c> Bursts<'c> {
    fn new(client: &'c Client) -> Self {
        Self { client, in_flight: VecDeque::new(), bytes: 0, requests: 0 }
    }

    fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Sends entered writes, from the number `first` on, and waits for older ones while too many
    /// are in flight.
    ///
    /// # Errors
    /// As [`Client::run`].
    fn send(&mut self, first: u64, writes: &[Kept]) -> Result<(), NbdError> {
        let bytes = writes.iter().map(Kept::content).sum();
        let jobs: Vec<Job<'_>> = writes.iter().map(|write| job_of(write, self.client.write_flags)).collect();
        self.bytes += bytes;
        self.requests += jobs.len();
        self.in_flight.push_back(Burst { first, jobs, bytes, sent: None });
        let session = self.client.session()?;
        if let Some(burst) = self.in_flight.back_mut() {
            let sent = session.push().and_then(|()| session.send_out(&burst.jobs));
            burst.sent = Some((session, sent));
        }
        while self.bytes > link::BURST_BYTES || self.requests > link::BURST {
            self.end_oldest()?;
        }
        Ok(())
    }

    /// Waits for all.
    ///
    /// # Errors
    /// The first of them, as [`Client::run`].
    fn end(&mut self) -> Result<(), NbdError> {
        let mut first = Ok(());
        while !self.in_flight.is_empty() {
            first = first.and(self.end_oldest());
        }
        first
    }

    fn end_oldest(&mut self) -> Result<(), NbdError> {
        let Some(Burst { first, mut jobs, bytes, sent }) = self.in_flight.pop_front() else { return Ok(()) };
        self.bytes -= bytes;
        self.requests -= jobs.len();
        let lost = sent.and_then(|(session, sent)| {
            let why = sent.and_then(|sent| session.wait_for(sent, &mut jobs)).err()?;
            Some((session, why))
        });
        for job in jobs.iter_mut().filter(|job| !job.done) {
            // What came of its answer is not the answer.
            job.failed = None;
        }
        // What was lost is run again, by another connection if there is one.
        self.client.end_writes(first, &mut jobs)?;
        lost.map_or(Ok(()), |(session, why)| self.client.leave(&session, why))
    }
}

impl Drop for Bursts<'_> {
    fn drop(&mut self) {
        // After an error, which the caller has.
        let _ = self.end();
    }
}
