//! An NBD client whose server sends the input. The first byte chooses whether the negotiation is of
//! the input too, or a right one that comes before it: with structured replies, with simple ones.
#![no_main]

use lanefs_device::{BlockDevice, FileOptions, NbdDevice, dial_by};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Once;

const REPLY: u64 = 0x0003_e889_0455_65a9;

thread_local! {
    /// What the server sends, and its end of the connection.
    static SERVER: RefCell<(Vec<u8>, Option<UnixStream>)> = const { RefCell::new((Vec::new(), None)) };
}

/// Returns the answer of a server to an option.
fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = REPLY.to_be_bytes().to_vec();
    [option, kind, data.len() as u32].iter().for_each(|n| bytes.extend_from_slice(&n.to_be_bytes()));
    bytes.extend_from_slice(data);
    bytes
}

/// Returns a negotiation that ends with an export of 1 MiB.
fn negotiation(structured: bool) -> Vec<u8> {
    let mut bytes = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
    if structured {
        bytes.extend(answer(8, 1, &[]));
        bytes.extend(answer(10, 4, b"\0\0\0\x01base:allocation"));
        bytes.extend(answer(10, 1, &[]));
    } else {
        bytes.extend(answer(8, 1 << 31 | 1, &[]));
    }
    let flags: u16 = 1 | 1 << 2 | 1 << 5 | 1 << 6;
    let export = [&[0, 0][..], &(1u64 << 20).to_be_bytes(), &flags.to_be_bytes()].concat();
    bytes.extend(answer(7, 3, &export));
    bytes.extend(answer(7, 1, &[]));
    bytes
}

fn connect() -> std::io::Result<std::os::fd::OwnedFd> {
    SERVER.with_borrow_mut(|(bytes, held)| {
        let (ours, mut theirs) = UnixStream::pair()?;
        theirs.write_all(bytes)?;
        theirs.shutdown(Shutdown::Write)?;
        *held = Some(theirs);
        Ok(ours.into())
    })
}

fuzz_target!(|input: &[u8]| {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| dial_by(connect));
    let [how, rest @ ..] = input else { return };
    let mut bytes = match how % 3 {
        0 => Vec::new(),
        how => negotiation(how == 1),
    };
    // What a socket takes without a reader.
    bytes.extend_from_slice(&rest[..rest.len().min(64 << 10)]);
    SERVER.with_borrow_mut(|server| server.0 = bytes);
    let url = "nbd+unix:///x?socket=/none&reconnect=0&timeout=1";
    let Ok(device) = NbdDevice::open(url, None, &FileOptions::new()) else { return };
    let mut small = [0; 4096];
    let _ = device.read_at(&mut small, 512);
    let _ = device.write_at(&small, 0);
    let _ = device.read_at(&mut vec![0; 256 << 10], 0);
    let _ = device.flush();
});
