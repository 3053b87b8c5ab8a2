//! Random requests, one after the other, against a plain model: a vector of requests in order of
//! arrival. A request of the model is let in when nothing before it conflicts with it. After each
//! step, the lock must have let in the same.

use crate::guard::{HeldRange, ManyGuard, ReadGuard, WriteGuard};
use crate::leaf::Advice;
use crate::lock::{Admission, Place};
use crate::range::{Claim, join};
use crate::wait::Request;
use crate::{Mode, Range, RangeLock, Record};
use lanefs_sync::Arc;
use proptest::prelude::*;
use std::mem::ManuallyDrop;

#[derive(Clone, Debug)]
enum Op {
    Acquire(Claim),
    Many(Vec<Claim>),
    Try(Claim),
    /// The rest act on the live request with this number, modulo their count.
    Release(usize),
    Cancel(usize),
    Downgrade(usize),
    Shrink(usize, u64, u64),
    Split(usize, u64),
    /// What contention would bring about.
    SplitLeaf(u64),
    Open,
}

enum Hand<'a> {
    One(Kind<'a>),
    /// Kept to be dropped.
    Many(#[allow(dead_code)] ManyGuard<'a>),
    Waiting(Arc<Request>),
}

enum Kind<'a> {
    Read(ReadGuard<'a>),
    Write(WriteGuard<'a>),
}

struct Live<'a> {
    claims: Vec<Claim>,
    hand: Hand<'a>,
    /// What the model says.
    granted: bool,
}

fn kind(held: HeldRange<'_>, mode: Mode) -> Kind<'_> {
    if mode == Mode::Read { Kind::Read(ReadGuard(held)) } else { Kind::Write(WriteGuard(held)) }
}

impl Kind<'_> {
    fn range(&self) -> Range {
        match self {
            Kind::Read(guard) => guard.range(),
            Kind::Write(guard) => guard.range(),
        }
    }

    /// Keeps `part` alone. `false`: the range does not cover it, and stays.
    fn shrink(&mut self, part: Range) -> bool {
        match self {
            Kind::Read(guard) => guard.shrink(part).is_ok(),
            Kind::Write(guard) => guard.shrink(part).is_ok(),
        }
    }

    /// Both parts, or the whole guard if `point` divides it into none.
    fn split_at(self, point: u64) -> Vec<Self> {
        match self {
            Kind::Read(guard) => match guard.split_at(point) {
                Ok((l, r)) => vec![Kind::Read(l), Kind::Read(r)],
                Err(guard) => vec![Kind::Read(guard)],
            },
            Kind::Write(guard) => match guard.split_at(point) {
                Ok((l, r)) => vec![Kind::Write(l), Kind::Write(r)],
                Err(guard) => vec![Kind::Write(guard)],
            },
        }
    }
}

impl<'a> Live<'a> {
    fn conflicts(&self, other: &[Claim]) -> bool {
        self.claims.iter().any(|a| other.iter().any(|b| a.conflicts(b)))
    }

    /// A waiter that was let in becomes a holder.
    fn settle(&mut self, lock: &'a RangeLock) {
        if let Hand::Waiting(request) = &self.hand {
            if request.blockers() > 0 {
                return;
            }
            let request = Arc::clone(request);
            self.hand = match self.claims[..] {
                [claim] => Hand::One(kind(HeldRange::new(lock, claim, Place::Queued(request)), claim.mode)),
                _ => Hand::Many(ManyGuard::new(lock, self.claims.clone(), Some(request))),
            };
        }
    }
}

fn step<'a>(lock: &'a RangeLock, live: &mut Vec<Live<'a>>, op: Op) {
    apply(lock, live, op);
    compare(lock, live);
}

/// Does one operation on the lock and in the model.
fn apply<'a>(lock: &'a RangeLock, live: &mut Vec<Live<'a>>, op: Op) {
    let count = live.len().max(1);
    match op {
        Op::Acquire(claim) => {
            let granted = !live.iter().any(|l| l.conflicts(&[claim]));
            live.push(Live { claims: vec![claim], hand: acquire(lock, claim), granted });
        }
        Op::Many(claims) => {
            let claims = join(claims);
            let granted = !live.iter().any(|l| l.conflicts(&claims));
            let hand = match lock.admit(&claims, true) {
                Admission::Granted(_) => Hand::Many(ManyGuard::new(lock, claims.clone(), None)),
                Admission::Waiting(request) => Hand::Waiting(request),
                Admission::Refused => unreachable!(),
            };
            live.push(Live { claims, hand, granted });
        }
        Op::Try(claim) => {
            let free = !live.iter().any(|l| l.conflicts(&[claim]));
            let hand = match claim.mode {
                Mode::Read => lock.try_read(claim.range).map(Kind::Read),
                Mode::Write => lock.try_write(claim.range).map(Kind::Write),
            };
            assert_eq!(hand.is_some(), free, "try {claim:?}");
            live.extend(hand.map(|k| Live { claims: vec![claim], hand: Hand::One(k), granted: true }));
        }
        Op::Release(n) => {
            if live.get(n % count).is_some_and(|l| l.granted) {
                live.remove(n % count);
            }
        }
        Op::Cancel(n) => {
            if let Some(Live { claims, hand: Hand::Waiting(request), .. }) = live.get(n % count) {
                assert!(!lock.cancel(claims, request));
                live.remove(n % count);
            }
        }
        Op::Downgrade(n) => {
            if let Some(Live { hand: Hand::One(Kind::Write(_)), .. }) = live.get(n % count) {
                let mut this = live.remove(n % count);
                let Hand::One(Kind::Write(guard)) = this.hand else { unreachable!() };
                this.hand = Hand::One(Kind::Read(guard.downgrade()));
                this.claims[0].mode = Mode::Read;
                live.insert(n % count, this);
            }
        }
        Op::Shrink(n, first, last) => {
            if let Some(Live { claims, hand: Hand::One(kind), .. }) = live.get_mut(n % count) {
                let part = Range::inclusive(first.min(last), first.max(last)).unwrap();
                assert_eq!(kind.shrink(part), claims[0].range.covers(&part));
                claims[0].range = kind.range();
            }
        }
        Op::Split(n, point) => {
            if let Some(Live { hand: Hand::One(_), .. }) = live.get(n % count) {
                split(live, n % count, point);
            }
        }
        Op::SplitLeaf(point) => lock.heed(Advice::SplitAt(point)),
        Op::Open => lock.heed(Advice::Share),
    }
}

