//! Makes snapshots of a file's map ([`Snapshot`](crate::fs::file::snapshot::Snapshot)).

use super::NOT_OVERWRITTEN;
use super::content::Content;
use crate::error::Result;
use crate::fs::file::snapshot::{MAX_RUNS, Run};
use crate::store::map::{Mapping, lookup, max_blocks};

impl Content<'_> {
    /// Counts a lookup that the snapshot could not answer, and makes a new snapshot after enough of
    /// them. Returns whether it did.
    pub(super) fn miss(self) -> bool {
        let snapshot = &self.file.snapshot;
        let Some(generation) = snapshot.miss() else { return false };
        // While a block of the map cannot be read, the file has no snapshot. The lookup that needs
        // the block reports the error, and no other does.
        let Ok(runs) = self.walk() else {
            snapshot.not_read();
            return false;
        };
        snapshot.expect(runs.as_ref().map(Vec::len));
        let Some(runs) = runs else { return false };
        let _state = self.node.state();
        snapshot.publish(runs, generation);
        true
    }

    /// Returns all runs of a file that may be overwritten; `None` if there are too many.
    fn walk(self) -> Result<Option<Vec<Run>>> {
        let fs = self.fs();
        let mut runs: Vec<Run> = Vec::new();
        let mut lblk = 0;
        for _ in 0..MAX_RUNS {
            let state = self.node.state();
            if state.flags.intersects(NOT_OVERWRITTEN) {
                return Ok(Some(Vec::new()));
            }
            let blocks =
                state.size.div_ceil(u64::from(fs.block_size)).min(max_blocks(fs, state.flags).into()) as u32;
            if lblk >= blocks {
                return Ok(Some(runs));
            }
            let mapping = lookup(fs, &state, lblk)?;
            drop(state);
            if let Mapping::Mapped { block, len, unwritten: false } = mapping {
                match runs.last_mut() {
                    Some(last)
                        if last.lblk + last.len == lblk && last.block + u64::from(last.len) == block =>
                    {
                        last.len += len;
                    }
                    _ => runs.push(Run { lblk, len, block }),
                }
            }
            lblk = lblk.saturating_add(mapping.len());
        }
        Ok(None)
    }
}
