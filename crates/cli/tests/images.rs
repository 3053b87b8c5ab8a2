//! Images that umoci and skopeo made, compared with what `umoci unpack` makes of them as root.

use lanefs_tests::{LoopMount, TreeEntry, assert_same_tree, e2fsck_clean, mke2fs, tree_listing};
use std::path::Path;
use std::process::{Child, Command, Output};
use tempfile::TempDir;

/// An image of four layers: `img:four`. Whiteouts of umoci, and by hand what umoci never writes.
const IMAGE: &str = r#"
umoci init --layout img; umoci new --image img:base; umoci unpack --image img:base b
cd b/rootfs; mkdir -p dir/sub etc usr/bin lib
echo hello > file; ln file hard; ln -s /nowhere soft; mknod null c 1 3; mknod block b 259 70000; mkfifo fifo
chown 5:6 dir; chmod 2775 dir; echo root > etc/passwd; chown 123456:7 etc/passwd; chmod 4755 etc/passwd
setfattr -n user.comment -v 'a comment' file; setfattr -n user.d -v d dir; setfattr -n trusted.x -v 0x00ff dir
cp /bin/true usr/bin/ping; setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 usr/bin/ping
touch -d '2001-02-03 04:05:06.123456789Z' file; touch -d '1999-12-31 23:59:59.5Z' dir
truncate -s 10M hole; head -c 300000 /dev/urandom > big; echo x > $(printf 'n%.0s' $(seq 255))
echo gone > gone; mkdir opaque; echo 1 > opaque/1; mkdir -p tofile/x; echo x > todir; echo y > lib/y
cd ../..; umoci repack --refresh-bundle --image img:one b
cd b/rootfs; rm -r gone tofile todir; echo f > tofile; mkdir todir; echo in > todir/in
setfattr -x user.d dir; setfattr -n user.e -v e dir; chmod 4711 usr/bin/ping
echo new > etc/passwd; rm hard; chmod 700 lib; ln file dir/second
cd ../..; umoci repack --refresh-bundle --image img:two b
mkdir l; cd l; mkdir opaque todir; touch opaque/.wh..wh..opq opaque/new .wh.soft todir/.wh.in
echo l > lib2; echo across > file; ln file across; cd ..
tar --sort=name --numeric-owner -C l -cf l.tar . && tar --delete -f l.tar ./file ./across
umoci raw add-layer --image img:two --tag three l.tar
tar --format=pax --sort=name -C l -cf m.tar ./file ./across && tar --delete -f m.tar ./file
umoci raw add-layer --image img:three --tag four m.tar
umoci unpack --image img:four unpacked
"#;

struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        let bench = Self(tempfile::tempdir().unwrap());
        bench.sh(IMAGE);
        bench
    }

    fn sh(&self, script: &str) -> String {
        let out = Command::new("bash").args(["-euc", script]).current_dir(self.0.path()).output().unwrap();
        assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    fn import(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lanefs"));
        command.arg("import").args(args).current_dir(self.0.path()).env_remove("SOURCE_DATE_EPOCH");
        command.output().unwrap()
    }

    /// What the import of an image into an empty volume makes, as the kernel sees it.
    fn tree(&self, image: &[&str]) -> Vec<TreeEntry> {
        let volume = self.0.path().join("v.img");
        mke2fs(&volume, 64 << 20, &["-t", "ext4", "-b", "4096"]);
        let out = self.import(&[image, &["v.img:/"]].concat());
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && said.is_empty(), "{image:?}: {said}");
        e2fsck_clean(&volume);
        let mount = LoopMount::new(&volume, "ro");
        below(tree_listing(mount.path()))
    }

    /// Has a command write into the named pipe `pipe`.
    fn feed(&self, command: &str) -> Child {
        let script = format!("{command} > pipe");
        let mut feeder = Command::new("timeout");
        feeder.args(["60", "bash", "-euc", &script]).current_dir(self.0.path()).spawn().unwrap()
    }

    fn fails(&self, args: &[&str]) -> String {
        let out = self.import(args);
        assert_eq!(out.status.code(), Some(1), "{args:?}");
        String::from_utf8(out.stderr).unwrap()
    }
}

