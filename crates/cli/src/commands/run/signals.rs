//! Signals that a process passes on to the one that it has started.
//!
//! A terminal sends Ctrl-C and Ctrl-\ to all its processes, the program among them. Passed on, the
//! program would get them twice: they are caught and go no further.

use crate::watch::Signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;
use std::{fs, io};

const PASSED_ON: [(i32, Signal); 4] =
    [(SIGTERM, Signal::TERM), (SIGHUP, Signal::HUP), (SIGUSR1, Signal::USR1), (SIGUSR2, Signal::USR2)];

/// The interval at which init is looked at while it starts, and how many times.
const LOOK: Duration = Duration::from_millis(1);
const MOST_LOOKS: u32 = 10_000;

/// The thread that passes signals on. A process with a PID namespace for its children can make no
/// thread any more, so the thread is there before it knows to which process.
pub(super) struct Forwarder {
    process: Sender<Pid>,
}

impl Forwarder {
    /// Catches signals from now on.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new() -> io::Result<Self> {
        let mut came = Vec::new();
        // nohup(1) and jobs of a script ignore some: the program inherits that.
        let ignored = ignored();
        let is_caught = |number: i32| ignored >> (number - 1) & 1 == 0;
        let passed_on = PASSED_ON.into_iter().filter(|(number, _)| is_caught(*number));
        for (number, signal) in passed_on.clone() {
            let flag = Arc::new(AtomicBool::new(false));
            // Before the bell is rung for it.
            signal_hook::flag::register(number, Arc::clone(&flag))?;
            came.push((signal, flag));
        }
        for number in [SIGINT, SIGQUIT].into_iter().filter(|number| is_caught(*number)) {
            signal_hook::flag::register(number, Arc::default())?;
        }
        let mut bell = Signals::new(&passed_on.map(|(number, _)| number).collect::<Vec<_>>())?;
        let (process, told) = channel();
        let pass_on = move || {
            let Ok(process) = told.recv() else { return };
            loop {
                for (signal, _) in came.iter().filter(|(_, flag)| flag.swap(false, Ordering::AcqRel)) {
                    // A process that has ended needs none.
                    let _ = kill_process(process, *signal);
                }
                let _ = poll(&mut [PollFd::new(bell.pipe(), PollFlags::IN)], None);
                bell.take();
            }
        };
        thread::Builder::new().name("lanefs-signals".into()).spawn(pass_on)?;
        Ok(Self { process })
    }

    /// Passes on to `process` what has come, and what comes from now on.
    pub(super) fn pass_to(&self, process: Pid) {
        // The thread waits for it.
        let _ = self.process.send(process);
    }
}

/// Waits until the first process of a PID namespace catches SIGTERM, or ignores it as this one
/// does: the kernel drops any signal that would have to end that process. Does not wait for a
/// process that has ended, or that /proc does not show.
pub(super) fn until_heard(init: Pid) {
    for _ in 0..MOST_LOOKS {
        let Ok(status) = fs::read_to_string(format!("/proc/{}/status", init.as_raw_nonzero())) else {
            return;
        };
        let heard = (mask(&status, "SigCgt:") | mask(&status, "SigIgn:")) >> (SIGTERM - 1) & 1 == 1;
        if heard || status.contains("State:\tZ") {
            return;
        }
        thread::sleep(LOOK);
    }
}

/// Returns the signals that this process ignores, a bit for each.
fn ignored() -> u64 {
    mask(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "SigIgn:")
}

/// Returns a set of signals of `/proc/PID/status`.
fn mask(status: &str, field: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix(field));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
