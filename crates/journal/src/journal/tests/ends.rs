//! How a journal ends: without credits, without space, and when it is closed.

use super::*;
use lanefs_device::{BlockDevice, forward_to};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

/// The reserve of a transaction has an end, and an operation that has come to it is half done.
#[test]
fn a_handle_without_credits_ends_the_journal() {
    let device = Arc::new(empty_log(1024));
    let journal = open(&device);
    set(&journal, 7, 1);
    journal.sync().unwrap();
    let handle = journal.start(0).unwrap();
    drop(handle.write(&journal.read(7).unwrap()).map(|mut bytes| bytes[0] = 2));
    let over = (100..2000).map(|b| journal.read(b).unwrap()).find_map(|b| handle.write(&b).err());
    assert!(matches!(over, Some(JournalError::OutOfCredits { .. })), "{over:?}");
    let (tid, error) = (handle.tid(), journal.error().unwrap());
    assert!(error.to_string().contains("no credit left"), "{error}");
    handle.stop();
    assert!(journal.commit(tid).is_err());
    drop(journal);
    recover(&device);
    assert_eq!(at(&device, 7), 1);
}

/// Revokes are paid for together: a run of what one revoke block holds costs one credit at most.
#[test]
fn a_run_of_revokes_costs_the_blocks_that_it_fills() {
    let device = Arc::new(empty_log(1024));
    let journal = open(&device);
    let per_credit = u64::from(journal.revokes_per_credit());
    let handle = journal.start(10).unwrap();
    handle.free(100, 1, true).unwrap();
    assert_eq!(handle.credits(), 9);
    handle.free(101, per_credit, true).unwrap();
    assert_eq!(handle.credits(), 8);
    handle.free(1000, 3 * per_credit, true).unwrap();
    assert_eq!(handle.credits(), 5);
    handle.stop();
    journal.sync().unwrap();
    assert_eq!(journal.stats().credits_overdrawn, 0);
    let handle = journal.start(1).unwrap();
    let over = handle.free(1000, 100 * per_credit, true);
    assert!(matches!(over, Err(JournalError::OutOfCredits { .. })), "{over:?}");
    handle.stop();
    assert!(journal.sync().is_err());
}

/// No limit lets this happen; if one did, the log is not written over.
#[test]
fn a_transaction_without_space_in_the_log_is_not_written() {
    let device = Arc::new(empty_log(1024));
    let journal = open(&device);
    set(&journal, 7, 1);
    journal.sync().unwrap();
    let tid = set(&journal, 7, 2);
    journal.core.state.lock().used = journal.core.log.as_ref().unwrap().len() - 2;
    let before = device.to_bytes();
    let error = journal.commit(tid).unwrap_err();
    assert!(matches!(error, JournalError::LogOverrun { need: 3, free: 2, .. }), "{error}");
    let log = |bytes: &[u8]| bytes[(LOG_START + 1) as usize * BLOCK as usize..].to_vec();
    assert!(log(&before) == log(&device.to_bytes()));
    assert!(journal.start(1).is_err());
    drop(journal);
    recover(&device);
    assert_eq!(at(&device, 7), 1);
}

/// Has another thread change and commit block 8 while block 7 is being written home.
#[derive(Debug)]
struct MeanwhileDevice {
    inner: MemDevice,
    meanwhile: Mutex<Option<SyncSender<SyncSender<()>>>>,
}

impl BlockDevice for MeanwhileDevice {
    forward_to!(inner: size read_only read_at flush discard);

    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        let other = if offset == 7 * u64::from(BLOCK) { self.meanwhile.lock().take() } else { None };
        if let Some(other) = other {
            let (done, wait) = sync_channel(0);
            other.send(done).unwrap();
            wait.recv().unwrap();
        }
        self.inner.write_at(data, offset)
    }
}

#[test]
fn what_is_committed_while_the_journal_is_closed_is_not_lost() {
    let (other, asked) = sync_channel(0);
    let meanwhile = Mutex::new(Some(other));
    let device = Arc::new(MeanwhileDevice { inner: empty_log(1024), meanwhile });
    let journal = Journal::open(device.clone(), options(1024)).unwrap();
    set(&journal, 7, 1);
    thread::scope(|scope| {
        let journal = &journal;
        scope.spawn(move || {
            let done = asked.recv().unwrap();
            let tid = set(journal, 8, 2);
            journal.commit(tid).unwrap();
            done.send(()).unwrap();
        });
        journal.close().unwrap();
    });
    drop(journal);
    assert!(!recover(&device.inner).needed);
    assert_eq!((at(&device.inner, 7), at(&device.inner, 8)), (1, 2));
}

