//! An NBD server in this process, for tests of a client: it keeps what was not flushed apart from
//! what was, loses it when it is killed, and breaks each rule of the protocol when told to.
//!
//! It is written from the protocol's document, and shares no code with the client.

mod fault;
mod medium;
mod negotiate;
mod replies;
mod server;

pub use fault::{NbdFault, NbdKind};
pub use server::{NbdServer, NbdSettings};
