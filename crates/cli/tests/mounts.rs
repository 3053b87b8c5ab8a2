//! The command where it mounts: a test has a mount of lanefs, and they run one at a time
//! (`support/mount.rs`). In one binary, which is linked once; each file has its own subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

mod atime;
mod broker;
mod check;
mod copy_mounted;
mod fewer_requests;
mod fsverity;
mod full;
mod growth;
mod helpers;
mod json;
mod limits;
mod mmp;
mod mount;
mod mount_cache;
mod remote_ceph;
mod remote_mount;
mod sandbox;
mod support;
mod top;
mod unmount;
