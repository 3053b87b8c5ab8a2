//! The text that Prometheus reads (exposition format 0.0.4).
//!
//! Counters are `lanefs_NAME_total`, levels `lanefs_NAME`. All histograms are one,
//! `lanefs_operation_seconds`, by the label `op`: its count is that of the timed operations, of
//! reads and writes one in 64. `lanefs_operations_total` counts all operations.

use lanefs_fuse::MountStats;
use std::fmt::{self, Write};

/// Powers of two of nanoseconds at which the buckets end: 1 µs to 69 s, by four.
const ENDS: std::ops::RangeInclusive<u32> = 5..=18;

/// A value of a label, between its quotes.
struct Label<'a>(&'a str);

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

// Writing to a String cannot fail.
pub(super) fn text(volume: &str, dir: &str, stats: &MountStats) -> String {
    let mut out = String::new();
    family(&mut out, "lanefs_mount_info", "gauge", "The mount.");
    let _ = writeln!(
        out,
        "lanefs_mount_info{{version=\"{}\",volume=\"{}\",mountpoint=\"{}\"}} 1",
        env!("CARGO_PKG_VERSION"),
        Label(volume),
        Label(dir)
    );
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        family(&mut out, name, kind, help);
        let _ = writeln!(out, "{name} {value}");
    };
    one("lanefs_requests_total", "counter", "Requests of the kernel.", stats.requests);
    one("lanefs_threads", "gauge", "Threads that serve.", stats.threads);
    one("lanefs_threads_busy", "gauge", "Threads that are at work.", stats.threads_busy);
    one("lanefs_open_files", "gauge", "Open files.", stats.open_files);
    one("lanefs_nodes", "gauge", "Inodes that the kernel knows.", stats.nodes);
    for (name, value) in stats.volume.counters() {
        one(&format!("lanefs_{name}_total"), "counter", &format!("{}, since the mount.", words(name)), value);
    }
    for (name, value) in stats.volume.levels() {
        one(&format!("lanefs_{name}"), "gauge", &format!("{}, now.", words(name)), value);
    }
    operations(&mut out, stats);
    out
}

fn operations(out: &mut String, stats: &MountStats) {
    family(out, "lanefs_operations_total", "counter", "Operations, timed or not.");
    for (op, of) in stats.volume.histograms() {
        let _ = writeln!(out, "lanefs_operations_total{{op=\"{op}\"}} {}", of.count);
    }
    family(
        out,
        "lanefs_operations_running",
        "gauge",
        "Operations that have begun and not ended, where all are timed.",
    );
    for (op, of) in stats.volume.histograms() {
        let _ = writeln!(out, "lanefs_operations_running{{op=\"{op}\"}} {}", of.running);
    }
    family(out, "lanefs_operation_seconds", "histogram", "How long operations took that were timed.");
    for (op, of) in stats.volume.histograms() {
        let mut buckets = of.buckets().peekable();
        let mut seen = 0;
        for power in ENDS.map(|step| 2 * step) {
            let end = (1_u64 << power) - 1;
            while let Some(bucket) = buckets.next_if(|b| *b.values.end() <= end) {
                seen += bucket.count;
            }
            let _ = writeln!(
                out,
                "lanefs_operation_seconds_bucket{{op=\"{op}\",le=\"{}\"}} {seen}",
                seconds(end)
            );
        }
        let _ = writeln!(out, "lanefs_operation_seconds_bucket{{op=\"{op}\",le=\"+Inf\"}} {}", of.timed);
        let _ = writeln!(out, "lanefs_operation_seconds_sum{{op=\"{op}\"}} {}", seconds(of.sum));
        let _ = writeln!(out, "lanefs_operation_seconds_count{{op=\"{op}\"}} {}", of.timed);
    }
}

fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Returns a name as words.
fn words(name: &str) -> String {
    let text = name.replace('_', " ");
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + letters.as_str())
}

/// Formats nanoseconds as seconds, exactly.
fn seconds(nanos: u64) -> String {
    let text = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact_and_labels_stay_in_their_quotes() {
        assert_eq!([0, 1023, 1_500_000_000, 69_000_000_000].map(seconds), ["0", "0.000001023", "1.5", "69"]);
        assert_eq!(Label("a\"b\\c\nd").to_string(), "a\\\"b\\\\c\\nd");
    }
}
