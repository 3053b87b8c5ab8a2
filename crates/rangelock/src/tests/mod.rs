//! Tests that look inside: against a plain model, by loom, and by stress.

#[cfg(loom)]
mod loom;
#[cfg(not(loom))]
mod model;
#[cfg(not(loom))]
mod mutex;
#[cfg(not(loom))]
mod stress;
#[cfg(not(loom))]
mod unit;
