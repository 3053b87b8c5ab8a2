//! Fingerprints of the changes that an image has over the bytes that it was made of.
//!
//! The fingerprint is a sum over pages, so that a state costs only the pages of its own epoch. A
//! page that holds what the base holds adds nothing: two images of one base with the same content
//! have the same one.

use crate::Image;
use crate::image::PAGE;
use std::collections::{BTreeSet, HashMap};

/// The fingerprints of an image's pages, kept from epoch to epoch.
#[derive(Debug, Default)]
pub(super) struct Fingerprint {
    pages: HashMap<u64, u64>,
    sum: u64,
}

impl Fingerprint {
    /// Returns that of `image`.
    pub(super) fn new(image: &Image) -> Self {
        let mut print = Self::default();
        print.advance(image, &image.pages().keys().copied().collect());
        print
    }

    /// Returns the fingerprint of `image`, which differs from the image of this one in no other
    /// than `pages`.
    pub(super) fn of(&self, image: &Image, pages: &BTreeSet<u64>) -> u64 {
        let old = |page: &u64| self.pages.get(page).copied().unwrap_or(0);
        let change =
            |sum: u64, page: &u64| sum.wrapping_sub(old(page)).wrapping_add(page_print(image, *page));
        pages.iter().fold(self.sum, change)
    }

    /// Takes over the changes that `image` has in `pages`.
    pub(super) fn advance(&mut self, image: &Image, pages: &BTreeSet<u64>) {
        for &page in pages {
            let print = page_print(image, page);
            let old = self.pages.insert(page, print).unwrap_or(0);
            self.sum = self.sum.wrapping_sub(old).wrapping_add(print);
        }
    }
}

/// Returns what a page adds: 0 if it holds what the base holds.
fn page_print(image: &Image, number: u64) -> u64 {
    let Some(page) = image.pages().get(&number) else { return 0 };
    let mut base = [0; PAGE];
    image.read_below(number, &mut base);
    if base == **page { 0 } else { hash(number, &page[..]) }
}

/// Hashes a page with four multiplications side by side for each 32 bytes: states are many, and
/// most of their comparison is this.
fn hash(number: u64, page: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [number ^ ODD, number.rotate_left(16) ^ 1, number.rotate_left(32) ^ 2, !number];
    for chunk in page.chunks_exact(32) {
        for (lane, word) in lanes.iter_mut().zip(chunk.chunks_exact(8)) {
            let word = word.try_into().map_or(0, u64::from_le_bytes);
            *lane = (*lane ^ word).wrapping_mul(ODD).rotate_left(29);
        }
    }
    lanes.iter().fold(0, |hash: u64, lane| {
        let mixed = (hash ^ lane).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 29)
    })
}
