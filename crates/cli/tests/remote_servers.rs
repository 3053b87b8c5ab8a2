//! Volumes on nbd-server and qemu-nbd: `make judge-remote`.

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
fn qemu_nbd_serves_raw_qcow2_and_luks() {
    let image = Image::new();
    let (socket, file) = (image.beside("s"), image.beside("disk"));
    let path = file.to_str().unwrap();
    for format in ["raw", "qcow2"] {
        succeed(tool("qemu-img").args(["create", "-q", "-f", format, path, "64M"]));
        let server = Served::qemu_nbd(&socket, &["--format", format, path]);
        use_it(&image, &server.url("x", ""));
        judged(&image, &server.url("x", ""));
        drop(server);
        let back = image.beside("converted");
        succeed(tool("qemu-img").args(["convert", "-f", format, "-O", "raw", path]).arg(&back));
        e2fsck_clean(&back);
    }
    let secret = "secret,id=key,data=well";
    let args =
        ["create", "-q", "--object", secret, "-f", "luks", "-o", "key-secret=key,iter-time=10", path, "64M"];
    // On a busy machine it may fail to tell how fast it is ("Unable to get accurate CPU usage").
    let made = (0..20).any(|_| tool("qemu-img").args(args).output().unwrap().status.success());
    assert!(made, "qemu-img {args:?}");
    let options = format!("driver=luks,key-secret=key,file.filename={path}");
    let server = Served::qemu_nbd(&socket, &["--object", secret, "--image-opts", &options]);
    use_it(&image, &server.url("x", ""));
    judged(&image, &server.url("x", ""));
    drop(server);
    let head = fs::read(&file).unwrap();
    assert_eq!(&head[..4], b"LUKS");
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
