//! The broker's side of [`broker`](crate::broker): the process that mounts for a confined server.

use crate::bdi::{Bdi, CacheRule};
use crate::broker::{BrokerCall, BrokerRequest, LONGEST};
use crate::caller::{Caller, Capability};
use crate::error::MountError;
use crate::mountpoint::{self, Mounted, NewMount};
use crate::options::MountOptions;
use crate::pass;
use crate::scheduling;
use crate::table::MountDevice;
use rustix::io::Errno;
use rustix::process::getppid;
use rustix::thread::{Pid, sched_getaffinity};
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;

/// Room for the stack of the thread that answers calls.
const STACK: usize = 256 << 10;

/// Helps the server that has started this process, until that has ended: the server's sockets are
/// the standard input and output. `source`, `dir` and `options` say what to mount. `socket_of`
/// makes a socket beside the mount: it is passed to the server, and what comes with it is dropped
/// when the socket is to be removed. `dial` connects to the server of a remote volume.
///
/// # Errors
/// The errors of the system before there is anything to do. All others are told to the server.
pub fn run_broker<Kept>(
    source: &OsStr,
    dir: &Path,
    options: &MountOptions,
    socket_of: impl FnOnce(MountDevice) -> io::Result<(OwnedFd, Kept)>,
    dial: impl Fn() -> io::Result<OwnedFd> + Send + 'static,
) -> io::Result<()> {
    // A signal of a terminal is for the server.
    let _ = rustix::process::setsid();
    let mut requests = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let calls = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mounted = Arc::new(OnceLock::new());
    let known = Arc::clone(&mounted);
    let thread = thread::Builder::new().name("lanefs-answer".into()).stack_size(STACK);
    thread.spawn(move || answer_all(calls, &known))?;
    let (mut socket_of, mut kept, mut stays) = (Some(socket_of), None, false);
    let mut dial = Some(dial);
    let mut byte = [0];
    while requests.read_exact(&mut byte).is_ok() {
        let done = match BrokerRequest::from_byte(byte[0]) {
            Some(BrokerRequest::Mount) => {
                let Some(socket_of) = socket_of.take() else { break };
                match mountpoint::mount(source, dir, options) {
                    Ok(NewMount { connection, mounted: new, bdi }) => {
                        // The folder that it was started in may be unmounted.
                        let _ = std::env::set_current_dir("/");
                        let made = socket_of(new.device());
                        // The server asks of it as soon as it has it.
                        let held = mounted.get_or_init(|| BrokeredMount { mounted: new, bdi });
                        let told = hand_over(&requests, &connection, &held.mounted, made, &mut kept);
                        // Held here, it would keep a mount alive whose server has gone.
                        drop(connection);
                        match told {
                            Ok(()) => continue,
                            Err(_) => break,
                        }
                    }
                    Err(e) => Err(e),
                }
            }
            Some(BrokerRequest::Unmount) => unmount(&mounted, false),
            Some(BrokerRequest::UnmountSynced) => unmount(&mounted, true),
            Some(BrokerRequest::Keep) => {
                stays = true;
                Ok(())
            }
            Some(BrokerRequest::RemoveSocket) => {
                kept = None;
                Ok(())
            }
            Some(BrokerRequest::Dialer) => {
                let Some(dial) = dial.take() else { break };
                let (ours, theirs) = UnixStream::pair()?;
                let thread = thread::Builder::new().name("lanefs-dial".into());
                thread.spawn(move || dial_all(ours, &dial))?;
                match reply(&requests, 0, &[theirs.as_fd()], &[]) {
                    Ok(()) => continue,
                    Err(_) => break,
                }
            }
            None => break,
        };
        let (refused, text) = done.map_or_else(|e| (1, e.to_string()), |()| (0, String::new()));
        if reply(&requests, refused, &[], text.as_bytes()).is_err() {
            break;
        }
    }
    drop(kept);
    if !stays {
        // No program was told of the mount. The server has ended, so no process can be told of a
        // failure.
        let _ = unmount(&mounted, false);
    }
    Ok(())
}

/// A mount as its broker has it.
struct BrokeredMount {
    mounted: Mounted,
    bdi: Bdi,
}

