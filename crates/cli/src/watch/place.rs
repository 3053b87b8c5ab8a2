//! Where the sockets of mounts are: in a folder that only their owner can enter. The name of each has the number of the process that
//! serves the mount and that of its connection, `PID-CONNECTION.sock`, by which the server of a mount is found.
//!
//! A process that was killed leaves its socket behind. Whoever opens the folder takes such sockets away: nobody listens there any
//! more. The folder is locked meanwhile, so that a socket that is just being made is not taken for one of those.

use lanefs_fuse::MountDevice;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Pid;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// The socket of this process. Gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) listener: UnixListener,
    path: PathBuf,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes the socket of this process, which serves `device`, in the first folder where that can be.
///
/// # Errors
/// The last folder's.
pub(crate) fn bind(device: MountDevice) -> io::Result<Owner> {
    bind_in(&folders(), device)
}

/// The process of this user that serves `device`. Nothing is asked of it: it may hang.
pub(crate) fn server_of(device: MountDevice) -> Option<Pid> {
    sockets().iter().filter(|path| number_of(path) == Some(device.minor)).find_map(|path| peer(path))
}

/// The sockets that somebody listens at. Those that nobody does are taken away.
pub(crate) fn sockets() -> Vec<PathBuf> {
    sockets_in(&folders())
}

/// The processes of this user that serve any mount.
pub(crate) fn servers() -> Vec<Pid> {
    sockets().iter().filter_map(|path| peer(path)).collect()
}

/// The folders that may be used, the best first: the system's for what runs, which is in memory, before the one for temporary files.
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

fn bind_in(folders: &[PathBuf], device: MountDevice) -> io::Result<Owner> {
    let mut failed = io::Error::from(Errno::NOENT);
    for folder in folders {
        match enter(folder, true).and_then(|lock| bind_at(folder, &lock, device)) {
            Ok(owner) => return Ok(owner),
            Err(e) => failed = io::Error::new(e.kind(), format!("{}: {e}", folder.display())),
        }
    }
    Err(failed)
}

fn bind_at(folder: &Path, lock: &OwnedFd, device: MountDevice) -> io::Result<Owner> {
    sweep(folder, lock);
    // In another namespace there may be another process of this number, but it has another connection.
    let path = folder.join(format!("{}-{}.sock", std::process::id(), device.minor));
    let listener = UnixListener::bind(&path)?;
    let owner = Owner { listener, path };
    fs::set_permissions(&owner.path, fs::Permissions::from_mode(0o600))?;
    owner.listener.set_nonblocking(true)?;
    Ok(owner)
}

fn sockets_in(folders: &[PathBuf]) -> Vec<PathBuf> {
    let found = folders.iter().filter_map(|folder| Some(sweep(folder, &enter(folder, false).ok()?)));
    found.flatten().collect()
}

/// The folder, locked. It is made if that is asked for, and refused if others could have put anything into it.
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
    flock(&dir, FlockOperation::LockExclusive)?;
    Ok(dir)
}

/// Takes away what nobody listens at; the rest.
fn sweep(folder: &Path, _lock: &OwnedFd) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sockets = entries.map(|e| e.path()).filter(|path| path.extension().is_some_and(|e| e == "sock"));
    sockets
        .filter(|path| {
            let left = is_left(path);
            if left {
                let _ = fs::remove_file(path);
            }
            !left
        })
        .collect()
}

/// The number of the connection in the name of a socket.
fn number_of(path: &Path) -> Option<u32> {
    path.file_stem()?.to_str()?.split_once('-')?.1.parse().ok()
}

/// The process that listens at a socket.
fn peer(path: &Path) -> Option<Pid> {
    let credentials = socket_peercred(connected(path).ok()?).ok()?;
    // 0 for a process of another namespace.
    (credentials.pid.as_raw_pid() > 0).then_some(credentials.pid)
}

/// Whether nobody listens there any more. One with too many at its door does listen.
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
    use std::os::unix::net::UnixStream;

    fn connection(minor: u32) -> MountDevice {
        MountDevice { major: 0, minor }
    }

    #[test]
    fn what_a_killed_process_left_is_swept_and_the_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let folders = [dir.path().join("none/lanefs"), dir.path().join("lanefs")];
        let owner = bind_in(&folders, connection(7)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&folders[1]), mode(&owner.path)), (0o700, 0o600));
        // A listener that is closed without a word is what a killed process leaves.
        let left = folders[1].join("1-0.sock");
        drop(UnixListener::bind(&left).unwrap());
        assert!(left.exists());
        let second = bind_in(&folders, connection(8)).unwrap();
        assert!(!left.exists() && second.path != owner.path);
        let mut found = sockets_in(&folders);
        found.sort();
        assert_eq!(found, [owner.path.clone(), second.path.clone()]);
        assert_eq!((number_of(&owner.path), number_of(&second.path)), (Some(7), Some(8)));
        assert_eq!(peer(&owner.path), Some(rustix::process::getpid()));
        let path = second.path.clone();
        drop(second);
        assert!(!path.exists());
        UnixStream::connect(&owner.path).unwrap();
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("lanefs");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let why = bind_in(std::slice::from_ref(&folder), connection(7)).unwrap_err().to_string();
        assert!(why.contains("others may write there"), "{why}");
        fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink(dir.path(), &folder).unwrap();
        bind_in(&[folder], connection(7)).unwrap_err();
    }
}