/// A change by a handle that started while the journal was being closed is durable afterwards. No
/// handle starts between the last commit of a close and its last checkpoint write.
#[test]
fn nothing_is_changed_behind_the_last_commit() {
    let (other, asked) = sync_channel(0);
    let device = Arc::new(MeanwhileDevice { inner: empty_log(1024), meanwhile: Mutex::new(Some(other)) });
    let journal = Journal::open(device.clone(), options(1024)).unwrap();
    set(&journal, 7, 1);
    let (last, asked_last) = sync_channel(0);
    let changed = thread::scope(|scope| {
        let journal = &journal;
        let late = scope.spawn({
            let device = &device;
            move || {
                // What this changes is committed last, and its home write is waited for.
                let done = asked.recv().unwrap();
                set(journal, 7, 2);
                *device.meanwhile.lock() = Some(last);
                done.send(()).unwrap();
                let done: SyncSender<()> = asked_last.recv().unwrap();
                let block = journal.read(9).unwrap();
                // The close goes on: a handle that cannot start waits for its end.
                done.send(()).unwrap();
                let handle = journal.start(1).ok()?;
                handle.write(&block).ok().map(|mut bytes| bytes[0] = 3)
            }
        });
        journal.close().unwrap();
        late.join().unwrap()
    });
    drop(journal);
    assert!(!recover(&device.inner).needed);
    assert_eq!(at(&device.inner, 7), 2);
    assert_eq!(at(&device.inner, 9), if changed.is_some() { 3 } else { 0 }, "a change was lost");
}

/// A sync that began before the end of a close waits for it, and reports that all is durable.
#[test]
fn a_sync_beside_a_close_succeeds() {
    let (other, asked) = sync_channel(0);
    let device = Arc::new(MeanwhileDevice { inner: empty_log(1024), meanwhile: Mutex::new(Some(other)) });
    let journal = Journal::open(device.clone(), options(1024)).unwrap();
    set(&journal, 7, 1);
    let tid = thread::scope(|scope| {
        let close = scope.spawn(|| journal.close());
        let done = asked.recv().unwrap();
        let tid = set(&journal, 7, 2);
        let (last, asked_last) = sync_channel(0);
        *device.meanwhile.lock() = Some(last);
        done.send(()).unwrap();
        // The last commit is durable, and its block is being written home.
        let done: SyncSender<()> = asked_last.recv().unwrap();
        let sync = scope.spawn(|| journal.sync());
        while journal.core.commits.waiters() == 0 {
            thread::yield_now();
        }
        done.send(()).unwrap();
        sync.join().unwrap().unwrap();
        close.join().unwrap().unwrap();
        tid
    });
    // A thread that has looked for the transaction before the close, and asks after it.
    journal.commit(tid).unwrap();
    assert!(matches!(journal.sync(), Err(JournalError::Closed)));
    assert_eq!(at(&device.inner, 7), 2);
}

/// A close comes before a commit that waits behind it, and has committed its transaction: threads
/// that commit without a pause keep no close waiting.
#[test]
fn a_close_has_its_turn_in_order() {
    let (other, asked) = sync_channel(0);
    let device = Arc::new(MeanwhileDevice { inner: empty_log(1024), meanwhile: Mutex::new(Some(other)) });
    let journal = Journal::open(device.clone(), options(1024)).unwrap();
    set(&journal, 7, 1);
    let commits = &journal.core.commits;
    let wait_for = |waiters| {
        while commits.waiters() < waiters {
            thread::yield_now();
        }
    };
    let tid = thread::scope(|scope| {
        let close = scope.spawn(|| journal.close());
        // It has synced, and checkpoints without the turn.
        let done: SyncSender<()> = asked.recv().unwrap();
        let turn = commits.take(|| false).unwrap();
        let tid = set(&journal, 8, 2);
        done.send(()).unwrap();
        wait_for(1);
        let commit = scope.spawn({
            let journal = &journal;
            move || journal.commit(tid)
        });
        wait_for(2);
        turn.pass(None, |other| other != tid);
        commit.join().unwrap().unwrap();
        close.join().unwrap().unwrap();
        tid
    });
    // The last commit, which opens no other transaction, was that of `tid`.
    assert_eq!(journal.core.gate.running().tid, tid);
    assert_eq!((at(&device.inner, 7), at(&device.inner, 8)), (1, 2));
    assert!(!recover(&device.inner).needed);
}

