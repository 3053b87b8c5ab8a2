//! Commands write to the host only below the named target, through no link, and over no volume.

use crate::support::{Image, succeed, tool};
use rustix::fs::{FlockOperation, flock};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

/// A volume with the tree `/t`, and a folder `outside` that nothing may reach.
fn volume_and_outside() -> Image {
    let v = Image::new();
    let at = |name: &str| v.beside(name);
    fs::create_dir_all(at("t/sub")).unwrap();
    fs::write(at("t/sub/file"), "new").unwrap();
    fs::write(at("t/file"), "new").unwrap();
    v.ok(["import", "t", "v.img:/t"]);
    fs::create_dir(at("outside")).unwrap();
    fs::write(at("outside/file"), "keep").unwrap();
    v
}

fn kept(v: &Image) {
    assert_eq!(fs::read_to_string(v.beside("outside/file")).unwrap(), "keep");
    assert_eq!(fs::read_dir(v.beside("outside")).unwrap().count(), 1);
}

#[test]
fn cp_follows_no_link_below_its_target() {
    let v = volume_and_outside();
    for (out, source) in [("o1/t", "v.img:/t"), ("o2", "v.img:/t/.")] {
        fs::create_dir_all(v.beside(out)).unwrap();
        symlink(v.beside("outside"), v.beside(out).join("sub")).unwrap();
        symlink(v.beside("outside/file"), v.beside(out).join("file")).unwrap();
        let named = out.split('/').next().unwrap();
        for options in ["-r", "-a", "-rp"] {
            let said = format!(
                "lanefs: cannot overwrite non-directory '{out}/sub' with directory 'v.img:/t{}/sub'",
                if source.ends_with('.') { "/." } else { "" }
            );
            v.fails(["cp", options, source, named], 1, &said);
            kept(&v);
            // A link in the place of a file is replaced.
            assert_eq!(fs::read_to_string(v.beside(out).join("file")).unwrap(), "new");
        }
    }
    // As cp of coreutils: the target that is named may be a link.
    fs::create_dir(v.beside("o3")).unwrap();
    symlink("o3", v.beside("named")).unwrap();
    v.ok(["cp", "-r", "v.img:/t", "named"]);
    assert_eq!(fs::read_to_string(v.beside("o3/t/sub/file")).unwrap(), "new");
    fs::write(v.beside("o3/old"), "old and longer").unwrap();
    symlink("old", v.beside("o3/link")).unwrap();
    v.ok(["cp", "v.img:/t/file", "o3/link"]);
    assert_eq!(fs::read_to_string(v.beside("o3/old")).unwrap(), "new");
}

/// As cp(1): a file of the host that this user may not write to is overwritten only with --force.
#[test]
fn a_file_that_is_read_only_stays() {
    lanefs_tests::require_root();
    let v = volume_and_outside();
    lanefs_tests::copy_file(env!("CARGO_BIN_EXE_lanefs"), v.beside("lanefs"));
    let script = r#"mkdir -p out/t; echo mine > out/t/file; chmod 444 out/t/file; chown -R nobody out v.img; chmod 755 .
        as() { setpriv --reuid nobody --regid nogroup --clear-groups ./lanefs "$@"; }
        if said=$(as cp -r v.img:/t out 2>&1); then exit 1; fi
        test "$said" = "lanefs: cannot create 'out/t/file': Permission denied"; test "$(cat out/t/file)" = mine
        as cp -r --force v.img:/t out; test "$(cat out/t/file)" = new"#;
    succeed(tool("bash").args(["-euc", script]).current_dir(v.beside("")));
}

#[test]
fn a_device_that_is_named_is_written_to() {
    lanefs_tests::require_root();
    let v = volume_and_outside();
    succeed(tool("mknod").arg(v.beside("null")).args(["c", "1", "3"]));
    v.ok(["cp", "v.img:/t/file", "null"]);
    assert!(fs::symlink_metadata(v.beside("null")).unwrap().file_type().is_char_device());
    let out = v.lanefs(["cp", "v.img:/t/file", "/dev/stdout"]).output().unwrap();
    assert_eq!((out.stdout.as_slice(), out.stderr.as_slice()), (&b"new"[..], &b""[..]));
}