/// Without the root itself, and what belongs to the volume.
fn below(tree: Vec<TreeEntry>) -> Vec<TreeEntry> {
    tree.into_iter().filter(|e| !["", "lost+found"].iter().any(|own| e.path == Path::new(own))).collect()
}

#[test]
fn images_are_what_umoci_makes_of_them() {
    let bench = Bench::new();
    let want = below(tree_listing(bench.0.path().join("unpacked/rootfs")));
    assert!(want.len() > 20 && want.iter().any(|e| e.path == Path::new("dir/second")));
    assert!(!want.iter().any(|e| e.path == Path::new("opaque/1") || e.path == Path::new("gone")));
    assert_same_tree(&want, &bench.tree(&["img:four"]));
    let copy = "skopeo --insecure-policy copy -q oci:img:four";
    bench.sh(&format!("{copy} docker-archive:saved:app:4; {copy} oci-archive:arch.tar:named"));
    assert_same_tree(&want, &bench.tree(&["saved:app:4"]));
    assert_same_tree(&want, &bench.tree(&["saved"]));
    assert_same_tree(&want, &bench.tree(&["arch.tar:named", "--max-size", "20M"]));
    // Of a named pipe, what is copied to find an image in it counts too.
    bench.sh("mkfifo pipe");
    let mut feeder = bench.feed("cat arch.tar");
    assert_same_tree(&want, &bench.tree(&["pipe", "--max-size", "20M"]));
    assert!(feeder.wait().unwrap().success());
    let mut feeder = bench.feed("cat arch.tar <(head -c 32M /dev/zero)");
    let said = bench.fails(&["pipe", "v.img:/", "--max-size", "20M"]);
    assert!(said.contains("it unpacks to more than 20971520 bytes\n"), "{said}");
    feeder.wait().unwrap();
    bench.sh(&format!("{copy} --dest-compress-format zstd oci:z:zstd"));
    assert_same_tree(&want, &bench.tree(&["z"]));
    // Options may stand anywhere.
    let out = bench.import(&["z", "--max-size", "20M", "v.img:/again", "--owner", "0:0"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    // The layers of the image, one by one.
    let layers = bench.sh(r#"umoci stat --image img:four --json | python3 -c 'import json, sys
for l in json.load(sys.stdin)["history"]:
    if l.get("layer"): print("img/blobs/" + l["layer"]["digest"].replace(":", "/"))'"#);
    let layers: Vec<&str> = layers.lines().collect();
    assert_eq!(layers.len(), 4);
    assert_same_tree(&want, &bench.tree(&layers));
}

#[test]
fn what_cannot_be_imported_is_said_in_one_line() {
    let bench = Bench::new();
    mke2fs(bench.0.path().join("v.img"), 64 << 20, &["-t", "ext4", "-b", "4096"]);
    bench.sh("cp v.img before; mkdir plain; echo x > plain/f; tar -C img -czf packed.tar.gz .");
    bench.sh("cp -r img bad; f=$(ls -S bad/blobs/sha256/* | head -1); printf X | dd of=$f bs=1 seek=100 conv=notrunc");
    for (args, want) in [
        (&["img:none"][..], "no image is named 'none'; there is base, four, one, three, two\n"),
        (&["img"], "it holds several images, choose by IMAGE:TAG: base, four, one, three, two\n"),
        (&["img:four", "--platform", "linux/s390x"], "no image is for linux/s390x; there is linux/"),
        (&["plain", "--platform", "linux/s390x"], "this is no image: neither an OCI layout nor"),
        (
            &["l.tar", "m.tar", "--platform", "linux/s390x"],
            "--platform chooses from one image, and these are",
        ),
        (
            &["packed.tar.gz"],
            "an image in a compressed archive (gzip); gzip -dc FILE > image.tar unpacks it\n",
        ),
        (&["bad:four"], " has digest sha256:"),
        (&["img:four", "--max-size", "1M"], "it unpacks to more than 1048576 bytes\n"),
        (&["none:four"], "cannot open 'none:four': No such file or directory\n"),
    ] {
        let said = bench.fails(&[args, &["v.img:/"]].concat());
        assert!(said.contains(want) && said.lines().count() == 1, "{args:?}: {said}");
        bench.sh("debugfs -R 'ls -p /' v.img 2>/dev/null > after; debugfs -R 'ls -p /' before 2>/dev/null | cmp - after");
    }
}
