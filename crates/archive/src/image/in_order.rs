//! The members of layers that are read at the same time, sent in the order of the layers.
//!
//! One layer has its turn: the thread that reads it sends. What other threads read waits in memory,
//! up to a bound; then they wait for their layer's turn.
//!
//! Hazard: a thread that waits must not hold what the layer before needs.

use super::blob::Layer;
use crate::member::Member;
use crate::pipe::{Outlet, PipeItem};
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes of all layers that wait for their turn.
const WAITING_MAX: usize = 8 << 20;
/// Members, or their bytes, that a thread gathers before it sends them.
const GATHERED: usize = 128;
const GATHERED_BYTES: usize = 1 << 20;

pub(super) struct InOrder<'a> {
    state: Mutex<LayerTurns<'a>>,
    /// The turn has changed, or all has ended.
    turned: Condvar,
}

struct LayerTurns<'a> {
    out: &'a mut Outlet,
    turn: usize,
    ended: bool,
    waiting: Vec<Waiting>,
    /// Bytes of all that waits.
    bytes: usize,
}

/// What was read of a layer before its turn.
#[derive(Default)]
struct Waiting {
    items: Vec<PipeItem>,
    bytes: usize,
    /// The layer was read to its end.
    done: bool,
}

impl<'a> InOrder<'a> {
    pub(super) fn new(layers: &[Layer], out: &'a mut Outlet) -> Self {
        let waiting = Layer::labels(layers)
            .map(|label| Waiting { items: vec![PipeItem::Layer(label)], ..Waiting::default() });
        let state = LayerTurns { out, turn: 0, ended: false, waiting: waiting.collect(), bytes: 0 };
        Self { state: Mutex::new(state), turned: Condvar::new() }
    }

    /// Returns what takes the members of the layer `at`.
    pub(super) fn layer(&self, at: usize) -> OneLayer<'_, 'a> {
        OneLayer { all: self, at, gathered: Vec::new(), bytes: 0 }
    }

    /// Sends that so many more bytes were checked.
    pub(super) fn checked(&self, bytes: u64) -> io::Result<()> {
        self.lock().send([PipeItem::Checked(bytes)])
    }

    /// Ends the work of all threads.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.turned.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, LayerTurns<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` says so of the state.
    fn wait(&self, ready: impl Fn(&LayerTurns<'_>) -> bool) -> io::Result<MutexGuard<'_, LayerTurns<'a>>> {
        let mut state = self.lock();
        while !state.ended && !ready(&state) {
            state = self.turned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended { Err(ended()) } else { Ok(state) }
    }
}

fn ended() -> io::Error {
    io::Error::other("the work has ended")
}

impl LayerTurns<'_> {
    /// Takes what waits of a layer.
    fn take(&mut self, at: usize) -> Vec<PipeItem> {
        let Waiting { items, bytes, .. } = &mut self.waiting[at];
        self.bytes -= std::mem::take(bytes);
        std::mem::take(items)
    }

    fn send(&mut self, items: impl IntoIterator<Item = PipeItem>) -> io::Result<()> {
        let sent = items.into_iter().try_for_each(|item| self.out.push(item));
        self.ended |= sent.is_err();
        sent.map_err(|_| ended())
    }
}

/// One layer's members, from the thread that reads it.
pub(super) struct OneLayer<'o, 'a> {
    all: &'o InOrder<'a>,
    at: usize,
    gathered: Vec<PipeItem>,
    /// Bytes of what was gathered.
    bytes: usize,
}

impl OneLayer<'_, '_> {
    /// Waits for the layer's turn.
    pub(super) fn wait_for_turn(&self) -> io::Result<()> {
        self.all.wait(|state| state.turn == self.at).map(|_| ())
    }

    pub(super) fn member(&mut self, member: Member) -> io::Result<()> {
        let item = PipeItem::of(member);
        self.bytes += size_of::<PipeItem>() + item.memory();
        self.gathered.push(item);
        let few = self.gathered.len() < GATHERED && self.bytes < GATHERED_BYTES;
        if few { Ok(()) } else { self.pass_on() }
    }

    fn pass_on(&mut self) -> io::Result<()> {
        let (at, bytes) = (self.at, std::mem::take(&mut self.bytes));
        let mut state = self.all.wait(|state| state.turn == at || state.bytes + bytes <= WAITING_MAX)?;
        let items = std::mem::take(&mut self.gathered);
        if state.turn == at {
            let waiting = state.take(at);
            self.all.turned.notify_all();
            return state.send(waiting.into_iter().chain(items));
        }
        state.bytes += bytes;
        let waiting = &mut state.waiting[at];
        waiting.bytes += bytes;
        waiting.items.extend(items);
        Ok(())
    }

    /// Says that the layer was read to its end.
    pub(super) fn done(mut self) -> io::Result<()> {
        self.pass_on()?;
        let mut state = self.all.lock();
        state.waiting[self.at].done = true;
        while state.waiting.get(state.turn).is_some_and(|waiting| waiting.done) {
            let at = state.turn;
            let waiting = state.take(at);
            state.send(waiting)?;
            state.turn += 1;
        }
        self.all.turned.notify_all();
        Ok(())
    }
}
