//! Shares: how many of a mount's threads the work of one user may have at a time.
//!
//! A program may have any number of requests served that last: copies, reads of bytes that its own
//! fallocate(2) has locked. Without shares, those of one user would take every thread.
//!
//! Invariant: a user whose work is parked has all threads of its share. Each of them takes the
//! next parked work when it is done, so nothing stays parked.

use lanefs_sync::IntMap;
use std::collections::VecDeque;

/// The user whose program waits for the work, `None` if no program does.
pub(crate) type User = Option<u32>;

/// The threads that each user's work has, and the work that is parked.
#[derive(Debug)]
pub(crate) struct Shares<T> {
    /// Threads of a user at most, and of what no program waits for.
    most: usize,
    of_nobody: usize,
    users: IntMap<User, Share<T>>,
}

#[derive(Debug)]
struct Share<T> {
    busy: usize,
    parked: VecDeque<T>,
}

impl<T> Shares<T> {
    /// Returns the shares where a user has at most `most` threads, and what no program waits for
    /// `of_nobody`.
    pub(crate) fn new(most: usize, of_nobody: usize) -> Self {
        Self { most: most.max(1), of_nobody: of_nobody.max(1), users: IntMap::default() }
    }

    /// Counts one more thread for `user`. Returns whether the share has room for it: otherwise
    /// nothing is counted, and the caller parks the work.
    pub(crate) fn enter(&mut self, user: User) -> bool {
        let most = if user.is_some() { self.most } else { self.of_nobody };
        let share = self.users.entry(user).or_insert(Share { busy: 0, parked: VecDeque::new() });
        let has_room = share.busy < most;
        share.busy += usize::from(has_room);
        has_room
    }

    /// Keeps work for which the share of `user` has no room.
    pub(crate) fn park(&mut self, user: User, work: T) {
        if let Some(share) = self.users.get_mut(&user) {
            share.parked.push_back(work);
        }
    }

    /// Notes that a thread has done its work for `user`. Returns the next parked work of that user,
    /// which has the same place in the share. `None`: the place is free.
    pub(crate) fn leave(&mut self, user: User) -> Option<T> {
        let share = self.users.get_mut(&user)?;
        let next = share.parked.pop_front();
        if next.is_none() {
            share.busy -= 1;
            if share.busy == 0 {
                self.users.remove(&user);
            }
        }
        next
    }

    /// Returns the parked work of `user`.
    pub(crate) fn parked(&self, user: User) -> impl Iterator<Item = &T> {
        self.users.get(&user).into_iter().flat_map(|share| &share.parked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_no_more_than_a_share_and_loses_no_work() {
        let mut shares = Shares::new(2, 2);
        let (one, other) = (Some(1000), Some(0));
        assert!(shares.enter(one) && shares.enter(one));
        for work in [3, 4, 5] {
            assert!(!shares.enter(one), "the share is used up");
            shares.park(one, work);
        }
        assert!(shares.enter(other) && shares.enter(None), "other users have their own");
        // Each thread that is done takes the next one, in the order of their coming.
        assert_eq!(shares.parked(one).copied().collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!([(); 3].map(|()| shares.leave(one)), [Some(3), Some(4), Some(5)]);
        assert!(!shares.enter(one), "two are still at work");
        assert_eq!((shares.leave(one), shares.leave(one)), (None, None));
        assert!(shares.enter(one));
        for user in [one, other, None] {
            assert_eq!(shares.leave(user), None);
        }
        assert!(shares.users.is_empty(), "users that ask for nothing take no memory");
    }
}
