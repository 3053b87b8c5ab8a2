//! The threads of a mount whose requests come by io_uring. See [`Queues`].

use super::Server;
use crate::buffers::Outbox;
use crate::fault::Answer;
use crate::filesystem::{Outcome, Stage};
use crate::notifier::Notice;
use crate::queues::{Entry, Queues};
use crate::request::Request;
use crate::scheduling::Cost;
use lanefs::device::FuseRing;
use rustix::io::Errno;
use std::io;
use std::thread::{Builder, Scope};

/// The threads of the queues, and what makes another one.
#[derive(Clone, Copy)]
pub(super) struct QueueThreads<'s, 'e> {
    pub(super) server: &'s Server,
    pub(super) queues: &'s Queues,
    pub(super) scope: &'s Scope<'s, 'e>,
    /// Ends the connection.
    pub(super) abort: &'s (dyn Fn() + Sync),
}

impl<'s> QueueThreads<'s, '_> {
    /// Starts a thread for each queue, and the one that watches them.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start(self) -> io::Result<()> {
        for queue in self.queues.numbers() {
            if !self.make(queue)? {
                return Err(Errno::NOMEM.into());
            }
        }
        let watch = move || {
            let make = |queue| _ = self.make(queue);
            self.queues.watch(self.server.workers.following(), make);
        };
        Builder::new().name("lanefs-queues".into()).spawn_scoped(self.scope, watch)?;
        Ok(())
    }

    /// Makes another thread for `queue`. Returns whether it could: there is a bound.
    fn make(self, queue: u16) -> io::Result<bool> {
        let Some(ring) = self.queues.another(queue) else { return Ok(false) };
        let run = move || {
            // A new thread inherits the processor and policy of the thread that makes it.
            self.server.workers.following().release_caller();
            if let Err(e) = self.serve(ring, queue)
                && self.server.channel.is_connected()
            {
                // Its programs must not wait for ever.
                self.queues.fail(e);
                (self.abort)();
            }
        };
        let made = Builder::new().name(format!("lanefs-queue{queue}")).spawn_scoped(self.scope, run);
        made.map(|_| true).inspect_err(|_| self.queues.not_made(queue))
    }

    /// Serves requests of `queue` until the mount is gone.
    fn serve(self, ring: FuseRing, queue: u16) -> io::Result<()> {
        let Self { server, queues, .. } = self;
        let following = server.workers.following();
        let station = queues.station(queue);
        let mut outbox = Outbox::new();
        let mut entry = Entry::new(ring, server.channel.device(), queue)?;
        while entry.receive()? {
            let received = entry.received()?;
            let unique = received.header.unique;
            let request = received.request.as_ref();
            let cost = request.map_or(Cost::Short, Request::cost);
            if cost >= Cost::Long {
                station.step_forward(following);
            }
            if queues.took(&station, cost) {
                let _ = self.make(queue);
            }
            server.requests.add(1);
            server.buffers.lend(&mut outbox.buffer, request.is_ok_and(Request::answers_bulk));
            let (outcome, answer) = server.serve_request(&received, &mut outbox, Stage::Fresh);
            let answer = match outcome {
                Outcome::Answered | Outcome::Last => answer,
                Outcome::Silent => self.late(queue, unique, &mut outbox),
                Outcome::AfterNotice(notice) => self.after(notice, queue, unique, &mut outbox),
            };
            entry.answer(unique, &mut outbox, answer)?;
            server.buffers.lend(&mut outbox.buffer, false);
            if outcome == Outcome::Last {
                server.workers.end();
            }
            let stands_back = cost < Cost::Long && station.stand_back(following);
            queues.gave(&station);
            if !stands_back {
                following.wake(|| entry.hand_over())?;
            }
        }
        Ok(())
    }

    /// Answers after a notice to the kernel, or with it on its way if no thread would take requests
    /// meanwhile.
    fn after(self, notice: Notice, queue: u16, unique: u64, outbox: &mut Outbox) -> Answer {
        if !self.may_wait(queue) {
            self.server.filesystem.notifier().tell(notice);
            return Ok(());
        }
        self.server.answer_later(notice, unique, outbox);
        self.late(queue, unique, outbox)
    }

    /// Waits for the answer of the notifying thread.
    ///
    /// # Errors
    /// Those of the answer; EAGAIN if no thread would take requests meanwhile; EIO when the mount
    /// is gone.
    fn late(self, queue: u16, unique: u64, outbox: &mut Outbox) -> Answer {
        if !self.may_wait(queue) {
            self.queues.late.abandon(unique);
            return Err(Errno::AGAIN.into());
        }
        outbox.clear();
        let (answer, content) = self.queues.late.wait(unique).ok_or(Errno::IO)?;
        answer.and_then(|()| outbox.put_bytes(&content))
    }

    /// Sees to it that another thread takes the requests of `queue`. Returns whether one does.
    fn may_wait(self, queue: u16) -> bool {
        self.queues.has_free(queue) || self.make(queue).unwrap_or(false)
    }
}
