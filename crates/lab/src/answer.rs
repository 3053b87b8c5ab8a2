//! The answer of a case in a sentence, computed from its verdicts.

use crate::results::{Better, Chart, Verdict};

/// Returns what the new way gains over the old one: "1.4 to 3.6 times faster without a handle, at 2
/// threads and more". `gain` says in words how the new way differs; `verdicts` hold it against the
/// old one at the points of `chart`. `None` without any.
pub(crate) fn answer(title: &str, gain: &str, chart: &Chart, verdicts: &[&Verdict]) -> Option<String> {
    let better = |v: &Verdict| match chart.better {
        Better::Higher => v.ratio,
        Better::Lower => 1.0 / v.ratio,
    };
    let all: Vec<u64> = verdicts.iter().map(|v| v.at).collect();
    let mut said = Vec::new();
    for (word, faster) in [("faster", true), ("slower", false)] {
        let of: Vec<_> = verdicts.iter().filter(|v| v.seen && (better(v) > 1.0) == faster).collect();
        let times = of.iter().map(|v| if faster { better(v) } else { 1.0 / better(v) });
        let (least, most) = times.fold((f64::INFINITY, 0.0_f64), |(a, b), t| (a.min(t), b.max(t)));
        if most > 0.0 {
            let places = places(&of.iter().map(|v| v.at).collect::<Vec<_>>(), &all, &chart.axis);
            let gain = if said.is_empty() { format!(" {gain}") } else { String::new() };
            said.push(format!("{} times {word}{gain}{places}", range(least, most)));
        }
    }
    let unseen: Vec<u64> = verdicts.iter().filter(|v| !v.seen).map(|v| v.at).collect();
    if !unseen.is_empty() {
        said.push(format!("no difference seen{}", places(&unseen, &all, &chart.axis)));
    }
    (!said.is_empty()).then(|| format!("{title}: {}.", said.join("; ")))
}

fn range(least: f64, most: f64) -> String {
    let shown = |t: f64| if t < 9.95 { format!("{t:.1}") } else { format!("{t:.0}") };
    let (least, most) = (shown(least), shown(most));
    if least == most { least } else { format!("{least} to {most}") }
}

/// Returns where on the axis: nothing for everywhere.
fn places(of: &[u64], all: &[u64], axis: &str) -> String {
    let unit = axis.split(' ').next().unwrap_or(axis);
    let one = |at: u64| if at == 1 { unit.trim_end_matches('s') } else { unit };
    match of {
        [at] if all.len() > 1 => format!(", at {at} {}", one(*at)),
        _ if of == all => String::new(),
        [first, .., _] if all.ends_with(of) => format!(", at {first} {} and more", one(*first)),
        [before @ .., last] => {
            let before: Vec<String> = before.iter().map(u64::to_string).collect();
            format!(", at {} and {last} {unit}", before.join(", "))
        }
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::chart;

    fn said(better: Better, ratios: &[(u64, f64, bool)]) -> Option<String> {
        let verdict = |&(at, ratio, seen): &(u64, f64, bool)| Verdict {
            chart: String::new(),
            at,
            this: String::new(),
            that: String::new(),
            ratio,
            seen,
        };
        let verdicts: Vec<Verdict> = ratios.iter().map(verdict).collect();
        let chart = Chart { better, ..chart(&[1.0]) };
        answer("Writes", "without a handle", &chart, &verdicts.iter().collect::<Vec<_>>())
    }

    #[test]
    fn sentences() {
        let is = |better, ratios: &[_], expected| assert_eq!(said(better, ratios).as_deref(), expected);
        is(Better::Higher, &[], None);
        is(
            Better::Higher,
            &[(1, 1.0, false), (2, 1.42, true), (4, 3.61, true)],
            Some(
                "Writes: 1.4 to 3.6 times faster without a handle, at 2 threads and more; no difference seen, at 1 thread.",
            ),
        );
        is(Better::Higher, &[(256, 26.2, true)], Some("Writes: 26 times faster without a handle."));
        is(Better::Lower, &[(1, 0.5, true)], Some("Writes: 2.0 times faster without a handle."));
        is(
            Better::Higher,
            &[(1, 0.5, true), (2, 1.2, false), (4, 2.0, true)],
            Some(
                "Writes: 2.0 times faster without a handle, at 4 threads; 2.0 times slower, at 1 thread; \
                 no difference seen, at 2 threads.",
            ),
        );
        is(Better::Higher, &[(1, 1.0, false), (2, 1.0, false)], Some("Writes: no difference seen."));
        is(
            Better::Higher,
            &[(1, 2.0, true), (2, 2.0, true), (4, 1.0, false)],
            Some(
                "Writes: 2.0 times faster without a handle, at 1 and 2 threads; no difference seen, at 4 threads.",
            ),
        );
    }
}
