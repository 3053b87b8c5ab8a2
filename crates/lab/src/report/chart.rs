//! A chart as SVG: a line for each series, its spread as a bar at each point.
//!
//! Measured lines are whole, published ones dashed with hollow marks, simulated and predicted ones
//! dotted. The axis is logarithmic. Places that were not measured, beyond those that were, are
//! shaded. Every mark carries its figure (`data-at`, `data-value`). A chart of many contenders
//! at few places is drawn as [`bars`].

use super::bars;
use super::palette::{COLORS, Palette};
use super::paper::{LEFT, RIGHT, WIDTH, title};
use super::xml::Text;
use crate::results::{Chart, Origin, Series};
use crate::table::{figure, label, places};
use std::fmt::Write;

const HEIGHT: f64 = 300.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;
const LINE: f64 = 18.0;

/// Places of the axis are named if there is that much room between them.
const NAME: f64 = 24.0;

/// Returns the dashes of a line with figures of that origin.
pub(super) fn dashes(origin: Origin) -> &'static str {
    match origin {
        Origin::Measured => "",
        Origin::Published => " stroke-dasharray=\"7 4\"",
        Origin::Simulated | Origin::Predicted => " stroke-dasharray=\"2 3\"",
    }
}

/// A scale from figures to places on the paper.
struct Scale {
    log: bool,
    low: f64,
    high: f64,
}

impl Scale {
    fn of(chart: &Chart) -> Self {
        let medians = || chart.series.iter().flat_map(|s| &s.points).map(|p| p.median);
        let high = chart.series.iter().flat_map(|s| &s.points).map(|p| p.max).fold(0.0, f64::max);
        let least = medians().filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
        let zeros = medians().any(|v| v <= 0.0);
        // Lines that are far apart would lie on the axis.
        if !zeros && least > 0.0 && high / least > 30.0 {
            return Self { log: true, low: least.log10().floor(), high: high.log10().ceil() };
        }
        Self { log: false, low: 0.0, high: nice(high) }
    }

    fn y(&self, value: f64) -> f64 {
        let value = if self.log { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let part = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            return (self.low as i32..=self.high as i32).map(|power| 10_f64.powi(power)).collect();
        }
        (0..=4).map(|n| self.high * f64::from(n) / 4.0).collect()
    }
}

/// Returns the next larger number whose quarters are round.
fn nice(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        .map(|n| n * power)
        .into_iter()
        .find(|n| *n >= value)
        .unwrap_or(10.0 * power)
}

/// Returns whether the chart is drawn as bars, which name their series themselves.
pub(super) fn has_names(chart: &Chart) -> bool {
    bars::fit(chart)
}

/// Returns the chart alone, for a page that has its title and names its lines.
pub(super) fn inline(chart: &Chart, palette: &Palette) -> String {
    let bars = has_names(chart);
    let mut svg = open(chart, if bars { bars::height(chart) } else { HEIGHT });
    match bars {
        true => bars::plot(&mut svg, chart, palette),
        false => plot(&mut svg, chart, palette),
    }
    svg + "</svg>\n"
}

/// Returns the chart with title and names, as a file of its own.
pub(super) fn file(chart: &Chart, palette: &Palette) -> String {
    let height = match has_names(chart) {
        true => bars::height(chart) + LINE,
        false => HEIGHT + LINE * (chart.series.len() + 2) as f64,
    };
    // A wide letter is two thirds as wide as it is high: a long title is smaller.
    let letters = chart.title.chars().count().max(1) as f64;
    let title = (1.5 * (WIDTH - 2.0 * RIGHT) / letters).min(12.0);
    let mut svg = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    svg += &open(chart, height);
    // Writing to a String cannot fail.
    let _ = writeln!(
        svg,
        "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<g transform=\"translate(0 {LINE})\" color=\"#222\">\n\
         <text x=\"{RIGHT}\" y=\"2\" font-size=\"{title:.1}\" font-weight=\"bold\" fill=\"currentColor\">{}</text>",
        Text(&chart.title)
    );
    if has_names(chart) {
        bars::plot(&mut svg, chart, palette);
    } else {
        plot(&mut svg, chart, palette);
        names(&mut svg, chart, palette);
    }
    svg + "</g>\n</svg>\n"
}

/// Names the lines below the chart.
fn names(svg: &mut String, chart: &Chart, palette: &Palette) {
    for (number, (series, color)) in chart.series.iter().zip(palette.colors(chart)).enumerate() {
        let y = HEIGHT + LINE * (number as f64 + 0.5);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y}h28\" stroke=\"{}\" stroke-width=\"2.5\"{}/>\
             <text x=\"{}\" y=\"{}\" fill=\"currentColor\">{}</text>",
            COLORS[color],
            dashes(series.origin),
            LEFT + 36.0,
            y + 4.0,
            Text(&label(series)),
        );
    }
}

fn open(chart: &Chart, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\" \
         data-chart=\"{}\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n",
        Text(&chart.title),
        Text(&chart.name),
    )
}

/// An axis: its places stand on the paper at the distances of their logarithms.
struct Axis {
    places: Vec<u64>,
}

impl Axis {
    fn x(&self, at: u64) -> f64 {
        let log = |at: u64| ((at.max(1)) as f64).ln();
        let (first, last) = (self.places.first(), self.places.last());
        let (low, high) = (first.map_or(0.0, |at| log(*at)), last.map_or(0.0, |at| log(*at)));
        let part = if high > low { (log(at) - low) / (high - low) } else { 0.5 };
        LEFT + NAME + part * (WIDTH - LEFT - RIGHT - 2.0 * NAME)
    }

