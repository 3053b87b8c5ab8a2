//! Multiple mount protection, between hosts: nbdkit serves one file by two sockets, so that no lock
//! of this host keeps two openers apart. Judged by e2fsck, dumpe2fs, debugfs and the kernel.

use crate::support::mount::Mount;
use crate::support::{Image, succeed, tool};
use lanefs::format::{EXT4_MMP_SEQ_FSCK, Mmp, Superblock};
use lanefs_tests::{LoopDevice, Served, private_mounts, require_root};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Makes the image a volume that is claimed, and renewed every second.
fn protect(image: &Image) {
    let options = ["-O", "mmp", "-E", "mmp_update_interval=1"];
    image.ok([&["mkfs", "-q", "-F", "-b", "4096"], &options[..], &["v.img"]].concat());
}

/// Serves the image at a socket of this name.
fn serve(image: &Image, socket: &str) -> Served {
    Served::nbdkit(&image.beside(socket), &["file", image.path.to_str().unwrap()])
}

/// `lanefs ARGS` on a host of this name.
fn on_host(image: &Image, host: &str, args: &[&str]) -> Command {
    require_root();
    let mut command = tool("unshare");
    command.args(["--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", host]);
    command.arg(env!("CARGO_BIN_EXE_lanefs")).args(args).current_dir(image.beside("")).env("TZ", "UTC");
    command
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn dump_mmp(image: &Image) -> String {
    image.debugfs("dump_mmp")
}

/// What lanefs makes, writes and switches is what e2fsprogs makes, writes and switches.
#[test]
fn e2fsprogs_reads_what_lanefs_writes_and_the_other_way_round() {
    let image = Image::new();
    let e2fsck = || image.fsck();
    protect(&image);
    e2fsck();
    let dumped = dump_mmp(&image);
    for line in ["update_interval: 1", "check_interval: 5", "sequence: ff4d4d50", "magic: 0x4d4d50"] {
        assert!(dumped.contains(line), "{dumped}");
    }
    fs::write(image.beside("f"), vec![7; 2_000_000]).unwrap();
    image.ok(["cp", "f", "v.img:/f"]);
    e2fsck();
    let dumped = dump_mmp(&image);
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for line in ["sequence: ff4d4d50".into(), format!("node_name: {node}"), "device_name: v.img".into()] {
        assert!(dumped.contains(&line), "{dumped}");
    }
    let safe = succeed(tool("dumpe2fs").args(["-m"]).arg(&image.path));
    let safe = String::from_utf8_lossy(&safe.stdout).into_owned();
    assert!(safe.contains("MMP is clean"), "{safe}");
    let shown = image.ok(["mmp", "show", "v.img"]);
    assert!(
        shown.contains("every 1 s") && shown.contains(&format!("host '{node}', device 'v.img'")),
        "{shown}"
    );
    assert!(image.ok(["info", "v.img"]).contains("MMP           on, not in use"));

    image.ok(["mmp", "off", "v.img"]);
    e2fsck();
    assert!(!image.debugfs("features").contains("mmp"));
    assert_eq!(image.ok(["mmp", "show", "v.img"]), "Protection    off\n");
    image.ok(["mmp", "on", "--interval", "3", "v.img"]);
    e2fsck();
    assert!(dump_mmp(&image).contains("update_interval: 3"));
    image.ok(["resize", "v.img", "96M"]);
    e2fsck();
    image.ok(["resize", "v.img", "48M"]);
    e2fsck();
    assert!(image.ok(["check", "v.img"]).contains("clean"));

    succeed(tool("tune2fs").args(["-O", "^mmp"]).arg(&image.path));
    image.ok(["mkdir", "v.img:/d"]);
    succeed(tool("tune2fs").args(["-O", "mmp"]).arg(&image.path));
    image.ok(["mkdir", "v.img:/e"]);
    e2fsck();
    assert!(dump_mmp(&image).contains("sequence: ff4d4d50"));
    succeed(tool("tune2fs").args(["-f", "-E", "clear_mmp"]).arg(&image.path));
    image.ok(["mkdir", "v.img:/g"]);
    e2fsck();
}

/// What a user does behind an e2fsck that was killed.
#[test]
fn a_claim_of_e2fsck_is_refused_until_it_is_cleared() {
    let image = Image::new();
    protect(&image);
    // debugfs marks the block as clean when it ends, whatever it was told to write.
    let mut bytes = fs::read(&image.path).unwrap();
    let sb = Superblock::parse(&bytes[1024..]).unwrap();
    let (block, csum) = (sb.mmp().unwrap().0, sb.checksummer());
    let slot = &mut bytes[block as usize * sb.block_size() as usize..][..Mmp::LEN];
    let claimed = Mmp { seq: EXT4_MMP_SEQ_FSCK, ..Mmp::parse(slot, block, &csum).unwrap() };
    slot.copy_from_slice(&claimed.encode(&csum));
    fs::write(&image.path, bytes).unwrap();
    let out = image.lanefs(["mkdir", "v.img:/d"]).output().unwrap();
    assert!(
        said(&out).contains("e2fsck uses the volume") && said(&out).contains("lanefs mmp clear"),
        "{out:?}"
    );
    // A reader goes on.
    image.ok(["ls", "v.img:/"]);
    let out = image.lanefs(["mmp", "clear", "v.img"]).output().unwrap();
    assert!(out.status.success() && said(&out).contains("waiting for up to 11 s"), "{out:?}");
    image.ok(["mkdir", "v.img:/d"]);
    image.fsck();
}

/// A volume on a server is claimed unless its user says otherwise.
#[test]
fn a_volume_on_a_server_is_protected() {
    let image = Image::new();
    let server = Served::nbdkit(&image.beside("s"), &["memory", "64M"]);
    let url = server.url("", "");
    image.ok(["mkfs", "-q", &url]);
    assert!(image.ok(["mmp", "show", &url]).contains("Protection    on"));
    image.ok(["mkfs", "-q", "-F", "-O", "^mmp", &url]);
    assert_eq!(image.ok(["mmp", "show", &url]), "Protection    off\n");
    let out = image.lanefs(["tune", "-O", "mmp", &url]).output().unwrap();
    assert!(said(&out).contains("lanefs mmp on"), "{out:?}");
}

fn mount(device: &LoopDevice, at: &Path) -> Output {
    tool("mount").args(["-t", "ext4"]).arg(device.path()).arg(at).output().unwrap()
}

#[test]
fn the_kernel_and_lanefs_refuse_each_other() {
    private_mounts();
    let m = Mount::blank();
    let image = &m.image;
    protect(image);
    let server = serve(image, "s");
    let url = server.url("", "");
    let kernel = image.beside("kernel");
    fs::create_dir(&kernel).unwrap();

    let device = LoopDevice::new(&image.path);
    let mounted = mount(&device, &kernel);
    assert!(mounted.status.success(), "{mounted:?}");
    fs::write(kernel.join("by the kernel"), b"1").unwrap();
    let out = image.lanefs(["mkdir", &server.url("", ":/d")]).output().unwrap();
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = device.name();
    let wanted = format!("another host uses the volume: host '{node}', device '{name}', last seen 20");
    assert!(!out.status.success() && said(&out).contains(&wanted), "{}", said(&out));
    succeed(tool("umount").arg(&kernel));
    drop(device);
    image.fsck();

    image.ok(["mount", &url, "m"]);
    fs::write(m.path("by lanefs"), b"2").unwrap();
    let device = LoopDevice::new(&image.path);
    let refused = mount(&device, &kernel);
    assert!(!refused.status.success(), "{refused:?}");
    let log = String::from_utf8_lossy(&succeed(&mut tool("dmesg")).stdout).into_owned();
    let why = "Device is already active on another node";
    let is_told = |line: &str| line.contains(device.name()) && line.contains(why);
    assert!(log.lines().any(is_told), "{}", log.lines().rev().take(20).collect::<Vec<_>>().join("\n"));
    drop(device);
    m.umount();
    image.fsck();

    let device = LoopDevice::new(&image.path);
    let mounted = mount(&device, &kernel);
    assert!(mounted.status.success(), "{mounted:?}");
    assert_eq!(fs::read(kernel.join("by lanefs")).unwrap(), b"2");
    succeed(tool("umount").arg(&kernel));
    drop(device);
    image.fsck();
}

/// Waits until a mount is there that a child serves.
fn await_mount(m: &Mount, child: &mut Child) {
    let began = Instant::now();
    while !m.is_mounted() {
        assert!(child.try_wait().unwrap().is_none(), "the server ended");
        assert!(began.elapsed() < Duration::from_secs(60), "no mount");
        std::thread::sleep(Duration::from_millis(10));
    }
    fs::read_dir(&m.at).unwrap();
}

/// The server of a mount, which ends with the test.
struct Server(Child);

impl Server {
    fn start(m: &Mount, command: &mut Command) -> Self {
        let mut server = Self(command.spawn().unwrap());
        await_mount(m, &mut server.0);
        server
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.0.id().cast_signed()).unwrap(), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Also one that is stopped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Host A is stopped for longer than its interval, host B takes the volume, A wakes: A's writes
/// fail, and B's volume is sound.
#[test]
fn a_host_that_was_stopped_is_fenced() {
    let m = Mount::blank();
    let image = &m.image;
    protect(image);
    let (server_a, server_b) = (serve(image, "a"), serve(image, "b"));
    let mount = ["mount", "-f", &server_a.url("", ""), "m"];
    let mut host_a = Server::start(&m, &mut on_host(image, "host-a", &mount));
    fs::write(m.path("a"), b"by a").unwrap();
    File::open(m.path("a")).unwrap().sync_all().unwrap();
    assert!(dump_mmp(image).contains("node_name: host-a"), "{}", dump_mmp(image));

    // While A lives, B is refused at once, by the name of A.
    fs::write(image.beside("f"), vec![2; 300_000]).unwrap();
    let copy = ["cp", "f", &server_b.url("", ":/b")];
    let refused = on_host(image, "host-b", &copy).output().unwrap();
    assert!(!refused.status.success() && said(&refused).contains("host 'host-a'"), "{}", said(&refused));

    // Written, and not committed when A stops. A process of its own has the file open: a process
    // that has it waits for A when it starts another one.
    let script = "exec 3>>m/a; printf ' unsynced' >&3; echo written; read -r go; printf ! >&3; sync m/a";
    let mut writer = tool("sh");
    writer.args(["-c", script]).current_dir(image.path.parent().unwrap());
    let mut writer =
        writer.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(writer.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "written\n");
    host_a.signal(Signal::STOP);
    let began = Instant::now();
    let out = on_host(image, "host-b", &copy).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let waits = "was not closed by its last user: host 'host-a'";
    assert!(said(&out).contains(waits) && said(&out).contains("waiting for up to 22 s"), "{}", said(&out));
    assert!(began.elapsed() > Duration::from_secs(21), "{:?}", began.elapsed());
    let held = fs::read(&image.path).unwrap();

    host_a.signal(Signal::CONT);
    writer.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let failed = writer.wait_with_output().unwrap();
    assert!(!failed.status.success() && said(&failed).contains("Input/output error"), "{failed:?}");
    assert!(fs::write(m.path("new"), b"x").is_err());
    let _ = image.lanefs(["umount", "m"]).output().unwrap();
    let ended = host_a.0.wait().unwrap();
    assert!(!ended.success(), "A says that it lost its volume");
    assert!(fs::read(&image.path).unwrap() == held, "A has written");
    image.fsck();
    assert_eq!(image.ok(["cat", "v.img:/a"]), "by a");
    assert!(image.ok(["stat", "v.img:/b"]).contains("300000"));
}

/// What a crash leaves is waited for, and `lanefs mmp clear` shortens that.
#[test]
fn a_volume_of_a_host_that_died_is_waited_for() {
    let m = Mount::blank();
    protect(&m.image);
    let server = Server::start(&m, &mut m.image.lanefs(["mount", "-f", "v.img", "m"]));
    fs::write(m.path("f"), b"1").unwrap();
    File::open(m.path("f")).unwrap().sync_all().unwrap();
    assert!(m.image.ok(["check", "v.img"]).contains("in use: this is its last commit"));
    drop(server);
    let _ = tool("umount").arg("-l").arg(&m.at).status();
    let began = Instant::now();
    let out = m.image.lanefs(["mount", "v.img", "m"]).output().unwrap();
    assert!(out.status.success() && said(&out).contains("waiting for up to 22 s"), "{out:?}");
    assert!(began.elapsed() >= Duration::from_secs(22));
    assert_eq!(fs::read(m.path("f")).unwrap(), b"1");
    m.umount();
    m.image.fsck();
}
