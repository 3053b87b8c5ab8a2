//! Partitions by their names in every command, on disks that sgdisk makes; e2fsck and the kernel
//! judge what is in them afterwards.

use crate::support::{Image, succeed, tool};
use lanefs_tests::{LoopDevice, private_mounts};
use std::path::Path;
use std::process::Command;

/// A disk `d.raw` of 96 MiB beside the image: an empty partition, and two with a volume.
fn disk() -> Image {
    let image = Image::new();
    let path = image.beside("d.raw");
    let file = std::fs::File::create(&path).expect("a disk");
    file.set_len(96 << 20).expect("its size");
    let parts = ["--new=1:1M:+8M", "--change-name=1:ESP", "--new=2:16M:+32M", "--change-name=2:root"];
    let more = ["--new=5:48M:+32M", "--partition-guid=5:aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"];
    succeed(tool("sgdisk").args(parts).args(more).arg(&path));
    image.ok(["mkfs", "-q", "d.raw@root"]);
    image.ok(["mkfs", "-q", "-L", "data", "--size", "32M", "d.raw@5"]);
    image
}

/// Runs `look` with the device that the kernel makes of each partition, 2 and 5.
fn by_the_kernel(v: &Image, look: impl Fn(u32, &Path)) {
    let attached = LoopDevice::new(v.beside("d.raw"));
    let device = attached.path().to_str().expect("a path in UTF-8");
    // partx reads the table: a kernel need not know any.
    succeed(Command::new("partx").args(["--add", device]));
    for number in [2, 5] {
        // A node of our own, where no device manager makes them.
        let sys = format!("/sys/class/block/{}p{number}/dev", device.trim_start_matches("/dev/"));
        let numbers = std::fs::read_to_string(sys).expect("a partition of the kernel");
        let (major, minor) = numbers.trim().split_once(':').expect("two numbers");
        let node = v.beside(&format!("p{number}"));
        succeed(Command::new("mknod").arg(&node).args(["b", major, minor]));
        look(number, &node);
    }
    succeed(Command::new("partx").args(["--delete", device]));
}

/// A mount of a partition, ended on drop.
struct Mounted<'a>(&'a Image, &'static str);

impl<'a> Mounted<'a> {
    fn new(v: &'a Image, volume: &str, at: &'static str) -> Self {
        std::fs::create_dir(v.beside(at)).expect("mkdir");
        v.ok(["mount", volume, at]);
        Self(v, at)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        self.0.ok(["umount", self.1]);
    }
}

#[test]
fn a_partition_is_written_and_the_kernel_reads_it() {
    let v = disk();
    std::fs::write(v.beside("f"), "content").expect("write");
    v.ok(["cp", "f", "d.raw@2:/by-number"]);
    v.ok(["cp", "f", "d.raw@root:/by-name"]);
    v.ok(["cp", "d.raw@root:/by-name", "d.raw@2:/copy"]);
    v.ok(["cp", "d.raw@2:/copy", "d.raw@data:/by-label"]);
    v.ok(["cp", "f", "d.raw@AAAAAAAA-bbbb-cccc-dddd-eeeeeeeeeeee:/by-partuuid"]);
    v.ok(["cp", "f", "d.raw?offset=48M&size=32M:/by-bytes"]);
    let uuid = v.ok(["info", "--json", "d.raw@5"]);
    let uuid: serde_json::Value = serde_json::from_str(&uuid).expect("JSON");
    let uuid = uuid["uuid"].as_str().expect("a UUID");
    assert_eq!(v.ok(["cat", &format!("d.raw@{uuid}:/by-label")]), "content");
    assert!(v.ok(["check", "d.raw@2"]).contains("clean"));
    private_mounts();
    let dir = v.beside("mnt");
    std::fs::create_dir(&dir).expect("mkdir");
    by_the_kernel(&v, |number, node| {
        succeed(tool("e2fsck").arg("-fn").arg(node));
        succeed(Command::new("mount").arg(node).arg(&dir));
        let mut found: Vec<_> = std::fs::read_dir(&dir)
            .expect("read_dir")
            .map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"))
            .filter(|name| name != "lost+found")
            .collect();
        found.sort();
        succeed(Command::new("umount").arg(&dir));
        let wanted = if number == 2 { "by-name by-number copy" } else { "by-bytes by-label by-partuuid" };
        assert_eq!(found.join(" "), wanted);
    });
}

