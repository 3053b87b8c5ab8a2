//! Judges the content of a file after a power loss: the contents that a crash may leave.

use std::ops::{Range, RangeInclusive};

/// A file's contents over time, by the operations that made them.
#[derive(Debug)]
pub struct Tracked {
    /// Bytes of a block.
    block: usize,
    moments: Vec<Moment>,
}

/// A content that a file had.
#[derive(Debug)]
struct Moment {
    op: usize,
    what: String,
    content: Vec<u8>,
    settles: Settles,
}

/// The parts of a content that an operation sets under its own transaction, and not when its pages
/// are written out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settles {
    /// The size.
    pub size: bool,
    /// Bytes that are not older than the operation once it is there.
    pub bytes: Range<usize>,
    /// Bytes from the first number on have moved to the second.
    pub moved: Option<(usize, usize)>,
}

/// The facts known of the moment of a crash, in numbers of operations.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// All of the file up to this one was synced.
    pub synced: usize,
    /// Names and attributes are those after this one, so what it and those before have settled is
    /// there, and no later one's size is.
    pub named: usize,
    /// The last that had begun.
    pub begun: usize,
}

impl Tracked {
    /// Tracks a file with blocks of `block` bytes that has this content before operation 0, which
    /// is synced.
    pub fn new(block: usize, content: Vec<u8>) -> Self {
        let first = Moment { op: 0, what: "at first".into(), content, settles: Settles::default() };
        Self { block, moments: vec![first] }
    }

    /// What it is now.
    pub fn content(&self) -> &[u8] {
        self.moments.last().map_or(&[], |m| &m.content)
    }

    /// Returns whether it ever had this byte anywhere.
    pub fn had(&self, byte: u8) -> bool {
        self.moments.iter().any(|m| m.content.contains(&byte))
    }

    /// Returns whether a content of one of these operations was noted.
    pub fn has_changed(&self, ops: &RangeInclusive<usize>) -> bool {
        self.moments.iter().any(|m| ops.contains(&m.op))
    }

    /// Notes what operation `op` makes of it. Called more than once for one operation, each
    /// content is one that a crash may leave of it.
    pub fn record(&mut self, op: usize, what: impl Into<String>, content: Vec<u8>) {
        self.record_settled(op, what, content, Settles::default());
    }

    /// Notes what operation `op` makes of it, with what is there as soon as its transaction is.
    pub fn record_settled(&mut self, op: usize, what: impl Into<String>, content: Vec<u8>, settles: Settles) {
        self.moments.push(Moment { op, what: what.into(), content, settles });
    }

    /// Judges what was `found` after a crash, when all up to operation `synced` was synced and
    /// `begun` is the last that had begun; as [`judge_named`](Self::judge_named), where nothing is
    /// known of names.
    ///
    /// # Errors
    /// What cannot be.
    pub fn judge(&self, found: &[u8], synced: usize, begun: usize) -> Result<(), String> {
        self.judge_named(found, Known { synced, named: begun, begun })
    }

    /// Judges what was `found` after a crash. Operations come one after the other, and what was not
    /// synced may be there in part:
    ///
    /// - The size is one that the file had, or one on the way to a longer one.
    /// - A size comes with its bytes: a byte that was beyond the end shows a content that the file
    ///   had there since it last grew over it, never a zero that no operation wrote.
    /// - Any other byte is one that the file had there since the sync: an overwrite may be there in
    ///   part.
    /// - A truncation that came later may have left zeros in what became its last block.
    /// - What an operation has settled is there if names and attributes are those of a later one.
    ///
    /// # Errors
    /// What cannot be.
    pub fn judge_named(&self, found: &[u8], known: Known) -> Result<(), String> {
        let at_most = |op: usize| self.moments.iter().rposition(|m| m.op <= op).unwrap_or(0);
        let first = at_most(known.synced);
        let last = at_most(known.begun).max(first);
        let window = Window {
            moments: &self.moments[first..=last],
            named: at_most(known.named).clamp(first, last) - first,
            block: self.block,
        };
        window.judge(found).map_err(|said| {
            let shown = |m: &Moment| format!("{}: {} ({})", m.op, m.what, m.content.len());
            let ops: Vec<String> = window.moments.iter().map(shown).collect();
            format!("{said}\nsynced, and since then:\n  {}", ops.join("\n  "))
        })
    }
}

