//! The broker process of a mount: it does what a confined server cannot do itself.
//!
//! A confined process can neither mount nor unmount, and cannot look into the namespaces of other
//! processes. So the server starts a broker before it is confined. The broker mounts the one
//! directory that its command line names, passes the connection to the server, and then knows these
//! words only ([`Word`], [`Question`]):
//! - unmount this mount, or end its connection;
//! - leave the mount when the server ends;
//! - remove the socket of the mount;
//! - say whether the sender of a request has a capability, or is in a group;
//! - set one of two rules for what the kernel keeps in its cache of the mount;
//! - have a thread of the server be scheduled as all others.
//!
//! A server that an attacker has taken over gains no more by it than to end its own mount. The
//! broker knows that mount by an open file of its connection ([`Mounted`]), and by no number that
//! another mount may have later.
//!
//! The broker ends when the server has ended, for any reason. It then removes the socket. The mount
//! stays, so that programs get ENOTCONN and do not write to the directory below. A mount that the
//! server had not announced yet is unmounted.
//!
//! Words go over one socket, questions over another. A second thread of the broker answers the
//! questions and waits for nothing but `/proc`: the serving threads of the server ask them, and an
//! unmount waits for requests that these threads serve.

mod process;

use crate::bdi::{Bdi, CacheRule};
use crate::caller::{Caller, Capability};
use crate::mountpoint::{By, MountError, Mounted, NewMount};
use crate::pass;
use crate::table::MountDevice;
use parking_lot::Mutex;
pub use process::run_broker;
use rustix::io::Errno;
use rustix::thread::Pid;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The greatest length of a text from the broker, in bytes.
const LONGEST: usize = 64 << 10;

/// What the server asks the broker to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Word {
    /// Mount. Only once.
    Mount,
    /// Unmount.
    Unmount,
    /// Have the kernel write out what it has cached, and unmount.
    UnmountSynced,
    /// Remove the socket of the mount.
    RemoveSocket,
    /// Leave the mount when the server ends.
    Keep,
}

impl Word {
    const ALL: [Self; 5] = [Self::Mount, Self::Unmount, Self::UnmountSynced, Self::RemoveSocket, Self::Keep];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|word| *word as u8 == byte)
    }
}

/// What a thread that serves asks the broker. Answered by one i32, but for [`Self::Release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Question {
    /// Whether the sender of a request has a capability: 1 or 0.
    Has,
    /// Whether it is in a group: 1 or 0.
    InGroup,
    /// No question: the connection is to be ended. 0 or an errno.
    Abort,
    /// No question: the rule of this number is to be set. 0.
    SetCache,
    /// No question: this thread of the server is to be scheduled as all others. No answer.
    Release,
}

impl Question {
    const ALL: [Self; 5] = [Self::Has, Self::InGroup, Self::Abort, Self::SetCache, Self::Release];
    /// Bytes of a question: itself, user, group and thread of a sender, and a number.
    const LEN: usize = 17;

    fn encode(self, [uid, gid, thread, number]: [u32; 4]) -> [u8; Self::LEN] {
        let mut bytes = [self as u8; Self::LEN];
        for (to, field) in bytes[1..].chunks_exact_mut(4).zip([uid, gid, thread, number]) {
            to.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: [u8; Self::LEN]) -> Option<(Self, [u32; 4])> {
        let question = Self::ALL.into_iter().find(|question| *question as u8 == bytes[0])?;
        let mut fields = [0; 4];
        for (field, from) in fields.iter_mut().zip(bytes[1..].chunks_exact(4)) {
            *field = u32::from_le_bytes(from.try_into().ok()?);
        }
        Some((question, fields))
    }
}

/// The broker process, as the server knows it.
#[derive(Debug)]
pub struct Broker {
    words: Mutex<UnixStream>,
    questions: Mutex<UnixStream>,
    /// The socket of the mount, or why there is none, until it is taken.
    socket: Mutex<Option<Result<OwnedFd, String>>>,
    child: Child,
}

impl Broker {
    /// Starts the broker: `command` runs [`run_broker`] and nothing else.
    ///
    /// # Errors
    /// The system's.
    pub fn start(mut command: Command) -> io::Result<Arc<Self>> {
        let (words, their_words) = UnixStream::pair()?;
        let (questions, their_questions) = UnixStream::pair()?;
        command.stdin(OwnedFd::from(their_words)).stdout(OwnedFd::from(their_questions));
        // No process reads its standard error: the broker reports to the server by the sockets.
        let child = command.stderr(Stdio::null()).spawn()?;
        let (words, questions) = (Mutex::new(words), Mutex::new(questions));
        Ok(Arc::new(Self { words, questions, socket: Mutex::new(None), child }))
    }

    /// Returns the socket that was made beside the mount. Only once.
    ///
    /// # Errors
    /// Why there is none.
    pub fn socket(&self) -> Result<OwnedFd, String> {
        self.socket.lock().take().unwrap_or_else(|| Err("there is no mount".into()))
    }

    /// Has the mount stay when this process ends. Until then it goes with this process.
    pub fn keep_mount(&self) {
        // Without a broker it stays in any case.
        let _ = self.say(Word::Keep);
    }

    /// Has the socket of the mount removed.
    pub fn remove_socket(&self) {
        // A broker that has ended has removed it.
        let _ = self.say(Word::RemoveSocket);
    }

