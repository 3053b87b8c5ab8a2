//! Devices over devices: overlays and caches, by the command, judged by e2fsck.

use crate::support::{Image, succeed, tool};
use lanefs::{OpenOptions, Volume};
use lanefs_tests::{Served, e2fsck_clean};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

/// Returns the bytes that clients of a server with `--filter=stats` have read.
fn bytes_read(stats: &Path) -> u64 {
    let text = fs::read_to_string(stats).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("read: ")).unwrap_or_default();
    // As in "read: 12 ops, 0.000123 s, 48.00 KiB, ...".
    let size = line.split(", ").nth(2).unwrap_or("0 bytes");
    let (number, unit) = size.split_once(' ').unwrap_or((size, ""));
    let number: f64 = number.parse().unwrap_or_else(|_| panic!("{line}"));
    let factor = match unit {
        "GiB" => 1 << 30,
        "MiB" => 1 << 20,
        "KiB" => 1 << 10,
        _ => 1,
    };
    (number * f64::from(factor)) as u64
}

#[test]
fn an_overlay_is_changed_and_committed() {
    let image = Image::new();
    let name = "overlay:base=v.img,top=mine.top";
    let before = fs::read(&image.path).unwrap();
    fs::write(image.beside("new"), vec![7; 300_000]).unwrap();
    assert_eq!(image.ok(["ls", &format!("{name}:/")]), image.ok(["ls", "v.img:/"]));
    assert!(!image.beside("mine.top").exists(), "a reader made it");
    image.ok(["cp", "new", &format!("{name}:/new")]);
    image.ok(["mkdir", &format!("{name}:/d")]);
    assert!(fs::read(&image.path).unwrap() == before, "the base was written");
    assert!(!image.ok(["ls", "v.img:/"]).contains("new"));
    let seen = image.ok(["ls", &format!("{name}:/")]);
    assert!(seen.contains("new") && seen.contains("d\n"), "{seen}");
    let info = image.ok(["info", name]);
    assert!(info.contains("Over          v.img"), "{info}");
    image.ok(["check", name]);

    let said = image.ok(["commit", "-v", "mine.top"]);
    assert!(said.contains("written to") && said.contains("v.img"), "{said}");
    e2fsck_clean(&image.path);
    assert!(image.ok(["ls", "v.img:/"]).contains("new"));
    // It is empty, and goes on over the base as it is now.
    assert_eq!(image.ok(["commit", "-v", name]), format!("{name}: 0 (0 bytes) written to v.img\n"));
    image.ok(["rm", &format!("{name}:/new")]);
    // The base has been changed without it.
    image.ok(["mkdir", "v.img:/other"]);
    for command in [vec!["ls", name], vec!["commit", name]] {
        let out = image.lanefs(command).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains("is the top of another base"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// A program that reads the base of an overlay keeps the writers of this host out. The base is on a
/// server that has no lock.
#[test]
fn a_base_that_is_read_is_not_written() {
    let image = Image::new();
    let server = Served::nbdkit(&image.beside("s"), &["memory", "64M"]);
    let url = server.url("", "");
    image.ok(["mkfs", "-q", &url]);
    fs::write(image.beside("large"), vec![7; 4 << 20]).unwrap();
    image.ok(["cp", "large", &format!("{url}:/large")]);
    let over = |top: &str, path: &str| format!("overlay:base={url},top={top}{path}");
    image.ok(["mkdir", &over("two.top", ":/d")]);
    for base in [over("one.top", ""), format!("cached:{url},dir=cache,size=1G"), url.clone()] {
        // It waits for its pipe, and has the base open.
        let mut cat = image.lanefs(["cat", &format!("{base}:/large")]);
        let mut reader = cat.stdout(Stdio::piped()).spawn().unwrap();
        reader.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let by = format!("is in use: the process {} of this host has the export open", reader.id());
        for args in [["mkdir", &format!("{url}:/no")], ["commit", "two.top"]] {
            let out = image.lanefs(args).output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(!out.status.success() && said.contains(&by), "{base}, {args:?}: {said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
        assert_eq!(image.ok(["ls", &over("three.top", ":/")]), "large\nlost+found\n");
        let rest = reader.wait_with_output().unwrap();
        assert!(rest.status.success() && rest.stdout.len() == (4 << 20) - 1, "{base}");
    }
    image.ok(["commit", "two.top"]);
    assert_eq!(image.ok(["ls", &format!("{url}:/")]), "d\nlarge\nlost+found\n");
}

#[test]
fn stacks_over_a_partition() {
    let image = Image::new();
    let disk = image.beside("disk.img");
    fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    succeed(tool("sgdisk").args(["--new=1:1M:+8M", "--new=2:16M:+32M", "--change-name=2:root"]).arg(&disk));
    image.ok(["mkfs", "-q", "disk.img@root"]);
    let first = fs::read(&disk).unwrap();
    image.ok(["mkdir", "overlay:base=disk.img@root,top=mine.top:/in-it"]);
    assert!(fs::read(&disk).unwrap() == first, "the base was written");
    assert_eq!(
        image.ok(["ls", "overlay:base=cached:disk.img@2,dir=cache,size=1M,top=other.top:/"]),
        "lost+found\n"
    );
    image.ok(["mkdir", "cached:disk.img@2,dir=cache,size=1M:/by-a-cache"]);
    let out = image.lanefs(["ls", "overlay:base=disk.img@root,top=mine.top:/"]).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("is the top of another base"));
    image.ok(["mkdir", "overlay:base=disk.img@root,top=new.top:/by-an-overlay"]);
    image.ok(["commit", "new.top"]);
    assert_eq!(image.ok(["ls", "disk.img@root:/"]), "by-a-cache\nby-an-overlay\nlost+found\n");
    let part = image.beside("part.img");
    fs::write(&part, &fs::read(&disk).unwrap()[16 << 20..48 << 20]).unwrap();
    e2fsck_clean(&part);
}

/// A volume is none, and e2fsck would not help it.
#[test]
fn what_is_no_top_is_one_line() {
    let image = Image::new();
    for args in [vec!["commit", "v.img"], vec!["ls", "overlay:base=v.img,top=v.img:/"]] {
        let out = image.lanefs(&args).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains("is no top of an overlay"), "{args:?}: {said}");
        assert!(said.lines().count() == 1 && !said.contains("e2fsck"), "{args:?}: {said}");
    }
}

#[test]
fn a_top_whose_path_would_be_read_as_a_base_is_refused() {
    let image = Image::new();
    image.ok(["mkdir", "overlay:base=v.img,top=mine.top:/d"]);
    fs::rename(image.beside("mine.top"), image.beside("a,top=mine.top")).unwrap();
    let out = image.lanefs(["commit", "a,top=mine.top"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("has ',top=' in it"), "{said}");
}

/// Sandboxes over one image of a server, all of them open at once in one program.
#[test]
fn a_hundred_sandboxes_are_open_at_once() {
    // Each has its top, its connection, and the file of the cache.
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    let image = Image::new();
    fs::write(image.beside("f"), vec![5; 300_000]).unwrap();
    image.ok(["cp", "f", "v.img:/f"]);
    let before = fs::read(&image.path).unwrap();
    let server = Served::nbdkit(&image.beside("s"), &["file", image.path.to_str().unwrap()]);
    let (url, dir) = (server.url("", ""), image.beside(""));
    let base = format!("cached:{url},dir={},size=100M", dir.join("cache").display());
    let name =
        |number: u8| format!("overlay:base={base},top={}", dir.join(format!("{number}.top")).display());
    let open = |number| OpenOptions::new().write(true).open_url(name(number)).unwrap();
    let sandboxes: Vec<Volume> = (0..100).map(open).collect();
    for (number, sandbox) in (0..).zip(&sandboxes) {
        assert!(sandbox.read("/f").unwrap() == [5; 300_000], "{number}");
        sandbox.write("/f", &[number; 1000]).unwrap();
    }
    for (number, sandbox) in (0..).zip(sandboxes) {
        assert!(sandbox.read("/f").unwrap() == [number; 1000], "{number}");
        sandbox.close().unwrap();
    }
    assert_eq!(image.ok(["cat", &format!("{}:/f", name(99))]).as_bytes(), [99; 1000]);
    assert!(fs::read(&image.path).unwrap() == before, "the base was written");
}

/// A thousand sandboxes start from one image of a server: what a first look reads of it.
#[test]
fn the_first_ls_of_a_large_remote_image_reads_little() {
    let image = Image::new();
    let (socket, stats) = (image.beside("s"), image.beside("stats"));
    image.ok(["mkfs", "-q", "--size", "10G", "large.img"]);
    image.ok(["mkdir", "large.img:/etc"]);
    let large = image.beside("large.img");
    let read = |name: &str| {
        let _ = fs::remove_file(&stats);
        let filter = format!("statsfile={}", stats.display());
        let server = Served::nbdkit(&socket, &["--filter=stats", "file", large.to_str().unwrap(), &filter]);
        let said = image.ok(["ls", &format!("{}:/", name.replace("NBD", &server.url("", "")))]);
        assert!(said.contains("etc") && said.contains("lost+found"), "{said}");
        server.terminate();
        bytes_read(&stats)
    };
    let first = read("overlay:base=cached:NBD,dir=cache,size=1G,top=one.top");
    let second = read("overlay:base=cached:NBD,dir=cache,size=1G,top=two.top");
    let plain = read("NBD");
    println!("first ls: {first} bytes, second: {second}, without a cache: {plain}");
    assert!((1..4 << 20).contains(&first), "{first} bytes");
    // The superblock, by which the cache knows its base.
    assert!(second <= 64 << 10, "{second} bytes");
    assert!(plain < 4 << 20, "{plain} bytes");
}
