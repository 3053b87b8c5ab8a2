//! Results as text: tables, and bars for a terminal.

use crate::results::{CaseResult, Chart, ExperimentResult, Origin, Series, Verdict};
use std::collections::BTreeSet;
use std::fmt::Write;

pub use lanefs_stats::figure;

/// Returns the places of all series of a chart, in order.
pub fn places(chart: &Chart) -> Vec<u64> {
    let all: BTreeSet<u64> = chart.series.iter().flat_map(|s| &s.points).map(|p| p.at).collect();
    all.into_iter().collect()
}

/// Returns the name, with its origin if it was not measured.
pub fn label(series: &Series) -> String {
    match series.origin {
        Origin::Measured => series.name.clone(),
        Origin::Simulated => format!("{} [simulated]", series.name),
        Origin::Published => format!("{} [published]", series.name),
        Origin::Predicted => format!("{} [predicted]", series.name),
    }
}

/// Returns a case as tables: medians, and how far samples are from the middle of their range, in
/// percent of the median.
pub fn case(case: &CaseResult) -> String {
    let mut text = String::new();
    for chart in case.charts.iter().filter(|c| !c.series.is_empty()) {
        table(&mut text, chart);
        verdicts(&mut text, case.verdicts.iter().filter(|v| v.chart == chart.name), &chart.axis);
        text.push('\n');
    }
    text
}

// Writing to a String cannot fail.
fn table(text: &mut String, chart: &Chart) {
    let _ = writeln!(text, "{} ({})", chart.title, chart.unit);
    let width =
        chart.series.iter().map(|s| label(s).chars().count()).max().unwrap_or(0).max(chart.axis.len());
    let places = places(chart);
    let _ = write!(text, "  {:<width$}", chart.axis);
    for at in &places {
        let _ = write!(text, " {at:>13}");
    }
    text.push('\n');
    for series in &chart.series {
        let _ = write!(text, "  {:<width$}", label(series));
        for at in &places {
            let cell = series.at(*at).map_or_else(String::new, |p| {
                let spread = 50.0 * (p.max - p.min) / p.median.abs().max(f64::MIN_POSITIVE);
                let exact = p.samples.len() < 2 || p.max <= p.min;
                if exact {
                    figure(p.median)
                } else {
                    format!("{} ±{:.0}%", figure(p.median), spread.min(999.0))
                }
            });
            let _ = write!(text, " {cell:>13}");
        }
        text.push('\n');
    }
}

fn verdicts<'a>(text: &mut String, of: impl Iterator<Item = &'a Verdict>, axis: &str) {
    let mut pair = ("", "");
    let mut open = false;
    for verdict in of {
        if pair != (&*verdict.this, &*verdict.that) {
            pair = (&verdict.this, &verdict.that);
            let _ = write!(text, "{}  {} over {}:", if open { "\n" } else { "" }, pair.0, pair.1);
            open = true;
        } else {
            text.push(',');
        }
        let _ = write!(text, " {}", said(verdict, axis));
    }
    if open {
        text.push('\n');
    }
}

fn said(verdict: &Verdict, axis: &str) -> String {
    let axis = axis.split(' ').next().unwrap_or(axis);
    if verdict.seen {
        format!("{:.2} at {} {axis}", verdict.ratio, verdict.at)
    } else {
        format!("no difference seen at {} {axis}", verdict.at)
    }
}

/// Returns the answers and findings of an experiment, and what was left out.
pub fn findings(result: &ExperimentResult) -> String {
    let mut text = String::new();
    for line in &result.answers {
        let _ = writeln!(text, "{line}");
    }
    for line in &result.findings {
        let _ = writeln!(text, "{line}");
    }
    for line in &result.left_out {
        let _ = writeln!(text, "left out: {line}");
    }
    text
}

/// Returns a chart as bars, `width` columns at most.
pub fn bars(chart: &Chart, width: usize) -> String {
    let most = chart.series.iter().flat_map(|s| &s.points).map(|p| p.median).fold(0.0, f64::max);
    let names = chart.series.iter().map(|s| label(s).chars().count()).max().unwrap_or(0);
    let room = width.saturating_sub(names + 14).max(10);
    let mut text = format!("{} ({})\n", chart.title, chart.unit);
    for at in places(chart) {
        let _ = writeln!(text, "{at} {}", chart.axis);
        for series in &chart.series {
            if let Some(point) = series.at(at) {
                let eighths =
                    (point.median / most.max(f64::MIN_POSITIVE) * (room * 8) as f64).round() as usize;
                let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"].get(eighths % 8).copied().unwrap_or("");
                let bar = "█".repeat(eighths / 8) + part;
                let _ = writeln!(text, "  {:<names$} {bar} {}", label(series), figure(point.median));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Better, Point};

    fn chart() -> Chart {
        let series = |name: &str, origin, samples: Vec<f64>| Series {
            name: name.to_owned(),
            origin,
            source: None,
            points: vec![Point::new(4, samples)],
        };
        Chart {
            name: "e/c/m".to_owned(),
            title: "Writes".to_owned(),
            axis: "threads".to_owned(),
            unit: "IOPS".to_owned(),
            better: Better::Higher,
            series: vec![
                series("new", Origin::Measured, vec![19_000.0, 20_000.0, 21_000.0]),
                series("old", Origin::Measured, vec![9000.0, 10_000.0, 10_100.0]),
                series("theirs", Origin::Published, vec![567_000.0]),
            ],
        }
    }

    #[test]
    fn what_was_not_measured_says_so() {
        let chart = chart();
        let of = |n: usize| (&*chart.series[n].name, &chart.series[n].points[0]);
        let verdict = Verdict::new("e/c/m", of(0), of(1));
        let case_result = CaseResult {
            name: "c".to_owned(),
            title: "Writes".to_owned(),
            charts: vec![chart.clone()],
            details: Vec::new(),
            verdicts: vec![verdict.clone(), Verdict { seen: false, ..verdict }],
        };
        let text = case(&case_result);
        assert!(text.contains("20.0k ±5%") && text.contains("theirs [published]"), "{text}");
        assert!(text.contains("new over old: 2.00 at 4 threads, no difference seen at 4 threads"), "{text}");
    }

    #[test]
    fn bars_are_as_long_as_figures_are_large() {
        let text = bars(&chart(), 80);
        let count = |name: &str| text.lines().find(|l| l.contains(name)).unwrap().matches('█').count();
        assert!(count("theirs") > 10 * count("new") && text.contains("567k"), "{text}");
    }
}
