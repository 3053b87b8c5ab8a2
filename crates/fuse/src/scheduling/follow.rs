//! Follows a program: a thread serves the program's requests on the processor that it runs on.
//!
//! Hazard: a thread changes only its own scheduling, by thread id 0: a confined server may name no
//! other thread. There the broker releases a held-up thread, if it is one of the server.

use crate::broker::Broker;
use lanefs::device::set_idle_policy;
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Consecutive requests of one program before a thread follows it.
const STREAK: u32 = 32;
/// The upper bound of that number, which grows each time following did not pay.
const LONGEST_STREAK: u32 = 1 << 16;
/// A thread that waited longer than this for a request has slept.
const SLEPT: Duration = Duration::from_micros(15);
/// Sleeps before the thread looks up the program's processor. The number doubles, up to the second
/// one, while the program is found in its place.
const LOOK_AFTER: u32 = 2;
const LOOK_AFTER_AT_MOST: u32 = 256;
/// Weight of a request of another program, in requests of the followed one.
const STRANGER: u32 = 4;
/// Following ends when the requests of other programs weigh more than this.
const CROWD: u32 = 32;
/// Requests after which following is judged by how many of them the thread slept for.
const TERM: u32 = 512;
/// How long after a thread was held up it takes SCHED_IDLE only while it answers.
const CROWDED: Duration = Duration::from_millis(250);

/// A thread's preferred way to take requests from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Preference {
    /// As before.
    Same,
    /// As the only thread that takes requests.
    Alone,
    /// As one of several threads.
    Together,
}

/// The rule by which threads of a mount follow programs, if they may.
///
/// A request costs two wake-ups: of the serving thread, and of the program that waits for the
/// answer. On one processor each is a context switch. Between two, the waiting processor halts and
/// needs an interrupt to wake, which on a virtual machine takes ten times as long as the request.
/// The scheduler moves a woken thread to an idle processor, so it parts the two again and again.
/// Hence, while one program sends nearly all requests, one after the other:
///
/// - One thread serves alone (see [`Workers`](super::Workers)), bound to the program's
///   processor.
/// - That thread runs under SCHED_IDLE. The scheduler takes a processor that runs nothing else for
///   an idle one, and leaves the program there. The program continues at once, and the thread when
///   the program waits again. The thread then finds the next request queued and never sleeps. With
///   it, it finds the requests that no program waits for (the release of a file).
/// - Other programs that want that processor preempt the thread and hold it up. When `Workers` has
///   detected this, the thread takes SCHED_IDLE only while it answers, for [`CROWDED`]. Both
///   changes of the policy take about a microsecond.
/// - A thread that did sleep has been parted from the program, so it looks up the program's
///   processor. This takes as long as a request. Each lookup that finds the program in its place
///   doubles the number of sleeps before the next one.
///
/// A request that may last ends it too, because another thread must take the next one meanwhile:
/// the kernel's writeback sends many of them amid the requests of a program that writes. The thread
/// that takes the program's next request then follows it at once.
///
/// Following ends when other programs send requests too, when it does not pay, and when `Workers`
/// finds the thread held up. No thread follows where it could not undo this: without CAP_SYS_NICE
/// or RLIMIT_NICE a thread may not leave SCHED_IDLE, and a thread that began under a policy other
/// than SCHED_OTHER would not get that policy back. Nor does a thread follow on a machine with one
/// processor.
#[derive(Debug)]
pub(crate) struct Following {
    /// The processors that all threads may run on. `None`: no thread follows.
    home: Option<CpuSet>,
    /// Releases other threads than the caller, where this process is confined.
    broker: Option<Arc<Broker>>,
    began: Instant,
    /// Microseconds after `began`. Until then other programs hold up a following thread.
    crowded_until: AtomicU64,
    /// The program that was followed until a request that may last; 0: none.
    handed_over: AtomicU32,
}

impl Following {
    pub(crate) fn new(wanted: bool, broker: Option<Arc<Broker>>) -> Self {
        let home = sched_getaffinity(None).ok().filter(|home| wanted && home.count() > 1);
        let home = home.filter(|_| stat(gettid().as_raw_pid() as u32, POLICY) == Some(0));
        // Tried by a thread that ends: the calling thread must not stay behind under SCHED_IDLE.
        let returns = || set_idle_policy(None, true).and_then(|()| set_idle_policy(None, false)).is_ok();
        let home = home.filter(|_| std::thread::spawn(returns).join().unwrap_or(false));
        Self { broker, ..Self::at(home) }
    }

