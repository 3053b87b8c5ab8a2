//! find, touch, truncate, mknod, du, readlink, label and tune, against findutils, coreutils and
//! e2fsprogs on the kernel's mount of the same image.

use crate::support::{Image, field, succeed, tool};
use lanefs_tests::LoopMount;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A volume with files of all kinds, owners, modes, times and links; `script` runs on the kernel's
/// mount of it.
fn sample() -> Image {
    let image = Image::new();
    on_kernel(&image, |dir| {
        let script = r#"
            mkdir -p etc/conf.d usr/bin 'odd [name' empty deep/a/b/c; cd etc
            head -c 70000 /dev/zero > big; echo small > a.conf; echo x > conf.d/b.conf; : > conf.d/none
            printf 'x' > '../odd [name/ü?'; printf 'y' > "../odd [name/$(printf 'bytes\377')"
            ln big again; ln -s conf.d/b.conf link; ln -s /usr/bin/../../etc/link chain; ln -s nowhere dangling
            ln -s loop loop; mkfifo pipe; mknod null c 1 3; truncate -s 3M sparse
            chmod 4755 big; chmod 2750 conf.d; chmod 640 a.conf; chown 33:44 a.conf conf.d/b.conf
            touch -d '2003-04-05 06:07:08.090807060 UTC' a.conf; touch -d '1960-01-01 UTC' sparse
        "#;
        succeed(tool("bash").args(["-euc", script]).current_dir(dir));
    });
    image
}

/// Runs `f` on the kernel's mount of the image.
fn on_kernel<T>(image: &Image, f: impl FnOnce(&Path) -> T) -> T {
    let mount = LoopMount::new(&image.path, "");
    f(mount.path())
}

fn text(command: &mut Command) -> String {
    String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn find_finds_what_find_finds() {
    let image = sample();
    let cases: &[&[&str]] = &[
        &[],
        &["-name", "*.conf"],
        &["-name", "[!a-m]*"],
        &["-name", "[[:lower:]]?[[:alpha:]]"],
        &["-name", "odd \\[*"],
        &["-name", "ü[?]"],
        &["-name", "bytes*"],
        &["-name", "-*"],
        &["-type", "f"],
        &["-type", "d,l"],
        &["-type", "c"],
        &["-size", "+100k"],
        &["-type", "f", "-size", "-1k"],
        &["-size", "6c"],
        &["-size", "137"],
        &["-perm", "640"],
        &["-perm", "-4000"],
        &["-perm", "/6000"],
        &["-perm", "-u=rw,g=r"],
        &["-type", "f", "-perm", "/022"],
        &["-user", "33"],
        &["-group", "44", "-name", "b*"],
        &["-empty"],
        &["-maxdepth", "1"],
        &["-mindepth", "3"],
        &["-newer", "etc/a.conf", "-type", "f"],
        &["-newer", "etc/dangling"],
    ];
    for case in cases {
        let ours = case.iter().map(|word| match *word {
            "etc/a.conf" => "v.img:/etc/a.conf",
            "etc/dangling" => "v.img:/etc/dangling",
            word => word,
        });
        let ours = image.ok(["find", "v.img"].into_iter().chain(ours));
        let ours = ours.replace("v.img:/", "./").replace("./\n", ".\n");
        let gnu = on_kernel(&image, |dir| {
            text(tool("find").arg(".").args(*case).env("LC_ALL", "C.UTF-8").current_dir(dir))
        });
        assert_eq!(sorted(&ours), sorted(&gnu), "{case:?}");
    }
    let ended = image.ok(["find", "v.img:/deep", "-print0", "-name", "c"]);
    assert_eq!(ended, "v.img:/deep/a/b/c\0");
    // A value may look like a condition, and the same words with two hyphens are conditions.
    assert_eq!(image.ok(["find", "v.img", "--name", "-name"]), "");
    assert_eq!(image.ok(["find", "v.img:/deep", "--maxdepth", "0"]), "v.img:/deep\n");
    for [option, owner] in [["-user", "0:5"], ["-user", ""], ["-group", ""], ["-group", ":0"]] {
        let out = image.lanefs(["find", "v.img", option, owner]).output().unwrap();
        assert!(!out.status.success() && out.stdout.is_empty(), "{option} {owner:?}");
    }
    image.fails(["find", "v.img:/none"], 1, "lanefs: cannot access 'v.img:/none': No such file or directory");
}

#[test]
fn readlink_prints_what_readlink_prints() {
    let image = sample();
    let names = [
        "etc/link",
        "etc/dangling",
        "etc/loop",
        "etc/a.conf",
        "none/x",
        "etc/link/.",
        "etc/x",
        "etc/../etc/./link",
    ];
    for option in ["-f", "-e", "-n"] {
        for name in names {
            let gnu = on_kernel(&image, |dir| {
                text(tool("readlink").args([option, name]).current_dir(dir))
                    .replace(dir.to_str().unwrap(), "")
            });
            let ours = image.lanefs(["readlink", option, &image.at(&format!("/{name}"))]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&ours.stdout), gnu, "{option} {name}");
            assert_eq!(ours.status.success(), !gnu.is_empty(), "{option} {name}");
        }
    }
    // Where an absolute target begins at the root of the volume.
    assert_eq!(image.ok(["readlink", "-f", "v.img:/etc/chain"]), "/etc/conf.d/b.conf\n");
    assert_eq!(image.ok(["readlink", "-n", "v.img:/etc/link"]), "conf.d/b.conf");
    let why = "lanefs: cannot read 'v.img:/etc/big': it is not a symbolic link";
    image.fails(["readlink", "v.img:/etc/big"], 1, why);
}

