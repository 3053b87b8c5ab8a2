//! The report: one HTML file that needs nothing else, and an SVG file and a PNG file for each
//! chart.

mod bars;
mod chart;
mod heat;
mod page;
mod palette;
mod paper;
#[cfg(feature = "png")]
mod png;
mod xml;

pub use page::html;

use crate::Outcome;
use crate::results::Results;
use palette::Palette;
use std::fs;
use std::path::Path;

/// Writes `results.json`, `report.html`, and `EXPERIMENT-CASE-METRIC.svg` for each chart.
///
/// # Errors
/// The errors of writing.
pub fn write(results: &Results, dir: &Path) -> Outcome<()> {
    let file = |name: &str, text: String| {
        fs::write(dir.join(name), text).map_err(|e| format!("{}: {e}", dir.join(name).display()))
    };
    fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    file("results.json", results.to_json()?)?;
    file("report.html", html(results))?;
    let palette = Palette::of(results);
    for chart in results.charts().filter(|c| !c.series.is_empty()) {
        file(&format!("{}.svg", chart.name.replace('/', "-")), chart::file(chart, &palette))?;
    }
    Ok(())
}

/// Writes `EXPERIMENT-CASE-METRIC.png` for each chart. Why there is none, if so.
///
/// # Errors
/// The errors of drawing and writing.
#[cfg(feature = "png")]
pub fn write_png(results: &Results, dir: &Path) -> Outcome<Option<&'static str>> {
    let Some(painter) = png::Painter::new() else { return Ok(Some("this system has no font")) };
    fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let palette = Palette::of(results);
    for chart in results.charts().filter(|c| !c.series.is_empty()) {
        let path = dir.join(format!("{}.png", chart.name.replace('/', "-")));
        let bytes = painter.paint(&chart::file(chart, &palette))?;
        fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(None)
}

/// Returns `None`: this build cannot draw it.
///
/// # Errors
/// None.
#[cfg(not(feature = "png"))]
pub fn write_png(_: &Results, _: &Path) -> Outcome<Option<&'static str>> {
    Ok(Some("lanefs was built without the feature png"))
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::results::{Better, Chart, Origin, Point, Series};

    /// A chart of one simulated series, whose points are at 1, 2, 4, ...
    pub(crate) fn chart(values: &[f64]) -> Chart {
        let points = values.iter().enumerate().map(|(n, v)| Point::new(1 << n, vec![*v, v * 1.1, v * 0.9]));
        Chart {
            name: "a/b/c".to_owned(),
            title: "A < B".to_owned(),
            axis: "threads".to_owned(),
            unit: "/s".to_owned(),
            better: Better::Higher,
            series: vec![Series {
                name: "\"x\" & y".to_owned(),
                origin: Origin::Simulated,
                source: None,
                points: points.collect(),
            }],
        }
    }
}
