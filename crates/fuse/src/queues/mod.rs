//! Requests by io_uring: the kernel has a queue for each processor, and this the threads of each.
//!
//! A thread has an [`Entry`], which holds one request. The kernel gives a request to the entry that
//! was used last, so one thread serves a queue as long as it keeps up. Another thread is made when
//! all of a queue serve requests that last: at once for a request that is expected to, by the
//! watching thread otherwise. No thread of a queue ends before the mount does.
//!
//! A thread runs on the processor of its queue, under SCHED_IDLE: see
//! [`Following`](crate::scheduling::Following) for the reason. The watching thread looks at all of
//! them once a millisecond, and releases a thread that other programs hold up, or that has had no
//! request for a while.
//!
//! Hazards:
//! - Only a process that is not confined yet can make rings, so all are made before.
//! - A queue without a thread that takes requests hangs the programs of its processor.

mod entry;
mod late;
mod station;

use crate::error::MountError;
use crate::scheduling::{Cost, Following};
pub(crate) use entry::Entry;
use lanefs::device::FuseRing;
pub(crate) use late::LateAnswers;
use parking_lot::{Condvar, Mutex};
pub(crate) use station::Station;
use station::{Look, Seen};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Time between two looks at the threads.
const WATCH: Duration = Duration::from_millis(1);
const SETTING: &str = "/sys/module/fuse/parameters/enable_uring";

/// The queues of a mount whose requests come by io_uring.
#[derive(Debug)]
pub struct Queues {
    queues: Vec<Queue>,
    /// Rings that no thread has yet.
    spare: Mutex<Vec<FuseRing>>,
    stations: Mutex<Vec<Arc<Station>>>,
    pub(crate) late: LateAnswers,
    failure: Mutex<Option<io::Error>>,
    watch: Mutex<WatchState>,
    wanted: Condvar,
    /// The watching thread waits to be woken.
    asleep: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    /// Threads that wait for a request, or are being made for it.
    free: AtomicUsize,
}

#[derive(Debug, Default)]
struct WatchState {
    woken: bool,
    ended: bool,
}

impl Queues {
    /// Makes the rings of a mount with `threads` threads besides one for each queue.
    ///
    /// # Errors
    /// [`MountError::Uring`] where the kernel has no such requests, or has them switched off.
    pub fn prepare(threads: usize) -> Result<Self, MountError> {
        let refused = MountError::Uring;
        match std::fs::read_to_string(SETTING) {
            Ok(setting) if setting.trim() == "Y" => {}
            Ok(_) => {
                return Err(refused(format!(
                    "the kernel has it switched off; root can do: echo Y >{SETTING}"
                )));
            }
            Err(_) => {
                let why = "this kernel has no FUSE over io_uring, which Linux 6.14 and later can have";
                return Err(refused(why.into()));
            }
        }
        let processors = possible_processors().map_err(|e| refused(format!("processors: {e}")))?;
        let rings: io::Result<Vec<FuseRing>> = (0..processors + threads).map(|_| FuseRing::new()).collect();
        let rings = rings.map_err(|e| refused(format!("io_uring: {e}")))?;
        Ok(Self {
            queues: (0..processors).map(|_| Queue::default()).collect(),
            spare: Mutex::new(rings),
            stations: Mutex::default(),
            late: LateAnswers::default(),
            failure: Mutex::default(),
            watch: Mutex::default(),
            wanted: Condvar::new(),
            asleep: AtomicBool::new(false),
        })
    }

    pub(crate) fn numbers(&self) -> std::ops::Range<u16> {
        0..self.queues.len() as u16
    }

    /// Returns how many threads there are.
    pub(crate) fn threads(&self) -> (usize, usize) {
        let stations = self.stations.lock();
        (stations.len(), stations.iter().filter(|station| station.is_serving()).count())
    }

