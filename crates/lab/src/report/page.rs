//! The report as an HTML page.

use super::chart::{dashes, has_names, inline};
use super::heat::{self, Column};
use super::palette::{COLORS, Palette};
use super::xml::Text;
use crate::published::fsync_storm_histograms;
use crate::results::{CaseResult, Chart, Detail, ExperimentResult, Results, Series};
use crate::table::{figure, label, places};
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// Histograms that are worth a map, in that order, and what they are of.
const HEATS: [(&str, &str); 6] = [
    ("open", "opening a file"),
    ("write", "a write"),
    ("read_direct", "a direct read"),
    ("fsync", "an fsync"),
    ("journal_start", "starting a handle"),
    ("credit_wait", "threads that waited for credits"),
];

/// Returns the report as one page that loads nothing.
pub fn html(results: &Results) -> String {
    let mut page = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>lanefs lab</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<header><h1>lanefs lab</h1>\n<p>{}</p>\n<p>lanefs {}, {}. Made by \
         <code>{}</code></p>\n",
        Text(&results.machine.line()),
        Text(&results.version),
        utc(results.began),
        Text(&results.command),
    );
    if !results.machine.tools.is_empty() {
        let _ = writeln!(page, "<p>{}</p>", Text(&results.machine.tools.join("; ")));
    }
    let options: Vec<String> =
        results.options.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let _ = write!(
        page,
        "<p>{}</p>\n<p>Whole lines were measured in this run, and their bars reach from the least to the most of its rounds. \
         Dashed lines were published by others, of another machine. Dotted lines are of a simulated device, or predicted; \
         what is shaded was not measured in this run.</p>\n<nav>",
        Text(&options.join(", "))
    );
    for experiment in &results.experiments {
        let _ = write!(page, "<a href=\"#{0}\">{0}</a> ", Text(&experiment.name));
    }
    page.push_str("</nav></header>\n<main>\n");
    let palette = Palette::of(results);
    for experiment in &results.experiments {
        section(&mut page, experiment, &palette);
    }
    page + "</main>\n</body>\n</html>\n"
}

/// Writes an experiment: its answers, the first chart of each case, and all else on demand.
fn section(page: &mut String, experiment: &ExperimentResult, palette: &Palette) {
    let _ = writeln!(page, "<section id=\"{0}\"><h2>{0}</h2>", Text(&experiment.name));
    list(page, "answers", &experiment.answers);
    let _ =
        writeln!(page, "<p class=\"question\">{}</p>\n<div class=\"charts\">", Text(&experiment.question));
    for chart in experiment.cases.iter().filter_map(|case| charts(case).next()) {
        drawn_or_told(page, chart, palette);
    }
    page.push_str("</div>\n<details class=\"more\"><summary>more charts, counters, findings</summary>\n");
    list(page, "findings", &experiment.findings);
    for case in &experiment.cases {
        let _ = writeln!(page, "<h3>{}</h3>\n<div class=\"charts\">", Text(&case.title));
        for chart in charts(case).skip(1) {
            drawn_or_told(page, chart, palette);
        }
        heats(page, experiment, case);
        page.push_str("</div>\n");
        verdicts(page, case);
        counters(page, case);
    }
    if !experiment.left_out.is_empty() {
        page.push_str("<h3>Left out</h3>\n");
        list(page, "left-out", &experiment.left_out);
    }
    page.push_str("</details></section>\n");
}

/// Returns the charts of a case that have lines. The first is the one that everybody sees.
fn charts(case: &CaseResult) -> impl Iterator<Item = &Chart> {
    case.charts.iter().filter(|chart| !chart.series.is_empty())
}

/// Writes a chart, or a sentence if its lines are flat.
fn drawn_or_told(page: &mut String, chart: &Chart, palette: &Palette) {
    match is_flat(chart) {
        true => in_words(page, chart),
        false => figure_of(page, chart, palette),
    }
}

/// Returns whether one or two lines have the same figure everywhere. A sentence then says as much.
fn is_flat(chart: &Chart) -> bool {
    let flat = |series: &Series| {
        let medians = || series.points.iter().map(|p| p.median);
        let (least, most) = (medians().fold(f64::INFINITY, f64::min), medians().fold(0.0, f64::max));
        figure(least) == figure(most)
    };
    chart.series.len() <= 2 && chart.series.iter().all(flat)
}

fn in_words(page: &mut String, chart: &Chart) {
    let said: Vec<String> = (chart.series.iter())
        .filter_map(|s| Some(format!("{} {}", label(s), figure(s.points.first()?.median))))
        .collect();
    let _ = writeln!(
        page,
        "<figure data-flat=\"{}\"><figcaption>{} ({})</figcaption>\n<p>Everywhere: {}</p></figure>",
        Text(&chart.name),
        Text(&chart.title),
        Text(&chart.unit),
        Text(&said.join(", "))
    );
}

fn list(page: &mut String, class: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(page, "<ul class=\"{class}\">");
    for line in lines {
        let _ = writeln!(page, "<li>{}</li>", Text(line));
    }
    page.push_str("</ul>\n");
}

fn figure_of(page: &mut String, chart: &Chart, palette: &Palette) {
    let _ = write!(
        page,
        "<figure><figcaption>{} ({})</figcaption>\n{}",
        Text(&chart.title),
        Text(&chart.unit),
        inline(chart, palette)
    );
    if !has_names(chart) {
        legend(page, chart, palette);
    }
    figures(page, chart);
    page.push_str("</figure>\n");
}

