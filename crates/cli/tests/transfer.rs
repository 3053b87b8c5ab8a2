//! Import and export as commands, judged by the kernel, GNU tar and e2fsck.

use lanefs_tests::{
    LoopMount, TreeEntry, assert_same_tree, debugfs_write, e2fsck_clean, mke2fs, tree_listing,
};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output};
use tempfile::TempDir;

/// A tree with one of everything. Root makes it.
const TREE: &str = r#"
mkdir -p t/dir/sub t/locked t/$(printf 'd%.0s' $(seq 90))
echo hello > t/file; ln t/file t/dir/hard; ln t/file t/z-hard
echo secret > t/locked/zero; chmod 0000 t/locked/zero; chmod 0000 t/locked
: > t/empty; echo x > t/setuid; chmod 6755 t/setuid
ln -s /nowhere t/soft; ln -s $(printf 'n%.0s' $(seq 200)) t/$(printf 'l%.0s' $(seq 255))
mkfifo -m 620 t/fifo; mknod t/null c 1 3; mknod t/block b 259 70000
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("t/socket")'
truncate -s 10M t/hole; truncate -s 200M t/far; printf end | dd of=t/far bs=1 seek=209715200 conv=notrunc status=none
for i in 0 1 2 3 4; do head -c 70000 /dev/zero | tr '\0' $i | dd of=t/holes bs=1M seek=$i conv=notrunc status=none; done
head -c 3000000 /dev/urandom > t/large
chown 4294967294:123456789 t/empty; chown -h 7:8 t/soft; chown 5:6 t/dir; chmod 2775 t/dir
setfattr -n user.comment -v 'a comment' t/file; setfattr -n user.odd=%name -v 'odd' t/file
setfattr -n trusted.x -v 0x00ff t/dir; setfattr -n trusted.l -v link -h t/soft; setfattr -n security.y -v fifo t/fifo
setfattr -n user.big -v "$(printf 'b%.0s' $(seq 2000))" t/large
setfacl -m u:1000:rw,g:7:r t/empty; setfacl -m u:1001:rwx -m d:u:1001:rx,d:g:8:rwx t/dir; echo in > t/dir/in
touch -d '1960-01-01 00:00:00.25Z' t/hole; touch -hd '2001-02-03 04:05:06.123456789Z' t/soft
touch -d '2040-01-01 00:00:00.999999999Z' t/dir/sub; touch -d '1999-12-31 23:59:59Z' t/dir
"#;

