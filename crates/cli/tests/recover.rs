//! recover: a writer that was killed, judged by e2fsck and by what it had announced.

use crate::support::{Image, feed, succeed, tool};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn a_killed_writer_loses_nothing_that_it_announced() {
    for options in
        [&["-b", "4096"][..], &["-b", "1024", "-O", "^metadata_csum"], &["-b", "4096", "-O", "orphan_file"]]
    {
        let v = Image::mke2fs(options, None);
        let mut burst = v.lanefs(["burst", "v.img:/"]).stdout(Stdio::piped()).spawn().expect("lanefs");
        let mut lines = BufReader::new(burst.stdout.take().expect("a pipe")).lines();
        let mut announced = String::new();
        for _ in 0..40 {
            announced += &(lines.next().expect("a line").expect("a line") + "\n");
        }
        burst.kill().expect("kill");
        burst.wait().expect("wait");
        lines.map_while(Result::ok).for_each(|line| announced += &(line + "\n"));

        // Reading recovers in memory only.
        let before = std::fs::read(&v.path).expect("read");
        let out = feed(&mut v.lanefs(["burst", "--check", "v.img:/"]), announced.as_bytes());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(std::fs::read(&v.path).expect("read") == before, "a volume opened for reading was written");

        // A copy is recovered by e2fsck: both must see the same tree.
        std::fs::copy(&v.path, v.beside("theirs.img")).expect("copy");
        let theirs = tool("e2fsck").arg("-fy").arg(v.beside("theirs.img")).output().expect("e2fsck");
        assert!(theirs.status.code().is_some_and(|code| code <= 1), "{theirs:?}");

        let report: serde_json::Value =
            serde_json::from_str(&v.ok(["recover", "--json", "v.img"])).expect("JSON");
        assert!(report["needed"] == true && report["transactions"].as_u64() > Some(0), "{report}");
        v.fsck();
        assert_eq!(v.ok(["recover", "v.img"]), "'v.img': clean, nothing to recover\n");
        let out = feed(&mut v.lanefs(["burst", "--check", "v.img:/"]), announced.as_bytes());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let listing =
            |name: &str| v.ok(["ls", "-lniR", "--full-time", &format!("{name}:/")]).replace(name, "");
        assert_eq!(listing("v.img"), listing("theirs.img"));
    }
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
    let report: serde_json::Value =
        serde_json::from_str(&v.ok(["recover", "--json", "v.img"])).expect("JSON");
    assert_eq!((&report["needed"], &report["orphans"]), (&true.into(), &1.into()), "{report}");
    v.fsck();
}
