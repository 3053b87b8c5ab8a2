//! The server: a socket, a thread for each connection, and one medium.

use super::fault::{NbdFault, NbdKind, Rule};
use super::medium::{CachedImage, Medium, ServedDevice};
use super::negotiate::{Agreed, array, negotiate};
use super::replies::{Asked, failed, right, wrong};
use crate::Image;
use lanefs_device::BlockDevice;
use parking_lot::{Mutex, MutexGuard};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

const EINVAL: u32 = 22;
/// The flag of an export whose flush covers all connections.
const MULTI_CONN: u16 = 1 << 8;

/// What a server says of itself.
#[derive(Debug, Clone)]
pub struct NbdSettings {
    /// The name of the export.
    pub export: String,
    /// Transmission flags of the protocol. Without CAN_MULTI_CONN a flush covers the writes of its
    /// connection, and of those that have ended.
    pub flags: u16,
    /// It knows structured replies and block status.
    pub structured: bool,
    /// It knows GO and INFO.
    pub with_go: bool,
    /// The block sizes that it tells: smallest, preferred, largest.
    pub blocks: Option<(u32, u32, u32)>,
    /// What it sends instead of a greeting.
    pub greeting: Option<Vec<u8>>,
    /// How many connections it serves at a time. It takes others, and never greets them.
    pub clients: usize,
}

impl Default for NbdSettings {
    fn default() -> Self {
        Self {
            export: "x".into(),
            // HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES.
            flags: 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6,
            structured: true,
            with_go: true,
            blocks: None,
            greeting: None,
            clients: usize::MAX,
        }
    }
}

#[derive(Debug)]
struct State {
    settings: NbdSettings,
    medium: Medium,
    /// The size that the server tells.
    size: u64,
    rules: Vec<Rule>,
    /// Connections of an earlier one were closed by a kill.
    generation: u64,
    streams: Vec<UnixStream>,
    /// New connections are closed at once.
    down: bool,
    ended: bool,
    requests: Vec<NbdKind>,
    connections: u64,
    /// The connections that are served, by number.
    open: Vec<u64>,
}

/// An NBD server at a unix socket, until it is dropped.
#[derive(Debug)]
pub struct NbdServer {
    socket: PathBuf,
    state: Arc<Mutex<State>>,
    acceptor: Option<JoinHandle<()>>,
}

impl NbdServer {
    /// Serves an image at a socket in `dir`.
    ///
    /// # Errors
    /// The system's.
    pub fn start(dir: &Path, image: Image, settings: NbdSettings) -> io::Result<Self> {
        Self::serve(dir, Medium::Image(CachedImage::new(image)), settings)
    }

    /// Serves a device at a socket in `dir`: each request is a call of the device, and an error of
    /// the call is the answer. A kill calls `lose` with its seed, to take back what was not
    /// flushed.
    ///
    /// # Errors
    /// The system's.
    pub fn start_on(
        dir: &Path,
        device: Arc<dyn BlockDevice>,
        lose: impl Fn(u64) + Send + 'static,
        settings: NbdSettings,
    ) -> io::Result<Self> {
        Self::serve(dir, Medium::Device(ServedDevice { device, lose: Box::new(lose) }), settings)
    }

