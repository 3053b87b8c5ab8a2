//! Manual pages and completions come out of the arguments.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

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
    for command in ["mkfs", "mount", "umount", "cp", "import", "lab"] {
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
    // What is hidden stays so.
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
