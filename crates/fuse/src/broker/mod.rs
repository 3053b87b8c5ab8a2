//! The server's side of its broker, the process that does what a confined server cannot do itself.
//!
//! Hazard: a server that an attacker controls can send these messages too. It must gain no more by
//! them than to end its own mount.

mod messages;

use crate::error::MountError;
use crate::pass;
use crate::table::MountDevice;
pub(crate) use messages::{BrokerCall, BrokerRequest};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::thread::Pid;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The greatest length of a text from the broker, in bytes.
pub(crate) const LONGEST: usize = 64 << 10;

/// The broker process, as the server knows it.
///
/// A confined process can neither mount nor unmount, and cannot look into the namespaces of other
/// processes. So the server starts a broker before it is confined. The broker mounts the one
/// directory that its command line names, passes the connection to the server, and then knows these
/// requests only:
/// - unmount this mount, or end its connection;
/// - leave the mount when the server ends;
/// - remove the socket of the mount;
/// - say whether the sender of a request has a capability, or is in a group;
/// - set one of two rules for what the kernel keeps in its cache of the mount;
/// - have a thread of the server be scheduled as all others;
/// - connect to the server of the volume, if that is remote: the one that the command line names.
///
/// A server that an attacker has taken over gains no more by it than to end its own mount. The
/// broker knows that mount by an open file of its connection, and by no number that another mount
/// may have later.
///
/// The broker ends when the server has ended, for any reason. It then removes the socket. The mount
/// stays, so that programs get ENOTCONN and do not write to the directory below. A mount that the
/// server had not announced yet is unmounted.
///
/// Requests go over one socket, calls over another. A second thread of the broker answers the
/// calls and waits for nothing but `/proc`: the serving threads of the server make them, and an
/// unmount waits for requests that these threads serve.
#[derive(Debug)]
pub struct Broker {
    requests: Mutex<UnixStream>,
    calls: Mutex<UnixStream>,
    /// The socket of the mount, or why there is none, until it is taken.
    socket: Mutex<Option<Result<OwnedFd, String>>>,
    child: Child,
}

impl Broker {
    /// Starts the broker: `command` runs [`run_broker`](crate::run_broker) and nothing else.
    ///
    /// # Errors
    /// The system's.
    pub fn start(mut command: Command) -> io::Result<Arc<Self>> {
        let (requests, their_words) = UnixStream::pair()?;
        let (calls, their_questions) = UnixStream::pair()?;
        command.stdin(OwnedFd::from(their_words)).stdout(OwnedFd::from(their_questions));
        // No process reads its standard error: the broker reports to the server by the sockets.
        let child = command.stderr(Stdio::null()).spawn()?;
        let (requests, calls) = (Mutex::new(requests), Mutex::new(calls));
        Ok(Arc::new(Self { requests, calls, socket: Mutex::new(None), child }))
    }

    /// Returns the socket that was made beside the mount. Only once.
    ///
    /// # Errors
    /// Why there is none.
    pub fn socket(&self) -> Result<OwnedFd, String> {
        self.socket.lock().take().unwrap_or_else(|| Err("there is no mount".into()))
    }

    /// Asks the broker to keep the mount when this process ends. Until then it goes with this
    /// process.
    pub fn keep_mount(&self) {
        // Without a broker it stays in any case.
        let _ = self.request(BrokerRequest::Keep);
    }

    /// Asks the broker to remove the socket of the mount.
    pub fn remove_socket(&self) {
        // A broker that has ended has removed it.
        let _ = self.request(BrokerRequest::RemoveSocket);
    }

    /// Asks the broker to mount. Returns the connection, the directory and the device number.
    ///
    /// # Errors
    /// What the broker says, and where it has gone.
    pub(crate) fn mount(&self) -> Result<(OwnedFd, PathBuf, MountDevice), MountError> {
        let (text, files) = self.request(BrokerRequest::Mount)?;
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
        let dir = OsString::from_vec(dir.to_vec()).into();
        Ok((connection, dir, MountDevice { major, minor }))
    }

    /// Asks the broker to unmount: see [`Mounted::unmount`](crate::mountpoint::Mounted::unmount).
    ///
    /// # Errors
    /// What the broker says, and where it has gone.
    pub(crate) fn unmount(&self, sync: bool) -> Result<(), MountError> {
        self.request(if sync { BrokerRequest::UnmountSynced } else { BrokerRequest::Unmount }).map(drop)
    }

