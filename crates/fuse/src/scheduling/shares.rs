//! Shares: how many of a mount's threads the work of one user may have at a time.
//!
//! A program may have any number of requests served that last: copies, reads of bytes that its own
//! fallocate(2) has locked. Without shares, those of one user would take every thread.
//!
//! The last threads of a share are kept for looks, see [`Work`].
//!
//! Invariant: while looks of a user are parked, all threads of its share are busy. While its other
//! work is parked, they are too, or other work has all of them but those that are kept. Each thread
//! takes the next parked work when it is done: work of its own kind, unless work of the other kind
//! is parked and no thread has any. So nothing stays parked, however much of the other kind comes.

use lanefs_sync::IntMap;
use std::collections::VecDeque;

/// The user whose program waits for the work, `None` if no program does.
pub(crate) type User = Option<u32>;

/// The kinds of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// It is short, and the kernel may ask for it while it holds what other users wait for.
    Look,
    Other,
}

impl Work {
    fn opposite(self) -> Self {
        match self {
            Self::Look => Self::Other,
            Self::Other => Self::Look,
        }
    }
}

/// The threads that each user's work has, and the work that is parked.
#[derive(Debug)]
pub(crate) struct Shares<T> {
    /// Threads of a user at most, how many of them are kept for looks, and threads of what no
    /// program waits for.
    most: usize,
    kept: usize,
    of_nobody: usize,
    users: IntMap<User, Share<T>>,
}

/// The work of one user.
#[derive(Debug)]
struct Share<T> {
    looks: OfKind<T>,
    others: OfKind<T>,
}

/// The work of one user and one kind: the threads that do it, and what is parked.
#[derive(Debug)]
struct OfKind<T> {
    busy: usize,
    parked: VecDeque<T>,
}

impl<T> Share<T> {
    fn new() -> Self {
        let none = || OfKind { busy: 0, parked: VecDeque::new() };
        Self { looks: none(), others: none() }
    }

    fn busy(&self) -> usize {
        self.looks.busy + self.others.busy
    }

    fn of(&mut self, work: Work) -> &mut OfKind<T> {
        match work {
            Work::Look => &mut self.looks,
            Work::Other => &mut self.others,
        }
    }
}

impl<T> OfKind<T> {
    /// Takes the next parked work, if fewer than `most` threads do such work.
    fn next(&mut self, most: usize) -> Option<T> {
        let next = if self.busy < most { self.parked.pop_front() } else { None };
        self.busy += usize::from(next.is_some());
        next
    }
}

impl<T> Shares<T> {
    /// Returns the shares where a user has at most `most` threads, and what no program waits for
    /// `of_nobody`.
    pub(crate) fn new(most: usize, of_nobody: usize) -> Self {
        Self { most: most.max(1), kept: 0, of_nobody: of_nobody.max(1), users: IntMap::default() }
    }

    /// Keeps so many threads of each user's share for looks, but leaves one for other work.
    pub(crate) fn keeping(self, kept: usize) -> Self {
        Self { kept: kept.min(self.most - 1), ..self }
    }

    /// Returns how many threads such work of `user` may have. Looks may have all of its share.
    fn most_of(&self, user: User, work: Work) -> usize {
        match (user, work) {
            (None, _) => self.of_nobody,
            (Some(_), Work::Look) => self.most,
            (Some(_), Work::Other) => self.most - self.kept,
        }
    }

    /// Counts one more thread for `user`. Returns whether the share has room for it: otherwise
    /// nothing is counted, and the caller parks the work.
    pub(crate) fn enter(&mut self, user: User, work: Work) -> bool {
        let (all, most) = (self.most_of(user, Work::Look), self.most_of(user, work));
        let share = self.users.entry(user).or_insert_with(Share::new);
        let has_room = share.busy() < all && share.of(work).busy < most;
        share.of(work).busy += usize::from(has_room);
        has_room
    }

    /// Keeps work for which the share of `user` has no room.
    pub(crate) fn park(&mut self, user: User, work: Work, item: T) {
        if let Some(share) = self.users.get_mut(&user) {
            share.of(work).parked.push_back(item);
        }
    }