/// A folder with the tree `t`, a volume `v.img`, and what else a test makes.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new(tree: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let bench = Self { dir };
        bench.sh(tree);
        bench.volume("v.img", &[]);
        bench
    }

    fn volume(&self, name: &str, args: &[&str]) {
        let blocks = if args.contains(&"-b") { &[][..] } else { &["-b", "4096"] };
        let args: Vec<&str> = ["-t", "ext4"].iter().chain(blocks).chain(args).copied().collect();
        mke2fs(self.at(name), 64 << 20, &args);
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn sh(&self, script: &str) -> Vec<u8> {
        let out = Command::new("bash").args(["-euc", script]).current_dir(self.dir.path()).output().unwrap();
        assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lanefs"));
        command
            .args(args)
            .current_dir(self.dir.path())
            .env_remove("SOURCE_DATE_EPOCH")
            .env("RUST_BACKTRACE", "0");
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs it; it must succeed without a word.
    fn ok(&self, args: &[&str]) {
        let out = self.output(args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && said.is_empty(), "{args:?}: {said}");
    }

    /// Runs it with times and clock fixed; it must succeed.
    fn reproducibly(&self, args: &[&str]) {
        let out = self.command(args).env("SOURCE_DATE_EPOCH", "1000000000").output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    }

    /// Runs it; it must fail. What it says.
    fn fails(&self, args: &[&str]) -> String {
        let out = self.output(args);
        assert_eq!(out.status.code(), Some(1), "{args:?}");
        String::from_utf8(out.stderr).unwrap()
    }

    /// What the kernel finds in the volume at `path`.
    fn mounted(&self, path: &str) -> Vec<TreeEntry> {
        e2fsck_clean(self.at("v.img"));
        let mount = LoopMount::new(self.at("v.img"), "ro");
        tree_listing(mount.path().join(path))
    }

    fn listed(&self, path: &str) -> Vec<TreeEntry> {
        tree_listing(self.at(path))
    }
}

/// Without the root of the tree, whose own attributes an import leaves alone.
fn below(mut tree: Vec<TreeEntry>) -> Vec<TreeEntry> {
    tree.remove(0);
    tree
}

#[test]
fn a_folder_goes_in_and_comes_out() {
    let bench = Bench::new(TREE);
    let tree = below(bench.listed("t"));
    assert!(tree.len() > 20);
    // The second time over the first import: everything is replaced, and still the same.
    for _ in 0..2 {
        bench.ok(&["import", "t", "v.img:/in/side"]);
        assert_same_tree(&tree, &below(bench.mounted("in/side")));
        bench.ok(&["export", "v.img:/in/side", "out"]);
        assert_same_tree(&tree, &below(bench.listed("out")));
    }
}

#[test]
fn small_blocks_and_old_volumes_take_a_tree_too() {
    let bench = Bench::new(TREE);
    bench.sh("setfattr -x user.big t/large");
    let tree = below(bench.listed("t"));
    // 128-byte inodes have no nanoseconds and end in 2038; small blocks have other holes.
    let coarse = |tree: &[TreeEntry]| -> Vec<TreeEntry> {
        let cut = |e: &TreeEntry| TreeEntry {
            mtime: (e.mtime.0.min(i32::MAX.into()), 0),
            data: Vec::new(),
            ..e.clone()
        };
        tree.iter().map(cut).collect()
    };
    for args in [
        &["-b", "1024", "-I", "128"][..],
        &["-O", "^extents,^64bit,^metadata_csum", "-I", "128", "-b", "2048"],
    ] {
        bench.volume("v.img", args);
        bench.ok(&["import", "t", "v.img:/in"]);
        let mounted = below(bench.mounted("in"));
        assert_same_tree(&coarse(&tree), &coarse(&mounted));
        fs::remove_dir_all(bench.at("out")).ok();
        bench.ok(&["export", "v.img:/in", "out"]);
        assert_same_tree(&coarse(&mounted), &coarse(&below(bench.listed("out"))));
    }
}

#[test]
fn tar_goes_in_and_comes_out() {
    let bench = Bench::new(TREE);
    // Tar has no sockets.
    bench.sh("rm t/socket; tar -C t --format=pax --sparse --acls --xattrs --xattrs-include='*' -cf t.tar .");
    let tree = bench.listed("t");
    bench.ok(&["import", "t.tar", "v.img:/in"]);
    assert_same_tree(&tree, &bench.mounted("in"));
    bench.ok(&["export", "v.img:/in", "out.tar"]);
    bench.sh("mkdir x && tar -C x --acls --xattrs --xattrs-include='*' -xpf out.tar");
    assert_same_tree(&tree, &bench.listed("x"));
    // Through pipes into another volume, and the same archive out of that.
    bench.volume("w.img", &[]);
    let lanefs = env!("CARGO_BIN_EXE_lanefs");
    bench.sh(&format!(
        "set -o pipefail; {lanefs} export v.img:/in - | {lanefs} import - w.img:/in; {lanefs} export w.img:/in - | cmp - out.tar"
    ));
}

#[test]
fn an_ordinary_user_needs_no_right() {
    let bench = Bench::new(
        "mkdir t; echo 0 > t/zero; mkdir -p t/shut/in; echo 1 > t/shut/in/one; ln -s x t/soft; ln t/zero t/hard",
    );
    bench.sh(
        "chmod 0000 t/zero t/shut/in/one t/shut/in t/shut; chown -R -h nobody:nogroup t; chown nobody v.img; \
         mkdir o; chown nobody o",
    );
    lanefs_tests::copy_file(env!("CARGO_BIN_EXE_lanefs"), bench.at("lanefs"));
    let user = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "./lanefs"]);
        let out = command.args(args).current_dir(bench.dir.path()).output().unwrap();
        (out.status.success(), String::from_utf8(out.stderr).unwrap())
    };
    let quiet = (true, String::new());
    let tree = below(bench.listed("t"));
    let owned =
        |uid, gid| -> Vec<TreeEntry> { tree.iter().map(|e| TreeEntry { uid, gid, ..e.clone() }).collect() };
    assert_eq!(user(&["import", "t", "v.img:/t", "--owner", "0:0"]), quiet);
    assert_same_tree(&tree, &below(bench.listed("t")));
    assert!(tree.iter().any(|e| e.mode == 0));
    assert_same_tree(&owned(0, 0), &below(bench.mounted("t")));
    assert_eq!(user(&["export", "v.img:/t", "o/t"]), quiet);
    assert_same_tree(&owned(65534, 65534), &below(bench.listed("o/t")));

    // A member that needs a privilege is reported, and the others arrive. A file with another owner
    // loses its set-user-id bit.
    bench.sh("rm -rf t; mkdir t; mknod t/null c 1 3; echo x > t/after; echo s > t/su; chmod 6755 t/su");
    bench.ok(&["import", "t", "v.img:/u"]);
    let (done, said) = user(&["export", "v.img:/u", "o/u"]);
    assert!(!done && said.contains("v.img:/u/null") && said.contains("Operation not permitted"), "{said}");
    assert_eq!(fs::read(bench.at("o/u/after")).unwrap(), b"x\n");
    assert_eq!(fs::metadata(bench.at("o/u/su")).unwrap().permissions().mode() & 0o7777, 0o755);
}

