//! The content of recovered volumes, by the crash state that they were recovered from.
//!
//! A recovery has no other input than the state: no thread, no clock, no setting of the case. Most
//! cases have states in common, because the same workload runs in many settings, and its first
//! steps in many workloads. Each case asks the oracle about each of its states; the recovery, the
//! walk and the check of a state are done once for as long as its content is remembered.

use super::observed::Observed;
use std::collections::HashMap;
use std::sync::Arc;

/// The key of a state's content: the shape of the volume, the fingerprint of the state, the unit
/// that its device writes whole, and the alignment that it asks for.
pub(super) type StateKey = (&'static str, u64, usize, usize);

/// States of each of the two generations that are remembered.
const GENERATION: usize = 1024;

/// The recoveries of the last states. A state that is asked for again stays.
#[derive(Debug, Default)]
pub(super) struct Recoveries {
    young: HashMap<StateKey, Arc<Observed>>,
    old: HashMap<StateKey, Arc<Observed>>,
}

impl Recoveries {
    /// Returns what was found after the recovery of a state, or finds it by `recover`. An error is
    /// not remembered.
    ///
    /// # Errors
    /// That of `recover`.
    pub(super) fn find(
        &mut self,
        key: StateKey,
        recover: impl FnOnce() -> Result<Observed, String>,
    ) -> Result<Arc<Observed>, String> {
        if let Some(known) = self.young.get(&key) {
            return Ok(Arc::clone(known));
        }
        let found = match self.old.remove(&key) {
            Some(known) => known,
            None => Arc::new(recover()?),
        };
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, Arc::clone(&found));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_is_asked_for_again_stays() {
        let mut recoveries = Recoveries::default();
        let mut made = Vec::new();
        let key = |number: usize| ("small", number as u64, 512, 1);
        for number in (0..10 * GENERATION).flat_map(|number| [number, 0]).chain([1]) {
            let recover = || {
                made.push(number);
                Ok(Observed::default())
            };
            recoveries.find(key(number), recover).unwrap();
        }
        let times = |wanted| made.iter().filter(|number| **number == wanted).count();
        assert_eq!((times(0), times(1), times(2)), (1, 2, 1));
        assert!(recoveries.young.len() + recoveries.old.len() <= 2 * GENERATION);
        assert!(recoveries.find(key(usize::MAX), || Err("no".into())).is_err());
        assert!(recoveries.find(key(usize::MAX), || Ok(Observed::default())).is_ok());
        // Another shape, unit or alignment is another state.
        for other in [("full", 0, 512, 1), ("small", 0, 8, 1), ("small", 0, 512, 512)] {
            assert!(recoveries.find(other, || Err("no".into())).is_err());
        }
    }
}
