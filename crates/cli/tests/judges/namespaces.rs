//! Namespaces: server and programs in PID namespaces of each other, and a mount namespace that
//! still has a mount which its own has given up.

use crate::support::{Image, LIMIT, bounded, judged, must, output, shell};
use lanefs_tests::{Server, e2fsck_clean, private_mounts};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What root does in a folder, and what it may.
const OF_ROOT: &str = r#"
    say() { local what=$1; shift; if "$@" >/dev/null 2>&1; then echo "$what: done"; else echo "$what: refused"; fi; }
    cd "$0"
    touch f; chown 7:7 f; chmod 0 f; setfattr -n trusted.a -v b f
    say "read another's file" cat f
    say "chattr" chattr +i f
    chattr -i f
    say "get a trusted attribute" getfattr -n trusted.a f
    say "list trusted attributes" sh -c 'getfattr -d -m - f | grep trusted'
    say "trim" perl -e '$range = pack("QQQ", 0, ~0, 0); open(F, "<", ".") && ioctl(F, 0xC0185879, $range) || exit 1'
    printf x >g; chmod 6777 g; fallocate -l 8192 g; echo "after fallocate: $(stat -c %a g)"
    rm f g
"#;

/// What only a capability gives is not given to a thread that the server cannot look up.
const UNKNOWN: &str = "read another's file: done\nchattr: done\nget a trusted attribute: done\n\
    list trusted attributes: refused\ntrim: refused\nafter fallocate: 777";
const KNOWN: &str = "read another's file: done\nchattr: done\nget a trusted attribute: done\n\
    list trusted attributes: done\ntrim: done\nafter fallocate: 6777";

/// A server below unshare(1).
struct Contained {
    unshare: Child,
    server: Pid,
    dir: PathBuf,
}

impl Contained {
    /// Serves `image` in the namespaces that `args` of unshare(1) make.
    fn start(image: &Image, args: &[&str]) -> Self {
        private_mounts();
        let dir = image.beside("mnt");
        fs::create_dir_all(&dir).unwrap();
        let mut command = Command::new("unshare");
        command.args(args).args(["--fork", "--kill-child"]).arg(env!("CARGO_BIN_EXE_lanefs"));
        command.args(["mount", "--foreground"]).arg(&image.path).arg(&dir).stdin(Stdio::null());
        let mut unshare = command.spawn().unwrap();
        let by = Instant::now() + LIMIT;
        loop {
            assert!(
                unshare.try_wait().unwrap().is_none() && Instant::now() < by,
                "{command:?} does not mount"
            );
            let below = output(Command::new("pgrep").args(["-P", &unshare.id().to_string()]));
            let pid = String::from_utf8_lossy(&below.stdout).trim().to_owned();
            let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
            if table.contains(dir.to_str().unwrap()) {
                return Self { unshare, server: Pid::from_raw(pid.parse().unwrap()).unwrap(), dir };
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A folder as the server's mount namespace has it.
    fn inside(&self, dir: &Path) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.server.as_raw_nonzero()))
            .join(dir.strip_prefix("/").unwrap())
    }

    /// A program in these namespaces of the server.
    fn enter(&self, namespaces: &[&str]) -> Command {
        let mut command = bounded(60, "nsenter");
        command.args(["--target", &self.server.as_raw_nonzero().to_string()]).args(namespaces);
        command
    }

    fn end(mut self, image: &Image) {
        kill_process(self.server, Signal::TERM).unwrap();
        assert!(self.unshare.wait().unwrap().success());
        e2fsck_clean(&image.path);
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        // With --kill-child the server goes too.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        let _ = Command::new("umount").arg("--lazy").arg(&self.dir).stderr(Stdio::null()).status();
    }
}

fn of_root(command: &mut Command, dir: &Path) -> String {
    must(command.args(["bash", "-euo", "pipefail", "-c", OF_ROOT]).arg(dir))
}

