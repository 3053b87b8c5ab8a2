//! A mount as seen from outside: a socket that `lanefs top` asks, and metrics for Prometheus.
//!
//! [`WatchServer`] runs one thread beside the threads that serve the kernel. It waits for:
//! - signals;
//! - the owner of the mount, on a socket that no other user can reach ([`place`]);
//! - programs of this machine on a port, if an option says so.
//!
//! It serves all clients in turn, each with a bounded request and for a bounded time ([`client`]).
//! For `lanefs check` of a volume in use, it holds the device in one committed state ([`hold`]).
//! `lanefs umount` hears how the mount has ended ([`end`]).

mod answer;
mod ask;
mod client;
mod end;
mod hold;
pub(crate) mod place;
mod prometheus;
mod server;

pub(crate) use answer::Subject;
pub(crate) use ask::{AwaitedEnd, HeldMount, Refusal, ask};
pub(crate) use end::EndWaiters;
pub(crate) use hold::LIMIT;
pub(crate) use place::SocketPlace;
pub(crate) use server::{Signals, WatchServer};
