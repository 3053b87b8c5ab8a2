//! top: what a mount tells of itself, to its owner and to Prometheus, and what no client can do to
//! it.

use crate::support::mount::{Mount, ended};
use crate::support::tool;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Where sockets of root's mounts are.
const SOCKETS: &str = "/run/lanefs";

/// What the mount says, asked by one of its names.
fn told(m: &Mount, name: &str) -> Value {
    serde_json::from_str(&m.image.ok(["top", name, "--once", "--json"])).unwrap()
}

fn socket_of(pid: u64) -> PathBuf {
    let sockets = fs::read_dir(SOCKETS).unwrap().flatten().map(|e| e.path());
    let of_pid = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{pid}-"));
    sockets.into_iter().find(of_pid).expect("a socket")
}

fn metrics_address(told: &Value) -> SocketAddr {
    told["metrics"].as_str().expect("an address").parse().unwrap()
}

/// Files that are written and synced one by one.
fn work(m: &Mount, files: u64) {
    for i in 0..files {
        let file = File::create(m.path(&format!("f{i}"))).unwrap();
        file.write_all_at(&[7; 10_000], 0).unwrap();
        file.sync_all().unwrap();
    }
}

fn try_ask(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn ask(address: SocketAddr, request: &str) -> String {
    try_ask(address, request).unwrap()
}

#[test]
fn what_is_counted_adds_up() {
    let m = Mount::new("metrics=127.0.0.1:0");
    let before = told(&m, "m");
    work(&m, 50);
    let held = File::open(m.path("f0")).unwrap();
    // The kernel says by and by that a file was closed.
    let after = loop {
        let after = told(&m, "v.img");
        if after["open_files"] == 1 {
            break after;
        }
        thread::sleep(Duration::from_millis(10));
    };
    let count = |of: &Value, op: &str| of["stats"]["histograms"][op]["count"].as_u64().unwrap();
    let counter = |of: &Value, name: &str| of["stats"]["counters"][name].as_u64().unwrap();
    let level = |name: &str| after["stats"]["levels"][name].as_u64().unwrap();
    let more = |name: &str| counter(&after, name) - counter(&before, name);
    assert_eq!(count(&after, "fsync") - count(&before, "fsync"), 50);
    assert!(more("bytes_written_back") >= 500_000 && more("handles") >= 50 && more("commits") >= 1);
    assert!(more("credits_used") <= more("credits_asked") + more("credits_overdrawn"));
    assert!(after["requests"].as_u64() >= Some(before["requests"].as_u64().unwrap() + 200));
    assert!(after["nodes"].as_u64() >= Some(50));
    assert!(level("log_blocks") >= 1000 && level("log_blocks_used") <= level("log_blocks"));
    assert!(level("credits_limit") > 0 && level("cache_bytes_dirty_limit") > 0);
    for (name, of) in after["stats"]["histograms"].as_object().unwrap() {
        let buckets: u64 = of["buckets"].as_array().unwrap().iter().map(|b| b[2].as_u64().unwrap()).sum();
        assert_eq!(buckets, of["timed"].as_u64().unwrap(), "{name}");
        assert!(of["timed"].as_u64() <= of["count"].as_u64(), "{name}");
    }
    // Prometheus is told the same.
    let text = ask(metrics_address(&after), "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"), "{head}");
    let samples = exposition(body);
    assert_eq!(samples["lanefs_operations_total{op=\"fsync\"}"], count(&after, "fsync") as f64);
    // What the background does goes on meanwhile.
    assert!(samples["lanefs_commits_total"] >= counter(&after, "commits") as f64);
    assert_eq!(samples["lanefs_open_files"], 1.0);
    drop(held);
    m.umount();
}

/// The samples of a text in the exposition format, each of whose rules is checked: names, families
/// in one piece with their type before them, no sample twice, histograms that rise to their count.
fn exposition(text: &str) -> BTreeMap<String, f64> {
    let (mut samples, mut types) = (BTreeMap::new(), BTreeMap::new());
    let (mut helps, mut over) = (BTreeSet::new(), BTreeSet::new());
    let mut family = String::new();
    let is_name = |name: &str| {
        !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
    };
    assert!(text.ends_with('\n') && !text.contains('\r'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').unwrap();
            assert!(is_name(name) && !words.is_empty() && helps.insert(name.to_owned()), "{line}");
            assert!(over.insert(std::mem::replace(&mut family, name.to_owned())), "{line}: begun again");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind) && name == family, "{line}");
            assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{line}");
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}: no number"));
            let (name, labels) = sample.split_once('{').map_or((sample, ""), |(name, rest)| (name, rest));
            assert!(labels.is_empty() || labels.ends_with("\"}"), "{line}");
            let kind = types.get(&family).unwrap_or_else(|| panic!("{line}: no type"));
            let of = name.strip_prefix(family.as_str()).unwrap_or_else(|| panic!("{line}: not of {family}"));
            match kind.as_str() {
                "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&of), "{line}"),
                "counter" => assert!(of.is_empty() && name.ends_with("_total"), "{line}"),
                _ => assert!(of.is_empty(), "{line}"),
            }
            assert!(is_name(name) && value >= 0.0, "{line}");
            assert!(samples.insert(sample.to_owned(), value).is_none(), "{line}: twice");
        }
    }
    let mut ends = (String::new(), -1.0, -1.0);
    for line in text.lines().filter(|line| line.contains("_bucket{")) {
        let (op, rest) = line.split_once(",le=\"").unwrap();
        let (end, count) = rest.split_once("\"} ").unwrap();
        let (end, count) =
            (if end == "+Inf" { f64::INFINITY } else { end.parse().unwrap() }, count.parse().unwrap());
        if ends.0 == op {
            assert!(end > ends.1 && count >= ends.2, "{line}");
        }
        ends = (op.to_owned(), end, count);
        if end.is_infinite() {
            let all = op.replace("_bucket{", "_count{") + "}";
            assert_eq!(samples.get(&all), Some(&count), "{line}");
        }
    }
    assert!(ends.1.is_infinite());
    samples
}

