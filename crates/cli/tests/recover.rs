//! recover: a writer that was killed, judged by e2fsck and by what it had announced.

use crate::support::{Image, feed, succeed, tool};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Kills a writer of the volume. Returns what it had announced.
fn kill_a_writer(v: &Image) -> String {
    let mut burst = v.lanefs(["burst", "v.img:/"]).stdout(Stdio::piped()).spawn().expect("lanefs");
    let mut lines = BufReader::new(burst.stdout.take().expect("a pipe")).lines();
    let mut announced = String::new();
    for _ in 0..40 {
        announced += &(lines.next().expect("a line").expect("a line") + "\n");
    }
    burst.kill().expect("kill");
    burst.wait().expect("wait");
    lines.map_while(Result::ok).for_each(|line| announced += &(line + "\n"));
    announced
}

fn recovered(v: &Image) -> Value {
    serde_json::from_str(&v.ok(["recover", "--json", "v.img"])).expect("JSON")
}

#[test]
fn a_killed_writer_loses_nothing_that_it_announced() {
    for options in
        [&["-b", "4096"][..], &["-b", "1024", "-O", "^metadata_csum"], &["-b", "4096", "-O", "orphan_file"]]
    {
        let v = Image::mke2fs(options, None);
        let announced = kill_a_writer(&v);

        // Reading recovers in memory only.
        let before = std::fs::read(&v.path).expect("read");
        let out = feed(&mut v.lanefs(["burst", "--check", "v.img:/"]), announced.as_bytes());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(std::fs::read(&v.path).expect("read") == before, "a volume opened for reading was written");

        // A copy is recovered by e2fsck: both must see the same tree.
        std::fs::copy(&v.path, v.beside("theirs.img")).expect("copy");
        let theirs = tool("e2fsck").arg("-fy").arg(v.beside("theirs.img")).output().expect("e2fsck");
        assert!(theirs.status.code().is_some_and(|code| code <= 1), "{theirs:?}");

        let report = recovered(&v);
        assert!(report["needed"] == true && report["transactions"].as_u64() > Some(0), "{report}");
        assert!(report["clean"] == true, "{report}");
        v.fsck();
        assert_eq!(v.ok(["recover", "v.img"]), "'v.img': clean, nothing to recover\n");
        let out = feed(&mut v.lanefs(["burst", "--check", "v.img:/"]), announced.as_bytes());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let listing =
            |name: &str| v.ok(["ls", "-lniR", "--full-time", &format!("{name}:/")]).replace(name, "");
        assert_eq!(listing("v.img"), listing("theirs.img"));
    }
}

/// A power cut within the write of the superblock leaves one half of it new and one old.
#[test]
fn a_torn_superblock_is_mended() {
    let v = Image::new();
    let closed = std::fs::read(&v.path).expect("read");
    kill_a_writer(&v);
    let mut torn = std::fs::read(&v.path).expect("read");
    torn[1536..2048].copy_from_slice(&closed[1536..2048]);
    std::fs::write(&v.path, torn).expect("write");
    // Commands that read the superblock alone name the command that mends it.
    for args in [["info", "v.img"], ["label", "v.img"]] {
        let out = v.lanefs(args).output().expect("lanefs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains("s_checksum") && said.contains("; lanefs recover mends"), "{args:?}: {said}");
        assert!(!out.status.success(), "{args:?}");
    }
    let report = recovered(&v);
    assert!(report["needed"] == true && report["clean"] == true, "{report}");
    v.fsck();
    assert_eq!(v.ok(["recover", "v.img"]), "'v.img': clean, nothing to recover\n");
}

/// Recovery does not look for errors, and says so where there may be some.
#[test]
fn a_volume_that_needs_e2fsck_is_not_called_clean() {
    let mend = |v: &Image| {
        let out = tool("e2fsck").arg("-fy").arg(&v.path).output().expect("e2fsck");
        assert!(out.status.code().is_some_and(|code| code <= 1), "{out:?}");
        assert_eq!(v.ok(["recover", "v.img"]), "'v.img': clean, nothing to recover\n");
    };
    let v = Image::mke2fs(&["-b", "4096", "-O", "^has_journal"], None);
    kill_a_writer(&v);
    let said = v.ok(["recover", "v.img"]);
    assert!(said.ends_with(" errors: run e2fsck -f\n"), "{said}");
    let report = recovered(&v);
    assert!(report["needed"] == true && report["clean"] == false, "{report}");
    mend(&v);

    // Closed, with the bit for errors.
    succeed(tool("debugfs").args(["-w", "-R", "ssv state 3"]).arg(&v.path));
    let said = v.ok(["recover", "v.img"]);
    assert_eq!(said, "'v.img': nothing to recover; the volume has errors: run e2fsck -f\n");
    let report = recovered(&v);
    assert!(report["needed"] == false && report["clean"] == false, "{report}");
    mend(&v);
}

#[test]
fn the_kernels_orphans_are_finished() {
    let v = Image::new();
    let out = feed(&mut v.lanefs(["cp", "-", "v.img:/f"]), &[7; 300_000]);
    assert!(out.status.success(), "{out:?}");
    let ino = v.ok(["stat", "-c", "%i", "v.img:/f"]);
    // As a crash between unlink and the last close leaves it.
    for request in [
        "unlink /f".to_owned(),
        format!("sif <{}> links_count 0", ino.trim()),
        format!("ssv last_orphan {}", ino.trim()),
    ] {
        succeed(tool("debugfs").args(["-w", "-R", &request]).arg(&v.path));
    }
    let report = recovered(&v);
    assert_eq!((&report["needed"], &report["orphans"]), (&true.into(), &1.into()), "{report}");
    v.fsck();
}
