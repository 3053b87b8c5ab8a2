//! TLS that a server of rustls speaks. Its certificate is not looked at: cli's tests of nbdkit
//! verify some.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panic")]

use super::super::error::NbdError;
use super::super::socket::Socket;
use super::super::wire::lost;
use super::*;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::UnixTime;
use rustls::{DigitallySignedStruct, ServerConfig, ServerConnection, SignatureScheme};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

const CERTIFICATE: &[u8] = b"
-----BEGIN CERTIFICATE-----
MIIBlTCCATygAwIBAgIUU9dVl+5TqvAu2LmZrxQROU7woMUwCgYIKoZIzj0EAwIw
FjEUMBIGA1UEAwwLbGFuZWZzLXRlc3QwIBcNMjYxMTI1MTY1MDQ0WhgPMjEyNjEx
MDExNjUwNDRaMBYxFDASBgNVBAMMC2xhbmVmcy10ZXN0MFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEPeiWofnPyNGxVORQkbd/H0bb9ZxSSWcbZPDftyxD7bwTc/3L
TvHCiRe7ZmklsYcGTVubkwLIrMlOGU+lktupp6NmMGQwHQYDVR0OBBYEFGLKut8/
XRrO2C+lELLsO999q7aVMB8GA1UdIwQYMBaAFGLKut8/XRrO2C+lELLsO999q7aV
MBQGA1UdEQQNMAuCCWxvY2FsaG9zdDAMBgNVHRMBAf8EAjAAMAoGCCqGSM49BAMC
A0cAMEQCIEXF8zd8o9jyDv6ACDbqa3KuS04/UUUmCe0O6Z7GeBdlAiB0pmcV8+j2
9739I+J+qYfE1XucoYxqD4ixHW5C6/XzUA==
-----END CERTIFICATE-----
";

/// The key of that certificate, which nobody trusts.
const KEY: &[u8] = b"
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgNpwohtcgXqZeWMRM
jwzLqRiRsL0oYAvPNG+SBvSODz+hRANCAAQ96Jah+c/I0bFU5FCRt38fRtv1nFJJ
Zxtk8N+3LEPtvBNz/ctO8cKJF7tmaSWxhwZNW5uTAsisyU4ZT6WS26mn
-----END PRIVATE KEY-----
";

const TIME: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Connects to a server that does `act` after the handshake.
fn connected<T: Send + 'static>(
    act: impl FnOnce(ServerConnection, UnixStream) -> T + Send + 'static,
) -> (Socket, JoinHandle<T>) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(TICK)).unwrap();
    let server = std::thread::spawn(move || {
        let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(CERTIFICATE).unwrap()];
        let config = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let config = config.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap();
        let mut session = ServerConnection::new(Arc::new(config)).unwrap();
        while session.is_handshaking() || session.wants_write() {
            session.complete_io(&mut theirs).unwrap();
        }
        act(session, theirs)
    });
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let verifier = Arc::new(Anyone);
    let config = config.unwrap().dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let settings = TlsSettings { config: Arc::new(config), name };
    (Socket::Plain(Stream::Unix(ours)).upgrade(&settings, TIME).unwrap(), server)
}

/// Reads until `to` is full.
fn read(socket: &Socket, to: &mut [u8]) {
    let mut done = 0;
    while done < to.len() {
        match socket.read(&mut to[done..]) {
            Ok(n) => done += n,
            Err(e) => assert!(is_tick(&e), "{e}"),
        }
    }
}

/// Returns what a read ends with that finds no more.
fn end(socket: &Socket) -> NbdError {
    loop {
        match socket.read(&mut [0; 16]) {
            Ok(0) => return NbdError::Closed,
            Ok(_) => {}
            Err(e) if is_tick(&e) => {}
            Err(e) => return lost(&e),
        }
    }
}

/// The server takes no bytes and asks for new keys. What it sends is read all the same, and what
/// was sent before and after is in order.
#[test]
fn a_read_does_not_wait_for_a_send() {
    const SIZE: usize = 4 << 20;
    let (told, waits) = std::sync::mpsc::channel();
    let (socket, server) = connected(move |mut session, mut stream| {
        waits.recv().unwrap();
        session.refresh_traffic_keys().unwrap();
        session.writer().write_all(&[7; 10_000]).unwrap();
        while session.wants_write() {
            session.write_tls(&mut stream).unwrap();
        }
        waits.recv().unwrap();
        let mut got = vec![0; SIZE];
        rustls::Stream::new(&mut session, &mut stream).read_exact(&mut got).unwrap();
        got
    });
    let content: Vec<u8> = (0..SIZE).map(|i| (i / 3) as u8).collect();
    let (mut sent, mut is_full) = (0, false);
    while sent < SIZE || socket.finish_sending().is_err() {
        match socket.send(&content[sent..], false) {
            Ok(n) => sent += n,
            Err(e) => {
                assert!(is_tick(&e), "{e}");
                if !std::mem::replace(&mut is_full, true) {
                    told.send(()).unwrap();
                    let mut got = [0; 10_000];
                    read(&socket, &mut got);
                    assert_eq!(got, [7; 10_000]);
                    told.send(()).unwrap();
                }
                socket.wait(Readiness { read: false, write: true }, TICK).unwrap();
            }
        }
    }
    assert!(is_full && server.join().unwrap() == content);
}

/// However a server ends a connection, it is one that a new one may follow.
#[test]
fn the_end_of_a_connection_is_a_loss() {
    let (socket, server) = connected(|mut session, mut stream| {
        session.send_close_notify();
        session.write_tls(&mut stream).unwrap();
    });
    assert_eq!(end(&socket), NbdError::Closed);
    server.join().unwrap();
    let (socket, server) = connected(|_, stream| drop(stream));
    assert_eq!(end(&socket), NbdError::Closed);
    server.join().unwrap();
    // An alert: here of a server that does not understand what it was sent.
    let (told, waits) = std::sync::mpsc::channel();
    let (socket, server) = connected(move |mut session, mut stream| {
        told.send(()).unwrap();
        while session.process_new_packets().is_ok() {
            session.read_tls(&mut stream).unwrap();
        }
        session.write_tls(&mut stream).unwrap();
    });
    waits.recv().unwrap();
    let Socket::Tls(tls) = &socket else { panic!("{socket:?}") };
    tls.below().send(b"\x17\x03\x03\x00\x20 no record of this connection...", false).unwrap();
    assert_eq!(end(&socket), NbdError::Closed);
    server.join().unwrap();
}

/// What is no TLS is not tried again: no other server may be in its place.
#[test]
fn bytes_that_are_no_record_are_an_error() {
    let (socket, server) = connected(|_, mut stream| stream.write_all(b"HTTP/1.1 400 Bad Request").unwrap());
    let e = end(&socket);
    assert!(matches!(e, NbdError::Tls { .. }), "{e}");
    server.join().unwrap();
}
