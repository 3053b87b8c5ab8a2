//! NBD servers that this project did not write, each at a unix socket, or at a port of this host.

use crate::tools::tool;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server, until it is dropped.
#[derive(Debug)]
pub struct Served {
    address: Address,
    child: Child,
    /// The process that goes on where the one that was started ends.
    daemon: Option<Pid>,
}

/// Where a server listens.
#[derive(Debug)]
enum Address {
    Unix(PathBuf),
    /// A port of 127.0.0.1.
    Tcp(u16),
}

impl Address {
    fn is_listened_at(&self) -> bool {
        match self {
            Self::Unix(socket) => UnixStream::connect(socket).is_ok(),
            Self::Tcp(port) => TcpStream::connect(("127.0.0.1", *port)).is_ok(),
        }
    }
}

fn nbdkit<S: AsRef<OsStr>>(socket: &Path, args: &[S]) -> Command {
    let mut command = tool("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket).args(args);
    command
}

impl Served {
    /// Starts `nbdkit ARGS` in the foreground at `socket`.
    ///
    /// # Panics
    /// If it is missing, or does not come up.
    pub fn nbdkit<S: AsRef<OsStr>>(socket: &Path, args: &[S]) -> Self {
        Self::start(socket, &mut nbdkit(socket, args))
    }

    /// Starts `nbdkit ARGS` in the foreground at a port of 127.0.0.1 that is free.
    ///
    /// # Panics
    /// If it is missing, or does not come up.
    pub fn nbdkit_by_tcp<S: AsRef<OsStr>>(args: &[S]) -> Self {
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let port = free.expect("a free port").port();
        let mut command = tool("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "-i", "127.0.0.1", "-p", &port.to_string()]);
        Self::start_at(Address::Tcp(port), command.args(args))
    }

    /// Starts `nbdkit ARGS` as [`nbdkit`](Self::nbdkit) does, with functions of a shared library
    /// instead of the system's.
    ///
    /// # Panics
    /// If it is missing, or does not come up.
    pub fn nbdkit_preloaded<S: AsRef<OsStr>>(socket: &Path, library: &Path, args: &[S]) -> Self {
        Self::start(socket, nbdkit(socket, args).env("LD_PRELOAD", library))
    }

    /// Starts `qemu-nbd ARGS` at `socket`, with the export `x`.
    ///
    /// # Panics
    /// If it is missing, or does not come up.
    pub fn qemu_nbd<S: AsRef<OsStr>>(socket: &Path, args: &[S]) -> Self {
        let mut command = tool("qemu-nbd");
        command
            .args(["--persistent", "--export-name=x", "--discard=unmap", "--socket"])
            .arg(socket)
            .args(args);
        Self::start(socket, &mut command)
    }

    /// Starts `qemu-storage-daemon ARGS` at `socket`. The arguments make the block node `disk`,
    /// which is the export `x`.
    ///
    /// # Panics
    /// If it is missing, or does not come up.
    pub fn qemu_storage_daemon<S: AsRef<OsStr>>(socket: &Path, args: &[S]) -> Self {
        let mut command = tool("qemu-storage-daemon");
        command
            .args(args)
            .arg("--nbd-server")
            .arg(format!("addr.type=unix,addr.path={}", socket.display()))
            .args(["--export", "type=nbd,id=export,node-name=disk,name=x,writable=on"]);
        Self::start(socket, &mut command)
    }

    /// Starts `nbd-server` at `socket` with the export `x` of a file, and these lines of its
    /// section.
    ///
    /// # Panics
    /// If it is missing, or does not come up.
    pub fn nbd_server(socket: &Path, file: &Path, lines: &str) -> Self {
        let config = socket.with_extension("conf");
        let text = format!(
            "[generic]\nunixsock = {}\nallowlist = true\n[x]\nexportname = {}\n{lines}\n",
            socket.display(),
            file.display()
        );
        std::fs::write(&config, text).expect("its configuration");
        // Without a process of its own it would serve one connection, and end.
        let note = socket.with_extension("pid");
        let mut command = tool("nbd-server");
        command.arg("--config-file").arg(&config).arg("--pid-file").arg(&note);
        let mut served = Self::start(socket, &mut command);
        let number = || Pid::from_raw(std::fs::read_to_string(&note).ok()?.trim().parse().ok()?);
        served.daemon = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            number()
        });
        served
    }

    fn start(socket: &Path, command: &mut Command) -> Self {
        // That of a server which was killed.
        let _ = std::fs::remove_file(socket);
        Self::start_at(Address::Unix(socket.to_owned()), command)
    }

    fn start_at(address: Address, command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // It tells of every connection that it is looked for by.
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| {
                panic!("{command:?}: {e}; `make test` or `make judge-remote` installs what it lacks")
            });
        let began = Instant::now();
        while !address.is_listened_at() {
            let ended = child.try_wait().expect("its state");
            assert!(ended.is_none_or(|status| status.success()), "{command:?}: {ended:?}");
            assert!(began.elapsed() < Duration::from_secs(20), "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { address, child, daemon: None }
    }

    /// Returns the URL of an export, with `parameters` such as `&timeout=1`.
    pub fn url(&self, export: &str, parameters: &str) -> String {
        match (&self.address, parameters.strip_prefix('&')) {
            (Address::Unix(socket), _) => {
                format!("nbd+unix:///{export}?socket={}{parameters}", socket.display())
            }
            (Address::Tcp(port), None) => format!("nbd://127.0.0.1:{port}/{export}{parameters}"),
            (Address::Tcp(port), Some(first)) => format!("nbd://127.0.0.1:{port}/{export}?{first}"),
        }
    }

    /// Returns the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Served {
    /// Ends a server that was started in the foreground, which may write out what it has to tell.
    ///
    /// # Panics
    /// If it is not ours to end.
    pub fn terminate(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("kill");
        self.child.wait().expect("wait");
    }
}

impl Drop for Served {
    /// Kills it: what it had not written is lost with it.
    fn drop(&mut self) {
        let _ = self.daemon.map(|daemon| kill_process(daemon, Signal::KILL));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