#[test]
fn a_picture_for_people() {
    let m = Mount::new("defaults");
    work(&m, 3);
    let text = m.image.ok(["top", "m", "--once", "-i", "0.1"]);
    assert!(text.starts_with(&format!("{} on ", m.image.path.canonicalize().unwrap().display())), "{text}");
    for part in
        ["requests", "journal  [", "credits  [", "dirty    [", "fsync", "threads that wait for", "a commit"]
    {
        assert!(text.lines().any(|line| line.trim_start().starts_with(part)), "{part}: {text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
    // On a terminal: until a key is pressed, and all as it was behind it.
    let live = format!("{} top m -i 0.05", env!("CARGO_BIN_EXE_lanefs"));
    let mut script = tool("script");
    script.args(["-qec", &live, "/dev/null"]).current_dir(m.image.beside("")).env("TERM", "xterm");
    let mut child =
        script.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let (mut keys, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut shown, mut piece) = (Vec::new(), [0; 4096]);
    let count = |shown: &[u8], of: &[u8]| shown.windows(of.len()).filter(|w| *w == of).count();
    while count(&shown, b"threads that wait for") < 3 {
        let n = out.read(&mut piece).unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&piece[..n]);
    }
    keys.write_all(b"q").unwrap();
    out.read_to_end(&mut shown).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(shown.starts_with(b"\x1b[?1049h"), "{}", String::from_utf8_lossy(&shown));
    assert!(shown.ends_with(b"\x1b[?1049l"), "{}", String::from_utf8_lossy(&shown));
    m.umount();
}

#[test]
fn metrics_are_off_and_never_for_other_machines() {
    let m = Mount::blank();
    let fails = |option: &str, part: &str| {
        let out = m.image.lanefs(["mount", "v.img", "m", "-o", option]).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(
            said.contains(option) && said.contains(part) && said.trim_end().lines().count() == 1,
            "{said}"
        );
        assert!(!m.is_mounted());
    };
    fails("metrics=0.0.0.0:9100", "others could reach it");
    fails("metrics=[::]:9100", "others could reach it");
    fails("metrics=9100", "127.0.0.1:9100");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    fails(&format!("metrics={}", taken.local_addr().unwrap()), "in use");
    m.image.ok(["mount", "v.img", "m"]);
    let told = told(&m, "m");
    assert!(told["metrics"].is_null());
    // No thread of that process listens on a port.
    let fds = fs::read_dir(format!("/proc/{}/fd", told["pid"])).unwrap().flatten();
    let sockets: Vec<String> = fds
        .filter_map(|fd| {
            Some(fs::read_link(fd.path()).ok()?.to_str()?.strip_prefix("socket:[")?.replace(']', ""))
        })
        .collect();
    assert!(!sockets.is_empty());
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let table = fs::read_to_string(table).unwrap_or_default();
        assert!(
            !table
                .lines()
                .any(|l| l.split_whitespace().nth(9).is_some_and(|i| sockets.iter().any(|s| s == i)))
        );
    }
    m.umount();
}

