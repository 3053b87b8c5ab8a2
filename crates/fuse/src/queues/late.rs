//! Answers of the notifying thread to requests that came by io_uring: the thread that took the
//! request has to hand them to the kernel.
//!
//! Hazard: the notifying thread may need another request to be served before it comes to an answer.
//! A thread waits here only where another thread takes the next request of its queue.

use crate::fault::Answer;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;

/// An answer, with its content.
pub(crate) type LateAnswer = (Answer, Vec<u8>);

/// The answers that were given, by the numbers of their requests.
#[derive(Debug, Default)]
pub(crate) struct LateAnswers {
    state: Mutex<LateState>,
    given: Condvar,
}

#[derive(Debug, Default)]
struct LateState {
    /// `None`: no thread waits for the answer any more.
    answers: HashMap<u64, Option<LateAnswer>>,
    ended: bool,
}

impl LateAnswers {
    /// Gives the answer to request `unique`.
    pub(crate) fn give(&self, unique: u64, answer: LateAnswer) {
        let mut state = self.state.lock();
        if state.answers.remove(&unique).is_none() {
            state.answers.insert(unique, Some(answer));
            self.given.notify_all();
        }
    }

    /// Waits for the answer to request `unique`. Returns `None` when the mount is gone.
    pub(crate) fn wait(&self, unique: u64) -> Option<LateAnswer> {
        let mut state = self.state.lock();
        loop {
            if let Some(answer) = state.answers.remove(&unique) {
                return answer;
            }
            if state.ended {
                return None;
            }
            self.given.wait(&mut state);
        }
    }

    /// Notes that no thread waits for the answer to request `unique`.
    pub(crate) fn abandon(&self, unique: u64) {
        let mut state = self.state.lock();
        if state.answers.remove(&unique).is_none() {
            state.answers.insert(unique, None);
        }
    }

    /// Ends all waiting: the mount is gone.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.given.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_reaches_its_thread_in_either_order_and_nothing_stays() {
        let late = LateAnswers::default();
        late.give(1, (Ok(()), vec![1]));
        late.give(2, (Ok(()), vec![2]));
        assert_eq!(late.wait(2).unwrap().1, [2]);
        assert_eq!(late.wait(1).unwrap().1, [1]);
        for abandoned_first in [true, false] {
            if abandoned_first {
                late.abandon(3);
            }
            late.give(3, (Ok(()), Vec::new()));
            if !abandoned_first {
                late.abandon(3);
            }
            assert!(late.state.lock().answers.is_empty());
        }
        late.end();
        assert!(late.wait(4).is_none());
    }
}
