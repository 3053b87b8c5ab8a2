//! A chart of many contenders at few places as horizontal bars: their names stand beside them.
//!
//! Figures of this run and figures of others are apart, and so are the places of the axis. Bars of
//! one group have one scale.

use super::palette::{COLORS, Palette};
use super::paper::{LEFT, RIGHT, WIDTH, title};
use super::xml::Text;
use crate::results::{Chart, Origin, Point, Series};
use crate::table::{figure, label, places};
use std::collections::BTreeSet;
use std::fmt::Write;

/// A chart with more series than this, at so few places that lines would have no length, is drawn
/// as bars.
const MOST_LINES: usize = 4;
const FEW_PLACES: usize = 2;

const ROW: f64 = 17.0;
const NAMES: f64 = 200.0;
const FIGURES: f64 = 48.0;

/// Series that have a figure at one place, and are of one kind.
struct BarGroup<'a> {
    title: String,
    rows: Vec<(usize, &'a Series, &'a Point)>,
}

fn groups(chart: &Chart) -> Vec<BarGroup<'_>> {
    let mut groups = Vec::new();
    for published in [false, true] {
        for at in places(chart).into_iter().rev() {
            let of = |s: &&Series| (s.origin == Origin::Published) == published;
            let rows: Vec<_> = (chart.series.iter().enumerate())
                .filter(|(_, s)| of(s))
                .filter_map(|(number, s)| Some((number, s, s.at(at)?)))
                .collect();
            if !rows.is_empty() {
                let by = if published { "published, of another machine" } else { "this run" };
                groups.push(BarGroup { title: format!("{at} {}, {by}", chart.axis), rows });
            }
        }
    }
    groups
}

/// Returns whether bars show the chart better than lines.
pub(super) fn fit(chart: &Chart) -> bool {
    let own = chart.series.iter().filter(|s| s.origin != Origin::Published);
    let places: BTreeSet<u64> = own.flat_map(|s| &s.points).map(|p| p.at).collect();
    chart.series.len() > MOST_LINES && places.len() <= FEW_PLACES
}

/// Returns how high the drawing is.
pub(super) fn height(chart: &Chart) -> f64 {
    let rows: usize = groups(chart).iter().map(|group| group.rows.len() + 2).sum();
    ROW * rows as f64
}

/// Draws the bars.
pub(super) fn plot(svg: &mut String, chart: &Chart, palette: &Palette) {
    let colors = palette.colors(chart);
    let mut y = ROW;
    for group in groups(chart) {
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"{RIGHT}\" y=\"{:.1}\" font-weight=\"bold\" fill=\"currentColor\">{}</text>",
            y + 2.0,
            Text(&group.title)
        );
        y += ROW;
        let most = group.rows.iter().map(|row| row.2.median).fold(f64::MIN_POSITIVE, f64::max);
        for (number, series, point) in group.rows {
            row(svg, series, point, (COLORS[colors[number]], most, y));
            y += ROW;
        }
        y += ROW;
    }
}

fn row(svg: &mut String, series: &Series, point: &Point, (color, most, y): (&str, f64, f64)) {
    let room = WIDTH - NAMES - FIGURES - RIGHT;
    let width = (room * point.median / most).max(2.0);
    let origin = format!("{:?}", series.origin).to_lowercase();
    let letters = label(series).chars().count().max(1) as f64;
    let size = (1.75 * (NAMES - LEFT / 4.0) / letters).min(11.0);
    let (fill, line) = if series.origin == Origin::Published { ("none", color) } else { (color, "none") };
    let _ = writeln!(
        svg,
        "<g data-series=\"{}\" data-origin=\"{origin}\"><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"{size:.1}\" \
         fill=\"currentColor\">{}</text><rect x=\"{NAMES}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{fill}\" \
         stroke=\"{line}\" data-at=\"{}\" data-value=\"{}\">{}</rect>\
         <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"11\" fill=\"currentColor\">{}</text></g>",
        Text(&series.name),
        NAMES - 6.0,
        y + 2.0,
        Text(&label(series)),
        y - ROW / 2.0,
        ROW - 4.0,
        point.at,
        point.median,
        title(series, point),
        NAMES + width + 5.0,
        y + 2.0,
        figure(point.median),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::chart;

    #[test]
    fn every_figure_has_a_bar_and_published_ones_are_apart() {
        let mut many = chart(&[3.0, 0.0]);
        let theirs = Series {
            name: "theirs".to_owned(),
            origin: Origin::Published,
            source: None,
            points: vec![Point::new(2, vec![1e6])],
        };
        many.series.push(theirs);
        let titles: Vec<String> = groups(&many).into_iter().map(|group| group.title).collect();
        assert_eq!(
            titles,
            ["2 threads, this run", "1 threads, this run", "2 threads, published, of another machine"]
        );
        let mut svg = String::new();
        plot(&mut svg, &many, &Palette::default());
        assert_eq!(svg.matches("<rect").count(), 3);
        assert!(svg.contains("data-value=\"1000000\"") && svg.contains("width=\"2.0\""), "{svg}");
        assert_eq!(height(&many), 9.0 * ROW);
    }
}
