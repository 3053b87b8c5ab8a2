//! A chart as SVG: a line for each series, its spread as a bar at each point.
//!
//! Measured lines are whole, published ones dashed with hollow marks, simulated and predicted ones
//! dotted. Points lie at even distances, whatever their numbers are. Every mark carries its figure
//! (`data-at`, `data-value`).

use super::xml::Text;
use crate::results::{Chart, Origin, Series};
use crate::table::{figure, label, places};
use std::fmt::Write;

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;
const LINE: f64 = 18.0;

/// Told apart with most kinds of sight, on light and on dark; behind the first eight, the same ones
/// lighter.
const COLORS: [&str; 16] = [
    "#0b74c4", "#d9622b", "#2f9e63", "#b5489b", "#8a7a00", "#5b63d6", "#0f8f9c", "#8d6e63", "#6bb6e8",
    "#f0a07c", "#7fd0a4", "#dc93c9", "#c9b93f", "#a5abf2", "#6ccbd4", "#c3a79b",
];

/// Returns the colour of series `number`.
pub(super) fn color(number: usize) -> &'static str {
    COLORS[number % COLORS.len()]
}

/// Returns the dashes of a line with figures of that origin.
pub(super) fn dashes(origin: Origin) -> &'static str {
    match origin {
        Origin::Measured => "",
        Origin::Published => " stroke-dasharray=\"7 4\"",
        Origin::Simulated | Origin::Predicted => " stroke-dasharray=\"2 3\"",
    }
}

/// Where a figure is on the paper.
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
        // Lines that are far apart would lie on the ground.
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

/// Returns the chart alone, for a page that has its title and names its lines.
pub(super) fn inline(chart: &Chart) -> String {
    let mut svg = open(chart, HEIGHT);
    plot(&mut svg, chart);
    svg + "</svg>\n"
}

/// Returns the chart with title and names, as a file of its own.
pub(super) fn file(chart: &Chart) -> String {
    let height = HEIGHT + LINE * (chart.series.len() + 2) as f64;
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
    plot(&mut svg, chart);
    for (number, series) in chart.series.iter().enumerate() {
        let y = HEIGHT + LINE * (number as f64 + 0.5);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y}h28\" stroke=\"{}\" stroke-width=\"2.5\"{}/>\
             <text x=\"{}\" y=\"{}\" fill=\"currentColor\">{}</text>",
            color(number),
            dashes(series.origin),
            LEFT + 36.0,
            y + 4.0,
            Text(&label(series)),
        );
    }
    svg + "</g>\n</svg>\n"
}

fn open(chart: &Chart, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\" \
         data-chart=\"{}\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n",
        Text(&chart.title),
        Text(&chart.name),
    )
}

fn plot(svg: &mut String, chart: &Chart) {
    let scale = Scale::of(chart);
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
    let places = places(chart);
    let step = (WIDTH - LEFT - RIGHT) / places.len().max(1) as f64;
    let x = |at: u64| LEFT + step * (places.iter().position(|p| *p == at).unwrap_or(0) as f64 + 0.5);
    for at in &places {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"currentColor\">{at}</text>",
            x(*at),
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
    for (number, series) in chart.series.iter().enumerate() {
        line(svg, series, color(number), &scale, &x);
    }
}

fn line(svg: &mut String, series: &Series, color: &str, scale: &Scale, x: &dyn Fn(u64) -> f64) {
    let origin = format!("{:?}", series.origin).to_lowercase();
    let name = Text(&series.name);
    let _ = writeln!(svg, "<g data-series=\"{name}\" data-origin=\"{origin}\" stroke=\"{color}\">");
    let path: Vec<String> =
        series.points.iter().map(|p| format!("{:.1} {:.1}", x(p.at), scale.y(p.median))).collect();
    let _ = writeln!(
        svg,
        "<path d=\"M{}\" fill=\"none\" stroke-width=\"2.2\"{}/>",
        path.join("L"),
        dashes(series.origin)
    );
    let fill = if series.origin == Origin::Published { "none" } else { color };
    for point in &series.points {
        let (x, y) = (x(point.at), scale.y(point.median));
        if point.max > point.min {
            let (top, bottom) = (scale.y(point.max), scale.y(point.min));
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {top:.1}V{bottom:.1}\" stroke-width=\"5\" opacity=\"0.25\"/>"
            );
        }
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.4\" fill=\"{fill}\" data-at=\"{}\" data-value=\"{}\"><title>{}: {} at {} \
             ({} to {})</title></circle>",
            point.at,
            point.median,
            Text(&label(series)),
            figure(point.median),
            point.at,
            figure(point.min),
            figure(point.max),
        );
    }
    svg.push_str("</g>\n");
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::results::{Better, Point};

    pub(in super::super) fn chart(values: &[f64]) -> Chart {
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

    #[test]
    fn every_figure_has_a_mark_inside_of_the_paper() {
        for values in [&[0.0][..], &[1.0, 2.0], &[1.0, 100.0, 1e6], &[0.0, 5.0]] {
            let svg = file(&chart(values));
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
}
