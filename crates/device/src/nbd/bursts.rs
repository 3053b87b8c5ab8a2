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
use super::unflushed::Kept;
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
    /// `None`: the connection was lost before.
    sent: Option<(Arc<Session>, SentOn)>,
}

/// See the head of the file.
pub(super) struct Bursts<'c> {
    client: &'c Client,
    in_flight: VecDeque<Burst>,
    bytes: usize,
    requests: usize,
}

/// Takes the writes of the next burst.
pub(super) fn next(writes: &mut impl Iterator<Item = Kept>) -> Vec<Kept> {
    let (mut burst, mut bytes) = (Vec::new(), 0);
    while burst.len() < REQUESTS && bytes < BYTES {
        let Some(write) = writes.next() else { break };
        bytes += write.content();
        burst.push(write);
    }
    burst
}

impl<'c> Bursts<'c> {
    pub(super) fn new(client: &'c Client) -> Self {
        Self { client, in_flight: VecDeque::new(), bytes: 0, requests: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Sends entered writes, from the number `first` on, and waits for older ones while too many
    /// are in flight.
    ///
    /// # Errors
    /// As [`Client::run`].
    pub(super) fn send(&mut self, first: u64, writes: &[Kept]) -> Result<(), NbdError> {
        let bytes = writes.iter().map(Kept::content).sum();
        let jobs: Vec<Job<'_>> = writes.iter().map(|write| job_of(write, self.client.write_flags)).collect();
        self.bytes += bytes;
        self.requests += jobs.len();
        self.in_flight.push_back(Burst { first, jobs, bytes, sent: None });
        let session = self.client.session()?;
        if let Some(burst) = self.in_flight.back_mut()
            && let Ok(sent) = session.push().and_then(|()| session.send_out(&burst.jobs))
        {
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
    pub(super) fn end(&mut self) -> Result<(), NbdError> {
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
        if let Some((session, sent)) = sent {
            // What this loses is run again, and meets the reason again.
            let _ = session.wait_for(sent, &mut jobs);
        }
        for job in jobs.iter_mut().filter(|job| !job.done) {
            // What came of its answer is not the answer.
            job.failed = None;
        }
        self.client.end_writes(first, &mut jobs)
    }
}

impl Drop for Bursts<'_> {
    fn drop(&mut self) {
        // After an error, which the caller has.
        let _ = self.end();
    }
}
