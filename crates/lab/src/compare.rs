//! Compares two runs: which figures changed, by how much, and whether beyond the noise.
//!
//! For each figure that both runs measured: the ratio of the medians, with an interval of 95
//! percent by the bootstrap (the samples of both runs are drawn again, with replacement, `DRAWS`
//! times). A figure has changed beyond the noise if its interval excludes 1 and the difference is
//! at least `LEAST`: very quiet samples give an interval narrower than the difference between two
//! boots.

use crate::Random;
use crate::results::{Better, Chart, Origin, Point, Results, median};

const DRAWS: usize = 2000;
const LEAST: f64 = 0.05;

/// The change of one figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Of the chart.
    pub chart: String,
    /// Of the contender.
    pub series: String,
    /// Where on the axis.
    pub at: u64,
    /// Median of the first run.
    pub before: f64,
    /// Median of the second.
    pub after: f64,
    /// Bounds of the ratio after over before.
    pub interval: (f64, f64),
    /// What it means.
    pub kind: Kind,
}

/// The meaning of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Within the noise.
    Same,
    /// Beyond it, to the good.
    Better,
    /// Beyond it, to the bad.
    Worse,
    /// There are not enough samples to tell.
    Unknown,
}

/// Compares all figures that both runs measured themselves.
pub fn compare(before: &Results, after: &Results) -> Vec<Change> {
    let mut random = Random::new(42);
    let mut changes = Vec::new();
    for old in before.charts() {
        let Some(new) = after.charts().find(|c| c.name == old.name) else { continue };
        for series in old.series.iter().filter(|s| matches!(s.origin, Origin::Measured | Origin::Simulated)) {
            let Some(other) = new.own(&series.name).filter(|s| s.origin == series.origin) else { continue };
            for a in &series.points {
                if let Some(b) = other.at(a.at) {
                    changes.push(change(old, &series.name, a, b, &mut random));
                }
            }
        }
    }
    changes
}

fn change(chart: &Chart, series: &str, a: &Point, b: &Point, random: &mut Random) -> Change {
    let interval = interval(&a.samples, &b.samples, random);
    let far = (b.median - a.median).abs() >= LEAST * a.median.abs();
    let kind = if a.median == b.median {
        Kind::Same
    } else if a.samples.len() < 3 || b.samples.len() < 3 {
        Kind::Unknown
    } else if !far || (interval.0 <= 1.0 && interval.1 >= 1.0) {
        Kind::Same
    } else if (b.median > a.median) == (chart.better == Better::Higher) {
        Kind::Better
    } else {
        Kind::Worse
    };
    Change {
        chart: chart.name.clone(),
        series: series.to_owned(),
        at: a.at,
        before: a.median,
        after: b.median,
        interval,
        kind,
    }
}

/// Bounds of the ratio of the medians, `b` over `a`.
fn interval(a: &[f64], b: &[f64], random: &mut Random) -> (f64, f64) {
    let mut draw = |of: &[f64]| {
        let drawn: Vec<f64> = of.iter().map(|_| of[(random.draw() >> 33) as usize % of.len()]).collect();
        median(&drawn)
    };
    let mut ratios: Vec<f64> = (0..DRAWS).map(|_| draw(b) / draw(a)).filter(|r| !r.is_nan()).collect();
    ratios.sort_by(f64::total_cmp);
    let cut = ratios.len() / 40;
    match (ratios.get(cut), ratios.iter().nth_back(cut)) {
        (Some(low), Some(high)) => (*low, *high),
        _ => (f64::NEG_INFINITY, f64::INFINITY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{CaseResult, ExperimentResult, FORMAT, Series};
    use crate::{Machine, Outcome};

    fn results(better: Better, samples: &[f64]) -> Results {
        let series = Series {
            name: "x".to_owned(),
            origin: Origin::Measured,
            source: None,
            points: vec![Point::new(1, samples.to_vec())],
        };
        let theirs = Series { origin: Origin::Published, name: "y".to_owned(), ..series.clone() };
        let chart = Chart {
            name: "e/c/m".to_owned(),
            title: String::new(),
            axis: "threads".to_owned(),
            unit: "/s".to_owned(),
            better,
            series: vec![series, theirs],
        };
        let case = CaseResult {
            name: "c".to_owned(),
            title: String::new(),
            charts: vec![chart],
            details: Vec::new(),
            verdicts: Vec::new(),
        };
        Results {
            format: FORMAT,
            version: String::new(),
            began: 0,
            command: String::new(),
            options: [].into(),
            machine: Machine::default(),
            experiments: vec![ExperimentResult {
                name: "e".to_owned(),
                question: String::new(),
                answers: Vec::new(),
                cases: vec![case],
                left_out: Vec::new(),
                findings: Vec::new(),
            }],
        }
    }

    fn kind(better: Better, a: &[f64], b: &[f64]) -> Kind {
        let changes = compare(&results(better, a), &results(better, b));
        assert_eq!(changes.len(), 1, "what others published does not change");
        changes[0].kind
    }

    #[test]
    fn beyond_the_noise_and_within() {
        let quiet = [100.0, 101.0, 102.0, 99.0, 100.5];
        let twice = quiet.map(|v| v * 2.0);
        let noisy = [60.0, 210.0, 90.0, 180.0, 100.0];
        assert_eq!(kind(Better::Higher, &quiet, &twice), Kind::Better);
        assert_eq!(kind(Better::Lower, &quiet, &twice), Kind::Worse);
        assert_eq!(kind(Better::Higher, &twice, &quiet), Kind::Worse);
        assert_eq!(kind(Better::Higher, &quiet, &noisy), Kind::Same);
        assert_eq!(kind(Better::Higher, &quiet, &quiet.map(|v| v * 1.03)), Kind::Same);
        assert_eq!(kind(Better::Higher, &quiet, &twice[..2]), Kind::Unknown);
        assert_eq!(kind(Better::Lower, &[0.0; 3], &[0.0; 3]), Kind::Same);
        assert_eq!(kind(Better::Lower, &[0.0; 3], &[1.0; 3]), Kind::Worse, "from nothing to something");
    }

    #[test]
    fn kept_and_read_again() -> Outcome<()> {
        let first = results(Better::Higher, &[1.0, 2.0, 3.5]);
        let again = Results::from_json(&first.to_json()?)?;
        assert!(compare(&first, &again).iter().all(|c| c.kind == Kind::Same));
        let other = first.to_json()?.replacen("\"format\": 1", "\"format\": 2", 1);
        assert!(Results::from_json(&other).unwrap_err().to_string().contains("has format 2"));
        Ok(())
    }
}