/// A signal leaves the folder as it was, also where its owner had to let himself in.
#[test]
fn a_signal_sets_back_the_modes_of_a_folder() {
    let bench = Bench::new("mkdir -p t/in; for n in $(seq 3000); do echo $n > t/in/$n; done");
    bench.sh("chown -R nobody:nogroup t v.img; chmod 0300 t/in");
    lanefs_tests::copy_file(env!("CARGO_BIN_EXE_lanefs"), bench.at("lanefs"));
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "./lanefs"]);
    let mut child = command.args(["import", "t", "v.img:/"]).current_dir(bench.dir.path()).spawn().unwrap();
    let mode = |name: &str| fs::metadata(bench.at(name)).unwrap().permissions().mode() & 0o7777;
    while mode("t/in") == 0o300 {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        std::thread::yield_now();
    }
    bench.sh(&format!("kill -INT {}", child.id()));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(mode("t/in"), 0o300);
    e2fsck_clean(bench.at("v.img"));
}

#[test]
fn owners_are_mapped_or_set() {
    let bench = Bench::new(
        "mkdir t; : > t/a; : > t/b; chown 1000:1000 t/a; chown 100005:5 t/b; setfacl -m u:1000:r t/b",
    );
    let owners =
        |dir: &str| -> Vec<(u32, u32)> { below(bench.mounted(dir)).iter().map(|e| (e.uid, e.gid)).collect() };
    let maps = ["--uid-map", "1000:0", "--uid-map", "100000:1:65536", "--gid-map", "5:6"];
    bench.ok(&[&["import", "t", "v.img:/map"][..], &maps].concat());
    assert_eq!(owners("map"), [(0, 1000), (6, 6)]);
    let acl = bench.mounted("map")[2].xattrs.values().next().unwrap().clone();
    assert_eq!(acl[12..20], [2, 0, 4, 0, 0, 0, 0, 0], "the ACL's user 1000 has become 0");
    bench.ok(&["import", "t", "v.img:/set", "--owner", "7:8"]);
    assert_eq!(owners("set"), [(7, 8), (7, 8)]);
    bench.ok(&["export", "v.img:/set", "out", "--uid-map", "7:70", "--owner", ":9"]);
    assert!(below(bench.listed("out")).iter().all(|e| (e.uid, e.gid) == (70, 9)));
    assert!(bench.fails(&["import", "t", "v.img:/x", "--uid-map", "1:2:0"]).contains("1:2:0"));
}

