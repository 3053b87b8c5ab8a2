//! Volumes on nbd-server, qemu-nbd and qemu-storage-daemon, in images of several formats:
//! `make judge-remote`.

use crate::support::{Image, succeed, tool};
use lanefs_tests::{Served, e2fsck_clean};
use std::fs;
use std::path::Path;

/// Makes, fills and reads a volume over NBD.
fn use_it(image: &Image, url: &str) {
    image.ok(["mkfs", "-q", "-F", url]);
    fs::create_dir_all(image.beside("tree/d")).unwrap();
    (0..60u8).for_each(|i| fs::write(image.beside(&format!("tree/d/{i}")), vec![i; 100_000]).unwrap());
    image.ok(["import", "tree", &format!("{url}:/")]);
    image.ok(["rm", &format!("{url}:/d/7")]);
    for i in [0u8, 33, 59] {
        image.ok(["cp", &format!("{url}:/d/{i}"), "back"]);
        assert!(fs::read(image.beside("back")).unwrap() == vec![i; 100_000], "{url}: {i}");
    }
    image.ok(["check", url]);
}

fn judged(image: &Image, url: &str) {
    let copy = image.beside("copy.img");
    succeed(tool("nbdcopy").arg(url).arg(&copy));
    e2fsck_clean(&copy);
    assert!(lanefs_tests::debugfs(&copy, "stat /d/59").contains("Size: 100000"));
}

/// Lets e2fsck judge what qemu-img makes of an image.
fn converted(image: &Image, format: &str, path: &str) {
    let raw = image.beside("converted");
    succeed(tool("qemu-img").args(["convert", "-f", format, "-O", "raw", path]).arg(&raw));
    e2fsck_clean(&raw);
    image.ok(["cp", "converted:/d/59", "back"]);
    assert!(fs::read(image.beside("back")).unwrap() == vec![59; 100_000], "{format}");
}

/// Makes an image of 64 MiB in the format LUKS1, with the content of the file `key` beside it as
/// the passphrase. Returns what tells qemu that passphrase, as `key`.
fn make_luks(image: &Image, path: &str) -> String {
    let key = image.beside("key");
    fs::write(&key, "well kept").unwrap();
    let secret = format!("secret,id=key,file={}", key.display());
    let options = "key-secret=key,iter-time=10";
    let args = ["create", "-q", "--object", &secret, "-f", "luks", "-o", options, path, "64M"];
    // On a busy machine it may fail to tell how fast it is ("Unable to get accurate CPU usage").
    let made = (0..20).any(|_| tool("qemu-img").args(args).output().unwrap().status.success());
    assert!(made, "qemu-img {args:?}");
    secret
}

/// Returns whether a file has these words in the clear.
fn has_words(file: &Path, words: &str) -> bool {
    match tool("grep").args(["-qaF", words]).arg(file).status().unwrap().code() {
        Some(0) => true,
        Some(1) => false,
        other => panic!("grep: {other:?}"),
    }
}

fn empty(path: &Path) {
    fs::File::create(path).unwrap().set_len(64 << 20).unwrap();
}