/// A close waits for an open handle and commits its changes.
#[test]
fn a_close_waits_for_open_handles() {
    let device = Arc::new(empty_log(1024));
    let journal = open(&device);
    set(&journal, 7, 1);
    let buffer = journal.read(8).unwrap();
    thread::scope(|scope| {
        let handle = journal.start(1).unwrap();
        let close = scope.spawn(|| journal.close());
        handle.write(&buffer).unwrap()[0] = 2;
        let tid = handle.tid();
        handle.stop();
        close.join().unwrap().unwrap();
        assert!(journal.is_durable(tid));
    });
    assert!(matches!(journal.start(1), Err(JournalError::Closed)));
    assert_eq!((at(&device, 7), at(&device, 8)), (1, 2));
    assert!(!recover(&device).needed);
}

/// Without a log, the data that a block maps is durable before that block is home.
#[test]
fn without_a_log_data_is_durable_before_what_maps_it() {
    let device = Arc::new(RecordingDevice::new(Image::zeroed(1 << 20)));
    let journal = Journal::open(device.clone(), Options::new(BLOCK)).unwrap();
    device.write_at(&[5; BLOCK as usize], 50 * u64::from(BLOCK)).unwrap();
    set(&journal, 7, 1);
    journal.sync().unwrap();
    let log = device.log();
    let mut seen = 0;
    for state in log.crash_states(1, 20) {
        let device = state.device();
        if device_bytes(&device, 7)[0] == 1 {
            assert_eq!(device_bytes(&device, 50), [5; BLOCK as usize], "{state}");
            seen += 1;
        }
    }
    assert!(seen > 0);
}

/// A thread that has checked for an abort, and is about to flush its write, gets the error of the
/// flush that lost the write, even if that was the abort's own flush.
#[test]
fn a_failed_flush_of_an_abort_is_not_forgotten() {
    let device = Arc::new(FailingDevice::new(empty_log(1024)));
    let journal = Journal::open(device.clone(), options(1024)).unwrap();
    let ticket = journal.ticket();
    device.fail_once(Op::Flush, 1, 5);
    journal.abort("a test");
    let flushed = journal.core.flush.wait_together(&*device, ticket);
    assert!(matches!(flushed, Err(JournalError::Device(_))), "{flushed:?}");
    assert!(!journal.core.flush.is_done(ticket));
    // The note of the abort was flushed by a second try.
    assert_eq!((device.count(Op::Flush), device.failures()), (2, 1));
}

/// A device whose next flush panics, once it is armed.
#[derive(Debug)]
struct PanickingDevice {
    inner: MemDevice,
    is_armed: AtomicBool,
}

impl BlockDevice for PanickingDevice {
    forward_to!(inner: size read_only read_at write_at discard);

    fn flush(&self) -> lanefs_device::Result<()> {
        assert!(!self.is_armed.swap(false, Ordering::Relaxed), "on purpose");
        self.inner.flush()
    }
}

/// A flush that panicked may have lost writes, and a later one covers none of them.
#[test]
fn a_panic_in_a_flush_is_a_failed_flush() {
    let device = Arc::new(PanickingDevice { inner: empty_log(1024), is_armed: AtomicBool::new(false) });
    let journal = Journal::open(device.clone(), options(1024)).unwrap();
    let ticket = journal.ticket();
    device.is_armed.store(true, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| journal.flush(ticket))).is_err());
    assert!(matches!(journal.flush(ticket), Err(JournalError::Aborted(_))));
    assert!(matches!(journal.start(1), Err(JournalError::Aborted(_))));
    // A thread that has checked for an abort before.
    let flushed = journal.core.flush.wait_together(&*device, ticket);
    assert!(matches!(flushed, Err(JournalError::Aborted(_))), "{flushed:?}");
    assert!(!journal.core.flush.is_done(ticket));
}