#[test]
fn the_same_source_gives_the_same_bytes() {
    let bench = Bench::new(TREE);
    let mut images = Vec::new();
    for name in ["1.tar", "2.tar"] {
        bench.volume("v.img", &[]);
        bench.reproducibly(&["import", "t", "v.img:/t"]);
        images.push(fs::read(bench.at("v.img")).unwrap());
        let newest = below(bench.mounted("t")).iter().map(|e| e.mtime).max().unwrap();
        assert_eq!(newest, (1_000_000_000, 0));
        // A socket is left out, with a word.
        assert_eq!(bench.output(&["export", "v.img:/t", "/dev/null"]).status.code(), Some(1));
        bench.sh("rm t/socket");
        bench.volume("w.img", &[]);
        bench.reproducibly(&["import", "t", "w.img:/t"]);
        bench.reproducibly(&["export", "w.img:/t", name]);
        // Made again, in another order and at another time.
        bench.sh("mv t old && mkdir t && cp -a old/z-hard t/ && cp -a old/. t/ && rm t/hole && cp -a old/hole t/; rm -r old");
        bench.sh("python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"t/socket\")'");
    }
    let differ = images[0].iter().zip(&images[1]).position(|(a, b)| a != b);
    assert_eq!(differ, None, "first byte that differs");
    bench.sh("cmp 1.tar 2.tar");
}