#[test]
fn a_volume_is_no_target() {
    let v = volume_and_outside();
    v.ok(["mkfs", "-q", "--size", "16M", "d.img"]);
    fs::create_dir(v.beside("dir")).unwrap();
    for copy in ["v.tar", "dir/x"] {
        fs::copy(v.beside("d.img"), v.beside(copy)).unwrap();
    }
    let volume = fs::read(v.beside("d.img")).unwrap();
    v.ok(["cp", "t/file", "v.img:/x"]);
    v.ok(["mkdir", "v.img:/r"]);
    v.ok(["cp", "t/file", "v.img:/r/x"]);
    let refused = |args: &[&str], name: &str, verb: &str| {
        let said = format!(
            "lanefs: cannot {verb} '{name}': it is an ext4 volume (a path inside of one is VOLUME:/path); \
             --force overwrites it"
        );
        v.fails(args, 1, &said);
        assert!(fs::read(v.beside(name)).unwrap() == volume, "{args:?}");
    };
    refused(&["cp", "v.img:/x", "d.img"], "d.img", "create");
    refused(&["cp", "v.img:/x", "dir"], "dir/x", "create");
    refused(&["cp", "-a", "v.img:/r/.", "dir"], "dir/x", "create");
    refused(&["export", "v.img:/", "v.tar"], "v.tar", "write");
    refused(&["export", "v.tar:/", "v.tar"], "v.tar", "write");
    let said = v.lanefs(["export", "v.img:/r", "dir"]).output().unwrap();
    assert!(String::from_utf8_lossy(&said.stderr).contains("it is an ext4 volume"), "{said:?}");
    assert!(fs::read(v.beside("dir/x")).unwrap() == volume);
    v.fails(
        ["cp", "t/file", "d.img"],
        1,
        "lanefs: neither 't/file' nor 'd.img' is in a volume: write VOLUME:/path, as in d.img:/, or use cp(1)",
    );
    assert!(fs::read(v.beside("d.img")).unwrap() == volume);
    v.ok(["cp", "--force", "v.img:/x", "dir"]);
    v.ok(["export", "--force", "v.img:/", "v.tar"]);
    v.ok(["cp", "--force", "v.img:/x", "d.img"]);
    for name in ["dir/x", "d.img"] {
        assert_eq!(fs::read_to_string(v.beside(name)).unwrap(), "new");
    }
}

/// With --force too, and by whichever name.
#[test]
fn a_volume_that_is_read_is_no_target() {
    let v = volume_and_outside();
    v.ok(["mkfs", "-q", "--size", "16M", "old.img"]);
    fs::hard_link(v.beside("old.img"), v.beside("old.tar")).unwrap();
    symlink("v.img", v.beside("v.tar")).unwrap();
    fs::create_dir(v.beside("dir")).unwrap();
    fs::hard_link(&v.path, v.beside("dir/file")).unwrap();
    let volumes = || ["v.img", "old.img", "dir/file"].map(|name| fs::read(v.beside(name)).unwrap());
    let before = volumes();
    let refused = |args: &[&str], said: &str| {
        v.fails(args, 1, &format!("lanefs: cannot {said}"));
        assert!(volumes() == before, "{args:?}");
    };
    let since = ["--since", "old.img", "v.img:/"];
    for target in ["v.img", "v.tar"] {
        let said = format!("write '{target}': it is a source, or a volume in use by this program");
        refused(&["export", "--force", "--android-sparse", "v.img", target], &said);
        refused(&["export", "--force", "--oci-layer", "v.img:/", target], &said);
    }
    refused(
        &["export", "--force", "--oci", "v.img:/", "v.tar"],
        "write 'v.tar': it is a source, or a volume in use by this program",
    );
    refused(
        &[&["export", "--force", "--oci"], &since[..], &["old.tar"]].concat(),
        "write 'old.tar': it is a source, or a volume in use by this program",
    );
    refused(
        &[&["export", "--force", "--oci-layer"], &since[..], &["old.img"]].concat(),
        "write 'old.img': it is a source, or a volume in use by this program",
    );
    let said = |what: &str| format!("{what}: it would replace a volume that is in use here");
    refused(&["export", "--force", "v.img:/", "v.tar"], &said("write 'v.tar'"));
    refused(&["export", "--force", "v.img:/t", "dir"], &said("export 'v.img:/t/file'"));
    refused(&["cp", "--force", "v.img:/t/file", "dir"], &said("create 'dir/file'"));
    refused(&["cp", "--force", "-a", "v.img:/t/.", "dir"], &said("create 'dir/file'"));
    assert_eq!(fs::read_dir(v.path.parent().unwrap()).unwrap().count(), 7);
}

#[test]
fn a_volume_is_not_imported_into_itself() {
    let v = volume_and_outside();
    let said = "lanefs: cannot read './v.img': it is a volume in use by this program";
    v.fails(["import", ".", "v.img:/all"], 1, said);
    assert_eq!(v.ok(["cat", "v.img:/all/t/file"]), "new");
    assert!(!v.ok(["ls", "v.img:/all"]).contains("v.img"));
    v.fsck();
}

