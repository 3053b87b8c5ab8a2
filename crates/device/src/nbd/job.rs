//! Requests with their content, and what became of them.

use super::error::NbdError;
use super::reply::Extent;
use super::request::Request;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;

/// The content of a request.
#[derive(Debug)]
pub(crate) enum Data<'a> {
    None,
    /// To write.
    Out(Arc<Vec<u8>>),
    /// To fill.
    In(&'a mut [u8]),
    /// The answer to a block status.
    Extents(Vec<Extent>),
}

/// A request and what became of it.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) request: Request,
    pub(crate) data: Data<'a>,
    pub(crate) done: bool,
    /// What the server said where it failed.
    pub(crate) failed: Option<NbdError>,
}

impl<'a> Job<'a> {
    pub(crate) fn new(request: Request, data: Data<'a>) -> Self {
        Self { request, data, done: false, failed: None }
    }

    /// Takes what has come for it. Its place was checked by `Expected`.
    fn take(&mut self, arrival: Arrival) {
        match (arrival, &mut self.data) {
            (Arrival::Done, _) => self.done = true,
            (Arrival::Failed(why), _) => self.failed = Some(why),
            (Arrival::Extents(list), Data::Extents(to)) => *to = list,
            (Arrival::Bytes { at, bytes }, Data::In(buf)) => {
                if let Some(to) = buf.get_mut(at..at + bytes.len()) {
                    to.copy_from_slice(&bytes);
                }
            }
            (Arrival::Zeros { at, len }, Data::In(buf)) => {
                if let Some(to) = buf.get_mut(at..at + len) {
                    to.fill(0);
                }
            }
            _ => {}
        }
    }
}

/// What came for a request.
#[derive(Debug)]
pub(crate) enum Arrival {
    Bytes { at: usize, bytes: Vec<u8> },
    Zeros { at: usize, len: usize },
    Extents(Vec<Extent>),
    Failed(NbdError),
    Done,
}

/// A thread that has requests in flight on a connection.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) number: u64,
    thread: Thread,
    /// Its requests without an answer.
    left: AtomicUsize,
    /// What the leader has received for it: the place of a job, and what came.
    inbox: Mutex<Vec<(usize, Arrival)>>,
}

impl Waiter {
    /// Makes the calling thread one that waits for `count` answers.
    pub(crate) fn new(number: u64, count: usize) -> Self {
        let (left, inbox) = (AtomicUsize::new(count), Mutex::default());
        Self { number, thread: std::thread::current(), left, inbox }
    }

    /// Returns how many of its requests have no answer.
    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    /// Returns whether all of its requests are answered.
    pub(crate) fn is_answered(&self) -> bool {
        self.left() == 0
    }

    /// Counts an answer. Returns whether it was the last.
    pub(crate) fn count_answer(&self) -> bool {
        self.left.fetch_sub(1, Ordering::Release) == 1
    }

    /// Wakes the thread, now or before it next sleeps.
    pub(crate) fn wake(&self) {
        self.thread.unpark();
    }

    /// Takes what came for its jobs.
    pub(crate) fn take_arrivals(&self, jobs: &mut [Job<'_>]) {
        let arrived = std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        for (job, arrival) in arrived {
            if let Some(job) = jobs.get_mut(job) {
                job.take(arrival);
            }
        }
    }

    /// Gives a job what came for it: `jobs` are those of this waiter, if that is the caller.
    pub(crate) fn deliver(&self, job: usize, arrival: Arrival, jobs: Option<&mut [Job<'_>]>) {
        match jobs {
            Some(jobs) => {
                if let Some(job) = jobs.get_mut(job) {
                    job.take(arrival);
                }
            }
            None => self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push((job, arrival)),
        }
    }
}
