//! The report: one HTML file that needs nothing else, and an SVG file for each chart.

mod chart;
mod heat;
mod page;
mod xml;

pub use page::html;

use crate::Outcome;
use crate::results::Results;
use std::fs;
use std::path::Path;

/// Writes `results.json`, `report.html`, and `EXPERIMENT-CASE-METRIC.svg` for each chart.
///
/// # Errors
/// Those of writing.
pub fn write(results: &Results, dir: &Path) -> Outcome<()> {
    let file = |name: &str, text: String| {
        fs::write(dir.join(name), text).map_err(|e| format!("{}: {e}", dir.join(name).display()))
    };
    fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    file("results.json", results.to_json()?)?;
    file("report.html", html(results))?;
    for chart in results.charts().filter(|c| !c.series.is_empty()) {
        file(&format!("{}.svg", chart.name.replace('/', "-")), chart::file(chart))?;
    }
    Ok(())
}