    /// Names the places that have room for it, the last one in any case.
    fn named(&self) -> Vec<u64> {
        let mut named: Vec<u64> = Vec::new();
        for at in self.places.iter().rev() {
            if named.last().is_none_or(|right| self.x(*right) - self.x(*at) >= NAME) {
                named.push(*at);
            }
        }
        named
    }
}

fn plot(svg: &mut String, chart: &Chart, palette: &Palette) {
    let scale = Scale::of(chart);
    let axis = Axis { places: places(chart) };
    extrapolated(svg, chart, &axis);
    for tick in scale.ticks() {
        let y = scale.y(tick);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"currentColor\" opacity=\"0.15\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"currentColor\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            figure(tick),
        );
    }
    for at in axis.named() {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"currentColor\">{at}</text>",
            axis.x(at),
            HEIGHT - BOTTOM + 17.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"currentColor\" opacity=\"0.7\">{}{}</text>",
        (WIDTH + LEFT) / 2.0,
        HEIGHT - 6.0,
        Text(&chart.axis),
        if scale.log { "; figures on a logarithmic scale" } else { "" },
    );
    for (series, color) in chart.series.iter().zip(palette.colors(chart)) {
        line(svg, series, COLORS[color], &scale, &axis);
    }
}

/// Shades the places behind the last that this run has measured, if it measured any.
fn extrapolated(svg: &mut String, chart: &Chart, axis: &Axis) {
    let own = chart.series.iter().filter(|s| matches!(s.origin, Origin::Measured | Origin::Simulated));
    let measured = own.flat_map(|s| &s.points).map(|p| p.at).max();
    if let (Some(measured), Some(last)) = (measured, axis.places.last())
        && measured < *last
    {
        let from = axis.x(measured);
        let _ = writeln!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{}\" fill=\"currentColor\" opacity=\"0.06\">\
             <title>not measured in this run</title></rect>",
            WIDTH - RIGHT - from,
            HEIGHT - TOP - BOTTOM
        );
    }
}

fn line(svg: &mut String, series: &Series, color: &str, scale: &Scale, axis: &Axis) {
    let origin = format!("{:?}", series.origin).to_lowercase();
    let name = Text(&series.name);
    let _ = writeln!(svg, "<g data-series=\"{name}\" data-origin=\"{origin}\" stroke=\"{color}\">");
    let path: Vec<String> =
        series.points.iter().map(|p| format!("{:.1} {:.1}", axis.x(p.at), scale.y(p.median))).collect();
    let _ = writeln!(
        svg,
        "<path d=\"M{}\" fill=\"none\" stroke-width=\"2.2\"{}/>",
        path.join("L"),
        dashes(series.origin)
    );
    let fill = if series.origin == Origin::Published { "none" } else { color };
    for point in &series.points {
        let (x, y) = (axis.x(point.at), scale.y(point.median));
        if point.max > point.min {
            let (top, bottom) = (scale.y(point.max), scale.y(point.min));
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {top:.1}V{bottom:.1}\" stroke-width=\"5\" opacity=\"0.25\"/>"
            );
        }
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\" fill=\"{fill}\" data-at=\"{}\" data-value=\"{}\">{}</circle>",
            point.at,
            point.median,
            title(series, point),
        );
    }
    svg.push_str("</g>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::chart;

    #[test]
    fn every_figure_has_a_mark_inside_of_the_paper() {
        for values in [&[0.0][..], &[1.0, 2.0], &[1.0, 100.0, 1e6], &[0.0, 5.0]] {
            let svg = file(&chart(values), &Palette::default());
            assert_eq!(svg.matches("<circle").count(), values.len());
            let of = |attr: &str| -> Vec<f64> {
                svg.split(&format!(" {attr}=\""))
                    .skip(1)
                    .map(|s| s.split('"').next().unwrap().parse().unwrap())
                    .collect()
            };
            assert!(of("cy").iter().all(|y| (TOP..=HEIGHT - BOTTOM).contains(y)), "{svg}");
            assert!(of("cx").iter().all(|x| (LEFT..=WIDTH - RIGHT).contains(x)), "{svg}");
            assert_eq!(of("data-value"), values);
            assert!(
                !svg.contains("NaN") && !svg.contains("inf") && svg.contains("&quot;x&quot; &amp; y"),
                "{svg}"
            );
        }
    }

    #[test]
    fn more_is_higher() {
        for scale in [Scale::of(&chart(&[1.0, 10.0])), Scale::of(&chart(&[1.0, 1e5]))] {
            assert!(scale.y(9.0) < scale.y(2.0));
        }
        assert_eq!((nice(0.0), nice(3.1), nice(61.0), nice(950.0)), (1.0, 4.0, 80.0, 1000.0));
    }

    #[test]
    fn the_axis_is_to_scale_and_what_was_not_measured_is_shaded() {
        let axis = Axis { places: vec![1, 2, 4, 12, 16, 2048] };
        let gap = |a, b| axis.x(b) - axis.x(a);
        assert!((gap(1, 2) - gap(2, 4)).abs() < 0.01 && gap(16, 2048) > 6.0 * gap(1, 2));
        assert_eq!(axis.named(), [2048, 16, 4, 2, 1]);
        let shaded = |chart: &Chart| file(chart, &Palette::default()).contains("not measured in this run");
        let mut measured = chart(&[1.0, 2.0]);
        assert!(!shaded(&measured));
        let mut further = measured.series[0].clone();
        further.origin = Origin::Predicted;
        further.points[1].at = 8;
        measured.series.push(further);
        assert!(shaded(&measured));
    }
}
