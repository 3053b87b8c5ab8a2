//! The slow path: requests that touch several leaves, meet a conflict or find a full leaf, and
//! every change of a record that other requests may wait for.
//!
//! Each step locks *all* leaves under its ranges, in ascending order, so it is atomic for every
//! request that could conflict. A request that finds conflicting records queues in each of its
//! leaves, with the number of those records as its count. Each of those records decrements the
//! count when it is released. A request counts waiters as well as holders, so no request overtakes
//! a conflicting one. Hence no request starves, and waits form no cycle, whatever the ranges.

use crate::leaf::{Advice, LeafGuard};
use crate::lock::{Admission, Place, RangeLock};
use crate::range::{Claim, Mode, Range};
use crate::shared::{CLOSED, CLOSING, OPEN, OPENING, Shared};
use crate::tree::Tree;
use crate::wait::{Request, Woken};
use lanefs_sync::Arc;
use lanefs_sync::atomic::{Ordering, fence};

impl RangeLock {
    /// Locks all leaves under `claims`, which are in ascending order and do not overlap. The caller
    /// holds no leaf.
    pub(crate) fn lock_under(&self, claims: &[Claim]) -> Vec<LeafGuard<'_>> {
        loop {
            let Some(tree) = self.tree() else {
                let inline = self.inline.lock();
                if inline.covers(Range::ALL) {
                    return vec![inline];
                }
                continue;
            };
            let mut leaves: Vec<LeafGuard<'_>> = Vec::new();
            for claim in claims {
                let mut point = claim.range.first;
                loop {
                    if !leaves.last().is_some_and(|leaf| leaf.has(point)) {
                        let is_first = leaves.is_empty();
                        leaves.push(if is_first { tree.lock(point).1 } else { tree.lock_beside(point) });
                    }
                    match leaves.last() {
                        Some(leaf) if leaf.hi < claim.range.last => point = leaf.hi + 1,
                        _ => break,
                    }
                }
            }
            return leaves;
        }
    }

    /// Lets the claims in, all at once; or puts them in line, if `queue`.
    pub(crate) fn admit(&self, claims: &[Claim], queue: bool) -> Admission<'_> {
        let writes = claims.iter().any(|c| c.mode == Mode::Write);
        loop {
            let mut leaves = self.lock_under(claims);
            if writes && self.bias.load(Ordering::Acquire) != CLOSED {
                drop(leaves);
                self.close();
                continue;
            }
            let blockers: usize =
                leaves.iter().map(|leaf| under(leaf, claims).map(|c| leaf.blockers(c)).sum::<usize>()).sum();
            if blockers > 0 && !queue {
                return Admission::Refused;
            }
            if blockers > 0 {
                let request = Request::new(blockers);
                for leaf in &mut leaves {
                    for &claim in claims {
                        if !leaf.touches(claim.range) {
                            continue;
                        }
                        leaf.enqueue(claim, Some(&request));
                    }
                }
                note(&mut leaves, claims);
                return Admission::Waiting(request);
            }
            if self.make_room(&mut leaves, claims) {
                continue;
            }
            let advice = note(&mut leaves, claims);
            let place = self.seat(&mut leaves, claims);
            drop(leaves);
            self.heed(advice);
            return Admission::Granted(place);
        }
    }

    /// Splits one leaf that has too few slots for the claims. False if there is none, or it cannot
    /// be split.
    fn make_room(&self, leaves: &mut [LeafGuard<'_>], claims: &[Claim]) -> bool {
        for leaf in leaves {
            if leaf.room() >= under(leaf, claims).count() {
                continue;
            }
            let Some(tree) = self.tree() else {
                self.promote(leaf);
                return true;
            };
            if let Some(pivot) = leaf.pivot(claims) {
                tree.split(leaf, pivot);
                return true;
            }
        }
        false
    }

    /// Puts holders into their leaves. Returns the place of the last.
    fn seat<'a>(&'a self, leaves: &mut [LeafGuard<'a>], claims: &[Claim]) -> Place<'a> {
        let mut place = Place::Leaves;
        for leaf in &mut *leaves {
            for &claim in claims {
                if !leaf.touches(claim.range) {
                    continue;
                }
                let slot = leaf.put_anyhow(claim);
                if let (Some(slot), true) = (slot, Some(&claim) == claims.last() && leaf.covers(claim.range))
                {
                    place = Place::Slot { leaf: leaf.leaf(), version: leaf.version(), slot };
                }
            }
        }
        place
    }

    /// Moves the first leaf into a tree.
    fn promote(&self, inline: &mut LeafGuard<'_>) {
        let tree: Box<Tree> = Tree::from_leaf(inline);
        inline.outdate();
        // Release: a thread that sees the tree sees its content. The leaf is still locked, so only
        // one thread promotes it.
        self.tree.store(Box::into_raw(tree), Ordering::Release);
    }

    /// Follows the advice of a contended leaf.
    #[cold]
    pub(crate) fn heed(&self, advice: Advice) {
        match advice {
            Advice::Nothing => {}
            Advice::Share => self.open(),
            Advice::SplitAt(pivot) => match self.tree() {
                None => {
                    let mut inline = self.inline.lock();
                    if inline.covers(Range::ALL) {
                        self.promote(&mut inline);
                    }
                }
                Some(tree) => {
                    let (_, mut leaf) = tree.lock(pivot);
                    if leaf.lo < pivot {
                        tree.split(&mut leaf, pivot);
                    }
                }
            },
        }
    }

    /// Cancels a waiting request. Returns true if it was granted meanwhile.
    pub(crate) fn cancel(&self, claims: &[Claim], request: &Arc<Request>) -> bool {
        let mut woken = Woken::default();
        let mut leaves = self.lock_under(claims);
        // While this thread has locked all its leaves, no other thread can grant it.
        if request.blockers() == 0 {
            return true;
        }
        for leaf in &mut leaves {
            for &claim in claims {
                if !leaf.touches(claim.range) {
                    continue;
                }
                let stood = leaf.take(claim, Some(request));
                leaf.recount(claim, &[], stood, &mut woken);
            }
        }
        drop(leaves);
        woken.wake();
        false
    }

    /// Puts `now`, parts of `before` in no stronger mode, where the holder `before` was; nothing,
    /// to release it. Returns the place of the last of them.
    pub(crate) fn replace(&self, before: Claim, request: Option<&Arc<Request>>, now: &[Claim]) -> Place<'_> {
        let mut woken = Woken::default();
        let mut leaves = self.lock_under(&[before]);
        for leaf in &mut leaves {
            leaf.take(before, request);
            if request.is_none() {
                // Its guard, and that of a record just like it, may remember different slots.
                leaf.outdate();
            }
            leaf.recount(before, now, 0, &mut woken);
        }
        let place = self.seat(&mut leaves, now);
        drop(leaves);
        woken.wake();
        place
    }

    #[cold]
    pub(crate) fn release_slow(&self, claim: Claim, place: &Place<'_>) {
        match place {
            &Place::Slot { leaf, version, slot } => {
                let mut guard = leaf.lock();
                let known = guard.version() == version;
                if known || (guard.covers(claim.range) && guard.is_in(slot, claim)) {
                    if !known {
                        guard.outdate();
                    }
                    guard.free(slot);
                    let mut woken = Woken::default();
                    guard.recount(claim, &[], 0, &mut woken);
                    drop(guard);
                    return woken.wake();
                }
                drop(guard);
                self.replace(claim, None, &[]);
            }
            Place::Lane { lane, ticket } => {
                if !lane.free(*ticket) {
                    self.replace(claim, None, &[]);
                }
            }
            Place::Queued(request) => {
                self.replace(claim, Some(request), &[]);
            }
            Place::Leaves => {
                self.replace(claim, None, &[]);
            }
        }
    }

    /// Turns a published range into a record.
    pub(crate) fn leave_lane(&self, claim: Claim, place: &Place<'_>) {
        let (Place::Lane { lane, ticket }, Some(shared)) = (place, self.shared()) else {
            return;
        };
        let _turn = shared.turn.lock();
        // While the range is published and no thread closes the lock, no writer is in any leaf.
        if lane.published().is_some_and(|(_, t)| t == *ticket) {
            self.seat_reader(claim.range);
        }
        lane.free(*ticket);
    }

    /// Inserts the record of a reader that already holds its range. There must be no writer, and
    /// the caller holds `turn`.
    fn seat_reader(&self, range: Range) {
        let claims = [Claim { range, mode: Mode::Read }];
        loop {
            let mut leaves = self.lock_under(&claims);
            if !self.make_room(&mut leaves, &claims) {
                self.seat(&mut leaves, &claims);
                return;
            }
        }
    }

    /// Lets readers publish, if there is no writer.
    pub(crate) fn open(&self) {
        let shared = match self.shared() {
            Some(shared) => shared,
            None => {
                let new = Box::into_raw(Box::new(Shared::new()));
                let (relaxed, release) = (Ordering::Acquire, Ordering::AcqRel);
                match self.shared.compare_exchange(std::ptr::null_mut(), new, release, relaxed) {
                    // SAFETY: from a box just now, and kept until `drop`.
                    Ok(_) => unsafe { &*new },
                    Err(theirs) => {
                        // SAFETY: `new` is from a box, and no other thread has seen it; `theirs` is
                        // kept until `drop`.
                        unsafe {
                            drop(Box::from_raw(new));
                            &*theirs
                        }
                    }
                }
            }
        };
        let Some(_turn) = shared.turn.try_lock() else { return };
        if self.bias.load(Ordering::Relaxed) != CLOSED || !shared.is_time() {
            return;
        }
        // Release: a writer that sees it finds `shared`.
        self.bias.store(OPENING, Ordering::Release);
        let state = if self.has_writers() { CLOSED } else { OPEN };
        self.bias.store(state, Ordering::Release);
    }

    /// Visits every leaf. Returns true if one has a writer or is locked.
    fn has_writers(&self) -> bool {
        let mut point = Some(0);
        while let Some(at) = point {
            let Some(leaf) = self.tree().map_or(Some(&self.inline), |tree| tree.find(at)) else {
                return true;
            };
            let Some(leaf) = leaf.try_lock() else { return true };
            if !leaf.has(at) || leaf.has_writers() {
                return true;
            }
            point = leaf.hi.checked_add(1);
        }
        false
    }

    /// Moves all published ranges into the leaves. Afterwards the lock is closed, or was so for a
    /// moment.
    pub(crate) fn close(&self) {
        let Some(shared) = self.shared() else { return };
        let _turn = shared.turn.lock();
        // One step, not a look and a store: loom would not try a reader's look between the two (see
        // `docs/mutations.md` of this crate).
        if self.bias.swap(CLOSING, Ordering::AcqRel) == CLOSED {
            return self.bias.store(CLOSED, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        for lane in shared.lanes() {
            let Some((range, ticket)) = lane.published() else { continue };
            // The record first: from the moment the lane is marked, its guard looks for one.
            self.seat_reader(range);
            if !lane.moved(ticket) {
                // The reader has left meanwhile. No writer has entered, so no request has counted
                // the record.
                self.replace(Claim { range, mode: Mode::Read }, None, &[]);
            }
        }
        shared.was_closed();
        self.bias.store(CLOSED, Ordering::Release);
    }
}

/// Returns the claims that touch a leaf.
fn under<'a>(leaf: &'a LeafGuard<'_>, claims: &'a [Claim]) -> impl Iterator<Item = Claim> + 'a {
    claims.iter().copied().filter(|c| leaf.touches(c.range))
}

/// Notes one acquisition, in the first of the leaves.
fn note(leaves: &mut [LeafGuard<'_>], claims: &[Claim]) -> Advice {
    match (leaves.first_mut(), claims.first()) {
        (Some(leaf), Some(claim)) => leaf.note(claim.range.first, claim.mode),
        _ => Advice::Nothing,
    }
}