#[test]
fn the_socket_is_the_owners_and_goes_with_the_mount() {
    let m = Mount::new("metrics=127.0.0.1:0");
    let told = told(&m, "m");
    let socket = socket_of(told["pid"].as_u64().unwrap());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(Path::new(SOCKETS)), mode(&socket)), (0o700, 0o600));
    // The port has the metrics and nothing else.
    let address = metrics_address(&told);
    assert!(ask(address, "GET /stats HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    // Another user does not find it.
    fs::set_permissions(m.image.beside(""), fs::Permissions::from_mode(0o755)).unwrap();
    let open = m.image.beside("lanefs");
    lanefs_tests::copy_file(env!("CARGO_BIN_EXE_lanefs"), &open);
    let mut other = Command::new(&open);
    let out = other
        .args(["top", "m", "--once"])
        .current_dir(m.image.beside(""))
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("no server of this user serves") && !out.status.success(), "{said}");
    m.umount();
    assert!(!socket.exists());
    m.image.fails(["top", "m"], 1, "lanefs: 'm' is no mount of this user: lanefs mount VOLUME DIRECTORY");
    // Another program may have the port now.
    let answer = try_ask(address, "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(!answer.is_ok_and(|text| text.contains("lanefs_requests_total")));
}

#[test]
fn what_a_killed_mount_leaves_is_cleared_by_top_and_by_the_next_mount() {
    let m = Mount::blank();
    for by_top in [true, false] {
        let mut server = m.serve();
        // It is served once the first file is there.
        work(&m, 1);
        let socket = socket_of(told(&m, "m")["pid"].as_u64().unwrap());
        assert!(socket.exists());
        // It removes what its server leaves.
        m.kill_broker(server.id());
        server.kill().unwrap();
        server.wait().unwrap();
        assert!(socket.exists(), "killed, it could not clear up");
        if by_top {
            let why = "no server of this user serves 'm'; if the mount is dead, lanefs umount removes it";
            m.image.fails(["top", "m"], 1, &format!("lanefs: {why}"));
            assert!(!socket.exists());
        }
        lanefs_tests::released(&m.image.path);
        m.unmount("m");
        m.image.ok(["mount", "v.img", "m"]);
        assert!(!socket.exists());
        assert_eq!(told(&m, "m")["dir"], m.at.canonicalize().unwrap().to_str().unwrap());
        m.umount();
    }
}

#[test]
fn the_broker_removes_the_socket_of_a_killed_server_and_ends() {
    let m = Mount::blank();
    let mut server = m.serve();
    work(&m, 1);
    let socket = socket_of(told(&m, "m")["pid"].as_u64().unwrap());
    let broker = m.broker_of(server.id());
    server.kill().unwrap();
    server.wait().unwrap();
    ended(broker);
    lanefs_tests::released(&m.image.path);
    assert!(!socket.exists());
    assert!(m.is_mounted(), "the mount of a killed server stays");
    m.unmount("m");
}

#[test]
fn no_client_keeps_a_mount_from_its_work() {
    let m = Mount::new("metrics=127.0.0.1:0");
    let first = told(&m, "m");
    let (address, socket) = (metrics_address(&first), socket_of(first["pid"].as_u64().unwrap()));
    let mut idle: (Vec<TcpStream>, Vec<UnixStream>) = Default::default();
    for i in 0..40 {
        let mut stream = TcpStream::connect(address).unwrap();
        // Some say nothing, some begin and stop, some never stop, and some do not take their
        // answer.
        let said: &[u8] =
            [b"" as &[u8], b"GET /met", &[b'a'; 6000], b"\0\xff\r\n\r\n", b"GET /metrics HTTP/1.1\r\n\r\n"]
                [i % 5];
        let _ = stream.write_all(said);
        idle.0.push(stream);
        if let Ok(mut stream) = UnixStream::connect(&socket) {
            let _ = stream.write_all(said);
            idle.1.push(stream);
        }
        if idle.1.len() == 20 {
            break;
        }
    }
    work(&m, 3);
    assert_eq!(fs::read(m.path("f2")).unwrap(), [7; 10_000]);
    // Each of the others may have its two seconds first: ask again. The watchdog ends it.
    let told: Value = loop {
        let out = m.image.lanefs(["top", "m", "--once", "--json"]).output().unwrap();
        if out.status.success() {
            break serde_json::from_slice(&out.stdout).unwrap();
        }
    };
    assert_eq!(told["pid"], first["pid"]);
    let metrics = || try_ask(address, "GET /metrics HTTP/1.1\r\n\r\n");
    while !metrics().is_ok_and(|text| text.contains("lanefs_requests_total")) {}
    // Not even from ending, with all of them there.
    m.umount();
    assert!(!socket.exists());
    drop(idle);
}

#[test]
fn no_thread_wakes_up_without_a_question() {
    let m = Mount::new("metrics=127.0.0.1:0");
    let told = told(&m, "m");
    ask(metrics_address(&told), "GET /metrics HTTP/1.1\r\n\r\n");
    let tasks = fs::read_dir(format!("/proc/{}/task", told["pid"])).unwrap().flatten().map(|e| e.path());
    let name = |task: &PathBuf| fs::read_to_string(task.join("comm")).unwrap().trim().to_owned();
    let watch: Vec<PathBuf> = tasks.filter(|task| name(task).starts_with("lanefs-watch")).collect();
    let [watch] = watch.as_slice() else { panic!("{watch:?}") };
    let switches = || {
        let status = fs::read_to_string(watch.join("status")).unwrap();
        let line = status.lines().find(|l| l.starts_with("voluntary_ctxt_switches")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    // It comes to rest behind the last answer, and then nothing moves it: but tests beside this one
    // ask all mounts for theirs.
    let mut last = switches();
    let mut rest = 0;
    for _ in 0..3000 {
        thread::sleep(Duration::from_millis(100));
        let now = switches();
        rest = if now == last { rest + 1 } else { 0 };
        last = now;
        if rest == 30 {
            m.umount();
            return;
        }
    }
    panic!("it wakes up again and again: {last} times");
}
