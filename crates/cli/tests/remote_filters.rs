//! Volumes on nbdkit behind filters that change what a server does: copies on write, failures,
//! partitions, several connections, a limit of them.

use crate::remote::{bench, fetched};
use crate::support::{Image, succeed, tool};
use lanefs_tests::{Served, e2fsck_clean};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Makes a file of this size, `new`, beside the image. Returns its content.
fn new_file(image: &Image, size: u32) -> Vec<u8> {
    let content: Vec<u8> = (0..size).map(|i| (i / 7) as u8).collect();
    fs::write(image.beside("new"), &content).unwrap();
    content
}

/// Checks that a file of a volume has this content.
fn holds(image: &Image, file: &str, content: &[u8]) {
    image.ok(["cp", file, "back"]);
    assert!(fs::read(image.beside("back")).unwrap() == content, "{file}");
}

#[test]
fn a_filter_that_copies_on_write_leaves_the_file_as_it_is() {
    let (image, socket) = bench();
    let before = fs::read(&image.path).unwrap();
    let content = new_file(&image, 3_000_000);
    let server = Served::nbdkit(&socket, &["--filter=cow", "file", image.path.to_str().unwrap()]);
    let url = server.url("", "");
    image.ok(["cp", "new", &format!("{url}:/new")]);
    image.ok(["mkdir", &format!("{url}:/d")]);
    image.ok(["mv", &format!("{url}:/new"), &format!("{url}:/d/moved")]);
    holds(&image, &format!("{url}:/d/moved"), &content);
    image.ok(["check", &url]);
    e2fsck_clean(fetched(&image, &url));
    holds(&image, "copy.img:/d/moved", &content);
    server.terminate();
    assert!(fs::read(&image.path).unwrap() == before, "the file was written");
}

/// One partition of a disk, by the filter and by the name that lanefs has for it.
#[test]
fn a_filter_and_lanefs_find_the_same_partition() {
    let (image, socket) = bench();
    let disk = image.beside("d.raw");
    fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    succeed(tool("sgdisk").args(["--new=1:1M:+24M", "--new=2:32M:+16M"]).arg(&disk));
    let path = disk.to_str().unwrap();
    let whole = Served::nbdkit(&socket, &["file", path]);
    let part = Served::nbdkit(&image.beside("t"), &["--filter=partition", "file", path, "partition=1"]);
    let urls = [whole.url("", "@1"), part.url("", "")];
    let content = new_file(&image, 3_000_000);
    image.ok(["mkfs", "-q", &urls[0]]);
    image.ok(["cp", "new", &format!("{}:/one", urls[0])]);
    image.ok(["cp", "new", &format!("{}:/two", urls[1])]);
    for url in &urls {
        assert_eq!(image.ok(["ls", &format!("{url}:/")]), "lost+found\none\ntwo\n");
        holds(&image, &format!("{url}:/one"), &content);
        holds(&image, &format!("{url}:/two"), &content);
        image.ok(["check", url]);
    }
    let copy = fetched(&image, &urls[1]);
    e2fsck_clean(&copy);
    let bytes = fs::read(&disk).unwrap();
    assert!(fs::read(copy).unwrap() == bytes[1 << 20..25 << 20], "the filter serves other bytes");
}

/// Writes and writes of zeros fail from a moment on: the command says so and ends. Later ones
/// succeed again, and nothing of what failed is there.
#[test]
fn writes_that_a_server_fails_are_told() {
    let (image, socket) = bench();
    let (file, failing) = (image.path.to_str().unwrap(), image.beside("failing"));
    let when = format!("error-file={}", failing.display());
    let rates = ["error-pwrite-rate=100%", "error-zero-rate=100%"];
    let server = Served::nbdkit(&socket, &["--filter=error", "file", file, rates[0], rates[1], &when]);
    let url = server.url("", "");
    let content = new_file(&image, 3_000_000);
    image.ok(["cp", "new", &format!("{url}:/before")]);

    fs::write(&failing, "").unwrap();
    for args in [["cp", "new"].as_slice(), &["mkdir"]] {
        let target = format!("{url}:/while");
        let out = image.lanefs(args.iter().copied().chain([&*target])).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("the NBD server failed a write"), "{said}");
    }
    assert_eq!(image.ok(["ls", &format!("{url}:/")]), "before\nlost+found\n");

    fs::remove_file(&failing).unwrap();
    let recovered = image.lanefs(["recover", &url]).output().unwrap();
    assert!(recovered.status.success(), "{recovered:?}");
    e2fsck_clean(fetched(&image, &url));
    image.ok(["cp", "new", &format!("{url}:/behind")]);
    assert_eq!(image.ok(["ls", &format!("{url}:/")]), "before\nbehind\nlost+found\n");
    holds(&image, &format!("{url}:/before"), &content);
    e2fsck_clean(fetched(&image, &url));
}

/// Counts the connections that were written on, by the log of nbdkit's filter. The last command on
/// each of them has to be a flush.
fn written_on(log: &Path) -> usize {
    let log = fs::read_to_string(log).unwrap();
    let mut unflushed = HashMap::new();
    for line in log.lines() {
        // Behind the date and the time.
        let mut words = line.split_whitespace().skip(2);
        let Some(connection) = words.next().filter(|word| word.starts_with("connection=")) else { continue };
        match words.next() {
            Some("Write" | "Zero") => {
                unflushed.insert(connection, true);
            }
            Some("Flush") => {
                unflushed.entry(connection).and_modify(|is| *is = false);
            }
            _ => {}
        }
    }
    assert!(!unflushed.values().any(|is| *is), "{log}");
    unflushed.len()
}

/// The filter closes the connection of a client more.
#[test]
fn a_server_that_admits_fewer_connections_is_told_of() {
    let (image, socket) = bench();
    let file = image.path.to_str().unwrap();
    let server = Served::nbdkit(&socket, &["--filter=limit", "file", file, "limit=2"]);
    let url = server.url("", "&connections=4");
    let why = "connection 3 of connections=4: the NBD server has closed the connection";
    image.fails(["ls", &format!("{url}:/")], 2, &format!("lanefs: cannot open '{url}': {why}"));
}

/// The filter flushes all connections where lanefs flushes one, or tells that it does not.
#[test]
fn there_are_several_connections_where_a_flush_covers_all() {
    let (image, socket) = bench();
    let file = image.path.to_str().unwrap();
    let content = new_file(&image, 16_000_000);
    let written = |mode: &str| {
        let log = image.beside(mode);
        let filters = ["--filter=multi-conn", "--filter=log", "file", file];
        let options = [format!("multi-conn-mode={mode}"), format!("logfile={}", log.display())];
        let args = filters.into_iter().chain(options.iter().map(String::as_str));
        let server = Served::nbdkit(&socket, &args.collect::<Vec<_>>());
        image.ok(["cp", "new", &format!("{}:/{mode}", server.url("", "&connections=3"))]);
        server.terminate();
        image.fsck();
        holds(&image, &format!("v.img:/{mode}"), &content);
        written_on(&log)
    };
    assert_eq!((written("emulate"), written("disable")), (3, 1));
}