    /// Has the broker mount.
    ///
    /// # Errors
    /// What the broker says, and where it has gone.
    pub(crate) fn mount(self: &Arc<Self>) -> Result<NewMount, MountError> {
        let (text, files) = self.say(Word::Mount)?;
        let broken = || MountError::BrokerProcess(Errno::PROTO.into());
        let mut fields = text.as_slice();
        let mut number = || -> Option<u32> {
            let (field, rest) = fields.split_first_chunk()?;
            fields = rest;
            Some(u32::from_le_bytes(*field))
        };
        let (Some(major), Some(minor), Some(len)) = (number(), number(), number()) else {
            return Err(broken());
        };
        let (dir, refusal) = fields.split_at_checked(len as usize).ok_or_else(broken)?;
        let mut files = files.into_iter();
        let connection = files.next().ok_or_else(broken)?;
        let socket = if refusal.is_empty() { files.next().ok_or_else(broken)?.into() } else { None };
        *self.socket.lock() = Some(socket.ok_or_else(|| String::from_utf8_lossy(refusal).into_owned()));
        let mounted = Mounted {
            dir: OsString::from_vec(dir.to_vec()).into(),
            device: MountDevice { major, minor },
            by: By::Broker(Arc::clone(self)),
        };
        Ok(NewMount { connection, mounted, bdi: Bdi::OfBroker(Arc::clone(self)) })
    }

    /// Has the broker unmount: see [`Mounted::unmount`].
    ///
    /// # Errors
    /// What the broker says, and where it has gone.
    pub(crate) fn unmount(&self, sync: bool) -> Result<(), MountError> {
        self.say(if sync { Word::UnmountSynced } else { Word::Unmount }).map(drop)
    }

    /// Sends a word, and waits for the answer: a text and files.
    fn say(&self, word: Word) -> Result<(Vec<u8>, Vec<OwnedFd>), MountError> {
        let mut words = self.words.lock();
        words.write_all(&[word as u8])?;
        let (refused, files) = pass::receive(&*words).map_err(io::Error::from)?;
        let mut len = [0; 4];
        words.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len) as usize;
        let mut text = vec![0; len.min(LONGEST)];
        words.read_exact(&mut text)?;
        match refused {
            0 => Ok((text, files)),
            _ => Err(MountError::Found(String::from_utf8_lossy(&text).into_owned())),
        }
    }

    /// Returns whether a caller has a capability. False if the broker has ended.
    pub(crate) fn has(&self, caller: &Caller<'_>, capability: Capability) -> bool {
        self.ask(Question::Has, caller.fields(capability as u32)).is_ok_and(|answer| answer == 1)
    }

    /// Returns whether a caller is in a group. False if the broker has ended.
    pub(crate) fn is_in_group(&self, caller: &Caller<'_>, gid: u32) -> bool {
        self.ask(Question::InGroup, caller.fields(gid)).is_ok_and(|answer| answer == 1)
    }

    /// Has the connection ended.
    ///
    /// # Errors
    /// The system's, and EPIPE if the broker has ended.
    pub(crate) fn abort(&self) -> rustix::io::Result<()> {
        match self.ask(Question::Abort, [0; 4]).map_err(|_| Errno::PIPE)? {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }

    /// Sets what the kernel keeps in its cache of the mount.
    pub(crate) fn set_cache(&self, rule: CacheRule) {
        // A broker that has ended leaves the last rule in force.
        let _ = self.ask(Question::SetCache, [0, 0, 0, rule as u32]);
    }

    /// Has a thread of this process be scheduled as all others, some time from now. Does not wait
    /// for the broker: the caller holds up all requests, and a busy machine may run the broker only
    /// milliseconds later.
    pub(crate) fn release_thread(&self, thread: Pid) {
        let fields = [0, 0, thread.as_raw_pid().cast_unsigned(), 0];
        // Without a broker the thread does that itself, with the next request that it serves.
        let _ = self.questions.lock().write_all(&Question::Release.encode(fields));
    }

    fn ask(&self, question: Question, fields: [u32; 4]) -> io::Result<i32> {
        let mut questions = self.questions.lock();
        questions.write_all(&question.encode(fields))?;
        let mut answer = [0; 4];
        questions.read_exact(&mut answer)?;
        Ok(i32::from_le_bytes(answer))
    }
}

impl Drop for Broker {
    /// Ends the broker, and waits for that.
    fn drop(&mut self) {
        let _ = self.words.get_mut().shutdown(Shutdown::Both);
        let _ = self.questions.get_mut().shutdown(Shutdown::Both);
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_questions_are_known_again() {
        assert!(Word::ALL.iter().all(|word| Word::from_byte(*word as u8) == Some(*word)));
        assert_eq!(Word::from_byte(5), None);
        let fields = [1, 2, u32::MAX, 4];
        for question in Question::ALL {
            assert_eq!(Question::decode(question.encode(fields)), Some((question, fields)));
        }
        assert_eq!(Question::decode([5; Question::LEN]), None);
    }

    /// The thread that has another thread released holds the lock of all workers.
    #[test]
    fn a_release_is_not_waited_for() {
        let ((words, _their_words), (questions, mut theirs)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        // A question that was not answered fails, and does not hang.
        questions.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
        let (words, questions) = (Mutex::new(words), Mutex::new(questions));
        let child = Command::new("true").spawn().unwrap();
        let broker = Broker { words, questions, socket: Mutex::new(None), child };
        theirs.write_all(&7i32.to_le_bytes()).unwrap();
        broker.release_thread(rustix::thread::gettid());
        // The answer to the next question is still there.
        assert_eq!(broker.ask(Question::InGroup, [0; 4]).unwrap(), 7);
        let mut bytes = [0; Question::LEN];
        theirs.read_exact(&mut bytes).unwrap();
        let me = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        assert_eq!(Question::decode(bytes), Some((Question::Release, [0, 0, me, 0])));
    }
}
