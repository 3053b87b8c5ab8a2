//! pjdfstest: its findings on the mount must be those on the kernel's ext4, except the differences
//! in `pjdfstest.differences`.

use crate::support::{Image, SIZE, bounded, from_crates, judged, output, said};
use lanefs_tests::{Server, copy_file};
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

/// Every feature that ext4 on Linux has. Two users that every Debian has.
const CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
[dummy_auth]
entries = [["nobody", "nogroup"], ["games", "games"]]
"#;

/// The names of the tests that passed and that failed.
fn results(server: &Server, user: Option<&str>, option: &str) -> [BTreeSet<String>; 2] {
    let image = Image::new(SIZE, &[]).with(option);
    let config = image.beside("pjdfstest.toml");
    fs::write(&config, CONFIG).unwrap();
    let secondary = image.beside("secondary");
    fs::create_dir(&secondary).unwrap();
    let open = Permissions::from_mode(0o777);
    fs::set_permissions(&secondary, open.clone()).unwrap();
    fs::set_permissions(image.beside(""), Permissions::from_mode(0o755)).unwrap();
    let mounted = image.mount(server);
    fs::set_permissions(mounted.path().parent().unwrap(), Permissions::from_mode(0o1777)).unwrap();
    fs::set_permissions(mounted.path(), open).unwrap();

    let program = image.beside("pjdfstest");
    // Other users may be unable to enter the folder of the build.
    copy_file(from_crates("pjdfstest"), &program);
    let mut command = match user {
        None => bounded(200, &program),
        Some(user) => {
            let mut command = bounded(200, "setpriv");
            command.args(["--reuid", user, "--regid", user, "--clear-groups"]).arg(&program);
            command
        }
    };
    command.arg("-c").arg(&config).arg("-p").arg(mounted.path()).arg("-s").arg(&secondary);
    let out = output(&mut command);
    let text = said(&out);
    assert!(text.contains("Summary"), "{command:?}: {}\n{text}", out.status);
    mounted.unmount();
    let ended = |with: &str| {
        let line = |l: &str| {
            let (name, rest) = l.split_once(char::is_whitespace)?;
            (name.contains("::") && rest.trim() == with).then(|| name.to_owned())
        };
        text.lines().filter_map(line).collect::<BTreeSet<_>>()
    };
    let [passed, failed] = [ended("ok"), ended("FAILED")];
    assert!(passed.len() > 200, "only {} passed\n{text}", passed.len());
    for name in &failed {
        let at = text.find(&**name).unwrap();
        println!("{}: {}", server.name(), text[at..].lines().take(3).collect::<Vec<_>>().join("\n"));
    }
    [passed, failed]
}

/// Fails if the list and the differences found are not the same.
fn compare(user: Option<&str>, option: &str) {
    let [kernel, _] = results(&Server::Kernel, user, option);
    let [passed, failed] = results(&judged(), user, option);
    let lost: BTreeSet<_> = kernel.difference(&passed).cloned().collect();
    let more: BTreeSet<_> = passed.difference(&kernel).collect();
    println!(
        "{} passed by both, {} failed, {} that the kernel does not pass",
        passed.len(),
        failed.len(),
        more.len()
    );
    let listed: BTreeSet<String> = include_str!("pjdfstest.differences")
        .lines()
        .filter(|l| !l.starts_with('#') && !l.trim().is_empty())
        .map(|l| l.split_once(": ").expect("a name, a colon and the reason").0.to_owned())
        // As a user, tests that need root are not run.
        .filter(|name| kernel.contains(name))
        .collect();
    assert_eq!(lost, listed, "tests that only the kernel passes, and those listed as such");
}

#[test]
fn as_root() {
    compare(None, "rw");
}

#[test]
fn as_a_user() {
    compare(Some("games"), "rw");
}

#[test]
fn with_fewer_requests() {
    compare(None, "noopen,noxattr");
}
