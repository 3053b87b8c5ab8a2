//! What a file may hold after a crash: the judge of power loss over data.

/// A file's contents over time, by the operations that made them.
#[derive(Debug)]
pub struct Tracked {
    /// Bytes of a block.
    block: usize,
    moments: Vec<Moment>,
}

#[derive(Debug)]
struct Moment {
    op: usize,
    what: String,
    content: Vec<u8>,
}

impl Tracked {
    /// Tracks a file with blocks of `block` bytes that has this content before operation 0, which is synced.
    pub fn new(block: usize, content: Vec<u8>) -> Self {
        Self { block, moments: vec![Moment { op: 0, what: "at first".into(), content }] }
    }

    /// What it is now.
    pub fn content(&self) -> &[u8] {
        self.moments.last().map_or(&[], |m| &m.content)
    }

    /// Notes what operation `op` makes of it. Called more than once for one operation, each
    /// content is one that a crash may leave of it.
    pub fn record(&mut self, op: usize, what: impl Into<String>, content: Vec<u8>) {
        self.moments.push(Moment { op, what: what.into(), content });
    }

    /// Judges what was `found` after a crash, when all up to operation `synced` was synced and `begun` is the last that had
    /// begun. Operations come one after the other, and what was not synced may be there in part:
    ///
    /// - The size is one that the file had, or one on the way to a longer one.
    /// - A size comes with its bytes: one that was beyond the end shows what the file held there since it last grew over it,
    ///   never a zero that nobody wrote.
    /// - Any other byte is one that was there since the sync: an overwrite may be there in part.
    /// - A truncation that came later may have left zeros in what became its last block.
    ///
    /// # Errors
    /// What cannot be.
    pub fn judge(&self, found: &[u8], synced: usize, begun: usize) -> Result<(), String> {
        let first = self.moments.iter().rposition(|m| m.op <= synced).unwrap_or(0);
        let last = self.moments.iter().rposition(|m| m.op <= begun).unwrap_or(first).max(first);
        let window = &self.moments[first..=last];
        if window.iter().any(|m| m.content == found) {
            return Ok(());
        }
        let len = |at: usize| window[at].content.len();
        let possible = |at: &usize| match at.checked_sub(1) {
            Some(before) if len(before) < len(*at) => (len(before) + 1..=len(*at)).contains(&found.len()),
            _ => len(*at) == found.len(),
        };
        let mut said = format!("{} bytes, which it never had", found.len());
        for at in (0..window.len()).filter(possible) {
            match self.judge_bytes(window, at, found) {
                Ok(()) => return Ok(()),
                Err(wrong) => said = wrong,
            }
        }
        let ops: Vec<String> =
            window.iter().map(|m| format!("{}: {} ({})", m.op, m.what, m.content.len())).collect();
        Err(format!("{said}\nsynced, and since then:\n  {}", ops.join("\n  ")))
    }

    /// Judges the bytes of a file whose size is that of moment `sized`, or on the way to it.
    fn judge_bytes(&self, window: &[Moment], sized: usize, found: &[u8]) -> Result<(), String> {
        // Between two of these places the same moments have bytes.
        let tails = window.iter().map(|m| m.content.len().next_multiple_of(self.block));
        let mut places: Vec<usize> = window.iter().map(|m| m.content.len()).chain(tails).collect();
        places.extend([0, found.len()]);
        places.retain(|place| *place <= found.len());
        places.sort_unstable();
        places.dedup();
        for (start, end) in places.iter().zip(&places[1..]) {
            let grown = window[..=sized].iter().rposition(|m| m.content.len() <= *start);
            let since = grown.map_or(0, |at| at + 1);
            let shown: Vec<&[u8]> =
                window[since..].iter().filter_map(|m| m.content.get(*start..*end)).collect();
            let zeroed = window[sized + 1..].iter().any(|m| {
                let len = m.content.len();
                (len..len.next_multiple_of(self.block)).contains(start)
            });
            for (at, byte) in found[*start..*end].iter().enumerate() {
                let may_be = zeroed && *byte == 0 || shown.iter().any(|bytes| bytes[at] == *byte);
                if !may_be {
                    return Err(wrong(found, start + at, &shown, at, &window[sized].what));
                }
            }
        }
        Ok(())
    }
}

fn wrong(found: &[u8], at: usize, shown: &[&[u8]], inner: usize, sized: &str) -> String {
    let byte = found[at];
    let run = found[at..].iter().take_while(|b| **b == byte).count();
    let mut values: Vec<u8> = shown.iter().map(|bytes| bytes[inner]).collect();
    values.dedup();
    let len = found.len();
    format!(
        "{len} bytes ({sized}): byte {at} and {} behind it are {byte:#04x}, not one of {values:02x?}",
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
}
