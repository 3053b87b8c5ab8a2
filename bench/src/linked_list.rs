//! A lock-free list of held ranges, after Kogan, Dice and Issa, "Scalable range locks for scalable
//! address spaces and beyond" (EuroSys 2020), section 4, the reader-writer form.
//!
//! The list is in order of first points. A thread walks to the place of its range, waits there for
//! overlapping nodes, and links its node with one compare-and-swap. Then a reader looks ahead for a
//! writer that was linked meanwhile, and waits for it. A writer looks from the start for such
//! readers; if there is one, it unlinks its node and tries again. A release marks the node; the
//! next thread that walks past unlinks it.

use crossbeam_epoch::{Atomic, Guard as Pin, Owned, Shared, pin};
use lanefs_lab::rangelock::{Range, Variant, pause};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// The list.
#[derive(Default)]
pub struct LinkedList {
    head: Atomic<Node>,
}

struct Node {
    first: u64,
    last: u64,
    write: bool,
    /// Tag 1: this node is released.
    next: Atomic<Node>,
}

/// A held range.
pub struct Guard(*const Node);

/// The result of a walk to a place.
enum Outcome {
    In(*const Node),
    Again,
}

impl LinkedList {
    fn lock(&self, range: Range, write: bool) -> Guard {
        let mut rounds = 0;
        loop {
            match self.attempt(range, write) {
                Outcome::In(node) => return Guard(node),
                Outcome::Again => pause(&mut rounds),
            }
        }
    }

    fn attempt(&self, range: Range, write: bool) -> Outcome {
        let pin = &pin();
        let (first, last) = (range.first(), range.last());
        let mut new = Owned::new(Node { first, last, write, next: Atomic::null() });
        let mut place = &self.head;
        loop {
            let here = place.load(Acquire, pin);
            if here.tag() == 1 {
                return Outcome::Again;
            }
            if let Some(node) = node(here) {
                let next = node.next.load(Acquire, pin);
                if next.tag() == 1 {
                    unlink(place, here, next, pin);
                    continue;
                }
                let both_read = !write && !node.write;
                if node.last < first || (both_read && node.first <= first) {
                    place = &node.next;
                    continue;
                }
                if node.first <= last && !both_read {
                    return Outcome::Again;
                }
            }
            new.next.store(here, Release);
            match place.compare_exchange(here, new, AcqRel, Acquire, pin) {
                Ok(inserted) => {
                    if write {
                        return self.check_writer(inserted, pin);
                    }
                    check_reader(inserted, pin);
                    return Outcome::In(inserted.as_raw());
                }
                Err(lost) => new = lost.new,
            }
        }
    }

    /// Looks from the start for an overlapping reader that came in meanwhile.
    fn check_writer(&self, mine: Shared<'_, Node>, pin: &Pin) -> Outcome {
        let Some(me) = node(mine) else { return Outcome::Again };
        let mut place = &self.head;
        loop {
            let here = place.load(Acquire, pin);
            if here.tag() == 1 {
                place = &self.head;
                continue;
            }
            if here == mine {
                return Outcome::In(mine.as_raw());
            }
            let Some(node) = node(here) else { return Outcome::In(mine.as_raw()) };
            let next = node.next.load(Acquire, pin);
            if next.tag() == 1 {
                unlink(place, here, next, pin);
            } else if node.last < me.first {
                place = &node.next;
            } else {
                me.next.fetch_or(1, AcqRel, pin);
                return Outcome::Again;
            }
        }
    }
}

/// Looks ahead for overlapping writers, and waits for each.
fn check_reader(mine: Shared<'_, Node>, pin: &Pin) {
    let Some(me) = node(mine) else { return };
    let mut here = me.next.load(Acquire, pin).with_tag(0);
    let mut rounds = 0;
    while let Some(node) = node(here) {
        if node.first > me.last {
            return;
        }
        let next = node.next.load(Acquire, pin);
        if node.write && next.tag() == 0 {
            pause(&mut rounds);
        } else {
            here = next.with_tag(0);
        }
    }
}

fn node<'a>(link: Shared<'a, Node>) -> Option<&'a Node> {
    // SAFETY: read from the list while pinned; nodes are destroyed only after they were unlinked
    // and all pins have gone.
    #[allow(unsafe_code)]
    unsafe {
        link.as_ref()
    }
}

fn unlink<'a>(place: &Atomic<Node>, node: Shared<'a, Node>, next: Shared<'a, Node>, pin: &'a Pin) {
    if place.compare_exchange(node, next.with_tag(0), AcqRel, Acquire, pin).is_ok() {
        // SAFETY: the one thread whose compare-exchange unlinks the node destroys it; the holder
        // has marked it and does not use it any more.
        #[allow(unsafe_code)]
        unsafe {
            pin.defer_destroy(node);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let pin = &pin();
        // SAFETY: the node was not marked before this, so no thread has unlinked it; the list
        // outlives its guards.
        #[allow(unsafe_code)]
        unsafe {
            (*self.0).next.fetch_or(1, AcqRel, pin);
        }
    }
}

impl Drop for LinkedList {
    fn drop(&mut self) {
        let pin = &pin();
        let mut here = self.head.load(Acquire, pin);
        while let Some(node) = node(here) {
            let next = node.next.load(Acquire, pin).with_tag(0);
            // SAFETY: no other thread has a reference to the list.
            #[allow(unsafe_code)]
            unsafe {
                drop(here.into_owned());
            }
            here = next;
        }
    }
}

impl Variant for LinkedList {
    const NAME: &'static str = "linked list";
    type Read<'a> = Guard;
    type Write<'a> = Guard;

    fn read(&self, range: Range) -> Guard {
        self.lock(range, false)
    }

    fn write(&self, range: Range) -> Guard {
        self.lock(range, true)
    }
}