#[test]
fn a_thread_that_the_server_cannot_look_up_has_no_capability() {
    let image = Image::new(64 << 20, &[]);
    // The server has a PID namespace of its own, in which no program outside has a number.
    let server = Contained::start(&image, &["--pid", "--mount-proc"]);
    let dir = server.dir.clone();
    assert_eq!(of_root(&mut bounded(60, "env"), &server.inside(&dir)), UNKNOWN);
    assert_eq!(of_root(&mut server.enter(&["--pid", "--mount"]), &dir), KNOWN);
    let mut deeper = server.enter(&["--pid", "--mount"]);
    assert_eq!(of_root(deeper.args(["unshare", "--pid", "--fork"]), &dir), KNOWN);
    server.end(&image);

    // Its /proc is that of another PID namespace, in which a number means another thread.
    let server = Contained::start(&image, &["--pid"]);
    assert_eq!(of_root(&mut server.enter(&["--pid"]), &dir), UNKNOWN);
    assert_eq!(of_root(&mut bounded(60, "env"), &dir), UNKNOWN);
    server.end(&image);
}

#[test]
fn a_program_in_a_pid_namespace_of_its_own_is_known() {
    let image = Image::new(64 << 20, &[]);
    let mounted = image.mount(&judged());
    let mut below = bounded(60, "unshare");
    assert_eq!(of_root(below.args(["--pid", "--fork"]), mounted.path()), KNOWN);
    mounted.unmount();
}

/// Files that are written and read until the mount is gone or the folder `stop` is there.
const WORK: &str = r#"
    cd "$0"; n=0
    while [ ! -e stop ]; do
        n=$((n + 1)); mkdir "$n"; seq "$n" $((n * 7 + 2000)) >"$n/data"; mv "$n/data" "$n/moved"
        [ "$(tail -n 1 "$n/moved")" = $((n * 7 + 2000)) ]
        echo "$n"
    done
"#;

/// A process in a mount namespace of its own, at work on the mount.
fn elsewhere(dir: &Path, seen: &Path) -> Child {
    let mut command = bounded(LIMIT.as_secs() as u32, "unshare");
    command.args(["--mount", "--propagation", "private", "bash", "-euo", "pipefail", "-c", WORK]).arg(dir);
    let seen_file = fs::File::create(seen).unwrap();
    let mut child = command.stdout(seen_file).spawn().unwrap();
    while fs::metadata(seen).unwrap().len() < 20 {
        assert!(child.try_wait().unwrap().is_none(), "the work ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn another_mount_namespace_goes_on_after_the_unmount() {
    let Server::Lanefs(program) = judged() else { return };
    for signal in [false, true] {
        let image = Image::new(256 << 20, &[]);
        let mut mounted = image.mount(&Server::Lanefs(program.clone()));
        let (dir, seen) = (mounted.path().to_owned(), image.beside("seen"));
        let mut other = elsewhere(&dir, &seen);
        must(bounded(60, "umount").args(["-i"]).arg(&dir));
        let before = fs::metadata(&seen).unwrap().len();
        let grows = |from: u64| {
            let by = Instant::now() + LIMIT;
            while fs::metadata(&seen).unwrap().len() <= from + 20 && Instant::now() < by {
                std::thread::sleep(Duration::from_millis(5));
            }
            fs::metadata(&seen).unwrap().len() > from + 20
        };
        assert!(grows(before), "the other namespace stands still");
        if signal {
            // The connection is aborted, and the volume closed.
            kill_process(Pid::from_raw(mounted.pid().unwrap() as i32).unwrap(), Signal::TERM).unwrap();
            assert!(mounted.wait().success());
            assert!(!other.wait().unwrap().success(), "the program ended well without its mount");
        } else {
            let workers = must(bounded(10, "pgrep").args(["-f", dir.to_str().unwrap()]));
            let root = workers.lines().find_map(|pid| {
                let root = PathBuf::from(format!("/proc/{pid}/root{}", dir.display()));
                root.join("1").is_dir().then_some(root)
            });
            fs::create_dir(root.expect("the other namespace has the mount").join("stop")).unwrap();
            assert!(other.wait().unwrap().success());
            assert!(mounted.wait().success());
        }
        drop(mounted);
        e2fsck_clean(&image.path);
        let last = fs::read_to_string(&seen).unwrap().lines().last().unwrap().to_owned();
        let mounted = image.mount(&Server::Kernel);
        if !signal {
            shell(
                mounted.path(),
                &format!("for n in $(seq {last}); do seq $n $((n * 7 + 2000)) | cmp - $n/moved; done"),
            );
        }
        mounted.unmount();
    }
}