#[test]
fn nothing_leaves_the_target() {
    let bench = Bench::new("mkdir t; echo good > t/good");
    // An archive that climbs out, by name and by link.
    bench.sh(r#"python3 - <<'E'
import tarfile, io
t = tarfile.open('evil.tar', 'w')
def add(name, data=b'evil', **kw):
    i = tarfile.TarInfo(name); i.size = len(data)
    for k, v in kw.items(): setattr(i, k, v)
    t.addfile(i, io.BytesIO(data))
add('../up')
add('a/../../up')
add('/absolute')
add('way', b'', type=tarfile.SYMTYPE, linkname='/out')
add('way/through')
add('hard', b'', type=tarfile.LNKTYPE, linkname='../../out/file')
add('last')
t.close()
E"#);
    bench.ok(&["import", "t", "v.img:/out"]);
    let said = bench.fails(&["import", "evil.tar", "v.img:/in"]);
    assert_eq!(said.lines().count(), 4, "{said}");
    assert!(said.contains("'../up'") && said.contains("v.img:/in/way/through"), "{said}");
    let paths = |tree: Vec<TreeEntry>| -> Vec<String> {
        below(tree).iter().map(|e| e.path.to_str().unwrap().into()).collect()
    };
    assert_eq!(paths(bench.mounted("in")), ["absolute", "last", "way"]);
    assert_eq!(paths(bench.mounted("out")), ["good"]);

    // A folder that has links where the volume has directories and files.
    bench.sh(
        "mkdir v; mkdir v/sub; echo v > v/sub/f; echo v > v/file; mkdir outside o; echo keep > outside/file",
    );
    bench.ok(&["import", "v", "v.img:/v"]);
    symlink(bench.at("outside"), bench.at("o/sub")).unwrap();
    symlink(bench.at("outside/file"), bench.at("o/file")).unwrap();
    let said = bench.fails(&["export", "v.img:/v", "o"]);
    assert!(said.contains("v.img:/v/sub"), "{said}");
    assert_eq!(fs::read_dir(bench.at("outside")).unwrap().count(), 1);
    assert_eq!(fs::read(bench.at("outside/file")).unwrap(), b"keep\n");
    assert_eq!(fs::read(bench.at("o/file")).unwrap(), b"v\n", "a link in the way of a file is replaced");

    // A volume where a directory is below itself.
    debugfs_write(bench.at("v.img"), "ln /v /v/sub/loop");
    let said = bench.fails(&["export", "v.img:/v", "o2"]);
    assert!(said.contains("v.img:/v/sub/loop"), "{said}");
    assert_eq!(fs::read(bench.at("o2/sub/f")).unwrap(), b"v\n");
}

#[test]
fn what_cannot_be_is_said() {
    let bench = Bench::new(
        "mkdir t; echo x > t/f; yes $'\\001pattern' | head -c 100 > t/junk; seq 1000 | gzip > t/z.gz",
    );
    let starts = |said: String, with: &str| assert!(said.starts_with(with), "{said}");
    starts(
        bench.fails(&["import", "none", "v.img:/"]),
        "lanefs: cannot open 'none': No such file or directory",
    );
    starts(bench.fails(&["import", "t", "none.img:/"]), "lanefs: cannot open for writing 'none.img'");
    starts(bench.fails(&["import", "t/junk", "v.img:/"]), "lanefs: cannot read 't/junk': byte ");
    starts(bench.fails(&["import", "t/z.gz", "v.img:/"]), "lanefs: cannot read 't/z.gz': byte ");
    bench.sh("printf '\\004\\042\\115\\030rest' > f.lz4");
    starts(
        bench.fails(&["import", "f.lz4", "v.img:/"]),
        "lanefs: cannot read 'f.lz4': it holds compressed data (lz4); lz4 -dc FILE | lanefs import - VOLUME:/DIR",
    );
    bench.ok(&["import", "t", "v.img:/d"]);
    assert!(bench.fails(&["import", "t", "v.img:/d/f"]).contains("Not a directory"));
    assert!(bench.fails(&["export", "v.img:/none", "o"]).contains("No such file or directory"));
    assert!(!bench.at("o").exists());
    // More than fits: said once, and the volume is whole.
    bench.sh("head -c 80M /dev/urandom > t/zz-large");
    let said = bench.fails(&["import", "t", "v.img:/full"]);
    assert!(said.contains("No space left on device") && said.lines().count() == 1, "{said}");
    e2fsck_clean(bench.at("v.img"));
    assert_eq!(fs::metadata(bench.at("v.img")).unwrap().size(), 64 << 20);
}

/// Tar has no sockets: neither name of one is in an archive, nor is a link to it.
#[test]
fn a_link_leads_to_a_member_of_the_archive() {
    let bench = Bench::new(
        "mkdir t; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"t/a\")'; ln t/a t/b
         echo f > t/e; ln t/e t/f",
    );
    bench.ok(&["import", "t", "v.img:/in"]);
    let said = bench.output(&["export", "v.img:/in", "out.tar"]).stderr;
    let names = bench.sh("mkdir x; tar -C x -xvf out.tar; cat x/f");
    assert_eq!(String::from_utf8_lossy(&names), "./\ne\nf\nf\n", "{}", String::from_utf8_lossy(&said));
}

/// An archive takes the place of an older one when it is complete. An error and a signal leave
/// that.
#[test]
fn an_archive_is_whole_or_the_old_one() {
    let tree = "mkdir t; head -c 20000000 /dev/urandom > t/f; tar -cf old.tar /dev/null 2> /dev/null
        cp old.tar out.tar; chmod 640 out.tar; : > empty.tar; mkfifo pipe.tar";
    let bench = Bench::new(tree);
    bench.ok(&["import", "t", "v.img:/"]);
    let lanefs = env!("CARGO_BIN_EXE_lanefs");
    for name in ["out.tar", "new.tar"] {
        // The shell's limit of a file's size is in KiB.
        let said = bench.sh(&format!(
            "trap '' XFSZ; (ulimit -f 4096; {lanefs} export v.img:/ {name}) 2>&1 && exit 9 || true"
        ));
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains(&format!("cannot write '{name}'")), "{said}");
    }
    let mut child = bench.command(&["export", "v.img:/", "out.tar"]).spawn().unwrap();
    while !fs::read_dir(bench.dir.path()).unwrap().any(|entry| {
        let entry = entry.unwrap();
        entry.file_name().as_encoded_bytes().starts_with(b".lanefs-") && entry.metadata().unwrap().len() > 0
    }) {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        std::thread::yield_now();
    }
    bench.sh(&format!("kill -INT {}", child.id()));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let names = "empty.tar\nold.tar\nout.tar\npipe.tar\nt\nv.img\n";
    assert_eq!(String::from_utf8(bench.sh("cmp old.tar out.tar; ls -A")).unwrap(), names);
    // The new one has the old one's mode. A pipe takes it as it comes.
    bench.ok(&["export", "v.img:/", "out.tar"]);
    bench.ok(&["export", "v.img:/", "empty.tar"]);
    bench.sh("test $(stat -c %a out.tar) = 640; cmp out.tar empty.tar");
    bench.sh(&format!("cat pipe.tar > piped & {lanefs} export v.img:/ pipe.tar; wait; cmp out.tar piped"));
    bench.sh(": > none.tar");
    bench.ok(&["export", "--oci-layer", "--force", "v.img:/", "none.tar"]);
}

