//! A link to a child. Bit 0 says whether the child is a leaf or an inner node.
//!
//! So even a link read from a stale node leads to a node of the right type: nodes are type-stable.

use super::inner::Inner;
use crate::leaf::Leaf;

const INNER: usize = 1;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link(*mut ());

/// The target of a link.
pub(crate) enum Node<'a> {
    Leaf(&'a Leaf),
    Inner(&'a Inner),
}

impl Link {
    pub(crate) fn leaf(leaf: &Leaf) -> Self {
        Self(std::ptr::from_ref(leaf).cast_mut().cast())
    }

    pub(crate) fn inner(inner: &Inner) -> Self {
        Self(std::ptr::from_ref(inner).cast_mut().cast::<()>().map_addr(|a| a | INNER))
    }

    #[inline]
    pub(crate) fn from_raw(raw: *mut ()) -> Self {
        Self(raw)
    }

    #[inline]
    pub(crate) fn into_raw(self) -> *mut () {
        self.0
    }

    /// Returns the node that the link leads to.
    ///
    /// # Safety
    ///
    /// The link was made from a node of a pool that lives at least as long as `'a`.
    #[inline]
    pub(crate) unsafe fn follow<'a>(self) -> Node<'a> {
        if self.0.addr() & INNER == 0 {
            // SAFETY: made from a `&Leaf`; the memory stays a leaf as long as the pool lives.
            Node::Leaf(unsafe { &*self.0.cast::<Leaf>() })
        } else {
            // SAFETY: made from a `&Inner`, and tagged; likewise.
            Node::Inner(unsafe { &*self.0.map_addr(|a| a & !INNER).cast::<Inner>() })
        }
    }
}