    fn at(home: Option<CpuSet>) -> Self {
        let (crowded_until, handed_over) = (AtomicU64::new(0), AtomicU32::new(0));
        Self { home, broker: None, began: Instant::now(), crowded_until, handed_over }
    }

    /// Returns whether `program` waits for a thread that goes on following it. No other thread is
    /// told so again.
    fn takes_over(&self, program: u32) -> bool {
        // Mostly there is none: a load takes the cache line from no other thread.
        self.handed_over.load(Ordering::Relaxed) == program
            && self.handed_over.compare_exchange(program, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self::at(None)
    }

    /// Notes that the following thread was held up.
    pub(crate) fn crowded(&self) {
        let until = (self.began.elapsed() + CROWDED).as_micros() as u64;
        self.crowded_until.store(until, Ordering::Relaxed);
    }

    fn is_crowded(&self) -> bool {
        (self.began.elapsed().as_micros() as u64) < self.crowded_until.load(Ordering::Relaxed)
    }

    /// Schedules the calling thread as all others again.
    pub(crate) fn release_caller(&self) {
        if let Some(home) = &self.home {
            release(None, home);
        }
    }

    /// Schedules another thread of this process as all others again.
    pub(crate) fn release(&self, thread: Pid) {
        match (&self.broker, &self.home) {
            (_, None) => {}
            (Some(broker), Some(_)) => broker.release_thread(thread),
            (None, Some(home)) => release(Some(thread), home),
        }
    }
}

/// Schedules a thread (`None`: the caller) as all others, on the processors `home`.
pub(crate) fn release(thread: Option<Pid>, home: &CpuSet) {
    // A thread that has ended needs nothing.
    let _ = set_idle_policy(thread, false);
    let _ = sched_setaffinity(thread, home);
}

/// The state of one thread that follows a program, or may come to follow one.
#[derive(Debug)]
pub(crate) struct Follow<'f> {
    following: &'f Following,
    thread: Pid,
    program: u32,
    /// Consecutive requests of `program`, and how many it takes to follow it.
    streak: u32,
    needed: u32,
    /// The processor that this thread is bound to.
    at: Option<usize>,
    /// This thread is under SCHED_IDLE all the time, not only while it answers.
    stays_back: bool,
    /// Requests since it was bound.
    served: u32,
    strangers: u32,
    sleeps: u32,
    look_after: u32,
    term: Term,
}

#[derive(Debug, Default)]
struct Term {
    requests: u32,
    sleeps: u32,
}

impl<'f> Follow<'f> {
    /// Returns the state of the calling thread, which follows no program yet.
    pub(crate) fn new(following: &'f Following) -> Self {
        Self {
            following,
            thread: gettid(),
            program: 0,
            streak: 0,
            needed: STREAK,
            at: None,
            stays_back: false,
            served: 0,
            strangers: 0,
            sleeps: 0,
            look_after: LOOK_AFTER,
            term: Term::default(),
        }
    }

    pub(crate) fn thread(&self) -> Pid {
        self.thread
    }

    /// Notes a request of `program` (0: of the kernel itself), for which this thread has `waited`.
    /// Returns how this thread wants to take requests from now on.
    pub(crate) fn asked(&mut self, program: u32, waited: Duration) -> Preference {
        let Some(home) = self.following.home else { return Preference::Same };
        if self.at.is_some() { self.go_on(&home, program, waited) } else { self.begin(&home, program) }
    }

    fn begin(&mut self, home: &CpuSet, program: u32) -> Preference {
        if program == 0 {
            return Preference::Same;
        }
        if program != self.program {
            (self.program, self.streak) = (program, 0);
        }
        self.streak += 1;
        if !self.following.takes_over(program) && self.streak < self.needed {
            return Preference::Same;
        }
        self.streak = 0;
        (self.served, self.strangers, self.sleeps, self.look_after) = (0, 0, 0, LOOK_AFTER);
        self.term = Term::default();
        if !self.look(home) {
            return self.give_up();
        }
        self.stay_back();
        Preference::Alone
    }

