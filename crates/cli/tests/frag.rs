//! frag against debugfs and e2freefrag.

use crate::support::{Image, feed, succeed, tool};
use serde_json::Value;
use std::io::Write;

fn json(v: &Image, args: &[&str]) -> Value {
    serde_json::from_str(&v.ok(args)).expect("JSON")
}

/// A volume whose free space is full of holes, and files that went into them.
fn fragmented(options: &[&str]) -> Image {
    let v = Image::mke2fs(options, None);
    let mut requests = String::new();
    for i in 0..40 {
        let name = format!("f{i}");
        let mut file = std::fs::File::create(v.beside(&name)).expect("a file");
        file.write_all(&vec![i as u8 + 1; (i % 7 + 1) * 50_000]).expect("write");
        requests += &format!("write {} {name}\n", v.beside(&name).display());
    }
    for i in (0..40).step_by(3) {
        requests += &format!("rm f{i}\n");
    }
    std::fs::write(v.beside("big"), vec![7; 4_000_000]).expect("write");
    requests += &format!("write {} big\nmkdir d\n", v.beside("big").display());
    requests += &format!("write {} d/small\nwrite /dev/null empty\n", v.beside("f0").display());
    let out = feed(tool("debugfs").args(["-w", "-f", "-"]).arg(&v.path), requests.as_bytes());
    assert!(out.status.success());
    v
}

#[test]
fn files_have_as_many_extents_as_debugfs_sees() {
    for options in [&["-b", "1024"][..], &["-b", "4096"], &["-b", "1024", "-O", "^extents,^64bit"]] {
        let v = fragmented(options);
        let rows = json(&v, &["frag", "--json", "v.img:/"]);
        let rows = rows.as_array().expect("an array");
        assert!(rows.len() > 25, "{rows:?}");
        let mut sum = 0;
        for row in rows {
            let path = row["name"].as_str().expect("a path").trim_start_matches("v.img:");
            let said = v.debugfs(&format!("filefrag {path}"));
            let theirs: u64 =
                said.rsplit(": ").next().and_then(|s| s.split(' ').next()?.parse().ok()).expect(&said);
            assert_eq!(row["extents"].as_u64(), Some(theirs), "{options:?} {path}");
            assert_eq!(row["ideal"].as_u64(), Some(theirs.min(1)), "{path}");
            sum += theirs;
        }
        let whole = &json(&v, &["frag", "--json", "v.img"])[0];
        assert_eq!(whole["extents"].as_u64(), Some(sum));
        assert_eq!(whole["files"], rows.len() as u64 - 1, "all but the empty one");
        assert_eq!(whole["ideal"], rows.len() as u64 - 1);
        assert!(sum > rows.len() as u64, "nothing was in pieces");
        let most = rows.iter().max_by_key(|row| row["extents"].as_u64()).expect("a file");
        assert_eq!(whole["most_extents"], most["extents"]);
        let many = rows.iter().filter(|r| r["extents"].as_u64() > Some(1)).count();
        assert_eq!(whole["fragmented"], many as u64);
        v.fsck();
    }
}

#[test]
fn free_runs_are_those_of_e2freefrag() {
    for options in [&["-b", "1024"][..], &["-b", "1024", "-O", "^flex_bg,^metadata_csum"], &["-b", "4096"]] {
        let v = fragmented(options);
        let out = succeed(tool("e2freefrag").arg(&v.path));
        let theirs = String::from_utf8_lossy(&out.stdout).into_owned();
        let whole = &json(&v, &["frag", "--json", "v.img"])[0];
        let line = |name: &str| {
            let line = theirs.lines().find(|l| l.starts_with(name)).expect(name);
            let value = line[name.len()..].split_whitespace().next().expect("a value").to_owned();
            value.parse::<u64>().expect("a number")
        };
        assert_eq!(whole["free_blocks"], line("Free blocks:"), "{options:?}\n{theirs}");
        assert_eq!(whole["free_runs"], line("Num. free extent:"), "{options:?}\n{theirs}");
        let kib = whole["block_size"].as_u64().expect("a number") / 1024;
        assert_eq!(whole["longest_free_run"].as_u64().expect("a number") * kib, line("Max. free extent:"));
        // Their rows are "from... to- : extents blocks percent", with the same powers of two.
        let classes: Vec<(u64, u64)> = theirs
            .lines()
            .filter_map(|l| l.split_once("-  :"))
            .map(|(_, rest)| {
                let mut words = rest.split_whitespace().map(|w| w.parse().unwrap_or(0));
                (words.next().unwrap_or(0), words.next().unwrap_or(0))
            })
            .collect();
        let number = |v: &Value| v.as_u64().expect("a number");
        let ours: Vec<(u64, u64)> = whole["free"]
            .as_array()
            .expect("an array")
            .iter()
            .map(|c| (number(&c["runs"]), number(&c["blocks"])))
            .collect();
        assert_eq!(ours, classes, "{options:?}\n{theirs}");
        assert!(ours.len() > 1 || options.contains(&"4096"), "{ours:?}");
    }
}

#[test]
fn text_for_people() {
    let v = Image::new();
    let text = v.ok(["frag", "v.img"]);
    assert!(text.starts_with("v.img: 0 files with 0 in 0 extents, ideal 0\nfree: "), "{text}");
    std::fs::write(v.beside("file"), [1; 5000]).expect("write");
    v.ok(["cp", "file", "v.img:/file"]);
    assert_eq!(v.ok(["frag", "v.img:/file"]), "v.img:/file: 1 extent, ideal 1\n");
    v.fails(["frag", "v.img:/none"], 1, "lanefs: cannot access 'v.img:/none': No such file or directory");
}
