//! Why threads stood still: names the cause of a stall from the volume's counters.

use crate::results::Detail;

/// The share of the threads' time above which a cause is named.
const MUCH: f64 = 0.2;

/// Phases of a commit, and what it means if one takes most of it.
const PHASES: [(&str, &str); 5] = [
    ("commit_lock_down", "handles of the old transaction to end"),
    ("commit_log_write", "the log to be written"),
    ("commit_ordered_data", "file data that the transaction must not overtake"),
    ("commit_flush", "the device's flush before the commit block"),
    ("commit_block", "the commit block to be durable"),
];

/// Returns a sentence without a full stop: what `threads` threads spent their time on, and why.
pub(crate) fn cause(detail: &Detail, threads: u64) -> String {
    let time = detail.seconds * threads as f64;
    let share = |name: &str| detail.spent(name) / time.max(f64::MIN_POSITIVE);
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    let (credits, commits) = (share("credit_wait"), share("commit_wait"));
    let (asked, used) = (detail.counter("credits_asked"), detail.counter("credits_used"));
    if credits >= MUCH && credits >= commits {
        // A thread that waits for credits waits for the commit of the full transaction, or for the
        // log space behind it.
        let space = detail.spent("checkpoint");
        let commit = detail.spent("commit");
        let what = if space > commit { "for log space, which checkpoints free" } else { "for commits" };
        let use_of_asked = used as f64 / asked.max(1) as f64;
        return format!(
            "{} of the time is waiting for credits, {what} ({space:.2} s in checkpoints, {commit:.2} s in {} commits): {asked} credits \
             were asked for and {} of them used, so handles that reserve a worst case fill the transactions",
            percent(credits),
            detail.counter("commits"),
            percent(use_of_asked),
        );
    }
    if commits >= MUCH {
        let phase = PHASES.iter().max_by(|a, b| detail.spent(a.0).total_cmp(&detail.spent(b.0)));
        let (phase, meaning) = phase.copied().unwrap_or(("commit", "it"));
        let part = detail.spent(phase) / detail.spent("commit").max(f64::MIN_POSITIVE);
        return format!(
            "{} of the time is waiting for {} commits, which for {} of theirs wait for {meaning}; {} is waiting for credits",
            percent(commits),
            detail.counter("commits"),
            percent(part),
            percent(credits),
        );
    }
    let writeback = share("writeback");
    if writeback >= MUCH {
        return format!(
            "{} of the time is writing data out and mapping it; {} is waiting for credits, {} for commits",
            percent(writeback),
            percent(credits),
            percent(commits),
        );
    }
    format!(
        "no wait has {}: {} is for credits, {} for commits",
        percent(MUCH),
        percent(credits),
        percent(commits)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hist::Hist;

    fn detail(spent: &[(&str, u64)]) -> Detail {
        let hist =
            |seconds: u64| Hist { count: 1, timed: 1, sum: seconds * 1_000_000_000, ..Hist::default() };
        Detail {
            seconds: 1.0,
            counters: [("credits_asked", 1000), ("credits_used", 50), ("commits", 3)]
                .map(|(name, n)| (name.to_owned(), n))
                .into(),
            histograms: spent.iter().map(|(name, s)| ((*name).to_owned(), hist(*s))).collect(),
            ..Detail::default()
        }
    }

    #[test]
    fn credits() {
        let said = cause(&detail(&[("credit_wait", 80), ("commit_wait", 10), ("commit", 1)]), 100);
        assert!(said.starts_with("80 % of the time is waiting for credits, for commits"), "{said}");
        assert!(said.contains("1000 credits were asked for and 5 % of them used"), "{said}");
        let said = cause(&detail(&[("credit_wait", 80), ("checkpoint", 2), ("commit", 1)]), 100);
        assert!(said.contains("for log space"), "{said}");
    }

    #[test]
    fn commits() {
        let said = cause(&detail(&[("commit_wait", 90), ("commit", 2), ("commit_flush", 1)]), 100);
        assert!(said.contains("3 commits") && said.contains("50 %") && said.contains("flush"), "{said}");
    }

    #[test]
    fn nothing() {
        let said = cause(&detail(&[("commit_wait", 9)]), 100);
        assert!(said.starts_with("no wait has 20 %"), "{said}");
    }
}