/// The moments that a crash may show something of.
struct Window<'a> {
    moments: &'a [Moment],
    /// The last of them whose size may be there.
    named: usize,
    block: usize,
}

impl Window<'_> {
    fn judge(&self, found: &[u8]) -> Result<(), String> {
        let len = |at: usize| self.moments[at].content.len();
        let settled = (0..=self.named).rfind(|at| self.moments[*at].settles.size).unwrap_or(0);
        let possible = |at: &usize| match at.checked_sub(1) {
            Some(before) if len(before) < len(*at) && !self.moments[*at].settles.size => {
                (len(before) + 1..=len(*at)).contains(&found.len())
            }
            _ => len(*at) == found.len(),
        };
        let mut said = format!("{} bytes, which it never had", found.len());
        for at in (settled..=self.named).filter(possible) {
            match self.judge_bytes(at, found) {
                Ok(()) => return Ok(()),
                Err(wrong) => said = wrong,
            }
        }
        Err(said)
    }

    /// Judges the bytes of a file whose size is that of moment `sized`, or on the way to it.
    fn judge_bytes(&self, sized: usize, found: &[u8]) -> Result<(), String> {
        let places = self.places(found.len());
        for (&start, &end) in places.iter().zip(&places[1..]) {
            let grown = self.moments[..=sized].iter().rposition(|m| m.content.len() <= start);
            let settled = self.moments[..=self.named].iter().rposition(|m| m.settles.bytes.contains(&start));
            let since = grown.map_or(0, |at| at + 1).max(settled.unwrap_or(0));
            let zeroed = self.moments[sized + 1..].iter().any(|m| {
                let len = m.content.len();
                (len..len.next_multiple_of(self.block)).contains(&start)
            });
            let whole = |m: &Moment| m.content.get(start..end) == Some(&found[start..end]);
            if self.moments[since..].iter().any(whole) {
                continue;
            }
            for (at, byte) in (start..).zip(&found[start..end]) {
                let shown = self.shown(since, at);
                if !(zeroed && *byte == 0 || shown.contains(byte)) {
                    return Err(wrong(found, at, &shown, &self.moments[sized].what));
                }
            }
        }
        Ok(())
    }

    /// Places between any two of which the same moments have bytes, and the same ones settle them.
    fn places(&self, len: usize) -> Vec<usize> {
        let sizes = || self.moments.iter().map(|m| m.content.len());
        let tails = sizes().map(|size| size.next_multiple_of(self.block));
        let bounds = self.moments.iter().flat_map(|m| [m.settles.bytes.start, m.settles.bytes.end]);
        let mut places: Vec<usize> = sizes().chain(tails).chain(bounds).chain([0, len]).collect();
        places.retain(|place| *place <= len);
        places.sort_unstable();
        places.dedup();
        places
    }

    /// The bytes that may be at `at`: those of the moments from `since` on. A move that did not
    /// come to be leaves the byte where it was, but what was written later, or zeroed by a
    /// truncation, was written to where the move would have put it.
    fn shown(&self, since: usize, at: usize) -> Vec<u8> {
        let mut shown = Vec::new();
        let mut moved = at;
        for (number, moment) in self.moments.iter().enumerate() {
            if number > self.named
                && let Some((from, to)) = moment.settles.moved.filter(|(from, _)| moved >= *from)
            {
                moved = moved - from + to;
            }
            let len = moment.content.len();
            if number > self.named && (len..len.next_multiple_of(self.block)).contains(&moved) {
                shown.push(0);
            }
            if number >= since {
                shown.extend([at, moved].iter().filter_map(|at| moment.content.get(*at)));
            }
        }
        shown.dedup();
        shown
    }
}