#[test]
fn a_compressed_archive_goes_out_and_in() {
    let bench = Bench::new(TREE);
    bench.sh("rm t/socket");
    bench.ok(&["import", "t", "v.img:/in"]);
    bench.ok(&["export", "v.img:/in", "plain.tar"]);
    for name in ["o.tar.gz", "o.tgz"] {
        bench.ok(&["export", "v.img:/in", name]);
        // The same bytes, as gzip sees it, and the same compressed bytes each time.
        bench.sh(&format!("gzip -dc {name} | cmp - plain.tar; mv {name} first"));
        bench.ok(&["export", "v.img:/in", name]);
        bench.sh(&format!("cmp first {name}"));
        // Over an older archive, but over nothing else.
        bench.ok(&["export", "v.img:/in", name]);
        bench.sh(&format!("echo hello > {name}"));
        let said = bench.fails(&["export", "v.img:/in", name]);
        assert!(said.contains("holds text, no archive; --force"), "{said}");
        bench.ok(&["export", "--force", "v.img:/in", name]);
    }
    // In members, as pigz and cat make them; from a file and from a pipe.
    bench.sh("split -n 3 plain.tar part.; for f in part.*; do gzip -c $f; done > members.tar.gz");
    bench.ok(&["import", "members.tar.gz", "v.img:/again"]);
    assert_same_tree(&bench.mounted("in"), &bench.mounted("again"));
    bench.sh("xz -k plain.tar");
    bench.ok(&["import", "plain.tar.xz", "v.img:/by-xz"]);
    assert_same_tree(&bench.mounted("in"), &bench.mounted("by-xz"));
    bench.volume("w.img", &[]);
    let lanefs = env!("CARGO_BIN_EXE_lanefs");
    bench.sh(&format!(
        "cat o.tgz | {lanefs} import - w.img:/in; {lanefs} export w.img:/in - | cmp - plain.tar"
    ));
    // What cannot be written is refused, and makes no folder of that name.
    for (name, by) in [("o.tar.xz", "xz"), ("o.tar.zst", "zstd"), ("o.tbz2", "bzip2"), ("o.tar.lz4", "lz4")] {
        let said = bench.fails(&["export", "v.img:/in", name]);
        let want = format!(
            "lanefs: cannot write '{name}': lanefs compresses with gzip only; lanefs export SRC - | {by} > {name}\n"
        );
        assert_eq!(said, want);
        assert!(!bench.at(name).exists());
    }
    // A damaged stream ends in an error.
    bench.sh("head -c 2000 o.tgz > cut.tgz");
    let said = bench.fails(&["import", "cut.tgz", "w.img:/cut"]);
    assert!(said.starts_with("lanefs: cannot read 'cut.tgz': "), "{said}");
}

