//! Threads of a session.

use super::scheduler::{Key, Scheduler, Wait, with};
use std::any::Any;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Runs `f`, and returns its panic if it panics.
pub(super) fn unwinding<T>(f: impl FnOnce() -> T) -> std::thread::Result<T> {
    catch_unwind(AssertUnwindSafe(f))
}

/// Returns what a panic said.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a word").to_owned()
}

/// Waits in the scheduler. Returns whether the time ran out; `None` outside of a session.
pub(super) fn block(
    key: Key,
    what: &'static str,
    at: &'static Location<'static>,
    until: Option<u64>,
) -> Option<bool> {
    with(|session, me| session.block(me, Wait { key, what, at, until }))
}

/// Threads with the interface of [`std::thread`].
pub mod thread {
    use super::{Arc, Duration, Key, Location, Scheduler, block, panic_text, resume_unwind, unwinding, with};
    use crate::with_schedule::scheduler;
    use std::io;

    pub use std::thread::{Result, Thread, ThreadId, available_parallelism, current, panicking};

    /// A builder with the interface of [`std::thread::Builder`].
    #[derive(Debug, Default)]
    pub struct Builder {
        name: Option<String>,
    }

    /// A handle with the interface of [`std::thread::JoinHandle`].
    #[derive(Debug)]
    pub struct JoinHandle<T> {
        inner: std::thread::JoinHandle<T>,
        of: Option<(Arc<Scheduler>, usize)>,
    }

    impl Builder {
        /// Returns a thread without a name.
        pub fn new() -> Self {
            Self::default()
        }

        /// Names the thread.
        #[must_use]
        pub fn name(self, name: String) -> Self {
            Self { name: Some(name) }
        }

        /// Starts the thread: in the caller's session, if it has one.
        ///
        /// # Errors
        /// The system's.
        pub fn spawn<T: Send + 'static>(
            self,
            f: impl FnOnce() -> T + Send + 'static,
        ) -> io::Result<JoinHandle<T>> {
            let name = self.name.unwrap_or_else(|| "worker".into());
            let builder = std::thread::Builder::new().name(name.clone());
            let Some(session) = with(|session, _| Arc::clone(session)) else {
                return Ok(JoinHandle { inner: builder.spawn(f)?, of: None });
            };
            let number = session.add(name);
            let inside = Arc::clone(&session);
            let inner = builder.spawn(move || {
                inside.enter(number);
                let done = unwinding(f);
                inside.leave(number, done.as_ref().err().map(|panic| panic_text(&**panic)));
                done.unwrap_or_else(|panic| resume_unwind(panic))
            });
            let inner = inner.inspect_err(|_| session.not_started(number))?;
            scheduler::point();
            Ok(JoinHandle { inner, of: Some((session, number)) })
        }
    }

    impl<T> JoinHandle<T> {
        /// Waits for the end of the thread.
        ///
        /// # Errors
        /// What it panicked with.
        #[track_caller]
        pub fn join(self) -> Result<T> {
            if let Some((session, number)) = &self.of {
                scheduler::point();
                while !session.has_ended(*number)
                    && block(Key::End(*number), "thread", Location::caller(), None).is_some()
                {
                }
            }
            self.inner.join()
        }

        /// Returns the thread.
        pub fn thread(&self) -> &Thread {
            self.inner.thread()
        }

        /// Returns whether it has ended.
        pub fn is_finished(&self) -> bool {
            match &self.of {
                Some((session, number)) => session.has_ended(*number),
                None => self.inner.is_finished(),
            }
        }
    }

    /// Spawns a thread as [`std::thread::spawn`] does.
    ///
    /// # Panics
    /// If the system gives no thread.
    #[allow(clippy::expect_used, reason = "as that of std")]
    pub fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        Builder::new().spawn(f).expect("a thread")
    }

    /// Lets another thread go on.
    pub fn yield_now() {
        scheduler::yield_now();
    }

    /// Waits for time to pass.
    #[track_caller]
    pub fn sleep(patience: Duration) {
        let until = with(|session, _| scheduler::after(session.now(), patience));
        if until.is_none() || block(Key::Time, "sleep", Location::caller(), until).is_none() {
            std::thread::sleep(patience);
        }
    }
}
