//! What a file may hold after a crash: the judge of power loss over data.

/// A file's contents over time, by the operations that made them.
#[derive(Debug)]
pub struct Tracked {
    moments: Vec<Moment>,
}

#[derive(Debug)]
struct Moment {
    op: usize,
    what: String,
    content: Vec<u8>,
}

impl Tracked {
    /// A file with this content before operation 0, which is synced.
    pub fn new(content: Vec<u8>) -> Self {
        Self { moments: vec![Moment { op: 0, what: "at first".into(), content }] }
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

    /// Whether `found` can be there after a crash, when all up to operation `synced` was synced and `begun`
    /// is the last that had begun.
    ///
    /// Of what was not synced any part may be there: each byte is one that was there since. The size is between
    /// those it had. A byte that was beyond the end may be a zero: another block behind it may have come first.
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
        let sizes = || window.iter().map(|m| m.content.len());
        let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
        let explained = |said: String| {
            let ops: Vec<String> =
                window.iter().map(|m| format!("{}: {} ({})", m.op, m.what, m.content.len())).collect();
            Err(format!("{said}\nsynced, and since then:\n  {}", ops.join("\n  ")))
        };
        if !(least..=most).contains(&found.len()) {
            return explained(format!("{} bytes, not {least} to {most}", found.len()));
        }
        let allowed = |at: usize, byte: u8| {
            window.iter().any(|m| m.content.get(at).map_or(byte == 0, |there| *there == byte))
        };
        match found.iter().enumerate().find(|(at, byte)| !allowed(*at, **byte)) {
            None => Ok(()),
            Some((at, byte)) => {
                let run = found[at..].iter().take_while(|b| *b == byte).count();
                let mut values: Vec<u8> = window.iter().filter_map(|m| m.content.get(at).copied()).collect();
                values.dedup();
                explained(format!(
                    "byte {at} and {} behind it are {byte:#04x}, not one of {values:02x?}",
                    run - 1
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_crash_may_leave() {
        let mut file = Tracked::new(vec![1; 10]);
        file.record(3, "append", [vec![1; 10], vec![2; 10]].concat());
        file.record(4, "overwrite", [vec![4; 5], vec![1; 5], vec![2; 10]].concat());
        file.record(7, "truncate", vec![4; 3]);
        let ok = |found: &[u8], synced, begun| file.judge(found, synced, begun).is_ok();
        assert!(ok(&[1; 10], 0, 3) && ok(&[1; 10], 2, 4));
        assert!(ok(&[[1; 10], [2; 10]].concat(), 0, 3));
        // A part of the append, a part of the overwrite, a hole before what came behind.
        assert!(ok(&[1, 4, 4, 1, 1, 1, 1, 1, 1, 1, 0, 0, 2, 2], 0, 4));
        // The overwrite had not begun; a size that never was; a byte that never was; a zero inside.
        assert!(!ok(&[4; 10], 0, 3));
        assert!(!ok(&[1; 9], 0, 4) && !ok(&[1; 21], 0, 4));
        assert!(!ok(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 7], 0, 4));
        assert!(!ok(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 0], 0, 4));
        // What was synced.
        assert!(!ok(&[1; 10], 3, 4) && !ok(&[[1; 10], [0; 10]].concat(), 3, 4));
        assert!(ok(&[4; 3], 4, 7) && !ok(&[4; 3], 4, 6));
    }
}
