//! The results of a run of the lab, as one JSON file.
//!
//! Every series has an [`Origin`]. A figure that this run did not measure is never marked as
//! measured.

use crate::hist::Hist;
use crate::machine::Machine;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The `format` of files that this version writes and reads.
pub const FORMAT: u32 = 1;

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: u32,
    /// The version of lanefs.
    pub version: String,
    /// Seconds since 1970 when it began.
    pub began: u64,
    /// The command that makes it again.
    pub command: String,
    /// Every option, with its value or its default.
    pub options: BTreeMap<String, String>,
    /// What it ran on.
    pub machine: Machine,
    /// In the order in which they ran.
    pub experiments: Vec<ExperimentResult>,
}

/// One experiment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExperimentResult {
    /// As on the command line.
    pub name: String,
    /// What it answers.
    pub question: String,
    /// The answer, in a sentence for each case.
    #[serde(default)]
    pub answers: Vec<String>,
    /// The charts and counters of its cases.
    pub cases: Vec<CaseResult>,
    /// The contenders that were not run, and why.
    pub left_out: Vec<String>,
    /// What the figures say, in words.
    pub findings: Vec<String>,
}

/// One case of an experiment: the same contenders at the same points.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaseResult {
    /// Unique in its experiment.
    pub name: String,
    /// For people.
    pub title: String,
    /// One for each thing that was measured.
    pub charts: Vec<Chart>,
    /// The counters, for each contender and point.
    pub details: Vec<Detail>,
    /// Contenders held against each other.
    pub verdicts: Vec<Verdict>,
}

/// The good side of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Rates.
    Higher,
    /// Times and costs.
    Lower,
}

/// Figures of one kind, over one axis.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Chart {
    /// `experiment/case/metric`: unique in a run.
    pub name: String,
    /// For people.
    pub title: String,
    /// What the points are: threads, bytes.
    pub axis: String,
    /// Of the figures.
    pub unit: String,
    /// Which side is good.
    pub better: Better,
    /// A line each.
    pub series: Vec<Series>,
}

/// The origin of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// In this run, on this machine.
    Measured,
    /// In this run, on a device that only behaves like the one it is named after.
    Simulated,
    /// By others, on another machine.
    Published,
    /// Computed from costs.
    Predicted,
}

/// One line of a chart.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Series {
    /// The name of the contender.
    pub name: String,
    /// The origin of its figures.
    pub origin: Origin,
    /// For published figures, author and machine; for simulated ones, the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// In the order of the axis.
    pub points: Vec<Point>,
}

/// One figure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Point {
    /// Where on the axis.
    pub at: u64,
    /// Of `samples`.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// One of each round.
    pub samples: Vec<f64>,
}

impl Point {
    /// Returns the point of some samples, one at least.
    pub fn new(at: u64, samples: Vec<f64>) -> Self {
        let min = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let max = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { at, median: median(&samples), min, max, samples }
    }
}

/// Returns the median; 0 of nothing.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
    if !sorted.len().is_multiple_of(2) || sorted.is_empty() {
        return upper;
    }
    (sorted[sorted.len() / 2 - 1] + upper) / 2.0
}

/// The counters of all rounds of a contender at a point.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Detail {
    /// The contender.
    pub series: String,
    /// Where on the axis.
    pub at: u64,
    /// How long all rounds took together.
    pub seconds: f64,
    /// By name.
    pub counters: BTreeMap<String, u64>,
    /// Nanoseconds, by name.
    pub histograms: BTreeMap<String, Hist>,
}

impl Detail {
    /// Adds what a further round counted.
    pub fn add(&mut self, other: Self) {
        self.seconds += other.seconds;
        for (name, n) in other.counters {
            *self.counters.entry(name).or_default() += n;
        }
        for (name, hist) in other.histograms {
            self.histograms.entry(name).or_default().merge(&hist);
        }
    }

    /// Returns a counter; 0 if there is none of that name.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Returns the seconds that threads spent on something.
    pub fn spent(&self, histogram: &str) -> f64 {
        self.histograms.get(histogram).map_or(0.0, Hist::total) / 1e9
    }
}

/// One contender held against another at one point.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Verdict {
    /// The chart that it is about.
    pub chart: String,
    /// Where on the axis.
    pub at: u64,
    /// The one.
    pub this: String,
    /// The other.
    pub that: String,
    /// The median of the first over the median of the other.
    pub ratio: f64,
    /// Whether the medians are further apart than the samples of either are.
    pub seen: bool,
}

impl Verdict {
    /// Judges two points of one place.
    pub fn new(chart: &str, (this, a): (&str, &Point), (that, b): (&str, &Point)) -> Self {
        let spread = (a.max - a.min).max(b.max - b.min);
        Self {
            chart: chart.to_owned(),
            at: a.at,
            this: this.to_owned(),
            that: that.to_owned(),
            ratio: a.median / b.median,
            // Of one sample each nothing is known.
            seen: a.samples.len() > 1 && b.samples.len() > 1 && (a.median - b.median).abs() > spread,
        }
    }
}

impl Chart {
    /// Returns a line by its name, if it was measured (or simulated) in this run.
    pub fn own(&self, name: &str) -> Option<&Series> {
        self.series
            .iter()
            .find(|s| s.name == name && matches!(s.origin, Origin::Measured | Origin::Simulated))
    }
}

impl Series {
    /// Returns the figure at a place.
    pub fn at(&self, at: u64) -> Option<&Point> {
        self.points.iter().find(|p| p.at == at)
    }
}

impl Results {
    /// Returns all charts.
    pub fn charts(&self) -> impl Iterator<Item = &Chart> {
        self.experiments.iter().flat_map(|e| &e.cases).flat_map(|c| &c.charts)
    }

    /// Reads what [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    /// Another format, or no JSON of this kind at all.
    pub fn from_json(text: &str) -> crate::Outcome<Self> {
        let results: Self = serde_json::from_str(text)?;
        if results.format != FORMAT {
            return Err(format!("has format {}, this version reads {FORMAT}", results.format).into());
        }
        Ok(results)
    }

    /// Returns indented JSON with a line's end.
    ///
    /// # Errors
    /// None that can happen: figures are finite.
    pub fn to_json(&self) -> crate::Outcome<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn a_spread_above_the_effect_is_no_difference() {
        let judge = |a: &[f64], b: &[f64]| {
            Verdict::new("c", ("a", &Point::new(1, a.to_vec())), ("b", &Point::new(1, b.to_vec()))).seen
        };
        assert!(judge(&[10.0, 11.0, 12.0], &[20.0, 21.0, 22.0]));
        assert!(!judge(&[10.0, 15.0, 25.0], &[20.0, 21.0, 22.0]));
        assert!(!judge(&[10.0], &[20.0]), "one sample tells no spread");
    }
}
