//! The folder with the sockets of mounts, which only their owner can enter.
//!
//! A socket is named `PID-CONNECTION.sock`, after the process that serves the mount and the FUSE
//! connection. Commands find the server of a mount by that name.
//!
//! A killed process leaves its socket behind. Each process that opens the folder removes the
//! sockets on which no process listens. It holds a lock on the folder meanwhile, so that it does
//! not remove a socket that another process is just creating.

use lanefs_fuse::MountDevice;
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, chmodat, flock, fstat, open, openat, unlinkat};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Pid;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// The name of a socket. Removed when this is dropped.
#[derive(Debug)]
pub(crate) struct SocketPlace {
    folder: OwnedFd,
    name: String,
}

impl Drop for SocketPlace {
    fn drop(&mut self) {
        let _ = unlinkat(&self.folder, &self.name, AtFlags::empty());
    }
}

/// The folder in which the socket of a mount will be made, opened and checked. It is opened before
/// the mount exists: the mount may cover the folder's path while no thread serves the mount yet.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    dir: OwnedFd,
}

impl Folder {
    /// Opens the first folder that can be used, and makes it if it is not there.
    ///
    /// # Errors
    /// The error of the last folder, if none can be used.
    pub(crate) fn open() -> io::Result<Self> {
        Self::open_in(&folders())
    }

    fn open_in(folders: &[PathBuf]) -> io::Result<Self> {
        let mut failed = io::Error::from(Errno::NOENT);
        for path in folders {
            match enter(path, true) {
                Ok(dir) => return Ok(Self { path: path.clone(), dir }),
                Err(e) => failed = told_of(path, &e),
            }
        }
        Err(failed)
    }

    /// Makes the socket of the process `server`, which serves `device`.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn bind(&self, device: MountDevice, server: u32) -> io::Result<(UnixListener, SocketPlace)> {
        let lock = lock(&self.dir)?;
        bind_at(&self.path, &lock, device, server).map_err(|e| told_of(&self.path, &e))
    }
}

fn told_of(folder: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", folder.display()))
}

/// Returns the process of this user that serves `device`. Asks nothing of that process: it may
/// hang.
pub(crate) fn server_of(device: MountDevice) -> Option<Pid> {
    served_at(device).map(|(_, pid)| pid)
}

/// Returns the socket of the process of this user that serves `device`, and the process.
pub(crate) fn served_at(device: MountDevice) -> Option<(PathBuf, Pid)> {
    let mut sockets = sockets().into_iter().filter(|path| number_of(path) == Some(device.minor));
    sockets.find_map(|path| peer(&path).map(|pid| (path, pid)))
}

/// Returns the sockets on which a process listens, and removes the others.
pub(crate) fn sockets() -> Vec<PathBuf> {
    sockets_in(&folders())
}

/// Returns the processes of this user that serve any mount.
pub(crate) fn servers() -> Vec<Pid> {
    sockets().iter().filter_map(|path| peer(path)).collect()
}

/// Returns the socket of the mount that one of these processes of this user serves.
pub(crate) fn socket_of(servers: &[u32]) -> Option<PathBuf> {
    let serves = |path: &PathBuf| {
        peer(path).is_some_and(|pid| servers.contains(&pid.as_raw_nonzero().get().cast_unsigned()))
    };
    sockets().into_iter().find(serves)
}

/// Returns the folders that may be used, the best first: the system's folder for running programs,
/// which is in memory, before the folder for temporary files.
fn folders() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid();
    let mut folders = Vec::new();
    if uid.is_root() {
        // Not what the environment says: a mount of fstab and a shell of root must find the same.
        folders.push("/run/lanefs".into());
    } else {
        let told = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
        folders.extend(told.map(|dir| dir.join("lanefs")));
        folders.push(format!("/run/user/{}/lanefs", uid.as_raw()).into());
    }
    folders.push(Path::new("/tmp").join(format!("lanefs-{}", uid.as_raw())));
    folders.dedup();
    folders
}

fn bind_at(
    folder: &Path,
    lock: &OwnedFd,
    device: MountDevice,
    server: u32,
) -> io::Result<(UnixListener, SocketPlace)> {
    sweep(folder, lock)?;
    // In another namespace there may be another process of this number, but it has another
    // connection.
    let name = format!("{server}-{}.sock", device.minor);
    // The folder that was checked, whatever its path leads to by now. Another description: `lock`
    // is given up when it is closed.
    let folder = openat(lock, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let listener = UnixListener::bind(inside(&folder, &name))?;
    let place = SocketPlace { folder, name };
    chmodat(&place.folder, &place.name, Mode::from_raw_mode(0o600), AtFlags::empty())?;
    listener.set_nonblocking(true)?;
    Ok((listener, place))
}

fn sockets_in(folders: &[PathBuf]) -> Vec<PathBuf> {
    let look = |folder: &PathBuf| sweep(folder, &lock(&enter(folder, false).ok()?).ok()?).ok();
    let found = folders.iter().filter_map(look);
    found.flatten().collect()
}

/// Opens the folder, and makes it first if `make`. Refuses a folder that other users could have put
/// anything into.
fn enter(folder: &Path, make: bool) -> io::Result<OwnedFd> {
    if make && let Err(e) = DirBuilder::new().mode(0o700).create(folder) {
        match e.kind() {
            io::ErrorKind::AlreadyExists => {}
            _ => return Err(e),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = open(folder, flags, Mode::empty())?;
    let stat = fstat(&dir)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "others may write there"));
    }
    Ok(dir)
}

