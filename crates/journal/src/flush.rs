//! One flush for all who want one at the same time.

use crate::Result;
use lanefs_device::BlockDevice;
use parking_lot::{Condvar, Mutex};

/// Shares flushes: a caller needs one that starts after its call.
#[derive(Debug, Default)]
pub(crate) struct SharedFlush {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    started: u64,
    /// The last flush that succeeded.
    done: u64,
    running: bool,
}

impl SharedFlush {
    /// Flushes, or waits for a flush that another thread starts later than now.
    pub(crate) fn flush(&self, device: &dyn BlockDevice) -> Result<()> {
        let mut state = self.state.lock();
        let wanted = state.started + 1;
        loop {
            if state.done >= wanted {
                return Ok(());
            }
            if state.running {
                self.ended.wait(&mut state);
                continue;
            }
            state.running = true;
            state.started += 1;
            let mine = state.started;
            drop(state);
            let result = device.flush();
            state = self.state.lock();
            state.running = false;
            self.ended.notify_all();
            result?;
            state.done = mine;
        }
    }
}