/// A commit that frees a block waits for a write of it on its way home, which a panic ends too.
#[test]
fn a_panic_in_a_checkpoint_leaves_no_commit_waiting() {
    let (other, asked) = sync_channel(0);
    let device = Arc::new(MeanwhileDevice { inner: empty_log(1024), meanwhile: Mutex::new(Some(other)) });
    let journal = Arc::new(Journal::open(device, options(1024)).unwrap());
    set(&journal, 7, 1);
    journal.sync().unwrap();
    let checkpointing = Arc::clone(&journal);
    let checkpoint = thread::spawn(move || checkpointing.checkpoint());
    // Block 7 is being written home.
    let answer = asked.recv().unwrap();
    let handle = journal.start(1).unwrap();
    handle.free(7, 1, true).unwrap();
    let tid = handle.tid();
    handle.stop();
    let (committing, (has_committed, committed)) = (Arc::clone(&journal), sync_channel(1));
    thread::spawn(move || has_committed.send(committing.commit(tid)).unwrap());
    while journal.core.state.lock().history.len() < 2 {
        thread::yield_now();
    }
    // The write panics, for no answer comes.
    drop(answer);
    assert!(checkpoint.join().is_err());
    let committed = committed.recv_timeout(Duration::from_secs(60));
    committed.expect("the commit waits for ever").unwrap();
    assert!(matches!(journal.error(), Some(JournalError::Aborted(_))));
}

type Hook = Box<dyn Fn() + Send + Sync>;

/// A device that runs a hook before each write to the log's superblock.
struct HookedDevice {
    inner: FailingDevice<MemDevice>,
    hook: OnceLock<Hook>,
}

impl HookedDevice {
    fn new() -> Arc<Self> {
        Arc::new(Self { inner: FailingDevice::new(empty_log(1024)), hook: Default::default() })
    }

    /// Runs `hook` with the journal, which must be open then.
    fn hook(&self, journal: &Journal, hook: impl Fn(&Core) + Send + Sync + 'static) {
        let core = Arc::downgrade(&journal.core);
        let hook = move || {
            if let Some(core) = core.upgrade() {
                hook(&core);
            }
        };
        assert!(self.hook.set(Box::new(hook)).is_ok());
    }
}

impl fmt::Debug for HookedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl BlockDevice for HookedDevice {
    forward_to!(inner: size read_only read_at flush discard);

    fn write_at(&self, data: &[u8], offset: u64) -> lanefs_device::Result<()> {
        if let Some(hook) = self.hook.get().filter(|_| offset == LOG_START * u64::from(BLOCK)) {
            hook();
        }
        self.inner.write_at(data, offset)
    }
}

/// A checkpoint that cannot write a block home aborts the journal before another thread has its
/// lock: that of a close would report success. So does the last one, of the close itself.
#[test]
fn a_failed_checkpoint_ends_the_journal_under_its_lock() {
    for closing in [false, true] {
        let device = HookedDevice::new();
        let journal = Journal::open(device.clone(), options(1024)).unwrap();
        set(&journal, 7, 1);
        journal.sync().unwrap();
        // At the note of the abort.
        let held = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&held);
        device.hook(&journal, move |core| notes.lock().push(core.checkpointing.try_lock().is_none()));
        device.inner.fail_once(Op::Write, 1, 5);
        let failed = if closing { last_checkpoint(&journal) } else { journal.checkpoint() };
        assert!(matches!(failed, Err(JournalError::Device(_))), "{failed:?}");
        assert_eq!(*held.lock(), [true]);
        assert!(journal.close().is_err());
        drop(journal);
        assert!(recover(device.inner.inner()).needed);
        assert_eq!(at(device.inner.inner(), 7), 1);
    }
}

/// What a close does when its first checkpoint has left something.
fn last_checkpoint(journal: &Journal) -> Result<()> {
    let core = &journal.core;
    core.checkpoint_alone(|| core.empty_log())
}

/// A thread that aborts the journal while another closes it is not alone in knowing.
#[test]
fn a_close_tells_of_an_abort_beside_it() {
    let device = HookedDevice::new();
    let journal = Journal::open(device.clone(), options(1024)).unwrap();
    set(&journal, 7, 1);
    journal.sync().unwrap();
    journal.checkpoint().unwrap();
    // At the write that marks the log as empty.
    device.hook(&journal, |core| {
        core.fail(JournalError::Aborted("a write of content".into()));
    });
    let closed = journal.close();
    assert!(matches!(closed, Err(JournalError::Aborted(_))), "{closed:?}");
}
