//! stress-ng: system calls on files by several users at once, each of which verifies its own.

use crate::support::{Image, SIZE, bounded, judged, said};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};

/// Stressors that have nothing to do with the folder, or touch the whole machine: `io` syncs each
/// file system that is mounted. `inode-flags` ends with `FS_IOC_SETFLAGS` of 0, which asks for a
/// file without extents and is refused; flags.c is the judge of flags.
const LEFT_OUT: &str =
    "bind-mount,binderfs,dev,dev-shm,fanotify,inode-flags,io,loop,null,procfs,ramfs,sysfs,umount,zero";

/// Stressors that take up to 1 GiB each if they are not told otherwise: together they would fill
/// the volume, and the others would end for want of space.
const BOUNDED: [&str; 6] = ["fallocate", "fiemap", "hdd", "iomix", "readahead", "sync-file"];

/// One user's run: all of its class one after the other, some seconds each.
fn run(user: u32, folder: &Path, seconds: u32) -> Child {
    let mut command = bounded(800, "setpriv");
    let id = user.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "stress-ng"]);
    command.args(["--class", "filesystem", "--sequential", "2", "--exclude", LEFT_OUT, "--verify"]);
    command
        .args(["--timeout", &seconds.to_string(), "--no-rand-seed", "--oomable", "--temp-path"])
        .arg(folder);
    command.args(BOUNDED.map(|stressor| format!("--{stressor}-bytes=16M")));
    command.current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
#[ignore = "long: make judge-mount"]
fn system_calls_of_many_users_at_once() {
    let image = Image::new(2 * SIZE, &["-N", "200000"]);
    let mounted = image.mount(&judged());
    let users = [0, 2001, 2002, 2003].map(|user| {
        let folder = mounted.path().join(user.to_string());
        fs::create_dir(&folder).unwrap();
        std::os::unix::fs::chown(&folder, Some(user), Some(user)).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        run(user, &folder, 3)
    });
    for child in users {
        let out = child.wait_with_output().unwrap();
        let said = said(&out);
        assert!(out.status.success() && !said.contains("fail:"), "{}\n{said}", out.status);
    }
    mounted.unmount();
}
