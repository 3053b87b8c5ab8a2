//! info and df against dumpe2fs and the kernel's arithmetic.

use crate::support::{Image, field, succeed, tool};
use lanefs_tests::LoopMount;

fn json(v: &Image, args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&v.ok(args)).expect("JSON")
}

#[test]
fn info_tells_what_dumpe2fs_tells() {
    for options in [
        &["-b", "4096"][..],
        &["-b", "1024", "-L", "label", "-I", "128"],
        &["-O", "^has_journal,^metadata_csum,^64bit"],
        &["-O", "bigalloc"],
    ] {
        let v = Image::mke2fs(options, None);
        let info = json(&v, &["info", "-g", "--json", "v.img"]);
        let dump = succeed(tool("dumpe2fs").arg(&v.path));
        let dump = String::from_utf8_lossy(&dump.stdout);
        for (key, name) in [
            ("blocks", "Block count:"),
            ("blocks_free", "Free blocks:"),
            ("blocks_reserved", "Reserved block count:"),
            ("inodes", "Inode count:"),
            ("inodes_free", "Free inodes:"),
            ("block_size", "Block size:"),
            ("inode_size", "Inode size:"),
            ("uuid", "Filesystem UUID:"),
        ] {
            assert_eq!(info[key].to_string().trim_matches('"'), field(&dump, name), "{options:?}: {name}");
        }
        let line = dump.lines().find_map(|l| l.strip_prefix("Filesystem features:")).expect("features");
        let mut theirs: Vec<&str> = line.split_whitespace().collect();
        let mut ours: Vec<&str> =
            info["features"].as_array().expect("list").iter().filter_map(|f| f.as_str()).collect();
        theirs.sort_unstable();
        ours.sort_unstable();
        assert_eq!(ours, theirs, "{options:?}");
        let groups: Vec<&str> =
            dump.lines().filter(|l| l.starts_with("Group ") && l.contains("(Blocks")).collect();
        assert_eq!(info["group_list"].as_array().expect("groups").len(), groups.len());
        for (group, line) in info["group_list"].as_array().expect("groups").iter().zip(groups) {
            let start = format!("Group {}: (Blocks {}-", group["group"], group["first_block"]);
            assert!(line.starts_with(&start), "{line}: {group}");
        }
        let free: u64 = info["group_list"]
            .as_array()
            .expect("groups")
            .iter()
            .filter_map(|g| g["blocks_free"].as_u64())
            .sum();
        assert_eq!(free, info["blocks_free"].as_u64().expect("a number"));
    }
}

#[test]
fn info_tells_how_the_volume_is_reached() {
    let v = Image::new();
    assert_eq!(json(&v, &["info", "--json", "v.img"])["io"], "mixed");
    assert!(
        v.ok(["info", "v.img"]).contains("mixed (past the page cache of the system, but for small reads)")
    );
    // No direct I/O in units of 512 bytes.
    let odd = std::fs::File::options().write(true).open(&v.path).expect("the volume");
    odd.set_len(odd.metadata().expect("its size").len() + 100).expect("another size");
    assert_eq!(json(&v, &["info", "--json", "v.img"])["io"], "buffered");
}

#[test]
fn df_counts_as_the_kernel_does() {
    let v = Image::new();
    let dump = succeed(tool("dumpe2fs").arg("-h").arg(&v.path));
    let dump = String::from_utf8_lossy(&dump.stdout);
    let number = |name| field(&dump, name).parse::<u64>().expect("a number");
    let df = json(&v, &["df", "--json", "v.img"]);
    assert_eq!(df[0]["free"], number("Free blocks:") * 4096);
    assert_eq!(df[0]["available"], (number("Free blocks:") - number("Reserved block count:")) * 4096);
    assert_eq!(df[0]["size"], (number("Block count:") - number("Overhead clusters:")) * 4096);
    assert_eq!(df[0]["inodes_free"], number("Free inodes:"));
    let text = v.ok(["df", "v.img"]);
    assert!(text.starts_with("Volume 1K-blocks"), "{text}");
}

#[test]
fn info_names_what_is_not_a_volume() {
    let v = Image::new();
    std::fs::write(v.beside("text"), "x".repeat(10_000)).expect("write");
    let out = v.lanefs(["info", "text"]).output().expect("lanefs");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(said, "lanefs: cannot open 'text': it holds no ext4 volume but text\n");
    assert_eq!(out.status.code(), Some(1));
}

/// The counts of such a volume are clusters.
#[test]
fn df_of_a_volume_with_bigalloc_is_that_of_the_kernel() {
    let image = Image::mke2fs(&["-O", "bigalloc"], None);
    let ours = json(&image, &["df", "--json", "v.img"])[0].clone();
    let mount = LoopMount::new(&image.path, "");
    let theirs = rustix::fs::statvfs(mount.path()).unwrap();
    assert_eq!(ours["size"], theirs.f_blocks * theirs.f_frsize);
    assert_eq!(ours["free"], theirs.f_bfree * theirs.f_frsize);
}
