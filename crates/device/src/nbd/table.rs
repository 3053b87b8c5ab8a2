//! The requests in flight on a connection, and what its threads share besides.

use super::error::NbdError;
use super::job::{Arrival, Data, Job, Waiter};
use super::outgoing::Outgoing;
use super::reader::{Due, Reader};
use super::reply::{Body, Expected};
use super::request::Command;
use super::wire::ExportFlags;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What was agreed on with the server that requests and replies of a connection depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) structured: bool,
    pub(crate) allocation: Option<u32>,
    pub(crate) flags: ExportFlags,
    pub(crate) timeout: Duration,
}

impl Terms {
    /// Returns whether the server has agreed to take a command. A client may send no other.
    fn offers(&self, command: Command) -> bool {
        match command {
            Command::Trim => self.flags.has(ExportFlags::TRIM),
            Command::WriteZeroes => self.flags.has(ExportFlags::WRITE_ZEROES),
            Command::BlockStatus => self.allocation.is_some(),
            Command::Read | Command::Write | Command::Flush | Command::Disconnect => true,
        }
    }
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) expected: Expected,
    pub(super) waiter: Arc<Waiter>,
    pub(super) job: usize,
    /// By the connection's clock.
    pub(super) deadline: Duration,
}

impl Pending {
    pub(super) fn due(&self, cookie: u64) -> Due {
        Due { cookie, deadline: self.deadline, what: self.expected.request.command.name() }
    }
}

/// Content that its owner is to read itself.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) cookie: u64,
    pub(super) pending: Pending,
    pub(super) body: Body,
    pub(super) at: usize,
    pub(super) len: usize,
}

/// What the threads of a connection share.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) pending: BTreeMap<u64, Pending>,
    pub(super) next_cookie: u64,
    pub(super) next_waiter: u64,
    /// The threads that sleep until their requests are answered, or until they are to lead.
    pub(super) sleepers: BTreeMap<u64, Arc<Waiter>>,
    pub(super) reader: Option<Box<Reader>>,
    pub(super) handed: Option<Handed>,
    /// What no thread has begun to send.
    pub(super) outgoing: Outgoing,
    /// An empty one, for its memory.
    pub(super) spare: Outgoing,
    /// A thread sends, and looks again before it ends.
    pub(super) is_sending: bool,
    /// The leader looks at `outgoing` before it sleeps.
    pub(super) leader_sends: bool,
    /// The time in which a thread has led.
    pub(super) clock: Duration,
    /// The oldest request in flight, and since when it is.
    pub(super) oldest: (u64, Duration),
    pub(super) lost: Option<NbdError>,
}

impl Table {
    /// Takes what is to be sent next. Without any, the sender is done.
    pub(super) fn next_outgoing(&mut self) -> Option<Outgoing> {
        self.is_sending = !self.outgoing.is_empty();
        self.is_sending.then(|| std::mem::replace(&mut self.outgoing, std::mem::take(&mut self.spare)))
    }

    /// Enters the `count` jobs that are not done, and queues their requests. A command that this
    /// connection's server does not offer fails at once, as a server fails one that it lacks: the
    /// server of the connection before may have offered it.
    pub(super) fn register(&mut self, jobs: &[Job<'_>], count: usize, terms: Terms) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter::new(self.next_waiter, count));
        self.next_waiter += 1;
        let deadline = self.clock.saturating_add(terms.timeout);
        for (index, job) in jobs.iter().enumerate().filter(|(_, job)| !job.done) {
            let command = job.request.command;
            if !terms.offers(command) {
                waiter.deliver(index, Arrival::Failed(NbdError::not_offered(command.name())), None);
                waiter.deliver(index, Arrival::Done, None);
                waiter.count_answer();
                continue;
            }
            let expected = Expected::new(job.request, terms.structured, terms.allocation);
            let cookie = self.next_cookie;
            self.next_cookie += 1;
            let content = if let Data::Out(bytes) = &job.data { Some(bytes) } else { None };
            self.outgoing.push(&job.request, cookie, content);
            let pending = Pending { expected, waiter: Arc::clone(&waiter), job: index, deadline };
            self.pending.insert(cookie, pending);
        }
        waiter
    }

    /// Takes the request that a reply is to.
    ///
    /// # Errors
    /// A reply to none that is in flight.
    pub(super) fn take(&mut self, cookie: u64) -> Result<Pending, NbdError> {
        self.pending.remove(&cookie).ok_or(match cookie {
            cookie if cookie > 0 && cookie < self.next_cookie => NbdError::AnsweredTwice { cookie },
            cookie => NbdError::UnknownCookie { cookie },
        })
    }

    /// Checks, after `step` of time, that no request is late: that its own time is over, and that
    /// it has been the oldest for as long. A slow server answers a long queue one by one.
    ///
    /// # Errors
    /// [`NbdError::Timeout`].
    pub(super) fn check_deadlines(
        &mut self,
        step: Duration,
        timeout: Duration,
        current: Option<Due>,
    ) -> Result<(), NbdError> {
        self.clock += step;
        let first = self.pending.first_key_value().map(|(cookie, pending)| pending.due(*cookie));
        let oldest = first.into_iter().chain(current).min_by_key(|due| due.cookie);
        let Some(Due { cookie, deadline, what }) = oldest else { return Ok(()) };
        if self.oldest.0 != cookie {
            self.oldest = (cookie, self.clock);
        }
        match self.clock >= deadline.max(self.oldest.1 + timeout) {
            true => Err(NbdError::Timeout { what, seconds: timeout.as_secs() }),
            false => Ok(()),
        }
    }
}
