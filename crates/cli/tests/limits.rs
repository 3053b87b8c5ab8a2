//! The command without descriptors or memory: one line that says so, no panic, a sound volume.

use crate::support::Image;
use crate::support::mount::Mount;
use std::fs;
use std::process::{Command, Output};

/// Runs `lanefs ARGS` with a limit of the shell: `-n` for descriptors, `-v` for KiB of memory.
fn limited(v: &Image, limit: &str, most: usize, args: &[&str]) -> Output {
    let lanefs = v.lanefs(args);
    let mut shell = Command::new("sh");
    // Descriptors that the test has inherited would count.
    let closed: String = (3..10).map(|fd| format!("exec {fd}>&-; ")).collect();
    shell.args(["-c", &format!("{closed}ulimit {limit} {most} && exec \"$0\" \"$@\"")]);
    shell.arg(lanefs.get_program()).args(lanefs.get_args());
    shell.current_dir(v.path.parent().expect("a folder")).env("RUST_BACKTRACE", "0");
    shell.output().expect("sh")
}

/// Whether it succeeded. If not, each line that it said is of lanefs, and names the `cause`.
fn succeeded(out: &Output, cause: &str, what: &str) -> bool {
    let said = String::from_utf8_lossy(&out.stderr);
    if out.status.success() {
        return true;
    }
    assert!(
        out.status.code().is_some_and(|code| [1, 2, 32].contains(&code)),
        "{what}: {}: {said}",
        out.status
    );
    assert!(
        !said.is_empty() && said.lines().all(|l| l.starts_with("lanefs: ") && l.contains(cause)),
        "{what}: {said}"
    );
    false
}

const FULL: &str = "oo many open files in this process (`ulimit -n` is the limit)";

/// The least that the loader needs to open the libraries of a program.
const LOADER: usize = 4;

#[test]
fn too_few_descriptors_are_told_in_a_line() {
    let v = Image::new();
    fs::create_dir_all(v.beside("tree/a/b/c/d")).expect("folders");
    fs::write(v.beside("tree/a/b/c/d/file"), "content").expect("a file");
    v.ok(["import", "tree", "v.img:/tree"]);
    for (command, args) in [
        ("ls", &["v.img:/"][..]),
        ("check", &["v.img"]),
        ("cp", &["-r", "v.img:/tree", "copy"]),
        ("import", &["tree", "v.img:/again"]),
        ("export", &["v.img:/tree", "out"]),
    ] {
        let all: Vec<&str> = [command].iter().chain(args).copied().collect();
        let run = |most| succeeded(&limited(&v, "-n", most, &all), FULL, &format!("{command} with {most}"));
        let first = (LOADER..64).find(|most| run(*most)).expect("it never succeeds");
        assert!(first > LOADER || command == "ls" || command == "check", "{command} opens nothing");
        v.fsck();
    }
    assert_eq!(fs::read_to_string(v.beside("out/a/b/c/d/file")).expect("exported"), "content");
}

#[test]
fn a_mount_without_descriptors_is_none() {
    let mount = Mount::blank();
    for most in LOADER..=9 {
        let out = limited(&mount.image, "-n", most, &["mount", "v.img", "m"]);
        assert!(!succeeded(&out, FULL, &format!("mount with {most}")));
        assert!(!mount.is_mounted());
    }
    mount.image.fsck();
}

#[test]
fn too_little_memory_for_a_plan_is_told_in_a_line() {
    let v = Image::new();
    // Two million groups.
    let args = ["mkfs", "-q", "--size", "15T", "-b", "1024", "n.img"];
    let out = limited(&v, "-v", 200_000, &args);
    assert!(!succeeded(&out, "no memory to plan 1966080 block groups: larger blocks make fewer", "mkfs"));
    v.fails(
        ["mkfs", "-q", "--size", "15E", "n.img"],
        1,
        "lanefs: cannot make a volume in 'n.img': 4222124650659840 blocks are more than 4294967295 groups \
         of 32768: larger blocks make fewer",
    );
}