/// Returns an open folder, locked until the returned file of it is closed.
fn lock(dir: &OwnedFd) -> io::Result<OwnedFd> {
    // Another description, which alone has the lock.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lock = openat(dir, ".", flags, Mode::empty())?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}

/// Removes the sockets of a folder, which is locked, that no process listens at. Returns the paths
/// of the others.
fn sweep(folder: &Path, lock: &OwnedFd) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(lock)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if Path::new(name).extension().is_none_or(|e| e != "sock") {
            continue;
        }
        if is_left(&inside(lock, name)) {
            let _ = unlinkat(lock, name, AtFlags::empty());
        } else {
            found.push(folder.join(name));
        }
    }
    Ok(found)
}

/// Returns a path that leads to a name in an open folder, and nowhere else.
fn inside(folder: &OwnedFd, name: impl AsRef<Path>) -> PathBuf {
    Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name)
}

/// Returns the number of the connection in the name of a socket.
fn number_of(path: &Path) -> Option<u32> {
    path.file_stem()?.to_str()?.split_once('-')?.1.parse().ok()
}

/// Returns the process that listens on a socket.
fn peer(path: &Path) -> Option<Pid> {
    let credentials = socket_peercred(connected(path).ok()?).ok()?;
    // 0 for a process of another namespace.
    (credentials.pid.as_raw_pid() > 0).then_some(credentials.pid)
}

/// Returns whether no process listens on a socket any more. A process whose queue of connections is
/// full does listen.
fn is_left(path: &Path) -> bool {
    connected(path).is_err_and(|e| e == Errno::CONNREFUSED)
}

fn connected(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    fn connection(minor: u32) -> MountDevice {
        MountDevice { major: 0, minor }
    }

    #[test]
    fn what_a_killed_process_left_is_swept_and_the_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let folders = [dir.path().join("none/lanefs"), dir.path().join("lanefs")];
        let bind = |device, server| Folder::open_in(&folders).unwrap().bind(device, server).unwrap();
        let (_listener, owner) = bind(connection(7), 1);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let path_of = |owner: &SocketPlace| folders[1].join(&owner.name);
        assert_eq!((mode(&folders[1]), mode(&path_of(&owner))), (0o700, 0o600));
        // A listener that is closed without a word is what a killed process leaves. A child of
        // another test's thread has it open until its exec.
        let left = folders[1].join("1-0.sock");
        let listener = UnixListener::bind(&left).unwrap();
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        drop(listener);
        assert!(left.exists());
        let (listener, second) = bind(connection(8), 2);
        let (path, other) = (path_of(&owner), path_of(&second));
        assert!(!left.exists() && path != other);
        let mut found = sockets_in(&folders);
        found.sort();
        assert_eq!(found, [path.clone(), other.clone()]);
        assert_eq!((number_of(&path), number_of(&other)), (Some(7), Some(8)));
        assert_eq!(peer(&path), Some(rustix::process::getpid()));
        drop((listener, second));
        assert!(!other.exists());
        UnixStream::connect(&path).unwrap();
    }

    /// The socket is made in the folder that was checked, not in a folder that has taken its path.
    #[test]
    fn a_socket_is_made_and_removed_in_the_folder_that_was_checked() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, moved) = (dir.path().join("lanefs"), dir.path().join("moved"));
        let opened = Folder::open_in(std::slice::from_ref(&folder)).unwrap();
        fs::rename(&folder, &moved).unwrap();
        fs::create_dir(&folder).unwrap();
        let (_listener, owner) = opened.bind(connection(7), 1).unwrap();
        let theirs = folder.join(&owner.name);
        fs::write(&theirs, "kept").unwrap();
        assert!(moved.join(&owner.name).exists());
        assert_eq!(sweep(&folder, &lock(&opened.dir).unwrap()).unwrap(), std::slice::from_ref(&theirs));
        drop(owner);
        assert_eq!(fs::read_dir(&moved).unwrap().count(), 0);
        assert_eq!(fs::read(&theirs).unwrap(), b"kept");
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("lanefs");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let why = Folder::open_in(std::slice::from_ref(&folder)).unwrap_err().to_string();
        assert!(why.contains("others may write there"), "{why}");
        fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink(dir.path(), &folder).unwrap();
        Folder::open_in(&[folder]).unwrap_err();
    }
}
