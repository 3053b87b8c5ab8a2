//! The measures that all charts have in common.

use super::xml::Text;
use crate::results::{Point, Series};
use crate::table::{figure, label};

pub(super) const WIDTH: f64 = 480.0;
pub(super) const LEFT: f64 = 52.0;
pub(super) const RIGHT: f64 = 12.0;

/// Returns the title of a mark, which a browser shows with it: its series, its figure and where.
pub(super) fn title(series: &Series, point: &Point) -> String {
    let [median, min, max] = [point.median, point.min, point.max].map(figure);
    format!("<title>{}: {median} at {} ({min} to {max})</title>", Text(&label(series)), point.at)
}
