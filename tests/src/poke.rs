//! Commits at bad moments.

use lanefs::{File, SetAttr};
use lanefs_device::{BlockDevice, Result, forward_to};
use lanefs_sim::RecordingDevice;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A device that triggers a commit before writes. Data is written without a handle, so a commit may
/// happen at any time; this one exposes blocks that are mapped before their data is written.
#[derive(Debug)]
pub struct PokingDevice {
    inner: Arc<RecordingDevice>,
    poke: Mutex<Option<Poke>>,
}

#[derive(Debug)]
struct Poke {
    wanted: SyncSender<()>,
    done: Receiver<()>,
    /// Writes since the last one.
    writes: u32,
}

/// The thread that commits. Dropped, it ends.
#[derive(Debug)]
pub struct Poker {
    device: Arc<PokingDevice>,
    thread: Option<JoinHandle<()>>,
}

/// A commit that needs the very write that it comes before is not waited for.
const PATIENCE: Duration = Duration::from_millis(3);

thread_local! {
    /// Whether this thread is the one that commits.
    static COMMITS: Cell<bool> = const { Cell::new(false) };
}

impl PokingDevice {
    /// A device over another; nothing commits yet.
    pub fn new(inner: Arc<RecordingDevice>) -> Self {
        Self { inner, poke: Mutex::new(None) }
    }

    /// Before every third write from now on, another thread changes `file` and syncs it.
    pub fn start(self: &Arc<Self>, file: File) -> Poker {
        let (wanted, inbox) = sync_channel::<()>(1);
        let (outbox, done) = sync_channel(1);
        let work = move || {
            COMMITS.set(true);
            for (i, ()) in inbox.iter().enumerate() {
                let set = SetAttr { permissions: Some(0o600 + i as u16 % 64), ..SetAttr::default() };
                file.set_attr(&set).and_then(|()| file.sync_all()).expect("a commit");
                if outbox.send(()).is_err() {
                    break;
                }
            }
        };
        let thread = Some(std::thread::spawn(work));
        *self.poke.lock().unwrap() = Some(Poke { wanted, done, writes: 0 });
        Poker { device: Arc::clone(self), thread }
    }

    fn commit(&self) {
        // If another thread holds the lock, this one need not wait: commits are happening.
        let Ok(mut poke) = self.poke.try_lock() else { return };
        let Some(poke) = poke.as_mut().filter(|_| !COMMITS.get()) else { return };
        poke.writes += 1;
        if poke.writes.is_multiple_of(3) && poke.wanted.try_send(()).is_ok() {
            let _ = poke.done.recv_timeout(PATIENCE);
        }
        // One that came too late last time.
        while poke.done.try_recv().is_ok() {}
    }
}

impl Drop for Poker {
    fn drop(&mut self) {
        let poke = self.device.poke.lock().unwrap().take();
        drop(poke);
        let result = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || result.is_none_or(|r| r.is_ok()), "the committing thread failed");
    }
}

impl BlockDevice for PokingDevice {
    forward_to!(inner: size read_only read_at flush discard);

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.commit();
        self.inner.write_at(data, offset)
    }
}