    /// Returns a function that has the broker connect to the server of the volume. It asks over a
    /// socket of its own: while the broker unmounts, a thread that serves may need a connection.
    ///
    /// # Errors
    /// Where the broker has gone.
    pub fn dialer(&self) -> io::Result<impl Fn() -> io::Result<OwnedFd> + Send + Sync + 'static> {
        let passed = self.request(BrokerRequest::Dialer).map_err(|e| io::Error::other(e.to_string()))?;
        let socket = passed.1.into_iter().next().ok_or(Errno::PROTO)?;
        let socket = Mutex::new(UnixStream::from(socket));
        Ok(move || {
            let mut socket = socket.lock();
            socket.write_all(&[0])?;
            let (errno, files) = pass::receive(&*socket)?;
            files.into_iter().next().ok_or_else(|| io::Error::from_raw_os_error(errno.into()))
        })
    }

    /// Sends a request, and waits for the answer: a text and files.
    fn request(&self, request: BrokerRequest) -> Result<(Vec<u8>, Vec<OwnedFd>), MountError> {
        let mut requests = self.requests.lock();
        requests.write_all(&[request as u8])?;
        let (refused, files) = pass::receive(&*requests).map_err(io::Error::from)?;
        let mut len = [0; 4];
        requests.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len) as usize;
        let mut text = vec![0; len.min(LONGEST)];
        requests.read_exact(&mut text)?;
        match refused {
            0 => Ok((text, files)),
            _ => Err(MountError::Found(String::from_utf8_lossy(&text).into_owned())),
        }
    }

    /// Returns whether the caller with these fields has the capability that they name. `None` if
    /// the broker has ended.
    pub(crate) fn has(&self, caller: [u32; 4]) -> Option<bool> {
        self.call(BrokerCall::Has, caller).ok().map(|answer| answer == 1)
    }

    /// Returns whether the caller with these fields is in the group that they name. False if the
    /// broker has ended.
    pub(crate) fn is_in_group(&self, caller: [u32; 4]) -> bool {
        self.call(BrokerCall::InGroup, caller).is_ok_and(|answer| answer == 1)
    }

    /// Asks the broker to end the connection.
    ///
    /// # Errors
    /// The system's, and EPIPE if the broker has ended.
    pub(crate) fn abort(&self) -> rustix::io::Result<()> {
        match self.call(BrokerCall::Abort, [0; 4]).map_err(|_| Errno::PIPE)? {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }

    /// Sets what the kernel keeps in its cache of the mount, by the number of the rule.
    pub(crate) fn set_cache(&self, rule: u32) {
        // A broker that has ended leaves the last rule in force.
        let _ = self.call(BrokerCall::SetCache, [0, 0, 0, rule]);
    }

    /// Asks the broker to give a thread of this process the normal scheduling policy, some time
    /// from now. Does not wait for the broker: the caller holds up all requests, and a busy machine
    /// may run the broker only milliseconds later.
    pub(crate) fn release_thread(&self, thread: Pid) {
        let fields = [0, 0, thread.as_raw_pid().cast_unsigned(), 0];
        // Without a broker the thread does that itself, with the next request that it serves.
        let _ = self.calls.lock().write_all(&BrokerCall::Release.encode(fields));
    }

    fn call(&self, call: BrokerCall, fields: [u32; 4]) -> io::Result<i32> {
        let mut calls = self.calls.lock();
        calls.write_all(&call.encode(fields))?;
        let mut answer = [0; 4];
        calls.read_exact(&mut answer)?;
        Ok(i32::from_le_bytes(answer))
    }
}

impl Drop for Broker {
    /// Ends the broker, and waits for that.
    fn drop(&mut self) {
        let _ = self.requests.get_mut().shutdown(Shutdown::Both);
        let _ = self.calls.get_mut().shutdown(Shutdown::Both);
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::{Caller, Capability};
    use crate::owners::Owners;
    use crate::wire::InHeader;
    use zerocopy::FromZeros;

    /// Returns a broker, and the socket at which it would get calls.
    fn broker() -> (Broker, UnixStream) {
        let ((requests, _), (calls, theirs)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        // A call that was not answered fails, and does not hang.
        calls.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
        let (requests, calls) = (Mutex::new(requests), Mutex::new(calls));
        let child = Command::new("true").spawn().unwrap();
        (Broker { requests, calls, socket: Mutex::new(None), child }, theirs)
    }

    /// Without a broker the server goes on. The kernel has checked two capabilities by itself.
    #[test]
    fn without_a_broker_root_has_what_the_kernel_checked() {
        let (broker, theirs) = broker();
        drop(theirs);
        let has = |uid, capability| {
            let header = InHeader { uid, pid: 1, ..InHeader::new_zeroed() };
            Caller::of(&header, Owners::default(), Some(&broker)).has(capability)
        };
        for capability in [Capability::Fowner, Capability::LinuxImmutable] {
            assert!(has(0, capability) && !has(7, capability), "{capability:?}");
        }
        for capability in [Capability::Fsetid, Capability::SysAdmin, Capability::SysResource] {
            assert!(!has(0, capability) && !has(7, capability), "{capability:?}");
        }
    }

    /// The thread that has another thread released holds the lock of all workers.
    #[test]
    fn a_release_is_not_waited_for() {
        let (broker, mut theirs) = broker();
        theirs.write_all(&7i32.to_le_bytes()).unwrap();
        broker.release_thread(rustix::thread::gettid());
        // The answer to the next call is still there.
        assert_eq!(broker.call(BrokerCall::InGroup, [0; 4]).unwrap(), 7);
        let mut bytes = [0; BrokerCall::LEN];
        theirs.read_exact(&mut bytes).unwrap();
        let me = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        assert_eq!(BrokerCall::decode(bytes), Some((BrokerCall::Release, [0, 0, me, 0])));
    }
}
