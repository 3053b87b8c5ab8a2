//! The checks of ext4 before it changes a file, compared with the kernel's ext4: two programs print
//! their results, which must be the same.

use crate::support::{Image, bounded, compile, judged, output, said};
use lanefs_tests::{Server, debugfs_write};

/// Bytes of the volumes, and of their block groups.
const SIZE: u64 = 256 << 20;
const GROUP: u64 = 128 << 20;

/// The lines of a program on the kernel's ext4 and on the judged server.
fn agree(source: &str, args: impl Fn(&Server) -> Vec<String>) {
    let lines = [Server::Kernel, judged()].map(|server| {
        let image = Image::new(SIZE, &["-b", "4096"]);
        let program = compile(&image, source);
        let mounted = image.mount(&server);
        let mut command = bounded(800, program);
        let printed = crate::support::must(command.arg(mounted.path()).args(args(&server)));
        mounted.unmount();
        printed
    });
    let [kernel, other] = lines.each_ref().map(|text| text.lines().collect::<Vec<_>>());
    let pairs = kernel.iter().zip(&other);
    let differ: Vec<_> = pairs.filter(|(kernel, other)| kernel != other).take(20).collect();
    assert!(differ.is_empty(), "the kernel, and {}:\n{differ:#?}", judged().name());
    assert_eq!(kernel.len(), other.len());
}

#[test]
fn changes_take_set_ids_and_capabilities_away() {
    agree("setids.c", |_| vec!["61".into()]);
}

#[test]
#[ignore = "long: make judge-mount"]
fn changes_take_set_ids_and_capabilities_away_of_all_modes() {
    agree("setids.c", |_| vec!["1".into()]);
}

#[test]
fn flags_of_chattr_are_kept_and_hold() {
    agree("flags.c", |server| {
        let kernel = u8::from(matches!(server, Server::Kernel));
        vec![kernel.to_string(), SIZE.to_string(), GROUP.to_string()]
    });
}

/// A flag that was set when the clock was ahead holds too: by ctime alone, each request after it is
/// older.
#[test]
fn flags_hold_where_the_clock_was_set_back() {
    let image = Image::new(SIZE, &[]);
    let mounted = image.mount(&judged());
    for name in ["immutable", "append"] {
        std::fs::write(mounted.path().join(name), name).unwrap();
    }
    mounted.unmount();
    for (name, flags) in [("immutable", "0x80010"), ("append", "0x80020")] {
        debugfs_write(&image.path, &format!("set_inode_field /{name} flags {flags}"));
        debugfs_write(&image.path, &format!("set_inode_field /{name} ctime 20370101"));
    }
    let mounted = image.mount(&judged());
    for name in ["immutable", "append"] {
        let path = mounted.path().join(name);
        let before = path.metadata().unwrap().modified().unwrap();
        let touched = output(bounded(10, "touch").args(["-m", "-d", "2001-02-03"]).arg(&path));
        assert!(said(&touched).contains("Operation not permitted"), "{name}: {}", said(&touched));
        assert_eq!(path.metadata().unwrap().modified().unwrap(), before, "{name}");
    }
    mounted.unmount();
}
