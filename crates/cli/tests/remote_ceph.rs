//! Mounts of volumes in a Ceph cluster: `make judge-remote`. What was acknowledged survives OSDs
//! and servers that are killed.

use crate::support::mount::Mount;
use crate::support::{Image, succeed, tool};
use lanefs_tests::{Cluster, Served, e2fsck_clean, fsx_config, kept};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a mount is under load.
fn load() -> Duration {
    let seconds = std::env::var("REMOTE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

fn content(file: usize) -> Vec<u8> {
    format!("file {file} ").into_bytes().repeat(700)
}

/// Makes a file after the other durable, until it is told to stop. Returns how many were.
fn write_acknowledged(dir: &Path, stop: &AtomicBool) -> usize {
    fs::create_dir(dir).unwrap();
    for i in 0.. {
        if stop.load(Ordering::Relaxed) {
            return i;
        }
        let mut file = File::create(dir.join(i.to_string())).unwrap();
        file.write_all(&content(i)).unwrap();
        file.sync_all().unwrap();
        drop(file);
        File::open(dir).unwrap().sync_all().unwrap();
    }
    0
}

/// Runs fio with verification again and again, until it is told to stop.
fn verify(dir: &Path, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut fio = tool("fio");
        fio.args(["--name=job", "--filename=fio", "--rw=randwrite", "--bsrange=4k-64k", "--size=24M"]);
        fio.args(["--fsync=64", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--minimal"]);
        succeed(fio.current_dir(dir));
    }
}

/// Runs fsx again and again, each time with other operations, until it is told to stop. Returns how
/// often it ran.
fn exercise(image: &Image, mount: &Path, stop: &AtomicBool) -> usize {
    let config = image.beside("fsx.toml");
    fs::write(&config, fsx_config("flen = 1000000\n[opsize]\nmin = 1\nmax = 100000\n")).unwrap();
    let mut runs = 0;
    while !stop.load(Ordering::Relaxed) {
        runs += 1;
        let mut fsx = Command::new(kept("bin/fsx"));
        fsx.args(["-S", &runs.to_string(), "-N", "500", "-P"]).arg(image.beside(""));
        succeed(fsx.arg("-f").arg(&config).arg(mount.join("fsx")));
    }
    runs
}

/// Puts a mount under load while `disturb` runs, and returns how many files were acknowledged.
fn load_while(m: &Mount, disturb: impl FnOnce()) -> usize {
    let stop = AtomicBool::new(false);
    let (image, mount) = (&m.image, &*m.at);
    thread::scope(|threads| {
        let acknowledged = threads.spawn(|| write_acknowledged(&mount.join("acknowledged"), &stop));
        let verified = threads.spawn(|| verify(mount, &stop));
        let exercised = threads.spawn(|| exercise(image, mount, &stop));
        let began = Instant::now();
        disturb();
        thread::sleep(load().saturating_sub(began.elapsed()));
        stop.store(true, Ordering::Relaxed);
        verified.join().unwrap();
        assert!(exercised.join().unwrap() > 0, "fsx did not run");
        acknowledged.join().unwrap()
    })
}

/// Judges a copy of the image.
fn judge(image: &Image, cluster: &Cluster, acknowledged: usize) {
    succeed(cluster.rbd().args(["export", "lanefs/disk"]).arg(image.beside("copy.img")));
    judge_copy(image, acknowledged);
}

/// Lets e2fsck judge a copy of the volume, in which every acknowledged file has to be.
fn judge_copy(image: &Image, acknowledged: usize) {
    e2fsck_clean(image.beside("copy.img"));
    image.ok(["export", "copy.img:/acknowledged", "back"]);
    for i in 0..acknowledged {
        let found = fs::read(image.beside(&format!("back/{i}"))).unwrap();
        assert!(found == content(i), "file {i} of {acknowledged}");
    }
    assert!(acknowledged > 10, "only {acknowledged} files");
}

fn an_osd_dies(cluster: &Cluster, osd: u8) {
    thread::sleep(Duration::from_secs(2));
    cluster.kill(osd);
    thread::sleep(Duration::from_secs(4));
    cluster.revive(osd);
}

#[test]
#[ignore = "make judge-remote"]
fn qemu_nbd_serves_an_image_while_an_osd_and_the_server_are_killed() {
    let m = Mount::for_load(load());
    let cluster = Cluster::start(&m.image.beside("ceph"));
    let socket = m.image.beside("s");
    let name = format!("rbd:lanefs/disk:conf={}", cluster.conf().display());
    let serve = || Served::qemu_nbd(&socket, &["--format=raw", &name]);
    let server = serve();
    let url = server.url("x", "");
    m.image.ok(["mkfs", "-q", "-F", &url]);
    m.image.ok(["mount", &url, "m"]);
    // qemu would give its lock up, were it asked.
    let out = m.image.lanefs(["mkdir", &format!("{}:/no", cluster.url("lanefs/disk", ""))]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("is in use: the client at 127.0.0.1:"), "{said}");
    let mut server = Some(server);
    let acknowledged = load_while(&m, || {
        an_osd_dies(&cluster, 0);
        drop(server.take());
        server = Some(serve());
    });
    m.unmount("m");
    drop(server);
    judge(&m.image, &cluster, acknowledged);
}

#[test]
#[ignore = "make judge-remote"]
fn an_image_is_mounted_while_osds_are_killed() {
    let m = Mount::for_load(load());
    let cluster = Cluster::start(&m.image.beside("ceph"));
    let url = cluster.url("lanefs/disk", "");
    m.image.ok(["mkfs", "-q", &url]);
    let refused = m.image.lanefs(["mount", &url, "m", "-o", "sandbox=require"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("cannot be confined"), "{said}");
    m.image.ok(["mount", &url, "m", "-o", "sandbox=off"]);
    let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(m.at.to_str().unwrap())).unwrap();
    assert!(line.starts_with("rbd:lanefs/disk?conf=") && line.contains("nosuid,nodev"), "{line}");
    let acknowledged = load_while(&m, || {
        an_osd_dies(&cluster, 0);
        an_osd_dies(&cluster, 1);
    });
    m.unmount("m");
    judge(&m.image, &cluster, acknowledged);
}

/// Objects of a bucket, by nbdkit's plugin S3: a write is answered when its objects are stored.
#[test]
#[ignore = "make judge-remote"]
fn a_bucket_is_mounted_while_an_osd_and_the_server_are_killed() {
    let m = Mount::for_load(load());
    let cluster = Cluster::start(&m.image.beside("ceph"));
    let socket = m.image.beside("s");
    let endpoint = format!("endpoint-url={}", cluster.gateway());
    let bucket = ["access-key=key", "secret-key=secret", "bucket=disks", "key=disk", "size=512M"];
    let mut args = vec!["--filter=fua", "S3", &endpoint, "object-size=64k", "fuamode=discard"];
    args.extend(bucket);
    let mut server = Some(Served::nbdkit(&socket, &args));
    let url = format!("nbd+unix:///?socket={}", socket.display());
    m.image.ok(["mkfs", "-q", "-F", &url]);
    m.image.ok(["mount", &url, "m"]);
    let acknowledged = load_while(&m, || {
        an_osd_dies(&cluster, 0);
        drop(server.take());
        server = Some(Served::nbdkit(&socket, &args));
    });
    m.unmount("m");
    succeed(tool("nbdcopy").arg(&url).arg(m.image.beside("copy.img")));
    judge_copy(&m.image, acknowledged);
}

/// Returns the address of the client that has the lock of the image, by the program rbd.
fn lock_holder(cluster: &Cluster) -> String {
    let out = succeed(cluster.rbd().args(["lock", "ls", "lanefs/disk"]));
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    // The last word of the last line, as 127.0.0.1:0/3471329443.
    let holder = said.split_whitespace().last().unwrap_or_default().to_owned();
    assert!(holder.starts_with("127.0.0.1:"), "{said}");
    holder
}

/// Returns until when the cluster rejects what a client sends, by the program ceph.
fn fenced_until(cluster: &Cluster, client: &str) -> Option<String> {
    let out = succeed(tool("ceph").arg("--conf").arg(cluster.conf()).args(["osd", "blocklist", "ls"]));
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let line = said.lines().find(|line| line.split_whitespace().next() == Some(client))?;
    line.split_whitespace().nth(1).map(str::to_owned)
}

/// The same with a holder that lanefs has no part in: qemu's writes are rejected by the cluster.
#[test]
#[ignore = "make judge-remote"]
fn a_broken_lock_fences_qemu() {
    let image = Image::new();
    let cluster = Cluster::start(&image.beside("ceph"));
    let url = cluster.url("lanefs/disk", "");
    image.ok(["mkfs", "-q", &url]);
    let name = format!("rbd:lanefs/disk:conf={}", cluster.conf().display());
    let qemu = Served::qemu_nbd(&image.beside("s"), &["--format=raw", "--cache=none", &name]);
    let page = image.beside("page");
    fs::write(&page, vec![0xa5; 1 << 20]).unwrap();
    // Writes the first bytes of the image, and so the volume's superblock, if it may.
    let write = || tool("nbdcopy").arg("--flush").arg(&page).arg(qemu.url("x", "")).output().unwrap();
    let whole = image.beside("whole.img");
    succeed(tool("nbdcopy").arg(qemu.url("x", "")).arg(&whole));
    succeed(tool("nbdcopy").arg("--flush").arg(&whole).arg(qemu.url("x", "")));
    let holder = lock_holder(&cluster);
    assert_eq!(fenced_until(&cluster, &holder), None);

    let breaking = cluster.url("lanefs/disk", "&break-lock=yes");
    image.ok(["mkdir", &format!("{breaking}:/of-b")]);
    assert!(fenced_until(&cluster, &holder).is_some(), "{holder}");
    let out = write();
    assert!(!out.status.success(), "qemu has written: {}", String::from_utf8_lossy(&out.stderr));
    drop(qemu);
    assert_eq!(image.ok(["ls", &format!("{url}:/")]), "lost+found\nof-b\n");
    let copy = image.beside("copy.img");
    succeed(cluster.rbd().args(["export", "lanefs/disk"]).arg(&copy));
    e2fsck_clean(&copy);
}

/// A holder of the lock is named, and kept; once its lock is broken, the cluster rejects what it
/// still writes, although it was stopped and knows nothing of it.
#[test]
#[ignore = "make judge-remote"]
fn a_broken_lock_fences_the_old_holder() {
    let m = Mount::blank();
    let cluster = Cluster::start(&m.image.beside("ceph"));
    let url = cluster.url("lanefs/disk", "");
    m.image.ok(["mkfs", "-q", &url]);
    let mut server = m.image.lanefs(["mount", "-f", &url, "m"]).stderr(Stdio::piped()).spawn().unwrap();
    while !m.is_mounted() {
        assert!(server.try_wait().unwrap().is_none(), "the server ended");
        thread::sleep(Duration::from_millis(10));
    }
    let mut file = File::create(m.path("before")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    for other in ["ls", "mkdir"] {
        let out = m.image.lanefs([other, &format!("{url}:/of-b")]).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.contains("is in use: the client at 127.0.0.1:"), "{said}");
    }

    let holder = lock_holder(&cluster);
    let pid = Pid::from_raw(server.id().cast_signed()).unwrap();
    file.write_all(&[1; 200_000]).unwrap();
    // A program that starts closes what this one has open, and would wait for the stopped server.
    drop(file);
    kill_process(pid, Signal::STOP).unwrap();
    let breaking = cluster.url("lanefs/disk", "&break-lock=yes");
    m.image.ok(["mkdir", &format!("{breaking}:/of-b")]);
    // The fence outlives a holder that is stopped for weeks.
    let weeks = succeed(tool("date").args(["-u", "-d", "20 days", "+%Y-%m-%d"]));
    let last = fenced_until(&cluster, &holder).expect("the holder is not on the cluster's list");
    assert!(last.as_bytes() > &weeks.stdout[..], "{last}: fenced until");
    kill_process(pid, Signal::CONT).unwrap();
    let late = |name: &str| {
        let mut file = File::options().write(true).create(true).truncate(false).open(m.path(name))?;
        file.write_all(b"late").and_then(|()| file.sync_all())
    };
    assert_eq!(late("before").unwrap_err().raw_os_error(), Some(5));
    assert!(late("after").is_err());
    let _ = m.image.lanefs(["umount", "m"]).output().unwrap();
    let ended = server.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("another client has broken the lock"), "{said}");

    m.image.ok(["mkdir", &format!("{url}:/again")]);
    let copy = m.image.beside("copy.img");
    succeed(cluster.rbd().args(["export", "lanefs/disk"]).arg(&copy));
    e2fsck_clean(&copy);
    assert_eq!(m.image.ok(["cat", "copy.img:/before"]), "synced");
    assert_eq!(m.image.ok(["ls", "copy.img:/"]), "again\nbefore\nlost+found\nof-b\n");
}

/// The cluster fences a holder that has died, within a minute and without a word of the user.
#[test]
#[ignore = "make judge-remote"]
fn a_holder_that_died_is_fenced_by_itself() {
    let m = Mount::blank();
    let cluster = Cluster::start(&m.image.beside("ceph"));
    let url = cluster.url("lanefs/disk", "");
    m.image.ok(["mkfs", "-q", &url]);
    let mut server = m.image.lanefs(["mount", "-f", &url, "m"]).stderr(Stdio::null()).spawn().unwrap();
    while !m.is_mounted() {
        thread::sleep(Duration::from_millis(10));
    }
    let mut file = File::create(m.path("before")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let began = Instant::now();
    loop {
        let out = m.image.lanefs(["mkdir", &format!("{url}:/of-b")]).output().unwrap();
        if out.status.success() {
            break;
        }
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(said.contains("is in use: the client at 127.0.0.1:"), "{said}");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        thread::sleep(Duration::from_secs(1));
    }
    drop(file);
    let copy = m.image.beside("copy.img");
    succeed(cluster.rbd().args(["export", "lanefs/disk"]).arg(&copy));
    e2fsck_clean(&copy);
    assert_eq!(m.image.ok(["cat", "copy.img:/before"]), "synced");
}
