//! The broker of a mount, and a server that an attacker has taken over: this test is that server.

use crate::support;
use crate::support::mount::Mount;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::fs;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Child;

/// Words.
const MOUNT: u8 = 0;
const UNMOUNT: u8 = 1;
const UNMOUNT_SYNCED: u8 = 2;
const KEEP: u8 = 4;
const DIALER: u8 = 5;
/// Questions.
const IN_GROUP: u8 = 1;
const ABORT: u8 = 2;
const RELEASE: u8 = 4;

/// A broker, as its server has it.
struct Broker {
    process: Child,
    words: UnixStream,
    questions: UnixStream,
}

/// The values that a broker passes when it has mounted.
struct New {
    device: (u32, u32),
    connection: OwnedFd,
}

impl Broker {
    /// The broker of a mount of `v.img` at `dir` beside it, as this user.
    fn start(m: &Mount, dir: &str, user: u32) -> Self {
        Self::start_with(m, dir, user, UnixStream::pair().unwrap())
    }

    /// As [`start`](Self::start), with the sockets for words, of which the second is the broker's.
    fn start_with(m: &Mount, dir: &str, user: u32, (words, their_words): (UnixStream, UnixStream)) -> Self {
        let (questions, their_questions) = UnixStream::pair().unwrap();
        let mut command = support::tool(m.image.beside("lanefs").to_str().unwrap());
        command.arg("mount").arg(format!("--broker={}", std::process::id())).args(["v.img", dir]);
        command.current_dir(m.image.beside("")).uid(user).gid(user).stdin(OwnedFd::from(their_words));
        let process = command.stdout(OwnedFd::from(their_questions)).spawn().unwrap();
        Self { process, words, questions }
    }

    /// What it answers: whether it did it, a text, and files.
    fn say(&mut self, word: u8) -> (bool, Vec<u8>, Vec<OwnedFd>) {
        self.words.write_all(&[word]).unwrap();
        let (refused, files) = receive(&self.words);
        let mut len = [0; 4];
        self.words.read_exact(&mut len).unwrap();
        let mut text = vec![0; u32::from_le_bytes(len) as usize];
        self.words.read_exact(&mut text).unwrap();
        (refused == 0, text, files)
    }

    fn mount(&mut self) -> New {
        let (done, text, files) = self.say(MOUNT);
        assert!(done, "{}", String::from_utf8_lossy(&text));
        let number = |at: usize| u32::from_le_bytes(text[at..at + 4].try_into().unwrap());
        New { device: (number(0), number(4)), connection: files.into_iter().next().unwrap() }
    }

    /// Sends a question that gets no answer, or whose answer the test does not read.
    fn tell(&mut self, question: u8, fields: [u32; 4]) {
        let mut bytes = vec![question];
        bytes.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        self.questions.write_all(&bytes).unwrap();
    }

    fn ask(&mut self, question: u8, fields: [u32; 4]) -> i32 {
        self.tell(question, fields);
        let mut answer = [0; 4];
        self.questions.read_exact(&mut answer).unwrap();
        i32::from_le_bytes(answer)
    }

    /// Has a thread released, and waits until that is done: questions are taken in turn, and this
    /// one has no answer of its own.
    fn release(&mut self, thread: u32) {
        self.tell(RELEASE, [0, 0, thread, 0]);
        assert_eq!(self.ask(IN_GROUP, [0, 7, thread, 7]), 1);
    }

    /// The server ends, and then the broker.
    fn end(self) {
        let Self { mut process, words, questions } = self;
        drop((words, questions));
        assert!(process.wait().unwrap().success());
    }
}