    /// Notes that a thread has done work of this kind for `user`. Returns the next parked work of
    /// that user, which has the same place in the share. `None`: the place is free.
    pub(crate) fn leave(&mut self, user: User, work: Work) -> Option<T> {
        let other = work.opposite();
        let (most_own, most_other) = (self.most_of(user, work), self.most_of(user, other));
        let share = self.users.get_mut(&user)?;
        share.of(work).busy -= 1;
        let next = match share.of(other).busy {
            0 => share.of(other).next(most_other).or_else(|| share.of(work).next(most_own)),
            _ => share.of(work).next(most_own).or_else(|| share.of(other).next(most_other)),
        };
        if share.busy() == 0 {
            self.users.remove(&user);
        }
        next
    }

    /// Returns the parked work of `user`.
    pub(crate) fn parked(&self, user: User) -> impl Iterator<Item = &T> {
        let shares = self.users.get(&user).into_iter();
        shares.flat_map(|share| share.looks.parked.iter().chain(&share.others.parked))
    }
}

#[cfg(test)]
mod tests {
    use super::Work::{Look, Other};
    use super::*;

    #[test]
    fn a_user_has_no_more_than_a_share_and_loses_no_work() {
        let mut shares = Shares::new(2, 2);
        let (one, other) = (Some(1000), Some(0));
        assert!(shares.enter(one, Other) && shares.enter(one, Other));
        for item in [3, 4, 5] {
            assert!(!shares.enter(one, Other), "the share is used up");
            shares.park(one, Other, item);
        }
        assert!(shares.enter(other, Other) && shares.enter(None, Other), "other users have their own");
        // Each thread that is done takes the next one, in the order of their coming.
        assert_eq!(shares.parked(one).copied().collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!([(); 3].map(|()| shares.leave(one, Other)), [Some(3), Some(4), Some(5)]);
        assert!(!shares.enter(one, Other), "two are still at work");
        assert_eq!((shares.leave(one, Other), shares.leave(one, Other)), (None, None));
        assert!(shares.enter(one, Other));
        for user in [one, other, None] {
            assert_eq!(shares.leave(user, Other), None);
        }
        assert!(shares.users.is_empty(), "users that ask for nothing take no memory");
    }

    #[test]
    fn looks_have_the_last_threads() {
        let mut shares = Shares::new(3, 1).keeping(1);
        let user = Some(1000);
        assert!(shares.enter(user, Other) && shares.enter(user, Other) && !shares.enter(user, Other));
        shares.park(user, Other, 1);
        assert!(shares.enter(user, Look) && !shares.enter(user, Look));
        for look in [2, 3] {
            shares.park(user, Look, look);
        }
        assert_eq!(shares.parked(user).copied().collect::<Vec<_>>(), [2, 3, 1]);
        assert_eq!([(); 2].map(|()| shares.leave(user, Look)), [Some(2), Some(3)]);
        // The kept thread is free, and takes no other work.
        assert_eq!(shares.leave(user, Look), None);
        assert!(!shares.enter(user, Other) && shares.enter(user, Look));
        assert_eq!(shares.leave(user, Other), Some(1));
        assert_eq!([Look, Other, Other].map(|work| shares.leave(user, work)), [None; 3]);
        // A user has a thread for other work, however many are kept.
        let mut few = Shares::<()>::new(1, 1).keeping(1);
        assert!(few.enter(user, Other) && !few.enter(user, Look));
        assert!(few.enter(None, Look) && !few.enter(None, Other));
        assert!(few.leave(user, Other).is_none() && few.leave(None, Look).is_none());
        assert!(shares.users.is_empty() && few.users.is_empty());
    }

    /// However much work of the other kind is always parked, work of each kind is taken.
    #[test]
    fn no_kind_of_work_waits_for_the_other_without_end() {
        let user = Some(1000);
        for (most, kept) in [(3, 1), (1, 0)] {
            for (many, few) in [(Look, Other), (Other, Look)] {
                let mut shares = Shares::new(most, 1).keeping(kept);
                let mut busy = 0;
                while shares.enter(user, many) {
                    busy += 1;
                }
                // Where a thread is kept, a look has room at once.
                let is_served = shares.enter(user, few);
                assert_eq!(is_served, busy < most, "{most} {few:?}");
                for _ in 0..2 {
                    assert!(!shares.enter(user, few));
                    shares.park(user, few, few);
                }
                let mut at_work = vec![many; busy];
                at_work.resize(busy + usize::from(is_served), few);
                let mut taken = 0;
                for _ in 0..10 * most {
                    shares.park(user, many, many);
                    let next = shares.leave(user, at_work.remove(0));
                    taken += usize::from(next == Some(few));
                    at_work.extend(next);
                }
                assert_eq!(taken, 2, "{most} {few:?}");
            }
        }
    }
}
