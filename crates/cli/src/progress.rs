//! Progress on a terminal, for what takes longer than a second; nothing anywhere else.
//!
//! One bar at a time. The standard streams write through [`suspended`], so that the bar is not
//! drawn over what they write.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The bar that is on the screen, if any.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

const TOTAL_KNOWN: &str = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}, {prefix}eta {eta}";
const TOTAL_UNKNOWN: &str = "{msg} {spinner} {bytes} {bytes_per_sec}, {prefix}{elapsed}";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// The progress of a command.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    began: Instant,
    /// Whether standard error is a terminal and the bar not yet on it.
    waiting: bool,
    files: u64,
}

impl Progress {
    /// Starts counting. `total` is the number of bytes to expect, `None` if it is unknown.
    pub(crate) fn new(what: &'static str, total: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden()).with_message(what);
        bar.set_style(style(if total.is_some() { TOTAL_KNOWN } else { TOTAL_UNKNOWN }));
        Self { bar, began: Instant::now(), waiting: std::io::stderr().is_terminal(), files: 0 }
    }

    /// Computes the total on a thread of its own, if standard error is a terminal. The bar shows
    /// its end once the total is known.
    pub(crate) fn find_total(&self, count: impl FnOnce() -> u64 + Send + 'static) {
        if self.waiting {
            let bar = self.bar.clone();
            std::thread::spawn(move || {
                bar.set_length(count());
                bar.set_style(style(TOTAL_KNOWN));
            });
        }
    }

    /// Counts bytes.
    pub(crate) fn bytes(&mut self, n: u64) {
        self.bar.inc(n);
        self.show_late();
    }

    /// Counts a file.
    pub(crate) fn file(&mut self) {
        self.files += 1;
        if !self.waiting {
            self.bar.set_prefix(format!("{} files, ", self.files));
        }
        self.show_late();
    }

    fn show_late(&mut self) {
        if self.waiting && self.began.elapsed() >= Duration::from_secs(1) {
            self.waiting = false;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.bar.clone());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        SHOWN.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.bar.finish_and_clear();
    }
}

/// Runs `print` with the bar out of the way. It must not run another.
pub(crate) fn suspended<T>(print: impl FnOnce() -> T) -> T {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match shown {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}
