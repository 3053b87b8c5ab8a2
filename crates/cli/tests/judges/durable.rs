//! `sync`, `dirsync`, and chattr(1)'s S and D: every acknowledged change is there after a cut of
//! power.

use crate::support::{Disk, Image, LIMIT, compile, shell};
use lanefs_tests::{Mounted, Server};

/// Mounts with `options`, runs `before` and then, once that is durable, `change`; the power is cut
/// at once, and `after` must hold.
fn survives(options: &str, before: &str, change: &str, after: &str) {
    let server = Server::Lanefs(env!("CARGO_BIN_EXE_lanefs").into());
    let image = Image::new(16 << 20, &["-b", "4096"]);
    let direct = compile(&image, "direct.c");
    // Nothing is committed by the way.
    let options = format!("commit=300,{options}");
    let disk = Disk::new(&image);
    let mounted = disk.mount(&options);
    let prelude = format!("direct() {{ {} \"$@\"; }}; ", direct.display());
    shell(mounted.path(), &format!("{prelude}{before}; sync .; sync -f ."));
    shell(mounted.path(), &format!("for f in *; do sync \"$f\"; done; {prelude}{change}"));
    let media = disk.cut(1);
    mounted.kill(|| ());
    for medium in media {
        medium.save(&image.path).unwrap();
        let mounted = Mounted::new(&server, &image.path, "", LIMIT);
        shell(mounted.path(), after);
        mounted.unmount();
    }
}

/// Before, change, after; for changes of directories.
const OF_DIRS: [(&str, &str, &str); 7] = [
    (":", "mkdir d/new", "test -d d/new"),
    (":", "touch d/new", "test -f d/new"),
    (":", "ln -s target d/new", "test -L d/new"),
    (":", "mkfifo d/new", "test -p d/new"),
    ("touch d/old", "mv d/old d/new", "test -f d/new && ! test -e d/old"),
    ("touch d/old", "rm d/old", "! test -e d/old"),
    ("touch d/old", "ln d/old d/new", "test -f d/new"),
];

const OF_FILES: [(&str, &str, &str); 6] = [
    (":", "printf later >> f", "test $(cat f) = beforelater"),
    (":", "direct f", "test $(stat -c %s f) = 4096"),
    (":", "chmod 640 f", "test $(stat -c %a f) = 640"),
    (":", "setfattr -n user.a -v b f", "getfattr -n user.a f"),
    (":", "truncate -s 3 f", "test $(cat f) = bef"),
    (":", ": > f", "test -f f && ! test -s f"),
];

#[test]
fn changes_of_directories() {
    for (before, change, after) in OF_DIRS {
        for (options, flags) in
            [("sync", ":"), ("dirsync", ":"), ("rw", "chattr +D d"), ("rw", "chattr +S d")]
        {
            survives(options, &format!("mkdir d; {flags}; {before}"), change, after);
        }
    }
}

#[test]
fn changes_of_files() {
    for (before, change, after) in OF_FILES {
        for (options, flags) in [("sync", ":"), ("rw", "chattr +S f")] {
            survives(options, &format!("printf before > f; {flags}; {before}"), change, after);
        }
    }
}
