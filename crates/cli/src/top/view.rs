//! Shows the difference between two samples of a mount as lines of text.
//!
//! Waits are counted in threads: how many wait now, and how many waited on average. The average is
//! the sum of all waiting times divided by the time between the samples.

use super::sample::Sample;
use crate::quote::escaped;
use crate::size::human;
use lanefs_stats::figure;
use lanefs_stats::hist::Hist;
use std::fmt::Write;
use std::time::Duration;

/// Kinds of requests, by the names of the histograms and in words.
const WORK: [(&str, &str); 8] = [
    ("open", "open"),
    ("read", "read"),
    ("read_direct", "read, direct"),
    ("write", "write"),
    ("write_direct", "write, direct"),
    ("fsync", "fsync"),
    ("fdatasync", "fdatasync"),
    ("journal_start", "start a handle"),
];

/// Events that threads wait for.
const WAITS: [(&str, &str); 9] = [
    ("credit_wait", "credits of the journal"),
    ("commit_wait", "a commit"),
    ("range_wait", "the lock of a file's bytes"),
    ("throttle", "memory: too much is dirty"),
    ("load", "reads of the device"),
    ("writeback", "writing data out"),
    ("commit_ordered_data", "data before a commit"),
    ("commit_flush", "the flush before a commit block"),
    ("commit_block", "a commit block, durable"),
];

/// The difference between two samples.
pub(crate) struct View<'a> {
    before: &'a Sample,
    now: &'a Sample,
    seconds: f64,
}

impl<'a> View<'a> {
    pub(crate) fn new(before: &'a Sample, now: &'a Sample) -> Self {
        // Of another mount at the same place nothing is less.
        let seconds = (now.seconds - before.seconds).max(1e-3);
        Self { before, now, seconds }
    }

    fn rate(&self, of: impl Fn(&Sample) -> u64) -> f64 {
        of(self.now).saturating_sub(of(self.before)) as f64 / self.seconds
    }

    fn counted(&self, name: &str) -> f64 {
        self.rate(|sample| sample.counter(name))
    }

    /// Returns the values that a histogram gained between the samples, and how many operations run
    /// now.
    fn times(&self, name: &str) -> (Hist, u64) {
        let Some(now) = self.now.stats.histograms.get(name) else { return Default::default() };
        let before = self.before.stats.histograms.get(name);
        (before.map_or_else(|| now.hist.clone(), |old| now.hist.since(&old.hist)), now.running)
    }

    /// Returns the lines, not cut to any width.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = self.head();
        lines.push(String::new());
        lines.extend(self.journal());
        lines.extend(self.memory());
        lines.push(String::new());
        lines.push(format!(
            "{:<34}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "", "a second", "p50", "p99", "p99.9", "longest"
        ));
        lines.extend(WORK.iter().map(|(name, words)| self.work(name, words)));
        lines.push(String::new());
        lines.push(format!(
            "{:<34}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "threads that wait for", "now", "mean", "a second", "p50", "p99"
        ));
        lines.extend(WAITS.iter().map(|(name, words)| self.wait(name, words)));
        lines
    }

    fn head(&self) -> Vec<String> {
        let now = self.now;
        let mut first = format!("{} on {}", escaped(now.volume.as_bytes()), escaped(now.dir.as_bytes()));
        if now.read_only {
            first.push_str(", read-only");
        }
        let _ = write!(first, ", for {}, by process {}", uptime(now.seconds), now.pid);
        if let Some(address) = &now.metrics {
            let _ = write!(first, ", metrics at {}", escaped(address.as_bytes()));
        }
        let second = format!(
            "requests {}/s   threads {} of {} at work   open files {}   inodes {}",
            figure(self.rate(|s| s.requests)),
            now.threads_busy,
            now.threads,
            now.open_files,
            now.nodes
        );
        vec![first, second]
    }

    fn journal(&self) -> Vec<String> {
        let level = |name| self.now.level(name);
        let (asked, used) = (self.counted("credits_asked"), self.counted("credits_used"));
        let handles = self.counted("handles");
        let each =
            |credits: f64| if handles > 0.0 { format!("{:.1}", credits / handles) } else { "-".into() };
        let log = match level("log_blocks") {
            0 => "no log".to_owned(),
            all => format!("{} of {all} blocks in use", level("log_blocks_used")),
        };
        vec![
            format!(
                "journal  {} {log}, {} not checkpointed   commits {}/s   checkpoints {}/s   blocks {}/s",
                bar(level("log_blocks_used"), level("log_blocks")),
                level("blocks_to_checkpoint"),
                figure(self.counted("commits")),
                figure(self.counted("checkpoints")),
                figure(self.counted("blocks_journalled"))
            ),
            format!(
                "credits  {} {} of {} taken   handles {} open, {} waiting, {}/s   credits of each: {} asked, {} used",
                bar(level("credits_taken"), level("credits_limit")),
                level("credits_taken"),
                level("credits_limit"),
                level("handles_open"),
                level("handles_waiting"),
                figure(handles),
                each(asked),
                each(used)
            ),
        ]
    }

    fn memory(&self) -> Vec<String> {
        let level = |name| self.now.level(name);
        let (hits, misses) = (self.counted("cache_hits"), self.counted("cache_misses"));
        let share =
            if hits + misses > 0.0 { format!("{:.0} %", 100.0 * hits / (hits + misses)) } else { "-".into() };
        vec![format!(
            "dirty    {} {} of {} in {} files   written back {}/s   cache {}   hits {share}   overwrites {}/s",
            bar(level("cache_bytes_dirty"), level("cache_bytes_dirty_limit")),
            human(level("cache_bytes_dirty")),
            human(level("cache_bytes_dirty_limit")),
            level("cache_files_dirty"),
            human(self.counted("bytes_written_back") as u64),
            human(level("cache_bytes_used")),
            figure(self.counted("overwrites")),
        )]
    }

    fn work(&self, name: &str, words: &str) -> String {
        let (hist, _) = self.times(name);
        let mut line = format!("{words:<34}{:>10}", figure(hist.count as f64 / self.seconds));
        for q in [0.5, 0.99, 0.999, 1.0] {
            let _ = write!(line, "{:>10}", time(&hist, q));
        }
        line
    }

    fn wait(&self, name: &str, words: &str) -> String {
        let (hist, running) = self.times(name);
        format!(
            "  {words:<32}{running:>10}{:>10}{:>10}{:>10}{:>10}",
            figure(hist.sum as f64 / 1e9 / self.seconds),
            figure(hist.count as f64 / self.seconds),
            time(&hist, 0.5),
            time(&hist, 0.99)
        )
    }
}