/// The bytes of a link are those of the volume's author.
#[test]
fn readlink_shows_a_terminal_no_escapes() {
    let image = Image::new();
    image.ok(["ln", "-s", "\x1b]0;owned\x07", "v.img:/link"]);
    assert_eq!(image.ok(["readlink", "v.img:/link"]), "\x1b]0;owned\x07\n");
    for option in ["", "-n", "-f"] {
        // script(1) gives the command a terminal.
        let line = format!("{} readlink {option} v.img:/link", env!("CARGO_BIN_EXE_lanefs"));
        let mut script = tool("script");
        let out = succeed(script.args(["-qec", &line, "/dev/null"]).current_dir(image.beside(""))).stdout;
        assert!(!out.contains(&0x1b) && !out.contains(&7), "{option}: {out:?}");
    }
}

#[test]
fn du_bears_sizes_that_no_volume_has() {
    let image = Image::new();
    for name in ["a", "b", "c"] {
        let file = image.at(&format!("/{name}"));
        image.ok(["touch", &file]);
        let sif = format!("sif /{name} size 0x7fffffffffffffff");
        succeed(tool("debugfs").args(["-w", "-R", &sif]).arg(&image.path));
    }
    for paths in [&["v.img:/"][..], &["v.img:/a", "v.img:/b", "v.img:/c"]] {
        let said = image.ok(["du", "-bc"].iter().chain(paths));
        assert!(said.ends_with("18446744073709551615\ttotal\n"), "{said}");
    }
}

#[test]
fn du_counts_what_du_counts() {
    let image = sample();
    for options in [
        &["-a"][..],
        &["-s"],
        &["-d", "1"],
        &["-a", "--apparent-size"],
        &["-b"],
        &["-ah"],
        &["-sc"],
        &["-d", "0", "-a"],
    ] {
        let ours = image.ok(["du"].iter().chain(options).chain(&["v.img:/etc", "v.img:/deep"]));
        let gnu =
            on_kernel(&image, |dir| text(tool("du").args(options).args(["etc", "deep"]).current_dir(dir)));
        let (ours, gnu) = (ours.replace("v.img:/", ""), gnu);
        // Of two names of an inode the first that is met counts.
        let (ours, gnu) = [ours, gnu].map(|text| text.replace("etc/big", "etc/again")).into();
        assert_eq!(sorted(&ours), sorted(&gnu), "{options:?}");
    }
}

