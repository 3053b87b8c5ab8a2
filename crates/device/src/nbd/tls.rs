//! TLS over a connection to a server, by rustls.
//!
//! The server's certificate is always verified: by `ca-cert.pem` of the folder that the URL names,
//! or else by the certificates of the system. `client-cert.pem` and `client-key.pem` of that
//! folder, if they are there, identify the client to the server. These are the names that qemu and
//! libnbd use.

use super::error::NbdError;
use super::stream::{Readiness, Stream};
use super::url::{NbdAddress, NbdUrl};
use super::wire::{TICK, is_tick};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Where systems keep the certificates that they trust.
const SYSTEM: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// The most bytes of content that are encrypted at a time.
const MOST: usize = 64 << 10;

/// What a connection needs, read at open.
#[derive(Debug)]
pub(crate) struct TlsSettings {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

fn failed(why: impl ToString) -> NbdError {
    NbdError::Tls { why: why.to_string() }
}

impl TlsSettings {
    /// Reads the certificates.
    ///
    /// # Errors
    /// [`NbdError::Tls`], with the file.
    pub(crate) fn new(url: &NbdUrl) -> Result<Self, NbdError> {
        let folder = url.tls_certificates.as_deref();
        let in_folder = |name| folder.map(|dir| dir.join(name));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(failed)?.with_root_certificates(roots(in_folder("ca-cert.pem"))?);
        let own = in_folder("client-cert.pem").filter(|path| path.exists());
        let config = match (own, in_folder("client-key.pem")) {
            (Some(chain), Some(key)) => {
                let of_key = |e| failed(format!("{}: {e}", key.display()));
                let key = PrivateKeyDer::from_pem_file(&key).map_err(of_key)?;
                builder.with_client_auth_cert(certificates(&chain)?, key).map_err(failed)?
            }
            _ => builder.with_no_client_auth(),
        };
        let host = match (&url.tls_hostname, &url.address) {
            (Some(name), _) => name.clone(),
            (None, NbdAddress::Tcp { host, .. }) => host.clone(),
            (None, NbdAddress::Unix(_)) => "localhost".into(),
        };
        let bad_name = |_| failed(format!("{host:?} is no name that a certificate can have"));
        let name = ServerName::try_from(host.clone()).map_err(bad_name)?;
        Ok(Self { config: Arc::new(config), name })
    }

