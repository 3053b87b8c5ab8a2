//! `sync`, `dirsync`, and chattr(1)'s S and D: every acknowledged change is there after a cut of
//! power. A run tries half of the cases, by the date; with `LANEFS_LONG=2` all of them.

use crate::support::{Disk, Image, LIMIT, compile, shell};
use lanefs_tests::{Mounted, Server, slice};

/// Before, change, after.
type Row = (&'static str, &'static str, &'static str);

/// Options of a mount, and what is done for the file or directory that they do not make durable.
type Way = (&'static str, &'static str);

/// Programs of this folder that rows name.
const PROGRAMS: [&str; 2] = ["direct", "exchange"];

/// Mounts with `options`, runs `before` and then, once that is durable, `change`; the power is cut
/// at once, and `after` must hold.
fn survives(options: &str, before: &str, change: &str, after: &str) {
    println!("{options}: {before}; {change}");
    let server = Server::Lanefs(env!("CARGO_BIN_EXE_lanefs").into());
    let image = Image::new(16 << 20, &["-b", "4096"]);
    let named = PROGRAMS.iter().filter(|program| change.starts_with(**program));
    let prelude: String = named
        .map(|program| {
            let path = compile(&image, &format!("{program}.c"));
            format!("{program}() {{ {} \"$@\"; }}; ", path.display())
        })
        .collect();
    // Nothing is committed by the way.
    let options = format!("commit=300,{options}");
    let disk = Disk::new(&image);
    let mounted = disk.mount(&options);
    shell(mounted.path(), &format!("{before}; sync .; sync -f ."));
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

/// For changes of directories.
const OF_DIRS: [Row; 12] = [
    (":", "mkdir d/new", "test -d d/new"),
    (":", "touch d/new", "test -f d/new"),
    (":", "ln -s target d/new", "test -L d/new"),
    (":", "mkfifo d/new", "test -p d/new"),
    (":", "mknod d/new b 7 200", "test -b d/new"),
    ("touch d/old", "mv d/old d/new", "test -f d/new && ! test -e d/old"),
    (
        "printf old > d/old; printf new > d/new",
        "mv d/old d/new",
        "test $(cat d/new) = old && ! test -e d/old",
    ),
    ("mkdir e; touch d/old", "mv d/old e/new", "test -f e/new && ! test -e d/old"),
    (
        "printf old > d/old; printf new > d/new",
        "exchange d/old d/new",
        "test $(cat d/new) = old && test $(cat d/old) = new",
    ),
    ("touch d/old", "rm d/old", "! test -e d/old"),
    ("mkdir d/old", "rmdir d/old", "! test -e d/old"),
    ("touch d/old", "ln d/old d/new", "test -f d/new"),
];

const OF_FILES: [Row; 13] = [
    (":", "printf later >> f", "test $(cat f) = beforelater"),
    (":", "direct f", "test $(stat -c %s f) = 4096"),
    (":", "chmod 640 f", "test $(stat -c %a f) = 640"),
    (":", "chown 5:6 f", "test $(stat -c %u:%g f) = 5:6"),
    (":", "touch -d @1000000000 f", "test $(stat -c %Y f) = 1000000000"),
    (":", "setfattr -n user.a -v b f", "getfattr -n user.a f"),
    ("setfattr -n user.a -v b f", "setfattr -x user.a f", "! getfattr -n user.a f"),
    (":", "setfacl -m u:5:r f", "[[ $(getfacl -cn f) == *user:5:r--* ]]"),
    (":", "chattr +d f", "[[ $(lsattr f) == *d* ]]"),
    (":", "truncate -s 3 f", "test $(cat f) = bef"),
    (":", ": > f", "test -f f && ! test -s f"),
    (":", "fallocate -l 8192 f", "test $(stat -c %s f) = 8192"),
    ("printf copied > g", "xfs_io -c 'copy_range g' f", "test $(cat f) = copied"),
];

/// Returns the cases of the day.
fn cases<'t>(ways: &'t [Way], rows: &'t [Row]) -> impl Iterator<Item = (&'t Way, &'t Row)> {
    slice(ways.iter().flat_map(move |way| rows.iter().map(move |row| (way, row))), 2)
}

#[test]
fn changes_of_directories() {
    let ways = [("sync", ":"), ("dirsync", ":"), ("rw", "chattr +D d"), ("rw", "chattr +S d")];
    for ((options, flags), (before, change, after)) in cases(&ways, &OF_DIRS) {
        survives(options, &format!("mkdir d; {flags}; {before}"), change, after);
    }
}

#[test]
fn changes_of_files() {
    let ways = [("sync", ":"), ("rw", "chattr +S f")];
    for ((options, flags), (before, change, after)) in cases(&ways, &OF_FILES) {
        survives(options, &format!("printf before > f; {flags}; {before}"), change, after);
    }
}
