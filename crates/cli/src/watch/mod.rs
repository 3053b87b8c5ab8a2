//! A mount as seen from outside: a socket that `lanefs top` asks, and metrics for Prometheus.
//!
//! [`Server`] is the one thread beside those that serve the kernel: it waits for signals, for its
//! owner at a socket that nobody else can reach ([`place`]), and, if it was told to, for programs
//! of this machine at a port. It sleeps until one of them comes, and no client can make it wait:
//! all are asked in turn, for a bounded time and a bounded request ([`client`]). `lanefs check` of
//! a volume in use has its device held in one committed state ([`hold`]).

mod answer;
mod ask;
mod client;
mod hold;
pub(crate) mod place;
mod prometheus;
mod server;

pub(crate) use answer::Subject;
pub(crate) use ask::{Held, Refusal, ask};
pub(crate) use hold::LIMIT;
pub(crate) use place::Place;
pub(crate) use server::{Server, Signals};