/// Takes the claim as `read` and `write` do, but for waiting.
fn acquire(lock: &RangeLock, claim: Claim) -> Hand<'_> {
    let published = if claim.mode == Mode::Read { lock.read_now(claim.range) } else { None };
    if let Some(guard) = published {
        return Hand::One(Kind::Read(guard));
    }
    match lock.admit(&[claim], true) {
        Admission::Granted(place) => Hand::One(kind(HeldRange::new(lock, claim, place), claim.mode)),
        Admission::Waiting(request) => Hand::Waiting(request),
        Admission::Refused => unreachable!(),
    }
}

/// Splits the range of the one guard at `at` of the model, if `point` is inside.
fn split(live: &mut Vec<Live<'_>>, at: usize, point: u64) {
    let Live { claims, hand: Hand::One(whole), granted } = live.remove(at) else { unreachable!() };
    let parts = whole.split_at(point);
    assert_eq!(parts.len() == 2, claims[0].range.contains(point) && claims[0].range.first() != point);
    for part in parts.into_iter().rev() {
        let claims = vec![Claim { range: part.range(), ..claims[0] }];
        live.insert(at, Live { claims, hand: Hand::One(part), granted });
    }
}

/// Lets in what the model lets in by now, and checks that the lock has done the same.
fn compare<'a>(lock: &'a RangeLock, live: &mut [Live<'a>]) {
    for i in 0..live.len() {
        let (before, rest) = live.split_at_mut(i);
        let this = &mut rest[0];
        this.granted |= !before.iter().any(|l| l.conflicts(&this.claims));
        this.settle(lock);
        let waits = matches!(this.hand, Hand::Waiting(_));
        assert_eq!(!waits, this.granted, "{:?}: the model differs. {:?}", this.claims, lock.records());
    }
    let mut records: Vec<(Range, Mode, bool)> =
        live.iter().flat_map(|l| l.claims.iter().map(|c| (c.range, c.mode, l.granted))).collect();
    let mut listed: Vec<_> =
        lock.records().iter().map(|&Record { range, mode, blockers }| (range, mode, blockers == 0)).collect();
    records.sort_unstable();
    listed.sort_unstable();
    assert_eq!(records, listed);
}

/// Few enough points that ranges meet; a third of the starts and ends are at the far end of u64.
fn point() -> impl Strategy<Value = u64> {
    prop_oneof![2 => 0..60_u64, 1 => u64::MAX - 30..=u64::MAX]
}

fn claim() -> impl Strategy<Value = Claim> {
    let range = prop_oneof![
        6 => (point(), 0..4_u64).prop_map(|(p, n)| (p, p.saturating_add(n))),
        1 => (point(), point()),
        1 => point().prop_map(|p| (p, u64::MAX)),
    ];
    let mode = prop_oneof![Just(Mode::Read), Just(Mode::Write)];
    (range, mode)
        .prop_map(|((a, b), mode)| Claim { range: Range::inclusive(a.min(b), a.max(b)).unwrap(), mode })
}

fn op() -> impl Strategy<Value = Op> {
    let n = any::<usize>;
    prop_oneof![
        12 => claim().prop_map(Op::Acquire),
        2 => prop::collection::vec(claim(), 1..4).prop_map(Op::Many),
        4 => claim().prop_map(Op::Try),
        8 => n().prop_map(Op::Release),
        2 => n().prop_map(Op::Cancel),
        1 => n().prop_map(Op::Downgrade),
        2 => (n(), point(), point()).prop_map(|(n, a, b)| Op::Shrink(n, a, b)),
        2 => (n(), point()).prop_map(|(n, p)| Op::Split(n, p)),
        2 => point().prop_map(Op::SplitLeaf),
        1 => Just(Op::Open),
    ]
}

/// Mostly reads of one point each, so that many are held at once and leaves fill.
fn crowd() -> impl Strategy<Value = Op> {
    let narrow =
        |mode| point().prop_map(move |p| Op::Try(Claim { range: Range::with_len(p, 1).unwrap(), mode }));
    prop_oneof![8 => narrow(Mode::Write), 8 => narrow(Mode::Read), 4 => op()]
}

fn run(ops: Vec<Op>) {
    let lock = RangeLock::new();
    // Not dropped by a panic: the guards of a lock that went wrong would panic too.
    let mut live = ManuallyDrop::new(Vec::new());
    for op in ops {
        step(&lock, &mut live, op);
    }
    // Let everyone in and out again: nothing may be left over.
    while !live.is_empty() {
        step(&lock, &mut live, Op::Release(0));
    }
    assert_eq!(lock.records(), []);
    drop(ManuallyDrop::into_inner(live));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 1000 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lets_in_what_the_model_lets_in(ops in prop::collection::vec(op(), 0..if cfg!(miri) { 16 } else { 150 })) {
        run(ops);
    }

    #[test]
    fn lets_in_what_the_model_lets_in_when_crowded(ops in prop::collection::vec(crowd(), 0..if cfg!(miri) { 30 } else { 300 })) {
        run(ops);
    }
}
