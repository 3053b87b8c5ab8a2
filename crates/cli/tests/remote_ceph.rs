//! Mounts of volumes in a Ceph cluster: `make judge-remote`. What was acknowledged survives OSDs
//! and servers that are killed.

use crate::support::mount::Mount;
use crate::support::{Image, succeed, tool};
use lanefs_tests::{Cluster, Served, e2fsck_clean};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a volume is under load.
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

/// Puts a mount under load while `disturb` runs, and returns how many files were acknowledged.
fn load_while(mount: &Path, disturb: impl FnOnce()) -> usize {
    let stop = AtomicBool::new(false);
    thread::scope(|threads| {
        let acknowledged = threads.spawn(|| write_acknowledged(&mount.join("acknowledged"), &stop));
        let verified = threads.spawn(|| verify(mount, &stop));
        let began = Instant::now();
        disturb();
        thread::sleep(load().saturating_sub(began.elapsed()));
        stop.store(true, Ordering::Relaxed);
        verified.join().unwrap();
        acknowledged.join().unwrap()
    })
}

/// Lets e2fsck judge a copy of the image, in which every acknowledged file has to be.
fn judge(image: &Image, cluster: &Cluster, acknowledged: usize) {
    let copy = image.beside("copy.img");
    succeed(cluster.rbd().args(["export", "lanefs/disk"]).arg(&copy));
    e2fsck_clean(&copy);
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
    let m = Mount::blank();
    let cluster = Cluster::start(&m.image.beside("ceph"));
    let socket = m.image.beside("s");
    let name = format!("rbd:lanefs/disk:conf={}", cluster.conf().display());
    let serve = || Served::qemu_nbd(&socket, &["--format=raw", &name]);
    let server = serve();
    let url = server.url("x", "");
    m.image.ok(["mkfs", "-q", "-F", &url]);
    m.image.ok(["mount", &url, "m"]);
    let mut server = Some(server);
    let acknowledged = load_while(&m.at, || {
        an_osd_dies(&cluster, 0);
        drop(server.take());
        server = Some(serve());
    });
    m.unmount("m");
    drop(server);
    judge(&m.image, &cluster, acknowledged);
}