/// The memory of an export grows with a volume's directories, not with their number times their
/// depth.
#[test]
fn a_deep_volume_takes_little_memory() {
    let bench = Bench::new("");
    // 6,000 levels of 250 bytes each: their paths together are 4.5 GB.
    bench.sh(r#"python3 - <<'E'
import tarfile
t = tarfile.open('deep.tar', 'w', format=tarfile.GNU_FORMAT)
path = ''
for i in range(2000):
    path += 'd' * 250 + '/'
    info = tarfile.TarInfo(path[:-1]); info.type = tarfile.DIRTYPE; info.mode = 0o755
    if i % 100 == 99: t.addfile(info)
t.close()
E"#);
    bench.ok(&["import", "deep.tar", "v.img:/deep"]);
    let limited = |args: &str| {
        let lanefs = env!("CARGO_BIN_EXE_lanefs");
        bench.sh(&format!("ulimit -v 700000; {lanefs} {args}"));
    };
    limited("export v.img:/deep out");
    limited("export v.img:/deep - > out.tar");
    bench.sh("rm -rf out out.tar");
    // A path beyond the bound is one name's problem.
    bench.sh(r#"python3 - <<'E'
import tarfile
t = tarfile.open('long.tar', 'w', format=tarfile.GNU_FORMAT)
for path in ['d/' * 300000 + 'f', 'short']:
    t.addfile(tarfile.TarInfo(path))
t.close()
E"#);
    let said = bench.fails(&["import", "long.tar", "v.img:/long"]);
    assert!(said.ends_with("a path of 600001 bytes, at most 524288\n"), "{}", said.len());
    bench.ok(&["export", "v.img:/long", "long"]);
    assert!(bench.at("long/short").exists());
    e2fsck_clean(bench.at("v.img"));
}

/// Writes an archive of directories or of empty files to standard output: KIND TIMES HEADERS
/// PATH...
const REPEATED: &str = r#"
import sys, tarfile
kind, times, headers, *paths = sys.argv[1:]
t = tarfile.open(fileobj=sys.stdout.buffer, mode='w|', format=tarfile.PAX_FORMAT, pax_headers=eval(headers))
for path in map(eval, paths * int(times)):
    info = tarfile.TarInfo(path)
    info.type, info.mode = getattr(tarfile, kind), 0o755
    t.addfile(info)
    t.members = []
t.close()
"#;

/// The memory of an import grows with the directories of the volume, whatever the archive repeats.
#[test]
fn an_archive_that_repeats_itself_takes_little_memory() {
    let bench = Bench::new("");
    let import = |archive: &str| {
        let lanefs = env!("CARGO_BIN_EXE_lanefs");
        let limited = format!("python3 -c \"$0\" {archive} | (ulimit -v 500000; {lanefs} import - v.img:/)");
        let mut command = Command::new("bash");
        let out = command.args(["-euc", &limited, REPEATED]).current_dir(bench.dir.path()).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    // A list of 5,000 entries for each directory, of which there is one.
    let list = "dict([('SCHILY.acl.default', 'u::rwx,g::r,m::r,o::r' + ',u:1:r' * 5000)])";
    let (code, said) = import(&format!("DIRTYPE 14000 \"{list}\" \"'dir'\""));
    assert_eq!(code, Some(1), "{}", &said[..said.len().min(2000)]);
    assert!(said.lines().count() == 14_000 && said.lines().all(|line| line.contains("posix_acl_default")));
    // Names that are refused, and are as long as an archive may have them.
    let (code, said) = import(r#"REGTYPE 200 {} "'../' + 'n' * 3000000""#);
    assert!(code == Some(1) && said.lines().count() == 200, "{code:?}, {}", said.len());
    e2fsck_clean(bench.at("v.img"));
}

/// No file takes the place of a mount point: that is said before anything is written.
#[test]
fn what_is_mounted_at_a_name_is_not_replaced() {
    lanefs_tests::private_mounts();
    let bench = Bench::new("mkdir -p t empty beside; head -c 3000000 /dev/urandom > t/f; tar cf old.tar t");
    bench.ok(&["import", "t", "v.img:/"]);
    bench.sh(
        "cp old.tar kept; touch names; for f in old.tar v.img; do touch at-$f; mount --bind $f at-$f; done",
    );
    bench.sh("mount --bind empty beside; ls -A > names");
    for args in [
        &["export", "v.img:/", "at-old.tar"][..],
        &["export", "--force", "v.img:/", "at-old.tar"],
        &["export", "--force", "--oci-layer", "v.img:/", "at-old.tar"],
        &["export", "--force", "--oci", "v.img:/", "at-old.tar"],
        &["export", "--force", "--android-sparse", "v.img", "at-old.tar"],
        &["build", "--force", "t", "at-v.img"],
    ] {
        let said = bench.fails(args);
        assert!(said.contains("is mounted there") && said.lines().count() == 1, "{args:?}: {said}");
    }
    let said = bench.fails(&["export", "--oci", "v.img:/", "beside"]);
    assert!(said.contains("name a new folder in it"), "{said}");
    bench.sh("ls -A | cmp names; cmp old.tar kept; umount at-old.tar at-v.img beside");
}