#[test]
fn touch_does_what_touch_does() {
    let (ours, kernels) = (sample(), sample());
    let cases: &[&[&str]] = &[
        &["-d", "2011-02-03 04:05:06.789 +0100", "etc/a.conf"],
        &["-a", "-d", "@1234567890.5", "etc/a.conf"],
        &["-m", "-t", "203804050607.08", "etc/conf.d"],
        &["-h", "-d", "1999-12-31", "etc/link"],
        &["-d", "1970-01-02 UTC", "etc/link"],
        &["-d", "2001-02-03T04:05:06Z", "etc/new"],
        &["-d", "2001-02-03T04:05:06Z", "etc/dangling"],
        &["-c", "etc/absent"],
        &["-r", "etc/sparse", "etc/big"],
        &["-a", "-r", "etc/sparse", "etc/again"],
        &["-d", "2001-02-03", "etc/none/file"],
        &["-h", "-d", "2001-02-03", "etc/absent"],
        &["-d", "2446-05-10 22:38:55 UTC", "etc/conf.d/none"],
    ];
    let mut failures = [0, 0];
    for case in cases {
        let at = |word: &&str| {
            if word.starts_with("etc/") { ours.at(&format!("/{word}")) } else { (*word).to_owned() }
        };
        let words = case.iter().map(at);
        failures[0] += i32::from(
            !ours.lanefs(["touch".to_owned()].into_iter().chain(words)).status().unwrap().success(),
        );
        let touched =
            on_kernel(&kernels, |dir| tool("touch").args(*case).current_dir(dir).status().unwrap().success());
        failures[1] += i32::from(!touched);
    }
    assert_eq!(failures, [2, 2]);
    let times = |image: &Image| {
        on_kernel(image, |dir| {
            // The kernel moves the time of the last read of a link that it follows.
            let (files, links) = ("%P %y %m %U %T@ %A@\\n", "%P %y %T@\\n");
            let find = ["etc", "-type", "f", "-printf", files, "-o", "-type", "l", "-printf", links];
            let all = text(tool("find").args(find).current_dir(dir));
            // Of what was not touched, the time of making.
            let lines = all.lines().filter(|line| !line.contains(" 17")).map(str::to_owned);
            let mut lines: Vec<String> = lines.collect();
            lines.sort_unstable();
            lines
        })
    };
    assert_eq!(times(&ours), times(&kernels));
    ours.fsck();
    // What is set without a time is now, for reproducible volumes that of SOURCE_DATE_EPOCH.
    let mut now = ours.lanefs(["touch", "v.img:/etc/a.conf"]);
    succeed(now.env("SOURCE_DATE_EPOCH", "1000000000"));
    assert_eq!(ours.ok(["stat", "-c", "%X %Y", "v.img:/etc/a.conf"]), "1000000000 1000000000\n");
}

#[test]
fn truncate_does_what_truncate_does() {
    let (ours, kernels) = (sample(), sample());
    let cases: &[&[&str]] = &[
        &["-s", "5000", "etc/big"],
        &["-s", "1M", "etc/a.conf"],
        &["-s", "+3K", "etc/sparse"],
        &["-s", "-1M", "etc/sparse"],
        &["-s", "-1G", "etc/conf.d/b.conf"],
        &["--size=70kB", "etc/new", "etc/conf.d/new"],
        &["-s", "+10", "etc/dangling"],
        &["-c", "-s", "10", "etc/absent"],
        &["-c", "-s", "10", "etc/link"],
        &["-s", "10", "etc/none/file"],
        &["-s", "10", "etc/loop"],
        &["-s", "10", "etc/conf.d"],
        &["-s", "10", "etc/pipe"],
        &["-s", "x", "etc/big"],
        &["etc/big"],
    ];
    for case in cases {
        let at = |word: &&str| {
            if word.starts_with("etc/") { ours.at(&format!("/{word}")) } else { (*word).to_owned() }
        };
        let words = ["truncate".to_owned()].into_iter().chain(case.iter().map(at));
        let done = ours.lanefs(words).output().unwrap().status.success();
        let truncate = |dir: &Path| tool("truncate").args(*case).current_dir(dir).output().unwrap();
        assert_eq!(done, on_kernel(&kernels, truncate).status.success(), "{case:?}");
    }
    let files = |image: &Image| {
        on_kernel(image, |dir| {
            let all = text(tool("find").args(["etc", "-printf", "%P %y %m %s %b\\n"]).current_dir(dir));
            let mut lines: Vec<String> = all.lines().map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        })
    };
    assert_eq!(files(&ours), files(&kernels));
    ours.fsck();
}

