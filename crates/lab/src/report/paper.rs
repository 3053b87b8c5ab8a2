//! The measures that all charts have in common.

pub(super) const WIDTH: f64 = 480.0;
pub(super) const LEFT: f64 = 52.0;
pub(super) const RIGHT: f64 = 12.0;
