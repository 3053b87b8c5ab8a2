//! Colours: one for each contender, the same in all charts of a report.

use crate::results::{Chart, Results, Series};
use std::collections::{BTreeMap, BTreeSet};

/// Told apart with most kinds of sight, on light and on dark; behind the first eight, the same ones
/// lighter.
pub(super) const COLORS: [&str; 16] = [
    "#0b74c4", "#d9622b", "#2f9e63", "#b5489b", "#8a7a00", "#5b63d6", "#0f8f9c", "#8d6e63", "#6bb6e8",
    "#f0a07c", "#7fd0a4", "#dc93c9", "#c9b93f", "#a5abf2", "#6ccbd4", "#c3a79b",
];

/// Peers of lanefs have these in every report: [`COLORS`] by number.
const PEERS: [(&str, usize); 3] = [("xfs", 3), ("raw", 7), ("ext4", 2)];

/// The colour of each contender by its name.
#[derive(Debug, Default)]
pub(super) struct Palette {
    of: BTreeMap<String, usize>,
}

impl Palette {
    /// Gives each name the first colour that no other name of its chart has.
    pub(super) fn of(results: &Results) -> Self {
        let mut palette = Self::default();
        for chart in results.charts() {
            let own = palette.colors(chart);
            let names = chart.series.iter().map(|s| s.name.clone());
            for (name, number) in names.zip(own) {
                palette.of.entry(name).or_insert(number);
            }
        }
        palette
    }

    /// Returns the number of the colour of each series. Two series of a chart never have the same
    /// one while there are others: a name that clashes gets another colour in this chart.
    pub(super) fn colors(&self, chart: &Chart) -> Vec<usize> {
        let known = |series: &Series| self.of.get(&series.name).copied();
        let mut used: BTreeSet<usize> = BTreeSet::new();
        let mut colors: Vec<Option<usize>> = Vec::new();
        for series in &chart.series {
            colors.push(known(series).filter(|number| used.insert(*number)));
        }
        for (series, color) in chart.series.iter().zip(&mut colors) {
            let peer = PEERS.iter().find(|(part, _)| series.name.to_lowercase().contains(part));
            let wanted = peer.map(|(_, number)| *number);
            let kept: Vec<usize> = PEERS.iter().map(|(_, number)| *number).collect();
            let free = |number: &usize| !used.contains(number);
            let others = (0..COLORS.len()).filter(|number| !kept.contains(number)).find(free);
            let chosen = color.or(wanted.filter(free)).or(others).or((0..COLORS.len()).find(free));
            used.extend(chosen);
            *color = chosen;
        }
        colors.into_iter().map(Option::unwrap_or_default).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::chart;

    fn named(names: &[&str]) -> Chart {
        let mut chart = chart(&[1.0]);
        let one = chart.series.remove(0);
        chart.series = names.iter().map(|name| Series { name: (*name).to_owned(), ..one.clone() }).collect();
        chart
    }

    #[test]
    fn a_name_keeps_its_colour_and_shares_it_with_none_of_its_chart() {
        let mut palette = Palette::default();
        let mut colors = |names: &[&str]| {
            let chart = named(names);
            let colors = palette.colors(&chart);
            for (name, number) in names.iter().zip(&colors) {
                palette.of.entry((*name).to_owned()).or_insert(*number);
            }
            let distinct: BTreeSet<usize> = colors.iter().copied().collect();
            assert_eq!(distinct.len(), names.len());
            colors
        };
        let first = colors(&["new", "old", "kernel ext4", "XFS", "raw"]);
        assert_eq!(first, [0, 1, 2, 3, 7]);
        assert_eq!(colors(&["queried", "always", "XFS"]), [0, 1, 3]);
        assert_eq!(colors(&["old", "other", "raw"]), [1, 0, 7]);
        // Two that have the same colour elsewhere.
        assert_eq!(colors(&["new", "queried"]), [0, 1]);
        let many: Vec<String> = (0..16).map(|n| format!("contender {n}")).collect();
        colors(&many.iter().map(String::as_str).collect::<Vec<_>>());
    }
}