#[test]
fn mknod_makes_what_mknod_makes() {
    let (ours, kernels) = (Image::new(), Image::new());
    let cases: &[&[&str]] = &[
        &["/block", "b", "8", "1"],
        &["-m", "600", "/char", "c", "0x103", "070000"],
        &["-m", "a=r,u+w", "/pipe", "p"],
        &["/plain", "p"],
        &["/plain", "p"],
        &["/none/pipe", "p"],
        &["/numbers", "p", "1", "2"],
        &["/none", "c"],
        &["/one", "c", "1"],
        &["/type", "x"],
        &["-m", "4755", "/set", "p"],
        &["/large", "c", "4096", "0"],
    ];
    for case in cases {
        let at = |word: &&str| if word.starts_with('/') { ours.at(word) } else { (*word).to_owned() };
        let words = ["mknod".to_owned()].into_iter().chain(case.iter().map(at));
        let done = ours.lanefs(words).output().unwrap().status.success();
        let mknod = |dir: &Path| {
            let words = case.iter().map(|word| word.trim_start_matches('/'));
            tool("mknod").args(words).current_dir(dir).output().unwrap()
        };
        assert_eq!(done, on_kernel(&kernels, mknod).status.success(), "{case:?}");
    }
    let files = |image: &Image| {
        on_kernel(image, |dir| {
            let script = "stat -c '%n %F %a %u %g %t %T' block char pipe plain; ls";
            text(tool("bash").args(["-euc", script]).current_dir(dir))
        })
    };
    assert_eq!(files(&ours), files(&kernels));
    // mknod(1) makes no sockets.
    ours.ok(["mknod", "v.img:/socket", "s"]);
    let kind = on_kernel(&ours, |dir| text(tool("stat").args(["-c", "%F", "socket"]).current_dir(dir)));
    assert_eq!(kind, "socket\n");
    ours.fsck();
}

/// What tune2fs -l prints of each superblock, without what each opening changes.
fn settings(path: &Path) -> Vec<String> {
    let all = text(tool("tune2fs").arg("-l").arg(path));
    let moved = [
        "Last ",
        "Mount count",
        "Lifetime",
        "tune2fs",
        "Next check",
        "Checksum:",
        "Filesystem state",
        "First error",
    ];
    all.lines().filter(|line| !moved.iter().any(|word| line.starts_with(word))).map(str::to_owned).collect()
}

fn copy(image: &Image) -> PathBuf {
    let copy = image.beside("other.img");
    std::fs::copy(&image.path, &copy).unwrap();
    copy
}

#[test]
fn tune_sets_what_tune2fs_sets() {
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    let cases: [(&[&str], &[&[&str]]); 2] = [
        (
            &["-b", "1024", "-O", "metadata_csum,64bit"],
            &[
                &["-L", "name"],
                &["-m", "7.3"],
                &["-r", "1234"],
                &["-u", "33", "-g", "44"],
                &["-e", "panic"],
                &["-c", "20", "-i", "3w"],
                &["-c", "-1", "-i", "0"],
                &["-o", "journal_data_writeback,^acl,discard"],
                &["-o", "^journal_data"],
                &["-E", "mount_opts=noatime"],
                &["-E", "hash_alg=tea"],
                &["-O", "metadata_csum_seed"],
                &["-U", uuid],
                &["-L", ""],
            ],
        ),
        (
            &["-b", "4096", "-O", "^metadata_csum,^uninit_bg"],
            &[&["-U", uuid, "-e", "remount-ro"], &["-U", "clear"]],
        ),
    ];
    for (mkfs, cases) in cases {
        let image = Image::mke2fs(mkfs, None);
        image.ok(["touch", "v.img:/file"]);
        let other = copy(&image);
        for case in cases {
            image.ok(["tune"].iter().chain(*case).chain(&["v.img"]));
            succeed(tool("tune2fs").args(*case).arg(&other));
            assert_eq!(settings(&image.path), settings(&other), "{case:?}");
            image.fsck();
        }
        assert_eq!(image.ok(["ls", "v.img:/"]), "file\nlost+found\n");
    }
}

