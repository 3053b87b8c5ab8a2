//! The counters that a volume moved during a run.

use crate::Outcome;
use crate::hist::Hist;
use crate::results::Detail;
use crate::store::Store;
use std::collections::BTreeMap;
use std::time::Instant;

struct Reading {
    counters: BTreeMap<String, u64>,
    histograms: BTreeMap<String, Hist>,
}

impl Reading {
    fn of(store: &dyn Store) -> Option<Self> {
        let stats = store.volume()?.stats();
        Some(Self {
            counters: stats.counters().map(|(name, n)| (name.to_owned(), n)).collect(),
            histograms: stats.histograms().map(|(name, of)| (name.to_owned(), of.into())).collect(),
        })
    }
}

/// Runs `f` and says what the volume counted meanwhile; a store that is no volume of lanefs counts
/// nothing.
///
/// # Errors
/// The errors of `f`.
pub(crate) fn counted<T>(store: &dyn Store, f: impl FnOnce() -> Outcome<T>) -> Outcome<(T, Detail)> {
    let before = Reading::of(store);
    let began = Instant::now();
    let value = f()?;
    let mut detail = Detail { seconds: began.elapsed().as_secs_f64(), ..Detail::default() };
    if let (Some(before), Some(after)) = (before, Reading::of(store)) {
        for (name, n) in after.counters {
            let old = before.counters.get(&name).copied().unwrap_or(0);
            detail.counters.insert(name, n.saturating_sub(old));
        }
        for (name, hist) in after.histograms {
            let more = match before.histograms.get(&name) {
                Some(old) => hist.since(old),
                None => hist,
            };
            if more.count > 0 {
                detail.histograms.insert(name, more);
            }
        }
    }
    Ok((value, detail))
}