fn unmount(held: &OnceLock<BrokeredMount>, sync: bool) -> Result<(), MountError> {
    held.get().map_or(Ok(()), |held| held.mounted.unmount(sync))
}

/// Passes a new mount to the server.
fn hand_over<Kept>(
    requests: &UnixStream,
    connection: &OwnedFd,
    new: &Mounted,
    made: io::Result<(OwnedFd, Kept)>,
    kept: &mut Option<Kept>,
) -> io::Result<()> {
    let (socket, refusal) = match made {
        Ok((socket, keep)) => {
            *kept = Some(keep);
            (Some(socket), String::new())
        }
        Err(e) => (None, e.to_string()),
    };
    let mut files = vec![connection.as_fd()];
    files.extend(socket.as_ref().map(AsFd::as_fd));
    let MountDevice { major, minor } = new.device();
    let dir = new.dir().as_os_str().as_bytes();
    let mut text = Vec::new();
    for field in [major, minor, dir.len() as u32] {
        text.extend_from_slice(&field.to_le_bytes());
    }
    text.extend_from_slice(dir);
    text.extend_from_slice(refusal.as_bytes());
    reply(requests, 0, &files, &text)
}

fn reply(
    mut requests: &UnixStream,
    refused: u8,
    files: &[std::os::fd::BorrowedFd<'_>],
    text: &[u8],
) -> io::Result<()> {
    let text = text.get(..LONGEST).unwrap_or(text);
    pass::send(requests, refused, files)?;
    requests.write_all(&(text.len() as u32).to_le_bytes())?;
    requests.write_all(text)
}

/// Makes connections until the server has gone. The answer is a file, or an error number.
fn dial_all(mut socket: UnixStream, dial: &dyn Fn() -> io::Result<OwnedFd>) {
    while socket.read_exact(&mut [0]).is_ok() {
        let sent = match dial() {
            Ok(made) => pass::send(&socket, 0, &[made.as_fd()]),
            Err(e) => {
                let errno = e.raw_os_error().and_then(|errno| u8::try_from(errno).ok());
                pass::send(&socket, errno.unwrap_or(Errno::HOSTUNREACH.raw_os_error() as u8), &[])
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Answers calls until the server has gone.
fn answer_all(mut calls: UnixStream, held: &OnceLock<BrokeredMount>) {
    let mut bytes = [0; BrokerCall::LEN];
    while calls.read_exact(&mut bytes).is_ok() {
        let Some((call, fields)) = BrokerCall::decode(bytes) else { return };
        let Some(answer) = answer(call, fields, held) else { continue };
        if calls.write_all(&answer.to_le_bytes()).is_err() {
            return;
        }
    }
}

/// Returns the answer to a call, `None` if it gets none.
fn answer(call: BrokerCall, fields: [u32; 4], held: &OnceLock<BrokeredMount>) -> Option<i32> {
    let caller = Caller::from_fields(fields);
    let [.., thread, number] = fields;
    Some(match call {
        BrokerCall::Has => Capability::from_number(number).is_some_and(|one| caller.has(one)).into(),
        BrokerCall::InGroup => caller.is_in_group(number).into(),
        BrokerCall::Abort => {
            let ended = held.get().map_or(Err(Errno::NOENT), |held| held.mounted.end_connection());
            ended.map_or_else(Errno::raw_os_error, |()| 0)
        }
        BrokerCall::SetCache => {
            let rule = if number == CacheRule::Tight as u32 { CacheRule::Tight } else { CacheRule::Roomy };
            if let Some(held) = held.get() {
                held.bdi.set(rule);
            }
            0
        }
        BrokerCall::Release => {
            if let (Some(thread), Ok(home)) = (thread_of_server(thread), sched_getaffinity(None)) {
                scheduling::release(Some(thread), &home);
            }
            return None;
        }
    })
}

/// Returns the thread of this number, if it is a thread of the server. The broker may run on the
/// processors that the server was started on.
fn thread_of_server(thread: u32) -> Option<Pid> {
    let thread = Pid::from_raw(thread.cast_signed())?;
    let server = getppid()?;
    let path = format!("/proc/{}/task/{}", server.as_raw_pid(), thread.as_raw_pid());
    Path::new(&path).exists().then_some(thread)
}