#[test]
fn tune_leaves_what_it_cannot_change_soundly() {
    let image = Image::mke2fs(&["-b", "4096", "-O", "metadata_csum"], None);
    let before = std::fs::read(&image.path).unwrap();
    let refused = |words: &[&str], why: &str| {
        let out = image.lanefs(["tune"].iter().chain(words).chain(&["v.img"])).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(1) && said.contains(why), "{words:?}: {said}");
    };
    refused(&[], "required");
    refused(&["-O", "^has_journal"], "tune2fs");
    refused(&["-m", "51"], "0 to 50");
    refused(&["-e", "shout"], "remount-ro");
    refused(&["-u", "0:5"], "invalid user");
    refused(&["-g", ""], "invalid group");
    assert!(std::fs::read(&image.path).unwrap() == before);
    // With the volume open, which is a mount to the superblock.
    refused(&["-U", "random"], "metadata_csum_seed first");
    refused(&["-L", "seventeen bytes !"], "at most 16 bytes");
    refused(&["-r", "16000"], "at most 8192");
    image.ok(["tune", "-O", "metadata_csum_seed", "-U", "random", "v.img"]);
    refused(&["-O", "^metadata_csum_seed"], "the UUID has changed");
    image.fsck();
    let old = Image::mke2fs(&["-b", "4096", "-O", "^metadata_csum,uninit_bg"], None);
    let out = old.lanefs(["tune", "-U", "random", "v.img"]).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("group descriptors"), "{out:?}");
    old.fsck();
}

/// The copies of the superblock get the same, so that e2fsck -b finds the same volume.
#[test]
fn tune_changes_the_copies_too() {
    let image = Image::mke2fs(&["-b", "1024", "-O", "metadata_csum_seed"], None);
    image.ok(["tune", "-U", "01234567-89ab-cdef-0123-456789abcdef", "-L", "named", "v.img"]);
    for block in ["8193", "24577", "57345"] {
        let options = ["-h", "-o", &format!("superblock={block}"), "-o", "blocksize=1024"].map(str::to_owned);
        let all = text(tool("dumpe2fs").args(options).arg(&image.path));
        assert_eq!(field(&all, "Filesystem UUID:"), "01234567-89ab-cdef-0123-456789abcdef", "{block}");
        assert_eq!(field(&all, "Filesystem volume name:"), "named", "{block}");
    }
    image.fsck();
}

#[test]
fn label_prints_and_sets() {
    let image = Image::new();
    assert_eq!(image.ok(["label", "v.img"]), "\n");
    image.ok(["label", "v.img", "sixteen bytes ok"]);
    assert_eq!(image.ok(["label", "v.img:/"]), "sixteen bytes ok\n");
    assert_eq!(text(tool("e2label").arg(&image.path)), "sixteen bytes ok\n");
    let why = "lanefs: cannot label 'v.img': a label has at most 16 bytes, none of them zero";
    image.fails(["label", "v.img", "seventeen bytes !"], 1, why);
    // flock(1) holds what a writer would hold.
    let line = format!("{} label v.img", env!("CARGO_BIN_EXE_lanefs"));
    let in_use = text(tool("flock").args(["-x", "v.img", "-c", &line]).current_dir(image.beside("")));
    assert_eq!(in_use, "sixteen bytes ok\n");
    image.ok(["label", "v.img", ""]);
    assert_eq!(text(tool("e2label").arg(&image.path)), "\n");
    image.fsck();
}
