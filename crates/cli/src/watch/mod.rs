//! A mount as seen from outside: a socket that `lanefs top` asks, and metrics for Prometheus.
//!
//! [`Server`] is the one thread beside those that serve the kernel: it waits for signals, for its
//! owner at a socket that nobody else can reach ([`place`]), and, if it was told to, for programs
//! of this machine at a port. It sleeps until one of them comes, and no client can make it wait:
//! all are asked in turn, for a bounded time and a bounded request ([`client`]).

mod answer;
mod ask;
mod client;
pub(crate) mod place;
mod prometheus;
mod server;

pub(crate) use answer::Subject;
pub(crate) use ask::{Refusal, ask};
pub(crate) use place::Place;
pub(crate) use server::{Server, Signals};