    fn serve(dir: &Path, medium: Medium, settings: NbdSettings) -> io::Result<Self> {
        let socket = dir.join("nbd.sock");
        let listener = UnixListener::bind(&socket)?;
        let state = State {
            size: medium.size(),
            medium,
            settings,
            rules: Vec::new(),
            generation: 0,
            streams: Vec::new(),
            down: false,
            ended: false,
            requests: Vec::new(),
            connections: 0,
            open: Vec::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        let acceptor =
            thread::Builder::new().name("sim-nbd".into()).spawn(move || accept(&listener, &shared))?;
        Ok(Self { socket, state, acceptor: Some(acceptor) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the URL of its export, with `parameters` such as `&timeout=1`.
    pub fn url(&self, parameters: &str) -> String {
        let export = &self.state().settings.export;
        format!("nbd+unix:///{export}?socket={}{parameters}", self.socket.display())
    }

    /// Makes the `nth` request of a kind from now, 1 being the next, go wrong. `None` counts all.
    pub fn fault(&self, kind: Option<NbdKind>, nth: u64, fault: NbdFault) {
        self.state().rules.push(Rule { kind, nth, seen: 0, for_ever: false, fault });
    }

    /// Sets a fault as [`fault`](Self::fault) does, for that request and all that follow.
    pub fn fault_from(&self, kind: Option<NbdKind>, nth: u64, fault: NbdFault) {
        self.state().rules.push(Rule { kind, nth, seen: 0, for_ever: true, fault });
    }

    /// Forgets all faults.
    pub fn heal(&self) {
        self.state().rules.clear();
    }

    /// Closes all connections, and loses a part of what was not flushed.
    pub fn kill(&self, seed: u64) {
        self.state().kill(seed);
    }

    /// Closes all connections; nothing is lost.
    pub fn disconnect(&self) {
        self.state().close_all();
    }

    /// Closes new connections at once, or no more.
    pub fn set_down(&self, down: bool) {
        self.state().down = down;
    }

    /// Announces another size from the next connection on.
    pub fn set_size(&self, size: u64) {
        self.state().size = size;
    }

    /// Changes the settings from the next connection on.
    pub fn change(&self, change: impl FnOnce(&mut NbdSettings)) {
        change(&mut self.state().settings);
    }

    /// Returns what a read would see; nothing if a device is served.
    pub fn image(&self) -> Image {
        self.state().medium.image()
    }

    /// Returns what a kill would leave at least; nothing if a device is served.
    pub fn durable(&self) -> Image {
        self.state().medium.durable()
    }

    /// Connections so far that were served.
    pub fn connections(&self) -> u64 {
        self.state().connections
    }

    /// Requests of a kind so far.
    pub fn count(&self, kind: NbdKind) -> usize {
        self.state().requests.iter().filter(|other| **other == kind).count()
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        {
            let mut state = self.state();
            state.ended = true;
            state.close_all();
        }
        // So that the thread that accepts looks.
        let _ = UnixStream::connect(&self.socket);
        let _ = self.acceptor.take().map(JoinHandle::join);
    }
}

impl State {
    fn close_all(&mut self) {
        self.generation += 1;
        self.open.clear();
        self.medium.end(None);
        for stream in self.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Notes that a connection is not served any more.
    fn end(&mut self, connection: u64) {
        self.open.retain(|open| *open != connection);
        self.medium.end(Some(connection));
    }

    fn kill(&mut self, seed: u64) {
        self.close_all();
        self.medium.lose(seed);
    }

    /// Counts a request, and returns what becomes of it.
    fn count(&mut self, kind: NbdKind) -> Option<NbdFault> {
        self.requests.push(kind);
        let faults: Vec<NbdFault> = self.rules.iter_mut().filter_map(|rule| rule.count(kind)).collect();
        faults.first().copied()
    }

    /// Does what a request of a connection asks for. Returns the content of its answer, or an error
    /// number.
    fn carry_out(&mut self, connection: u64, asked: Asked, data: Vec<u8>) -> Result<Vec<u8>, u32> {
        let end = asked.offset.checked_add(asked.len.into());
        if end.is_none_or(|end| end > self.medium.size()) {
            return Err(EINVAL);
        }
        let block = self.settings.blocks.map_or(1, |(min, ..)| min);
        if !asked.len.is_multiple_of(block) || !asked.offset.is_multiple_of(block.into()) {
            return Err(EINVAL);
        }
        match asked.kind {
            NbdKind::Read | NbdKind::BlockStatus => {
                return self.medium.read(asked.offset, asked.len as usize);
            }
            NbdKind::Write => self.medium.write(connection, asked.offset, data)?,
            NbdKind::WriteZeroes => self.medium.zero(connection, asked.offset, asked.len.into())?,
            NbdKind::Trim => self.medium.trim(connection, asked.offset, asked.len.into())?,
            NbdKind::Flush => {
                let covers_all = self.settings.flags & MULTI_CONN != 0;
                self.medium.flush(if covers_all { None } else { Some(connection) })?;
            }
        }
        Ok(Vec::new())
    }
}

fn accept(listener: &UnixListener, state: &Arc<Mutex<State>>) {
    let mut threads = Vec::new();
    for stream in listener.incoming() {
        let mut locked = state.lock();
        if locked.ended {
            break;
        }
        let Ok(stream) = stream else { continue };
        if locked.down {
            continue;
        }
        let Ok(copy) = stream.try_clone() else { continue };
        locked.streams.push(copy);
        if locked.open.len() >= locked.settings.clients {
            continue;
        }
        locked.connections += 1;
        let served = Served { generation: locked.generation, connection: locked.connections };
        locked.open.push(served.connection);
        drop(locked);
        let state = Arc::clone(state);
        let serve = move || {
            // The client is gone, or breaks the protocol.
            let _ = serve(stream, &state, served);
            state.lock().end(served.connection);
        };
        threads.extend(thread::Builder::new().name("sim-nbd-connection".into()).spawn(serve));
    }
    threads.into_iter().for_each(|thread| drop(thread.join()));
}

/// A connection that is served.
#[derive(Debug, Clone, Copy)]
struct Served {
    generation: u64,
    connection: u64,
}

/// Serves one connection to its end.
fn serve(mut stream: UnixStream, state: &Mutex<State>, served: Served) -> io::Result<()> {
    let (settings, size) = {
        let state = state.lock();
        (state.settings.clone(), state.size)
    };
    let Some(agreed) = negotiate(&mut stream, &settings, size)? else { return Ok(()) };
    while serve_one(&mut stream, state, served, agreed)? {}
    // Before the client sees it, and connects again.
    state.lock().end(served.connection);
    stream.shutdown(Shutdown::Both)
}

/// Serves one request. Returns false at the end of the connection.
fn serve_one(
    stream: &mut UnixStream,
    state: &Mutex<State>,
    Served { generation, connection }: Served,
    agreed: Agreed,
) -> io::Result<bool> {
    let header: [u8; 28] = array(stream)?;
    let number = u16::from_be_bytes([header[6], header[7]]);
    let Some(kind) = NbdKind::from_number(number) else { return Ok(false) };
    let field =
        |at: usize| header.get(at..at + 8).and_then(|f| f.try_into().ok()).map_or(0, u64::from_be_bytes);
    let len = (field(20) & u64::from(u32::MAX)) as u32;
    let asked = Asked { kind, cookie: field(8), offset: field(16), len };
    let mut data = vec![0; if kind == NbdKind::Write { len as usize } else { 0 }];
    stream.read_exact(&mut data)?;

    let is_durable = header[5] & 1 != 0;
    let mut locked = state.lock();
    if locked.generation != generation {
        return Ok(false);
    }
    let fault = locked.count(kind);
    match fault {
        Some(NbdFault::Close) => return Ok(false),
        Some(NbdFault::Kill(seed) | NbdFault::KillForGood(seed)) => {
            // The last request may have come as far as the cache.
            if seed % 2 == 0 {
                let _ = locked.carry_out(connection, asked, data);
            }
            locked.down |= matches!(fault, Some(NbdFault::KillForGood(_)));
            locked.kill(seed);
            return Ok(false);
        }
        _ => {}
    }
    let fails = matches!(fault, Some(NbdFault::Errno(_) | NbdFault::NoErrno | NbdFault::ErrorThenClose));
    let mut done = if fails { Ok(Vec::new()) } else { locked.carry_out(connection, asked, data) };
    if is_durable && done.is_ok() {
        let flushed = locked.medium.flush_range(asked.offset, asked.len.into());
        done = done.and_then(|content| flushed.map(|()| content));
    }
    drop(locked);
    let bytes = match (&done, fault) {
        (Err(errno), _) => failed(asked, agreed.structured, *errno),
        (Ok(content), None) => right(asked, agreed.structured, content),
        (Ok(content), Some(fault)) => wrong(fault, asked, agreed.structured, content),
    };
    answer(stream, fault, &bytes)
}

fn answer(stream: &mut UnixStream, fault: Option<NbdFault>, bytes: &[u8]) -> io::Result<bool> {
    match fault {
        Some(NbdFault::Silence) => return Ok(true),
        Some(NbdFault::CloseUnanswered) => return Ok(false),
        Some(NbdFault::CloseMidway) => {
            stream.write_all(&bytes[..bytes.len() / 2])?;
            return Ok(false);
        }
        Some(NbdFault::Trickle) => {
            for byte in bytes {
                stream.write_all(&[*byte])?;
                thread::sleep(Duration::from_millis(50));
            }
        }
        Some(NbdFault::Late(millis)) => {
            thread::sleep(Duration::from_millis(millis));
            stream.write_all(bytes)?;
        }
        Some(NbdFault::ErrorThenClose) => {
            stream.write_all(bytes)?;
            return Ok(false);
        }
        _ => stream.write_all(bytes)?,
    }
    Ok(true)
}
