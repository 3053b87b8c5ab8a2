//! Latencies as a heat map: a column for each contender, a row for each power of two, darker where
//! more calls were.

use super::xml::Text;
use crate::hist::Hist;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// A column.
pub(super) struct Column<'a> {
    pub(super) name: String,
    pub(super) published: bool,
    pub(super) hist: &'a Hist,
}

const CELL: f64 = 14.0;
const LEFT: f64 = 70.0;
const NAMES: f64 = 18.0;
const WIDTH: f64 = 480.0;

/// Counts by power of two. A bucket that is wider than one is counted where its middle is.
fn powers(hist: &Hist) -> BTreeMap<u32, u64> {
    let mut counts = BTreeMap::new();
    for (from, to, n) in &hist.buckets {
        *counts.entry(from.midpoint(*to).max(1).ilog2()).or_default() += n;
    }
    counts
}

/// Returns the heat map of the durations of `what`, as SVG; `None` without any calls.
pub(super) fn map(name: &str, what: &str, columns: &[Column<'_>]) -> Option<String> {
    let counts: Vec<_> = columns.iter().map(|c| powers(c.hist)).collect();
    let low = counts.iter().filter_map(|c| c.keys().next()).min().copied()?;
    let high = counts.iter().filter_map(|c| c.keys().next_back()).max().copied()?;
    let rows = f64::from(high - low + 1);
    let top = 4.0;
    let names = top + rows * CELL + 14.0;
    let height = names + NAMES * columns.len() as f64;
    let step = (WIDTH - LEFT - 4.0) / columns.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\" \
         data-heat=\"{}\" font-family=\"system-ui, sans-serif\" font-size=\"11\">\n",
        Text(what),
        Text(name)
    );
    // Writing to a String cannot fail.
    for power in low..=high {
        let y = top + f64::from(high - power) * CELL;
        if (power - low).is_multiple_of(2) {
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"currentColor\">{}</text>",
                LEFT - 6.0,
                y + CELL - 3.0,
                time(1 << power)
            );
        }
    }
    for (number, (column, counts)) in columns.iter().zip(&counts).enumerate() {
        let x = LEFT + step * number as f64;
        let most = counts.values().copied().max().unwrap_or(1) as f64;
        let label = format!("{}{}", column.name, if column.published { " [published]" } else { "" });
        let _ = writeln!(svg, "<g data-series=\"{}\" fill=\"#d9622b\">", Text(&column.name));
        for (power, n) in counts {
            let y = top + f64::from(high - power) * CELL;
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{CELL}\" opacity=\"{:.3}\" data-count=\"{n}\">\
                 <title>{}: {n} of {} took {} to {}</title></rect>",
                step - 3.0,
                // Few calls are to be seen too: often they are the point.
                0.12 + 0.88 * (*n as f64 / most).sqrt(),
                Text(&label),
                column.hist.timed,
                time(1 << power),
                time(2_u64.saturating_pow(power + 1)),
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"currentColor\">{}</text>\
             <text x=\"{}\" y=\"{:.1}\" fill=\"currentColor\">{}: {}, p50 {}, p99 {}</text></g>",
            x + step / 2.0,
            names - 2.0,
            number + 1,
            4,
            names + NAMES * (number as f64 + 0.75),
            number + 1,
            Text(&label),
            time(column.hist.quantile(0.5)),
            time(column.hist.quantile(0.99)),
        );
    }
    Some(svg + "</svg>\n")
}

fn time(nanos: u64) -> String {
    format!("{:.1?}", Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_is_in_one_cell() {
        let hist = Hist::of_buckets(&[(0, 0, 3), (1000, 1100, 5), (1 << 40, 1 << 40, 2)]);
        let column = |published| Column { name: "x".to_owned(), published, hist: &hist };
        let svg = map("a/b", "fsync", &[column(false), column(true)]).unwrap();
        let sum: u64 = svg
            .split("data-count=\"")
            .skip(1)
            .map(|s| s.split('"').next().unwrap().parse::<u64>().unwrap())
            .sum();
        assert_eq!(sum, 20);
        assert!(svg.contains("[published]"));
        assert!(map("a/b", "fsync", &[Column { hist: &Hist::default(), ..column(false) }]).is_none());
    }
}
