//! Transaction numbers. They are 32 bits on disk and wrap, so "later" is a signed difference.

use std::fmt;

/// The number of a transaction (`h_sequence`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tid(pub u32);

impl Tid {
    /// Returns the transaction after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns whether `self` comes after `other`, across the wrap.
    pub fn after(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) > 0
    }

    /// Returns whether `self` is `other` or comes after it.
    pub fn at_or_after(self, other: Self) -> bool {
        !other.after(self)
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_across_the_wrap() {
        let last = Tid(u32::MAX);
        assert_eq!(last.next(), Tid(0));
        assert!(last.next().after(last));
        assert!(!last.after(last.next()));
        assert!(last.at_or_after(last));
        assert!(Tid(5).at_or_after(Tid(4)) && !Tid(4).at_or_after(Tid(5)));
    }
}