/// Returns a quantile; an empty string if nothing was timed.
fn time(hist: &Hist, q: f64) -> String {
    if hist.timed == 0 {
        return "-".into();
    }
    let nanos = if q >= 1.0 { hist.max } else { hist.quantile(q) };
    format!("{:.1?}", Duration::from_nanos(nanos))
}

/// Draws the share of `part` in `all`, in twenty columns.
fn bar(part: u64, all: u64) -> String {
    const WIDTH: u64 = 20;
    let share = u128::from(part) * u128::from(WIDTH) / u128::from(all.max(1));
    // A little is to be seen too.
    let filled = (share as u64).clamp(u64::from(part > 0), WIDTH) as usize;
    format!("[{:<1$}]", "|".repeat(filled), WIDTH as usize)
}

fn uptime(seconds: f64) -> String {
    let s = seconds as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, fsyncs: u64) -> Sample {
        let json = format!(
            "{{\"volume\":\"/v.img\",\"dir\":\"/m\",\"read_only\":false,\"pid\":7,\"metrics\":null,\"seconds\":{seconds},\
             \"requests\":{},\"threads\":4,\"threads_busy\":1,\"open_files\":3,\"nodes\":9,\"stats\":{{\
             \"counters\":{{\"handles\":{fsyncs},\"credits_asked\":{}}},\"levels\":{{\"log_blocks\":1000,\"log_blocks_used\":250}},\
             \"histograms\":{{\"credit_wait\":{{\"count\":{fsyncs},\"timed\":{fsyncs},\"running\":5,\"sum\":{},\"mean\":0,\"p50\":0,\
             \"max\":1000000000,\"buckets\":[[900000000,1000000000,{fsyncs}]]}}}}}}}}",
            100 * fsyncs,
            8 * fsyncs,
            fsyncs * 1_000_000_000
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn rates_are_of_the_time_between_and_waits_are_threads() {
        let (before, now) = (sample(10.0, 100), sample(12.0, 140));
        let text = View::new(&before, &now).lines().join("\n");
        let line =
            |word: &str| text.lines().find(|l| l.contains(word)).unwrap_or_else(|| panic!("{word}: {text}"));
        assert!(line("requests").starts_with("requests 2000/s   threads 1 of 4 at work"), "{text}");
        assert!(line("journal").contains("[|||||               ] 250 of 1000 blocks"), "{text}");
        assert!(line("credits of each").contains("20.0/s   credits of each: 8.0 asked"), "{text}");
        // Forty waits of a second each in two seconds.
        let waits: Vec<&str> = line("credits of the journal").split_whitespace().skip(4).collect();
        assert_eq!(waits, ["5", "20.0", "20.0", "1.0s", "1.0s"], "{text}");
        assert!(line("fdatasync").trim_end().ends_with('-'), "{text}");
    }

    #[test]
    fn a_mount_that_was_made_anew_has_no_rates_below_nothing() {
        let (before, now) = (sample(1000.0, 100), sample(1.0, 2));
        assert!(View::new(&before, &now).lines().iter().all(|line| !line.contains("-1")));
    }

    #[test]
    fn bars() {
        assert_eq!(bar(0, 0), format!("[{}]", " ".repeat(20)));
        assert_eq!(bar(1, 1_000_000), format!("[|{}]", " ".repeat(19)));
        assert_eq!(bar(7, 5), format!("[{}]", "|".repeat(20)));
    }
}
