//! Judges of the mount: programs that others wrote, and real work, on a mounted volume.
//!
//! Each judge ends with an unmount and a silent `e2fsck -fn`. `LANEFS_SERVER=kernel` or `fuse2fs`
//! runs the same judges on a peer, which tests the judges themselves. `make judge-mount` runs the
//! long forms. `make test` installs the programs that judges need; a missing program is a failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panic")]

mod databases;
mod devices;
mod differential;
mod durable;
mod exercise;
mod faults;
mod fio;
mod idle;
mod lmdb;
mod mount8;
mod namespaces;
mod overlay;
mod permissions;
mod pjd;
mod requests;
mod stress;
mod support;
mod waits;
mod work;