    /// Returns the ring of another thread of `queue`, which the caller makes: it is counted
    /// already. `None` if there are no more.
    pub(crate) fn another(&self, queue: u16) -> Option<FuseRing> {
        let ring = self.spare.lock().pop()?;
        self.queue(queue).free.fetch_add(1, Ordering::Relaxed);
        Some(ring)
    }

    /// Takes back the count of a thread that could not be made.
    pub(crate) fn not_made(&self, queue: u16) {
        self.queue(queue).free.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the station of the calling thread, which serves `queue` from now on.
    pub(crate) fn station(&self, queue: u16) -> Arc<Station> {
        let station = Arc::new(Station::new(queue));
        self.stations.lock().push(Arc::clone(&station));
        station
    }

    /// Notes that the thread of `station` has taken a request. Returns whether another thread is to
    /// be made for its queue.
    pub(crate) fn took(&self, station: &Station, cost: Cost) -> bool {
        station.took();
        let others = self.queue(station.queue()).free.fetch_sub(1, Ordering::Relaxed) - 1;
        if self.asleep.load(Ordering::Relaxed) {
            self.watch.lock().woken = true;
            self.wanted.notify_one();
        }
        others == 0 && cost >= Cost::Long
    }

    /// Notes that the thread of `station` is about to wait for a request.
    pub(crate) fn gave(&self, station: &Station) {
        self.queue(station.queue()).free.fetch_add(1, Ordering::Relaxed);
        station.gave();
    }

    /// Returns whether a thread waits for requests of `queue`.
    pub(crate) fn has_free(&self, queue: u16) -> bool {
        self.queue(queue).free.load(Ordering::Relaxed) > 0
    }

    /// Ends the mount because of an error of one thread.
    pub(crate) fn fail(&self, e: io::Error) {
        self.failure.lock().get_or_insert(e);
    }

    /// Returns the error of a thread, if one had any.
    pub(crate) fn failure(&self) -> Option<io::Error> {
        self.failure.lock().take()
    }

    /// Ends the watching thread and all waiting for late answers: the mount is gone.
    pub(crate) fn end(&self) {
        self.watch.lock().ended = true;
        self.wanted.notify_one();
        self.late.end();
    }

    /// Watches the threads until the mount is gone. `make` makes another thread for a queue.
    pub(crate) fn watch(&self, following: &Following, make: impl Fn(u16)) {
        let mut seen = Vec::new();
        let mut active = true;
        while self.rest(active) {
            let stations = self.stations.lock().clone();
            seen.resize_with(stations.len(), Seen::default);
            active = false;
            for (station, seen) in stations.iter().zip(&mut seen) {
                let look = station.look(seen, following);
                active |= look != Look::Idle;
                if look == Look::Lasts && !self.has_free(station.queue()) {
                    make(station.queue());
                }
            }
        }
    }

    /// Waits until the next look: until a thread takes a request, if none is `active`. Returns
    /// whether the mount is still there.
    fn rest(&self, active: bool) -> bool {
        let mut watch = self.watch.lock();
        if active {
            if !watch.ended {
                self.wanted.wait_for(&mut watch, WATCH);
            }
        } else {
            self.asleep.store(true, Ordering::Relaxed);
            while !watch.woken && !watch.ended {
                self.wanted.wait(&mut watch);
            }
            self.asleep.store(false, Ordering::Relaxed);
        }
        watch.woken = false;
        !watch.ended
    }

    fn queue(&self, number: u16) -> &Queue {
        &self.queues[usize::from(number)]
    }
}

/// Returns how many processors the machine can have.
fn possible_processors() -> io::Result<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count(&list).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("list '{}'", list.trim())))
}

/// Returns how many numbers a list has, such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        Some(usize::from(last.checked_sub(first)?) + 1)
    };
    list.trim().split(',').map(range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, wanted) in [("0\n", Some(1)), ("0-1\n", Some(2)), ("0-3,8-11,13", Some(9))] {
            assert_eq!(count(list), wanted);
        }
        for list in ["", "1-0", "a", "0-", "70000"] {
            assert_eq!(count(list), None, "{list}");
        }
    }
}
