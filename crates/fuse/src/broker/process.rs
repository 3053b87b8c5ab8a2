//! The broker's side: see the head of the module.

use super::{Question, Word};
use crate::caller::{Caller, Capability};
use crate::mountpoint::{self, Mounted, NewMount};
use crate::options::MountOptions;
use crate::pass;
use crate::table::MountDevice;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;

/// Room for the stack of the thread that answers questions.
const STACK: usize = 256 << 10;

/// Helps the server that has started this process, until that has ended: the server's sockets are
/// the standard input and output. `source`, `dir` and `options` say what to mount. `socket_of`
/// makes a socket beside the mount: it is passed to the server, and what comes with it is dropped
/// when the socket is to be removed.
///
/// # Errors
/// Those of the system before there is anything to do. All others are told to the server.
pub fn run_broker<Kept>(
    source: &OsStr,
    dir: &Path,
    options: &MountOptions,
    socket_of: impl FnOnce(MountDevice) -> io::Result<(OwnedFd, Kept)>,
) -> io::Result<()> {
    // A signal of a terminal is for the server.
    let _ = rustix::process::setsid();
    let mut words = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let questions = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mounted = Arc::new(OnceLock::new());
    let known = Arc::clone(&mounted);
    let thread = thread::Builder::new().name("lanefs-answer".into()).stack_size(STACK);
    thread.spawn(move || answer_all(questions, &known))?;
    let (mut socket_of, mut kept) = (Some(socket_of), None);
    let mut byte = [0];
    while words.read_exact(&mut byte).is_ok() {
        let unmount = |sync| mounted.get().map_or(Ok(()), |mounted: &Mounted| mounted.unmount(sync));
        let done = match Word::from_byte(byte[0]) {
            Some(Word::Mount) => {
                let Some(socket_of) = socket_of.take() else { return Ok(()) };
                let made = mountpoint::mount(source, dir, options).map(|new| {
                    let _ = mounted.set(new.mounted.clone());
                    // The folder that it was started in may be unmounted.
                    let _ = std::env::set_current_dir("/");
                    hand_over(&words, &new, socket_of(new.mounted.device()), &mut kept)
                });
                match made {
                    Ok(done) => {
                        done?;
                        continue;
                    }
                    Err(e) => Err(e),
                }
            }
            Some(Word::Unmount) => unmount(false),
            Some(Word::UnmountSynced) => unmount(true),
            Some(Word::RemoveSocket) => {
                kept = None;
                Ok(())
            }
            None => return Ok(()),
        };
        let (refused, text) = done.map_or_else(|e| (1, e.to_string()), |()| (0, String::new()));
        reply(&words, refused, &[], text.as_bytes())?;
    }
    drop(kept);
    Ok(())
}

/// Passes a new mount to the server.
fn hand_over<Kept>(
    words: &UnixStream,
    new: &NewMount,
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
    let (bits, bdi) = new.bdi.files();
    let mut files = vec![new.connection.as_fd()];
    files.extend(socket.as_ref().map(AsFd::as_fd));
    files.extend(bdi);
    let MountDevice { major, minor } = new.mounted.device();
    let dir = new.mounted.dir().as_os_str().as_bytes();
    let mut text = Vec::new();
    for field in [major, minor, bits.into(), dir.len() as u32] {
        text.extend_from_slice(&field.to_le_bytes());
    }
    text.extend_from_slice(dir);
    text.extend_from_slice(refusal.as_bytes());
    reply(words, 0, &files, &text)
}

fn reply(
    mut words: &UnixStream,
    refused: u8,
    files: &[std::os::fd::BorrowedFd<'_>],
    text: &[u8],
) -> io::Result<()> {
    let text = text.get(..super::LONGEST).unwrap_or(text);
    pass::send(words, refused, files)?;
    words.write_all(&(text.len() as u32).to_le_bytes())?;
    words.write_all(text)
}

/// Answers questions until the server has gone.
fn answer_all(mut questions: UnixStream, mounted: &OnceLock<Mounted>) {
    let mut bytes = [0; Question::LEN];
    while questions.read_exact(&mut bytes).is_ok() {
        let Some((question, fields)) = Question::decode(bytes) else { return };
        if questions.write_all(&answer(question, fields, mounted).to_le_bytes()).is_err() {
            return;
        }
    }
}

fn answer(question: Question, fields: [u32; 4], mounted: &OnceLock<Mounted>) -> i32 {
    let caller = Caller::from_fields(fields);
    let [.., number] = fields;
    match question {
        Question::Has => Capability::from_number(number).is_some_and(|one| caller.has(one)).into(),
        Question::InGroup => caller.is_in_group(number).into(),
        Question::Abort => {
            let ended = mounted.get().map_or(Err(Errno::NOENT), Mounted::end_connection);
            ended.map_or_else(Errno::raw_os_error, |()| 0)
        }
    }
}
