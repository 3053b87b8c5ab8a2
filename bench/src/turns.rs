//! The order in which variants take turns.

/// Returns the number of the variant of each turn. A round has one turn of each of `variants`, and
/// each round begins with another variant, so that none has the same place in all rounds. The first
/// round has them in order.
pub fn rotated(rounds: usize, variants: usize) -> impl Iterator<Item = usize> {
    (0..rounds).flat_map(move |round| (0..variants).map(move |turn| (round + turn) % variants))
}
