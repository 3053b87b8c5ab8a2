//! ls, tree, stat and cat, against GNU's own and on hostile names.

use crate::support::{Image, succeed, tool};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::process::Stdio;

fn sample() -> Image {
    let v = Image::new();
    let t = v.beside("t");
    fs::create_dir_all(t.join("sub/empty")).expect("mkdir");
    for (name, len) in [("a", 0), ("B", 1023), ("c.txt", 1_500_000), (".hidden", 7), ("sub/x", 12)] {
        fs::write(t.join(name), "x".repeat(len)).expect("write");
    }
    symlink("c.txt", t.join("link")).expect("symlink");
    succeed(tool("mkfifo").arg(t.join("pipe")));
    succeed(tool("chmod").arg("6751").arg(t.join("a")));
    succeed(tool("touch").args(["-d", "2003-04-05 06:07:08.090807060 UTC"]).arg(t.join("B")));
    v.ok(["cp", "-a", "t", "v.img:/t"]);
    v
}

/// Lines that describe no directory: sizes of those differ between file systems.
fn no_dirs(text: &str) -> Vec<&str> {
    text.lines().filter(|l| !l.starts_with('d') && !l.starts_with("total") && !l.ends_with(':')).collect()
}

#[test]
fn ls_prints_what_ls_prints() {
    let v = sample();
    for options in ["-1", "-a", "-A", "-AF", "-lnA", "-lnhAt", "-lnAS", "-lnAr", "-RA", "-lAnRF"] {
        let gnu = succeed(tool("ls").arg(options).arg("t").current_dir(v.beside("")));
        let gnu = String::from_utf8_lossy(&gnu.stdout).into_owned();
        let ours = v.ok(["ls", options, "v.img:/t"]);
        // The columns are as wide as the directories' sizes want them, so blanks are not compared.
        let words = |text: &str| {
            no_dirs(text)
                .iter()
                .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&ours), words(&gnu), "ls {options}");
    }
    let full = succeed(tool("ls").args(["-ln", "--full-time", "t/B"]).current_dir(v.beside("")));
    assert_eq!(
        v.ok(["ls", "-n", "--full-time", "v.img:/t/B"]),
        String::from_utf8_lossy(&full.stdout).replace("t/B", "v.img:/t/B")
    );
}

#[test]
fn stat_prints_what_stat_prints() {
    let v = sample();
    let format = "%a %A %f %F %h %u %g %s %B %y %Y";
    for name in ["a", "B", "c.txt", "link", "pipe", "sub/x"] {
        let gnu =
            succeed(tool("stat").args(["-c", format]).arg(format!("t/{name}")).current_dir(v.beside("")));
        assert_eq!(
            v.ok(["stat", "-c", format, &v.at(&format!("/t/{name}"))]),
            String::from_utf8_lossy(&gnu.stdout),
            "{name}"
        );
    }
    let whole = v.ok(["stat", "v.img:/t/B"]);
    assert!(whole.contains("Modify: 2003-04-05 06:07:08.090807060 +0000"), "{whole}");
    // As the inode on disk has it.
    let version = v.ok(["stat", "-c", "%v", "v.img:/t/B"]);
    let number: u64 = version.trim().parse().expect("a number");
    let told = format!("Version: 0x{:08x}:{:08x}", number >> 32, number as u32);
    assert!(number > 0 && v.debugfs("stat /t/B").contains(&told), "{told}");
    assert!(whole.ends_with(&format!("Version: {version}")), "{whole}");
    assert_eq!(v.ok(["xattr", "get", "system.lanefs.i_version", "v.img:/t/B"]), version.trim());
    v.fails(
        ["xattr", "set", "system.lanefs.i_version", "1", "v.img:/t/B"],
        1,
        "lanefs: cannot set attribute 'system.lanefs.i_version' of 'v.img:/t/B': Operation not permitted (i_version cannot be set)",
    );
    assert!(!v.ok(["xattr", "ls", "v.img:/t/B"]).contains("i_version"));
    assert!(v.ok(["stat", "-L", "-c", "%F", "v.img:/t/link"]).starts_with("regular file"));
}

#[test]
fn tree_draws() {
    let v = sample();
    let drawn = v.ok(["tree", "v.img:/t"]);
    let expected = "v.img:/t\n├── .hidden\n├── B\n├── a\n├── c.txt\n├── link -> c.txt\n├── pipe\n└── sub\n    ├── empty\n    └── x\n\n2 directories, 7 files\n";
    assert_eq!(drawn, expected);
    assert_eq!(v.ok(["tree", "-d", "-L", "1", "v.img:/t"]), "v.img:/t\n└── sub\n\n1 directory\n");
}

#[test]
fn json_holds_the_same() {
    let v = sample();
    for command in [&["ls", "-A"][..], &["tree"], &["stat"]] {
        let text = v.ok(command.iter().copied().chain(["--json", "v.img:/t"]));
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert!(!json.as_array().expect("an array").is_empty());
        if command[0] == "ls" {
            let c = json.as_array().expect("an array").iter().find(|e| e["name"] == "c.txt").expect("c.txt");
            assert_eq!(
                (&c["size"], &c["type"], &c["path"]),
                (&1_500_000.into(), &"regular file".into(), &"/t/c.txt".into())
            );
        }
    }
}

