//! The command without a mount of lanefs: volumes, images, archives, the host. In one binary, which
//! is linked once and whose tests run side by side; each file has its own subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

mod build;
mod copy;
mod damaged;
mod diff;
mod fallocate;
mod frag;
mod host;
mod hostile_archives;
mod images;
mod info;
mod install;
#[cfg(feature = "lab")]
mod lab;
mod listing;
mod mkfs;
mod namespace;
mod oci;
mod owners;
mod pages;
mod partitions;
mod recover;
mod remote;
mod remote_filters;
mod remote_rbd;
mod remote_servers;
mod resize;
mod run;
mod small;
mod sparse;
mod stacks;
mod streams;
mod support;
mod transfer;
mod verity;