#[test]
fn two_partitions_are_mounted_at_the_same_time_and_none_twice() {
    let v = disk();
    private_mounts();
    let mounts = [Mounted::new(&v, "d.raw@root", "m2"), Mounted::new(&v, "d.raw@5", "m5")];
    std::fs::write(v.beside("m2/f"), "root").expect("write");
    std::fs::write(v.beside("m5/f"), "data").expect("write");
    let busy = v.lanefs(["cat", "d.raw@2:/f"]).output().expect("lanefs");
    let why = String::from_utf8_lossy(&busy.stderr).into_owned();
    assert!(!busy.status.success() && why.contains("is in use"), "{why}");
    drop(mounts);
    assert_eq!(v.ok(["cat", "d.raw@root:/f", "d.raw@5:/f"]), "rootdata");
    assert!(v.ok(["check", "d.raw@2"]).contains("clean"));
}

#[test]
fn info_lists_what_sgdisk_made() {
    let v = disk();
    let table: serde_json::Value = serde_json::from_str(&v.ok(["info", "--json", "d.raw"])).expect("JSON");
    assert_eq!(table["partition_table"], "gpt");
    let parts = table["partitions"].as_array().expect("partitions");
    let row = |at: usize| {
        let part = &parts[at];
        [
            &part["number"],
            &part["label"],
            &part["start"],
            &part["size"],
            &part["content"],
            &part["volume_label"],
        ]
        .map(ToString::to_string)
        .join(" ")
    };
    assert_eq!(row(0), r#"1 "ESP" 1048576 8388608 null null"#);
    assert_eq!(row(1), r#"2 "root" 16777216 33554432 "an ext4 volume" null"#);
    assert_eq!(row(2), r#"5 "" 50331648 33554432 "an ext4 volume" "data""#);
    assert_eq!(parts[2]["partuuid"], "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee");
    assert_eq!(parts[1]["type"], "Linux file system");
    let text = v.ok(["info", "d.raw"]);
    assert!(
        text.contains("root, an ext4 volume, ") && text.contains("an ext4 volume 'data', aaaaaaaa-"),
        "{text}"
    );
}

#[test]
fn what_is_no_partition_is_told_and_those_there_are_listed() {
    let v = disk();
    let there = r#"1 ("ESP"), 2 ("root"), 5 ("data")"#;
    v.fails(
        ["ls", "d.raw@3"],
        2,
        &format!("lanefs: cannot open 'd.raw@3': has no partition \"3\"; there are {there}"),
    );
    let whole =
        "it holds no ext4 volume but a GPT partition table; name a partition, as in FILE@1: there are";
    v.fails(["ls", "d.raw:/"], 2, &format!("lanefs: cannot open 'd.raw': {whole} {there}"));
    let empty = "it holds no ext4 volume but zeros; lanefs mkfs makes a volume";
    v.fails(["ls", "d.raw@1:/"], 2, &format!("lanefs: cannot open 'd.raw@1': {empty}"));
    let kept = "it holds an ext4 volume; --force makes a new one in its place";
    v.fails(["mkfs", "d.raw@2"], 1, &format!("lanefs: cannot make a volume in 'd.raw@2': {kept}"));
    v.fails(["ls", "v.img@1"], 2, "lanefs: cannot open 'v.img@1': has no partition table");
    // A path that is there is meant itself.
    std::fs::rename(v.beside("v.img"), v.beside("d.raw@2")).expect("rename");
    assert_eq!(v.ok(["ls", "d.raw@2:/"]), "lost+found\n");
    assert!(v.ok(["info", "d.raw@2"]).contains("64"));
}

/// Volumes that begin at one byte and end at others are not one volume.
#[test]
fn a_part_is_taken_for_no_other_part() {
    let v = disk();
    v.ok(["mkdir", "d.raw@root:/a"]);
    let short = "d.raw?offset=16M&size=16M:/a";
    let out = v.lanefs(["rm", "-r", "d.raw@root:/none", short]).output().expect("lanefs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(1) && said.contains("cannot open"), "{said}");
    let out = v.lanefs(["rm", "-r", "v.img:/none", "v.img@9:/lost+found"]).output().expect("lanefs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("'v.img@9': has no partition table"), "{said}");
    assert_eq!(v.ok(["ls", "d.raw@2"]), "a\nlost+found\n");
    assert_eq!(v.ok(["ls", "v.img"]), "lost+found\n");
}

#[test]
fn images_of_other_formats_are_told_with_the_way() {
    let v = Image::new();
    for (format, bytes) in
        [("qcow2", &b"QFI\xFB"[..]), ("vmdk", b"KDMV"), ("vhdx", b"vhdxfile"), ("vpc", b"conectix")]
    {
        let mut content = bytes.to_vec();
        content.resize(1 << 20, 0);
        std::fs::write(v.beside("disk"), content).expect("write");
        let out = v.lanefs(["ls", "disk:/"]).output().expect("lanefs");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let way = format!("a disk image in {format} format; qemu-nbd -f {format} -c /dev/nbd0 FILE");
        assert!(said.contains(&way) && said.contains("qemu-img convert"), "{said}");
    }
}
