//! A volume on an NBD server: qemu-nbd, nbdkit, nbd-server, and what they serve.
//!
//! From the bytes up: `request` and `reply` are the codec, `handshake` the negotiation, `link` and
//! `leader` one connection that threads share, `session` the connections to an export. `client`
//! makes them again when they are lost, and [`NbdDevice`] is the block device.
//!
//! Invariants:
//! - What a flush has made durable is as durable as the server says.
//! - A server that is killed and started again within `reconnect=` loses nothing that was
//!   acknowledged, as long as the client lives: the client writes again what was not flushed.
//! - A server that breaks the protocol ends the device with an error, without a panic or an endless
//!   wait.
//!
//! Hazard: no lock keeps another host out (see `claim`).

mod allocation;
mod bursts;
mod claim;
mod client;
mod device;
mod error;
mod handshake;
mod job;
mod leader;
mod link;
mod outgoing;
mod reader;
mod receive;
mod reply;
mod request;
mod session;
mod socket;
mod stream;
mod table;
#[cfg(feature = "tls")]
mod tls;
mod unflushed;
mod url;
mod wire;

pub use device::NbdDevice;
pub use error::NbdError;
pub use handshake::NbdExport;
#[cfg(unix)]
pub use socket::{dial, dial_by};
pub(crate) use url::split_part;
pub use url::{NbdAddress, NbdUrl, without_password};
pub use wire::ExportFlags;

use std::fmt;

/// The least room for what is kept until a flush, in bytes.
const LEAST_UNFLUSHED: u64 = 4 << 20;

/// A failure of an NBD device: the source of a [`DeviceError`](crate::DeviceError).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdFailure {
    /// The URL, if the export could not be opened.
    pub url: Option<String>,
    /// The reason.
    pub why: NbdError,
}

impl fmt::Display for NbdFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.url {
            Some(url) => write!(f, "{url}: {}", self.why),
            None => write!(f, "{}", self.why),
        }
    }
}

impl std::error::Error for NbdFailure {}