/// Each name of the open volume is left out by cp and mv too, and nothing is replaced by it.
#[test]
fn a_volume_is_not_copied_into_itself() {
    let v = volume_and_outside();
    fs::write(v.beside("plain"), "plain").unwrap();
    fs::create_dir(v.beside("more")).unwrap();
    fs::hard_link(&v.path, v.beside("more/other.img")).unwrap();
    v.ok(["cp", "plain", "v.img:/v.img"]);
    let said = |name: &str| format!("lanefs: cannot read '{name}': it is a volume in use by this program");
    for options in ["-r", "-a"] {
        v.fails(["cp", options, ".", "v.img:/"], 1, &[said("./more/other.img"), said("./v.img")].join("\n"));
        assert_eq!(v.ok(["cat", "v.img:/v.img", "v.img:/plain"]), "plainplain", "{options}");
        assert_eq!(v.ok(["ls", "v.img:/more"]), "", "{options}");
    }
    v.fails(["cp", "v.img", "v.img:/"], 1, &said("v.img"));
    v.fails(["mv", "v.img", "v.img:/"], 1, &said("v.img"));
    assert_eq!(v.ok(["cat", "v.img:/v.img"]), "plain");
    v.fsck();
}

#[test]
fn a_file_that_another_process_has_locked_is_no_target() {
    let v = volume_and_outside();
    fs::write(v.beside("busy"), "in use").unwrap();
    let file = fs::File::open(v.beside("busy")).unwrap();
    flock(&file, FlockOperation::LockShared).unwrap();
    let out = v.lanefs(["cp", "v.img:/t/file", "busy"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.starts_with("lanefs: cannot create 'busy': it is in use: another process "), "{said}");
    assert_eq!(fs::read_to_string(v.beside("busy")).unwrap(), "in use");
    // Not by closing it: a child of another test's thread has it open until its exec.
    flock(&file, FlockOperation::Unlock).unwrap();
    v.ok(["cp", "v.img:/t/file", "busy"]);
}

/// chown(2) takes 4294967295 for "leave as it is": a file with that owner must not become the
/// caller's.
#[test]
fn nobody_owns_what_is_owned_by_minus_one() {
    let v = volume_and_outside();
    v.ok(["chmod", "6755", "v.img:/t/file"]);
    for (field, other) in [("uid", "gid"), ("gid", "uid")] {
        for request in [format!("sif /t/file {field} 4294967295"), format!("sif /t/file {other} 0")] {
            succeed(tool("debugfs").args(["-w", "-R", &request]).arg(&v.path));
        }
        let owner = v.ok(["stat", "-c", "%u:%g", "v.img:/t/file"]);
        assert!(owner.contains("4294967295"), "{owner}");
        for args in [
            &["cp", "-a", "v.img:/t", "out"][..],
            &["cp", "-p", "v.img:/t/file", "out"],
            &["export", "v.img:/t", "out"],
            &["export", "v.img:/t", "out.tar"],
            &["cp", "-a", "v.img:/t/file", "v.img:/copy"],
        ] {
            let out = v.lanefs(args).output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(!out.status.success() && said.contains("4294967295"), "{args:?}: {said}");
            if v.beside("out.tar").exists() {
                succeed(
                    tool("sh")
                        .args(["-c", "mkdir out; tar -C out -xpf out.tar"])
                        .current_dir(v.path.parent().unwrap()),
                );
            }
            for name in ["out", "out/file"] {
                let mode = fs::symlink_metadata(v.beside(name)).map_or(0, |m| m.permissions().mode());
                assert!(mode & 0o170000 == 0o040000 || mode & 0o6000 == 0, "{args:?}: {name} is {mode:o}");
            }
            let _ = fs::remove_dir_all(v.beside("out"));
            let _ = fs::remove_file(v.beside("out"));
            let _ = fs::remove_file(v.beside("out.tar"));
        }
        // A map can give it another owner.
        let map = format!("--{field}-map");
        v.ok(["export", "v.img:/t", "mapped", &map, "4294967295:7"]);
        let meta = fs::metadata(v.beside("mapped/file")).unwrap();
        assert!(meta.uid() == 7 || meta.gid() == 7);
    }
    for args in [
        &["chown", "4294967295", "v.img:/t"][..],
        &["chown", ":4294967295", "v.img:/t"],
        &["export", "v.img:/t", "o2", "--owner", "4294967295"],
        &["import", "t", "v.img:/i", "--uid-map", "0:4294967295"],
        &["mkfs", "--size", "16M", "-E", "root_owner=4294967295:0", "n.img"],
    ] {
        let out = v.lanefs(args).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains("4294967295"), "{args:?}: {said}");
    }
}

