//! `lanefs build`, judged by e2fsck, resize2fs, the kernel, sgdisk, veritysetup and umoci.

use lanefs_tests::{LoopMount, TreeEntry, assert_same_tree, e2fsck_clean, tree_listing};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

/// A tree of which every kind of block is a part: large directories, files in pieces, attributes of
/// their own block, long links. Root makes it.
const TREE: &str = r#"
mkdir -p t/many t/empty t/small t/deep/$(printf 'd%.0s' $(seq 200))/x
seq -f 't/many/a-name-of-some-length-%05g' 6000 | xargs touch
i=0; while [ $i -lt 800 ]; do head -c $((i * 37)) /dev/urandom > t/small/$i; i=$((i + 1)); done
head -c 9000000 /dev/urandom > t/large; truncate -s 300M t/hole
for i in 0 1 2 3 4 5 6 7 8 9; do printf x | dd of=t/hole bs=1 seek=$((i * 20000000)) conv=notrunc status=none; done
ln -s $(printf 'n%.0s' $(seq 200)) t/long; ln -s short t/soft; ln t/large t/second
mkfifo t/fifo; mknod t/null c 1 3; chown 5:6 t/small/7; chmod 4711 t/small/7
for i in 1 2 3 4 5; do setfattr -n user.big -v "$(printf "$i%.0s" $(seq 700))" t/small/$i; done
setfacl -m u:1000:rw -m d:u:1001:rx t/empty; touch -d '2001-02-03 04:05:06.123456789Z' t/soft t/deep t/many/*1
"#;

struct Bench(TempDir);

impl Bench {
    fn new(script: &str) -> Self {
        let bench = Self(tempfile::tempdir().unwrap());
        bench.sh(script);
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn sh(&self, script: &str) -> String {
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("bash");
        let out =
            command.args(["-euc", script]).current_dir(self.0.path()).env("PATH", path).output().unwrap();
        assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lanefs"));
        command.arg("build").args(args).current_dir(self.0.path());
        command.env_remove("SOURCE_DATE_EPOCH").env("RUST_BACKTRACE", "0");
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// What it says.
    fn ok(&self, args: &[&str]) -> String {
        let out = self.output(args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && said.is_empty(), "{args:?}: {said}");
        String::from_utf8(out.stdout).unwrap()
    }

    fn fails(&self, args: &[&str]) -> String {
        let out = self.output(args);
        assert_eq!(out.status.code(), Some(1), "{args:?}");
        String::from_utf8(out.stderr).unwrap()
    }

    /// The tree in a volume, as the kernel sees it.
    fn tree(&self, image: &str) -> Vec<TreeEntry> {
        e2fsck_clean(self.at(image));
        let mount = LoopMount::new(self.at(image), "ro");
        below(tree_listing(mount.path()))
    }

    /// The volume is as small as resize2fs makes it, or 3 % larger.
    fn fits(&self, image: &str) {
        let size = |name: &str| fs::metadata(self.at(name)).unwrap().len();
        // It may find that it has no space only on the way; then three percent less must fail too.
        let script = format!(
            "cp --sparse=always {image} small; e2fsck -fp small; resize2fs -M small && exit; \
             cp --sparse=always {image} small; ! resize2fs small $(($(stat -c %s small) * 100 / 103 / 1024))K"
        );
        self.sh(&script);
        let (ours, least) = (size(image), size("small"));
        assert!(ours <= least + least * 3 / 100, "{image}: {ours} bytes, resize2fs reaches {least}");
    }
}

/// Without the root itself, and what belongs to the volume.
fn below(tree: Vec<TreeEntry>) -> Vec<TreeEntry> {
    tree.into_iter().filter(|e| !["", "lost+found"].iter().any(|own| e.path == Path::new(own))).collect()
}

#[test]
fn volumes_fit_folders_and_archives() {
    let bench = Bench::new(TREE);
    let want = below(tree_listing(bench.at("t")));
    let said = bench.ok(&["t", "--label", "root", "--uuid", UUID, "v.img"]);
    assert!(said.starts_with("'v.img': ") && said.ends_with(&format!("\nUUID {UUID}\n")), "{said}");
    assert_same_tree(&want, &bench.tree("v.img"));
    bench.fits("v.img");
    bench.sh("tar -C t --xattrs --acls --sparse --format=pax -czf t.tgz .");
    bench.ok(&["t.tgz", "-q", "a.img"]);
    assert_same_tree(&want, &bench.tree("a.img"));
    bench.fits("a.img");
    // Other shapes: no journal, a large one, small blocks, features, one file, nothing at all.
    for (name, args) in [
        ("none.img", &["--journal", "none"][..]),
        ("large.img", &["--journal", "16M"]),
        ("1k.img", &["-b", "1024"]),
        ("old.img", &["-O", "^metadata_csum,^flex_bg,^resize_inode,^64bit"]),
        ("new.img", &["-O", "metadata_csum_seed,orphan_file,sparse_super2"]),
    ] {
        bench.ok(&[&["t", name], args].concat());
        e2fsck_clean(bench.at(name));
        bench.fits(name);
        fs::remove_file(bench.at(name)).unwrap();
    }
    bench.sh("mkdir one none; echo x > one/x");
    for name in ["one", "none"] {
        bench.ok(&[name, &format!("{name}.img")]);
        e2fsck_clean(bench.at(&format!("{name}.img")));
        bench.fits(&format!("{name}.img"));
    }
}

/// Three layers, whiteouts among them.
const IMAGE: &str = r#"
umoci init --layout img; umoci new --image img:base; umoci unpack --image img:base b; cd b/rootfs
mkdir -p etc usr/share/doc usr/bin; i=0
while [ $i -lt 60 ]; do mkdir usr/share/doc/$i; head -c 50000 /dev/urandom > usr/share/doc/$i/copyright; i=$((i + 1)); done
head -c 4000000 /dev/urandom > usr/bin/app; head -c 20000000 /dev/urandom > usr/bin/kept; cp /bin/true usr/bin/ping
setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 usr/bin/ping
cd ../..; umoci repack --refresh-bundle --image img:one b; cd b/rootfs
rm -r usr/share/doc; mkdir -p usr/share/doc/one; head -c 4000000 /dev/urandom > usr/bin/app
cd ../..; umoci repack --refresh-bundle --image img:two b; cd b/rootfs
echo root > etc/passwd; ln usr/bin/kept usr/bin/link; cd ../..; umoci repack --refresh-bundle --image img:three b
umoci unpack --image img:three unpacked
"#;

#[test]
fn volumes_fit_images() {
    let bench = Bench::new(IMAGE);
    let want = below(tree_listing(bench.at("unpacked/rootfs")));
    bench.ok(&["img:three", "v.img"]);
    assert_same_tree(&want, &bench.tree("v.img"));
    bench.fits("v.img");
    let copy = "skopeo --insecure-policy copy -q oci:img:three";
    bench.sh(&format!("{copy} docker-archive:saved:app:3; {copy} --dest-compress-format zstd oci:z:zstd"));
    for source in ["saved:app:3", "z"] {
        bench.ok(&[source, "--force", "v.img"]);
        assert_same_tree(&want, &bench.tree("v.img"));
    }
    // A wrong digest: nothing is there.
    bench.sh(
        "f=$(ls -S img/blobs/sha256/* | head -1); printf X | dd of=$f bs=1 seek=100 conv=notrunc status=none",
    );
    let said = bench.fails(&["img:three", "w.img"]);
    assert!(said.contains(" has digest sha256:") && !bench.at("w.img").exists(), "{said}");
    // Also without a first pass.
    let said = bench.fails(&["img:three", "w.img", "--size", "64M", "-O", "^extents,^64bit"]);
    assert!(said.contains(" has digest sha256:") && !bench.at("w.img").exists(), "{said}");
}

#[test]
fn what_cannot_be_built_leaves_nothing() {
    let bench = Bench::new("mkdir t; head -c 3000000 /dev/zero > t/f; tar -cf t.tar t; echo old > there");
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(bench.0.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    for (args, want) in [
        (&["t", "there"][..], "cannot build 'there': it exists already; --force replaces it\n"),
        (&["t", "v.img", "--size", "2M"], "cannot build 'v.img': it takes 31"),
        (&["t", "--size", "1", "v.img"], "; --size fit or --size 3M will do\n"),
        (&["none", "v.img"], "cannot open 'none': No such file or directory\n"),
        (&["t", "no/v.img"], "No such file or directory\n"),
        (&["t", ".", "--force"], "cannot build '.': it is no regular file\n"),
        (&["t", "t:/v.img"], "No such file or directory\n"),
        (&["t.tar", "v.img", "--max-size", "1M"], "it unpacks to more than 1048576 bytes\n"),
        (&["t", "v.img", "-O", "^extent,^64bit"], "cannot be found out beforehand; --size 4G says it\n"),
        (&["t", "v.img", "--label", "seventeen letters"], "a label of 17 bytes: at most 16\n"),
        (&["v.img"], "nothing says where to: write lanefs build SRC FILE\n"),
        (&["t", "there@root"], "cannot build 'there@root': it is a part of a file; lanefs import"),
        (&["t", "there?offset=1M", "--force"], "': it is a part of a file; lanefs import fills a volume"),
    ] {
        let said = bench.fails(args);
        assert!(said.starts_with("lanefs: ") && said.contains(want), "{args:?}: {said}");
        assert_eq!(names(), before, "{args:?}");
    }
    assert_eq!(fs::read_to_string(bench.at("there")).unwrap(), "old\n");
    // From standard input, with a size.
    let mut command = bench.command(&["-", "v.img", "--size", "16M"]);
    let out = command.stdin(fs::File::open(bench.at("t.tar")).unwrap()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    e2fsck_clean(bench.at("v.img"));
}

/// A signal while the source gives nothing.
#[test]
fn a_signal_leaves_nothing() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        for keep in [false, true] {
            let bench = Bench::new("mkdir t; head -c 300000 /dev/zero > t/f; tar -cf t.tar t");
            let mut args = vec!["-", "v.img", "--size", "16M"];
            args.extend(keep.then_some("--keep"));
            let mut child =
                bench.command(&args).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut stdin = child.stdin.take().unwrap();
            let tar = fs::read(bench.at("t.tar")).unwrap();
            std::io::Write::write_all(&mut stdin, &tar[..4096]).unwrap();
            // It has made its file by then.
            while fs::read_dir(bench.0.path()).unwrap().count() < 3 {
                assert!(child.try_wait().unwrap().is_none(), "it ended");
                std::thread::yield_now();
            }
            bench.sh(&format!("kill -{signal} {}", child.id()));
            let status = child.wait().unwrap();
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert_eq!((status.code(), said.as_str()), (Some(code), ""), "{signal}");
            assert_eq!(bench.at("v.img").exists(), keep);
            assert_eq!(fs::read_dir(bench.0.path()).unwrap().count(), 2 + usize::from(keep));
            drop(stdin);
        }
    }
}

/// What a table of the command says behind a name.
fn value(table: &str, name: &str) -> String {
    let line = table.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    line.trim().to_owned()
}

#[test]
fn trees_of_dm_verity_are_those_of_veritysetup() {
    let bench = Bench::new("mkdir t; head -c 3000000 /dev/urandom > t/f");
    let said = bench.ok(&["t", "v.img", "--verity", "--salt", "00ff", "--verity-uuid", UUID]);
    let (root, blocks) = (value(&said, "Root hash"), value(&said, "Data blocks"));
    let offset = blocks.parse::<u64>().unwrap() * 4096;
    bench.sh(&format!("veritysetup verify --hash-offset={offset} v.img v.img {root}"));
    bench.sh(&format!(
        "head -c {offset} v.img > theirs; veritysetup format --salt=00ff --uuid={UUID} --data-blocks={blocks} \
         --hash-offset={offset} theirs theirs; cmp v.img theirs"
    ));
    e2fsck_clean(bench.at("theirs"));
    // Salt and UUID follow from the volume's.
    let again = |name| bench.ok(&["t", name, "--verity", "--uuid", UUID]);
    let (one, two) = (again("one.img"), again("two.img"));
    assert_eq!(value(&one, "Salt"), value(&two, "Salt"));
    assert_ne!(value(&one, "Salt"), value(&bench.ok(&["t", "three.img", "--verity"]), "Salt"));
}

#[test]
fn disks_are_those_that_sgdisk_knows() {
    let bench = Bench::new("mkdir t; head -c 3000000 /dev/urandom > t/f");
    let args = ["t", "d.raw", "--partition-table", "gpt", "--label", "the root", "--verity", "--uuid", UUID];
    let said = bench.ok(&args);
    let verified = bench.sh("sgdisk -v d.raw; sgdisk -p d.raw; sgdisk -i 1 d.raw");
    assert!(verified.contains("No problems found"), "{verified}");
    assert!(verified.contains("First sector: 2048 (at 1024.0 KiB)"), "{verified}");
    assert!(verified.contains("Partition name: 'the root'"), "{verified}");
    let unique = value(&verified, "Partition unique GUID:").to_lowercase();
    assert_eq!(value(&said, "Partition 1, PARTUUID"), unique);
    // Without the primary table too.
    bench.sh("cp d.raw b.raw; dd if=/dev/zero of=b.raw bs=512 seek=1 count=33 conv=notrunc status=none");
    for name in ["d.raw@1", "d.raw@the root", "b.raw@1"] {
        let mut cat = Command::new(env!("CARGO_BIN_EXE_lanefs"));
        let out = cat.args(["cat", &format!("{name}:/f")]).current_dir(bench.0.path()).output().unwrap();
        assert!(out.stdout == fs::read(bench.at("t/f")).unwrap(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    let mut verify = Command::new(env!("CARGO_BIN_EXE_lanefs"));
    let root = value(&said, "Root hash");
    let blocks = value(&said, "Data blocks").parse::<u64>().unwrap() * 4096;
    verify.args(["verity", "dump", &format!("d.raw?offset=1M&size={}", blocks + (1 << 20))]);
    assert!(verify.current_dir(bench.0.path()).output().is_ok());
    bench.sh(&format!(
        "dd if=d.raw of=p.raw bs=1M skip=1 status=none; veritysetup verify --hash-offset={blocks} p.raw p.raw {root}"
    ));
}

/// Builds with the time and the UUID fixed; `how` comes before the command.
fn same(bench: &Bench, how: &str, args: &str) -> String {
    let lanefs = env!("CARGO_BIN_EXE_lanefs");
    bench.sh(&format!(
        "export SOURCE_DATE_EPOCH=1000000000; {how} {lanefs} build -q --force --uuid {UUID} {args}"
    ))
}

/// The digest of a file.
fn digest(bench: &Bench, name: &str) -> String {
    bench.sh(&format!("sha256sum < {name}"))
}

#[test]
fn the_same_source_gives_the_same_bytes() {
    let bench = Bench::new(TREE);
    // The names of a folder in memory come in another order, and were made in another one.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let other = memory.path().display();
    bench.sh(&format!(
        "(cd t; find . | sort -r | tar --no-recursion --xattrs --acls --sparse -cT -) | \
         tar --xattrs --acls --sparse -xpC {other}; chmod 700 {other}; tar -C t --sort=name --xattrs -cf t.tar ."
    ));
    let order = |dir: &str| bench.sh(&format!("ls -U {dir}/small | head -50"));
    assert_ne!(order("t"), order(&other.to_string()));
    let options = "--verity --partition-table gpt --label root";
    same(&bench, "", &format!("t {options} one.raw"));
    let began = std::time::SystemTime::now();
    // Another second of the clock.
    while began.elapsed().unwrap().as_secs() < 1 {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    same(&bench, "umask 077; TZ=Asia/Tokyo taskset -c 0", &format!("{other} {options} two.raw"));
    assert_eq!(digest(&bench, "one.raw"), digest(&bench, "two.raw"));
    // As another user.
    bench.sh("mkdir open; chmod 777 open; chmod 755 .");
    same(&bench, "", "t.tar one.img");
    same(&bench, "setpriv --reuid=65534 --regid=65534 --clear-groups", "t.tar open/two.img");
    assert_eq!(digest(&bench, "one.img"), digest(&bench, "open/two.img"));
}

#[test]
fn the_same_image_gives_the_same_bytes() {
    let bench = Bench::new(IMAGE);
    same(&bench, "", "img:three one.img");
    same(&bench, "taskset -c 0", "img:three two.img");
    assert_eq!(digest(&bench, "one.img"), digest(&bench, "two.img"));
    bench.sh("skopeo --insecure-policy copy -q oci:img:three docker-archive:saved:app:3");
    same(&bench, "umask 0", "saved two.img");
    assert_eq!(digest(&bench, "one.img"), digest(&bench, "two.img"));
}

/// What archives unpack to is kept only where the volume has room beside it. The volume is the
/// same.
#[test]
fn a_small_disk_has_room_for_the_volume() {
    lanefs_tests::private_mounts();
    let bench = Bench::new(
        "mkdir host t u w; mount -t tmpfs -o size=20m memory host; head -c 12000000 /dev/urandom > t/f
         head -c 6000000 /dev/urandom > u/g; tar czf f.tgz -C t .; tar cf f.tar -C t .; tar czf g.tgz -C u .
         for i in 1 2 3 4 5 6 7 8 9; do head -c 1300000 /dev/urandom > w/$i; done; tar czf w.tgz -C w .",
    );
    // A copy that becomes too large, and one that is in the way of another layer.
    for sources in [&["f.tgz"][..], &["g.tgz", "f.tar"]] {
        let out = bench.output(&[sources, &["host/v.img", "--force"]].concat());
        assert!(out.status.success(), "{sources:?}: {}", String::from_utf8_lossy(&out.stderr));
        bench.sh("rm host/v.img");
    }
    for source in ["f.tgz", "w.tgz"] {
        for options in ["", "--journal none"] {
            same(&bench, "", &format!("{source} host/v.img {options}"));
            same(&bench, "", &format!("{source} copied.img {options}"));
            assert_eq!(digest(&bench, "host/v.img"), digest(&bench, "copied.img"), "{source} {options}");
            bench.sh("rm host/v.img");
        }
    }
    bench.sh("umount host");
}