fn legend(page: &mut String, chart: &Chart, palette: &Palette) {
    page.push_str("<ul class=\"legend\">\n");
    for (series, color) in chart.series.iter().zip(palette.colors(chart)) {
        let source = series.source.as_ref().map(|s| format!(" title=\"{}\"", Text(s))).unwrap_or_default();
        let _ = writeln!(
            page,
            "<li{source}><svg viewBox=\"0 0 28 8\" class=\"key\"><path d=\"M0 4h28\" stroke=\"{}\" stroke-width=\"3\"{}/></svg>{}</li>",
            COLORS[color],
            dashes(series.origin),
            Text(&label(series)),
        );
    }
    page.push_str("</ul>\n");
}

fn figures(page: &mut String, chart: &Chart) {
    page.push_str("<details><summary>figures</summary><div class=\"wide\"><table>\n<tr><th>");
    let _ = write!(page, "{}</th>", Text(&chart.axis));
    let places = places(chart);
    for at in &places {
        let _ = write!(page, "<th>{at}</th>");
    }
    page.push_str("</tr>\n");
    for series in &chart.series {
        let _ = write!(page, "<tr><td>{}</td>", Text(&label(series)));
        for at in &places {
            let cell = series.at(*at).map(|p| {
                format!("{} <small>{} to {}</small>", figure(p.median), figure(p.min), figure(p.max))
            });
            let _ = write!(page, "<td>{}</td>", cell.unwrap_or_default());
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
    let mut sources: Vec<&str> = chart.series.iter().filter_map(|s| s.source.as_deref()).collect();
    sources.dedup();
    for source in sources {
        let _ = writeln!(page, "<p class=\"source\">{}</p>", Text(source));
    }
    page.push_str("</details>\n");
}

/// Maps of the latencies where most threads were.
fn heats(page: &mut String, experiment: &ExperimentResult, case: &CaseResult) {
    let most = case.details.iter().map(|d| d.at).max().unwrap_or(0);
    let published = if experiment.name == "fsync-storm" { fsync_storm_histograms() } else { Vec::new() };
    for (what, meaning) in HEATS {
        let of = |d: &'_ Detail| d.at == most && d.histograms.contains_key(what);
        let own = case.details.iter().filter(|d| of(d)).filter_map(|d| {
            let hist = d.histograms.get(what)?;
            Some(Column { name: d.series.clone(), published: false, hist })
        });
        let theirs = published.iter().filter(|(_, of, _)| *of == what).map(|(mode, _, hist)| Column {
            name: format!("ext4 {mode} (004)"),
            published: true,
            hist,
        });
        let own: Vec<Column<'_>> = own.collect();
        // A map of the cache hits of two contenders says nothing.
        if own.is_empty() || (experiment.name != "fsync-storm" && what != "read_direct") {
            continue;
        }
        let columns: Vec<Column<'_>> = own.into_iter().chain(theirs).collect();
        let title = format!("How long {meaning} takes, {most} threads");
        let name = format!("{}/{}/{what}", experiment.name, case.name);
        if let Some(map) = heat::map(&name, &title, &columns) {
            let _ = writeln!(page, "<figure><figcaption>{}</figcaption>\n{map}</figure>", Text(&title));
        }
    }
}

fn verdicts(page: &mut String, case: &CaseResult) {
    if case.verdicts.is_empty() {
        return;
    }
    page.push_str("<details><summary>held against each other</summary><div class=\"wide\"><table>\n");
    for v in &case.verdicts {
        let metric = v.chart.rsplit('/').next().unwrap_or("");
        let said =
            if v.seen { format!("{:.2}", v.ratio) } else { format!("no difference seen ({:.2})", v.ratio) };
        let _ = writeln!(
            page,
            "<tr><td>{} over {}</td><td>{metric} at {}</td><td>{said}</td></tr>",
            Text(&v.this),
            Text(&v.that),
            v.at
        );
    }
    page.push_str("</table></div></details>\n");
}

/// Writes the counters of volumes at the highest thread count.
fn counters(page: &mut String, case: &CaseResult) {
    let most = case.details.iter().map(|d| d.at).max().unwrap_or(0);
    let details: Vec<&Detail> =
        case.details.iter().filter(|d| d.at == most && !d.counters.is_empty()).collect();
    let Some(first) = details.first() else { return };
    let _ = write!(
        page,
        "<details><summary>counted at {most}, all rounds</summary><div class=\"wide\"><table>\n<tr><th></th>"
    );
    for detail in &details {
        let _ = write!(page, "<th>{}</th>", Text(&detail.series));
    }
    page.push_str("</tr>\n");
    for name in first.counters.keys().filter(|name| details.iter().any(|d| d.counter(name) > 0)) {
        let _ = write!(page, "<tr><td>{}</td>", Text(name));
        for detail in &details {
            let _ = write!(page, "<td>{}</td>", detail.counter(name));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div></details>\n");
}

/// Formats seconds since 1970 as a date and time.
fn utc(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| format!("@{seconds}"), |time| time.strftime("%Y-%m-%d %H:%M UTC").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::chart;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_795_000_000), "2026-11-18 11:06 UTC");
    }

    #[test]
    fn two_flat_lines_are_no_chart() {
        let one = chart(&[1.0, 1.001]);
        let mut two = one.clone();
        two.series.push(two.series[0].clone());
        let mut three = two.clone();
        three.series.push(three.series[0].clone());
        assert!(is_flat(&one) && is_flat(&two) && !is_flat(&three) && !is_flat(&chart(&[1.0, 2.0])));
        let mut page = String::new();
        in_words(&mut page, &two);
        assert!(page.contains("Everywhere: &quot;x&quot; &amp; y [simulated] 1.00, "), "{page}");
    }
}