    fn go_on(&mut self, home: &CpuSet, program: u32, waited: Duration) -> Preference {
        if program != 0 && program != self.program {
            self.strangers += STRANGER;
            if self.strangers > CROWD {
                self.stop();
                return Preference::Together;
            }
            return Preference::Same;
        }
        self.strangers = self.strangers.saturating_sub(1);
        self.served = self.served.saturating_add(1);
        self.term.requests += 1;
        if waited > SLEPT {
            self.term.sleeps += 1;
            self.sleeps += 1;
            if self.sleeps >= self.look_after {
                self.sleeps = 0;
                let was = self.at;
                if !self.look(home) {
                    return self.give_up();
                }
                self.look_after =
                    if was == self.at { (self.look_after * 2).min(LOOK_AFTER_AT_MOST) } else { LOOK_AFTER };
            }
        }
        if self.term.requests == TERM {
            let term = std::mem::take(&mut self.term);
            if term.sleeps > TERM / 2 {
                return self.give_up();
            }
            self.needed = STREAK;
            self.stay_back();
        }
        Preference::Same
    }

    /// Stops following for a request that may last. The thread that takes the program's next one
    /// follows it.
    pub(crate) fn hand_over(&mut self) -> Preference {
        if self.at.is_some() {
            self.following.handed_over.store(self.program, Ordering::Relaxed);
        }
        self.stop();
        Preference::Same
    }

    /// Stops following, since it does not pay. To begin again takes four times as many requests.
    fn give_up(&mut self) -> Preference {
        self.needed = (self.needed * 4).min(LONGEST_STREAK);
        self.stop();
        Preference::Together
    }

    /// Notes that this thread is one of several. If it was alone, `Workers` found it held up, or
    /// found no requests.
    pub(crate) fn together(&mut self) {
        if self.at.is_none() {
            return;
        }
        // A thread that served for a while may be held up once. A thread that was under SCHED_IDLE
        // all the time may do better when it takes that policy only while it answers.
        if self.served < 8 * STREAK && !self.stays_back {
            self.give_up();
        }
        self.stop();
    }

    /// Binds this thread to the program's processor. Returns whether it could.
    fn look(&mut self, home: &CpuSet) -> bool {
        let Some(processor) = stat(self.program, PROCESSOR).filter(|p| home.is_set(*p)) else { return false };
        let mut only = CpuSet::new();
        only.set(processor);
        // Bound again even to the same processor: a broker may have released this thread late.
        if sched_setaffinity(None, &only).is_err() {
            return false;
        }
        self.at = Some(processor);
        true
    }

    /// Takes SCHED_IDLE from now on, unless other programs want the processor.
    fn stay_back(&mut self) {
        if !self.stays_back && !self.following.is_crowded() {
            self.stays_back = set_idle_policy(None, true).is_ok();
        }
    }

    /// Stops following: this thread is scheduled as all others again.
    pub(crate) fn stop(&mut self) {
        self.stays_back = false;
        if self.at.take().is_some() {
            self.following.release_caller();
        }
    }

    /// Runs `answer`, which wakes the program: under SCHED_IDLE, if this thread follows it.
    pub(crate) fn wake(&self, answer: impl FnOnce()) {
        let stands_back = self.at.is_some() && !self.stays_back && set_idle_policy(None, true).is_ok();
        answer();
        if stands_back {
            let _ = set_idle_policy(None, false);
        }
    }
}

impl Drop for Follow<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}

// Fields of /proc/PID/stat, as proc(5) counts them: the processor that the thread ran on last, and
// its policy.
const PROCESSOR: usize = 39;
const POLICY: usize = 41;

