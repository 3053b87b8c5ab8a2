//! [`Stats`] as a table and as JSON: one list of names for both.

use super::Stats;
use lanefs_stats::Snapshot;
use std::fmt::{self, Write};
use std::time::Duration;

impl Stats {
    /// Returns all histograms by name.
    pub fn histograms(&self) -> impl Iterator<Item = (&'static str, &Snapshot)> {
        let (own, journal) = (&self.times, &self.journal.times);
        [
            ("open", &own.open),
            ("read", &own.read),
            ("read_direct", &own.read_direct),
            ("write", &own.write),
            ("write_direct", &own.write_direct),
            ("fsync", &own.fsync),
            ("fdatasync", &own.fdatasync),
            ("load", &own.load),
            ("range_wait", &own.range_wait),
            ("throttle", &own.throttle),
            ("reserve", &own.reserve),
            ("writeback", &own.writeback),
            ("journal_start", &journal.start),
            ("credit_wait", &journal.credit_wait),
            ("commit_wait", &journal.commit_wait),
            ("commit", &journal.commit),
            ("commit_lock_down", &journal.lock_down),
            ("commit_log_write", &journal.log_write),
            ("commit_ordered_data", &journal.ordered_data),
            ("commit_flush", &journal.flush),
            ("commit_block", &journal.commit_block),
            ("checkpoint", &journal.checkpoint),
        ]
        .into_iter()
    }

    /// Returns the counters by name: how often each event happened since the volume was opened.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let (counts, cache, journal) = (&self.counts, &self.cache, &self.journal);
        [
            ("handles", journal.handles),
            ("restarts", journal.restarts),
            ("credits_asked", journal.credits_asked),
            ("credits_used", journal.credits_used),
            ("credits_overdrawn", journal.credits_overdrawn),
            ("credit_waits", journal.waits),
            ("commits", journal.commits),
            ("blocks_journalled", journal.blocks_logged),
            ("revokes", journal.revokes),
            ("checkpoints", journal.checkpoints),
            ("blocks_checkpointed", journal.blocks_checkpointed),
            ("metadata_blocks_read", journal.blocks_read),
            ("flushes", journal.flushes),
            ("overwrites", counts.overwrites),
            ("overwrites_journalled", counts.overwrites_journalled),
            ("versions_journalled", counts.versions_journalled),
            ("range_retries", counts.range_retries),
            ("space_retries", counts.space_retries),
            ("bytes_written_back", counts.bytes_written_back),
            ("cache_hits", cache.hits),
            ("cache_misses", cache.misses),
            ("cache_pages_evicted", cache.evicted),
        ]
        .into_iter()
    }

    /// Returns the gauges, by name.
    pub fn levels(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let (cache, journal) = (&self.cache, &self.journal.levels);
        [
            ("log_blocks", journal.log_blocks),
            ("log_blocks_used", journal.log_blocks_used),
            ("blocks_to_checkpoint", journal.blocks_to_checkpoint),
            ("blocks_in_memory", journal.blocks_in_memory),
            ("handles_open", journal.handles_open),
            ("handles_waiting", journal.handles_waiting),
            ("credits_taken", journal.credits_taken),
            ("credits_limit", journal.credits_limit),
            ("cache_bytes_used", cache.used),
            ("cache_bytes_dirty", cache.dirty),
            ("cache_bytes_dirty_limit", cache.dirty_limit),
            ("cache_files_dirty", cache.dirty_files),
        ]
        .into_iter()
    }

    /// Returns how the volume reaches its device, in the words of the option `io=`; `memory` for a
    /// medium without a page cache.
    fn io(&self) -> String {
        self.cached.map_or_else(|| "memory".into(), |cached| cached.to_string())
    }

    /// Returns one line of JSON: `io` (`buffered`, `mixed`, `direct` or `memory`); `counters` and
    /// `levels` by name; `histograms` by name with `count`
    /// (runs), `timed` (those that were timed), `running` (not ended yet), `sum`, `mean`, `p50`,
    /// `p99`, `p999` and `max` in nanoseconds, and `buckets` that are not empty: first and last
    /// value, and count.
    pub fn to_json(&self) -> String {
        let mut text = format!("{{\"io\":\"{}\",\"counters\":{{", self.io());
        for (i, (name, n)) in self.counters().enumerate() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{}\"{name}\":{n}", comma(i));
        }
        text.push_str("},\"levels\":{");
        for (i, (name, n)) in self.levels().enumerate() {
            let _ = write!(text, "{}\"{name}\":{n}", comma(i));
        }
        text.push_str("},\"histograms\":{");
        for (i, (name, histogram)) in self.histograms().enumerate() {
            let _ = write!(text, "{}\"{name}\":{}", comma(i), Json(histogram));
        }
        text.push_str("}}");
        text
    }
}

fn comma(i: usize) -> &'static str {
    if i == 0 { "" } else { "," }
}

struct Json<'a>(&'a Snapshot);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.0;
        write!(
            f,
            "{{\"count\":{},\"timed\":{},\"running\":{},\"sum\":{},\"mean\":{}",
            of.count,
            of.timed,
            of.running,
            of.sum,
            of.mean()
        )?;
        for (name, q) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
            write!(f, ",\"{name}\":{}", of.quantile(q))?;
        }
        write!(f, ",\"max\":{},\"buckets\":[", of.max)?;
        for (i, bucket) in of.buckets().enumerate() {
            write!(f, "{}[{},{},{}]", comma(i), bucket.values.start(), bucket.values.end(), bucket.count)?;
        }
        f.write_str("]}")
    }
}

/// A line for each histogram and number that is not zero.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<20} {:>12}", "io", self.io())?;
        writeln!(f, "{:<20} {:>12} {:>10} {:>10} {:>10} {:>10}", "", "times", "p50", "p99", "p99.9", "max")?;
        for (name, of) in self.histograms().filter(|(_, of)| of.count > 0) {
            write!(f, "{name:<20} {:>12}", of.count)?;
            for nanos in [of.quantile(0.5), of.quantile(0.99), of.quantile(0.999), of.max] {
                write!(f, " {:>10}", format!("{:.1?}", Duration::from_nanos(nanos)))?;
            }
            writeln!(f)?;
        }
        for (name, n) in self.counters().chain(self.levels()).filter(|(_, n)| *n > 0) {
            writeln!(f, "{name:<20} {n:>12}")?;
        }
        Ok(())
    }
}