    /// Begins TLS on a connection.
    ///
    /// # Errors
    /// A loss; a certificate that is not trusted.
    pub(super) fn upgrade(&self, below: Stream, timeout: Duration) -> Result<TlsSocket, NbdError> {
        let mut session =
            ClientConnection::new(Arc::clone(&self.config), self.name.clone()).map_err(failed)?;
        session.set_buffer_limit(None);
        let incoming = Mutex::new(Incoming { raw: vec![0; 32 << 10], start: 0, end: 0 });
        let tls = TlsSocket { below, session: Mutex::new(session), incoming, unsent: Mutex::default() };
        let deadline = Instant::now() + timeout;
        loop {
            let stepped = match tls.send_out() {
                Ok(()) if !tls.session(|session| session.is_handshaking()) => {
                    return Ok(tls);
                }
                Ok(()) => tls.receive(),
                Err(e) => Err(e),
            };
            match stepped {
                Ok(0) => return Err(NbdError::Closed),
                Ok(_) => {}
                Err(e) if is_tick(&e) => {}
                Err(e) => return Err(super::wire::lost(&e)),
            }
            if Instant::now() > deadline {
                return Err(NbdError::Timeout { what: "TLS handshake", seconds: timeout.as_secs() });
            }
        }
    }
}

fn roots(file: Option<PathBuf>) -> Result<RootCertStore, NbdError> {
    let mut roots = RootCertStore::empty();
    let file =
        match file {
            Some(file) => file,
            None => SYSTEM.iter().map(PathBuf::from).find(|path| path.exists()).ok_or_else(|| {
                failed("there are no trusted certificates: tls-certificates=DIR names some")
            })?,
        };
    roots.add_parsable_certificates(certificates(&file)?);
    match roots.is_empty() {
        true => Err(failed(format!("{}: there is no certificate in it", file.display()))),
        false => Ok(roots),
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, NbdError> {
    let bad = |e| failed(format!("{}: {e}", file.display()));
    CertificateDer::pem_file_iter(file).map_err(bad)?.collect::<Result<_, _>>().map_err(bad)
}

/// Bytes that have come and were not decrypted yet.
#[derive(Debug)]
struct Incoming {
    raw: Vec<u8>,
    start: usize,
    end: usize,
}

/// Encrypted bytes that the socket has not taken yet. TLS will not give them again, and their order
/// counts.
#[derive(Debug, Default)]
struct Unsent {
    bytes: Vec<u8>,
    start: usize,
}

impl Unsent {
    /// Adds what TLS has to send.
    fn add(&mut self, session: &mut ClientConnection) -> io::Result<()> {
        while session.wants_write() {
            session.write_tls(&mut self.bytes)?;
        }
        Ok(())
    }

    /// Sends all that the socket takes.
    fn send(&mut self, below: &Stream) -> io::Result<()> {
        while self.start < self.bytes.len() {
            self.start += below.send(&self.bytes[self.start..], false)?;
        }
        self.bytes.clear();
        self.start = 0;
        Ok(())
    }
}

/// A connection with TLS. One thread reads and one sends at a time.
#[derive(Debug)]
pub(crate) struct TlsSocket {
    below: Stream,
    session: Mutex<ClientConnection>,
    incoming: Mutex<Incoming>,
    unsent: Mutex<Unsent>,
}

impl TlsSocket {
    pub(crate) fn below(&self) -> &Stream {
        &self.below
    }

    fn session<T>(&self, act: impl FnOnce(&mut ClientConnection) -> T) -> T {
        act(&mut self.session.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn incoming(&self) -> MutexGuard<'_, Incoming> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unsent(&self) -> MutexGuard<'_, Unsent> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session(|session| session.reader().read(buf)) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if self.receive()? == 0 {
                return Ok(0);
            }
            if self.session(|session| session.wants_write()) {
                self.answer()?;
            }
        }
    }

    /// Returns whether a read may find something without the socket.
    pub(crate) fn has_input(&self) -> bool {
        let has_raw = {
            let incoming = self.incoming();
            incoming.start < incoming.end
        };
        has_raw || self.session(|session| !session.wants_read())
    }

    /// Receives and decrypts some. Returns 0 at the end.
    fn receive(&self) -> io::Result<usize> {
        let mut incoming = self.incoming();
        if incoming.start == incoming.end {
            let got = self.below.read(&mut incoming.raw)?;
            (incoming.start, incoming.end) = (0, got);
            if got == 0 {
                return Ok(0);
            }
        }
        let taken = self.session(|session| {
            let begun = !session.is_handshaking();
            let taken = session.read_tls(&mut &incoming.raw[incoming.start..incoming.end])?;
            session.process_new_packets().map_err(|e| meaning(&e, begun))?;
            io::Result::Ok(taken)
        })?;
        incoming.start += taken;
        Ok(taken.max(1))
    }

    /// Encrypts and sends some of the bytes, without waiting.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut unsent = self.unsent();
        unsent.send(&self.below)?;
        let written = self.session(|session| {
            let written = session.writer().write(&bytes[..bytes.len().min(MOST)])?;
            unsent.add(session)?;
            io::Result::Ok(written)
        })?;
        // They are taken, whether or not the socket takes them now.
        match unsent.send(&self.below) {
            Err(e) if !is_tick(&e) => Err(e),
            _ => Ok(written),
        }
    }

    /// Sends what [`send`](Self::send) has taken.
    pub(crate) fn finish_sending(&self) -> io::Result<()> {
        self.unsent().send(&self.below)
    }

    /// Sends what TLS itself has to say. Waits for a tick at most.
    fn send_out(&self) -> io::Result<()> {
        let mut unsent = self.unsent();
        self.session(|session| unsent.add(session))?;
        let sent = unsent.send(&self.below);
        if sent.as_ref().is_err_and(is_tick) {
            self.below.wait(Readiness { read: false, write: true }, TICK)?;
        }
        sent
    }

    /// As [`send_out`](Self::send_out), from a thread that reads. It does not wait: a server that
    /// takes nothing may wait for it to read. What is left goes out before what is sent next.
    fn answer(&self) -> io::Result<()> {
        let Ok(mut unsent) = self.unsent.try_lock() else { return Ok(()) };
        self.session(|session| unsent.add(session))?;
        match unsent.send(&self.below) {
            Err(e) if !is_tick(&e) => Err(e),
            _ => Ok(()),
        }
    }
}

/// Returns what an error of TLS means. A server that ends a connection which had `begun` by an
/// alert is one that closes it.
fn meaning(e: &rustls::Error, begun: bool) -> io::Error {
    let kind = match e {
        rustls::Error::AlertReceived(_) if begun => io::ErrorKind::ConnectionAborted,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, e.to_string())
}

#[cfg(all(test, unix))]
mod tests;