/// Returns a field of the `/proc/PID/stat` of a thread.
fn stat(thread: u32, field: usize) -> Option<usize> {
    let stat = std::fs::read(format!("/proc/{thread}/stat")).ok()?;
    // The second field is the program's name, in brackets, with any byte in it.
    let name_ends = stat.iter().rposition(|b| *b == b')')?;
    let mut fields = stat.get(name_ends + 2..)?.split(|b| *b == b' ');
    std::str::from_utf8(fields.nth(field.checked_sub(3)?)?).ok()?.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;
    const OTHER: Option<usize> = Some(0);
    const IDLE: Option<usize> = Some(5);

    /// Runs `test` on a thread of its own: a test must not bind the threads of other tests.
    fn follows(test: impl FnOnce(Follow<'_>, u32, CpuSet) + Send + 'static) {
        let run = move || {
            let home = sched_getaffinity(None).unwrap();
            let me = gettid().as_raw_pid() as u32;
            test(Follow::new(&Following::at(Some(home))), me, home);
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn a_program_that_asks_alone_is_followed_until_others_do() {
        follows(|mut follow, me, home| {
            let preferences: Vec<Preference> = (0..STREAK).map(|_| follow.asked(me, AT_ONCE)).collect();
            assert_eq!(preferences.iter().position(|w| *w == Preference::Alone), Some(STREAK as usize - 1));
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            // Requests of the kernel itself, and now and then one of another program, change
            // nothing.
            for n in 0..100 {
                let program = [0, me, me, me, me, 1][n % 6];
                assert_eq!(follow.asked(program, AT_ONCE), Preference::Same);
            }
            let ends = (0..CROWD).any(|_| follow.asked(1, AT_ONCE) == Preference::Together);
            assert!(ends && sched_getaffinity(None).unwrap() == home);
        });
    }

    #[test]
    fn after_a_long_request_one_thread_follows_at_once() {
        follows(|mut follow, me, home| {
            let mut other = Follow::new(follow.following);
            (0..STREAK).for_each(|_| _ = follow.asked(me, AT_ONCE));
            follow.hand_over();
            assert_eq!(sched_getaffinity(None).unwrap(), home);
            assert_eq!(other.asked(1, AT_ONCE), Preference::Same);
            assert_eq!(other.asked(me, AT_ONCE), Preference::Alone);
            assert_eq!(follow.asked(me, AT_ONCE), Preference::Same);
            // A thread that follows no program hands none over.
            other.stop();
            other.hand_over();
            assert_eq!(follow.asked(me, AT_ONCE), Preference::Same);
        });
    }

    #[test]
    fn what_does_not_pay_ends_and_begins_later() {
        follows(|mut follow, me, home| {
            let mut begins = || (1..).find(|_| follow.asked(me, SLEPT * 2) == Preference::Alone);
            assert_eq!(begins(), Some(STREAK));
            assert_eq!(begins(), Some(TERM + 4 * STREAK));
            drop(follow);
            assert_eq!(sched_getaffinity(None).unwrap(), home);
        });
    }

    #[test]
    fn nobody_follows_programs_by_turns() {
        follows(|mut follow, me, _| {
            assert!((0..1000).all(|n| follow.asked(me + n % 2, AT_ONCE) == Preference::Same));
        });
    }

    #[test]
    fn it_leaves_the_processor_to_the_program_while_it_follows() {
        // Other users may not leave SCHED_IDLE.
        lanefs_tests::require_root();
        follows(|mut follow, me, _| {
            (0..STREAK).for_each(|_| _ = follow.asked(me, AT_ONCE));
            assert_eq!(stat(me, POLICY), IDLE);
            follow.wake(|| ());
            assert_eq!(stat(me, POLICY), IDLE);
            follow.stop();
            assert_eq!(stat(me, POLICY), OTHER);
        });
    }

    #[test]
    fn where_others_hold_it_up_it_stands_back_only_while_it_answers() {
        lanefs_tests::require_root();
        follows(|mut follow, me, _| {
            follow.following.crowded();
            // However long this test takes.
            assert_ne!(follow.following.crowded_until.swap(u64::MAX, Ordering::Relaxed), 0);
            (0..STREAK + TERM).for_each(|_| _ = follow.asked(me, AT_ONCE));
            assert_eq!(stat(me, POLICY), OTHER);
            let mut while_it_answers = None;
            follow.wake(|| while_it_answers = stat(me, POLICY));
            assert_eq!((while_it_answers, stat(me, POLICY)), (IDLE, OTHER));
            // Until the other programs have gone.
            follow.following.crowded_until.store(0, Ordering::Relaxed);
            (0..TERM).for_each(|_| _ = follow.asked(me, AT_ONCE));
            assert_eq!(stat(me, POLICY), IDLE);
        });
    }
}
