//! Manual pages and completions come out of the arguments.

use std::process::Command;

#[test]
fn pages_and_completions() {
    let dir = tempfile::tempdir().unwrap();
    let made = Command::new(env!("CARGO_BIN_EXE_lanefs")).arg("pages").arg(dir.path()).status().unwrap();
    assert!(made.success());
    let read =
        |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let completions =
        ["lanefs.bash", "_lanefs", "lanefs.fish"].map(|name| read(&format!("completions/{name}")));
    let first = read("man1/lanefs.1");
    for command in ["mkfs", "build", "mount", "umount", "cp", "import", "lab"] {
        let page = read(&format!("man1/lanefs-{command}.1"));
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH OPTIONS"), "{command}: {page}");
        for section in ["EXAMPLES", "EXIT STATUS", "ENVIRONMENT", "SEE ALSO"] {
            let title = format!(".SH \"{section}\"\n");
            assert_eq!(page.matches(&title).count(), 1, "{command}: {section}");
            assert!(first.contains(&title), "{section}");
        }
        assert!(first.contains(&format!("lanefs\\-{command}(1)")), "{command}: {first}");
        assert!(completions.iter().all(|text| text.contains(command)), "{command}");
    }
    // A hidden command has no page.
    for hidden in ["burst", "pages"] {
        assert!(!dir.path().join(format!("man1/lanefs-{hidden}.1")).exists());
    }
    for helper in ["mount", "umount"] {
        let page = read(&format!("man8/{helper}.lanefs.8"));
        assert!(page.contains(&format!(".TH {helper}.lanefs 8")), "{page}");
    }
    let bash =
        Command::new("bash").arg("-n").arg(dir.path().join("completions/lanefs.bash")).status().unwrap();
    assert!(bash.success());
}

#[test]
fn help_of_a_command() {
    let run = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_lanefs")).args(args).output().unwrap();
    for command in ["mkfs", "cp", "xattr"] {
        let (help, option) = (run(&["help", command]), run(&[command, "--help"]));
        assert!(help.status.success());
        assert_eq!(String::from_utf8_lossy(&help.stdout), String::from_utf8_lossy(&option.stdout));
    }
    assert!(run(&["help"]).status.success());
    assert!(!run(&["help", "nothing"]).status.success());
}

/// As of the coreutils: what could not be written is a failure.
#[test]
fn help_that_cannot_be_written_is_a_failure() {
    for option in ["--help", "--version"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lanefs"));
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let out = command.arg(option).stdout(full).output().expect("lanefs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{option}: {said}");
        assert_eq!(said, "lanefs: cannot write to standard output: No space left on device\n");
    }
}

/// Every page has the sections of a command, and what it refers to is there or of another program.
#[test]
fn sections_and_references_of_all_pages() {
    let dir = tempfile::tempdir().unwrap();
    let made = Command::new(env!("CARGO_BIN_EXE_lanefs")).arg("pages").arg(dir.path()).status().unwrap();
    assert!(made.success());
    // fuse.lanefs is a link that is made when the pages are installed.
    let others = "
        acl cat chmod chown cp df diff du dumpe2fs e2fsck e2label ext4 fallocate filefrag find fio
        fstab fstrim fsverity getfattr ln ls mkdir mke2fs mknod mount mv readlink resize2fs rm
        setfattr skopeo stat tar touch tree truncate tune2fs umoci umount unshare user_namespaces
        veritysetup xattr";
    let mut count = 0;
    for section in ["1", "5", "8"] {
        for page in std::fs::read_dir(dir.path().join(format!("man{section}"))).unwrap().map(Result::unwrap) {
            let (name, text) = (page.file_name(), std::fs::read_to_string(page.path()).unwrap());
            let wanted = if section == "5" {
                &["EXAMPLES", "SEE ALSO"][..]
            } else {
                &["EXAMPLES", "EXIT STATUS", "ENVIRONMENT", "SEE ALSO"]
            };
            for title in wanted {
                assert_eq!(text.matches(&format!(".SH \"{title}\"\n")).count(), 1, "{name:?}: {title}");
            }
            let (_, also) = text.split_once(".SH \"SEE ALSO\"\n").unwrap();
            for reference in also.trim().split(", ") {
                let reference = reference.replace("\\fB", "").replace("\\fR", "").replace("\\-", "-");
                let (page, number) = reference.trim_end_matches(')').split_once('(').unwrap();
                let own = dir.path().join(format!("man{number}/{page}.{number}")).exists();
                assert!(own || others.split_whitespace().any(|other| other == page), "{name:?}: {reference}");
            }
            count += 1;
        }
    }
    assert!(count > 30, "{count} pages");
}

/// The options of a mount are all on their page, and the command and the other pages name it.
#[test]
fn the_page_of_the_mount_options() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_lanefs")).args(args).output().unwrap();
    assert!(run(&["pages", dir.path().to_str().unwrap()]).status.success());
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap().replace("\\-", "-");
    let page = read("man5/lanefs-mount-options.5");
    for option in lanefs_fuse::MOUNT_OPTIONS {
        assert!(page.contains(&option.forms.join(", ")), "{:?}", option.forms);
    }
    for line in page.lines().filter(|line| line.starts_with('.')) {
        assert!([".TH", ".SH", ".TP"].iter().any(|request| line.starts_with(request)), "{line}");
    }
    for other in ["man1/lanefs-mount.1", "man8/mount.lanefs.8"] {
        assert!(read(other).contains("lanefs-mount-options(5)"), "{other}");
    }
    let help = run(&["mount", "--help"]);
    assert!(String::from_utf8_lossy(&help.stdout).contains("lanefs-mount-options(5)"));
}

/// docs/mount.md has the same table of options as the mount.
#[test]
fn the_document_has_the_same_options_as_the_mount() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mount.md");
    let document = std::fs::read_to_string(path).unwrap();
    let mut table = String::from("| option | |\n|---|---|\n");
    for option in lanefs_fuse::MOUNT_OPTIONS {
        let text = option.refusal().map_or(option.text.to_owned(), |why| format!("Refused: {why}."));
        let forms: Vec<String> = option.forms.iter().map(|form| format!("`{form}`")).collect();
        table.push_str(&format!("| {} | {text} |\n", forms.join(", ")));
    }
    assert!(document.contains(&table), "docs/mount.md is to have:\n{table}");
}
