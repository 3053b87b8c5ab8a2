//! A lanefs volume as a mount: what a kernel ext4 mount gives a program, through FUSE.
//!
//! [`Session::mount`] mounts, [`Session::serve`] answers the kernel until the mount is gone, and
//! then closes the volume. The kernel caches as for a file system of its own: no other process can
//! change the volume. Why the protocol is spoken here: `docs/adr/0009-own-fuse-protocol.md`.

#![forbid(unsafe_code)]

mod attr;
mod bdi;
mod broker;
mod broker_process;
mod buffers;
mod caller;
mod channel;
mod connection;
mod error;
mod fault;
mod filesystem;
mod fullness;
mod fusermount;
mod handles;
mod init;
mod monitor;
mod mountpoint;
mod node_files;
mod nodes;
mod notifier;
mod options;
mod owners;
mod pass;
mod remounts;
mod request;
mod scheduling;
mod server;
mod session;
mod table;
mod users;
mod wire;

pub use broker::Broker;
pub use broker_process::run_broker;
pub use error::{MountError, SessionError};
pub use monitor::Monitor;
pub use mountpoint::{MountPoint, await_closing, is_mounted};
pub use options::{MOUNT_OPTIONS, MountOption, MountOptions, OptionError, OptionKind, SandboxMode};
pub use server::MountStats;
pub use session::{Session, Unmounter};
pub use table::MountDevice;
pub use users::{UsedBy, User, users};