impl New {
    fn is_connected(&self) -> bool {
        let mut fds = [PollFd::new(&self.connection, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        !fds[0].revents().contains(PollFlags::ERR)
    }
}

/// Receives a byte, and the files that come with it.
fn receive(socket: &UnixStream) -> (u8, Vec<OwnedFd>) {
    let mut byte = [1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut iov, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let files = files.flatten().collect();
    (byte[0], files)
}

fn is_mounted(m: &Mount, dir: &str) -> bool {
    let at = m.image.beside(dir).canonicalize().unwrap_or_else(|_| m.image.beside(dir));
    let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    table.lines().any(|line| line.split(' ').nth(1) == at.to_str())
}

/// Not mounted yet, with a copy of the command that every user may run.
fn blank() -> Mount {
    let m = Mount::blank();
    lanefs_tests::copy_file(env!("CARGO_BIN_EXE_lanefs"), m.image.beside("lanefs"));
    m
}

/// It lets its own mount go, waits until another one has the number, and has the broker end that.
fn ends_no_other(user: u32) {
    let m = blank();
    fs::create_dir(m.image.beside("other")).unwrap();
    for name in ["", "m", "other", "v.img"] {
        std::os::unix::fs::chown(m.image.beside(name), Some(user), Some(user)).unwrap();
        fs::set_permissions(m.image.beside(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    // For all, as udev has it.
    let script = "mkdir dev && mount -t tmpfs tmpfs dev && mknod -m 666 dev/fuse c 10 229 \
                  && mount --bind dev/fuse /dev/fuse";
    support::succeed(support::tool("sh").args(["-c", script]).current_dir(m.image.beside("")));
    // The kernel gives the lowest number that is free. Another process may take that first.
    let (mut taken, mut other, victim) = loop {
        let (mut taken, mut other) = (Broker::start(&m, "m", user), Broker::start(&m, "other", user));
        let own = taken.mount();
        assert!(taken.say(UNMOUNT).0 && !is_mounted(&m, "m"));
        let victim = other.mount();
        if victim.device == own.device {
            break (taken, other, victim);
        }
        drop(victim);
        taken.end();
        other.end();
    };
    taken.ask(ABORT, [0; 4]);
    assert!(victim.is_connected(), "aborted");
    for word in [UNMOUNT, UNMOUNT_SYNCED] {
        taken.say(word);
        assert!(is_mounted(&m, "other"), "unmounted by {word}");
    }
    taken.end();
    assert!(is_mounted(&m, "other") && victim.is_connected());
    // Its own broker does that.
    if user == 0 {
        assert_eq!(other.ask(ABORT, [0; 4]), 0);
        assert!(!victim.is_connected());
    }
    assert!(other.say(UNMOUNT).0 && !is_mounted(&m, "other"));
    other.end();
}

#[test]
fn a_server_of_root_ends_no_other_mount() {
    ends_no_other(0);
}

#[test]
fn a_server_of_a_user_ends_no_other_mount() {
    ends_no_other(65534);
}

#[test]
fn a_mount_that_nobody_was_told_of_goes_with_its_server() {
    let m = blank();
    // Killed before the mount was there.
    let mut broker = Broker::start(&m, "m", 0);
    broker.words.write_all(&[MOUNT]).unwrap();
    broker.end();
    assert!(!m.is_mounted());
    // Killed before it served.
    let mut broker = Broker::start(&m, "m", 0);
    let new = broker.mount();
    assert!(m.is_mounted());
    drop(new);
    broker.end();
    assert!(!m.is_mounted());
    // Killed later: what programs write must not go to the directory below.
    let mut broker = Broker::start(&m, "m", 0);
    let new = broker.mount();
    assert!(broker.say(KEEP).0);
    drop(new);
    broker.end();
    assert!(m.is_mounted());
    m.umount();
}

#[test]
fn a_broker_does_nothing_twice_and_nothing_unknown() {
    let m = blank();
    for (first, last) in [(Some(MOUNT), MOUNT), (Some(DIALER), DIALER), (None, DIALER + 1), (None, u8::MAX)] {
        let mut broker = Broker::start(&m, "m", 0);
        let given = first.map(|word| broker.say(word));
        assert!(given.is_none_or(|(done, ..)| done), "{first:?}");
        // That ends it, without an answer.
        broker.words.write_all(&[last]).unwrap();
        assert_eq!(broker.words.read(&mut [0]).unwrap(), 0, "{last} after {first:?}");
        broker.end();
        assert!(!m.is_mounted());
    }
}

/// The volume is a file: it has no server.
#[test]
fn a_broker_connects_to_no_server_but_that_of_the_volume() {
    let m = blank();
    let mut broker = Broker::start(&m, "m", 0);
    let (done, _, files) = broker.say(DIALER);
    assert!(done);
    let mut dialer = UnixStream::from(files.into_iter().next().unwrap());
    dialer.write_all(&[0]).unwrap();
    let (errno, connections) = receive(&dialer);
    assert!(errno != 0 && connections.is_empty(), "{errno}");
    broker.end();
}

/// It is asked to release a thread, here the main one of another process.
#[test]
fn a_server_has_threads_of_its_own_scheduled_and_no_others() {
    let m = blank();
    let idle = |process: u32| {
        let thread = rustix::process::Pid::from_raw(process.cast_signed());
        lanefs_device::set_idle_policy(thread, true).unwrap();
    };
    let policy = |process: u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().split_ascii_whitespace().nth(38).unwrap().to_owned()
    };
    let mut broker = Broker::start(&m, "m", 0);
    let mut stranger = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    idle(stranger.id());
    broker.release(stranger.id());
    let still = policy(stranger.id());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert_eq!(still, "5");
    let released = std::thread::scope(|scope| {
        let own = scope.spawn(|| {
            let me = rustix::thread::gettid().as_raw_pid().cast_unsigned();
            idle(me);
            broker.release(me);
            policy(me)
        });
        own.join().unwrap()
    });
    assert_eq!(released, "0");
    broker.end();
}

/// What a server asks right behind its mount is not lost, however slow the broker is: here it waits
/// to pass the mount on, for the answers before have filled the socket.
#[test]
fn a_broker_knows_the_mount_before_its_server_does() {
    let m = blank();
    let small_pair = || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        set_socket_send_buffer_size(&theirs, 0).unwrap();
        (ours, theirs)
    };
    // As many answers as fit in unread.
    let (_unread, mut into) = small_pair();
    into.set_nonblocking(true).unwrap();
    let fit =
        (0..).take_while(|_| into.write_all(&[0]).and_then(|()| into.write_all(&[0; 4])).is_ok()).count();
    let mut broker = Broker::start_with(&m, "m", 0, small_pair());
    broker.words.write_all(&vec![UNMOUNT; fit]).unwrap();
    broker.words.write_all(&[MOUNT]).unwrap();
    // Once it is mounted. The watchdog ends it if it never does.
    while broker.ask(ABORT, [0; 4]) != 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    broker.end();
    assert!(!m.is_mounted());
}