fn wrong(found: &[u8], at: usize, shown: &[u8], sized: &str) -> String {
    let byte = found[at];
    let run = found[at..].iter().take_while(|b| **b == byte).count();
    let len = found.len();
    format!(
        "{len} bytes ({sized}): byte {at} and {} behind it are {byte:#04x}, not one of {shown:02x?}",
        run - 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_crash_may_leave() {
        let mut file = Tracked::new(4, vec![1; 10]);
        file.record(3, "append", [vec![1; 10], vec![2; 10]].concat());
        file.record(4, "overwrite", [vec![4; 5], vec![1; 5], vec![2; 10]].concat());
        file.record(7, "truncate", vec![4; 3]);
        let ok = |found: &[u8], synced, begun| file.judge(found, synced, begun).is_ok();
        assert!(ok(&[1; 10], 0, 3) && ok(&[1; 10], 2, 4));
        assert!(ok(&[[1; 10], [2; 10]].concat(), 0, 3));
        // A part of the append, a part of the overwrite; but no hole before what came behind.
        assert!(ok(&[1, 4, 4, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2], 0, 4));
        assert!(!ok(&[1, 4, 4, 1, 1, 1, 1, 1, 1, 1, 0, 0, 2, 2], 0, 4));
        // The overwrite had not begun; a size that never was; a byte that never was; a zero inside.
        assert!(!ok(&[4; 10], 0, 3));
        assert!(!ok(&[1; 9], 0, 4) && !ok(&[1; 21], 0, 4));
        assert!(!ok(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 7], 0, 4));
        assert!(!ok(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 0], 0, 4));
        // What was synced.
        assert!(!ok(&[1; 10], 3, 4) && !ok(&[[1; 10], [0; 10]].concat(), 3, 4));
        assert!(ok(&[4; 3], 4, 7) && !ok(&[4; 3], 4, 6));
        // The truncation zeroes the rest of its last block first, and no more.
        assert!(ok(&[&[4, 4, 4, 0, 4][..], &[1; 5], &[2; 10]].concat(), 4, 7));
        assert!(!ok(&[&[4, 4, 4, 0, 0][..], &[1; 5], &[2; 10]].concat(), 4, 7));
    }

    #[test]
    fn what_grew_again_shows_what_was_written_then() {
        let mut file = Tracked::new(4, vec![1; 8]);
        file.record(1, "truncate", vec![1; 2]);
        file.record(2, "append", [vec![1; 2], vec![3; 10]].concat());
        let ok = |found: &[u8]| file.judge(found, 0, 2).is_ok();
        assert!(ok(&[1, 1, 3, 3, 3, 3]) && ok(&[1, 1]));
        assert!(!ok(&[1, 1, 1, 1, 3, 3]) && !ok(&[1, 1, 0, 0, 3, 3]));
        // The old size, and in its first block what is new.
        assert!(ok(&[1, 1, 3, 3, 1, 1, 1, 1]) && ok(&[1, 1, 0, 0, 1, 1, 1, 1]));
    }

    #[test]
    fn what_is_settled_is_there() {
        let mut file = Tracked::new(4, vec![1; 8]);
        file.record(1, "append", vec![1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
        let settles = Settles { size: true, bytes: 2..usize::MAX, moved: None };
        file.record_settled(2, "truncate", vec![1; 2], settles);
        let settles = Settles { bytes: 0..1, ..Settles::default() };
        file.record_settled(3, "punch", vec![0, 1], settles);
        file.record(4, "write", vec![0, 4]);
        let ok = |found: &[u8], named| file.judge_named(found, Known { synced: 0, named, begun: 4 }).is_ok();
        assert!(ok(&[1; 8], 1) && ok(&[1, 4, 1, 1, 1, 1, 1, 1], 1));
        assert!(!ok(&[1; 8], 2) && ok(&[1; 2], 2) && ok(&[0, 4], 2));
        assert!(!ok(&[1; 2], 3) && ok(&[0, 1], 3) && ok(&[0, 4], 4));
        assert!(!ok(&[1; 2], 1), "a size that is not committed");
    }

    #[test]
    fn what_was_written_behind_a_move_may_be_before_it() {
        let mut file = Tracked::new(2, vec![1, 1, 2, 2, 3, 3, 4]);
        let settles = Settles { size: true, bytes: 2..usize::MAX, moved: Some((4, 2)) };
        file.record_settled(1, "collapse", vec![1, 1, 3, 3, 4], settles);
        file.record(2, "write", vec![1, 1, 9, 9, 4]);
        let ok = |found: &[u8], named| file.judge_named(found, Known { synced: 0, named, begun: 2 }).is_ok();
        assert!(ok(&[1, 1, 2, 2, 9, 3, 4], 0) && !ok(&[1, 1, 2, 2, 9, 3, 4], 1));
        assert!(ok(&[1, 1, 9, 3, 4], 1) && !ok(&[1, 1, 2, 2, 4], 1));
    }
}
