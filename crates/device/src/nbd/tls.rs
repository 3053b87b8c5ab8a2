//! TLS over a connection to a server, by rustls.
//!
//! The server's certificate is always verified: by `ca-cert.pem` of the folder that the URL names,
//! or else by the certificates of the system. `client-cert.pem` and `client-key.pem` of that
//! folder, if they are there, tell the server who the client is. These are the names that qemu and
//! libnbd use.

use super::error::NbdError;
use super::socket::Socket;
use super::url::{NbdAddress, NbdUrl};
use super::wire::is_tick;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
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
    pub(crate) fn upgrade(&self, below: Socket, timeout: Duration) -> Result<Socket, NbdError> {
        let mut session =
            ClientConnection::new(Arc::clone(&self.config), self.name.clone()).map_err(failed)?;
        session.set_buffer_limit(None);
        let incoming = Mutex::new(Incoming { raw: vec![0; 32 << 10], start: 0, end: 0 });
        let (session, sending) = (Mutex::new(session), Mutex::new(()));
        let tls = TlsSocket { below, session, incoming, sending, timeout };
        let deadline = Instant::now() + timeout;
        while tls.session(|session| session.is_handshaking()) {
            let stepped = tls.send_out().and_then(|()| {
                let still = tls.session(|session| session.is_handshaking());
                if still { tls.receive() } else { Ok(1) }
            });
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
        tls.send_out().map_err(|e| super::wire::lost(&e))?;
        Ok(Socket::Tls(Box::new(tls)))
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

/// A connection with TLS. One thread reads and one writes at a time.
#[derive(Debug)]
pub(crate) struct TlsSocket {
    below: Socket,
    session: Mutex<ClientConnection>,
    incoming: Mutex<Incoming>,
    /// Held while what was encrypted is sent: the order of records counts.
    sending: Mutex<()>,
    timeout: Duration,
}

impl TlsSocket {
    pub(crate) fn below(&self) -> &Socket {
        &self.below
    }

    fn session<T>(&self, act: impl FnOnce(&mut ClientConnection) -> T) -> T {
        act(&mut self.session.lock().unwrap_or_else(PoisonError::into_inner))
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
                self.send_out()?;
            }
        }
    }

    /// Receives and decrypts some. Returns 0 at the end.
    fn receive(&self) -> io::Result<usize> {
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        if incoming.start == incoming.end {
            let got = self.below.read(&mut incoming.raw)?;
            (incoming.start, incoming.end) = (0, got);
            if got == 0 {
                return Ok(0);
            }
        }
        let taken = self.session(|session| {
            let taken = session.read_tls(&mut &incoming.raw[incoming.start..incoming.end])?;
            let invalid = |e: rustls::Error| io::Error::new(io::ErrorKind::InvalidData, e.to_string());
            session.process_new_packets().map_err(invalid)?;
            io::Result::Ok(taken)
        })?;
        incoming.start += taken;
        Ok(taken.max(1))
    }

    pub(crate) fn write(&self, buf: &[u8]) -> io::Result<usize> {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let (written, out) = self.session(|session| {
            let written = session.writer().write(&buf[..buf.len().min(MOST)])?;
            Ok::<_, io::Error>((written, encrypted(session)?))
        })?;
        self.send(&out)?;
        Ok(written)
    }

    /// Sends what TLS itself has to say.
    fn send_out(&self) -> io::Result<()> {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let out = self.session(encrypted)?;
        self.send(&out)
    }

    /// Sends bytes that TLS will not give again.
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let (mut rest, deadline) = (bytes, Instant::now() + self.timeout);
        while !rest.is_empty() {
            match self.below.write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(e) if is_tick(&e) && Instant::now() < deadline => {}
                Err(e) if is_tick(&e) => return Err(io::Error::other("the server takes no more bytes")),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

fn encrypted(session: &mut ClientConnection) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut out)?;
    }
    Ok(out)
}