/// Descriptors do not grow with the depth of a tree.
#[test]
fn a_tree_of_1020_levels() {
    let v = volume_and_outside();
    let deep = "d/".repeat(1020);
    v.ok(["mkdir", "-p", &format!("v.img:/deep/{deep}")]);
    v.ok(["cp", "t/file", &format!("v.img:/deep/{deep}file")]);
    let limited = |command: &str| {
        let lanefs = env!("CARGO_BIN_EXE_lanefs");
        succeed(
            tool("sh")
                .args(["-c", &format!("ulimit -n 48; {}", command.replace("lanefs", lanefs))])
                .current_dir(v.path.parent().unwrap()),
        );
        command.to_owned()
    };
    limited("lanefs export v.img:/deep out");
    limited("lanefs export v.img:/deep out.tar");
    limited("lanefs import out v.img:/again");
    limited("lanefs import out.tar v.img:/third");
    limited("lanefs cp -a v.img:/again copied");
    limited("lanefs cp -a copied v.img:/fourth");
    for at in ["again", "third", "fourth"] {
        assert_eq!(v.ok(["cat", &format!("v.img:/{at}/{deep}file")]), "new");
    }
    assert_eq!(fs::read_to_string(v.beside("copied").join(&deep).join("file")).unwrap(), "new");
    v.fsck();
}

/// A word without its slash names no file of the host.
#[test]
fn a_forgotten_slash() {
    let v = volume_and_outside();
    for (args, start) in [
        (&["cp", "t/file", "v.img:etc"][..], "lanefs: "),
        (&["cp", "v.img:/t/file", "v.img:etc"], "lanefs: "),
        (&["mv", "v.img:/t/file", "v.img:etc"], "lanefs: "),
        (&["export", "v.img:/t", "v.img:etc"], "lanefs: "),
        (&["mkfs", "--size", "16M", "v.img:etc"], "lanefs: "),
        (&["ls", "v.img:etc"], "lanefs: "),
    ] {
        let out = v.lanefs(args).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.starts_with(start), "{args:?}: {said}");
        assert!(said.contains("v.img:/etc"), "{args:?}: {said}");
        assert!(!v.beside("v.img:etc").exists(), "{args:?}");
    }
    assert_eq!(v.ok(["cat", "v.img:/t/file"]), "new");
}

/// A shell that runs until there is a file `stop`. A kill would leave the program that it runs.
struct Swapper {
    shell: std::process::Child,
    stop: std::path::PathBuf,
}

impl Drop for Swapper {
    fn drop(&mut self) {
        if fs::write(&self.stop, "").is_err() {
            let _ = self.shell.kill();
        }
        let _ = self.shell.wait();
    }
}

/// Another process with write access to the target replaces new files by links. No file outside
/// changes, whichever race it wins.
#[test]
fn names_that_change_hands_meanwhile() {
    lanefs_tests::require_root();
    let v = volume_and_outside();
    let here = v.path.parent().unwrap();
    let script =
        "mkdir n; for i in $(seq 20); do mknod -m 666 n/a$i c 1 3; mkfifo -m 666 n/b$i; done; chown 7:7 n/*";
    succeed(tool("sh").args(["-c", script]).current_dir(here));
    v.ok(["import", "n", "v.img:/n"]);
    fs::create_dir(v.beside("out")).unwrap();
    fs::set_permissions(v.beside("outside/file"), fs::Permissions::from_mode(0o600)).unwrap();
    let swap = "until [ -e stop ]; do for f in out/a* out/b*; do ln -sfn ../outside/file $f; done; done 2> /dev/null";
    let other = tool("sh").args(["-c", swap]).current_dir(here).spawn().unwrap();
    let other = Swapper { shell: other, stop: v.beside("stop") };
    for _ in 0..40 {
        for args in [&["export", "v.img:/n", "out"][..], &["cp", "-a", "v.img:/n/.", "out"]] {
            // Whether the command succeeds depends on which process is first.
            v.lanefs(args).output().unwrap();
            let meta = fs::metadata(v.beside("outside/file")).unwrap();
            let outside = (meta.permissions().mode() & 0o7777, meta.uid(), meta.gid());
            assert_eq!(outside, (0o600, 0, 0), "{args:?}");
        }
    }
    drop(other);
    kept(&v);
}