#[test]
#[ignore = "make judge-remote"]
fn nbd_server() {
    let image = Image::new();
    let (socket, raw) = (image.beside("s"), image.beside("raw"));
    empty(&raw);
    let server = Served::nbd_server(&socket, &raw, "flush = true\nfua = true\ntrim = true");
    use_it(&image, &server.url("x", ""));
    judged(&image, &server.url("x", ""));
    let listed = image.ok(["info", &format!("nbd+unix://?socket={}", socket.display())]);
    assert!(listed.trim_end().ends_with('x'), "{listed}");
    let out = image.lanefs(["ls", &server.url("y", ":/")]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains(r#"has no export "y"; there are "x""#), "{said}");
    drop(server);
    e2fsck_clean(&raw);
    // Without flush there is nothing that writes could be made durable by.
    let server = Served::nbd_server(&socket, &raw, "flush = false");
    let out = image.lanefs(["mkdir", &server.url("x", ":/new")]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("offers no flush") && said.contains("'flush = true'"), "{said}");
    image.ok(["ls", &server.url("x", ":/d")]);
}

#[test]
#[ignore = "make judge-remote"]
fn qemu_nbd_serves_raw_and_qcow2() {
    let image = Image::new();
    let (socket, file) = (image.beside("s"), image.beside("disk"));
    let path = file.to_str().unwrap();
    for format in ["raw", "qcow2"] {
        succeed(tool("qemu-img").args(["create", "-q", "-f", format, path, "64M"]));
        let server = Served::qemu_nbd(&socket, &["--format", format, path]);
        use_it(&image, &server.url("x", ""));
        judged(&image, &server.url("x", ""));
        drop(server);
        converted(&image, format, path);
    }
}

#[test]
#[ignore = "make judge-remote"]
fn qemu_storage_daemon_serves_images_of_other_formats() {
    let image = Image::new();
    let socket = image.beside("s");
    for format in ["vmdk", "vhdx", "vdi", "vpc", "qcow2"] {
        let file = image.beside(&format!("disk.{format}"));
        let path = file.to_str().unwrap();
        succeed(tool("qemu-img").args(["create", "-q", "-f", format, path, "64M"]));
        let node =
            format!("driver={format},node-name=disk,discard=unmap,file.driver=file,file.filename={path}");
        let server = Served::qemu_storage_daemon(&socket, &["--blockdev", &node]);
        use_it(&image, &server.url("x", "&connections=3"));
        judged(&image, &server.url("x", ""));
        server.terminate();
        converted(&image, format, path);
    }
}

/// Three servers have the key of one image. What is written through one is read through the next,
/// and none of it is in the image in the clear.
#[test]
#[ignore = "make judge-remote"]
fn a_luks_image_is_edited_in_place() {
    let image = Image::new();
    let (socket, file) = (image.beside("s"), image.beside("disk"));
    let path = file.to_str().unwrap();
    let secret = make_luks(&image, path);
    let words = |name: &str| format!("written by way of {name}\n").repeat(20_000);
    let mut written = Vec::new();
    let mut edit = |server: Served, export: &str, name: &'static str| {
        let url = server.url(export, "");
        fs::write(image.beside("new"), words(name)).unwrap();
        image.ok(["cp", "new", &format!("{url}:/{name}")]);
        written.push(name);
        for &name in &written {
            image.ok(["cp", &format!("{url}:/{name}"), "back"]);
            assert!(fs::read_to_string(image.beside("back")).unwrap() == words(name), "{url}: {name}");
        }
        image.ok(["check", &url]);
        judged(&image, &url);
        server.terminate();
        assert!(has_words(&image.beside("copy.img"), "written by way of"));
        assert!(!has_words(&file, "written by way of"), "{name} wrote in the clear");
        assert_eq!(&fs::read(&file).unwrap()[..6], b"LUKS\xba\xbe");
    };

    let options = format!("driver=luks,key-secret=key,file.filename={path}");
    let by_qemu = || Served::qemu_nbd(&socket, &["--object", &secret, "--image-opts", &options]);
    let server = by_qemu();
    use_it(&image, &server.url("x", ""));
    edit(server, "x", "qemu-nbd");
    let key = format!("passphrase=+{}", image.beside("key").display());
    edit(Served::nbdkit(&socket, &["--filter=luks", "file", path, &key]), "", "nbdkit");
    let node = format!("driver=luks,node-name=disk,key-secret=key,file.driver=file,file.filename={path}");
    let daemon = Served::qemu_storage_daemon(&socket, &["--object", &secret, "--blockdev", &node]);
    edit(daemon, "x", "qemu-storage-daemon");
    edit(by_qemu(), "x", "qemu-nbd again");
}

/// Several connections to a server that lets a flush cover all of them.
#[test]
#[ignore = "make judge-remote"]
fn qemu_nbd_with_several_connections() {
    let image = Image::new();
    let (socket, file) = (image.beside("s"), image.beside("disk"));
    empty(&file);
    let server = Served::qemu_nbd(&socket, &["--format=raw", "--shared=4", file.to_str().unwrap()]);
    use_it(&image, &server.url("x", "&connections=3"));
    drop(server);
    e2fsck_clean(&file);
}