#[test]
fn a_hostile_name_does_not_reach_the_terminal() {
    let v = Image::new();
    let name = OsStr::from_bytes(b"x\x1b]0;owned\x07\xff\n");
    fs::write(v.beside("").join(name), "").expect("write");
    v.ok([OsStr::new("cp"), name, OsStr::new("v.img:/")]);
    // Into a pipe it goes as it is, as ls has it.
    let out = v.lanefs(["ls", "v.img:/"]).output().expect("lanefs");
    assert!(out.stdout.windows(name.len()).any(|w| w == name.as_bytes()), "{:?}", out.stdout);
    for command in ["ls", "ls -l", "tree", "ls -R"] {
        // script(1) gives the command a terminal.
        let line = format!("{} {command} v.img:/", env!("CARGO_BIN_EXE_lanefs"));
        let mut script = tool("script");
        script
            .args(["-qec", &line, "/dev/null"])
            .current_dir(v.beside(""))
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        let text = succeed(&mut script).stdout;
        let shown = String::from_utf8_lossy(&text);
        assert!(!text.contains(&0x1b) && !text.contains(&7), "{command}: {shown:?}");
        assert!(shown.contains(r"'x'$'\033'']0;owned'$'\a\377\n'"), "{command}: {shown}");
    }
}

/// What stat(1) prints for %n is the name itself, for a program that reads it.
#[test]
fn stat_escapes_a_name_on_a_terminal_only() {
    let v = Image::new();
    let name = OsStr::from_bytes(b"x\x1b\xff\n");
    fs::write(v.beside("").join(name), "").expect("write");
    v.ok([OsStr::new("cp"), name, OsStr::new("v.img:/")]);
    let path = OsStr::from_bytes(b"v.img:/x\x1b\xff\n");
    let out = succeed(&mut v.lanefs([OsStr::new("stat"), OsStr::new("-c"), OsStr::new("%n %s"), path]));
    assert_eq!(out.stdout, b"v.img:/x\x1b\xff\n 0\n");
    // script(1) gives the command a terminal.
    let line = format!("{} stat -c %n v.img:/$'x\\033\\377\\n'", env!("CARGO_BIN_EXE_lanefs"));
    let mut script = tool("script");
    script.args(["-qec", &line, "/dev/null"]).current_dir(v.beside("")).env("SHELL", "/bin/bash");
    let out = succeed(script.stdin(Stdio::null())).stdout;
    assert_eq!(String::from_utf8_lossy(&out).trim_end(), r"v.img:/x\033\377\n");
}

/// The target of a link is the volume's, and no name of a volume with a password in it.
#[test]
fn stat_shows_a_target_whole() {
    let v = Image::new();
    let target = "https://host/file?key=value";
    let said = v.ok(["ln", "-sv", target, "v.img:/link"]);
    assert_eq!(said, format!("'v.img:/link' -> '{target}'\n"));
    assert_eq!(v.ok(["stat", "-c", "%N", "v.img:/link"]), said);
}

/// `-U` has the order of the directory, which is that of the hashes of the names, or that in which
/// they were made: neither is sorted.
#[test]
fn ls_sorts_unless_told_otherwise() {
    let v = Image::new();
    v.ok(["mkdir", "v.img:/d"]);
    let sorted = (10..40).map(|i| format!("n{i}")).collect::<Vec<_>>();
    v.ok(["mkdir".to_owned()].into_iter().chain(sorted.iter().rev().map(|name| format!("v.img:/d/{name}"))));
    let lines = |args: &[&str]| v.ok(args).lines().map(str::to_owned).collect::<Vec<_>>();
    let mut unsorted = lines(&["ls", "-U", "v.img:/d"]);
    assert_ne!(unsorted, sorted);
    unsorted.sort();
    assert_eq!(unsorted, sorted);
    assert_eq!(lines(&["ls", "v.img:/d"]), sorted);
    let found = sorted.iter().map(|name| format!("v.img:/d/{name}"));
    let found = ["v.img:/d".to_owned()].into_iter().chain(found).collect::<Vec<_>>();
    assert_eq!(lines(&["find", "v.img:/d"]), found);
}

#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    let v = Image::new();
    fs::write(v.beside("f"), "line\n".repeat(1_000_000)).expect("write");
    v.ok(["cp", "f", "v.img:/f"]);
    let mut child =
        v.lanefs(["cat", "v.img:/f"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("lanefs");
    drop(child.stdout.take());
    let out = child.wait_with_output().expect("output");
    assert_eq!((out.status.code(), out.stderr.as_slice()), (Some(141), &b""[..]));
}

#[test]
fn exit_codes_are_those_of_coreutils() {
    let v = sample();
    v.fails(["ls", "v.img:/no"], 2, "lanefs: cannot access 'v.img:/no': No such file or directory");
    v.fails(["cat", "v.img:/no"], 1, "lanefs: cannot open 'v.img:/no': No such file or directory");
    v.fails(["cat", "v.img:/t"], 1, "lanefs: cannot read 'v.img:/t': Is a directory");
    v.fails(["stat", "v.img:/t/a/b"], 1, "lanefs: cannot stat 'v.img:/t/a/b': Not a directory");
    v.fails(
        ["ls", "none.img:/"],
        2,
        "lanefs: cannot open 'none.img': No such file or directory; lanefs mkfs --size 1G VOLUME makes a volume",
    );
    for (args, code) in [(&["ls", "--bad"][..], 2), (&["cat", "--bad"], 1), (&["nonsense"], 1), (&[], 1)] {
        assert_eq!(v.lanefs(args).output().expect("lanefs").status.code(), Some(code), "{args:?}");
    }
    // What can be shown is shown, beside the failure.
    let out = v.lanefs(["ls", "v.img:/no", "v.img:/t/B"]).output().expect("lanefs");
    assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(2), &b"v.img:/t/B\n"[..]));
}
